//! The error file a worker writes when its main function is decorated with torch's `@record`: read, never trusted.
//!
//! `{"message": {"message": "Type: text", "extraInfo": {"py_callstack": "…", "timestamp": "seconds"}}}`, or with a plain text
//! as `message`. Source: torch 2.11, `torch/distributed/elastic/multiprocessing/errors/error_handler.py`.

use serde_json::Value;
use std::{fs::File, io::Read, path::Path, time::SystemTime};

/// Bytes of an error file that are read.
const BYTES_MAX: u64 = 1 << 20;
/// Bytes of a message or a call stack that are kept.
const TEXT_BYTES_MAX: usize = 64 << 10;

/// What a worker wrote before it failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ErrorFile {
    pub(super) message: String,
    pub(super) traceback: Option<String>,
    pub(super) written: Option<SystemTime>,
}

/// Reads the file; `None` when there is none, or nothing that can be understood.
pub(super) fn read(path: &Path) -> Option<ErrorFile> {
    let file = File::open(path).ok()?;
    let written = file.metadata().ok().and_then(|metadata| metadata.modified().ok());
    let mut bytes = Vec::new();
    file.take(BYTES_MAX).read_to_end(&mut bytes).ok()?;
    let (message, traceback) = parse(&bytes)?;
    Some(ErrorFile { message, traceback, written })
}

fn parse(bytes: &[u8]) -> Option<(String, Option<String>)> {
    let value: Value = serde_json::from_slice(bytes).ok()?;
    let message = value.get("message")?;
    if let Some(text) = message.as_str() {
        return Some((cut(text), None));
    }
    let text = message.get("message")?.as_str()?;
    let stack = message.get("extraInfo").and_then(|extra| extra.get("py_callstack")).and_then(Value::as_str);
    Some((cut(text), stack.map(|stack| cut(stack.trim_end()))))
}

fn cut(text: &str) -> String {
    text.chars()
        .scan(0, |bytes, c| {
            *bytes += c.len_utf8();
            (*bytes <= TEXT_BYTES_MAX).then_some(c)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_read_and_rubbish_is_nothing() {
        let recorded = br#"{"message": {"message": "ValueError: x", "extraInfo": {"py_callstack": "Traceback\n", "timestamp": "1"}}}"#;
        assert_eq!(parse(recorded), Some(("ValueError: x".into(), Some("Traceback".into()))));
        assert_eq!(parse(br#"{"message": "died"}"#), Some(("died".into(), None)));
        for rubbish in [&b""[..], b"{", b"[]", b"{\"message\": 3}", b"{\"message\": {}}", b"\xff\xfe"] {
            assert_eq!(parse(rubbish), None);
        }
        assert_eq!(cut(&"ü".repeat(TEXT_BYTES_MAX)).len(), TEXT_BYTES_MAX);
    }
}
