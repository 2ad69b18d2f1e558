//! Decoding of bytes into requests, without I/O: any split of the stream gives the same requests.
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

/// First byte of every connection.
pub const VALIDATE: u8 = 0;

/// Magic number of the handshake, after the code.
pub const MAGIC: u32 = 0x3C85_F7CE;

/// Bytes of the code and the count before the entries of a request with many entries.
const MANY_HEADER_BYTES: usize = 1 + 8;

/// Name of a value, as the client sent it.
pub type Key = Box<[u8]>;

pub type Value = Vec<u8>;

/// The keys of one request, in the order received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keys<'a> {
    bytes: &'a [u8],
}

impl<'a> Keys<'a> {
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut rest = self.bytes;
        std::iter::from_fn(move || split_field(&mut rest))
    }
}

/// The keys and values of one request, in the order received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pairs<'a> {
    bytes: &'a [u8],
}

impl<'a> Pairs<'a> {
    pub fn iter(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        let mut rest = self.bytes;
        std::iter::from_fn(move || Some((split_field(&mut rest)?, split_field(&mut rest)?)))
    }
}

/// Takes one field off the front of fields that are known to be whole.
fn split_field<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, after) = rest.split_first_chunk()?;
    let (field, after) = after.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
    *rest = after;
    Some(field)
}

/// One request, borrowed from the received bytes. The handshake is not among them: [`Parser`] handles it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request<'a> {
    Set(&'a [u8], &'a [u8]),
    /// Sets a value if the current one equals `expected`.
    CompareSet {
        key: &'a [u8],
        /// Value expected; empty: no value.
        expected: &'a [u8],
        wanted: &'a [u8],
    },
    Get(&'a [u8]),
    Add(&'a [u8], i64),
    /// Asks whether all keys exist.
    Check(Keys<'a>),
    /// Asks for a notification when all keys exist.
    Wait(Keys<'a>),
    /// Asks for the number of keys.
    NumKeys,
    Delete(&'a [u8]),
    Append(&'a [u8], &'a [u8]),
    MultiGet(Keys<'a>),
    MultiSet(Pairs<'a>),
    /// Forgets this client's waits.
    CancelWait,
    /// Asks for the nonce back.
    Ping(u32),
    QueuePush(&'a [u8], &'a [u8]),
    QueuePop(&'a [u8]),
    /// Asks for the length of a queue.
    QueueLen(&'a [u8]),
    ListKeys,
}

/// Position up to which a request with many entries was parsed, so that a request that arrives in small pieces costs time once
/// per entry.
#[derive(Debug, Clone, Copy)]
struct Progress {
    at: usize,
    left: usize,
}

/// The parser of one connection. It stores no bytes: unparsed input is passed again, with more bytes appended.
#[derive(Debug)]
pub struct Parser {
    limits: Limits,
    /// Bytes that must be present before parsing again can succeed.
    needed: usize,
    validated: bool,
    progress: Option<Progress>,
}

impl Parser {
    /// Makes a parser for a connection before its handshake.
    pub fn new(limits: Limits) -> Self {
        Self { limits, needed: 1, validated: false, progress: None }
    }

    /// Returns whether the handshake was made.
    pub fn validated(&self) -> bool {
        self.validated
    }

    /// Returns the next whole request and takes it off the front of `input`; `None`: it is not whole, and `input` must be passed
    /// again when more bytes have arrived. After an error the connection is of no use.
    pub fn next_request<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Request<'a>>, Violation> {
        while input.len() >= self.needed {
            let mut cursor = Cursor { bytes: input, at: 0, limits: &self.limits, progress: &mut self.progress };
            let parsed = match cursor.request(self.validated) {
                Ok(parsed) => parsed,
                Err(ParseStop::Short { needed }) => {
                    self.needed = needed;
                    return Ok(None);
                }
                Err(ParseStop::Violation(violation)) => return Err(violation),
            };
            *input = &input[cursor.at..];
            self.needed = 1;
            match parsed {
                Some(request) => return Ok(Some(request)),
                None => self.validated = true,
            }
        }
        Ok(None)
    }
}

/// Reasons for which parsing gave no request.
enum ParseStop {
    /// At least this many bytes, counted from the request's first, are needed.
    Short {
        needed: usize,
    },
    Violation(Violation),
}

impl From<Violation> for ParseStop {
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

/// Reads fields from the first byte of a request; `at` is past them when the request was whole.
struct Cursor<'a, 'p> {
    bytes: &'a [u8],
    at: usize,
    limits: &'p Limits,
    progress: &'p mut Option<Progress>,
}

impl<'a> Cursor<'a, '_> {
    /// Returns the request; `None`: the handshake.
    fn request(&mut self, validated: bool) -> Result<Option<Request<'a>>, ParseStop> {
        let [code] = self.array::<1>()?;
        if !validated {
            return self.validate(code).map(|()| None);
        }
        Ok(Some(match code {
            1 => Request::Set(self.key()?, self.value()?),
            2 => Request::CompareSet { key: self.key()?, expected: self.value()?, wanted: self.value()? },
            3 => Request::Get(self.key()?),
            4 => Request::Add(self.key()?, i64::from_le_bytes(self.array()?)),
            5 => Request::Check(Keys { bytes: self.many(false)? }),
            6 => Request::Wait(Keys { bytes: self.many(false)? }),
            7 => Request::NumKeys,
            8 => Request::Delete(self.key()?),
            9 => Request::Append(self.key()?, self.value()?),
            10 => Request::MultiGet(Keys { bytes: self.many(false)? }),
            11 => Request::MultiSet(Pairs { bytes: self.many(true)? }),
            12 => Request::CancelWait,
            13 => Request::Ping(u32::from_le_bytes(self.array()?)),
            14 => Request::QueuePush(self.key()?, self.value()?),
            15 => Request::QueuePop(self.key()?),
            16 => Request::QueueLen(self.key()?),
            17 => Request::ListKeys,
            code => return Err(Violation::Code { code }.into()),
        }))
    }

    fn validate(&mut self, code: u8) -> Result<(), ParseStop> {
        if code != VALIDATE {
            return Err(Violation::NotValidated { code }.into());
        }
        match u32::from_le_bytes(self.array()?) {
            MAGIC => Ok(()),
            found => Err(Violation::Magic { found }.into()),
        }
    }

    /// Returns the bytes of counted entries: keys, or keys with values.
    fn many(&mut self, values: bool) -> Result<&'a [u8], ParseStop> {
        let count = u64::from_le_bytes(self.array()?);
        let count = at_most("number of keys", count, self.limits.keys_per_request_max)?;
        let mut progress = self.progress.take().unwrap_or(Progress { at: self.at, left: count });
        self.at = progress.at;
        while progress.left > 0 {
            let entry = self.key().and_then(|_| if values { self.value().map(drop) } else { Ok(()) });
            if let Err(stop) = entry {
                *self.progress = Some(progress);
                return Err(stop);
            }
            at_most("request", (self.at - MANY_HEADER_BYTES) as u64, self.limits.request_bytes_max)?;
            progress = Progress { at: self.at, left: progress.left - 1 };
        }
        Ok(&self.bytes[MANY_HEADER_BYTES..self.at])
    }

    fn key(&mut self) -> Result<&'a [u8], ParseStop> {
        let length = u64::from_le_bytes(self.array()?);
        let length = at_most("key", length, self.limits.key_bytes_max)?;
        self.take(length)
    }

    fn value(&mut self) -> Result<&'a [u8], ParseStop> {
        let size = u64::from_le_bytes(self.array()?);
        let size = at_most("value", size, self.limits.value_bytes_max)?;
        self.take(size)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ParseStop> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn take(&mut self, bytes: usize) -> Result<&'a [u8], ParseStop> {
        let end = self.at + bytes;
        let taken = self.bytes.get(self.at..end).ok_or(ParseStop::Short { needed: end })?;
        self.at = end;
        Ok(taken)
    }
}

#[cfg(test)]
pub(super) mod tests;
