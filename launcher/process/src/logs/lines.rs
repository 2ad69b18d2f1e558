//! Splits the bytes of one stream into whole lines, for a console that several streams share.
//!
//! Pure: no reading, no writing, no clock. What is not a whole line is held back until there is a reason to show it: the
//! line goes on, the stream was silent for a while, or the line is too long to hold.

use memchr::{memchr2_iter, memrchr};

/// A line longer than this is shown in parts.
pub(super) const LINE_BYTES_MAX: usize = 64 << 10;

/// The beginning of a stream's current line that was not shown yet.
#[derive(Debug, Default)]
pub(super) struct LineBuffer {
    partial: Vec<u8>,
}

impl LineBuffer {
    /// Takes bytes that were read and passes the whole lines among them to `show`, in one or two pieces.
    ///
    /// A carriage return inside a line also ends what may be shown: progress bars redraw their line with it.
    pub(super) fn push(&mut self, bytes: &[u8], mut show: impl FnMut(&[u8])) {
        let Some(&first) = bytes.first() else { return };
        if self.partial.last() == Some(&b'\r') && first != b'\n' {
            self.flush(&mut show);
        }
        let cut = cut(bytes);
        if cut > 0 {
            self.flush(&mut show);
            show(&bytes[..cut]);
        }
        self.partial.extend_from_slice(&bytes[cut..]);
        if self.partial.len() >= LINE_BYTES_MAX {
            self.flush(&mut show);
        }
    }

    /// Returns whether a partial line is held back.
    pub(super) fn waiting(&self) -> bool {
        !self.partial.is_empty()
    }

    /// Passes the partial line to `show`: the line goes on, or the stream is silent or ended.
    pub(super) fn flush(&mut self, mut show: impl FnMut(&[u8])) {
        if !self.partial.is_empty() {
            // Taken, not cleared: a silent worker holds no memory.
            show(&std::mem::take(&mut self.partial));
        }
    }
}

/// Returns the number of bytes up to the end of the last line, or past the last carriage return that something other
/// than `\n` follows.
fn cut(bytes: &[u8]) -> usize {
    let line = memrchr(b'\n', bytes).map_or(0, |at| at + 1);
    // Whether a carriage return at the very end belongs to a line end is known only with the next byte.
    let rest = bytes[line..].strip_suffix(b"\r").unwrap_or(&bytes[line..]);
    line + memrchr(b'\r', rest).map_or(0, |at| at + 1)
}

/// Cuts after every `\n` and after every `\r` that is not part of `\r\n`.
pub(super) fn segments(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut from = 0;
    let mut ends = memchr2_iter(b'\n', b'\r', bytes);
    std::iter::from_fn(move || {
        if from == bytes.len() {
            return None;
        }
        let end = ends.by_ref().find(|&at| bytes[at] == b'\n' || bytes.get(at + 1) != Some(&b'\n'));
        let end = end.map_or(bytes.len(), |at| at + 1);
        let segment = &bytes[from..end];
        from = end;
        Some(segment)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn push(lines: &mut LineBuffer, text: &str) -> String {
        let mut out = Vec::new();
        lines.push(text.as_bytes(), |bytes| out.extend_from_slice(bytes));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn whole_lines_at_once_and_the_rest_later() {
        let mut lines = LineBuffer::default();
        assert_eq!(push(&mut lines, "a\nb\nc"), "a\nb\n");
        assert!(lines.waiting());
        assert_eq!(push(&mut lines, "d"), "");
        assert_eq!(push(&mut lines, "\n"), "cd\n");
        assert!(!lines.waiting());
    }

    #[test]
    fn progress_bars_are_shown_as_they_are_redrawn() {
        let mut lines = LineBuffer::default();
        assert_eq!(push(&mut lines, "\r 10%"), "\r");
        assert_eq!(push(&mut lines, "\r 20%"), " 10%\r");
        assert_eq!(push(&mut lines, " done\r"), "");
        assert_eq!(push(&mut lines, "\n"), " 20% done\r\n");
        assert_eq!(push(&mut lines, "x\r"), "");
        assert_eq!(push(&mut lines, "y"), "x\r");
    }

    #[test]
    fn a_line_without_end_is_shown_in_parts() {
        let mut lines = LineBuffer::default();
        let long = "x".repeat(LINE_BYTES_MAX - 1);
        assert_eq!(push(&mut lines, &long), "");
        assert_eq!(push(&mut lines, "y"), long + "y");
    }

    #[test]
    fn segments_keep_windows_line_ends_whole() {
        let cut: Vec<&[u8]> = segments(b"a\r\nb\rc\n\nd").collect();
        assert_eq!(cut, [&b"a\r\n"[..], b"b\r", b"c\n", b"\n", b"d"]);
        assert_eq!(segments(b"").count(), 0);
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_only_whole_lines_come(parts in prop::collection::vec("[ab\r\n]{0,6}", 0..12)) {
            let mut lines = LineBuffer::default();
            let mut out = Vec::new();
            for part in &parts {
                lines.push(part.as_bytes(), |bytes| {
                    assert!(bytes.ends_with(b"\n") || bytes.ends_with(b"\r") || bytes.len() < 64);
                    out.extend_from_slice(bytes);
                });
            }
            lines.flush(|bytes| out.extend_from_slice(bytes));
            prop_assert_eq!(out, parts.concat().into_bytes());
        }
    }
}
