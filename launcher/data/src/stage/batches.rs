//! Record batches of untrusted Arrow streams and files. The arrow crate's reader panics on invalid offsets: here a panic becomes an
//! error. The reader allocates whatever a length field states: here a message is passed on only when it is complete and its stated size
//! fits into memory. The reader accepts a truncated stream: here a stream must end with its end-of-stream marker.

use super::projection::Projection;
use arrow_array::{Array, RecordBatch, cast::AsArray};
use arrow_ipc::{
    Block, Message,
    convert::try_fb_to_schema,
    reader::{FileReader, StreamReader, read_footer_length},
    root_as_footer, root_as_message,
};
use arrow_schema::{ArrowError, DataType, Schema, SchemaRef};
use enn_common::{fs::memory, panics};
use std::{
    fs::File,
    io::{self, BufReader, Cursor, Read},
    os::unix::fs::FileExt,
    vec,
};

/// Maximum bytes of the metadata of a message, and of a file's footer.
const DESCRIPTION_BYTES_MAX: u64 = 64 << 20;
/// Bytes that are always assumed free, and bytes assumed free where the system does not report them.
const BYTES_FREE_LEAST: u64 = 64 << 20;
const BYTES_FREE_USUAL: u64 = 8 << 30;
/// Continuation marker before the length of the metadata, since version 0.15 of the format.
const CONTINUATION: [u8; 4] = [0xff; 4];
/// Bytes of a text in a list in memory, besides its characters.
const TEXT_BYTES: u64 = 32;
/// Maximum rows of a message: this many plus `ROWS_PER_BYTE` per byte, because every column except a null column has a bit per row.
const ROWS_FREE: u64 = 1 << 20;
const ROWS_PER_BYTE: u64 = 8;

/// Iterates over the batches of a stream in order; ends after an error.
pub struct Batches<R: Read, M>(Option<StreamReader<Framed<R, M>>>);

/// A stream that passes a message on only when it is complete, because the arrow reader allocates what a length field states.
struct Framed<R, M> {
    inner: R,
    message: Cursor<Vec<u8>>,
    room: M,
    /// Columns to read; `None` for all.
    projection: Option<Projection>,
    bytes: u64,
    messages: u64,
    /// Whether the end-of-stream marker was read.
    is_ended: bool,
    /// Whether data after the end-of-stream marker are an error.
    is_alone: bool,
}

impl<R: Read, M: FnMut(u64) -> io::Result<()>> Read for Framed<R, M> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.message.position() == self.message.get_ref().len() as u64 && !self.is_ended {
            // The arrow reader takes this kind of error for the end of the stream.
            let next = self.next().map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => self.truncated(),
                _ => error,
            });
            self.message = Cursor::new(next?);
        }
        self.message.read(out)
    }
}

impl<R: Read, M: FnMut(u64) -> io::Result<()>> Framed<R, M> {
    fn new(inner: R, room: M) -> Self {
        let message = Cursor::default();
        Self { inner, message, room, projection: None, bytes: 0, messages: 0, is_ended: false, is_alone: false }
    }

    fn truncated(&self) -> io::Error {
        let bytes = self.bytes;
        let messages = self.messages;
        damaged(&match bytes {
            0 => "it is empty, expected an Arrow stream".to_owned(),
            _ => format!(
                "it ends early, at byte {bytes} behind {messages} whole messages, without the mark of its end: it was cut, or its \
                 writer was not closed"
            ),
        })
    }

    /// Handles the end-of-stream marker `mark`, and refuses data after it where they are not allowed.
    fn end(&mut self, mark: Vec<u8>) -> io::Result<Vec<u8>> {
        self.is_ended = true;
        if self.is_alone && (&mut self.inner).take(1).read_to_end(&mut Vec::new())? > 0 {
            let at = self.bytes;
            return Err(damaged(&format!("something follows the mark of its end at byte {at}, expected one stream")));
        }
        Ok(mark)
    }

    /// Returns the next message with its length fields, and skips dictionaries of columns that are not read.
    fn next(&mut self) -> io::Result<Vec<u8>> {
        loop {
            if let Some(message) = self.next_message()? {
                return Ok(message);
            }
        }
    }

    /// Reads the next message; `None` if it was skipped.
    fn next_message(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut message = Vec::new();
        self.append(4, &mut message)?;
        if message == CONTINUATION {
            self.append(4, &mut message)?;
        }
        let length = message.last_chunk().map_or(0, |bytes| u64::from(u32::from_le_bytes(*bytes)));
        match length {
            0 => return self.end(message).map(Some),
            1..=DESCRIPTION_BYTES_MAX => {}
            _ => return Err(damaged("a description of a batch is too long")),
        }
        let begin = message.len();
        self.append(length, &mut message)?;
        let description = described(&message[begin..])?;
        let body = u64::try_from(description.bodyLength()).map_err(|_| not_understood())?;
        let shared = description.header_as_dictionary_batch().map(|shared| shared.id());
        if shared.is_some_and(|id| self.projection.as_ref().is_some_and(|projection| !projection.shares(id))) {
            let passed = io::copy(&mut (&mut self.inner).take(body), &mut io::sink())?;
            self.bytes += passed;
            self.messages += 1;
            return if passed == body { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
        }
        (self.room)(body)?;
        let end = message.len();
        self.append(body, &mut message)?;
        let (description, body) = message[begin..].split_at(end - begin);
        let first = |at: usize| Ok(body.get(at..).and_then(|from| from.first_chunk()).copied());
        let description = described(description)?;
        check_rows(&description, body.len() as u64, first)?;
        (self.room)(unpacked(&description, self.projection.as_ref(), first)?)?;
        self.messages += 1;
        Ok(Some(message))
    }

    fn append(&mut self, count: u64, message: &mut Vec<u8>) -> io::Result<()> {
        let read = (&mut self.inner).take(count).read_to_end(message)? as u64;
        self.bytes += read;
        if read < count { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }
}

fn described(description: &[u8]) -> io::Result<Message<'_>> {
    root_as_message(description).map_err(|_| not_understood())
}

fn not_understood() -> io::Error {
    damaged("a description of a batch cannot be understood")
}

/// Returns the stated uncompressed bytes of a message's compressed buffers. Each buffer states them in its first eight bytes, which
/// `first` returns for an offset in the body. In a batch only buffers of projected columns count, in a dictionary all.
fn unpacked(
    message: &Message<'_>,
    projection: Option<&Projection>,
    first: impl Fn(usize) -> io::Result<Option<[u8; 8]>>,
) -> io::Result<u64> {
    let own = message.header_as_record_batch();
    let shared = message.header_as_dictionary_batch();
    let batch = own.or_else(|| shared?.data()).filter(|batch| batch.compression().is_some());
    let Some((batch, buffers)) = batch.and_then(|batch| Some((batch, batch.buffers()?))) else { return Ok(0) };
    let views = batch.variadicBufferCounts().into_iter().flatten();
    let read = own.and(projection).and_then(|projection| projection.buffers(buffers.len(), views));
    let is_read = |at: usize| read.as_ref().is_none_or(|read| read[at]);
    let mut bytes = 0_u64;
    for (_, buffer) in buffers.iter().enumerate().filter(|(at, buffer)| buffer.length() > 0 && is_read(*at)) {
        let from = usize::try_from(buffer.offset()).ok().map(&first).transpose()?.flatten();
        match from.map(i64::from_le_bytes) {
            // The buffer is not compressed.
            Some(-1) => {}
            Some(length @ 0..) => bytes = bytes.saturating_add(length.cast_unsigned()),
            _ => return Err(damaged("a compressed buffer does not say how long it is")),
        }
    }
    Ok(bytes)
}

/// Refuses a batch with more rows than its `body` bytes can hold: rows of nulls take no bytes, but would be read one by one.
fn check_rows(
    message: &Message<'_>,
    body: u64,
    first: impl Fn(usize) -> io::Result<Option<[u8; 8]>>,
) -> io::Result<()> {
    let shared = message.header_as_dictionary_batch();
    let batch = message.header_as_record_batch().or_else(|| shared?.data());
    let rows = batch.map_or(Ok(0), |batch| u64::try_from(batch.length()).map_err(|_| not_understood()))?;
    let holds = |bytes: u64| rows <= bytes.saturating_mul(ROWS_PER_BYTE).saturating_add(ROWS_FREE);
    if holds(body) || holds(body.saturating_add(unpacked(message, None, first)?)) {
        return Ok(());
    }
    Err(damaged(&format!("a batch says that it has {rows} rows, and has {body} bytes")))
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

/// Returns the bytes of the texts of a batch, counted per cell, because each cell of a dictionary column may become a copy of its text.
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

/// Returns the length of each cell's text; empty for columns that are not texts.
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
    /// Reads the schema; batches will have `columns`, or all. `room` is called with the bytes of each message before they are allocated;
    /// its error ends the stream, as the source of [`ArrowError::IoError`].
    pub fn open(input: R, columns: Option<Vec<usize>>, room: M) -> Result<Self, ArrowError> {
        Self::open_some(input, |_| Ok(columns), room)
    }

    /// Opens a stream like [`Batches::open`], with the columns that `choose` selects from the schema.
    pub fn open_some(
        input: R,
        choose: impl FnOnce(&Schema) -> Result<Option<Vec<usize>>, ArrowError>,
        room: M,
    ) -> Result<Self, ArrowError> {
        let mut input = Framed::new(input, room);
        let first = input.next().map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => input.truncated(),
            _ => error,
        })?;
        let description = first.strip_prefix(&CONTINUATION).unwrap_or(&first).get(4..).unwrap_or_default();
        // The arrow reader reports metadata that cannot be parsed.
        let own = described(description).ok().and_then(|message| message.header_as_schema());
        let read = own.and_then(|own| Some((own.fields()?, guarded(|| try_fb_to_schema(own)).ok()?)));
        let columns = read.as_ref().map_or(Ok(None), |(_, schema)| choose(schema))?;
        if let (Some((fields, schema)), Some(columns)) = (&read, &columns) {
            input.projection = Some(Projection::new(schema, columns).sharing(fields.iter()));
        }
        input.message = Cursor::new(first);
        guarded(|| StreamReader::try_new(input, columns)).map(|reader| Self(Some(reader)))
    }

    /// Makes data after the end of the stream an error, for a source that holds a single stream.
    #[must_use]
    pub fn alone(mut self) -> Self {
        if let Some(reader) = &mut self.0 {
            reader.get_mut().is_alone = true;
        }
        self
    }

    /// Returns the schema of the batches; `None` after an error.
    pub fn schema(&self) -> Option<SchemaRef> {
        self.0.as_ref().map(StreamReader::schema)
    }
}

/// Checks that `bytes` fit into the free memory of this host.
///
/// # Errors
/// There is less free memory.
pub fn ample(bytes: u64) -> io::Result<()> {
    let free = || memory::available_bytes().unwrap_or(BYTES_FREE_USUAL);
    if bytes <= BYTES_FREE_LEAST || bytes <= free() {
        return Ok(());
    }
    let why = format!("a batch says that it takes {} MiB of memory, and {} MiB are free", bytes >> 20, free() >> 20);
    Err(io::Error::new(io::ErrorKind::OutOfMemory, why))
}

/// Iterates over the batches of a file in order; ends after an error.
pub struct FileBatches<M> {
    reader: Option<FileReader<BufReader<File>>>,
    blocks: vec::IntoIter<Block>,
    file: CheckedFile<M>,
}

struct CheckedFile<M> {
    file: File,
    room: M,
    /// Columns to read; `None` for all.
    projection: Option<Projection>,
}

impl<M: FnMut(u64) -> io::Result<()>> FileBatches<M> {
    /// Reads the schema and the dictionaries; otherwise like [`Batches::open`].
    pub fn open(file: File, columns: Option<Vec<usize>>, room: M) -> Result<Self, ArrowError> {
        let input = BufReader::new(file.try_clone()?);
        let mut file = CheckedFile { file, room, projection: None };
        let (shared, blocks) = file.blocks(columns.as_deref())?;
        shared.iter().try_for_each(|block| file.check(block))?;
        let reader = guarded(|| FileReader::try_new(input, columns))?;
        Ok(Self { reader: Some(reader), blocks: blocks.into_iter(), file })
    }

    /// Returns the schema of the batches; `None` after an error.
    pub fn schema(&self) -> Option<SchemaRef> {
        self.reader.as_ref().map(FileReader::schema)
    }
}

impl<M: FnMut(u64) -> io::Result<()>> CheckedFile<M> {
    fn blocks(&mut self, columns: Option<&[usize]>) -> Result<(Vec<Block>, Vec<Block>), ArrowError> {
        let end = self.file.metadata()?.len().checked_sub(10).ok_or_else(|| damaged("it is too short"))?;
        let mut last = [0; 10];
        self.file.read_exact_at(&mut last, end)?;
        let length = read_footer_length(last)? as u64;
        let begin = end.checked_sub(length).filter(|_| length <= DESCRIPTION_BYTES_MAX);
        let footer = self.bytes(begin.ok_or_else(|| damaged("what stands at its end is too long"))?, length)?;
        let footer = root_as_footer(&footer).map_err(|_| damaged("what stands at its end cannot be understood"))?;
        let schema = columns.and_then(|columns| Some((try_fb_to_schema(footer.schema()?).ok()?, columns)));
        self.projection = schema.map(|(schema, columns)| Projection::new(&schema, columns));
        let [shared, batches]: [Vec<Block>; 2] = [footer.dictionaries(), footer.recordBatches()]
            .map(|blocks| blocks.into_iter().flatten().copied().collect());
        Ok((shared, batches))
    }

    /// Checks a message and calls `room` with its bytes.
    fn check(&mut self, block: &Block) -> io::Result<()> {
        let length = |length: i64| u64::try_from(length).map_err(|_| not_understood());
        let at = length(block.offset())?;
        let head = length(i64::from(block.metaDataLength()))?;
        let begin = at.saturating_add(head);
        let body = length(block.bodyLength())?;
        if head > DESCRIPTION_BYTES_MAX || begin.saturating_add(body) > self.file.metadata()?.len() {
            return Err(damaged("a batch is declared to lie behind its end"));
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
        let description = described(description)?;
        check_rows(&description, body, first)?;
        let unpacked = unpacked(&description, self.projection.as_ref(), first)?;
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
        let Self { reader, blocks, file } = self;
        next_batch(reader, |reader| {
            blocks.next().map_or(Ok(()), |block| file.check(&block))?;
            guarded(|| reader.next().transpose())
        })
    }
}

impl<R: Read, M: FnMut(u64) -> io::Result<()>> Iterator for Batches<R, M> {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        next_batch(&mut self.0, |reader| guarded(|| reader.next().transpose()))
    }
}

/// Returns the next batch; a reader is not used again after an error or a panic.
pub(super) fn next_batch<R>(
    slot: &mut Option<R>,
    read: impl FnOnce(&mut R) -> Result<Option<RecordBatch>, ArrowError>,
) -> Option<Result<RecordBatch, ArrowError>> {
    let mut reader = slot.take()?;
    let batch = read(&mut reader).transpose()?;
    *slot = batch.is_ok().then_some(reader);
    Some(batch)
}

fn guarded<T>(read: impl FnOnce() -> Result<T, ArrowError>) -> Result<T, ArrowError> {
    panics::caught("arrow-ipc", read).unwrap_or_else(|panic| Err(ArrowError::IpcError(panic.to_string())))
}

#[cfg(test)]
#[path = "batches_tests.rs"]
mod tests;
