//! Readers of data sets: the tables and arrays that are staged, and the staged directories themselves.

use crate::readers::{in_place, room};
use arrow_array::{
    ArrayRef, DictionaryArray, Float64Array, Int64Array, RecordBatch, StringArray, TimestampMillisecondArray,
    types::Int32Type,
};
use arrow_ipc::{
    CompressionType,
    writer::{FileWriter, IpcWriteOptions},
};
use enn_common::{
    config::data::{
        ArraysLayout, DataConfig, DuplicatePolicy, Feature, FeatureKind, Layout, RowsLayout, SplitConfig, SplitKind,
        TargetMask,
    },
    staged::{
        META, Split, Staged, StagedMeta, Sums,
        meta::{CleaningReport, FeatureMeta, Stats},
        npy::{Header, NpyElement},
        sums::SUMS,
        unfinished::{Journal, PROGRESS, ResumePoint},
    },
};
use enn_data::stage::{FileBatches, StageOptions, stage};
use parquet::{
    arrow::ArrowWriter,
    basic::{Compression, ZstdLevel},
    file::properties::WriterProperties,
};
use std::{
    fs::{self, File},
    io::{Cursor, Write},
    path::{Path, PathBuf},
    sync::Arc,
};
use zip::{CompressionMethod, ZipWriter, write::SimpleFileOptions};

/// Rows that are read as a table, or as arrays where `arrays` says so.
pub(crate) fn config(files: Vec<PathBuf>, arrays: bool) -> DataConfig {
    let feature = |(column, kind)| Feature::new(column, kind);
    let rows = || RowsLayout {
        features: [("a", FeatureKind::Number), ("c", FeatureKind::Category), ("t", FeatureKind::Time)]
            .map(feature)
            .to_vec(),
        targets: vec!["y".into()],
        classes: false,
        out_shape: vec![1],
        row_id: Some("id".into()),
    };
    let layout = match arrays {
        true => Layout::Arrays(ArraysLayout { x: "x".into(), y: "y".into(), row_id: Some("ids".into()) }),
        false => Layout::Rows(rows()),
    };
    DataConfig {
        files,
        sources: vec![],
        format: None,
        sheet: None,
        missing: vec!["NA".into()],
        duplicates: DuplicatePolicy::First,
        layout,
        split: SplitConfig { kind: SplitKind::Random, val: 0.2, test: 0.2, seed: 5, column: None },
        units: String::new(),
        input_units: Default::default(),
        ranges: vec![],
        weight: None,
        mask: TargetMask::Finite,
    }
}

/// What training data with these columns, each with its categories, and one output were.
pub(crate) fn meta(columns: &[(&str, &[&str])]) -> StagedMeta {
    let stats = Stats { n: 10, mean: 1.5, std: 1.0, min: 0.0, max: 1000.0 };
    let named = |(name, categories): &(&str, &[&str])| FeatureMeta {
        name: (*name).into(),
        has_missing: true,
        categories: categories.iter().map(|text| (*text).to_owned()).collect(),
        ..FeatureMeta::default()
    };
    StagedMeta {
        version: 1,
        digest: "ab".repeat(32),
        rows: 10,
        features: columns.iter().map(named).collect(),
        out_shape: vec![1],
        out_labels: vec![vec!["y".into()]],
        units: String::new(),
        persistence: None,
        has_targets: true,
        has_classes: false,
        class_form: None,
        has_weights: false,
        split_rows: [10, 0, 0],
        sources: vec![],
        row_names: vec![],
        x_stats: vec![stats; columns.len()],
        y_stats: vec![stats],
        report: CleaningReport::default(),
    }
}

/// Stages a file of this name; where it went, if it did.
fn staged(dir: &Path, file: &str, bytes: &[u8], arrays: bool) -> Option<PathBuf> {
    let path = dir.join(file);
    let out = dir.join("out");
    fs::write(&path, bytes).unwrap();
    _ = fs::remove_dir_all(&out);
    let options = StageOptions { out, threads: 1, for_prediction: None };
    stage(&config(vec![path], arrays), &options, &mut |_| {}).ok().map(|staged| staged.dir)
}

fn table(file: &str, bytes: &[u8]) {
    in_place(|dir| drop(staged(dir, file, bytes, false)));
}

/// That the seeds are sound: each becomes a staged directory.
fn sound(seeds: Vec<Vec<u8>>, file: impl Fn(&[u8]) -> &'static str, arrays: bool) -> Vec<Vec<u8>> {
    for seed in &seeds {
        in_place(|dir| assert!(staged(dir, file(seed), seed, arrays).is_some(), "a sound {}", file(seed)));
    }
    seeds
}

fn csv_text(separator: &str, end: &str, quote: &str) -> Vec<u8> {
    let mut text = ["id", "a", "c", "t", "y"].join(separator) + end;
    for row in 0..20 {
        let a = if row % 7 == 3 { "NA".to_owned() } else { format!("{}.25", row - 9) };
        let c = format!("{quote}{}{quote}", ["red", "Zürich", "b"][row as usize % 3]);
        let cells = [row.to_string(), a, c, format!("2024-02-{:02}T06:00:00+01:00", row + 1), (row * row).to_string()];
        text += &(cells.join(separator) + end);
    }
    text.into_bytes()
}

pub(crate) fn csv_seeds() -> Vec<Vec<u8>> {
    let marked = [b"\xef\xbb\xbf".to_vec(), csv_text(",", "\n", "\"")].concat();
    sound(
        vec![csv_text(",", "\n", ""), csv_text(";", "\r\n", "\""), csv_text("\t", "\n", ""), marked],
        |_| "t.csv",
        false,
    )
}

pub(crate) fn csv(bytes: &[u8]) {
    table("t.csv", bytes);
}

fn batch() -> RecordBatch {
    let rows = || 0..20_i64;
    let id: ArrayRef = Arc::new(Int64Array::from_iter_values(rows()));
    let a: ArrayRef = Arc::new(rows().map(|row| (row % 7 != 3).then_some(row as f64 / 4.0)).collect::<Float64Array>());
    let c: ArrayRef =
        Arc::new(rows().map(|row| ["red", "b"][row as usize % 2]).collect::<DictionaryArray<Int32Type>>());
    let t: ArrayRef = Arc::new(TimestampMillisecondArray::from_iter_values(rows().map(|row| row * 3_600_000)));
    let y: ArrayRef = Arc::new(Float64Array::from_iter_values(rows().map(|row| (row * row) as f64)));
    let text: ArrayRef = Arc::new(StringArray::from_iter_values(rows().map(|row| row.to_string())));
    RecordBatch::try_from_iter([("id", id), ("a", a), ("c", c), ("t", t), ("y", y), ("text", text)]).unwrap()
}

pub(crate) fn parquet_seeds() -> Vec<Vec<u8>> {
    let written = |compression| {
        let properties = WriterProperties::builder().set_compression(compression).build();
        let mut writer = ArrowWriter::try_new(Vec::new(), batch().schema(), Some(properties)).unwrap();
        writer.write(&batch()).unwrap();
        writer.into_inner().unwrap()
    };
    let all = [Compression::UNCOMPRESSED, Compression::SNAPPY, Compression::ZSTD(ZstdLevel::default())];
    sound(all.map(written).to_vec(), |_| "t.parquet", false)
}

pub(crate) fn parquet(bytes: &[u8]) {
    table("t.parquet", bytes);
}

pub(crate) fn arrow_file_seeds() -> Vec<Vec<u8>> {
    let written = |codec| {
        let options = IpcWriteOptions::default().try_with_compression(codec).unwrap();
        let mut writer = FileWriter::try_new_with_options(Vec::new(), &batch().schema(), options).unwrap();
        writer.write(&batch()).unwrap();
        writer.into_inner().unwrap()
    };
    let all = [None, Some(CompressionType::ZSTD), Some(CompressionType::LZ4_FRAME)];
    sound(all.map(written).to_vec(), |_| "t.arrow", false)
}

/// Staging takes what a file says that it will be where the host has room for it: more than this reader may. So it does not get those
/// that say so.
pub(crate) fn arrow_file(bytes: &[u8]) {
    in_place(|dir| {
        let path = dir.join("t.arrow");
        fs::write(&path, bytes).unwrap();
        let Ok(batches) = FileBatches::open(File::open(&path).unwrap(), None, room) else { return };
        if batches.take(8).all(|batch| batch.is_ok()) {
            staged(dir, "t.arrow", bytes, false);
        }
    });
}

/// A zip whose files lie in it as they are, so that what damages it damages them.
fn zipped(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in files {
        zip.start_file(*name, SimpleFileOptions::default().compression_method(CompressionMethod::Stored)).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

/// A workbook with this sheet.
fn workbook(sheet: &[u8]) -> Vec<u8> {
    let package = "http://schemas.openxmlformats.org/package/2006";
    let office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships";
    let main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main";
    let types = format!(
        "<Types xmlns=\"{package}/content-types\"><Default Extension=\"xml\" ContentType=\"application/xml\"/></Types>"
    );
    let relation = |id: &str, kind: &str, target: &str| {
        format!(
            "<Relationships xmlns=\"{package}/relationships\"><Relationship Id=\"{id}\" Type=\"{office}/{kind}\" \
             Target=\"{target}\"/></Relationships>"
        )
    };
    let book = format!(
        "<workbook xmlns=\"{main}\" xmlns:r=\"{office}\"><sheets><sheet name=\"data\" sheetId=\"1\" r:id=\"r1\"/></sheets></workbook>"
    );
    zipped(&[
        ("[Content_Types].xml", types.as_bytes()),
        ("_rels/.rels", relation("r1", "officeDocument", "xl/workbook.xml").as_bytes()),
        ("xl/workbook.xml", book.as_bytes()),
        ("xl/_rels/workbook.xml.rels", relation("r1", "worksheet", "worksheets/sheet1.xml").as_bytes()),
        ("xl/worksheets/sheet1.xml", sheet),
    ])
}

/// Sheets, which the reader puts into a sound workbook: a damaged zip ends most of what is behind it.
pub(crate) fn workbook_seeds() -> Vec<Vec<u8>> {
    let main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main";
    let mut sheet = format!("<?xml version=\"1.0\"?><worksheet xmlns=\"{main}\"><dimension ref=\"A1:E9\"/><sheetData>");
    for row in 0..9 {
        sheet += &format!("<row r=\"{}\">", row + 1);
        for (at, column) in ["id", "a", "c", "t", "y"].into_iter().enumerate() {
            let place = format!("{}{}", char::from(b'A' + at as u8), row + 1);
            sheet += &match (row, at) {
                (0, _) | (_, 2) => format!("<c r=\"{place}\" t=\"inlineStr\"><is><t>{column}</t></is></c>"),
                _ => format!("<c r=\"{place}\"><v>{}.5</v></c>", row * 10 + at),
            };
        }
        sheet += "</row>";
    }
    let sheet = (sheet + "</sheetData></worksheet>").into_bytes();
    vec![workbook(&sheet), sheet]
}

pub(crate) fn workbooks(bytes: &[u8]) {
    match bytes.starts_with(b"PK") {
        true => table("t.xlsx", bytes),
        false => table("t.xlsx", &workbook(bytes)),
    }
}

fn npy(element: NpyElement, shape: &[u64], data: &[u8]) -> Vec<u8> {
    let mut bytes = Header::write(element, shape, 128).unwrap();
    bytes.extend_from_slice(data);
    bytes
}

pub(crate) fn array_seeds() -> Vec<Vec<u8>> {
    let x: Vec<u8> = (0..20).flat_map(|at| f64::from(at).to_le_bytes()).collect();
    let y: Vec<u8> = (0..20).flat_map(|at| (at as f32).to_le_bytes()).collect();
    let ids: Vec<u8> = (0..10_i32).flat_map(i32::to_le_bytes).collect();
    let all = [
        ("x", NpyElement::F64, safetensors::Dtype::F64, vec![10, 2], x),
        ("y", NpyElement::F32, safetensors::Dtype::F32, vec![10, 1, 2], y),
        ("ids", NpyElement::I32, safetensors::Dtype::I32, vec![10], ids),
    ];
    let files: Vec<(String, Vec<u8>)> =
        all.iter().map(|(name, element, _, shape, data)| (format!("{name}.npy"), npy(*element, shape, data))).collect();
    let named: Vec<(&str, &[u8])> = files.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
    let views = all.iter().map(|(name, _, dtype, shape, data)| {
        let shape = shape.iter().map(|size| *size as usize).collect();
        (*name, safetensors::tensor::TensorView::new(*dtype, shape, data).unwrap())
    });
    let mut seeds = sound(vec![zipped(&named), safetensors::serialize(views, None).unwrap()], array_name, true);
    seeds.push(files[0].1.clone());
    seeds
}

fn array_name(bytes: &[u8]) -> &'static str {
    match bytes {
        [b'P', b'K', ..] => "t.npz",
        [0x93, ..] => "x.npy",
        _ => "t.safetensors",
    }
}

/// As arrays, and as a table with their elements for columns.
pub(crate) fn arrays(bytes: &[u8]) {
    in_place(|dir| {
        staged(dir, array_name(bytes), bytes, true);
        staged(dir, array_name(bytes), bytes, false);
    });
}

/// A sound staged directory of this thread, and its files.
fn sound_dir(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let sound = dir.join("sound");
    if !sound.exists() {
        let made = staged(dir, "t.csv", &csv_text(",", "\n", ""), false).unwrap();
        fs::rename(made, &sound).unwrap();
    }
    let names = [META, SUMS, "x.npy", "y_mask.npy", "row_id.npy", "split.npy"];
    names.map(|name| (sound.join(name), fs::read(sound.join(name)).unwrap())).to_vec()
}

pub(crate) fn staged_seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    in_place(|dir| {
        seeds.extend(sound_dir(dir).into_iter().map(|(_, bytes)| bytes));
        assert!(Staged::open(&dir.join("sound")).is_ok());
        let unfinished = dir.join("unfinished");
        fs::create_dir_all(&unfinished).unwrap();
        let (mut journal, _) = Journal::open(&unfinished).unwrap();
        let mark = ResumePoint { rows: 7, at: Some(100), counts: vec![[1, 2, 3, 4]], ..ResumePoint::default() };
        (0..3).for_each(|_| journal.append(&mark).unwrap());
        seeds.push(fs::read(unfinished.join(PROGRESS)).unwrap());
    });
    seeds
}

/// In the place of each file in turn.
pub(crate) fn staged_dirs(bytes: &[u8]) {
    in_place(|dir| {
        for (path, sound) in sound_dir(dir) {
            fs::write(&path, bytes).unwrap();
            if let Ok(open) = Staged::open(&dir.join("sound")) {
                for row in Split::ALL.into_iter().flat_map(|split| open.rows_of(split)) {
                    let _ = (open.x_row(row), open.x_mask_row(row), open.y_row(row), open.y_mask_row(row));
                    assert!(open.row_id().len() > row);
                }
            }
            if let Ok(Some(sums)) = Sums::read(&dir.join("sound")) {
                let _ = (sums.bytes(), sums.verify(&dir.join("sound"), &mut |_| {}));
            }
            fs::write(&path, sound).unwrap();
        }
        let unfinished = dir.join("unfinished");
        fs::create_dir_all(&unfinished).unwrap();
        fs::write(unfinished.join(PROGRESS), bytes).unwrap();
        let _ = Journal::open(&unfinished);
    });
}
