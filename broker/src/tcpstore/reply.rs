//! Encoding of replies. A reply borrows from the table: a value is copied once, into the socket's buffer.

use super::protocol::{Key, Value};
use std::collections::VecDeque;

#[derive(Debug)]
pub enum Reply<'a> {
    /// One value: after compare-set, or requested by get; empty when there is none.
    Value(&'a [u8]),
    /// Several values, in the order requested.
    Values(&'a [&'a [u8]]),
    Number(i64),
    /// Whether all keys exist.
    Ready(bool),
    /// All keys waited for exist.
    StopWaiting,
    /// The client's waits are forgotten.
    WaitCancelled,
    Nonce(u32),
    /// The queue before the pop: its length and, when above 0, its first value are sent.
    Popped(&'a VecDeque<Value>),
    Keys(Vec<&'a Key>),
}

impl Reply<'_> {
    /// Appends the reply's bytes to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Value(value) => blob(value, out),
            Self::Values(values) => values.iter().for_each(|value| blob(value, out)),
            Self::Number(number) => out.extend_from_slice(&number.to_le_bytes()),
            Self::Ready(ready) => out.push(u8::from(!ready)),
            Self::StopWaiting => out.push(0),
            Self::WaitCancelled => out.push(1),
            Self::Nonce(nonce) => out.extend_from_slice(&nonce.to_le_bytes()),
            Self::Popped(queue) => {
                out.extend_from_slice(&(queue.len() as u64).to_le_bytes());
                if let Some(first) = queue.front() {
                    blob(first, out);
                }
            }
            Self::Keys(keys) => {
                out.extend_from_slice(&(keys.len() as u64).to_le_bytes());
                keys.iter().for_each(|key| blob(key, out));
            }
        }
    }
}

fn blob(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    out.extend_from_slice(bytes);
}
