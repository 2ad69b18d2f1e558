//! Checks of zipped workbooks: unpacked sizes and contents of their parts, before calamine allocates memory for them.
//!
//! Calamine trusts the counts that a part declares (`uniqueCount`), holds each element as a whole, and keeps all shared texts and
//! styles. Here each part is read once as a stream, by the same rules, and refused where it exceeds a limit.

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

const UNPACKED_BYTES_MAX: u64 = 1 << 30;
/// Maximum bytes of one element; a cell holds 32,767 characters.
const ELEMENT_BYTES_MAX: u64 = 4 << 20;
const STRINGS_MAX: u64 = CELLS_MAX;
const STRING_BYTES_MAX: u64 = 128 << 20;
/// Maximum other elements that calamine keeps: formats, names, sheets.
const KEPT_MAX: u64 = 200_000;
/// Maximum bytes of formats: each has its own copy of a font and a code.
const FORMAT_BYTES_MAX: u64 = 256 << 20;
const PARTS_MAX: usize = 10_000;
/// Maximum bytes of the parts of an .xlsb that calamine keeps.
const BINARY_BYTES_MAX: u64 = 16 << 20;
const SHARED_STRING: u32 = 0x13;
pub(super) const HINT: &str = "save the sheet as CSV or Parquet";

pub(super) type Archive = ZipArchive<BufReader<File>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WorkbookKind {
    Xlsx,
    Xlsb,
    Ods,
}

impl WorkbookKind {
    /// Detects the format by a part that only one format has.
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

/// Remaining bytes that may be unpacked: in all, and for the current element.
#[derive(Debug)]
pub(super) struct UnpackBudget {
    all: Cell<u64>,
    now: Cell<u64>,
    exceeded: Cell<Option<&'static str>>,
}

impl UnpackBudget {
    pub(super) fn new() -> Self {
        Self { all: Cell::new(UNPACKED_BYTES_MAX), now: Cell::new(ELEMENT_BYTES_MAX), exceeded: Cell::new(None) }
    }

    /// Resets the budget of one element, after its bytes were checked.
    pub(super) fn refill(&self) {
        self.now.set(ELEMENT_BYTES_MAX);
    }

    pub(super) fn error(&self, path: &Path, part: &str) -> Option<BoundError> {
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

/// Reader of a part that stops at the budget.
#[derive(Debug)]
pub(super) struct Metered<'a, R> {
    inner: R,
    budget: &'a UnpackBudget,
}

impl<'a, R: Read> Metered<'a, R> {
    pub(super) fn new(inner: R, budget: &'a UnpackBudget) -> Self {
        Self { inner, budget }
    }
}

impl<R: Read> Read for Metered<'_, R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let UnpackBudget { all, now, exceeded } = self.budget;
        let left = all.get().min(now.get());
        if left == 0 && !out.is_empty() {
            // The end of the part is allowed at the limit.
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

/// Creates an XML reader with calamine's settings, so that both report the same errors.
pub(super) fn xml<R: BufRead>(input: R) -> Reader<R> {
    let mut reader = Reader::from_reader(input);
    let config = reader.config_mut();
    config.check_end_names = false;
    config.check_comments = false;
    config.expand_empty_elements = true;
    reader
}

/// Refuses a workbook for which calamine would take more memory than a sheet may.
pub(super) fn check(path: &Path, archive: &mut Archive, kind: WorkbookKind) -> Result<(), BoundError> {
    if archive.len() > PARTS_MAX {
        let found = format!("{} parts", archive.len());
        return Err(BoundError::new(path, found, format!("at most {PARTS_MAX}"), HINT));
    }
    let budget = UnpackBudget::new();
    let mut retained = Retained::default();
    for index in 0..archive.len() {
        // Calamine reports entries that cannot be unpacked, if it needs them.
        let Ok(entry) = archive.by_index(index) else { continue };
        let Ok(part) = entry.name().map(|name| name.to_ascii_lowercase()) else { continue };
        let input = BufReader::new(Metered::new(entry, &budget));
        let scan = Scan { path, part: &part, budget: &budget };
        if part.ends_with(".xml") || part.ends_with(".rels") {
            scan.xml(input, &mut retained)?;
        } else if kind == WorkbookKind::Xlsb && part.ends_with(".bin") {
            scan.binary(input)?;
        }
    }
    Ok(())
}

#[derive(Debug, Default)]
struct Retained {
    strings: u64,
    string_bytes: u64,
    others: u64,
    formats: u64,
    longest: u64,
}

struct Scan<'a> {
    path: &'a Path,
    part: &'a str,
    budget: &'a UnpackBudget,
}

impl Scan<'_> {
    fn refused(&self, found: &str, most: u64) -> BoundError {
        BoundError::new(self.path, format!("{found} in its part {:?}", self.part), format!("at most {most}"), HINT)
    }

    fn xml(&self, input: impl BufRead, retained: &mut Retained) -> Result<(), BoundError> {
        let mut reader = xml(input);
        let mut buffer = Vec::new();
        // Name and offset of the element that is held as a whole.
        let mut open: Option<(String, u64)> = None;
        loop {
            self.budget.refill();
            buffer.clear();
            let event = reader.read_event_into(&mut buffer);
            let at = reader.buffer_position();
            match event {
                Ok(Event::Start(start)) => {
                    self.start(&start, retained)?;
                    let name = start.local_name();
                    if open.is_none() && is_whole(name.as_ref()) {
                        open = Some((name.as_ref().to_owned(), at));
                    }
                }
                Ok(Event::End(end)) => {
                    let name = end.local_name();
                    if let Some((_, begin)) = open.take_if(|(own, _)| own.as_str() == name.as_ref()) {
                        self.end(name.as_ref(), at - begin, retained)?;
                    }
                }
                Ok(Event::Eof) => return Ok(()),
                Ok(_) => {}
                // Calamine reports invalid XML, if it needs the part.
                Err(_) => return self.budget.error(self.path, self.part).map_or(Ok(()), Err),
            }
            if open.as_ref().is_some_and(|(_, begin)| at - begin > ELEMENT_BYTES_MAX) {
                return Err(self.refused("an element of more bytes than a cell can have", ELEMENT_BYTES_MAX));
            }
        }
    }

    fn start(&self, start: &BytesStart<'_>, retained: &mut Retained) -> Result<(), BoundError> {
        match start.local_name().as_ref() {
            "sst" => {
                let mut attributes = start.attributes();
                attributes.with_checks(false);
                let declared = attributes.flatten().filter(|one| one.key.as_ref() == "uniqueCount");
                let declared = declared.filter_map(|one| one.value.trim().parse::<u64>().ok()).max().unwrap_or(0);
                if declared > STRINGS_MAX {
                    return Err(self.refused(&format!("uniqueCount={declared}"), STRINGS_MAX));
                }
            }
            "si" => {
                retained.strings += 1;
                if retained.strings > STRINGS_MAX {
                    return Err(self.refused("more shared texts than cells", STRINGS_MAX));
                }
            }
            "xf" => {
                retained.formats += 1;
                retained.others += 1;
            }
            "Relationship" => self.relationship(start, retained)?,
            "numFmt" | "font" | "fill" | "border" | "sheet" | "definedName" => retained.others += 1,
            _ => {}
        }
        if retained.others > KEPT_MAX {
            return Err(self.refused("more formats, names and sheets than any workbook has", KEPT_MAX));
        }
        if retained.formats * retained.longest > FORMAT_BYTES_MAX {
            return Err(self.refused("formats that take too many bytes", FORMAT_BYTES_MAX));
        }
        Ok(())
    }

    /// Refuses a sheet in a part whose name does not end with .xml or .bin, because such parts are not scanned.
    fn relationship(&self, start: &BytesStart<'_>, retained: &mut Retained) -> Result<(), BoundError> {
        retained.others += 1;
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

    /// Counts the end of an element that calamine holds as a whole.
    fn end(&self, name: &str, bytes: u64, retained: &mut Retained) -> Result<(), BoundError> {
        match name {
            "si" | "definedName" => retained.string_bytes += bytes,
            "numFmt" | "font" | "fill" | "border" => retained.longest = retained.longest.max(bytes),
            _ => {}
        }
        if retained.string_bytes > STRING_BYTES_MAX {
            return Err(self.refused("shared texts of more bytes than are read", STRING_BYTES_MAX));
        }
        Ok(())
    }

    fn binary(&self, mut input: impl BufRead) -> Result<(), BoundError> {
        let error = || self.budget.error(self.path, self.part).map_or(Ok(()), Err);
        let is_shared = self.part.ends_with("sharedstrings.bin");
        let is_kept = is_shared || self.part.ends_with("workbook.bin") || self.part.ends_with("styles.bin");
        let most = if is_shared { STRING_BYTES_MAX } else { BINARY_BYTES_MAX };
        let mut bytes = 0_u64;
        let mut strings = 0;
        loop {
            self.budget.refill();
            let Some(record) = number(&mut input, 2) else { return error() };
            let Some(length) = number(&mut input, 4) else { return error() };
            // In pieces, because the length is only declared.
            let mut left = u64::from(length);
            while left > 0 {
                self.budget.refill();
                let piece = left.min(ELEMENT_BYTES_MAX / 2);
                match io::copy(&mut input.by_ref().take(piece), &mut io::sink()) {
                    Ok(copied) if copied == piece => left -= piece,
                    _ => return error(),
                }
            }
            bytes += u64::from(length);
            strings += u64::from(record == SHARED_STRING);
            if is_kept && (bytes > most || strings > STRINGS_MAX) {
                return Err(self.refused("more bytes than are read of it", most));
            }
        }
    }
}

/// Reads a little-endian number with seven bits per byte, of at most `bytes_max` bytes.
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

fn is_whole(name: &str) -> bool {
    matches!(name, "c" | "si" | "definedName" | "numFmt" | "font" | "fill" | "border" | "xf" | "rPh")
}
