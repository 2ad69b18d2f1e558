//! Every reader of tables, with its file cut at every kibibyte: an error that names the file, or, of text that is cut where a line ends,
//! all rows up to there. Never fewer rows without a word.

use super::{
    bombs_tests::{book, number, ods, shared, xls},
    formats_tests::{workbook, zipped},
    tests::Bench,
};
use arrow_array::{ArrayRef, Float64Array, RecordBatch};
use enn_common::{
    config::data::{DuplicatePolicy, Feature, FeatureKind},
    staged::npy::{Header, NpyElement},
};
use std::{collections::HashMap, fs, sync::Arc};

const ROWS: usize = 1500;

/// Two numbers with as many digits as they have.
fn cells(row: usize) -> [f64; 2] {
    [(row as f64 * 0.7).sin(), (row as f64 * 1.3).cos()]
}

fn batch() -> RecordBatch {
    let column = |at: usize| Arc::new(Float64Array::from_iter_values((0..ROWS).map(|row| cells(row)[at]))) as ArrayRef;
    RecordBatch::try_from_iter([("a", column(0)), ("y", column(1))]).unwrap()
}

fn text() -> Vec<u8> {
    let rows = (0..ROWS).map(|row| format!("{:.9},{:.9}\n", cells(row)[0], cells(row)[1]));
    format!("a,y\n{}", rows.collect::<String>()).into_bytes()
}

fn npy(shape: &[u64], values: &[f64]) -> Vec<u8> {
    let mut bytes = Header::write(NpyElement::F64, shape, 128).unwrap();
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    bytes
}

fn tables() -> Vec<(&'static str, Vec<u8>)> {
    let batch = batch();
    let mut parquet = Vec::new();
    let mut writer = parquet::arrow::ArrowWriter::try_new(&mut parquet, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let mut file = arrow_ipc::writer::FileWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    let mut stream = arrow_ipc::writer::StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    // Several batches: a cut between two of them looks like an end.
    for at in (0..ROWS).step_by(100) {
        file.write(&batch.slice(at, 100)).unwrap();
        stream.write(&batch.slice(at, 100)).unwrap();
    }
    file.finish().unwrap();
    stream.finish().unwrap();
    let column = |at: usize| (0..ROWS).map(|row| cells(row)[at]).collect::<Vec<f64>>();
    let array = |at| npy(&[ROWS as u64], &column(at));
    let bytes = |at| column(at).iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let a = bytes(0);
    let y = bytes(1);
    let view = |bytes| safetensors::tensor::TensorView::new(safetensors::Dtype::F64, vec![ROWS], bytes).unwrap();
    let tensors = safetensors::serialize(HashMap::from([("a", view(&a)), ("y", view(&y))]), None).unwrap();
    let words = |row: usize| cells(row).map(|cell| format!("{cell}")).to_vec();
    let head = vec!["a".to_owned(), "y".to_owned()];
    let sheet: Vec<Vec<String>> = std::iter::once(head).chain((0..ROWS).map(words)).collect();
    let cell = |cell: f64| format!("<table:table-cell office:value-type=\"float\" office:value=\"{cell}\"/>");
    let named = |name: &str| format!("<table:table-cell office:value-type=\"string\" office:string-value=\"{name}\"/>");
    let row = |cells: [String; 2]| format!("<table:table-row>{}</table:table-row>", cells.concat());
    let rows: String = (0..ROWS).map(|at| row(cells(at).map(cell))).collect();
    let old: Vec<Vec<u8>> = [shared(0, 0, 0), shared(0, 1, 1)]
        .into_iter()
        .chain((0..ROWS).flat_map(|row| [0, 1].map(|at| number(row as u16 + 1, at, cells(row)[usize::from(at)]))))
        .collect();
    vec![
        ("t.parquet", parquet),
        ("t.feather", file.into_inner().unwrap()),
        ("t.arrows", stream.into_inner().unwrap()),
        ("t.npy", npy(&[ROWS as u64, 2], &(0..ROWS).flat_map(cells).collect::<Vec<f64>>())),
        ("t.npz", zipped(&[("a.npy", array(0)), ("y.npy", array(1))])),
        ("t.safetensors", tensors),
        ("t.xlsx", workbook(&sheet)),
        ("t.ods", ods(&format!("{}{rows}", row(["a", "y"].map(named))))),
        ("t.xls", xls(&book(&["a", "y"], &old), |_| {})),
    ]
}

fn bench(name: &str, bytes: &[u8]) -> Bench {
    let mut bench = Bench::rows(name, bytes);
    bench.config.duplicates = DuplicatePolicy::Keep;
    if name == "t.npy" {
        bench.layout().features = vec![Feature::new("t[0]", FeatureKind::Number)];
        bench.layout().targets = vec!["t[1]".into()];
    }
    bench
}

#[test]
fn a_table_that_is_cut_at_any_kibibyte_is_an_error_that_names_it() {
    for (name, bytes) in tables() {
        assert!(bytes.len() > 20 << 10, "{name} has {} bytes", bytes.len());
        let bench = bench(name, &bytes);
        assert_eq!(bench.try_stage(1, None).unwrap().meta.rows, ROWS as u64, "{name}");
        for cut in (0..bytes.len()).step_by(1024) {
            fs::write(&bench.config.files[0], &bytes[..cut]).unwrap();
            match bench.try_stage(1, None) {
                Ok(staged) => panic!("{name} cut at byte {cut} of {} has {} rows", bytes.len(), staged.meta.rows),
                Err(error) => assert!(error.to_string().contains(name), "{name} cut at {cut}: {error}"),
            }
        }
    }
}

#[test]
fn a_text_that_is_cut_has_all_rows_up_to_there_or_is_an_error() {
    let bytes = text();
    let bench = bench("t.csv", &bytes);
    let mut whole = 0;
    let ends = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1).skip(1).step_by(60);
    for cut in (0..bytes.len()).step_by(1024).chain(ends) {
        fs::write(&bench.config.files[0], &bytes[..cut]).unwrap();
        let lines = bytes[..cut].iter().filter(|byte| **byte == b'\n').count() as u64;
        let begun = &bytes[..cut][bytes[..cut].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1)..];
        match bench.try_stage(1, None) {
            // The last cell looks whole: the row is there, and people are told that it may be cut.
            Ok(staged) if begun.contains(&b',') => {
                assert_eq!(staged.meta.rows, lines, "cut at {cut}");
                let told = staged
                    .meta
                    .report
                    .warnings
                    .iter()
                    .any(|told| told.contains("t.csv: its last line has no line end"));
                assert!(told, "cut at {cut}: {:?}", staged.meta.report.warnings);
            }
            Ok(staged) => {
                assert!(begun.is_empty(), "cut at {cut}");
                assert_eq!(staged.meta.rows, lines - 1, "cut at {cut}");
                assert!(staged.meta.report.warnings.is_empty(), "{:?}", staged.meta.report.warnings);
                whole += 1;
            }
            Err(error) => assert!(error.to_string().contains("t.csv"), "{error}"),
        }
    }
    assert!(whole > 20, "{whole} cuts at a line end");
}
