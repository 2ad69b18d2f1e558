//! What happened in a world, one line each.

use super::world::Time;

/// Lines of a trace that are kept; of a longer one the first are left out.
const LINES_MAX: usize = 20_000;
/// Characters of a line.
const CHARS_MAX: usize = 400;

/// Lines, oldest first.
#[derive(Debug, Default)]
pub(super) struct Trace {
    lines: std::collections::VecDeque<String>,
}

impl Trace {
    pub(super) fn push(&mut self, now: Time, line: String) {
        let mut text: String = line.chars().take(CHARS_MAX).map(|c| if c == '\n' { ' ' } else { c }).collect();
        text.insert_str(0, &format!("{:9.4} ", now.as_secs_f64()));
        if self.lines.len() == LINES_MAX {
            self.lines.pop_front();
        }
        self.lines.push_back(text);
    }

    /// The last lines.
    pub(super) fn tail(&self, count: usize) -> String {
        let skipped = self.lines.len().saturating_sub(count);
        let lines: Vec<&str> = self.lines.iter().skip(skipped).map(String::as_str).collect();
        lines.join("\n")
    }
}
