//! Decoding of whole records to a block of columns. This is the hot loop of staging: a number is parsed in place, and its end is the end
//! of the field; everything else (quotes, blanks, missing tokens, wrong widths) takes the slow path.

use super::quotes::closing;
use crate::stage::{
    error::CellError,
    source::{
        Piece, Request,
        block::{Block, CellCounts, ColumnKind, ColumnSpec, PieceError, Values},
        clean::{self, CellOutcome},
    },
};
use std::{borrow::Cow, sync::Arc};
use twox_hash::XxHash3_128;

/// Text of whole records.
#[derive(Debug)]
pub(crate) struct CsvPiece {
    pub text: Vec<u8>,
    pub separator: u8,
    /// Number of fields per record.
    pub width: usize,
    /// Lines of the header in the first piece, otherwise 0.
    pub lines_before: u64,
    /// Whether the file ends after the text.
    pub is_last: bool,
    /// Offset in the file after the text.
    pub end: u64,
    pub request: Arc<Request>,
}

impl Piece for CsvPiece {
    fn decode(self: Box<Self>) -> Result<Block, PieceError> {
        Decoder::new(&self).run(&steps(&self))
    }

    fn end(&self) -> u64 {
        self.end
    }
}

#[derive(Debug, Clone)]
enum ColumnStep {
    Skip,
    /// A single request for a number, by index: the fast path.
    Number(usize),
    /// Any other requests, by index.
    Text(Vec<usize>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FieldEnd {
    Field,
    Record,
}

enum RecordError {
    Width,
    Cell(usize, CellError),
}

fn steps(piece: &CsvPiece) -> Vec<ColumnStep> {
    let request = &*piece.request;
    let mut steps = vec![ColumnStep::Skip; piece.width];
    for (slot, column) in request.columns.iter().enumerate() {
        let step = &mut steps[*column];
        *step = match step {
            ColumnStep::Skip if request.specs[slot].kind == ColumnKind::Number => ColumnStep::Number(slot),
            ColumnStep::Skip => ColumnStep::Text(vec![slot]),
            ColumnStep::Number(other) => ColumnStep::Text(vec![*other, slot]),
            ColumnStep::Text(others) => ColumnStep::Text([others.as_slice(), &[slot]].concat()),
        };
    }
    steps
}

struct Decoder<'a> {
    text: &'a [u8],
    separator: u8,
    request: &'a Request,
    width: usize,
    /// Whether a number must be compared with the missing tokens.
    number_tokens: bool,
    /// Whether the file ends after the text without a line end.
    is_open: bool,
    at: usize,
    /// Lines before `at`, from the beginning of the piece.
    line: u64,
    block: Block,
    /// Cells of this record that became missing, which count only if the record is kept.
    odd_cells: Vec<(usize, CellOutcome)>,
}

impl<'a> Decoder<'a> {
    fn new(piece: &'a CsvPiece) -> Self {
        let request = &*piece.request;
        let first = memchr::memchr(b'\n', &piece.text).unwrap_or(piece.text.len()).max(piece.width);
        let rows = piece.text.len() / first.max(1) + 16;
        let block = Block {
            file: request.file,
            bytes: piece.text.len() as u64,
            columns: request.specs.iter().map(|spec| Values::new(spec.kind, rows)).collect(),
            counts: vec![CellCounts::default(); request.specs.len()],
            hashes: Vec::with_capacity(if request.hash_rows { rows } else { 0 }),
            ..Block::default()
        };
        let number_tokens = request.missing.has_numbers();
        let text = piece.text.as_slice();
        let separator = piece.separator;
        let line = piece.lines_before;
        let width = piece.width;
        let is_open = piece.is_last && text.last().is_some_and(|byte| !matches!(byte, b'\n' | b'\r'));
        Self { text, separator, request, width, number_tokens, is_open, at: 0, line, block, odd_cells: Vec::new() }
    }

    fn run(mut self, steps: &[ColumnStep]) -> Result<Block, PieceError> {
        while self.at < self.text.len() {
            match self.text[self.at] {
                b'\n' => {
                    self.at += 1;
                    self.line += 1;
                }
                b'\r' => self.at += 1,
                _ => self.record(steps)?,
            }
        }
        self.block.span = self.line;
        Ok(self.block)
    }

    fn record(&mut self, steps: &[ColumnStep]) -> Result<(), PieceError> {
        let start = self.at;
        let line = self.line;
        match self.fields(steps) {
            Ok(()) => {}
            Err(odd) => return self.odd_record(start, line, odd),
        }
        if self.request.hash_rows {
            let record = self.text[start..self.at].trim_ascii_end();
            self.block.hashes.push(XxHash3_128::oneshot(record));
        }
        for (slot, found) in self.odd_cells.drain(..) {
            self.block.counts[slot].count(found);
        }
        self.block.rows += 1;
        self.line += 1;
        Ok(())
    }

    fn fields(&mut self, steps: &[ColumnStep]) -> Result<(), RecordError> {
        for (column, step) in steps.iter().enumerate() {
            let end = match step {
                ColumnStep::Number(slot) => match self.fast_number(*slot) {
                    Some(end) => end,
                    None => self.slow(&[*slot])?,
                },
                ColumnStep::Skip => self.field().1,
                ColumnStep::Text(slots) => self.slow(slots)?,
            };
            if (end == FieldEnd::Record) != (column + 1 == steps.len()) {
                return Err(RecordError::Width);
            }
        }
        Ok(())
    }

    /// Decodes a plain number in range that ends its field; otherwise returns `None` without moving.
    #[inline]
    fn fast_number(&mut self, slot: usize) -> Option<FieldEnd> {
        let rest = &self.text[self.at..];
        let (value, length) = fast_float2::parse_partial::<f64, _>(rest).ok()?;
        let (end, skip) = match rest.get(length) {
            Some(byte) if *byte == self.separator => (FieldEnd::Field, 1),
            Some(b'\n') => (FieldEnd::Record, 1),
            Some(b'\r') if rest.get(length + 1) == Some(&b'\n') => (FieldEnd::Record, 2),
            None => (FieldEnd::Record, 0),
            Some(_) => return None,
        };
        let ColumnSpec { range: (low, high), sentinel, .. } = self.request.specs[slot];
        let token = self.number_tokens && self.request.missing.may_be(value);
        let is_valid = value >= low && value <= high && sentinel != Some(value) && !token;
        match &mut self.block.columns[slot] {
            Values::Numbers(values) if is_valid => values.push(value),
            _ => return None,
        }
        self.at += length + skip;
        Some(end)
    }

    fn slow(&mut self, slots: &[usize]) -> Result<FieldEnd, RecordError> {
        let (contents, end) = self.field();
        let text = std::str::from_utf8(&contents).map(str::trim);
        for slot in slots {
            let spec = &self.request.specs[*slot];
            let column = &mut self.block.columns[*slot];
            let found = match text {
                Ok(text) => clean::push_text(text, spec, &self.request.missing, column),
                Err(_) => Err(CellError::NotUtf8 { found: String::from_utf8_lossy(&contents).into_owned() }),
            };
            match found {
                Ok(CellOutcome::Valid) => {}
                Ok(found) => self.odd_cells.push((*slot, found)),
                Err(error) => return Err(RecordError::Cell(*slot, error)),
            }
        }
        Ok(end)
    }

    /// Returns the unquoted contents of the field at `at`, and moves after it.
    fn field(&mut self) -> (Cow<'a, [u8]>, FieldEnd) {
        let text = self.text;
        let start = self.at;
        let mut quoted = None;
        if text.get(start) == Some(&b'"') {
            // `CsvPieces` has found the closing quote.
            let close = closing(text, start + 1).unwrap_or(text.len());
            let inside = &text[start + 1..close.saturating_sub(1).max(start + 1)];
            self.line += memchr::memchr_iter(b'\n', inside).count() as u64;
            quoted = Some(inside);
            self.at = close;
        }
        let rest = &text[self.at..];
        let length = rest.iter().position(|byte| *byte == self.separator || *byte == b'\n').unwrap_or(rest.len());
        let tail = &rest[..length];
        let end = match rest.get(length) {
            Some(byte) if *byte == self.separator => FieldEnd::Field,
            _ => FieldEnd::Record,
        };
        self.at = (self.at + length + 1).min(text.len());
        match quoted {
            None => (Cow::Borrowed(tail), end),
            Some(inside) if memchr::memchr(b'"', inside).is_none() && tail.trim_ascii().is_empty() => {
                (Cow::Borrowed(inside), end)
            }
            Some(inside) => (Cow::Owned([&unescaped(inside), tail].concat()), end),
        }
    }

    /// Handles a record that was not decoded: a wrong width is counted and left out, otherwise the cell is an error.
    fn odd_record(&mut self, start: usize, line: u64, odd: RecordError) -> Result<(), PieceError> {
        self.at = start;
        self.line = line;
        self.odd_cells.clear();
        let mut width = 1;
        while self.field().1 == FieldEnd::Field {
            width += 1;
        }
        if let RecordError::Cell(slot, kind) = odd
            && width == self.width
        {
            let column = self.request.specs[slot].column.clone();
            return Err(PieceError::Cell { file: self.request.file, at: line, column, kind });
        }
        if self.is_open && self.at == self.text.len() && width < self.width {
            let kind = CellError::CutRecord { found: width, expected: self.width };
            let column = self.request.specs.last().map(|spec| spec.column.clone()).unwrap_or_default();
            return Err(PieceError::Cell { file: self.request.file, at: line, column, kind });
        }
        self.block.columns.iter_mut().for_each(|column| column.truncate(self.block.rows));
        self.block.wrong_width += 1;
        self.block.wrong_width_at.get_or_insert(line);
        self.line += 1;
        Ok(())
    }
}

fn unescaped(inside: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(inside.len());
    let mut at = 0;
    while let Some(quote) = memchr::memchr(b'"', &inside[at..]) {
        out.extend_from_slice(&inside[at..=at + quote]);
        at = (at + quote + 2).min(inside.len());
    }
    out.extend_from_slice(&inside[at..]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::source::clean::MissingTokens;

    fn decode(text: &str, kinds: &[ColumnKind], width: usize) -> Result<Block, PieceError> {
        let specs = kinds.iter().enumerate().map(|(i, kind)| ColumnSpec::new(&format!("c{i}"), *kind)).collect();
        let columns = (0..kinds.len()).collect();
        let missing = MissingTokens::new(&["NA".to_string()]);
        let request = Arc::new(Request { file: 0, specs, columns, missing, hash_rows: true });
        let piece = CsvPiece {
            text: text.as_bytes().to_vec(),
            separator: b',',
            width,
            lines_before: 1,
            is_last: true,
            end: 0,
            request,
        };
        Box::new(piece).decode()
    }

    #[test]
    fn numbers_words_and_times_in_all_their_clothes() {
        let kinds = [ColumnKind::Number, ColumnKind::Word, ColumnKind::Time];
        let text = "1.5,a,2013-01-01\r\n -2e3 ,\"b, \"\"c\"\"\",1970-01-01T00:00:07Z\n\nNA,,\n\"7\",a,\"1\"";
        let block = decode(text, &kinds, 3).unwrap();
        assert_eq!(block.rows, 4);
        let numbers = block.columns[0].numbers();
        assert_eq!((numbers[0], numbers[1], numbers[3]), (1.5, -2000.0, 7.0));
        assert!(numbers[2].is_nan());
        let words = block.columns[1].words().unwrap();
        assert_eq!(words.list, ["a", "b, \"c\""]);
        assert_eq!(words.ids, [0, 1, super::super::super::block::NO_WORD, 0]);
        assert_eq!(block.columns[2].times()[1], 7_000_000);
        assert_eq!(block.counts[0].missing, 1);
        assert_eq!(block.span, 1 + 5);
    }

    #[test]
    fn wrong_widths_are_left_out_with_their_line_even_when_a_cell_does_not_fit() {
        let text = "1,2\n3\n4,5,6\n\"x\ny\",7,8\n9,10\n";
        let block = decode(text, &[ColumnKind::Number, ColumnKind::Number], 2).unwrap();
        assert_eq!(block.columns[0].numbers(), [1.0, 9.0]);
        assert_eq!(block.columns[1].numbers(), [2.0, 10.0]);
        assert_eq!((block.wrong_width, block.wrong_width_at), (3, Some(2)));
        assert_eq!(block.hashes.len(), 2);
        assert_eq!(block.span, 7);
    }

    #[test]
    fn a_record_that_the_end_of_the_file_cuts_is_an_error() {
        for text in ["1,2\n3", "1,2\n\"a\nb\""] {
            match decode(text, &[ColumnKind::Word, ColumnKind::Word], 2) {
                Err(PieceError::Cell { at, kind: CellError::CutRecord { found: 1, expected: 2 }, .. }) => {
                    assert_eq!(at, 2);
                }
                other => panic!("{other:?}"),
            }
        }
        // With a line end it is one of a wrong width; with all its fields it is whole, as far as anybody can tell.
        assert_eq!(decode("1,2\n3\n", &[ColumnKind::Word, ColumnKind::Word], 2).unwrap().wrong_width, 1);
        assert_eq!(decode("1,2\n3,", &[ColumnKind::Word, ColumnKind::Word], 2).unwrap().rows, 2);
    }

    #[test]
    fn a_text_among_numbers_is_an_error_with_its_line() {
        let error = decode("1,2\n\"a\nb\",3\n", &[ColumnKind::Word, ColumnKind::Number], 2).map(|block| block.rows);
        assert_eq!(error.unwrap(), 2);
        match decode("1,2\n\"a\nb\",3\n4,five\n", &[ColumnKind::Word, ColumnKind::Number], 2) {
            Err(PieceError::Cell { at, column, kind, .. }) => {
                assert_eq!((at, column.as_str()), (4, "c1"));
                assert_eq!(kind, CellError::NotANumber { found: "five".into() });
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn equal_records_have_equal_hashes_whatever_their_line_end() {
        let block = decode("1,2\r\n1,2\n1,3\n1,2", &[ColumnKind::Number], 2).unwrap();
        let hashes = &block.hashes;
        assert!(hashes[0] == hashes[1] && hashes[1] == hashes[3] && hashes[1] != hashes[2]);
    }
}
