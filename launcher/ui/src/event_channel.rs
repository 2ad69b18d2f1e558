//! The events of a command for the program that started it: a line of JSON each, on a descriptor that `--events` names.
//!
//! ```text
//! {"time":…,"event":"events","version":1}      first
//! {"time":…,"event":"run_started",…}           what the journal records, progress at most 20 times a second
//! {"time":…,"event":"failed","code":3,"message":"…","hint":"…"}      last, if the command fails
//! ```
//! **Invariant:** a line has at most [`LINE_BYTES_MAX`] bytes; a reader that takes nothing for [`TAKE_WAIT_MAX`] gets nothing more, and
//! the command goes on.

use super::message;
use enn_common::{
    event::{Event, EventKind},
    shown,
};
use enn_process::{PatientWriter, given_descriptor};
use serde_json::{Value, json};
use std::{
    io::{self, Write},
    sync::{Mutex, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Changes when a line that a reader knows gets another meaning. New events and fields do not change it.
pub const VERSION: u32 = 1;
/// Maximum length of a line with its newline. A longer event is announced without its fields.
pub const LINE_BYTES_MAX: usize = 1 << 20;
/// Maximum wait for a reader that takes nothing.
pub const TAKE_WAIT_MAX: Duration = Duration::from_secs(10);
/// Seconds between two events that only report progress.
const PROGRESS_INTERVAL_S: f64 = 0.05;

static OPEN: Mutex<Option<EventWriter>> = Mutex::new(None);

struct EventWriter {
    out: Box<dyn Write + Send>,
    /// Time of the last progress event.
    progress_written: f64,
}

/// Opens the channel of this process and writes its first line.
///
/// # Errors
/// The descriptor is not there, or cannot be written.
pub fn open(number: i32) -> io::Result<()> {
    let out = PatientWriter::new(&given_descriptor(number)?, None)?.within(TAKE_WAIT_MAX);
    let mut writer = EventWriter { out: Box::new(out), progress_written: f64::NEG_INFINITY };
    writer.put(&json!({ "time": now(), "event": "events", "version": VERSION }).to_string())?;
    *OPEN.lock().unwrap_or_else(PoisonError::into_inner) = Some(writer);
    Ok(())
}

/// Returns whether a program reads the events of this process.
pub fn is_open() -> bool {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner).is_some()
}

/// Writes an event.
pub(crate) fn event(event: &Event) {
    write(|writer| writer.event(event));
}

/// Writes what no journal records: an object with a key "event". It gets the time.
pub fn say(mut what: Value) {
    what["time"] = json!(now());
    write(|writer| writer.put(&what.to_string()));
}

/// Writes a warning that does not come as an event.
pub(crate) fn warn(time: f64, message: String) {
    write(|writer| writer.event(&Event { time, what: EventKind::Warned { message } }));
}

/// Writes a warning of the log.
pub fn logged(message: String) {
    warn(now(), message);
}

/// Writes an error: its sentence, its hint, and the exit code.
pub fn fail(text: &str, code: u8) {
    let (message, hint) = parts(text);
    say(json!({ "event": "failed", "code": code, "message": message, "hint": hint }));
}

/// Returns the sentence of an error and its hint.
pub fn parts(text: &str) -> (String, Option<String>) {
    let lines: Vec<&str> = text.trim().lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let plain = lines.join("\n");
    match plain.split_once("\nhint: ") {
        Some((message, hint)) => (message.to_owned(), Some(hint.to_owned())),
        None => (plain, None),
    }
}

/// Returns whether an event only reports progress, many times a second.
pub(crate) fn is_progress(what: &EventKind) -> bool {
    match what {
        EventKind::Stepped { .. } | EventKind::StageProgressed { .. } => true,
        EventKind::Predicted { rows, rows_total } => rows < rows_total,
        _ => false,
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

fn write(put: impl FnOnce(&mut EventWriter) -> io::Result<()>) {
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(Err(error)) = open.as_mut().map(put) else { return };
    *open = None;
    if error.kind() == io::ErrorKind::TimedOut {
        let wait = TAKE_WAIT_MAX.as_secs();
        message::print(&format!("warning: the reader of --events took nothing for {wait} s, and gets nothing more"));
    }
}

impl EventWriter {
    fn event(&mut self, event: &Event) -> io::Result<()> {
        if is_progress(&event.what) {
            if event.time - self.progress_written < PROGRESS_INTERVAL_S {
                return Ok(());
            }
            self.progress_written = event.time;
        }
        let line = serde_json::to_string(event)?;
        if line.len() < LINE_BYTES_MAX {
            return self.put(&line);
        }
        let of = serde_json::to_value(event)?.get("event").cloned();
        self.put(&json!({ "time": event.time, "event": "omitted", "of": of, "bytes": line.len() }).to_string())
    }

    fn put(&mut self, line: &str) -> io::Result<()> {
        self.out.write_all(format!("{}\n", shown::json(line)).as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    struct Lines(mpsc::Sender<Vec<u8>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.send(bytes.to_vec()).map_err(io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn progress_is_thinned_and_a_long_event_announced() {
        let (sender, lines) = mpsc::channel();
        let mut writer = EventWriter { out: Box::new(Lines(sender)), progress_written: f64::NEG_INFINITY };
        for step in 0..100 {
            let what = EventKind::StageProgressed { rows: step, bytes: 1, bytes_total: 2 };
            writer.event(&Event { time: 0.01 * step as f64, what }).unwrap();
        }
        writer.event(&Event { time: 1.0, what: EventKind::Warned { message: "x".repeat(LINE_BYTES_MAX) } }).unwrap();
        writer.event(&Event { time: 1.0, what: EventKind::Warned { message: "a\u{9b}\nb".into() } }).unwrap();
        drop(writer);
        let all: Vec<Value> = lines.iter().map(|line| serde_json::from_slice(&line).unwrap()).collect();
        assert!((18..=22).contains(&(all.len())), "{}", all.len());
        let [.., omitted, warned] = &all[..] else { panic!("{all:?}") };
        assert_eq!((&omitted["event"], &omitted["of"]), (&json!("omitted"), &json!("warned")));
        assert_eq!(warned["message"], "a\u{9b}\nb");
    }

    #[test]
    fn an_error_is_a_sentence_and_a_hint() {
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(parts("a: b\n  hint: do c\n  or d\n"), ("a: b".to_owned(), some("do c\nor d")));
        assert_eq!(parts("a\n\n  b"), ("a\nb".to_owned(), None));
    }
}
