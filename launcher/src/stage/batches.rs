//! The batches of Arrow streams and files from elsewhere. The format's own reader panics where offsets in damaged ones lead nowhere;
//! here that is an error like any other. It also makes room for whatever a length says: here a message is only handed
//! on when all of it is there, and there is room for what it says it will be. And it takes a stream that is cut for one that ends: here
//! a stream ends with the mark that its writer puts there, and nowhere else.

use super::wanted::Wanted;
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

/// Largest description of a batch, or of all of a file's.
const DESCRIPTION_BYTES_MAX: u64 = 64 << 20;
/// What is always free, bytes; and what is, where the system does not say.
const BYTES_FREE_LEAST: u64 = 64 << 20;
const BYTES_FREE_USUAL: u64 = 8 << 30;
/// What stands before the length of a description since version 0.15 of the format.
const CONTINUATION: [u8; 4] = [0xff; 4];
/// Memory of a text in a list, besides its characters.
const TEXT_BYTES: u64 = 32;
/// Rows that a message may have however few bytes it has, and rows for each of its bytes: every column but one of nulls has a bit a row.
const ROWS_FREE: u64 = 1 << 20;
const ROWS_PER_BYTE: u64 = 8;

/// The batches, in order. Nothing comes behind an error.
pub struct Batches<R: Read, M>(Option<StreamReader<Framed<R, M>>>);

/// A stream whose messages are held back until they are known to be there: the format's reader makes room for what a length says.
struct Framed<R, M> {
    inner: R,
    message: Cursor<Vec<u8>>,
    room: M,
    /// `None`: all.
    wanted: Option<Wanted>,
    /// Bytes and messages that came.
    bytes: u64,
    messages: u64,
    /// The mark of the end came.
    is_ended: bool,
    /// Nothing may come behind it.
    is_alone: bool,
}

impl<R: Read, M: FnMut(u64) -> io::Result<()>> Read for Framed<R, M> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.message.position() == self.message.get_ref().len() as u64 && !self.is_ended {
            // The format's reader takes this kind of error for the end of the stream.
            let next = self.next().map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => self.cut(),
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
        Self { inner, message, room, wanted: None, bytes: 0, messages: 0, is_ended: false, is_alone: false }
    }

    /// What is said of a stream without the mark of its end.
    fn cut(&self) -> io::Error {
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

    /// The mark of the end; an error where something follows that must not.
    fn end(&mut self, mark: Vec<u8>) -> io::Result<Vec<u8>> {
        self.is_ended = true;
        if self.is_alone && (&mut self.inner).take(1).read_to_end(&mut Vec::new())? > 0 {
            let at = self.bytes;
            return Err(damaged(&format!("something follows the mark of its end at byte {at}, expected one stream")));
        }
        Ok(mark)
    }

    /// The next message with its lengths. What only columns share that are not read is passed over.
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
        if shared.is_some_and(|id| self.wanted.as_ref().is_some_and(|wanted| !wanted.shares(id))) {
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
        plausible(&description, body.len() as u64, first)?;
        (self.room)(unpacked(&description, self.wanted.as_ref(), first)?)?;
        self.messages += 1;
        Ok(Some(message))
    }

    /// Appends `count` bytes.
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

/// Bytes that the compressed buffers of a message say they have: each says so in its first eight, which `first` gives of what lies at a
/// place in its body. Of a batch those of the `wanted` columns count, of what batches share all.
fn unpacked(
    message: &Message<'_>,
    wanted: Option<&Wanted>,
    first: impl Fn(usize) -> io::Result<Option<[u8; 8]>>,
) -> io::Result<u64> {
    let own = message.header_as_record_batch();
    let shared = message.header_as_dictionary_batch();
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

/// Refuses a batch of so many rows that its `body` cannot hold them: rows of nulls take no bytes, and would be read one by one.
fn plausible(message: &Message<'_>, body: u64, first: impl Fn(usize) -> io::Result<Option<[u8; 8]>>) -> io::Result<()> {
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
        let mut input = Framed::new(input, room);
        let first = input.next().map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => input.cut(),
            _ => error,
        })?;
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

    /// With an error where something follows the stream: of a source that ends with it.
    #[must_use]
    pub fn alone(mut self) -> Self {
        if let Some(reader) = &mut self.0 {
            reader.get_mut().is_alone = true;
        }
        self
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
        let at = length(block.offset())?;
        let head = length(i64::from(block.metaDataLength()))?;
        let begin = at.saturating_add(head);
        let body = length(block.bodyLength())?;
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
        let description = described(description)?;
        plausible(&description, body, first)?;
        let unpacked = unpacked(&description, self.wanted.as_ref(), first)?;
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
fn guarded<T>(read: impl FnOnce() -> Result<T, ArrowError>) -> Result<T, ArrowError> {
    panics::caught("arrow-ipc", read).unwrap_or_else(|panic| Err(ArrowError::IpcError(panic.to_string())))
}

#[cfg(test)]
#[path = "batches_tests.rs"]
mod tests;
