//! The batches of an Arrow stream from elsewhere. The format's own reader panics where offsets in a damaged stream lead nowhere;
//! here that is an error like any other. It also makes room for whatever a length says: here a message is only handed
//! on when all of it is there.

use arrow_array::RecordBatch;
use arrow_ipc::{reader::StreamReader, root_as_message};
use arrow_schema::ArrowError;
use std::{
    io::{self, Cursor, Read},
    panic::{AssertUnwindSafe, catch_unwind},
};

/// Largest description of a batch, and largest batch.
const DESCRIPTION_BYTES_MAX: u64 = 64 << 20;
const BODY_BYTES_MAX: u64 = 4 << 30;
/// What stands before the length of a description since version 0.15 of the format.
const CONTINUATION: [u8; 4] = [0xff; 4];

/// The batches, in order. Nothing comes behind an error.
pub struct Batches<R: Read>(Option<StreamReader<Framed<R>>>);

/// A stream whose messages are held back until they are known to be there: the format's reader makes room for what a length says.
struct Framed<R> {
    inner: R,
    message: Cursor<Vec<u8>>,
}

impl<R: Read> Read for Framed<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.message.position() == self.message.get_ref().len() as u64 {
            self.message = Cursor::new(self.next()?);
        }
        self.message.read(out)
    }
}

impl<R: Read> Framed<R> {
    /// The next message with its lengths; empty at the end.
    fn next(&mut self) -> io::Result<Vec<u8>> {
        let damaged = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        let mut message = Vec::new();
        self.append(4, &mut message)?;
        if message == CONTINUATION {
            self.append(4, &mut message)?;
        }
        let Some(length) = message.last_chunk().map(|bytes| u64::from(u32::from_le_bytes(*bytes))) else {
            return Ok(message);
        };
        if length == 0 || length > DESCRIPTION_BYTES_MAX {
            return if length == 0 { Ok(message) } else { Err(damaged("a description of a batch is too long")) };
        }
        let begin = message.len();
        self.append(length, &mut message)?;
        let described = root_as_message(&message[begin..]).map(|found| found.bodyLength());
        let body =
            described.ok().and_then(|length| u64::try_from(length).ok()).filter(|length| *length <= BODY_BYTES_MAX);
        self.append(body.ok_or_else(|| damaged("a description of a batch cannot be understood"))?, &mut message)?;
        Ok(message)
    }

    /// Appends as many bytes as are there, up to `count`.
    fn append(&mut self, count: u64, message: &mut Vec<u8>) -> io::Result<usize> {
        let before = message.len() as u64;
        let read = (&mut self.inner).take(count).read_to_end(message)?;
        if (message.len() as u64) < before + count && before + read as u64 > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(read)
    }
}

impl<R: Read> Batches<R> {
    /// Reads the schema.
    pub fn open(input: R) -> Result<Self, ArrowError> {
        let input = Framed { inner: input, message: Cursor::default() };
        guarded(|| StreamReader::try_new(input, None)).map(|reader| Self(Some(reader)))
    }
}

impl<R: Read> Iterator for Batches<R> {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut reader = self.0.take()?;
        let batch = guarded(|| reader.next().transpose()).transpose()?;
        // What a panic left behind is not looked at again.
        self.0 = batch.is_ok().then_some(reader);
        Some(batch)
    }
}

fn guarded<T>(read: impl FnOnce() -> Result<T, ArrowError>) -> Result<T, ArrowError> {
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| {
        Err(ArrowError::IpcError("it is damaged: what it says of its own buffers does not fit them".to_owned()))
    })
}
