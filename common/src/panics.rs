//! Panics: those of libraries that read what users bring, which are errors like any other, and those of a program of ours, which are
//! told in one sentence.
//!
//! **Invariant:** no panic ends in silence, none holds a process up for ever, and none writes a call stack on the screen unless
//! `RUST_BACKTRACE` asks for it.

use crate::shown;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    any::Any,
    backtrace::{Backtrace, BacktraceStatus},
    cell::Cell,
    fs::OpenOptions,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, resume_unwind, set_hook, take_hook},
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

/// Characters of a panic's message that are told.
const SAID_CHARS_MAX: usize = 200;
/// How long a process goes on after one of its threads panicked: who waits for the thread has noticed by then.
const NOTICED_WITHIN: Duration = Duration::from_secs(5);
/// How long it may take to end in order after that, checkpoint included.
const ENDED_WITHIN: Duration = Duration::from_secs(600);

thread_local! {
    /// The library that this thread is in.
    static LIBRARY: Cell<Option<&'static str>> = const { Cell::new(None) };
    /// Whether somebody else answers for the panics of this thread.
    static IS_ISOLATED: Cell<bool> = const { Cell::new(false) };
}

/// Whether a thread of this process panicked in code of ours.
static PANICKED: AtomicBool = AtomicBool::new(false);
/// Whether panics of this process are told already.
static IS_INSTALLED: AtomicBool = AtomicBool::new(false);

/// A panic inside of a library.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the library {library} panicked ({said}): what it read is damaged, or the library has a fault, whose place \
     RUST_BACKTRACE=1 shows"
)]
pub struct LibraryPanic {
    pub library: &'static str,
    pub said: String,
}

/// Calls a library on what a user brought. What the call touched is not to be used behind a panic.
pub fn caught<T>(library: &'static str, call: impl FnOnce() -> T) -> Result<T, LibraryPanic> {
    let outer = LIBRARY.replace(Some(library));
    let done = catch_unwind(AssertUnwindSafe(call));
    LIBRARY.set(outer);
    done.map_err(|payload| LibraryPanic { library, said: message(&*payload) })
}

/// Whether a panic of this thread would be an error of whoever calls a library now.
pub fn is_caught() -> bool {
    LIBRARY.get().is_some()
}

/// From now on whoever runs tasks on this thread answers for their panics: each is told, and the process goes on.
pub fn isolate_thread() {
    IS_ISOLATED.set(true);
}

/// Runs what answers for the panics of tasks on this thread, as [`isolate_thread`] says. Its own ends the process.
pub fn isolating<T>(run: impl FnOnce() -> T) -> T {
    isolate_thread();
    let done = catch_unwind(AssertUnwindSafe(run));
    IS_ISOLATED.set(false);
    done.unwrap_or_else(|payload| {
        if !PANICKED.swap(true, Ordering::Relaxed) {
            begin_end();
        }
        resume_unwind(payload)
    })
}

/// Whether a thread of this process panicked in code of ours, so that its work cannot have been done in full.
pub fn happened() -> bool {
    PANICKED.load(Ordering::Relaxed)
}

/// Tells panics of this process from now on: those inside of [`caught`] are left to its caller, others are told in one sentence on
/// standard error, with their details in a file of the user's alone. A process of which a thread panicked ends, also when nobody waits
/// for that thread.
pub fn install(program: &'static str) {
    if IS_INSTALLED.swap(true, Ordering::Relaxed) {
        return;
    }
    let usual = take_hook();
    set_hook(Box::new(move |panic| {
        // RUST_BACKTRACE asks for all of it.
        if Backtrace::capture().status() == BacktraceStatus::Captured {
            usual(panic);
        }
        if is_caught() {
            return;
        }
        let isolated = IS_ISOLATED.get();
        let first = isolated || !PANICKED.swap(true, Ordering::Relaxed);
        if first {
            // A standard error that is gone leaves the exit code to tell.
            let _gone = std::io::stderr().write_all(last_words(program, panic).as_bytes());
        }
        if first && !isolated {
            begin_end();
        }
    }));
}

/// A panic of ours in one sentence, for whoever is told of it elsewhere.
pub fn sentence(program: &str, panic: &PanicHookInfo<'_>) -> String {
    let said = message(panic.payload());
    let place = panic.location().map_or_else(String::new, |place| format!(" at {place}"));
    format!("{program} has a fault and stopped{place}: {said}")
}

fn last_words(program: &str, panic: &PanicHookInfo<'_>) -> String {
    let hint = match keep(program, panic) {
        Some(path) => format!("{} holds the details: report the fault with them", path.display()),
        None => "the same command with RUST_BACKTRACE=1 shows the details: report the fault with them".to_owned(),
    };
    format!("error: {}\nhint: {}\n", shown::line(&sentence(program, panic)), shown::line(&hint))
}

/// Writes the details into a new file that only its owner may read.
fn keep(program: &str, panic: &PanicHookInfo<'_>) -> Option<PathBuf> {
    let thread = thread::current();
    let name = thread.name().unwrap_or("without a name");
    let stack = Backtrace::force_capture();
    let version = env!("CARGO_PKG_VERSION");
    let text = format!("{program} {version}, thread {name:?}: {panic}\n\n{stack}\n");
    let path = std::env::temp_dir().join(format!("{program}-panic-{}.txt", std::process::id()));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).ok()?;
    file.write_all(text.as_bytes()).ok()?;
    Some(path)
}

/// Ends the process soon. Without a thread for it, whoever waits for the one that panicked does.
fn begin_end() {
    let _none = thread::Builder::new().name("enn-end".to_owned()).spawn(end);
}

/// Ends the process: in order if it can, at once if it does not.
fn end() {
    wait(NOTICED_WITHIN);
    let _gone = kill(Pid::this(), Signal::SIGTERM);
    wait(ENDED_WITHIN);
    let _gone = kill(Pid::this(), Signal::SIGKILL);
}

fn wait(time: Duration) {
    let until = Instant::now() + time;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        thread::park_timeout(left);
    }
}

/// Returns the message of a panic, on one line.
fn message(payload: &(dyn Any + Send)) -> String {
    let said = payload.downcast_ref::<String>().map(String::as_str).or_else(|| payload.downcast_ref::<&str>().copied());
    let line = said.unwrap_or("without a word").split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(SAID_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_a_library_is_an_error_that_names_it() {
        let index = std::hint::black_box(3);
        let error = caught("numbers", || [1, 2][index]).unwrap_err();
        assert_eq!(error.library, "numbers");
        let told = error.to_string();
        assert!(told.starts_with("the library numbers panicked (index out of bounds"), "{told}");
        assert_eq!(caught("numbers", || 7), Ok(7));
    }

    #[test]
    fn one_within_another_is_the_inner_ones() {
        let outer = caught("outer", || caught("inner", || panic!("two\nlines {}", "x".repeat(500))).unwrap_err());
        let inner = outer.unwrap();
        assert_eq!(inner.library, "inner");
        assert!(inner.said.starts_with("two lines xxx") && inner.said.ends_with('…'), "{}", inner.said);
        assert!(LIBRARY.get().is_none());
    }
}
