//! Stored zips, inside shards and by themselves: made with every size known before the payload is touched, read from their central
//! directory.
//!
//! ```text
//! local header, small record | … | local header + padding, payload | central directory | [zip64 end, locator] | end
//! ```
//! Offsets in a zip are relative to its own beginning, the *item's* offset in the shard. All numbers are little-endian.

use std::ops::Range;

/// Bytes of a local header before the name.
pub(super) const LOCAL_BYTES: usize = 30;
/// Bytes of the end record without a comment.
pub(super) const END_BYTES: usize = 22;
/// Farthest from the end that an end record is looked for.
pub(super) const END_SEARCH_BYTES_MAX: usize = 66 * 1024;
/// Bytes before most payloads that do not begin at a page.
const HEAD_BYTES: usize = 640;
/// Records a zip may have: a value that holds tensors has one per tensor.
const RECORDS_MAX: u64 = 65_536;

const LOCAL: u32 = 0x0403_4b50;
const CENTRAL: u32 = 0x0201_4b50;
const END: u32 = 0x0605_4b50;
const END64: u32 = 0x0606_4b50;
const LOCATOR64: u32 = 0x0706_4b50;
/// Sizes and offsets of this value are in the zip64 extra field.
const IN_EXTRA: u32 = u32::MAX;
/// 1980-01-01, the oldest day a zip can say: the same tensors give the same bytes.
const DOS_DATE: u16 = 0x0021;

/// Why a zip was refused. Positions are relative to the item.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ZipError {
    #[error("it does not end like a zip: it is cut or overwritten")]
    NoEnd,
    #[error("its zip header at byte {at} is damaged")]
    Header { at: u64 },
    #[error("its record {name} is compressed with method {method}; only stored records are read")]
    Compressed { name: String, method: u16 },
}

/// Bytes before and after a payload.
pub(super) struct Envelope {
    pub(super) head: Vec<u8>,
    pub(super) tail: Vec<u8>,
}

/// The big record: only its size and checksum are needed to make the zip around it.
#[derive(Debug)]
pub struct RecordPayload<'a> {
    /// Path in the zip.
    pub name: &'a str,
    pub bytes: u64,
    pub crc32: u32,
    /// The payload begins at a multiple of this in the file; 1: anywhere.
    pub align: u64,
}

/// A zip being made, record by record. The caller writes what it gives, and the records' data, behind each other.
#[derive(Debug)]
pub struct Builder {
    /// Where the zip begins in its file.
    item_offset: u64,
    /// Bytes of the zip so far, data included.
    at: u64,
    central: Vec<u8>,
    count: u64,
}

impl Builder {
    /// A zip that begins so many bytes into its file.
    pub fn new(item_offset: u64) -> Self {
        Self { item_offset, at: 0, central: Vec::with_capacity(384), count: 0 }
    }

    /// The header of a record whose data begin at a multiple of `align` in the file; the data come next.
    pub fn header(&mut self, record: &RecordPayload<'_>) -> Vec<u8> {
        let wide = if record.bytes >= u64::from(IN_EXTRA) { 20 } else { 0 };
        let before = self.item_offset + self.at + (LOCAL_BYTES + record.name.len() + wide + 4) as u64;
        let padding =
            if record.align > 1 { pad_field(before.next_multiple_of(record.align) - before) } else { Vec::new() };
        let mut header = Vec::with_capacity(LOCAL_BYTES + record.name.len() + wide + padding.len());
        local(&mut header, record.name, record.bytes, record.crc32, &padding);
        directory_entry(&mut self.central, record.name, record.bytes, record.crc32, self.at);
        self.at += header.len() as u64 + record.bytes;
        self.count += 1;
        header
    }

    /// [`Builder::header`] of a record that is `bytes`.
    pub fn record(&mut self, name: &str, bytes: &[u8], align: u64) -> Vec<u8> {
        self.header(&RecordPayload { name, bytes: bytes.len() as u64, crc32: crc32fast::hash(bytes), align })
    }

    /// The header of a small record, and its data.
    pub fn small(&mut self, name: &str, bytes: &[u8]) -> Vec<u8> {
        let mut out = self.record(name, bytes, 1);
        out.extend_from_slice(bytes);
        out
    }

    /// The central directory and the end.
    pub fn finish(self) -> Vec<u8> {
        end(self.central, self.count, self.at)
    }
}

/// Makes the zip around a payload that begins `item_offset` bytes into its file.
pub(super) fn envelope(item_offset: u64, small: &[(&str, &[u8])], payload: Option<&RecordPayload<'_>>) -> Envelope {
    let mut zip = Builder::new(item_offset);
    let mut head = Vec::with_capacity(HEAD_BYTES);
    small.iter().for_each(|(name, bytes)| head.extend_from_slice(&zip.small(name, bytes)));
    payload.iter().for_each(|payload| head.extend_from_slice(&zip.header(payload)));
    Envelope { head, tail: zip.finish() }
}

/// An extra field of its own kind whose only purpose is its length.
fn pad_field(padding: u64) -> Vec<u8> {
    let padding = u16::try_from(padding).unwrap_or(0);
    let mut field = b"FB".to_vec();
    field.extend(padding.to_le_bytes());
    field.resize(4 + usize::from(padding), b'Z');
    field
}

/// The zip64 extra field: the sizes and the header's offset, those that do not fit 32 bits.
fn wide_field(bytes: u64, header_at: u64) -> Vec<u8> {
    let sizes = if bytes >= u64::from(IN_EXTRA) { vec![bytes, bytes] } else { Vec::new() };
    let offset = (header_at >= u64::from(IN_EXTRA)).then_some(header_at);
    let values: Vec<u8> = sizes.into_iter().chain(offset).flat_map(u64::to_le_bytes).collect();
    if values.is_empty() {
        return Vec::new();
    }
    let mut field = vec![1, 0];
    field.extend(short(values.len()));
    field.extend(values);
    field
}

fn narrow(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(IN_EXTRA)
}

fn short(length: usize) -> [u8; 2] {
    u16::try_from(length).unwrap_or(u16::MAX).to_le_bytes()
}

/// Version needed, flags (names are UTF-8), method stored, time, date, checksum and sizes: the same in both headers.
fn common(out: &mut Vec<u8>, bytes: u64, crc32: u32) {
    let version: u16 = if bytes >= u64::from(IN_EXTRA) { 45 } else { 20 };
    for field in [version, 0x0800, 0, 0, DOS_DATE] {
        out.extend(field.to_le_bytes());
    }
    out.extend(crc32.to_le_bytes());
    out.extend(narrow(bytes).to_le_bytes());
    out.extend(narrow(bytes).to_le_bytes());
}

fn local(out: &mut Vec<u8>, name: &str, bytes: u64, crc32: u32, padding: &[u8]) {
    let wide = wide_field(bytes, 0);
    out.extend(LOCAL.to_le_bytes());
    common(out, bytes, crc32);
    out.extend(short(name.len()));
    out.extend(short(wide.len() + padding.len()));
    out.extend(name.as_bytes());
    out.extend(wide);
    out.extend(padding);
}

fn directory_entry(out: &mut Vec<u8>, name: &str, bytes: u64, crc32: u32, header_at: u64) {
    let wide = wide_field(bytes, header_at);
    out.extend(CENTRAL.to_le_bytes());
    out.extend(45u16.to_le_bytes());
    common(out, bytes, crc32);
    out.extend(short(name.len()));
    out.extend(short(wide.len()));
    // Comment length, disk, internal attributes (2 bytes each), external attributes (4 bytes).
    out.extend([0; 10]);
    out.extend(narrow(header_at).to_le_bytes());
    out.extend(name.as_bytes());
    out.extend(wide);
}

fn end(central: Vec<u8>, count: u64, directory_at: u64) -> Vec<u8> {
    let directory_bytes = central.len() as u64;
    let mut out = central;
    if directory_at >= u64::from(IN_EXTRA) || count >= u64::from(u16::MAX) {
        let end64_at = directory_at + directory_bytes;
        out.extend(END64.to_le_bytes());
        out.extend(44u64.to_le_bytes());
        out.extend([45, 0, 45, 0]);
        out.extend([0; 8]);
        for field in [count, count, directory_bytes, directory_at] {
            out.extend(field.to_le_bytes());
        }
        out.extend(LOCATOR64.to_le_bytes());
        out.extend([0; 4]);
        out.extend(end64_at.to_le_bytes());
        out.extend(1u32.to_le_bytes());
    }
    out.extend(END.to_le_bytes());
    out.extend([0; 4]);
    let count = u16::try_from(count).unwrap_or(u16::MAX);
    out.extend(count.to_le_bytes());
    out.extend(count.to_le_bytes());
    out.extend(narrow(directory_bytes).to_le_bytes());
    out.extend(narrow(directory_at).to_le_bytes());
    out.extend([0; 2]);
    out
}

/// Where the central directory is, or where the zip64 end record that knows it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DirectoryEnd {
    Directory(DirectorySpan),
    /// Read `END64_BYTES` there and ask `parse_end64`.
    Wide {
        at: u64,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DirectorySpan {
    pub(super) at: u64,
    pub(super) bytes: u64,
    pub(super) records: u64,
}

/// Bytes of the zip64 end record that are read.
pub(super) const END64_BYTES: usize = 56;

/// Finds the end record in the last bytes of an item; `tail_at` is where they begin in it.
pub(super) fn parse_end(tail: &[u8], tail_at: u64) -> Result<DirectoryEnd, ZipError> {
    let last = tail.len().checked_sub(END_BYTES).ok_or(ZipError::NoEnd)?;
    let found = (0..=last).rev().find(|&at| u32_at(tail, at) == Some(END)).ok_or(ZipError::NoEnd)?;
    let damaged = ZipError::Header { at: tail_at + found as u64 };
    let record = Numbers(&tail[found..]);
    let wide = found.checked_sub(20).filter(|&at| u32_at(tail, at) == Some(LOCATOR64));
    if let Some(locator) = wide {
        let at = Numbers(&tail[locator..]).u64(8).ok_or(damaged)?;
        return Ok(DirectoryEnd::Wide { at });
    }
    let span = DirectorySpan {
        at: u64::from(record.u32(16).ok_or_else(|| damaged.clone())?),
        bytes: u64::from(record.u32(12).ok_or_else(|| damaged.clone())?),
        records: u64::from(record.u16(10).ok_or_else(|| damaged.clone())?),
    };
    check_span(span, tail_at + found as u64).map(DirectoryEnd::Directory).ok_or(damaged)
}

/// Reads the zip64 end record found at `at`.
pub(super) fn parse_end64(bytes: &[u8], at: u64) -> Result<DirectorySpan, ZipError> {
    let record = Numbers(bytes);
    let span = (record.u32(0) == Some(END64))
        .then(|| Some(DirectorySpan { records: record.u64(32)?, bytes: record.u64(40)?, at: record.u64(48)? }))
        .flatten();
    span.and_then(|span| check_span(span, at)).ok_or(ZipError::Header { at })
}

/// A directory lies before the end record and is no larger than its records can be.
fn check_span(span: DirectorySpan, end_at: u64) -> Option<DirectorySpan> {
    let fits = span.at.checked_add(span.bytes)? <= end_at && span.records <= RECORDS_MAX;
    (fits && span.bytes <= RECORDS_MAX * 1024).then_some(span)
}

/// A record of a zip that is in memory as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Path in the zip.
    pub name: String,
    /// Where its bytes are.
    pub at: Range<usize>,
    pub crc32: u32,
}

impl Record {
    /// Whether the bytes of the zip's record are those that were written.
    pub fn is_whole(&self, zip: &[u8]) -> bool {
        crc32fast::hash(&zip[self.at.clone()]) == self.crc32
    }
}

/// The records of the zip that `bytes` are, in the order of its directory.
pub fn records(bytes: &[u8]) -> Result<Vec<Record>, ZipError> {
    let tail_at = bytes.len().saturating_sub(END_SEARCH_BYTES_MAX);
    let whole = |at: u64, length: u64| {
        let range = usize::try_from(at).ok()?..usize::try_from(at.checked_add(length)?).ok()?;
        Some((bytes.get(range.clone())?, range))
    };
    let cut = |at: u64| move || ZipError::Header { at };
    let span = match parse_end(&bytes[tail_at..], tail_at as u64)? {
        DirectoryEnd::Directory(span) => span,
        DirectoryEnd::Wide { at } => parse_end64(whole(at, END64_BYTES as u64).ok_or_else(cut(at))?.0, at)?,
    };
    let directory = whole(span.at, span.bytes).ok_or_else(cut(span.at))?.0;
    let found = parse_directory(directory, span)?.into_iter().map(|entry| {
        let damaged = cut(entry.header_at);
        let header = whole(entry.header_at, LOCAL_BYTES as u64).ok_or_else(damaged)?.0;
        let at = entry.header_at + parse_local(header, entry.header_at)?;
        let at = whole(at, entry.bytes).ok_or_else(damaged)?.1;
        Ok(Record { name: entry.name, at, crc32: entry.crc32 })
    });
    found.collect()
}

/// One record as the central directory tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DirectoryEntry {
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) crc32: u32,
    pub(super) header_at: u64,
}

/// Reads a central directory. Compressed records are errors.
pub(super) fn parse_directory(bytes: &[u8], span: DirectorySpan) -> Result<Vec<DirectoryEntry>, ZipError> {
    let mut entries = Vec::new();
    let mut at = 0;
    for _ in 0..span.records {
        let damaged = ZipError::Header { at: span.at + at as u64 };
        let rest = bytes.get(at..).ok_or_else(|| damaged.clone())?;
        let (entry, method, length) = parse_entry(&Numbers(rest)).ok_or(damaged)?;
        if method != 0 || entry.1 != entry.0.bytes {
            return Err(ZipError::Compressed { name: entry.0.name, method });
        }
        entries.push(entry.0);
        at += length;
    }
    Ok(entries)
}

/// The entry with its compressed size, its method, and its length in the directory.
fn parse_entry(record: &Numbers<'_>) -> Option<((DirectoryEntry, u64), u16, usize)> {
    if record.u32(0)? != CENTRAL {
        return None;
    }
    let [name, extra, comment] = [record.u16(28)?, record.u16(30)?, record.u16(32)?].map(usize::from);
    let text = String::from_utf8(record.0.get(46..46 + name)?.to_vec()).ok()?;
    let mut wide = wide_values(record.0.get(46 + name..46 + name + extra)?).into_iter();
    let mut widen = |narrow: u32| if narrow == IN_EXTRA { wide.next() } else { Some(u64::from(narrow)) };
    let bytes = widen(record.u32(24)?)?;
    let packed = widen(record.u32(20)?)?;
    let header_at = widen(record.u32(42)?)?;
    let entry = DirectoryEntry { name: text, bytes, crc32: record.u32(16)?, header_at };
    Some(((entry, packed), record.u16(10)?, 46 + name + extra + comment))
}

/// The 64-bit values of the zip64 extra field, in their order: size, packed size, header offset, those that are needed.
fn wide_values(extra: &[u8]) -> Vec<u64> {
    let mut at = 0;
    let record = Numbers(extra);
    while let (Some(kind), Some(length)) = (record.u16(at), record.u16(at + 2)) {
        let length = usize::from(length);
        if kind == 1 {
            let end = (at + 4 + length).min(extra.len());
            return (at + 4..end).step_by(8).filter_map(|place| record.u64(place)).collect();
        }
        at += 4 + length;
    }
    Vec::new()
}

/// Bytes from the beginning of a local header to the data behind it.
pub(super) fn parse_local(header: &[u8], at: u64) -> Result<u64, ZipError> {
    let record = Numbers(header);
    let length = (record.u32(0) == Some(LOCAL)).then(|| Some((record.u16(26)?, record.u16(28)?))).flatten();
    let (name, extra) = length.ok_or(ZipError::Header { at })?;
    Ok(LOCAL_BYTES as u64 + u64::from(name) + u64::from(extra))
}

struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    fn array<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.0.get(at..at.checked_add(N)?)?.try_into().ok()
    }

    fn u16(&self, at: usize) -> Option<u16> {
        self.array(at).map(u16::from_le_bytes)
    }

    fn u32(&self, at: usize) -> Option<u32> {
        self.array(at).map(u32::from_le_bytes)
    }

    fn u64(&self, at: usize) -> Option<u64> {
        self.array(at).map(u64::from_le_bytes)
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Numbers(bytes).u32(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::mmap::ReadMap;
    use std::{fs::File, os::unix::fs::FileExt};

    #[test]
    fn what_lies_beyond_four_gigabytes_is_found() {
        let big = 5 << 30;
        let mut zip = Builder::new(0);
        let head = zip.header(&RecordPayload { name: "big", bytes: big, crc32: 0, align: 64 });
        let small = zip.small("small", b"behind it");
        let tail = zip.finish();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("zip");
        let file = File::create(&path).unwrap();
        // What is not written takes no room.
        let behind = head.len() as u64 + big;
        for (at, bytes) in [(0, &head), (behind, &small), (behind + small.len() as u64, &tail)] {
            file.write_all_at(bytes, at).unwrap();
        }
        let map = ReadMap::open(&path).unwrap();
        let found = records(map.bytes()).unwrap();
        assert_eq!((found[0].at.len() as u64, found[0].at.start % 64), (big, 0));
        assert!(found[1].is_whole(map.bytes()));
        assert_eq!(&map.bytes()[found[1].at.clone()], b"behind it");
    }

    #[test]
    fn more_records_than_sixteen_bits_count_are_found() {
        let mut zip = Builder::new(0);
        let mut bytes: Vec<u8> = (0..65_535).flat_map(|number| zip.small(&number.to_string(), b"x")).collect();
        bytes.extend(zip.finish());
        let found = records(&bytes).unwrap();
        assert_eq!(found.len(), 65_535);
        assert!(found[65_534].name == "65534" && found[65_534].is_whole(&bytes));
    }
}
