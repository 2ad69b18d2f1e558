//! Sheets of OpenDocument, read as a stream: repeated cells and rows take memory only in the grid, which is bounded.
//!
//! A cell has the value of its `office:…-value`, otherwise its text; formulas and notes are skipped.

use super::{
    grid::{self, GridFull, SheetGrid},
    package::{self, Archive, Metered, UnpackBudget},
};
use crate::stage::bound::BoundError;
use calamine::Data;
use quick_xml::{
    escape::{resolve_xml_entity, unescape},
    events::{BytesStart, Event},
};
use std::{
    io::{BufRead, BufReader},
    path::Path,
};

const ROWS_MAX: u32 = 1 << 20;
const COLUMNS_MAX: u32 = 1 << 14;
const TEXT_BYTES_MAX: usize = 4 << 20;
const SHEETS_MAX: usize = 10_000;
const CONTENT: &str = "content.xml";

#[derive(Debug, thiserror::Error)]
pub(super) enum OdsError {
    #[error(transparent)]
    Zip(#[from] zip::result::ZipError),
    #[error("its {CONTENT} is damaged: {0}")]
    Xml(#[from] quick_xml::Error),
    #[error("its {CONTENT} is damaged: {0}")]
    Content(&'static str),
    #[error("it is protected by a password; save it without one")]
    Password,
    #[error(transparent)]
    Bound(#[from] BoundError),
    #[error("its sheet is too large")]
    Full(GridFull, String),
}

pub(super) struct Workbook {
    pub sheets: Vec<String>,
    pub sheet: Option<(String, SheetGrid)>,
}

pub(super) fn read(path: &Path, archive: &mut Archive, wanted: Option<&str>) -> Result<Workbook, OdsError> {
    let budget = UnpackBudget::new();
    if let Ok(manifest) = archive.by_name("META-INF/manifest.xml") {
        let refused = is_encrypted(BufReader::new(Metered::new(manifest, &budget)), &budget);
        if let Some(error) = budget.error(path, "META-INF/manifest.xml") {
            return Err(error.into());
        }
        if refused {
            return Err(OdsError::Password);
        }
    }
    let content = archive.by_name(CONTENT)?;
    let mut sheets = Content {
        xml: package::xml(BufReader::new(Metered::new(content, &budget))),
        budget: &budget,
        buffer: Vec::new(),
    };
    // Reading beyond the budget appears as an XML error.
    sheets.read(wanted).map_err(|error| budget.error(path, CONTENT).map_or(error, OdsError::Bound))
}

fn is_encrypted(input: impl BufRead, budget: &UnpackBudget) -> bool {
    let mut xml = package::xml(input);
    let mut buffer = Vec::new();
    loop {
        budget.refill();
        buffer.clear();
        match xml.read_event_into(&mut buffer) {
            Ok(Event::Start(start)) if start.local_name().as_ref() == "encryption-data" => return true,
            Ok(Event::Eof) | Err(_) => return false,
            Ok(_) => {}
        }
    }
}

struct Content<'a, R> {
    xml: quick_xml::Reader<R>,
    budget: &'a UnpackBudget,
    buffer: Vec<u8>,
}

/// A nonempty cell with its first column and the number of columns that it repeats in.
struct Repeated {
    value: Data,
    column: u32,
    columns: u32,
}

impl<R: BufRead> Content<'_, R> {
    fn next(&mut self) -> Result<Event<'_>, OdsError> {
        self.budget.refill();
        self.buffer.clear();
        match self.xml.read_event_into(&mut self.buffer)? {
            Event::Eof => Err(OdsError::Content("it ends inside of a sheet")),
            event => Ok(event),
        }
    }

    fn read(&mut self, wanted: Option<&str>) -> Result<Workbook, OdsError> {
        let mut found = Workbook { sheets: Vec::new(), sheet: None };
        let mut is_whole = false;
        loop {
            let event = match self.next() {
                Err(OdsError::Content(_)) if is_whole => return Ok(found),
                event => event?,
            };
            let name = match event {
                Event::Start(start) if start.name().as_ref() == "table:table" => attribute(&start, "table:name")?,
                Event::End(end) => {
                    is_whole |= end.name().as_ref() == "office:document-content";
                    continue;
                }
                _ => continue,
            };
            let Some(name) = name else { continue };
            if found.sheets.len() == SHEETS_MAX {
                return Err(OdsError::Content("it has more sheets than any workbook"));
            }
            let is_wanted = found.sheet.is_none() && wanted.is_none_or(|wanted| wanted == name);
            found.sheets.push(name.clone());
            if is_wanted {
                let grid = self.table(&name)?;
                found.sheet = Some((name, grid));
            }
        }
    }

    fn table(&mut self, name: &str) -> Result<SheetGrid, OdsError> {
        let mut grid = SheetGrid::default();
        let mut row = 0_u32;
        let mut depth = 0;
        loop {
            let (rows, is_row) = match self.next()? {
                Event::Start(start) if start.name().as_ref() == "table:table-row" => {
                    (repeats(&start, "table:number-rows-repeated")?, true)
                }
                // A nested table, as in charts.
                Event::Start(start) if start.name().as_ref() == "table:table" => {
                    depth += 1;
                    (0, false)
                }
                Event::End(end) if end.name().as_ref() == "table:table" => {
                    if depth == 0 {
                        return Ok(grid);
                    }
                    depth -= 1;
                    (0, false)
                }
                _ => (0, false),
            };
            if is_row && depth == 0 {
                let cells = self.row(name)?;
                put(&mut grid, &cells, row, rows).map_err(|full| OdsError::Full(full, name.to_owned()))?;
                row = row.saturating_add(rows);
            }
        }
    }

    fn row(&mut self, name: &str) -> Result<Vec<Repeated>, OdsError> {
        let mut cells = Vec::new();
        let mut columns = 0;
        let mut text_bytes = 0;
        loop {
            let cell = match self.next()? {
                Event::Start(start)
                    if matches!(start.name().as_ref(), "table:table-cell" | "table:covered-table-cell") =>
                {
                    Some((value(&start)?, repeats(&start, "table:number-columns-repeated")?))
                }
                Event::End(end) if end.name().as_ref() == "table:table-row" => return Ok(cells),
                _ => None,
            };
            let Some((declared, repeated)) = cell else { continue };
            let value = declared.cell(self.text()?);
            let repeated = repeated.min(COLUMNS_MAX - columns);
            text_bytes += grid::text_bytes(&value);
            if text_bytes > grid::TEXT_BYTES_MAX {
                return Err(OdsError::Full(GridFull::Text(text_bytes), name.to_owned()));
            }
            if repeated > 0 && !matches!(value, Data::Empty) {
                cells.push(Repeated { value, column: columns, columns: repeated });
            }
            columns += repeated;
        }
    }

    /// Reads the text of a cell up to its end: paragraphs become lines, notes are skipped.
    fn text(&mut self) -> Result<String, OdsError> {
        let mut text = String::new();
        let mut paragraphs = 0;
        let mut notes = 0;
        loop {
            let more = match self.next()? {
                Event::End(end) => match end.name().as_ref() {
                    "table:table-cell" | "table:covered-table-cell" if notes == 0 => return Ok(text),
                    "office:annotation" => {
                        notes -= i32::from(notes > 0);
                        continue;
                    }
                    _ => continue,
                },
                Event::Start(start) if start.name().as_ref() == "office:annotation" => {
                    notes += 1;
                    continue;
                }
                _ if notes > 0 => continue,
                Event::Text(part) => part.xml10_content().into_owned(),
                Event::CData(part) => part.xml10_content().into_owned(),
                Event::GeneralRef(entity) => match resolve_xml_entity(&entity) {
                    Some(known) => known.to_owned(),
                    None => entity.resolve_char_ref()?.map_or_else(String::new, String::from),
                },
                Event::Start(start) => match start.name().as_ref() {
                    "text:p" => {
                        paragraphs += 1;
                        if paragraphs > 1 { "\n".to_owned() } else { String::new() }
                    }
                    "text:s" => " ".repeat((repeats(&start, "text:c")? as usize).min(TEXT_BYTES_MAX)),
                    "text:tab" => "\t".to_owned(),
                    "text:line-break" => "\n".to_owned(),
                    _ => continue,
                },
                _ => continue,
            };
            if text.len() + more.len() > TEXT_BYTES_MAX {
                return Err(OdsError::Content("the text of a cell is longer than any can be"));
            }
            text.push_str(&more);
        }
    }
}

fn put(grid: &mut SheetGrid, cells: &[Repeated], row: u32, rows: u32) -> Result<(), GridFull> {
    if cells.is_empty() {
        return Ok(());
    }
    let end = row.saturating_add(rows).min(ROWS_MAX);
    let times = u64::from(end.saturating_sub(row));
    let columns: u64 = cells.iter().map(|cell| u64::from(cell.columns)).sum();
    let text: u64 =
        cells.iter().map(|cell| u64::from(cell.columns).saturating_mul(grid::text_bytes(&cell.value))).sum();
    grid.check_room(columns.saturating_mul(times), text.saturating_mul(times))?;
    for row in row..end {
        for Repeated { value, column, columns } in cells {
            (*column..column + columns).try_for_each(|column| grid.push(row, column, value.clone()))?;
        }
    }
    Ok(())
}

#[derive(Debug, Default)]
struct CellAttributes {
    value: Option<Data>,
    is_text: bool,
    is_error: bool,
}

impl CellAttributes {
    /// Returns the value of a cell that contains `text`.
    fn cell(self, text: String) -> Data {
        match self.value {
            Some(Data::String(declared)) if declared.is_empty() && self.is_error => Data::String(text),
            Some(value) => value,
            None if self.is_text => Data::String(text),
            None => Data::Empty,
        }
    }
}

fn value(start: &BytesStart<'_>) -> Result<CellAttributes, OdsError> {
    let mut declared = CellAttributes::default();
    for attribute in start.attributes().with_checks(false) {
        let attribute = attribute.map_err(quick_xml::Error::from)?;
        let key = attribute.key.as_ref();
        let value = attribute.value.as_ref();
        let text = || unescape(value).map(|text| text.into_owned()).map_err(quick_xml::Error::from);
        let found = match key {
            "office:value" => {
                let number =
                    value.trim().parse().map_err(|_| OdsError::Content("a value is declared to be a number"))?;
                Data::Float(number)
            }
            "office:string-value" => Data::String(text()?),
            "office:date-value" => Data::DateTimeIso(text()?),
            "office:time-value" => Data::DurationIso(text()?),
            "office:boolean-value" => Data::Bool(value.eq_ignore_ascii_case("true")),
            "office:value-type" => {
                declared.is_text = value == "string";
                continue;
            }
            "calcext:value-type" => {
                declared.is_error = value == "error";
                continue;
            }
            _ => continue,
        };
        declared.value.get_or_insert(found);
    }
    Ok(declared)
}

fn attribute(start: &BytesStart<'_>, key: &str) -> Result<Option<String>, OdsError> {
    let found = start.try_get_attribute(key).map_err(quick_xml::Error::from)?;
    let text = found.map(|found| unescape(&found.value).map(|text| text.into_owned()).map_err(quick_xml::Error::from));
    Ok(text.transpose()?)
}

fn repeats(start: &BytesStart<'_>, key: &str) -> Result<u32, OdsError> {
    match attribute(start, key)? {
        None => Ok(1),
        // Larger numbers are limited by the size of a sheet.
        Some(text) => match text.trim().parse::<u64>() {
            Ok(times) => Ok(u32::try_from(times).unwrap_or(u32::MAX)),
            Err(_) => Err(OdsError::Content("what is repeated does not say how often")),
        },
    }
}
