//! The batches of an Arrow stream from elsewhere. The format's own reader panics where offsets in a damaged stream lead nowhere;
//! here that is an error like any other. It also makes room for whatever a length says: here a message is only handed
//! on when all of it is there, and there is room for what it says it will be.

use arrow_array::{Array, RecordBatch, cast::AsArray};
use arrow_ipc::{Message, reader::StreamReader, root_as_message};
use arrow_schema::{ArrowError, DataType};
use std::{
    io::{self, Cursor, Read},
    panic::{AssertUnwindSafe, catch_unwind},
};

/// Largest description of a batch, and largest batch.
const DESCRIPTION_BYTES_MAX: u64 = 64 << 20;
const BODY_BYTES_MAX: u64 = 4 << 30;
/// What stands before the length of a description since version 0.15 of the format.
const CONTINUATION: [u8; 4] = [0xff; 4];
/// Memory of a text in a list, besides its characters.
const TEXT_BYTES: u64 = 32;

/// The batches, in order. Nothing comes behind an error.
pub struct Batches<R: Read, M>(Option<StreamReader<Framed<R, M>>>);

/// A stream whose messages are held back until they are known to be there: the format's reader makes room for what a length says.
struct Framed<R, M> {
    inner: R,
    message: Cursor<Vec<u8>>,
    room: M,
}

impl<R: Read, M: FnMut(u64) -> io::Result<()>> Read for Framed<R, M> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.message.position() == self.message.get_ref().len() as u64 {
            self.message = Cursor::new(self.next()?);
        }
        self.message.read(out)
    }
}

impl<R: Read, M: FnMut(u64) -> io::Result<()>> Framed<R, M> {
    /// The next message with its lengths; empty at the end.
    fn next(&mut self) -> io::Result<Vec<u8>> {
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
        let body = body.ok_or_else(|| damaged("a description of a batch cannot be understood"))?;
        let end = message.len();
        self.append(body, &mut message)?;
        let (described, body) = message[begin..].split_at(end - begin);
        let described = root_as_message(described).map_err(|_| damaged("a description of a batch has changed"))?;
        (self.room)(body.len() as u64 + unpacked(&described, body)?)?;
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

/// Bytes that the compressed buffers of a message say they have: each says so in its first eight.
fn unpacked(message: &Message<'_>, body: &[u8]) -> io::Result<u64> {
    let dictionary = || message.header_as_dictionary_batch().and_then(|batch| batch.data());
    let batch = message.header_as_record_batch().or_else(dictionary).filter(|batch| batch.compression().is_some());
    let mut bytes = 0_u64;
    for buffer in batch.and_then(|batch| batch.buffers()).into_iter().flatten().filter(|buffer| buffer.length() > 0) {
        let from = usize::try_from(buffer.offset()).ok().and_then(|from| body.get(from..));
        let length = from.and_then(|from| from.first_chunk()).map(|bytes| i64::from_le_bytes(*bytes));
        match length {
            // Not compressed: it stays where it is.
            Some(-1) => {}
            Some(length @ 0..) => bytes = bytes.saturating_add(length.cast_unsigned()),
            _ => return Err(damaged("a compressed buffer does not say how long it is")),
        }
    }
    Ok(bytes)
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

/// Bytes of the texts of a batch, cell by cell: where cells share a text, it is there once, and each cell may become a copy of it.
pub fn text_bytes(batch: &RecordBatch) -> u64 {
    let each = |column: &dyn Array| match column.data_type() {
        DataType::List(_) => listed(column.as_list::<i32>().values()),
        DataType::LargeList(_) => listed(column.as_list::<i64>().values()),
        _ => lengths(column).into_iter().sum(),
    };
    batch.columns().iter().fold(0_u64, |all, column| all.saturating_add(each(column)))
}

fn listed(texts: &dyn Array) -> u64 {
    lengths(texts).into_iter().fold(0, |all, length| all.saturating_add(length + TEXT_BYTES))
}

/// Length of the text of each cell; nothing where there are none to be shared.
fn lengths(texts: &dyn Array) -> Vec<u64> {
    match texts.data_type() {
        DataType::Utf8 => texts.as_string::<i32>().offsets().lengths().map(|length| length as u64).collect(),
        DataType::LargeUtf8 => texts.as_string::<i64>().offsets().lengths().map(|length| length as u64).collect(),
        // A view begins with its length.
        DataType::Utf8View => texts.as_string_view().views().iter().map(|view| u64::from(*view as u32)).collect(),
        DataType::Dictionary(_, _) => {
            let dictionary = texts.as_any_dictionary();
            let each = lengths(dictionary.values());
            let keys = if each.is_empty() { Vec::new() } else { dictionary.normalized_keys() };
            keys.into_iter().map(|key| each[key]).collect()
        }
        _ => Vec::new(),
    }
}

impl<R: Read, M: FnMut(u64) -> io::Result<()>> Batches<R, M> {
    /// Reads the schema. `room` is asked for the bytes that each message will take, before they are: what it refuses with ends the
    /// stream, as the source of [`ArrowError::IoError`].
    pub fn open(input: R, room: M) -> Result<Self, ArrowError> {
        let input = Framed { inner: input, message: Cursor::default(), room };
        guarded(|| StreamReader::try_new(input, None)).map(|reader| Self(Some(reader)))
    }
}

/// Room for a batch of somebody who may use this host's memory.
///
/// # Errors
/// More than a batch may have.
pub fn ample(bytes: u64) -> io::Result<()> {
    if bytes <= 2 * BODY_BYTES_MAX { Ok(()) } else { Err(damaged("a batch says that it is longer than 8 GiB")) }
}

impl<R: Read, M: FnMut(u64) -> io::Result<()>> Iterator for Batches<R, M> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::{
        ArrayRef, DictionaryArray, Float64Array, StringViewArray,
        builder::{ListBuilder, StringViewBuilder},
        types::{Float64Type, Int32Type},
    };
    use arrow_ipc::{
        CompressionType,
        writer::{IpcWriteOptions, StreamWriter},
    };
    use std::sync::Arc;

    fn stream(column: ArrayRef, codec: CompressionType) -> Vec<u8> {
        let batch = RecordBatch::try_from_iter([("a", column)]).unwrap();
        let options = IpcWriteOptions::default().try_with_compression(Some(codec)).unwrap();
        let mut writer = StreamWriter::try_new_with_options(Vec::new(), &batch.schema(), options).unwrap();
        writer.write(&batch).unwrap();
        writer.finish().unwrap();
        writer.into_inner().unwrap()
    }

    /// What is asked of the room, and what comes.
    fn read(bytes: &[u8], most: u64) -> (u64, Result<Vec<RecordBatch>, ArrowError>) {
        let mut asked = 0_u64;
        let room = |bytes: u64| {
            asked = asked.saturating_add(bytes);
            if asked <= most { Ok(()) } else { Err(io::Error::other("no room")) }
        };
        let read = Batches::open(bytes, room).and_then(Iterator::collect);
        (asked, read)
    }

    #[test]
    fn what_a_compressed_batch_becomes_is_asked_for_before_it_is_unpacked() {
        for codec in [CompressionType::LZ4_FRAME, CompressionType::ZSTD] {
            let zeros = Arc::new(Float64Array::from(vec![0.0; 1 << 20]));
            let bytes = stream(zeros.clone(), codec);
            assert!(bytes.len() < 64 << 10, "{} bytes that become 8 MiB", bytes.len());
            let (asked, found) = read(&bytes, 9 << 20);
            assert!((8 << 20..9 << 20).contains(&asked), "{asked}");
            assert_eq!(found.unwrap()[0].column(0).as_primitive::<Float64Type>(), zeros.as_ref());
            let (_, refused) = read(&bytes, 8 << 20);
            let Err(ArrowError::IoError(_, why)) = refused else { panic!("{refused:?}") };
            assert_eq!(why.to_string(), "no room");
        }
    }

    #[test]
    fn a_length_that_nobody_has_room_for_is_only_a_number() {
        for codec in [CompressionType::LZ4_FRAME, CompressionType::ZSTD] {
            let sound = stream(Arc::new(Float64Array::from(vec![0.0; 4096])), codec);
            let says = 32768_i64.to_le_bytes();
            let at = sound.windows(8).position(|bytes| bytes == says).unwrap();
            for length in [1_i64 << 46, i64::MAX, -2] {
                let mut bytes = sound.clone();
                bytes[at..at + 8].copy_from_slice(&length.to_le_bytes());
                assert!(read(&bytes, 1 << 30).1.is_err(), "{length}");
                assert!(Batches::open(bytes.as_slice(), ample).unwrap().next().unwrap().is_err(), "{length}");
            }
        }
    }

    #[test]
    fn a_text_that_many_cells_share_counts_for_each() {
        let text = "x".repeat(1000);
        let of = |column: ArrayRef| text_bytes(&RecordBatch::try_from_iter([("a", column)]).unwrap());
        let views = StringViewArray::from(vec![text.as_str(); 7]);
        assert_eq!(of(Arc::new(views)), 7000);
        let keys: DictionaryArray<Int32Type> = std::iter::repeat_n(text.as_str(), 5).collect();
        assert_eq!(of(Arc::new(keys)), 5000);
        let none: DictionaryArray<Int32Type> = [None::<&str>; 3].into_iter().collect();
        assert_eq!(of(Arc::new(none)), 0);
        let mut lists = ListBuilder::new(StringViewBuilder::new());
        lists.append_value([Some(text.as_str()); 3]);
        lists.append_value([Some(text.as_str()); 4]);
        assert_eq!(of(Arc::new(lists.finish())), 7 * (1000 + TEXT_BYTES));
    }
}
