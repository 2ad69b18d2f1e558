//! Where a quoted field begins and ends.

/// Returns the next quoted field from `at`, which is outside quotes: the offsets of its opening quote and after its closing quote.
pub(super) fn next_quoted(text: &[u8], mut at: usize, separator: u8) -> Option<(usize, Option<usize>)> {
    loop {
        let open = at + memchr::memchr(b'"', &text[at..])?;
        let before = open.checked_sub(1).map(|before| text[before]);
        if before.is_none_or(|byte| byte == separator || matches!(byte, b'\n' | b'\r')) {
            return Some((open, closing(text, open + 1)));
        }
        at = open + 1;
    }
}

/// Returns the offset after the quote that closes a field whose contents begin at `at`.
pub(super) fn closing(text: &[u8], mut at: usize) -> Option<usize> {
    loop {
        let quote = at + memchr::memchr(b'"', &text[at..])?;
        if text.get(quote + 1) != Some(&b'"') {
            return Some(quote + 1);
        }
        at = quote + 2;
    }
}
