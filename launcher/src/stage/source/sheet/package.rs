//! Workbooks that are zips: what their parts unpack to and what they hold, before the format's own reader makes room for it.
//!
//! The reader of workbooks takes what a part says of itself (`uniqueCount`), holds each element whole, and keeps all shared texts and
//! styles. Here each part is read once as a stream, by the same rules, and refused where that would be more than is meant.

use super::grid::CELLS_MAX;
use crate::stage::bound::BoundError;
use quick_xml::{
    Reader,
    events::{BytesStart, Event},
};
use std::{
    cell::Cell,
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::Path,
};
use zip::ZipArchive;

/// Bytes that all parts that are read unpack to, at most.
const UNPACKED_BYTES_MAX: u64 = 1 << 30;
/// Bytes of one element, at most; a cell holds 32,767 characters.
const ELEMENT_BYTES_MAX: u64 = 4 << 20;
/// Texts that cells share, at most, and their bytes with the elements around them.
const STRINGS_MAX: u64 = CELLS_MAX;
const STRING_BYTES_MAX: u64 = 128 << 20;
/// Elements of other kinds that the reader keeps, at most: formats, names, sheets.
const KEPT_MAX: u64 = 200_000;
/// Bytes of formats, at most: each has its own copy of a font and a code.
const FORMAT_BYTES_MAX: u64 = 256 << 20;
/// Parts, at most.
const PARTS_MAX: usize = 10_000;
/// Bytes of the parts of an .xlsb that are kept, at most.
const BINARY_BYTES_MAX: u64 = 16 << 20;
/// The number of a record of an .xlsb that is a shared text.
const SHARED_STRING: u32 = 0x13;
/// What to do about a workbook that is too large.
pub(super) const HINT: &str = "save the sheet as CSV or Parquet";

/// An open zip.
pub(super) type Archive = ZipArchive<BufReader<File>>;

/// Workbooks that are zips.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Xlsx,
    Xlsb,
    Ods,
}

impl Kind {
    /// By the parts that only one of them has.
    pub(super) fn of(archive: &Archive) -> Self {
        let has = |wanted: &str| archive.file_names().flatten().any(|name| name.eq_ignore_ascii_case(wanted));
        if has("content.xml") {
            Self::Ods
        } else if has("xl/workbook.bin") {
            Self::Xlsb
        } else {
            Self::Xlsx
        }
    }
}

/// What may still be unpacked: in all, and before whoever reads looks at what came.
#[derive(Debug)]
pub(super) struct Allowance {
    all: Cell<u64>,
    now: Cell<u64>,
    /// What was more than there may be.
    exceeded: Cell<Option<&'static str>>,
}

impl Allowance {
    pub(super) fn new() -> Self {
        Self { all: Cell::new(UNPACKED_BYTES_MAX), now: Cell::new(ELEMENT_BYTES_MAX), exceeded: Cell::new(None) }
    }

    /// What came was looked at.
    pub(super) fn refill(&self) {
        self.now.set(ELEMENT_BYTES_MAX);
    }

    /// The refusal of a part, where it was too large.
    pub(super) fn refusal(&self, path: &Path, part: &str) -> Option<BoundError> {
        let bytes_max = match self.exceeded.get()? {
            ELEMENT => ELEMENT_BYTES_MAX,
            _ => UNPACKED_BYTES_MAX,
        };
        let found = format!("{} in its part {part:?}", self.exceeded.get()?);
        Some(BoundError::new(path, found, format!("at most {bytes_max} bytes"), HINT))
    }
}

const ELEMENT: &str = "an element of more bytes than a cell can have";
const UNPACKED: &str = "parts that unpack to more than any sheet needs, up to this one,";

/// A part being unpacked, as far as is allowed.
#[derive(Debug)]
pub(super) struct Metered<'a, R> {
    inner: R,
    allowance: &'a Allowance,
}

impl<'a, R: Read> Metered<'a, R> {
    pub(super) fn new(inner: R, allowance: &'a Allowance) -> Self {
        Self { inner, allowance }
    }
}

impl<R: Read> Read for Metered<'_, R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let Allowance { all, now, exceeded } = self.allowance;
        let left = all.get().min(now.get());
        if left == 0 && !out.is_empty() {
            // Only one more byte is too much.
            if self.inner.read(&mut [0])? == 0 {
                return Ok(0);
            }
            exceeded.set(Some(if all.get() == 0 { UNPACKED } else { ELEMENT }));
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is too large"));
        }
        let most = usize::try_from(left).map_or(out.len(), |left| left.min(out.len()));
        let count = self.inner.read(&mut out[..most])?;
        all.set(all.get() - count as u64);
        now.set(now.get() - count as u64);
        Ok(count)
    }
}

/// A reader of XML with the rules of the reader of workbooks: what is an error to it is one here.
pub(super) fn xml<R: BufRead>(input: R) -> Reader<R> {
    let mut reader = Reader::from_reader(input);
    let config = reader.config_mut();
    config.check_end_names = false;
    config.check_comments = false;
    config.expand_empty_elements = true;
    reader
}

/// Refuses a workbook whose reader would take more memory than a sheet may.
pub(super) fn check(path: &Path, archive: &mut Archive, kind: Kind) -> Result<(), BoundError> {
    if archive.len() > PARTS_MAX {
        let found = format!("{} parts", archive.len());
        return Err(BoundError::new(path, found, format!("at most {PARTS_MAX}"), HINT));
    }
    let allowance = Allowance::new();
    let mut kept = Kept::default();
    for index in 0..archive.len() {
        // What cannot be unpacked is told by the reader, where it needs it.
        let Ok(entry) = archive.by_index(index) else { continue };
        let Ok(part) = entry.name().map(|name| name.to_ascii_lowercase()) else { continue };
        let input = BufReader::new(Metered::new(entry, &allowance));
        let scan = Scan { path, part: &part, allowance: &allowance };
        if part.ends_with(".xml") || part.ends_with(".rels") {
            scan.xml(input, &mut kept)?;
        } else if kind == Kind::Xlsb && part.ends_with(".bin") {
            scan.binary(input)?;
        }
    }
    Ok(())
}

/// What the reader would keep of all parts.
#[derive(Debug, Default)]
struct Kept {
    strings: u64,
    string_bytes: u64,
    others: u64,
    formats: u64,
    /// The longest font or code of a format.
    longest: u64,
}

/// A part being looked at.
struct Scan<'a> {
    path: &'a Path,
    part: &'a str,
    allowance: &'a Allowance,
}

impl Scan<'_> {
    fn refused(&self, found: &str, most: u64) -> BoundError {
        BoundError::new(self.path, format!("{found} in its part {:?}", self.part), format!("at most {most}"), HINT)
    }

    fn xml(&self, input: impl BufRead, kept: &mut Kept) -> Result<(), BoundError> {
        let mut reader = xml(input);
        let mut buffer = Vec::new();
        // The element that is kept whole, and where it begins.
        let mut open: Option<(String, u64)> = None;
        loop {
            self.allowance.refill();
            buffer.clear();
            let event = reader.read_event_into(&mut buffer);
            let at = reader.buffer_position();
            match event {
                Ok(Event::Start(start)) => {
                    self.start(&start, kept)?;
                    let name = start.local_name();
                    if open.is_none() && is_whole(name.as_ref()) {
                        open = Some((name.as_ref().to_owned(), at));
                    }
                }
                Ok(Event::End(end)) => {
                    let name = end.local_name();
                    if let Some((_, begin)) = open.take_if(|(own, _)| own.as_str() == name.as_ref()) {
                        self.end(name.as_ref(), at - begin, kept)?;
                    }
                }
                Ok(Event::Eof) => return Ok(()),
                Ok(_) => {}
                // What is no XML is told by the reader, where it needs it.
                Err(_) => return self.allowance.refusal(self.path, self.part).map_or(Ok(()), Err),
            }
            if open.as_ref().is_some_and(|(_, begin)| at - begin > ELEMENT_BYTES_MAX) {
                return Err(self.refused("an element of more bytes than a cell can have", ELEMENT_BYTES_MAX));
            }
        }
    }

    /// An element begins.
    fn start(&self, start: &BytesStart<'_>, kept: &mut Kept) -> Result<(), BoundError> {
        match start.local_name().as_ref() {
            "sst" => {
                let mut attributes = start.attributes();
                attributes.with_checks(false);
                let said = attributes.flatten().filter(|one| one.key.as_ref() == "uniqueCount");
                let said = said.filter_map(|one| one.value.trim().parse::<u64>().ok()).max().unwrap_or(0);
                if said > STRINGS_MAX {
                    return Err(self.refused(&format!("uniqueCount={said}"), STRINGS_MAX));
                }
            }
            "si" => {
                kept.strings += 1;
                if kept.strings > STRINGS_MAX {
                    return Err(self.refused("more shared texts than cells", STRINGS_MAX));
                }
            }
            "xf" => {
                kept.formats += 1;
                kept.others += 1;
            }
            "Relationship" => self.relationship(start, kept)?,
            "numFmt" | "font" | "fill" | "border" | "sheet" | "definedName" => kept.others += 1,
            _ => {}
        }
        if kept.others > KEPT_MAX {
            return Err(self.refused("more formats, names and sheets than any workbook has", KEPT_MAX));
        }
        if kept.formats * kept.longest > FORMAT_BYTES_MAX {
            return Err(self.refused("formats that take too many bytes", FORMAT_BYTES_MAX));
        }
        Ok(())
    }

    /// Parts that are read must have names that say that they are XML, or they would not be looked at here.
    fn relationship(&self, start: &BytesStart<'_>, kept: &mut Kept) -> Result<(), BoundError> {
        kept.others += 1;
        let value = |key: &str| {
            let mut all = start.attributes();
            all.with_checks(false);
            all.flatten().filter(|one| one.key.as_ref() == key).map(|one| one.value.to_ascii_lowercase()).last()
        };
        let kind = value("Type").unwrap_or_default();
        let target = value("Target").unwrap_or_default();
        let is_read =
            ["worksheet", "chartsheet", "dialogsheet", "officedocument"].iter().any(|read| kind.ends_with(read));
        if !is_read || target.ends_with(".xml") || target.ends_with(".bin") {
            return Ok(());
        }
        let found = format!("the part {target:?} as a sheet");
        Err(BoundError::new(self.path, found, "a part whose name ends with .xml", HINT))
    }

    /// An element that is kept whole ends.
    fn end(&self, name: &str, bytes: u64, kept: &mut Kept) -> Result<(), BoundError> {
        match name {
            "si" | "definedName" => kept.string_bytes += bytes,
            "numFmt" | "font" | "fill" | "border" => kept.longest = kept.longest.max(bytes),
            _ => {}
        }
        if kept.string_bytes > STRING_BYTES_MAX {
            return Err(self.refused("shared texts of more bytes than are read", STRING_BYTES_MAX));
        }
        Ok(())
    }

    /// A part of an .xlsb: records, each with its number and its length.
    fn binary(&self, mut input: impl BufRead) -> Result<(), BoundError> {
        let refusal = || self.allowance.refusal(self.path, self.part).map_or(Ok(()), Err);
        let is_shared = self.part.ends_with("sharedstrings.bin");
        let is_kept = is_shared || self.part.ends_with("workbook.bin") || self.part.ends_with("styles.bin");
        let most = if is_shared { STRING_BYTES_MAX } else { BINARY_BYTES_MAX };
        let mut bytes = 0_u64;
        let mut strings = 0;
        loop {
            self.allowance.refill();
            let (Some(number), Some(length)) = (number(&mut input, 2), number(&mut input, 4)) else { return refusal() };
            // In pieces: how long it is is only said.
            let mut left = u64::from(length);
            while left > 0 {
                self.allowance.refill();
                let piece = left.min(ELEMENT_BYTES_MAX / 2);
                match io::copy(&mut input.by_ref().take(piece), &mut io::sink()) {
                    Ok(copied) if copied == piece => left -= piece,
                    _ => return refusal(),
                }
            }
            bytes += u64::from(length);
            strings += u64::from(number == SHARED_STRING);
            if is_kept && (bytes > most || strings > STRINGS_MAX) {
                return Err(self.refused("more bytes than are read of it", most));
            }
        }
    }
}

/// A number of seven bits a byte, the lowest first, of at most so many bytes.
fn number(input: &mut impl Read, bytes_max: u32) -> Option<u32> {
    let mut found = 0;
    for at in 0..bytes_max {
        let mut byte = [0];
        input.read_exact(&mut byte).ok()?;
        found |= u32::from(byte[0] & 0x7f) << (7 * at);
        if byte[0] & 0x80 == 0 {
            break;
        }
    }
    Some(found)
}

/// Whether the reader holds an element with all that is in it.
fn is_whole(name: &str) -> bool {
    matches!(name, "c" | "si" | "definedName" | "numFmt" | "font" | "fill" | "border" | "xf" | "rPh")
}
