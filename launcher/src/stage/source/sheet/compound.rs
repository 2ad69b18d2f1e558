//! Old workbooks (.xls): a file system of sectors in a file, in it a stream of records. Chains that run in a circle, tables that are said
//! to be larger than the file, and cells far apart or of long shared texts are refused here, before the format's own reader follows them.
//!
//! Of the records those are looked at that the reader makes room for. What else is damaged is told by the reader.

use super::{
    grid::{CELLS_MAX, TEXT_BYTES_MAX},
    package::HINT,
};
use crate::stage::bound::BoundError;
use std::{collections::HashMap, path::Path};

/// What such a file begins with.
pub(super) const MAGIC: [u8; 8] = *b"\xD0\xCF\x11\xE0\xA1\xB1\x1A\xE1";
/// Bytes of a file, at most.
pub(super) const BYTES_MAX: u64 = 64 << 20;

/// Numbers from here on are no sectors.
const NO_SECTOR: u32 = 0xffff_fffa;
/// Bytes of an entry of the directory, of a small sector, and of the streams that are made of sectors, at least.
const ENTRY_BYTES: usize = 128;
const SMALL_BYTES: usize = 64;
const LARGE_STREAM_BYTES: u64 = 4096;
/// Cells that a sheet may say that it has: as many as fit the format.
const SAID_MAX: u64 = 1 << 24;
/// Names in formulas have so many bytes, at most, for each that stands for one.
const NAME_GROWTH: u64 = 64;
/// Bytes of the texts of formulas, at most.
const FORMULA_BYTES_MAX: u64 = 1 << 30;

/// Why a file is not handed to the reader.
#[derive(Debug)]
pub(super) enum Refusal {
    Damaged(&'static str),
    /// It is more than is read.
    Bound(BoundError),
}

type Result<T> = std::result::Result<T, Refusal>;

/// Looks at a workbook before its reader does.
pub(super) fn check(path: &Path, file: &[u8]) -> Result<()> {
    let volume = Volume::open(file)?;
    if volume.find("EncryptedPackage").is_some() {
        return Err(Refusal::Damaged("it is protected by a password; save it without one"));
    }
    let stream = volume.find("Workbook").or_else(|| volume.find("Book"));
    let stream = stream.ok_or(Refusal::Damaged("it has no workbook in it"))?;
    let book = volume.stream(stream)?;
    if (book.len() as u64) < stream.bytes {
        return Err(Refusal::Damaged("it ends early: its workbook has fewer sectors than bytes"));
    }
    Look { path, book: &book }.sheets()
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

const CUT: Refusal = Refusal::Damaged("it ends early: a sector lies behind its end");
const CIRCLE: Refusal = Refusal::Damaged("a chain of its sectors runs in a circle");

/// Where a stream lies.
#[derive(Debug, Clone, Copy)]
struct Stream {
    first: u32,
    bytes: u64,
}

/// The file system.
struct Volume<'a> {
    file: &'a [u8],
    sector_bytes: usize,
    /// The sector behind each; of small ones, too.
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
            _ => return Err(Refusal::Damaged("its sectors are of no size that is known")),
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

    /// A sector; the last one may be cut.
    fn sector(&self, number: u32) -> Result<&'a [u8]> {
        let begin = (number as usize + 1).checked_mul(self.sector_bytes).ok_or(CUT)?;
        let end = (begin + self.sector_bytes).min(self.file.len());
        self.file.get(begin..end).filter(|bytes| !bytes.is_empty()).ok_or(CUT)
    }

    /// The table of what follows each sector: its own sectors are listed in the header, and in a chain that begins at `more`.
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
            return Err(Refusal::Damaged("its table of sectors is said to be larger than the file"));
        }
        let parts = listed.into_iter().map(|number| self.sector(number)).collect::<Result<Vec<_>>>()?;
        Ok(parts.into_iter().flat_map(numbers).collect())
    }

    /// The bytes of a chain of sectors, as many as there are, `bytes_max` at most.
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

/// The parts of a chain, one behind the other, as many as these bytes take.
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

/// An entry of the directory.
fn named(entry: &[u8], sector_bytes: usize) -> (String, Stream) {
    let letters: Vec<u16> = entry[..64].as_chunks().0.iter().map(|bytes| u16::from_le_bytes(*bytes)).collect();
    let name = String::from_utf16_lossy(letters.split(|letter| *letter == 0).next().unwrap_or_default());
    let low = u64::from(u32_at(entry, 120).unwrap_or(0));
    let high = if sector_bytes > 512 { u64::from(u32_at(entry, 124).unwrap_or(0)) } else { 0 };
    (name, Stream { first: u32_at(entry, 116).unwrap_or(NO_SECTOR), bytes: low | high << 32 })
}

/// A record, and where the next one begins.
struct Record<'a> {
    kind: u16,
    data: &'a [u8],
    end: usize,
}

/// The records of a workbook being looked at.
struct Look<'a> {
    path: &'a Path,
    book: &'a [u8],
}

/// Cells that lie in a rectangle.
#[derive(Debug, Default, Clone, Copy)]
struct Extent {
    corners: Option<[(u32, u32); 2]>,
}

impl Extent {
    fn add(&mut self, (row, column): (u32, u32)) {
        let [from, to] = self.corners.unwrap_or([(row, column); 2]);
        self.corners = Some([(from.0.min(row), from.1.min(column)), (to.0.max(row), to.1.max(column))]);
    }

    fn area(self) -> u64 {
        self.corners.map_or(0, |[from, to]| u64::from(to.0 - from.0 + 1) * u64::from(to.1 - from.1 + 1))
    }
}

/// What all sheets of a workbook take.
#[derive(Debug, Default)]
struct Taken {
    cells: u64,
    /// Those that a sheet says that it has.
    said: u64,
    text_bytes: u64,
    formula_bytes: u64,
}

impl Look<'_> {
    fn record(&self, at: usize) -> Option<Record<'_>> {
        let kind = u16_at(self.book, at)?;
        let length = usize::from(u16_at(self.book, at + 2)?);
        let end = at + 4 + length;
        Some(Record { kind, data: self.book.get(at + 4..end)?, end })
    }

    /// The records from a place on, up to the mark of the end. A sheet may hold others, such as charts, each with its own mark.
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
        let mut taken = Taken::default();
        for record in self.records(0, false) {
            match record.kind {
                0x00fc => texts = self.texts(&record),
                0x0085 => places.extend(u32_at(record.data, 0)),
                _ => {}
            }
        }
        // A sheet that several names stand for is read for each.
        let mut known: HashMap<u32, Taken> = HashMap::new();
        for place in places {
            let own = known.entry(place).or_insert_with(|| self.sheet(place as usize, &texts));
            taken.cells = taken.cells.saturating_add(own.cells);
            taken.said = taken.said.max(own.said);
            taken.text_bytes = taken.text_bytes.saturating_add(own.text_bytes);
            taken.formula_bytes = taken.formula_bytes.saturating_add(own.formula_bytes.saturating_mul(NAME_GROWTH));
        }
        self.bound("cells, as one says", taken.said, SAID_MAX)?;
        self.bound("cells, empty ones between others counted", taken.cells, CELLS_MAX)?;
        self.bound("bytes of text in the cells", taken.text_bytes, TEXT_BYTES_MAX)?;
        self.bound("bytes of formulas", taken.formula_bytes, FORMULA_BYTES_MAX)
    }

    fn bound(&self, what: &str, found: u64, most: u64) -> Result<()> {
        if found <= most {
            return Ok(());
        }
        Err(Refusal::Bound(BoundError::new(
            self.path,
            format!("sheets of {found} {what}"),
            format!("at most {most}"),
            HINT,
        )))
    }

    /// What the sheet that begins at a place takes.
    fn sheet(&self, at: usize, texts: &[u64]) -> Taken {
        let mut taken = Taken::default();
        let mut cells = Extent::default();
        let mut formulas = Extent::default();
        for Record { kind, data, .. } in self.records(at, true) {
            let place = u16_at(data, 0).zip(u16_at(data, 2)).map(|(row, column)| (row.into(), column.into()));
            let Some((row, column)) = place else { continue };
            match kind {
                0x0200 => taken.said = dimensions(data),
                0x00bd => {
                    let last = data.len().checked_sub(2).and_then(|at| u16_at(data, at)).unwrap_or(0);
                    cells.add((row, column));
                    cells.add((row, last.into()));
                }
                0x0006 => {
                    taken.formula_bytes += data.len() as u64;
                    cells.add((row, column));
                    formulas.add((row, column));
                }
                0x00fd => {
                    let text = u32_at(data, 6).and_then(|text| texts.get(text as usize));
                    taken.text_bytes = taken.text_bytes.saturating_add(text.copied().unwrap_or(0));
                    cells.add((row, column));
                }
                0x0203 | 0x0204 | 0x00d6 | 0x0205 | 0x027e => cells.add((row, column)),
                _ => {}
            }
        }
        taken.cells = cells.area().max(formulas.area());
        taken
    }

    /// Bytes of each shared text, as UTF-8 at most. They go on from record to record.
    fn texts(&self, first: &Record<'_>) -> Vec<u64> {
        let mut parts = vec![first.data.get(8..).unwrap_or_default()];
        let mut at = first.end;
        while let Some(record) = self.record(at).filter(|record| record.kind == 0x003c) {
            parts.push(record.data);
            at = record.end;
        }
        let mut bytes = Parts { parts: &parts, at: 0 };
        let mut lengths = Vec::new();
        while let Some(length) = bytes.text() {
            lengths.push(length);
        }
        lengths
    }
}

/// Cells that the reader makes room for because a sheet says so.
fn dimensions(data: &[u8]) -> u64 {
    let wide = data.len() > 10;
    let row = |at: usize| if wide { u32_at(data, 4 * at) } else { u16_at(data, 2 * at).map(u32::from) }.unwrap_or(0);
    let column = |at: usize| u16_at(data, if wide { 8 } else { 4 } + 2 * at).unwrap_or(0);
    let rows = u64::from(row(1).saturating_sub(row(0)));
    rows.saturating_mul(u64::from(column(1)))
}

/// Shared texts in the records that they go through.
struct Parts<'a> {
    parts: &'a [&'a [u8]],
    at: usize,
}

impl Parts<'_> {
    /// What is left of the record; the next one where nothing is.
    fn rest(&mut self) -> Option<&[u8]> {
        while self.at == self.parts.first()?.len() {
            self.parts = &self.parts[1..];
            self.at = 0;
        }
        Some(&self.parts[0][self.at..])
    }

    /// Passes over bytes, from record to record.
    fn skip(&mut self, mut bytes: usize) -> Option<()> {
        while bytes > 0 {
            let here = self.rest()?.len().min(bytes);
            self.at += here;
            bytes -= here;
        }
        Some(())
    }

    /// Passes over a text; how many bytes it has.
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
            let letters = left.min(here / if is_wide { 2 } else { 1 });
            self.at += letters * if is_wide { 2 } else { 1 };
            left -= letters;
            if left == 0 {
                break;
            }
            // The next record says anew how wide its letters are.
            self.parts = self.parts.get(1..)?;
            is_wide = self.parts.first()?.first()? & 1 > 0;
            self.at = 1;
        }
        self.skip(runs.checked_mul(4)?.checked_add(more)?)?;
        Some(3 * count as u64)
    }
}
