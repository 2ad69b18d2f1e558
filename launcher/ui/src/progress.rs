//! The progress display on a terminal: one line for staging, one for the run, one for prediction; notable lines scroll above.
//!
//! **Invariant:** drawn only from the view, when an event comes; no thread and no clock of its own beside indicatif's draw limit.

use super::{
    format,
    lines::{EventLine, LineLevel},
    message,
    model::RunView,
    terminal::{self, FREE_COLUMNS, Narrowed},
};
use enn_common::shown;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io;

const REDRAWS_PER_S: u8 = 12;

/// Columns of the bar, in a wide and in a narrow window, and the width below which a window is narrow.
const BAR_COLUMNS: usize = 24;
const BAR_COLUMNS_NARROW: usize = 8;
const NARROW: usize = 72;

/// The display. A bar that was cleared never draws again, so each activity has a bar of its own.
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    /// Where a new bar is drawn.
    target: fn() -> ProgressDrawTarget,
}

impl Progress {
    /// Draws on standard error, once there is something under way.
    pub(super) fn new() -> Self {
        Self {
            bar: None,
            target: || ProgressDrawTarget::term_like_with_hz(Box::new(Narrowed::default()), REDRAWS_PER_S),
        }
    }

    /// Prints notable lines above the bar and redraws the bar.
    pub(super) fn draw(&mut self, lines: &[EventLine], view: &RunView) {
        for line in lines.iter().filter(|line| line.level >= LineLevel::Notable) {
            self.print(&line.text);
        }
        match state(view) {
            Some((position, length, message)) => {
                let columns = terminal::columns(&io::stderr());
                let bar = self.bar.get_or_insert_with(|| bar((self.target)(), bar_columns(columns)));
                bar.set_message(fitted(&shown::line(&message), columns));
                bar.set_length(length.max(1));
                bar.set_position(position);
            }
            None => self.clear(),
        }
    }

    fn print(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| message::print(text)),
            None => message::print(text),
        }
    }

    fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

const fn bar_columns(columns: usize) -> usize {
    if columns < NARROW { BAR_COLUMNS_NARROW } else { BAR_COLUMNS }
}

/// Shortens the message to the space behind the bar in a window of `columns` columns.
fn fitted(message: &str, columns: usize) -> String {
    let room = columns.saturating_sub(bar_columns(columns) + 1 + FREE_COLUMNS).max(1);
    format::shortened(message, room)
}

/// Makes a bar before its message. Where the template did not parse, indicatif's own would be used.
fn bar(target: ProgressDrawTarget, columns: usize) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(1), target);
    match ProgressStyle::with_template(&format!("{{bar:{columns}.cyan/238}} {{msg}}")) {
        Ok(style) => bar.with_style(style.progress_chars("━╸─")),
        Err(_) => bar,
    }
}

/// Returns position, length and message of the bar; `None` when nothing is under way.
pub(crate) fn state(view: &RunView) -> Option<(u64, u64, String)> {
    let over = view.sessions.last().is_some_and(|session| session.ended.is_some());
    if let Some((rows, bytes, total)) = view.staging {
        let bytes = (format::bytes(bytes), format::bytes(total), bytes);
        return Some((bytes.2, total, format!("staging {} rows  {} of {}", format::count(rows), bytes.0, bytes.1)));
    }
    if over {
        return None;
    }
    if let Some((rows, total)) = view.predicted.filter(|(rows, total)| rows < total) {
        return Some((rows, total, format!("predicting {} of {} rows", format::count(rows), format::count(total))));
    }
    if view.trained.is_some() {
        return None;
    }
    view.rounds.last()?;
    Some(run(view))
}

/// Returns position, length and message of a training: epoch, step, loss, validation MAE, samples per second, time
/// left, workers alive.
fn run(view: &RunView) -> (u64, u64, String) {
    let total = view.model.as_ref().map_or(1, |model| model.steps_total);
    let (alive, world) = view.alive();
    let workers = format!("{alive}/{world} workers");
    let Some(step) = view.latest else {
        return (0, total, format!("{workers}, starting"));
    };
    let epochs = view.model.as_ref().map_or(0, |model| model.steps_total.div_ceil(model.steps_per_epoch.max(1)));
    let mut parts = vec![
        format!("epoch {}/{epochs}", step.epoch),
        format!("step {}/{}", format::count(step.step), format::count(total)),
        format!("loss {}", format::measure(step.loss)),
    ];
    if let Some(report) = view.epochs.last().filter(|report| report.val.n > 0) {
        parts.push(format!("val {}", format::judged(&report.val, view.units())));
    }
    parts.push(format!("{} samples/s", format::rate(step.samples_per_s)));
    if let Some(seconds) = view.remaining_s() {
        parts.push(format!("ETA {}", format::countdown(seconds)));
    }
    parts.push(workers);
    (step.step, total, parts.join("  "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tests::{events, view_after};
    use indicatif::TermLike;
    use std::sync::Mutex;

    /// What was drawn on the terminal of the test.
    static DRAWN: Mutex<String> = Mutex::new(String::new());

    /// A terminal that only keeps what is written.
    #[derive(Debug)]
    struct Kept;

    impl TermLike for Kept {
        fn width(&self) -> u16 {
            100
        }

        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn write_line(&self, text: &str) -> io::Result<()> {
            self.write_str(text)
        }

        fn write_str(&self, text: &str) -> io::Result<()> {
            DRAWN.lock().unwrap().push_str(text);
            Ok(())
        }

        fn clear_line(&self) -> io::Result<()> {
            Ok(())
        }

        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn each_activity_is_drawn_also_after_one_that_ended() {
        let mut progress = Progress { bar: None, target: || ProgressDrawTarget::term_like(Box::new(Kept)) };
        let all = events();
        (0..all.len()).for_each(|count| progress.draw(&[], &view_after(&all[..=count])));
        drop(progress);
        let drawn = DRAWN.lock().unwrap().clone();
        for part in ["staging ", " workers, starting", "━"] {
            assert!(drawn.contains(part), "{part:?} is not drawn: {drawn}");
        }
    }

    #[test]
    fn a_line_leaves_room_for_what_is_typed() {
        let said = "epoch 1/9  step 2/18  loss 0.5  9 samples/s  ETA 3 s  2/2 workers";
        for columns in [1, 20, 40, 71, 72, 100] {
            let width = bar_columns(columns) + 1 + fitted(said, columns).chars().count();
            assert!(width + FREE_COLUMNS <= columns || columns <= 20, "{columns}: {width}");
        }
        assert_eq!(fitted(said, 40), "epoch 1/9  step 2/18  loss…");
        assert_eq!(fitted(said, 100), said);
    }

    #[test]
    fn one_line_says_the_run() {
        let all = events();
        let messages: Vec<String> = (0..all.len())
            .filter_map(|count| state(&view_after(&all[..=count])))
            .map(|(position, length, message)| format!("{position}/{length} {message}"))
            .collect();
        insta::assert_snapshot!(messages.join("\n"));
        assert_eq!(state(&view_after(&all)), None);
    }
}
