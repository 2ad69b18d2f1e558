//! One table in every format: the arrays must be the same.

use super::{tests::Bench, *};
use arrow_array::{
    ArrayRef, BooleanArray, DictionaryArray, Float64Array, Int64Array, RecordBatch, StringArray,
    TimestampMillisecondArray, UInt64Array, types::Int32Type,
};
use enn_common::{
    config::data::{ArraysLayout, DuplicatePolicy, Feature, FeatureKind, RowsLayout, SplitConfig, SplitKind},
    staged::{
        Staged as Arrays,
        npy::{Header, NpyElement},
    },
};
use std::{fs, io::Write, sync::Arc};

/// Rows of the table; more than one piece of a typed source.
const ROWS: usize = 20_000;

fn cells(row: usize) -> (i64, Option<f64>, &'static str, i64, f64) {
    let a = (row % 7 != 3).then_some(row as f64 * 0.25 - 100.0);
    (row as i64 * 3, a, ["red", "green", "blue"][row * row % 3], row as i64 * 3600, row as f64)
}

fn batch() -> RecordBatch {
    let rows = || (0..ROWS).map(cells);
    let id: ArrayRef = Arc::new(Int64Array::from_iter_values(rows().map(|row| row.0)));
    let a: ArrayRef = Arc::new(rows().map(|row| row.1).collect::<Float64Array>());
    let c: ArrayRef = Arc::new(rows().map(|row| row.2).collect::<DictionaryArray<Int32Type>>());
    let t: ArrayRef = Arc::new(TimestampMillisecondArray::from_iter_values(rows().map(|row| row.3 * 1000)));
    let y: ArrayRef = Arc::new(Float64Array::from_iter_values(rows().map(|row| row.4)));
    let text: ArrayRef = Arc::new(StringArray::from_iter_values(rows().map(|row| row.0.to_string())));
    RecordBatch::try_from_iter([("id", id), ("a", a), ("c", c), ("t", t), ("y", y), ("text", text)]).unwrap()
}

fn csv() -> Vec<u8> {
    let mut text = String::from("t;id;a;c;y\n");
    for row in 0..ROWS {
        let (id, a, c, t, y) = cells(row);
        let a = a.map_or("NA".to_string(), |a| a.to_string());
        text.push_str(&format!("{t};{id};{a};{c};{y}\n"));
    }
    text.into_bytes()
}

fn bench(name: &str, bytes: &[u8]) -> Bench {
    let mut bench = Bench::rows(name, bytes);
    let feature = |column: &str, kind| Feature::new(column, kind);
    bench.config.layout = Layout::Rows(RowsLayout {
        features: vec![
            feature("a", FeatureKind::Number),
            feature("c", FeatureKind::Category),
            feature("t", FeatureKind::Time),
        ],
        targets: vec!["y".into()],
        classes: false,
        out_shape: vec![1],
        row_id: Some("id".into()),
    });
    bench.config.split = SplitConfig { kind: SplitKind::Random, val: 0.2, test: 0.2, seed: 5, column: None };
    bench
}

/// Everything but the digest, which knows the format.
fn contents(bench: &Bench) -> (Vec<Vec<u8>>, StagedMeta) {
    let staged = bench.try_stage(2, None).unwrap();
    let files = ["x.npy", "x_mask.npy", "y.npy", "y_mask.npy", "row_id.npy", "split.npy"];
    let arrays = files.map(|file| fs::read(staged.dir.join(file)).unwrap()).to_vec();
    (arrays, StagedMeta { digest: String::new(), ..staged.meta })
}

#[test]
fn every_format_gives_the_same_arrays() {
    let expected = contents(&bench("t.csv", &csv()));
    let batch = batch();
    let mut parquet = Vec::new();
    let mut writer = parquet::arrow::ArrowWriter::try_new(&mut parquet, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let mut file = arrow_ipc::writer::FileWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    file.write(&batch.slice(0, 12_345)).unwrap();
    file.write(&batch.slice(12_345, ROWS - 12_345)).unwrap();
    let file = file.into_inner().unwrap();
    let mut stream = arrow_ipc::writer::StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    stream.write(&batch).unwrap();
    let stream = stream.into_inner().unwrap();
    for (name, bytes) in [("t.parquet", parquet), ("t.feather", file), ("t.arrows", stream)] {
        let found = contents(&bench(name, &bytes));
        assert_eq!(found.1, expected.1, "{name}");
        assert!(found.0 == expected.0, "{name}");
    }
    let mut bad = bench("t.parquet", b"PAR1 but not really");
    assert!(bad.error().contains("t.parquet: cannot be read as Parquet"));
    bad.config.files[0].set_extension("feather");
    fs::write(&bad.config.files[0], b"ARROW1 but not really").unwrap();
    assert!(bad.error().contains("cannot be read as an Arrow IPC file"));
}

#[test]
fn truth_is_the_same_category_in_every_format() {
    let truths = [true, false, true, true];
    let y = [1.0, 2.0, 3.0, 4.0];
    let column: ArrayRef = Arc::new(BooleanArray::from(truths.to_vec()));
    let number: ArrayRef = Arc::new(Float64Array::from(y.to_vec()));
    let batch = RecordBatch::try_from_iter([("a", column), ("y", number)]).unwrap();
    let mut parquet = Vec::new();
    let mut writer = parquet::arrow::ArrowWriter::try_new(&mut parquet, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let csv = |[yes, no]: [&str; 2]| {
        let rows = truths.iter().zip(y).map(|(truth, y)| format!("{},{y}\n", if *truth { yes } else { no }));
        format!("a,y\n{}", rows.collect::<String>()).into_bytes()
    };
    let spelt = [["True", "False"], ["TRUE", "FALSE"], ["true", "false"], ["1", "0"]];
    let tables: Vec<(&str, Vec<u8>)> =
        spelt.map(|words| ("t.csv", csv(words))).into_iter().chain([("t.parquet", parquet)]).collect();
    let staged = |(name, bytes): &(&str, Vec<u8>), training| {
        let mut bench = Bench::rows(name, bytes);
        bench.layout().features = vec![Feature::new("a", FeatureKind::Category)];
        bench.config.duplicates = DuplicatePolicy::Keep;
        let staged = bench.try_stage(2, training).unwrap();
        let x = Arrays::open(&staged.dir).unwrap().x().to_vec();
        (x, staged.meta)
    };
    for trained in &tables {
        let (_, meta) = staged(trained, None);
        for new in &tables {
            let (x, meta) = staged(new, Some(meta.clone()));
            assert_eq!(x, [0.0, 1.0, 0.0, 0.0], "{} {:?}", new.0, meta.features[0].categories);
            assert_eq!(meta.report.columns["a"].unseen_category, 0);
        }
    }
    assert_eq!(staged(&tables[4], None).1.features[0].categories, ["true", "false"]);
}

#[test]
fn a_small_file_that_becomes_a_large_table_is_refused_before_it_does() {
    use arrow_ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
    let batch = batch();
    let options = IpcWriteOptions::default().try_with_compression(Some(arrow_ipc::CompressionType::ZSTD)).unwrap();
    let mut file = FileWriter::try_new_with_options(Vec::new(), &batch.schema(), options.clone()).unwrap();
    file.write(&batch).unwrap();
    let mut stream = StreamWriter::try_new_with_options(Vec::new(), &batch.schema(), options).unwrap();
    stream.write(&batch).unwrap();
    for (name, mut bytes) in [("t.feather", file.into_inner().unwrap()), ("t.arrows", stream.into_inner().unwrap())] {
        let sound = bench(name, &bytes);
        assert_eq!(contents(&sound).1.rows, ROWS as u64);
        // A column of eight bytes a row says that it will be 64 TiB.
        let says = (8 * ROWS as i64).to_le_bytes();
        let at = bytes.windows(8).position(|bytes| bytes == says).unwrap();
        bytes[at..at + 8].copy_from_slice(&(1_i64 << 46).to_le_bytes());
        let error = bench(name, &bytes).error();
        assert!(error.contains("a batch says that it takes 67108864 MiB of memory, and "), "{error}");
    }
}

#[test]
fn repeated_rows_of_a_typed_table_are_found() {
    let once = batch().slice(0, 9000);
    let twice = arrow_ipc::writer::FileWriter::try_new(Vec::new(), &once.schema()).map(|mut writer| {
        writer.write(&once).unwrap();
        writer.write(&once.slice(10, 3)).unwrap();
        writer.into_inner().unwrap()
    });
    let mut bench = bench("t.arrow", &twice.unwrap());
    bench.layout().row_id = None;
    let (staged, _) = bench.stage();
    assert_eq!((staged.meta.rows, staged.meta.report.duplicates), (9000, 3));
}

#[test]
fn ids_that_no_i64_holds_keep_their_digits_and_their_rows() {
    let ids: ArrayRef = Arc::new(UInt64Array::from_iter_values((0..20).map(|row| u64::MAX - row)));
    let y: ArrayRef = Arc::new(Float64Array::from_iter_values((0..20).map(f64::from)));
    let batch = RecordBatch::try_from_iter([("id", ids), ("a", Arc::clone(&y)), ("y", y)]).unwrap();
    let mut writer = arrow_ipc::writer::FileWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    writer.write(&batch).unwrap();
    let mut bench = bench("t.arrow", &writer.into_inner().unwrap());
    bench.layout().features.truncate(1);
    let (staged, _) = bench.stage();
    // As f64 all of them would be one, and nineteen rows its repetitions.
    assert_eq!((staged.meta.rows, staged.meta.report.duplicates), (20, 0));
    assert_eq!(staged.meta.row_names[..2], ["18446744073709551615", "18446744073709551614"]);
}

#[test]
fn a_text_in_a_typed_column_is_named_by_its_row() {
    let mut writer = arrow_ipc::writer::FileWriter::try_new(Vec::new(), &batch().schema()).unwrap();
    writer.write(&batch()).unwrap();
    let mut bench = bench("t.arrow", &writer.into_inner().unwrap());
    bench.layout().features[0].column = "c".into();
    bench.layout().features.truncate(1);
    let error = bench.error();
    assert!(
        error.contains("t.arrow, row 1, column \"c\": found \"red\", expected a number like the rest of the column")
    );
    assert!(error.ends_with("those of a target with target_kind = \"category\""), "{error}");
}

/// A workbook with one sheet of inline cells, as small as the format allows.
pub(super) fn workbook(rows: &[Vec<String>]) -> Vec<u8> {
    zipped(&workbook_files(rows).map(|(name, text)| (name, text.into_bytes())))
}

pub(super) fn workbook_files(rows: &[Vec<String>]) -> [(&'static str, String); 5] {
    let mut sheet = String::from(
        "<?xml version=\"1.0\"?><worksheet xmlns=\"http://schemas.openxmlformats.org/spreadsheetml/2006/main\"><sheetData>",
    );
    for (number, row) in rows.iter().enumerate() {
        sheet.push_str(&format!("<row r=\"{}\">", number + 1));
        for (column, cell) in row.iter().enumerate().filter(|(_, cell)| !cell.is_empty()) {
            let place = format!("{}{}", char::from(b'A' + column as u8), number + 1);
            match cell.parse::<f64>() {
                Ok(_) => sheet.push_str(&format!("<c r=\"{place}\"><v>{cell}</v></c>")),
                Err(_) => sheet.push_str(&format!("<c r=\"{place}\" t=\"inlineStr\"><is><t>{cell}</t></is></c>")),
            }
        }
        sheet.push_str("</row>");
    }
    sheet.push_str("</sheetData></worksheet>");
    let relations = "http://schemas.openxmlformats.org/officeDocument/2006/relationships";
    let package = "http://schemas.openxmlformats.org/package/2006";
    [
        (
            "[Content_Types].xml",
            format!(
                "<Types xmlns=\"{package}/content-types\"><Default Extension=\"rels\" ContentType=\"application/vnd.openxmlformats-package.relationships+xml\"/>\
             <Default Extension=\"xml\" ContentType=\"application/xml\"/></Types>"
            ),
        ),
        (
            "_rels/.rels",
            format!(
                "<Relationships xmlns=\"{package}/relationships\"><Relationship Id=\"r1\" Type=\"{relations}/officeDocument\" Target=\"xl/workbook.xml\"/></Relationships>"
            ),
        ),
        (
            "xl/workbook.xml",
            format!(
                "<workbook xmlns=\"http://schemas.openxmlformats.org/spreadsheetml/2006/main\" xmlns:r=\"{relations}\"><sheets>\
             <sheet name=\"data\" sheetId=\"1\" r:id=\"r1\"/></sheets></workbook>"
            ),
        ),
        (
            "xl/_rels/workbook.xml.rels",
            format!(
                "<Relationships xmlns=\"{package}/relationships\"><Relationship Id=\"r1\" Type=\"{relations}/worksheet\" Target=\"worksheets/sheet1.xml\"/></Relationships>"
            ),
        ),
        ("xl/worksheets/sheet1.xml", sheet),
    ]
}

pub(super) fn zipped(files: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, bytes) in files {
        zip.start_file(*name, zip::write::SimpleFileOptions::default()).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

#[test]
fn a_workbook_is_a_table() {
    let strings = |row: [&str; 3]| row.map(str::to_string).to_vec();
    let rows = [strings(["a", "c", "y"]), strings(["1.5", "x", "2"]), strings(["", "", ""]), strings(["NA", "y", "3"])];
    let mut bench = Bench::rows("t.xlsx", &workbook(&rows));
    let feature = |column: &str, kind| Feature::new(column, kind);
    bench.layout().features = vec![feature("a", FeatureKind::Number), feature("c", FeatureKind::Category)];
    let (staged, arrays) = bench.stage();
    assert_eq!((arrays.rows(), arrays.y()), (2, [2.0, 3.0].as_slice()));
    assert_eq!((arrays.x_row(0), arrays.x_row(1)[1]), ([1.5, 0.0].as_slice(), 1.0));
    assert_eq!((arrays.x_mask(), staged.meta.report.columns["a"].missing), ([1, 1, 0, 1].as_slice(), 1));
    bench.config.sheet = Some("absent".into());
    assert!(bench.error().ends_with("t.xlsx: has no sheet \"absent\"; it has \"data\""));
    let bad = [strings(["a", "c", "y"]), strings(["1", "x", "2"]), strings(["one", "x", "2"])];
    bench.config.sheet = None;
    fs::write(&bench.config.files[0], workbook(&bad)).unwrap();
    let error = bench.error();
    assert!(error.contains("t.xlsx, row 2, column \"a\": found \"one\""), "{error}");
    let bench = Bench::rows("t.xlsx", b"PK nothing");
    assert!(bench.error().contains("t.xlsx: cannot be read as a workbook"));
}

#[test]
fn a_cell_far_away_does_not_make_a_sheet_of_all_between() {
    let rows = [["a", "y"], ["1.5", "2"]].map(|row| row.map(str::to_string).to_vec());
    let files = workbook_files(&rows).map(|(name, text)| (name, text.replace("\"B2\"", "\"XFD1048576\"").into_bytes()));
    let error = Bench::rows("t.xlsx", &zipped(&files)).error();
    assert!(error.contains("sheet \"data\"") && error.contains("17179869184"), "{error}");
}

fn npy(element: NpyElement, shape: &[u64], data: &[u8]) -> Vec<u8> {
    let mut bytes = Header::write(element, shape, 128).unwrap();
    bytes.extend_from_slice(data);
    bytes
}

/// x (5, 2) f64 with a NaN and an inf, y (5, 1, 2) f32, ids (5) i32.
fn arrays() -> [(&'static str, NpyElement, Vec<u64>, Vec<u8>); 3] {
    let x = [0.0, 1.0, 2.0, f64::NAN, 4.0, 5.0, f64::INFINITY, 7.0, 8.0, 9.0];
    let y: Vec<f32> = (0..10).map(|i| i as f32 * 10.0).collect();
    let ids = [5i32, 4, 3, 2, 1];
    [
        ("x", NpyElement::F64, vec![5, 2], x.iter().flat_map(|v| v.to_le_bytes()).collect()),
        ("y", NpyElement::F32, vec![5, 1, 2], y.iter().flat_map(|v| v.to_le_bytes()).collect()),
        ("ids", NpyElement::I32, vec![5], ids.iter().flat_map(|v| v.to_le_bytes()).collect()),
    ]
}

fn array_bench(name: &str, bytes: &[u8]) -> Bench {
    let mut bench = Bench::rows(name, bytes);
    let layout = ArraysLayout { x: "x".into(), y: "y".into(), row_id: Some("ids".into()) };
    bench.config.layout = Layout::Arrays(layout);
    bench
}

fn check_arrays(bench: &Bench) {
    let (staged, arrays) = bench.stage();
    let meta = &staged.meta;
    assert_eq!((arrays.rows(), meta.out_shape.as_slice()), (5, [1, 2].as_slice()));
    assert_eq!(arrays.row_id(), [5, 4, 3, 2, 1]);
    assert_eq!(arrays.x_mask(), [1, 1, 1, 0, 1, 1, 0, 1, 1, 1]);
    assert_eq!((arrays.x_row(4), arrays.y_row(4)), ([8.0, 9.0].as_slice(), [80.0, 90.0].as_slice()));
    assert_eq!((meta.report.columns["x"].missing, meta.report.columns["x"].non_finite), (1, 1));
    assert_eq!(meta.features[1].name, "x[1]");
    assert_eq!((meta.x_stats[0].n, meta.x_stats[0].mean), (4, 3.5));
}

#[test]
fn arrays_of_every_container_are_samples() {
    let all = arrays();
    let files: Vec<(String, Vec<u8>)> =
        all.iter().map(|(name, element, shape, data)| (format!("{name}.npy"), npy(*element, shape, data))).collect();
    let named: Vec<(&str, Vec<u8>)> = files.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect();
    check_arrays(&array_bench("t.npz", &zipped(&named)));
    let dtype = |element| match element {
        NpyElement::F64 => safetensors::Dtype::F64,
        NpyElement::F32 => safetensors::Dtype::F32,
        _ => safetensors::Dtype::I32,
    };
    let views = all.iter().map(|(name, element, shape, data)| {
        let shape = shape.iter().map(|size| *size as usize).collect();
        (*name, safetensors::tensor::TensorView::new(dtype(*element), shape, data).unwrap())
    });
    let bytes = safetensors::serialize(views, None).unwrap();
    check_arrays(&array_bench("t.safetensors", &bytes));
    let header = [br#"{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"#, &bytes[9..]].concat();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) + (header.len() - bytes[8..].len()) as u64;
    let twice = array_bench("t.safetensors", &[length.to_le_bytes().as_slice(), &header].concat()).error();
    assert!(twice.contains("cannot be read as safetensors: its header has \"x\" twice"), "{twice}");
    let mut bench = array_bench("x.npy", &files[0].1);
    for (name, bytes) in &files[1..] {
        let path = bench.dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        bench.config.files.push(path);
    }
    check_arrays(&bench);
    // The same arrays as the columns of a table.
    let mut bench = Bench::rows("t.npz", &zipped(&named));
    bench.layout().features = vec![Feature::new("x[0]", FeatureKind::Number)];
    bench.layout().targets = vec!["y[1]".into()];
    bench.layout().row_id = Some("ids".into());
    let (_, table) = bench.stage();
    assert_eq!((table.y(), table.row_id()), ([10.0, 30.0, 50.0, 70.0, 90.0].as_slice(), [5, 4, 3, 2, 1].as_slice()));
}

#[test]
fn an_array_of_no_rows_has_no_columns() {
    // A name for each of 2⁴⁰ columns would be more than there is memory for.
    let mut bench = Bench::rows("a.npy", &npy(NpyElement::F32, &[0, 1 << 40], &[]));
    assert!(bench.error().contains("the first array has no rows"));
    let wide = vec![0; 100_001];
    bench = Bench::rows("a.npy", &npy(NpyElement::U8, &[1, 100_001], &wide));
    assert!(bench.error().contains("found a table of 100001 columns, expected at most 100000"), "{}", bench.error());
}

#[test]
fn arrays_that_do_not_fit_are_one_sentence() {
    let [x, y, ids] = arrays();
    let pack = |arrays: &[(&str, NpyElement, &[u64], &[u8])]| {
        let files: Vec<(String, Vec<u8>)> = arrays
            .iter()
            .map(|(name, element, shape, data)| (format!("{name}.npy"), npy(*element, shape, data)))
            .collect();
        let named: Vec<(&str, Vec<u8>)> = files.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect();
        array_bench("t.npz", &zipped(&named)).error()
    };
    let text = pack(&[("x", x.1, &x.2, &x.3), ("y", y.1, &[4, 2], &y.3[..32]), ("ids", ids.1, &ids.2, &ids.3)]);
    assert!(text.ends_with("t.npz: array \"y\" has shape [4, 2], expected 5 rows like \"x\""), "{text}");
    let text = pack(&[("x", x.1, &[5, 1, 2], &x.3), ("y", y.1, &y.2, &y.3), ("ids", ids.1, &ids.2, &ids.3)]);
    assert!(text.contains("\"x\" has shape [5, 1, 2], expected (rows, inputs)"), "{text}");
    let large: Vec<u8> = (0..5).flat_map(|row| (u64::MAX - row).to_le_bytes()).collect();
    let text = pack(&[("x", x.1, &x.2, &x.3), ("y", y.1, &y.2, &y.3), ("ids", NpyElement::U64, &[5], &large)]);
    assert!(text.contains("data.arrays.row_id: found 184467440737095516"), "{text}");
    let text = pack(&[("X", x.1, &x.2, &x.3)]);
    assert!(text.ends_with("t.npz: has no array \"x\"; it has \"X\""), "{text}");
    let text = pack(&[("x", x.1, &[50, 2], &x.3)]);
    assert!(text.contains("array \"x\": it ends early"), "{text}");
}

#[test]
fn arrays_to_predict_need_no_targets() {
    let all = arrays();
    let file = |index: usize| {
        let (name, element, shape, data) = &all[index];
        (format!("{name}.npy"), npy(*element, shape, data))
    };
    let x = file(0);
    let y = file(1);
    let ids = file(2);
    let training = array_bench("t.npz", &zipped(&[(&x.0, x.1.clone()), (&y.0, y.1), (&ids.0, ids.1.clone())]));
    let trained = training.try_stage(1, None).unwrap();
    let bench = array_bench("t.npz", &zipped(&[(&x.0, x.1), (&ids.0, ids.1)]));
    let staged = bench.try_stage(1, Some(trained.meta.clone())).unwrap();
    assert_eq!((staged.meta.has_targets, &staged.meta.out_shape), (false, &trained.meta.out_shape));
    assert_eq!(Arrays::open(&staged.dir).unwrap().split(), [2; 5]);
}
