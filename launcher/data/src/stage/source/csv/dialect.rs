//! Dialect of a text table from its beginning: separator, column names, start of the data.

use crate::stage::error::{Location, Position, StageError};
use enn_common::fs::{FileError, regular};
use std::{io::Read, path::Path};

/// Candidate separators, the likeliest first.
const SEPARATORS: [u8; 4] = [b',', b';', b'\t', b'|'];

const HEAD_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// First bytes of files in other formats, with a hint for each.
const OTHERS: [(&[u8], &str); 6] = [
    (b"\xff\xfe", "it is UTF-16; convert it, e.g. iconv -f utf16 -t utf8"),
    (b"\xfe\xff", "it is UTF-16; convert it, e.g. iconv -f utf16 -t utf8"),
    (b"PAR1", "it is a Parquet file; set data.format = \"parquet\""),
    (b"ARROW1", "it is an Arrow file; set data.format = \"arrow\""),
    (b"PK\x03\x04", "it is a zip file; unpack it, or set data.format to npz or xlsx if it is one of these"),
    (b"\x1f\x8b", "it is packed by gzip; unpack it"),
];

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Dialect {
    pub separator: u8,
    pub header: Vec<String>,
    /// Offset of the first record.
    pub data_at: u64,
    /// Number of lines before the first record.
    pub lines: u64,
    /// Mean length of the first records, bytes.
    pub record_bytes: f64,
}

/// Reads the dialect of a file; also returns the file's length in bytes.
pub(crate) fn read(path: &Path) -> Result<(Dialect, u64), StageError> {
    let mut file = regular::open(path)?;
    let bytes = file.metadata().map_err(FileError::of("measure", path))?.len();
    let mut head = Vec::new();
    // A short beginning is enough except for many thousand columns.
    for limit in [64 * 1024, HEAD_BYTES_MAX] {
        let missing = limit - head.len() as u64;
        (&mut file).take(missing).read_to_end(&mut head).map_err(FileError::of("read", path))?;
        let whole = head.len() as u64 == bytes;
        if let Some(dialect) = of(path, &head, whole)? {
            return Ok((dialect, bytes));
        }
    }
    if let Some(line) = open_quote(&head) {
        return Err(unclosed(path, line));
    }
    let place = Location { path: path.to_path_buf(), position: Position::Line(1) };
    Err(StageError::EndlessRecord { place, bytes_max: HEAD_BYTES_MAX as usize })
}

/// Returns the dialect of a file that begins with `head`; `None` when the header does not end there.
fn of(path: &Path, head: &[u8], whole: bool) -> Result<Option<Dialect>, StageError> {
    if let Some((_, cause)) = OTHERS.iter().find(|(magic, _)| head.starts_with(magic)) {
        return Err(StageError::unreadable(path, "UTF-8 text", *cause));
    }
    let mut start = if head.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
    let mut lines = 0;
    while let Some(byte) = head.get(start).filter(|byte| matches!(byte, b'\n' | b'\r')) {
        lines += u64::from(*byte == b'\n');
        start += 1;
    }
    if start == head.len() && whole {
        return Err(StageError::zero_rows(path, "the file is empty"));
    }
    let end = match header_end(&head[start..]) {
        Some(end) => start + end,
        None if !whole => return Ok(None),
        None => match open_quote(head) {
            Some(line) => return Err(unclosed(path, line)),
            None => head.len(),
        },
    };
    let line = &head[start..end];
    let separator = separator(line);
    let other_bytes = "the header holds other bytes; convert it, e.g. iconv -f latin1 -t utf8";
    let header = names(line, separator).ok_or_else(|| StageError::unreadable(path, "UTF-8 text", other_bytes))?;
    lines += memchr::memchr_iter(b'\n', line).count() as u64;
    if end == head.len() && whole {
        return Err(StageError::zero_rows(path, "the file holds a header and nothing else"));
    }
    let data = &head[end..];
    let records = memchr::memchr_iter(b'\n', data).count().max(1);
    let record_bytes = (data.len() as f64 / records as f64).max(1.0);
    Ok(Some(Dialect { separator, header, data_at: end as u64, lines, record_bytes }))
}

/// Returns the offset after the first line of `head`, ignoring newlines in quotes.
fn header_end(head: &[u8]) -> Option<usize> {
    let mut quoted = false;
    for (at, byte) in head.iter().enumerate() {
        match byte {
            b'"' => quoted = !quoted,
            b'\n' if !quoted => return Some(at + 1),
            _ => {}
        }
    }
    None
}

/// Returns the line of the unclosed quote in a header without end.
fn open_quote(head: &[u8]) -> Option<u64> {
    let quotes = memchr::memchr_iter(b'"', head).collect::<Vec<_>>();
    let last = quotes.last().filter(|_| quotes.len() % 2 == 1)?;
    Some(1 + memchr::memchr_iter(b'\n', &head[..*last]).count() as u64)
}

fn unclosed(path: &Path, line: u64) -> StageError {
    StageError::OpenQuote { place: Location { path: path.to_path_buf(), position: Position::Line(line) } }
}

/// Returns the separator that occurs most often outside quotes; comma when none occurs.
fn separator(line: &[u8]) -> u8 {
    let mut counts = [0usize; SEPARATORS.len()];
    let mut quoted = false;
    for byte in line {
        quoted ^= *byte == b'"';
        if let Some(index) = SEPARATORS.iter().position(|separator| separator == byte && !quoted) {
            counts[index] += 1;
        }
    }
    // The first of equally frequent separators, so that a comma wins.
    let best = (0..SEPARATORS.len()).rev().max_by_key(|index| counts[*index]).unwrap_or(0);
    SEPARATORS[best]
}

/// Returns the fields of the header; `None` when they are not UTF-8.
fn names(line: &[u8], separator: u8) -> Option<Vec<String>> {
    let text = std::str::from_utf8(line).ok()?.trim_end_matches(['\n', '\r']);
    let mut names = Vec::new();
    let mut name = String::new();
    let mut quoted = false;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.next_if_eq(&'"').is_some() => name.push('"'),
            '"' => quoted = !quoted,
            c if c == char::from(separator) && !quoted => names.push(std::mem::take(&mut name)),
            c => name.push(c),
        }
    }
    names.push(name);
    Some(names.iter().map(|name| name.trim().to_string()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dialect(text: &[u8]) -> Result<Option<Dialect>, StageError> {
        of(Path::new("t.csv"), text, true)
    }

    #[test]
    fn separator_names_and_start_are_found() {
        let found = dialect(b"\xef\xbb\xbfa;\"b;,,,\" ; c\r\n1;2;3\r\n").unwrap().unwrap();
        assert_eq!(found.separator, b';');
        assert_eq!(found.header, ["a", "b;,,,", "c"]);
        assert_eq!((found.data_at, found.lines, found.record_bytes), (18, 1, 7.0));
        let found = dialect(b"\n\nonly\n1\n").unwrap().unwrap();
        assert_eq!((found.separator, found.header.as_slice(), found.lines), (b',', ["only".to_string()].as_slice(), 3));
        let found = dialect(b"\"a \"\"x\"\"\ny\",\"\"\n1,2\n").unwrap().unwrap();
        assert_eq!((found.header, found.lines), (vec!["a \"x\"\ny".to_owned(), String::new()], 2));
        assert_eq!(dialect(b"a\tb\n1\t2\n").unwrap().unwrap().separator, b'\t');
    }

    #[test]
    fn nothing_to_read_is_said_so() {
        for text in [b"".as_slice(), b"\r\n", b"a,b\n", b"a,b"] {
            assert!(matches!(dialect(text), Err(StageError::ZeroRows { .. })), "{text:?}");
        }
        assert!(dialect(b"\xff\xfea\0").is_err());
        assert!(dialect(b"caf\xe9,b\n1,2\n").is_err());
        assert_eq!(of(Path::new("t.csv"), b"a,b", false).unwrap(), None, "more is needed");
    }
}
