//! Copies of the lines that contain one of some texts (`--duplicate-stdout-filters`).
//!
//! Pure. As torchrun: only teed streams, any of the texts, the copy has the line's prefix; all workers share one file.

use super::lines::LINE_BYTES_MAX;
use memchr::{memchr, memmem::Finder};
use std::sync::Arc;

#[derive(Debug, Clone)]
pub(super) struct Needles(Arc<[Finder<'static>]>);

impl Needles {
    /// Makes the needles; `None` without any text.
    pub(super) fn new(texts: &[String]) -> Option<Self> {
        let finders = texts.iter().map(|text| Finder::new(text.as_bytes()).into_owned());
        (!texts.is_empty()).then(|| Self(finders.collect()))
    }

    fn any(&self, line: &[u8]) -> bool {
        self.0.iter().any(|finder| finder.find(line).is_some())
    }
}

/// The filter of one stream, with the beginning of its current line.
#[derive(Debug)]
pub(super) struct LineFilter {
    needles: Needles,
    partial: Vec<u8>,
}

impl LineFilter {
    pub(super) fn new(needles: Needles) -> Self {
        Self { needles, partial: Vec::new() }
    }

    /// Appends the lines of `bytes` that match to `out`, each with the prefix.
    pub(super) fn push(&mut self, mut bytes: &[u8], prefix: &[u8], out: &mut Vec<u8>) {
        while let Some(at) = memchr(b'\n', bytes) {
            let (line, rest) = bytes.split_at(at + 1);
            if self.partial.is_empty() {
                self.filter_line(line, prefix, out);
            } else {
                self.partial.extend_from_slice(line);
                let line = std::mem::take(&mut self.partial);
                self.filter_line(&line, prefix, out);
            }
            bytes = rest;
        }
        self.partial.extend_from_slice(bytes);
        if self.partial.len() >= LINE_BYTES_MAX {
            self.finish(prefix, out);
        }
    }

    /// Filters a line without an end: the stream ended, or the line is too long to hold.
    pub(super) fn finish(&mut self, prefix: &[u8], out: &mut Vec<u8>) {
        if !self.partial.is_empty() {
            self.partial.push(b'\n');
            let line = std::mem::take(&mut self.partial);
            self.filter_line(&line, prefix, out);
        }
    }

    fn filter_line(&self, line: &[u8], prefix: &[u8], out: &mut Vec<u8>) {
        if self.needles.any(line) {
            out.extend_from_slice(prefix);
            out.extend_from_slice(line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_anywhere_in_the_line() {
        assert!(Needles::new(&[]).is_none());
        let mut filter = LineFilter::new(Needles::new(&["loss".into(), "é".into()]).unwrap());
        let mut out = Vec::new();
        filter.push(b"step\nlo", b"[0]:", &mut out);
        filter.push(b"ss 1\nx\xff\n\xc3", b"[0]:", &mut out);
        filter.push(b"\xa9", b"[0]:", &mut out);
        filter.finish(b"[0]:", &mut out);
        filter.finish(b"[0]:", &mut out);
        assert_eq!(out, "[0]:loss 1\n[0]:é\n".as_bytes());
    }
}
