//! Predictions of requested rows as Arrow and as JSON: the columns of a Parquet file, without identities.

use super::{
    layout::{Layout, Rows},
    table::Table,
};
use arrow_ipc::writer::StreamWriter;
use arrow_schema::ArrowError;
use enn_common::staged::StagedMeta;
use serde_json::Value;

/// The predictions of rows, in the order of the request.
#[derive(Debug, Clone, Copy)]
pub struct SheetRows<'a> {
    /// Names of the samples; empty where the samples are the rows themselves.
    pub names: &'a [String],
    /// The predicted numbers, row-major.
    pub values: &'a [f32],
    /// The status of each row, numbers of `RowStatus`.
    pub status: &'a [u8],
}

#[derive(Debug)]
pub struct Sheet {
    table: Table,
    /// The names of the columns of numbers, as JSON.
    names: Vec<String>,
}

impl Sheet {
    /// Makes the columns; with `named` samples have names. `levels` are those of the predicted quantiles.
    pub fn new(meta: &StagedMeta, levels: &[f64], named: bool) -> Self {
        let table = Table::new(meta, Layout::new(meta, levels), named);
        let names = table.columns().map(|name| Value::from(name).to_string()).collect();
        Self { table, names }
    }

    /// Returns the names of the columns of numbers.
    pub fn columns(&self) -> Vec<String> {
        self.table.columns().map(str::to_owned).collect()
    }

    /// Returns an Arrow IPC stream of one batch.
    ///
    /// # Errors
    /// The error of Arrow for numbers that do not form rows.
    pub fn arrow(&self, rows: &SheetRows<'_>) -> Result<Vec<u8>, ArrowError> {
        let ids: Vec<i64> = (0..rows.status.len() as i64).collect();
        let rows = Rows { ids: &ids, names: rows.names, values: rows.values, status: rows.status };
        let mut writer = StreamWriter::try_new(Vec::new(), self.table.schema())?;
        writer.write(&self.table.batch(&rows)?)?;
        writer.into_inner()
    }

    /// Returns `{"rows": [{COLUMN: NUMBER, …}, …]}`; without `objects` `{"columns": […], "rows": [[NUMBER, …], …]}`. Missing values are
    /// null, and `failed` gives the reason.
    pub fn json(&self, rows: &SheetRows<'_>, objects: bool) -> Vec<u8> {
        let (layout, places) = self.table.layout();
        let ids = vec![0; rows.status.len()];
        let all = Rows { ids: &ids, names: rows.names, values: rows.values, status: rows.status };
        let labels = if layout.classes { layout.labels(&all) } else { Vec::new() };
        let reasons = layout.failed(&all);
        let mut text = String::from("{");
        let texts = |row: usize| {
            let name = rows.names.get(row).map(|name| ("row_name", Some(name.as_str())));
            let label = labels.get(row).map(|label| ("label", label.map(|at| layout.columns[at].as_str())));
            let failed = reasons[row].as_deref();
            // Arrays always contain the field; objects only where it has a value.
            let failed = (!objects || failed.is_some()).then_some(("failed", failed));
            (name, label.into_iter().chain(failed))
        };
        if !objects {
            let mut names: Vec<String> =
                (!rows.names.is_empty()).then(|| "\"row_name\"".to_owned()).into_iter().collect();
            names.extend(self.names.iter().cloned());
            names.extend(layout.classes.then(|| "\"label\"".to_owned()));
            text += &format!("\"columns\":[{},\"failed\"],", names.join(","));
        }
        text += "\"rows\":[";
        let numbers = layout.numbers().max(1);
        for (row, values) in rows.values.chunks(numbers).enumerate().take(rows.status.len()) {
            text += if row == 0 { "" } else { "," };
            text.push(if objects { '{' } else { '[' });
            let (name, behind) = texts(row);
            let mut first = true;
            let mut cell = |key: &str, value: &str| {
                text += if first { "" } else { "," };
                first = false;
                if objects {
                    text += key;
                    text.push(':');
                }
                text += value;
            };
            let json_text = |text: Option<&str>| text.map_or("null".to_owned(), |text| Value::from(text).to_string());
            if let Some((key, name)) = name {
                cell(&format!("\"{key}\""), &json_text(name));
            }
            for (key, place) in self.names.iter().zip(places) {
                cell(key, &number(values[*place]));
            }
            for (key, value) in behind {
                cell(&format!("\"{key}\""), &json_text(value));
            }
            text.push(if objects { '}' } else { ']' });
        }
        text += "]}\n";
        text.into_bytes()
    }
}

/// Returns the shortest text of a number; not finite numbers are null in JSON.
fn number(value: f32) -> String {
    if value.is_finite() { serde_json::to_string(&value).unwrap_or_default() } else { "null".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::Array;
    use arrow_ipc::reader::StreamReader;

    fn meta() -> StagedMeta {
        StagedMeta {
            version: 1,
            digest: String::new(),
            rows: 1,
            features: vec![],
            out_shape: vec![1],
            out_labels: vec![],
            units: "°F".into(),
            persistence: None,
            has_targets: false,
            has_classes: false,
            class_form: None,
            has_weights: false,
            split_rows: [0, 0, 1],
            sources: vec![],
            row_names: vec![],
            x_stats: vec![],
            y_stats: vec![],
            report: enn_common::staged::meta::CleaningReport::default(),
        }
    }

    #[test]
    fn json_and_arrow_say_the_same() {
        let meta = StagedMeta { out_labels: vec![vec!["a".into(), "b\"".into()]], out_shape: vec![2], ..meta() };
        let sheet = Sheet::new(&meta, &[], false);
        let values = [0.1, -2.0, f32::NAN, f32::NAN];
        let status = [0, 1];
        let rows = SheetRows { names: &[], values: &values, status: &status };
        let text = String::from_utf8(sheet.json(&rows, true)).unwrap();
        let failed = "\"failed\":\"no input is valid\"";
        assert_eq!(
            text,
            format!("{{\"rows\":[{{\"a\":0.1,\"b\\\"\":-2.0}},{{\"a\":null,\"b\\\"\":null,{failed}}}]}}\n")
        );
        let flat: Value = serde_json::from_slice(&sheet.json(&rows, false)).unwrap();
        assert_eq!(flat["columns"], serde_json::json!(["a", "b\"", "failed"]));
        assert_eq!(flat["rows"], serde_json::json!([[0.1, -2.0, null], [null, null, "no input is valid"]]));
        let mut stream = StreamReader::try_new(std::io::Cursor::new(sheet.arrow(&rows).unwrap()), None).unwrap();
        let batch = stream.next().unwrap().unwrap();
        assert_eq!((batch.num_rows(), batch.num_columns()), (2, 4));
        assert!(batch.column(1).is_null(1) && batch.column(3).is_null(0));
    }

    #[test]
    fn quantiles_classes_and_names_have_their_columns() {
        let labels = vec![vec!["x".to_owned(), "y".to_owned()]];
        let meta = StagedMeta { out_labels: labels, out_shape: vec![2], has_classes: true, ..meta() };
        let names = ["monday".to_owned()];
        let rows = SheetRows { names: &names, values: &[0.25, 0.75], status: &[0] };
        let text = String::from_utf8(Sheet::new(&meta, &[], true).json(&rows, true)).unwrap();
        assert_eq!(text, "{\"rows\":[{\"row_name\":\"monday\",\"x\":0.25,\"y\":0.75,\"label\":\"y\"}]}\n");
        let meta = StagedMeta { has_classes: false, ..meta };
        let rows = SheetRows { names: &[], values: &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], status: &[0] };
        let text = String::from_utf8(Sheet::new(&meta, &[0.1, 0.5, 0.9], false).json(&rows, true)).unwrap();
        assert_eq!(
            text,
            "{\"rows\":[{\"x\":3.0,\"y\":4.0,\"x@0.1\":1.0,\"x@0.9\":5.0,\"y@0.1\":2.0,\"y@0.9\":6.0}]}\n"
        );
    }
}
