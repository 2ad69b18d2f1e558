//! What a console shows when several streams write to it: which of them has an unfinished line there.
//!
//! Pure: puts prefixes and missing line ends into a buffer. **Invariant:** bytes of one stream never continue a line of
//! another.

use super::lines::segments;

/// The id of a stream, unique within a pump.
pub(super) type StreamId = u64;

/// The unfinished line of a console.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct OpenLine {
    by: StreamId,
    /// Whether the line ends with a carriage return, so that the next bytes overwrite it with its prefix.
    redrawn: bool,
    /// Whether the line has a prefix.
    prefixed: bool,
}

/// The unfinished line of one console, if any.
#[derive(Debug, Default)]
pub(super) struct Screen {
    open: Option<OpenLine>,
}

impl Screen {
    /// Appends bytes of stream `by` to `out`, with prefixes and missing line ends.
    pub(super) fn show(&mut self, by: StreamId, prefix: &[u8], bytes: &[u8], out: &mut Vec<u8>) {
        if self.open.is_some_and(|open| open.by != by) {
            self.finish(out);
        }
        let Some(&last) = bytes.last() else { return };
        if prefix.is_empty() {
            out.extend_from_slice(bytes);
        } else {
            let mut begins = self.open.is_none_or(|open| open.redrawn);
            for segment in segments(bytes) {
                if begins {
                    out.extend_from_slice(prefix);
                }
                out.extend_from_slice(segment);
                begins = true;
            }
        }
        let open = OpenLine { by, redrawn: last == b'\r', prefixed: !prefix.is_empty() };
        self.open = (last != b'\n').then_some(open);
    }

    /// Ends the unfinished line, if any.
    pub(super) fn finish(&mut self, out: &mut Vec<u8>) {
        if self.open.take().is_some() {
            out.push(b'\n');
        }
    }

    /// Returns whether an unfinished line began with a prefix of the launcher.
    pub(super) fn open_prefixed(&self) -> bool {
        self.open.is_some_and(|open| open.prefixed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(script: &[(StreamId, &str, &str)]) -> String {
        let mut screen = Screen::default();
        let mut out = Vec::new();
        for (by, prefix, text) in script {
            screen.show(*by, prefix.as_bytes(), text.as_bytes(), &mut out);
        }
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn partial_lines_are_continued_by_their_own_stream_only() {
        assert_eq!(shown(&[(0, "[0]:", "a"), (0, "[0]:", "b\nc\n")]), "[0]:ab\n[0]:c\n");
        assert_eq!(shown(&[(0, "[0]:", "a"), (1, "[1]:", "x\n"), (0, "[0]:", "b\n")]), "[0]:a\n[1]:x\n[0]:b\n");
        assert_eq!(shown(&[(0, "", "a"), (1, "", "x"), (1, "", "y\n")]), "a\nxy\n");
    }

    #[test]
    fn a_redrawn_line_has_its_prefix_again() {
        assert_eq!(shown(&[(0, "[0]:", " 1%\r 2%\r"), (0, "[0]:", " 3%\n")]), "[0]: 1%\r[0]: 2%\r[0]: 3%\n");
        assert_eq!(shown(&[(0, "p:", "a\r\n\r\n")]), "p:a\r\np:\r\n");
    }
}
