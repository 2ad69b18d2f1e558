//! The batches of Arrow streams and files from elsewhere. The format's own reader panics where offsets in damaged ones lead nowhere;
//! here that is an error like any other. It also makes room for whatever a length says: here a message is only handed
//! on when all of it is there, and there is room for what it says it will be.

use super::wanted::Wanted;
use arrow_array::{Array, RecordBatch, cast::AsArray};
use arrow_ipc::{
    Block, Message,
    convert::try_fb_to_schema,
    reader::{FileReader, StreamReader, read_footer_length},
    root_as_footer, root_as_message,
};
use arrow_schema::{ArrowError, DataType, Schema, SchemaRef};
use enn_common::fs::memory;
use std::{
    fs::File,
    io::{self, BufReader, Cursor, Read},
    os::unix::fs::FileExt,
    panic::{AssertUnwindSafe, catch_unwind},
    vec,
};

/// Largest description of a batch, or of all of a file's.
const DESCRIPTION_BYTES_MAX: u64 = 64 << 20;
/// What is always free, bytes; and what is, where the system does not say.
const BYTES_FREE_LEAST: u64 = 64 << 20;
const BYTES_FREE_USUAL: u64 = 8 << 30;
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
    /// `None`: all.
    wanted: Option<Wanted>,
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
    /// The next message with its lengths; empty at the end. What only columns share that are not read is passed over.
    fn next(&mut self) -> io::Result<Vec<u8>> {
        loop {
            if let Some(message) = self.look()? {
                return Ok(message);
            }
        }
    }

    /// The next message, unless nobody reads it.
    fn look(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut message = Vec::new();
        self.append(4, &mut message)?;
        if message == CONTINUATION {
            self.append(4, &mut message)?;
        }
        let Some(length) = message.last_chunk().map(|bytes| u64::from(u32::from_le_bytes(*bytes))) else {
            return Ok(Some(message));
        };
        if length == 0 || length > DESCRIPTION_BYTES_MAX {
            return if length == 0 { Ok(Some(message)) } else { Err(damaged("a description of a batch is too long")) };
        }
        let begin = message.len();
        self.append(length, &mut message)?;
        let description = described(&message[begin..])?;
        let body = u64::try_from(description.bodyLength()).map_err(|_| not_understood())?;
        let shared = description.header_as_dictionary_batch().map(|shared| shared.id());
        if shared.is_some_and(|id| self.wanted.as_ref().is_some_and(|wanted| !wanted.shares(id))) {
            let passed = io::copy(&mut (&mut self.inner).take(body), &mut io::sink())?;
            return if passed == body { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
        }
        (self.room)(body)?;
        let end = message.len();
        self.append(body, &mut message)?;
        let (description, body) = message[begin..].split_at(end - begin);
        let first = |at: usize| Ok(body.get(at..).and_then(|from| from.first_chunk()).copied());
        (self.room)(unpacked(&described(description)?, self.wanted.as_ref(), first)?)?;
        Ok(Some(message))
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

fn described(description: &[u8]) -> io::Result<Message<'_>> {
    root_as_message(description).map_err(|_| not_understood())
}

fn not_understood() -> io::Error {
    damaged("a description of a batch cannot be understood")
}

/// Bytes that the compressed buffers of a message say they have: each says so in its first eight, which `first` gives of what lies at a
/// place in its body. Of a batch those of the `wanted` columns count, of what batches share all.
fn unpacked(
    message: &Message<'_>,
    wanted: Option<&Wanted>,
    first: impl Fn(usize) -> io::Result<Option<[u8; 8]>>,
) -> io::Result<u64> {
    let (own, shared) = (message.header_as_record_batch(), message.header_as_dictionary_batch());
    let batch = own.or_else(|| shared?.data()).filter(|batch| batch.compression().is_some());
    let Some((batch, buffers)) = batch.and_then(|batch| Some((batch, batch.buffers()?))) else { return Ok(0) };
    let views = batch.variadicBufferCounts().into_iter().flatten();
    let read = own.and(wanted).and_then(|wanted| wanted.buffers(buffers.len(), views));
    let is_read = |at: usize| read.as_ref().is_none_or(|read| read[at]);
    let mut bytes = 0_u64;
    for (_, buffer) in buffers.iter().enumerate().filter(|(at, buffer)| buffer.length() > 0 && is_read(*at)) {
        let from = usize::try_from(buffer.offset()).ok().map(&first).transpose()?.flatten();
        match from.map(i64::from_le_bytes) {
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
    /// Reads the schema; batches will have these columns, or all. `room` is asked for the bytes that each message will take, before they
    /// are: what it refuses with ends the stream, as the source of [`ArrowError::IoError`].
    pub fn open(input: R, columns: Option<Vec<usize>>, room: M) -> Result<Self, ArrowError> {
        Self::open_some(input, |_| Ok(columns), room)
    }

    /// As [`Batches::open`], with the columns that `choose` takes of the schema; what it refuses with is the error.
    pub fn open_some(
        input: R,
        choose: impl FnOnce(&Schema) -> Result<Option<Vec<usize>>, ArrowError>,
        room: M,
    ) -> Result<Self, ArrowError> {
        let mut input = Framed { inner: input, message: Cursor::default(), room, wanted: None };
        let first = input.next()?;
        let description = first.strip_prefix(&CONTINUATION).unwrap_or(&first).get(4..).unwrap_or_default();
        // What cannot be understood is told by the format's own reader.
        let own = described(description).ok().and_then(|message| message.header_as_schema());
        let read = own.and_then(|own| Some((own.fields()?, guarded(|| try_fb_to_schema(own)).ok()?)));
        let columns = read.as_ref().map_or(Ok(None), |(_, schema)| choose(schema))?;
        if let (Some((fields, schema)), Some(columns)) = (&read, &columns) {
            input.wanted = Some(Wanted::new(schema, columns).sharing(fields.iter()));
        }
        input.message = Cursor::new(first);
        guarded(|| StreamReader::try_new(input, columns)).map(|reader| Self(Some(reader)))
    }

    /// Of all columns, or of those asked for; `None` behind an error.
    pub fn schema(&self) -> Option<SchemaRef> {
        self.0.as_ref().map(StreamReader::schema)
    }
}

/// Room for a batch of somebody who may use this host's memory: as much as is free.
///
/// # Errors
/// It takes more.
pub fn ample(bytes: u64) -> io::Result<()> {
    let free = || memory::available_bytes().unwrap_or(BYTES_FREE_USUAL);
    if bytes <= BYTES_FREE_LEAST || bytes <= free() {
        return Ok(());
    }
    let why = format!("a batch says that it takes {} MiB of memory, and {} MiB are free", bytes >> 20, free() >> 20);
    Err(io::Error::new(io::ErrorKind::OutOfMemory, why))
}

/// The batches of a file, in order. Nothing comes behind an error.
pub struct FileBatches<M> {
    reader: Option<FileReader<BufReader<File>>>,
    /// Where messages of batches are that have not been read.
    blocks: vec::IntoIter<Block>,
    file: Asked<M>,
}

/// A file whose messages are looked at before they are read.
struct Asked<M> {
    file: File,
    room: M,
    /// `None`: all.
    wanted: Option<Wanted>,
}

impl<M: FnMut(u64) -> io::Result<()>> FileBatches<M> {
    /// Reads the schema and what batches share; the rest as [`Batches::open`].
    pub fn open(file: File, columns: Option<Vec<usize>>, room: M) -> Result<Self, ArrowError> {
        let input = BufReader::new(file.try_clone()?);
        let mut file = Asked { file, room, wanted: None };
        let (shared, blocks) = file.blocks(columns.as_deref())?;
        shared.iter().try_for_each(|block| file.ask(block))?;
        let reader = guarded(|| FileReader::try_new(input, columns))?;
        Ok(Self { reader: Some(reader), blocks: blocks.into_iter(), file })
    }

    /// As [`Batches::schema`].
    pub fn schema(&self) -> Option<SchemaRef> {
        self.reader.as_ref().map(FileReader::schema)
    }
}

impl<M: FnMut(u64) -> io::Result<()>> Asked<M> {
    /// Where the messages of dictionaries and of batches are, from the end of the file, which says what columns there are.
    fn blocks(&mut self, columns: Option<&[usize]>) -> Result<(Vec<Block>, Vec<Block>), ArrowError> {
        let end = self.file.metadata()?.len().checked_sub(10).ok_or_else(|| damaged("it is too short"))?;
        let mut last = [0; 10];
        self.file.read_exact_at(&mut last, end)?;
        let length = read_footer_length(last)? as u64;
        let begin = end.checked_sub(length).filter(|_| length <= DESCRIPTION_BYTES_MAX);
        let footer = self.bytes(begin.ok_or_else(|| damaged("what stands at its end is too long"))?, length)?;
        let footer = root_as_footer(&footer).map_err(|_| damaged("what stands at its end cannot be understood"))?;
        let schema = columns.and_then(|columns| Some((try_fb_to_schema(footer.schema()?).ok()?, columns)));
        self.wanted = schema.map(|(schema, columns)| Wanted::new(&schema, columns));
        let [shared, batches]: [Vec<Block>; 2] = [footer.dictionaries(), footer.recordBatches()]
            .map(|blocks| blocks.into_iter().flatten().copied().collect());
        Ok((shared, batches))
    }

    /// Asks for room for a message.
    fn ask(&mut self, block: &Block) -> io::Result<()> {
        let length = |length: i64| u64::try_from(length).map_err(|_| not_understood());
        let (at, head) = (length(block.offset())?, length(i64::from(block.metaDataLength()))?);
        let (begin, body) = (at.saturating_add(head), length(block.bodyLength())?);
        if head > DESCRIPTION_BYTES_MAX || begin.saturating_add(body) > self.file.metadata()?.len() {
            return Err(damaged("a batch is said to lie behind its end"));
        }
        let head = self.bytes(at, head)?;
        let lengths = if head.starts_with(&CONTINUATION) { 8 } else { 4 };
        let description = head.get(lengths..).ok_or_else(not_understood)?;
        let first = |at: usize| {
            let mut bytes = [0; 8];
            let is_there = (at as u64).checked_add(8).is_some_and(|end| end <= body);
            if is_there {
                self.file.read_exact_at(&mut bytes, begin + at as u64).map(|()| Some(bytes))
            } else {
                Ok(None)
            }
        };
        let unpacked = unpacked(&described(description)?, self.wanted.as_ref(), first)?;
        (self.room)(body)?;
        (self.room)(unpacked)
    }

    fn bytes(&self, at: u64, length: u64) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length as usize];
        self.file.read_exact_at(&mut bytes, at).map(|()| bytes)
    }
}

impl<M: FnMut(u64) -> io::Result<()>> Iterator for FileBatches<M> {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut reader = self.reader.take()?;
        let asked = self.blocks.next().map_or(Ok(()), |block| self.file.ask(&block)).map_err(ArrowError::from);
        let batch = asked.and_then(|()| guarded(|| reader.next().transpose())).transpose()?;
        self.reader = batch.is_ok().then_some(reader);
        Some(batch)
    }
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

/// What panics inside of the format's reader is an error.
pub(super) fn guarded<T>(read: impl FnOnce() -> Result<T, ArrowError>) -> Result<T, ArrowError> {
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
        writer::{FileWriter, IpcWriteOptions, StreamWriter},
    };
    use std::{io::Write, sync::Arc};

    /// The same column twice in a stream.
    fn stream(column: ArrayRef, codec: CompressionType) -> Vec<u8> {
        let batch = RecordBatch::try_from_iter([("a", Arc::clone(&column)), ("b", column)]).unwrap();
        let options = IpcWriteOptions::default().try_with_compression(Some(codec)).unwrap();
        let mut writer = StreamWriter::try_new_with_options(Vec::new(), &batch.schema(), options).unwrap();
        writer.write(&batch).unwrap();
        writer.finish().unwrap();
        writer.into_inner().unwrap()
    }

    /// What is asked of the room for these columns, and what comes.
    fn read(bytes: &[u8], columns: Columns, most: u64) -> (u64, Result<Vec<RecordBatch>, ArrowError>) {
        let mut asked = 0_u64;
        let room = |bytes: u64| {
            asked = asked.saturating_add(bytes);
            if asked <= most { Ok(()) } else { Err(io::Error::other("no room")) }
        };
        let read = Batches::open(bytes, columns.map(<[usize]>::to_vec), room).and_then(Iterator::collect);
        (asked, read)
    }

    /// The same column twice in a file.
    fn file(column: ArrayRef, codec: CompressionType) -> Vec<u8> {
        let batch = RecordBatch::try_from_iter([("a", Arc::clone(&column)), ("b", column)]).unwrap();
        let options = IpcWriteOptions::default().try_with_compression(Some(codec)).unwrap();
        let mut writer = FileWriter::try_new_with_options(Vec::new(), &batch.schema(), options).unwrap();
        writer.write(&batch).unwrap();
        writer.finish().unwrap();
        writer.into_inner().unwrap()
    }

    /// As `read`, of a file.
    fn read_file(bytes: &[u8], columns: Columns, most: u64) -> (u64, Result<Vec<RecordBatch>, ArrowError>) {
        let mut place = tempfile::tempfile().unwrap();
        place.write_all(bytes).unwrap();
        let mut asked = 0_u64;
        let room = |bytes: u64| {
            asked = asked.saturating_add(bytes);
            if asked <= most { Ok(()) } else { Err(io::Error::other("no room")) }
        };
        let read = FileBatches::open(place, columns.map(<[usize]>::to_vec), room).and_then(Iterator::collect);
        (asked, read)
    }

    type Columns = Option<&'static [usize]>;
    type Read = fn(&[u8], Columns, u64) -> (u64, Result<Vec<RecordBatch>, ArrowError>);
    type Written = fn(ArrayRef, CompressionType) -> Vec<u8>;
    const FIRST: Columns = Some(&[0]);
    const KINDS: [(Written, Read); 2] = [(stream, read), (file, read_file)];

    #[test]
    fn what_the_columns_of_a_compressed_batch_become_is_asked_for_before_they_are_unpacked() {
        for codec in [CompressionType::LZ4_FRAME, CompressionType::ZSTD] {
            for ((written, read), columns) in KINDS
                .into_iter()
                .flat_map(|kind| [Some(&[0][..]), Some(&[1]), Some(&[]), None].map(|some| (kind, some)))
            {
                let zeros = Arc::new(Float64Array::from(vec![0.0; 1 << 20]));
                let bytes = written(zeros.clone(), codec);
                assert!(bytes.len() < 256 << 10, "{} bytes that become 16 MiB", bytes.len());
                let count = columns.map_or(2, <[usize]>::len);
                let (least, most) = ((count as u64) << 23, (count as u64) * (8 << 20) + (1 << 20));
                let (asked, found) = read(&bytes, columns, most);
                assert!((least..most).contains(&asked), "{asked} for {columns:?}");
                let found = found.unwrap();
                assert_eq!(found[0].num_columns(), count);
                assert!(found[0].columns().iter().all(|column| column.as_primitive::<Float64Type>() == zeros.as_ref()));
                if count > 0 {
                    let (_, refused) = read(&bytes, columns, least);
                    let Err(ArrowError::IoError(_, why)) = refused else { panic!("{refused:?}") };
                    assert_eq!(why.to_string(), "no room");
                }
            }
        }
    }

    #[test]
    fn of_a_wide_stream_only_what_is_read_takes_room() {
        let words: Vec<String> = (0..1000).map(|word| format!("word {word}")).collect();
        let words: DictionaryArray<Int32Type> = words.iter().map(String::as_str).collect();
        let column = |at: usize| -> (String, ArrayRef) {
            let numbers: ArrayRef = Arc::new(Float64Array::from(vec![at as f64; 1000]));
            (format!("c{at}"), if at % 2 == 1 { Arc::new(words.clone()) } else { numbers })
        };
        let batch = RecordBatch::try_from_iter((0..60).map(column)).unwrap();
        let options = IpcWriteOptions::default().try_with_compression(Some(CompressionType::ZSTD)).unwrap();
        let mut writer = StreamWriter::try_new_with_options(Vec::new(), &batch.schema(), options).unwrap();
        writer.write(&batch).unwrap();
        writer.write(&batch.slice(0, 10)).unwrap();
        writer.finish().unwrap();
        let bytes = writer.into_inner().unwrap();
        let (wide, all) = read(&bytes, None, u64::MAX);
        let (asked, found) = read(&bytes, Some(&[7, 40]), u64::MAX);
        let (all, found) = (all.unwrap(), found.unwrap());
        assert!(
            wide > 30 * 16_000 && asked < 2 * 16_000 + bytes.len() as u64 && bytes.len() < 300_000,
            "{asked} of {wide}"
        );
        assert_eq!(found.len(), 2);
        for (found, all) in found.iter().zip(&all) {
            assert_eq!(*found, all.project(&[7, 40]).unwrap());
        }
        // By what the schema says, before anything else is read; what it is refused with comes back.
        let named = |schema: &Schema| Ok(Some(vec![schema.index_of("c3")?]));
        let mut batches = Batches::open_some(bytes.as_slice(), named, ample).unwrap();
        assert_eq!(batches.next().unwrap().unwrap(), all[0].project(&[3]).unwrap());
        let none = |schema: &Schema| Ok(Some(vec![schema.index_of("z")?]));
        let error = Batches::open_some(&bytes[..bytes.len() / 9], none, ample).err().unwrap().to_string();
        assert!(error.contains("\"z\""), "{error}");
        // Wherever it is cut, also in a dictionary that nobody reads: behind a message it may have ended.
        for cut in (0..bytes.len() - 16).step_by(499) {
            let (_, found) = read(&bytes[..cut], Some(&[0]), u64::MAX);
            assert!(found.is_err() || found.is_ok_and(|found| found.len() < 2), "cut at {cut}");
        }
    }

    #[test]
    fn a_damaged_file_is_an_error() {
        let numbers = Arc::new(Float64Array::from_iter_values((0..300).map(f64::from)));
        let keys: DictionaryArray<Int32Type> = ["x", "y", "x"].into_iter().collect();
        for column in [numbers as ArrayRef, Arc::new(keys)] {
            let sound = file(column, CompressionType::LZ4_FRAME);
            let rows = read_file(&sound, FIRST, u64::MAX).1.unwrap()[0].num_rows();
            for at in 0..sound.len() {
                for bits in [0x55, 0xff] {
                    let mut bytes = sound.clone();
                    bytes[at] ^= bits;
                    // It may still be one, e.g. of other numbers; it makes no room for what is not there.
                    if let (asked, Ok(found)) = read_file(&bytes, FIRST, 1 << 20) {
                        assert!(
                            asked <= 1 << 20 && found.iter().all(|batch| batch.num_rows() <= rows << 8),
                            "byte {at}"
                        );
                    }
                }
                assert!(read_file(&sound[..at], FIRST, 1 << 20).1.is_err(), "cut at {at}");
            }
        }
    }

    #[test]
    fn a_length_that_nobody_has_room_for_is_only_a_number() {
        for codec in [CompressionType::LZ4_FRAME, CompressionType::ZSTD] {
            for (written, read) in KINDS {
                let sound = written(Arc::new(Float64Array::from(vec![0.0; 4096])), codec);
                let says = 32768_i64.to_le_bytes();
                let at = 8 * sound.chunks(8).position(|bytes| bytes == says).unwrap();
                for length in [1_i64 << 46, i64::MAX, -2] {
                    let mut bytes = sound.clone();
                    bytes[at..at + 8].copy_from_slice(&length.to_le_bytes());
                    assert!(read(&bytes, FIRST, 1 << 30).1.is_err(), "{length}");
                }
            }
            assert!(ample(1 << 46).is_err() && ample(1 << 20).is_ok());
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
