//! Reads rows in JSON: objects with the names of columns, or arrays in their order.

use super::{problem::Problem, rows_error::RowsError};
use arrow_array::{
    ArrayRef, RecordBatch,
    builder::{Float64Builder, StringBuilder},
};
use arrow_schema::Schema;
use enn_common::staged::words;
use enn_data::stage::{listed, means_missing};
use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Number;
use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    fmt,
    sync::Arc,
};

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Kind {
    Number,
    /// A category; booleans are categories where the model knows them as such.
    Category {
        has_truth: bool,
    },
    /// A list of texts, or one text with several labels.
    Labels,
    Time,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) kind: Kind,
    /// The texts that mean "missing".
    pub(super) missing: Vec<String>,
}

/// Maximum length of a cell's text in an error, characters.
const CELL_CHARS_MAX: usize = 40;

/// The columns that rows must have, and others that they may have and that are ignored.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Columns {
    pub(super) columns: Vec<Column>,
    pub(super) also: Vec<String>,
}

impl Columns {
    /// Reads a body as a table; returns it with whether its rows are objects. Cells are read directly into the table's columns, so that
    /// memory is bounded by the size of the body.
    pub(super) fn read(&self, body: &[u8], rows_max: usize) -> Result<(RecordBatch, bool), Problem> {
        let mut table = Table {
            columns: self,
            places: self.columns.iter().enumerate().map(|(at, column)| (column.name.as_str(), at)).collect(),
            cells: self.columns.iter().map(|column| Cells::of(&column.kind)).collect(),
            filled: vec![0; self.columns.len()],
            rows: 0,
            rows_max,
            objects: None,
            problem: None,
        };
        let mut json = serde_json::Deserializer::from_slice(body);
        let read = Reader { table: &mut table, level: Level::Body }.deserialize(&mut json).and_then(|()| json.end());
        if let Some(problem) = table.problem.take() {
            return Err(problem);
        }
        read.map_err(RowsError::Json)?;
        let objects = table.objects.ok_or(RowsError::None)?;
        let arrays = self.columns.iter().zip(table.cells).map(|(column, cells)| (&column.name, cells.finish(), true));
        Ok((RecordBatch::try_from_iter_with_nullable(arrays).map_err(RowsError::Arrow)?, objects))
    }

    /// Selects the columns of a table that are read; unknown columns are an error.
    pub(super) fn choose(&self, schema: &Schema) -> Result<Vec<usize>, RowsError> {
        let read: HashSet<&String> = self.columns.iter().map(|column| &column.name).collect();
        let also: HashSet<&String> = self.also.iter().collect();
        let mut names = schema.fields().iter().map(|field| field.name());
        match names.clone().find(|name| !read.contains(name) && !also.contains(name)) {
            Some(stranger) => Err(self.unknown(0, stranger)),
            None => Ok(names.by_ref().enumerate().filter(|(_, name)| read.contains(name)).map(|(at, _)| at).collect()),
        }
    }

    fn names(&self) -> String {
        self.columns.iter().map(|column| column.name.as_str()).collect::<Vec<_>>().join(", ")
    }

    fn unknown(&self, row: usize, column: &str) -> RowsError {
        RowsError::Unknown { row, column: brief(column), columns: self.names() }
    }
}

/// The cells of a column that have been read.
enum Cells {
    Numbers(Float64Builder),
    Texts(StringBuilder),
}

impl Cells {
    fn of(kind: &Kind) -> Self {
        match kind {
            Kind::Number => Self::Numbers(Float64Builder::new()),
            Kind::Category { .. } | Kind::Labels | Kind::Time => Self::Texts(StringBuilder::new()),
        }
    }

    fn finish(self) -> ArrayRef {
        match self {
            Self::Numbers(mut numbers) => Arc::new(numbers.finish()),
            Self::Texts(mut texts) => Arc::new(texts.finish()),
        }
    }
}

impl Column {
    fn push(&self, row: usize, cell: &Cell<'_>, to: &mut Cells) -> Result<(), RowsError> {
        let wrong = |expected| {
            let column = self.name.clone();
            let found = cell.describe();
            Err(RowsError::Cell { row, column, found, expected })
        };
        let is_missing = |text: &str| means_missing(&self.missing, text);
        match (to, cell) {
            (Cells::Numbers(to), Cell::Null) => to.append_null(),
            (Cells::Numbers(to), Cell::Number(number)) => to.append_option(number.as_f64()),
            (Cells::Numbers(to), Cell::Text(text)) if is_missing(text) => to.append_null(),
            (Cells::Numbers(_), _) => return wrong("a number"),
            (Cells::Texts(to), Cell::Null) => to.append_null(),
            (Cells::Texts(to), Cell::Text(text)) => to.append_value(text),
            (Cells::Texts(to), cell) => match (&self.kind, cell) {
                (Kind::Labels, Cell::Texts(labels)) => to.append_value(listed(labels)),
                (Kind::Labels, _) => return wrong("a list of labels, one text"),
                (Kind::Category { .. }, Cell::Number(number)) => to.append_value(plain(number)),
                (Kind::Time, Cell::Number(number)) => to.append_value(number.to_string()),
                (Kind::Category { has_truth: true }, Cell::Truth(truth)) => to.append_value(truth.to_string()),
                (Kind::Category { .. }, Cell::Truth(truth)) => to.append_value(u8::from(*truth).to_string()),
                (Kind::Time, _) => return wrong("a time stamp or Unix seconds"),
                _ => return wrong("a text"),
            },
        }
        Ok(())
    }
}

/// The rows that have been read.
struct Table<'c> {
    columns: &'c Columns,
    places: HashMap<&'c str, usize>,
    cells: Vec<Cells>,
    /// The number of rows of each column.
    filled: Vec<usize>,
    rows: usize,
    rows_max: usize,
    /// Whether the first row is an object, once it has been read.
    objects: Option<bool>,
    /// The error that replaces the JSON reader's own message.
    problem: Option<Problem>,
}

impl Table<'_> {
    fn refuse<T, E: Error>(&mut self, problem: impl Into<Problem>) -> Result<T, E> {
        self.problem = Some(problem.into());
        Err(E::custom("refused"))
    }

    fn row<E: Error>(&mut self, is_object: bool) -> Result<(), E> {
        if *self.objects.get_or_insert(is_object) == is_object {
            return Ok(());
        }
        let found = if is_object { "an object" } else { "an array" };
        self.refuse(RowsError::Row { row: self.rows, found })
    }

    fn push<E: Error>(&mut self, at: usize, cell: &Cell<'_>) -> Result<(), E> {
        let column = &self.columns.columns[at];
        if self.filled[at] > self.rows {
            return self.refuse(RowsError::Twice { row: self.rows, column: column.name.clone() });
        }
        self.filled[at] += 1;
        let pushed = column.push(self.rows, cell, &mut self.cells[at]);
        pushed.or_else(|error| self.refuse(error))
    }
}

/// What is read: the body, its rows, or one row.
enum Level {
    Body,
    Rows,
    Row,
}

struct Reader<'t, 'c> {
    table: &'t mut Table<'c>,
    level: Level,
}

impl Reader<'_, '_> {
    /// Refuses a value of a wrong type.
    fn wrong<E: Error>(self, found: &'static str) -> Result<(), E> {
        let row = self.table.rows;
        self.table.refuse(match self.level {
            Level::Body => RowsError::Shape { found: found.to_owned() },
            Level::Rows => RowsError::Shape { found: format!("an object whose rows are {found}") },
            Level::Row => RowsError::Row { row, found },
        })
    }
}

impl<'de> DeserializeSeed<'de> for Reader<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reader<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with rows")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.wrong("null")
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        self.wrong("a truth value")
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        self.wrong("a number")
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        self.wrong("a number")
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        self.wrong("a number")
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        self.wrong("a text")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, values: A) -> Result<(), A::Error> {
        match self.level {
            Level::Body => self.wrong("an array"),
            Level::Rows => self.table.read_rows(values),
            Level::Row => self.table.read_array(values),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<(), A::Error> {
        match self.level {
            Level::Body => self.table.read_body(fields),
            Level::Rows => self.wrong("an object"),
            Level::Row => self.table.read_object(fields),
        }
    }
}

impl Table<'_> {
    fn read_body<'de, A: MapAccess<'de>>(&mut self, mut fields: A) -> Result<(), A::Error> {
        let mut names: Vec<String> = Vec::new();
        while let Some(name) = fields.next_key::<Cow<'de, str>>()? {
            if name != "rows" || !names.is_empty() {
                names.push(brief(&name));
                return self.refuse(RowsError::Shape { found: format!("an object with {}", names.join(", ")) });
            }
            names.push(name.into_owned());
            fields.next_value_seed(Reader { table: self, level: Level::Rows })?;
        }
        if names.is_empty() {
            return self.refuse(RowsError::Shape { found: "an object with nothing in it".to_owned() });
        }
        Ok(())
    }

    fn read_rows<'de, A: SeqAccess<'de>>(&mut self, mut rows: A) -> Result<(), A::Error> {
        while self.rows < self.rows_max {
            if rows.next_element_seed(Reader { table: self, level: Level::Row })?.is_none() {
                return Ok(());
            }
            self.rows += 1;
        }
        let mut found = self.rows;
        while rows.next_element::<IgnoredAny>()?.is_some() {
            found += 1;
        }
        let limit = self.rows_max;
        if found > limit { self.refuse(Problem::Rows { found, limit }) } else { Ok(()) }
    }

    fn read_object<'de, A: MapAccess<'de>>(&mut self, mut fields: A) -> Result<(), A::Error> {
        self.row(true)?;
        while let Some(name) = fields.next_key::<Cow<'de, str>>()? {
            match self.places.get(&*name).copied() {
                Some(at) => {
                    let cell: Cell<'de> = fields.next_value()?;
                    self.push(at, &cell)?;
                }
                None if self.columns.also.iter().any(|also| *also == *name) => {
                    fields.next_value::<IgnoredAny>()?;
                }
                None => return self.refuse(self.columns.unknown(self.rows, &name)),
            }
        }
        match self.filled.iter().position(|rows| *rows == self.rows) {
            Some(at) => {
                let column = self.columns.columns[at].name.clone();
                self.refuse(RowsError::Missing { row: self.rows, column })
            }
            None => Ok(()),
        }
    }

    fn read_array<'de, A: SeqAccess<'de>>(&mut self, mut values: A) -> Result<(), A::Error> {
        let expected = self.filled.len();
        self.row(false)?;
        let mut found = 0;
        while found < expected
            && let Some(cell) = values.next_element::<Cell<'de>>()?
        {
            self.push(found, &cell)?;
            found += 1;
        }
        while found >= expected && values.next_element::<IgnoredAny>()?.is_some() {
            found += 1;
        }
        if found == expected {
            return Ok(());
        }
        let columns = self.columns.names();
        self.refuse(RowsError::Width { row: self.rows, found, expected, columns })
    }
}

enum Cell<'de> {
    Null,
    Truth(bool),
    Number(Number),
    Text(Cow<'de, str>),
    Texts(Vec<String>),
    /// An array of other values, or an object.
    Other(&'static str),
}

impl Cell<'_> {
    /// Describes the value for an error message.
    fn describe(&self) -> String {
        match self {
            Self::Null => "null".to_owned(),
            Self::Truth(truth) => truth.to_string(),
            Self::Number(number) => number.to_string(),
            Self::Text(text) => format!("{:?}", brief(text)),
            Self::Texts(texts) => brief(&format!("{texts:?}")),
            Self::Other(what) => (*what).to_owned(),
        }
    }
}

impl<'de> Deserialize<'de> for Cell<'de> {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        struct CellReader;
        impl<'de> Visitor<'de> for CellReader {
            type Value = Cell<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(Cell::Null)
            }

            fn visit_bool<E>(self, truth: bool) -> Result<Self::Value, E> {
                Ok(Cell::Truth(truth))
            }

            fn visit_i64<E>(self, number: i64) -> Result<Self::Value, E> {
                Ok(Cell::Number(number.into()))
            }

            fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
                Ok(Cell::Number(number.into()))
            }

            fn visit_f64<E>(self, number: f64) -> Result<Self::Value, E> {
                Ok(Number::from_f64(number).map_or(Cell::Null, Cell::Number))
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Cell::Text(text.into()))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Cell::Text(text.to_owned().into()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Self::Value, A::Error> {
                let mut texts = Vec::new();
                let mut other = false;
                while !other && let Some(cell) = values.next_element::<Cell<'de>>()? {
                    match cell {
                        Cell::Text(text) => texts.push(text.into_owned()),
                        Cell::Number(number) => texts.push(plain(&number)),
                        Cell::Truth(truth) => texts.push(truth.to_string()),
                        _ => other = true,
                    }
                }
                while other && values.next_element::<IgnoredAny>()?.is_some() {}
                Ok(if other { Cell::Other("an array with more than labels in it") } else { Cell::Texts(texts) })
            }

            fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self::Value, A::Error> {
                while fields.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Cell::Other("an object"))
            }
        }
        json.deserialize_any(CellReader)
    }
}

/// Formats a number as a category, with 1.0 as 1.
fn plain(number: &Number) -> String {
    let text = number.to_string();
    words::canonical(&text, words::Form::Number).into_owned()
}

fn brief(text: &str) -> String {
    if text.chars().count() <= CELL_CHARS_MAX {
        text.to_owned()
    } else {
        text.chars().take(CELL_CHARS_MAX).chain("…".chars()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::{Array, StringArray, cast::AsArray, types::Float64Type};
    use proptest::prelude::*;

    fn columns() -> Columns {
        let column = |name: &str, kind| Column { name: name.to_owned(), kind, missing: vec!["NA".to_owned()] };
        let columns = vec![
            column("temp", Kind::Number),
            column("city", Kind::Category { has_truth: false }),
            column("at", Kind::Time),
        ];
        Columns { columns, also: vec!["y".to_owned()] }
    }

    #[test]
    fn objects_and_arrays_are_the_same_table() {
        let objects =
            r#"{"rows": [{"city": "x", "temp": 3.5, "at": 7, "y": [1]}, {"temp": "NA", "city": true, "at": null}]}"#;
        let arrays = r#"{"rows": [[3.5, "x", 7], [null, 1, null]]}"#;
        let one = columns().read(objects.as_bytes(), 2).unwrap();
        let two = columns().read(arrays.as_bytes(), 2).unwrap();
        assert!(one.1 && !two.1);
        assert_eq!(one.0, two.0);
        assert_eq!(one.0.column(0).as_primitive::<Float64Type>().value(0), 3.5);
        assert!(one.0.column(0).is_null(1));
        assert_eq!(one.0.column(1).as_string::<i32>().value(1), "1");
    }

    #[test]
    fn labels_are_a_list_or_one_text() {
        let column = Column { name: "weather".into(), kind: Kind::Labels, missing: vec![] };
        let columns = Columns { columns: vec![column], also: vec![] };
        let body = br#"{"rows": [[["rain", "a;b", 2.0]], ["rain;wind"], [[]], [null]]}"#;
        let (batch, _) = columns.read(body, 9).unwrap();
        let texts: Vec<Option<&str>> = batch.column(0).as_any().downcast_ref::<StringArray>().unwrap().iter().collect();
        assert_eq!(texts, [Some("\u{1f}rain\u{1f}a;b\u{1f}2"), Some("rain;wind"), Some("\u{1f}"), None]);
        let error = columns.read(br#"{"rows": [[["rain", []]]]}"#, 9).unwrap_err().to_string();
        assert_eq!(
            error,
            "row 0, column \"weather\": found an array with more than labels in it, expected a list of labels, one text or null"
        );
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        let error = |body: &str| columns().read(body.as_bytes(), 2).unwrap_err().to_string();
        assert!(error("{").starts_with("the body is no JSON: EOF"));
        assert!(error("[]").starts_with("the body is an array, expected {\"rows\""));
        assert!(error(r#"{"rows": [], "row": 1}"#).starts_with("the body is an object with rows, row, expected {"));
        assert_eq!(error(r#"{"rows": []}"#), "there are no rows");
        assert!(error(r#"{"rows": [1]}"#).starts_with("row 0 is a number"));
        assert!(error(r#"{"rows": [[1, "x", 2], {"temp": 1}]}"#).starts_with("row 1 is an object"));
        assert_eq!(error(r#"{"rows": [[1]]}"#), "row 0 has 1 values, expected 3: temp, city, at");
        let unknown = error(r#"{"rows": [{"city": "x", "tmp": 3.5, "at": 7}]}"#);
        assert_eq!(unknown, "row 0: there is no column \"tmp\", expected temp, city, at");
        assert!(error(r#"{"rows": [{"city": "x", "at": 7}]}"#).starts_with("row 0: column \"temp\" is missing"));
        let more = r#"{"rows": [[1, "x", 2], [1, "x", 2], [1, "x", 2], {"any": ["thing"]}]}"#;
        assert_eq!(error(more), "4 rows, expected at most 2: send them in parts");
        assert_eq!(error(r#"{"rows": [{"temp": 1, "temp": 2}]}"#), "row 0: column \"temp\" comes twice");
        assert!(error(r#"{"rows": 3}"#).starts_with("the body is an object whose rows are a number"));
        let cell = error(r#"{"rows": [[1, "x", 2], ["high", "x", 2]]}"#);
        assert_eq!(cell, "row 1, column \"temp\": found \"high\", expected a number or null");
        assert!(error(r#"{"rows": [[1, [], 2]]}"#).contains("found [], expected a text or null"));
        assert!(error(r#"{"rows": [[1, "x", true]]}"#).contains("expected a time stamp or Unix seconds"));
    }

    proptest! {
        /// Any bytes are a table or an error.
        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200), rows in "[\\[\\]{}\",:0-9a-z ]{0,60}") {
            let _outcome = columns().read(&bytes, 9);
            let _outcome = columns().read(format!("{{\"rows\": [{rows}]}}").as_bytes(), 9);
        }
    }
}
