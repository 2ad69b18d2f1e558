//! A progress bar of bytes on standard error, if that is a terminal and no other output was requested.

use enn_ui::terminal;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

const REDRAWS_PER_S: u8 = 12;
/// The template parses; otherwise indicatif's default is used.
const TEMPLATE: &str = "{msg} {bar:24.cyan/238} {bytes} of {total_bytes}  {bytes_per_sec}  {eta} left";

/// A progress bar, which is hidden unless standard error is a terminal.
pub(super) struct Bar(ProgressBar);

impl Bar {
    /// Starts a bar with a label such as "verifying". `quiet` hides it.
    pub(super) fn new(what: &'static str, quiet: bool) -> Self {
        let is_hidden = quiet || !terminal::draws(&std::io::stderr());
        let target =
            if is_hidden { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr_with_hz(REDRAWS_PER_S) };
        let bar = ProgressBar::with_draw_target(Some(1), target).with_message(what);
        if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
            bar.set_style(style.progress_chars("━╸─"));
        }
        Self(bar)
    }

    pub(super) fn set(&self, done: u64, total: u64) {
        self.0.set_length(total.max(1));
        self.0.set_position(done.min(total));
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::Bar;

    #[test]
    fn a_total_of_nothing_is_an_empty_bar() {
        let bar = Bar::new("verifying", true);
        bar.set(0, 0);
        bar.set(9, 4);
    }
}
