//! Old workbooks (.xls): a file system of sectors in a file, with a stream of records. Circular chains, tables that are declared larger
//! than the file, cells far apart and long shared texts are refused here, before calamine follows them.
//!
//! Only records for which calamine allocates memory are checked; it reports other damage itself.

use super::{
    grid::{CELLS_MAX, Extent, TEXT_BYTES_MAX},
    package::HINT,
};
use crate::stage::bound::BoundError;
use std::{collections::HashMap, path::Path};

pub(super) const MAGIC: [u8; 8] = *b"\xD0\xCF\x11\xE0\xA1\xB1\x1A\xE1";
pub(super) const BYTES_MAX: u64 = 64 << 20;

/// Smallest number that is not a sector.
const NO_SECTOR: u32 = 0xffff_fffa;
/// Bytes of a directory entry and of a small sector, and minimum bytes of a stream that is made of normal sectors.
const ENTRY_BYTES: usize = 128;
const SMALL_BYTES: usize = 64;
const LARGE_STREAM_BYTES: u64 = 4096;
/// Maximum declared cells of a sheet: as many as the format allows.
const DECLARED_MAX: u64 = 1 << 24;
/// Maximum growth of a formula when names are expanded, as a factor of its bytes.
const NAME_GROWTH: u64 = 64;
const FORMULA_BYTES_MAX: u64 = 1 << 30;

#[derive(Debug)]
pub(super) enum CompoundError {
    Damaged(&'static str),
    Bound(BoundError),
}

type Result<T> = std::result::Result<T, CompoundError>;

pub(super) fn check(path: &Path, file: &[u8]) -> Result<()> {
    let volume = Volume::open(file)?;
    if volume.find("EncryptedPackage").is_some() {
        return Err(CompoundError::Damaged("it is protected by a password; save it without one"));
    }
    let stream = volume.find("Workbook").or_else(|| volume.find("Book"));
    let stream = stream.ok_or(CompoundError::Damaged("it has no workbook in it"))?;
    let book = volume.stream(stream)?;
    if (book.len() as u64) < stream.bytes {
        return Err(CompoundError::Damaged("it ends early: its workbook has fewer sectors than bytes"));
    }
    WorkbookScan { path, book: &book }.sheets()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|found| u16::from_le_bytes(*found))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|found| u32::from_le_bytes(*found))
}

fn numbers(bytes: &[u8]) -> impl Iterator<Item = u32> + '_ {
    bytes.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes))
}

const CUT: CompoundError = CompoundError::Damaged("it ends early: a sector lies behind its end");
const CIRCLE: CompoundError = CompoundError::Damaged("a chain of its sectors runs in a circle");

#[derive(Debug, Clone, Copy)]
struct Stream {
    first: u32,
    bytes: u64,
}

struct Volume<'a> {
    file: &'a [u8],
    sector_bytes: usize,
    /// Next sector of each sector in its chain.
    next: Vec<u32>,
    next_small: Vec<u32>,
    small: Vec<u8>,
    directory: Vec<(String, Stream)>,
}

impl<'a> Volume<'a> {
    fn open(file: &'a [u8]) -> Result<Self> {
        let field = |at| u32_at(file, at).ok_or(CUT);
        let sector_bytes = match u16_at(file, 30) {
            Some(9) => 512,
            Some(12) => 4096,
            _ => return Err(CompoundError::Damaged("its sectors are of no size that is known")),
        };
        let (next, next_small, small, directory) = Default::default();
        let mut volume = Self { file, sector_bytes, next, next_small, small, directory };
        volume.next = volume.table(field(68)?)?;
        let directory = volume.chain(field(48)?, u64::MAX)?;
        volume.directory = directory.chunks_exact(ENTRY_BYTES).map(|entry| named(entry, sector_bytes)).collect();
        if field(64)? > 0
            && let Some((_, root)) = volume.directory.first().cloned()
        {
            volume.small = volume.chain(root.first, root.bytes)?;
            let bytes = u64::from(field(64)?) * sector_bytes as u64;
            volume.next_small = numbers(&volume.chain(field(60)?, bytes)?).collect();
        }
        Ok(volume)
    }

    fn sectors(&self) -> usize {
        self.file.len() / self.sector_bytes
    }

    /// Returns a sector; the last one may be shorter.
    fn sector(&self, number: u32) -> Result<&'a [u8]> {
        let begin = (number as usize + 1).checked_mul(self.sector_bytes).ok_or(CUT)?;
        let end = (begin + self.sector_bytes).min(self.file.len());
        self.file.get(begin..end).filter(|bytes| !bytes.is_empty()).ok_or(CUT)
    }

    /// Reads the table of next sectors. Sectors of the table are listed in the header, and in a chain that begins at `more`.
    fn table(&self, more: u32) -> Result<Vec<u32>> {
        let mut listed: Vec<u32> = numbers(self.file.get(76..512).ok_or(CUT)?).collect();
        let mut at = more;
        let mut steps = 0;
        while at < NO_SECTOR {
            steps += 1;
            if steps > self.sectors() {
                return Err(CIRCLE);
            }
            listed.extend(numbers(self.sector(at)?));
            at = listed.pop().ok_or(CUT)?;
        }
        listed.retain(|number| *number < NO_SECTOR);
        if listed.len() > self.sectors() {
            return Err(CompoundError::Damaged("its table of sectors is declared to be larger than the file"));
        }
        let parts = listed.into_iter().map(|number| self.sector(number)).collect::<Result<Vec<_>>>()?;
        Ok(parts.into_iter().flat_map(numbers).collect())
    }

    /// Returns the bytes of a chain of sectors, at most `bytes_max`.
    fn chain(&self, first: u32, bytes_max: u64) -> Result<Vec<u8>> {
        let sector = |number| self.sector(number);
        follow(first, &self.next, bytes_max, &sector)
    }

    fn stream(&self, Stream { first, bytes }: Stream) -> Result<Vec<u8>> {
        if bytes >= LARGE_STREAM_BYTES {
            return self.chain(first, bytes);
        }
        let small = |number: u32| {
            let begin = (number as usize).saturating_mul(SMALL_BYTES);
            self.small
                .get(begin..(begin + SMALL_BYTES).min(self.small.len()))
                .filter(|part| !part.is_empty())
                .ok_or(CUT)
        };
        follow(first, &self.next_small, bytes, &small)
    }

    fn find(&self, name: &str) -> Option<Stream> {
        self.directory.iter().find(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, stream)| *stream)
    }
}

/// Concatenates the parts of a chain, at most `bytes_max` bytes.
fn follow<'b>(first: u32, next: &[u32], bytes_max: u64, part: &dyn Fn(u32) -> Result<&'b [u8]>) -> Result<Vec<u8>> {
    let mut at = first;
    let mut seen = vec![false; next.len()];
    let mut bytes = Vec::new();
    while at < NO_SECTOR && (bytes.len() as u64) < bytes_max {
        let place = at as usize;
        let follows = *next.get(place).ok_or(CUT)?;
        if std::mem::replace(&mut seen[place], true) {
            return Err(CIRCLE);
        }
        bytes.extend_from_slice(part(at)?);
        at = follows;
    }
    bytes.truncate(usize::try_from(bytes_max).unwrap_or(usize::MAX));
    Ok(bytes)
}

/// Parses a directory entry.
fn named(entry: &[u8], sector_bytes: usize) -> (String, Stream) {
    let units: Vec<u16> = entry[..64].as_chunks().0.iter().map(|bytes| u16::from_le_bytes(*bytes)).collect();
    let name = String::from_utf16_lossy(units.split(|unit| *unit == 0).next().unwrap_or_default());
    let low = u64::from(u32_at(entry, 120).unwrap_or(0));
    let high = if sector_bytes > 512 { u64::from(u32_at(entry, 124).unwrap_or(0)) } else { 0 };
    (name, Stream { first: u32_at(entry, 116).unwrap_or(NO_SECTOR), bytes: low | high << 32 })
}

/// A record, and the offset of the next one.
struct Record<'a> {
    kind: u16,
    data: &'a [u8],
    end: usize,
}

struct WorkbookScan<'a> {
    path: &'a Path,
    book: &'a [u8],
}

#[derive(Debug, Default)]
struct SheetUsage {
    cells: u64,
    /// Cells that a sheet declares.
    declared: u64,
    text_bytes: u64,
    formula_bytes: u64,
}

impl WorkbookScan<'_> {
    fn record(&self, at: usize) -> Option<Record<'_>> {
        let kind = u16_at(self.book, at)?;
        let length = usize::from(u16_at(self.book, at + 2)?);
        let end = at + 4 + length;
        Some(Record { kind, data: self.book.get(at + 4..end)?, end })
    }

    /// Iterates over the records from `at` up to the end record. A sheet may contain others, such as charts, with their own end records.
    fn records(&self, mut at: usize, nests: bool) -> impl Iterator<Item = Record<'_>> {
        let mut depth = 0;
        std::iter::from_fn(move || {
            let record = self.record(at)?;
            at = record.end;
            match record.kind {
                0x0809 if nests => depth += 1,
                0x000a if depth <= 1 => return None,
                0x000a => depth -= 1,
                _ => {}
            }
            Some(record)
        })
    }

    fn sheets(&self) -> Result<()> {
        let mut texts = Vec::new();
        let mut places = Vec::new();
        let mut usage = SheetUsage::default();
        for record in self.records(0, false) {
            match record.kind {
                0x00fc => texts = self.texts(&record),
                0x0085 => places.extend(u32_at(record.data, 0)),
                _ => {}
            }
        }
        // A sheet with several names is read once for each name.
        let mut known: HashMap<u32, SheetUsage> = HashMap::new();
        for place in places {
            let own = known.entry(place).or_insert_with(|| self.sheet(place as usize, &texts));
            usage.cells = usage.cells.saturating_add(own.cells);
            usage.declared = usage.declared.max(own.declared);
            usage.text_bytes = usage.text_bytes.saturating_add(own.text_bytes);
            usage.formula_bytes = usage.formula_bytes.saturating_add(own.formula_bytes.saturating_mul(NAME_GROWTH));
        }
        self.bound("cells, as one says", usage.declared, DECLARED_MAX)?;
        self.bound("cells, empty ones between others counted", usage.cells, CELLS_MAX)?;
        self.bound("bytes of text in the cells", usage.text_bytes, TEXT_BYTES_MAX)?;
        self.bound("bytes of formulas", usage.formula_bytes, FORMULA_BYTES_MAX)
    }

    fn bound(&self, what: &str, found: u64, most: u64) -> Result<()> {
        if found <= most {
            return Ok(());
        }
        Err(CompoundError::Bound(BoundError::new(
            self.path,
            format!("sheets of {found} {what}"),
            format!("at most {most}"),
            HINT,
        )))
    }

    fn sheet(&self, at: usize, texts: &[u64]) -> SheetUsage {
        let mut usage = SheetUsage::default();
        let mut cells = Extent::default();
        let mut formulas = Extent::default();
        for Record { kind, data, .. } in self.records(at, true) {
            let place = u16_at(data, 0).zip(u16_at(data, 2)).map(|(row, column)| (row.into(), column.into()));
            let Some((row, column)) = place else { continue };
            match kind {
                0x0200 => usage.declared = dimensions(data),
                0x00bd => {
                    let last = data.len().checked_sub(2).and_then(|at| u16_at(data, at)).unwrap_or(0);
                    cells.add(row, column);
                    cells.add(row, last.into());
                }
                0x0006 => {
                    usage.formula_bytes += data.len() as u64;
                    cells.add(row, column);
                    formulas.add(row, column);
                }
                0x00fd => {
                    let text = u32_at(data, 6).and_then(|text| texts.get(text as usize));
                    usage.text_bytes = usage.text_bytes.saturating_add(text.copied().unwrap_or(0));
                    cells.add(row, column);
                }
                0x0203 | 0x0204 | 0x00d6 | 0x0205 | 0x027e => cells.add(row, column),
                _ => {}
            }
        }
        usage.cells = cells.area().max(formulas.area());
        usage
    }

    /// Returns the maximum UTF-8 bytes of each shared text; texts continue across records.
    fn texts(&self, first: &Record<'_>) -> Vec<u64> {
        let mut parts = vec![first.data.get(8..).unwrap_or_default()];
        let mut at = first.end;
        while let Some(record) = self.record(at).filter(|record| record.kind == 0x003c) {
            parts.push(record.data);
            at = record.end;
        }
        let mut bytes = SharedStrings { parts: &parts, at: 0 };
        let mut lengths = Vec::new();
        while let Some(length) = bytes.text() {
            lengths.push(length);
        }
        lengths
    }
}

/// Returns the number of cells that calamine allocates for a dimensions record.
fn dimensions(data: &[u8]) -> u64 {
    let wide = data.len() > 10;
    let row = |at: usize| if wide { u32_at(data, 4 * at) } else { u16_at(data, 2 * at).map(u32::from) }.unwrap_or(0);
    let column = |at: usize| u16_at(data, if wide { 8 } else { 4 } + 2 * at).unwrap_or(0);
    let rows = u64::from(row(1).saturating_sub(row(0)));
    rows.saturating_mul(u64::from(column(1)))
}

struct SharedStrings<'a> {
    parts: &'a [&'a [u8]],
    at: usize,
}

impl SharedStrings<'_> {
    fn rest(&mut self) -> Option<&[u8]> {
        while self.at == self.parts.first()?.len() {
            self.parts = &self.parts[1..];
            self.at = 0;
        }
        Some(&self.parts[0][self.at..])
    }

    fn skip(&mut self, mut bytes: usize) -> Option<()> {
        while bytes > 0 {
            let here = self.rest()?.len().min(bytes);
            self.at += here;
            bytes -= here;
        }
        Some(())
    }

    /// Skips a text; returns its maximum UTF-8 bytes.
    fn text(&mut self) -> Option<u64> {
        let rest = self.rest()?;
        let count = usize::from(u16_at(rest, 0)?);
        let flags = *rest.get(2)?;
        let mut at = 3;
        let runs = if flags & 8 > 0 { usize::from(u16_at(rest, at)?) } else { 0 };
        at += if flags & 8 > 0 { 2 } else { 0 };
        let more = if flags & 4 > 0 { u32_at(rest, at)? as usize } else { 0 };
        at += if flags & 4 > 0 { 4 } else { 0 };
        self.at += at;
        let mut left = count;
        let mut is_wide = flags & 1 > 0;
        loop {
            let here = self.parts.first()?.len().saturating_sub(self.at);
            let characters = left.min(here / if is_wide { 2 } else { 1 });
            self.at += characters * if is_wide { 2 } else { 1 };
            left -= characters;
            if left == 0 {
                break;
            }
            // The next record states the width of its characters again.
            self.parts = self.parts.get(1..)?;
            is_wide = self.parts.first()?.first()? & 1 > 0;
            self.at = 1;
        }
        self.skip(runs.checked_mul(4)?.checked_add(more)?)?;
        Some(3 * count as u64)
    }
}
