//! Bytes to requests, without I/O: any split of the stream gives the same requests.
//!
//! ```text
//! request  = code u8, fields            integers little-endian, no frame around a request
//! key      = length u64, bytes          value = size u64, bytes
//!  0 VALIDATE u32 magic       5 CHECK n, n keys        10 MULTI_GET n, n keys             15 QUEUE_POP key
//!  1 SET key value            6 WAIT n, n keys         11 MULTI_SET n, n (key value)      16 QUEUE_LEN key
//!  2 COMPARE_SET key v v      7 GETNUMKEYS             12 CANCEL_WAIT                     17 LIST_KEYS
//!  3 GET key                  8 DELETE_KEY key         13 PING u32 nonce
//!  4 ADD key i64              9 APPEND key value       14 QUEUE_PUSH key value
//! ```

use super::{Limits, error::Violation};

/// Code every connection begins with.
pub const VALIDATE: u8 = 0;

/// Number that follows it.
pub const MAGIC: u32 = 0x3C85_F7CE;

/// Name of a value, as the client sent it.
pub type Key = Box<[u8]>;

/// A value.
pub type Value = Vec<u8>;

/// One request. The handshake is not among them: [`Parser`] deals with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Set a value.
    Set(Key, Value),
    /// Set a value if it is the expected one.
    CompareSet {
        /// Key.
        key: Key,
        /// Value expected; empty: no value.
        expected: Value,
        /// Value wanted.
        wanted: Value,
    },
    /// Ask for a value.
    Get(Key),
    /// Add to a counter.
    Add(Key, i64),
    /// Ask whether all keys exist.
    Check(Vec<Key>),
    /// Ask to be told when all keys exist.
    Wait(Vec<Key>),
    /// Ask for the number of keys.
    NumKeys,
    /// Delete a value.
    Delete(Key),
    /// Append to a value.
    Append(Key, Value),
    /// Ask for several values.
    MultiGet(Vec<Key>),
    /// Set several values.
    MultiSet(Vec<(Key, Value)>),
    /// Forget this client's waits.
    CancelWait,
    /// Ask for the nonce back.
    Ping(u32),
    /// Push onto a queue.
    QueuePush(Key, Value),
    /// Pop from a queue.
    QueuePop(Key),
    /// Ask for the length of a queue.
    QueueLen(Key),
    /// Ask for all keys.
    ListKeys,
}

/// Kinds of requests with a count of keys.
#[derive(Debug, Clone, Copy)]
enum ManyKind {
    Check,
    Wait,
    MultiGet,
    MultiSet,
}

/// A request with many keys, read as they come: so that a client that sends them in crumbs costs time once per key.
#[derive(Debug)]
struct Many {
    kind: ManyKind,
    left: usize,
    bytes: usize,
    keys: Vec<Key>,
    pairs: Vec<(Key, Value)>,
}

impl Many {
    fn finish(self) -> Request {
        match self.kind {
            ManyKind::Check => Request::Check(self.keys),
            ManyKind::Wait => Request::Wait(self.keys),
            ManyKind::MultiGet => Request::MultiGet(self.keys),
            ManyKind::MultiSet => Request::MultiSet(self.pairs),
        }
    }
}

/// The requests of one connection.
#[derive(Debug)]
pub struct Parser {
    limits: Limits,
    buffer: Vec<u8>,
    start: usize,
    /// Bytes that must lie in the buffer before looking again is worth it.
    needed: usize,
    validated: bool,
    many: Option<Many>,
}

impl Parser {
    /// A parser for a connection that has said nothing yet.
    pub fn new(limits: Limits) -> Self {
        Self { limits, buffer: Vec::new(), start: 0, needed: 1, validated: false, many: None }
    }

    /// Whether the handshake was made.
    pub fn validated(&self) -> bool {
        self.validated
    }

    /// Takes bytes as they came.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.start == self.buffer.len() {
            self.buffer.clear();
            self.start = 0;
        } else if self.start > self.buffer.len() / 2 {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole request, or `None` until more bytes come. After an error the connection is of no use.
    pub fn next_request(&mut self) -> Result<Option<Request>, Violation> {
        loop {
            if self.buffer.len() - self.start < self.needed {
                return Ok(None);
            }
            if let Some(many) = self.many.take() {
                return self.next_of_many(many);
            }
            let mut cursor = Cursor { bytes: &self.buffer[self.start..], at: 0, limits: &self.limits };
            let parsed = match cursor.request(self.validated) {
                Ok(parsed) => parsed,
                Err(Stop::Short { needed }) => {
                    self.needed = needed;
                    return Ok(None);
                }
                Err(Stop::Violation(violation)) => return Err(violation),
            };
            self.start += cursor.at;
            self.needed = 1;
            match parsed {
                Parsed::Validated => self.validated = true,
                Parsed::Whole(request) => return Ok(Some(request)),
                Parsed::Many(kind, 0) => {
                    return Ok(Some(Many { kind, left: 0, bytes: 0, keys: vec![], pairs: vec![] }.finish()));
                }
                Parsed::Many(kind, left) => {
                    self.many = Some(Many { kind, left, bytes: 0, keys: vec![], pairs: vec![] });
                }
            }
        }
    }

    fn next_of_many(&mut self, mut many: Many) -> Result<Option<Request>, Violation> {
        while many.left > 0 {
            let mut cursor = Cursor { bytes: &self.buffer[self.start..], at: 0, limits: &self.limits };
            let part = cursor.key().and_then(|key| match many.kind {
                ManyKind::MultiSet => cursor.value().map(|value| (key, Some(value))),
                ManyKind::Check | ManyKind::Wait | ManyKind::MultiGet => Ok((key, None)),
            });
            match part {
                Ok((key, value)) => {
                    many.bytes += cursor.at;
                    at_most("request", many.bytes as u64, self.limits.request_bytes_max)?;
                    self.start += cursor.at;
                    match value {
                        Some(value) => many.pairs.push((key, value)),
                        None => many.keys.push(key),
                    }
                    many.left -= 1;
                }
                Err(Stop::Short { needed }) => {
                    self.needed = needed;
                    self.many = Some(many);
                    return Ok(None);
                }
                Err(Stop::Violation(violation)) => return Err(violation),
            }
        }
        self.needed = 1;
        Ok(Some(many.finish()))
    }
}

/// What one look at the buffer gave.
enum Parsed {
    Validated,
    Whole(Request),
    Many(ManyKind, usize),
}

/// Why it gave nothing.
enum Stop {
    /// At least this many bytes from the request's first are needed.
    Short {
        needed: usize,
    },
    Violation(Violation),
}

impl From<Violation> for Stop {
    fn from(violation: Violation) -> Self {
        Self::Violation(violation)
    }
}

fn at_most(what: &'static str, found: u64, max: usize) -> Result<usize, Violation> {
    match usize::try_from(found) {
        Ok(found) if found <= max => Ok(found),
        _ => Err(Violation::TooMuch { what, found, max: max as u64 }),
    }
}

/// Reads fields from the first byte of a request; `at` has moved past them when the request was whole.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    limits: &'a Limits,
}

impl Cursor<'_> {
    fn request(&mut self, validated: bool) -> Result<Parsed, Stop> {
        let [code] = self.array::<1>()?;
        if !validated {
            return self.validate(code);
        }
        Ok(Parsed::Whole(match code {
            1 => Request::Set(self.key()?, self.value()?),
            2 => Request::CompareSet { key: self.key()?, expected: self.value()?, wanted: self.value()? },
            3 => Request::Get(self.key()?),
            4 => Request::Add(self.key()?, i64::from_le_bytes(self.array()?)),
            5 => return self.many(ManyKind::Check),
            6 => return self.many(ManyKind::Wait),
            7 => Request::NumKeys,
            8 => Request::Delete(self.key()?),
            9 => Request::Append(self.key()?, self.value()?),
            10 => return self.many(ManyKind::MultiGet),
            11 => return self.many(ManyKind::MultiSet),
            12 => Request::CancelWait,
            13 => Request::Ping(u32::from_le_bytes(self.array()?)),
            14 => Request::QueuePush(self.key()?, self.value()?),
            15 => Request::QueuePop(self.key()?),
            16 => Request::QueueLen(self.key()?),
            17 => Request::ListKeys,
            code => return Err(Violation::Code { code }.into()),
        }))
    }

    fn validate(&mut self, code: u8) -> Result<Parsed, Stop> {
        if code != VALIDATE {
            return Err(Violation::NotValidated { code }.into());
        }
        match u32::from_le_bytes(self.array()?) {
            MAGIC => Ok(Parsed::Validated),
            found => Err(Violation::Magic { found }.into()),
        }
    }

    fn many(&mut self, kind: ManyKind) -> Result<Parsed, Stop> {
        let count = u64::from_le_bytes(self.array()?);
        let count = at_most("number of keys", count, self.limits.keys_per_request_max)?;
        Ok(Parsed::Many(kind, count))
    }

    fn key(&mut self) -> Result<Key, Stop> {
        let length = u64::from_le_bytes(self.array()?);
        let length = at_most("key", length, self.limits.key_bytes_max)?;
        Ok(self.take(length)?.into())
    }

    fn value(&mut self) -> Result<Value, Stop> {
        let size = u64::from_le_bytes(self.array()?);
        let size = at_most("value", size, self.limits.value_bytes_max)?;
        Ok(self.take(size)?.to_vec())
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Stop> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn take(&mut self, bytes: usize) -> Result<&[u8], Stop> {
        let end = self.at + bytes;
        let taken = self.bytes.get(self.at..end).ok_or(Stop::Short { needed: end })?;
        self.at = end;
        Ok(taken)
    }
}

#[cfg(test)]
pub(super) mod tests;
