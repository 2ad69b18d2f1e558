//! Small files that say, or unpack to, more than memory holds: each is refused, in little memory and time.

use super::{
    formats_tests::{workbook_files, zipped},
    tests::Bench,
    *,
};
use enn_common::config::data::{ArraysLayout, SourceFormat};
use enn_common::staged::npy::{Header, NpyElement};
use std::fs;

/// Memory that a refusal may take, beside what the test itself needs.
const BYTES_MAX: u64 = 200 << 20;

/// Most memory that this process had at a time.
fn peak_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// The refusal of a file, which took little memory.
fn refused(name: &str, bytes: &[u8]) -> String {
    assert!(bytes.len() < 4 << 20, "{name} has {} bytes", bytes.len());
    let bench = Bench::rows(name, bytes);
    let before = peak_bytes();
    let error = bench.error();
    assert!(peak_bytes() - before < BYTES_MAX, "{name} took {} MiB", (peak_bytes() - before) >> 20);
    assert!(error.contains(name), "{error}");
    error
}

fn header() -> Vec<Vec<String>> {
    vec![vec!["a".to_owned(), "y".to_owned()], vec!["1".to_owned(), "2".to_owned()]]
}

/// A workbook with other parts in place of, or beside, its own.
fn xlsx(parts: &[(&'static str, String)]) -> Vec<u8> {
    let mut files: Vec<(&str, Vec<u8>)> =
        workbook_files(&header()).into_iter().map(|(name, text)| (name, text.into_bytes())).collect();
    files.retain(|(name, _)| parts.iter().all(|(other, _)| other != name));
    files.extend(parts.iter().map(|(name, text)| (*name, text.clone().into_bytes())));
    zipped(&files)
}

fn sheet(cells: &str) -> (&'static str, String) {
    ("xl/worksheets/sheet1.xml", format!("<worksheet><sheetData>{cells}</sheetData></worksheet>"))
}

#[test]
fn what_a_workbook_says_of_its_texts_takes_no_memory() {
    let strings = |text: String| ("xl/sharedStrings.xml", text);
    let said = xlsx(&[strings("<sst uniqueCount=\"4294967295\"><si><t>x</t></si></sst>".to_owned())]);
    let error = refused("t.xlsx", &said);
    assert!(error.contains("uniqueCount=4294967295") && error.contains("hint: save the sheet as CSV"), "{error}");
    let many = xlsx(&[strings(format!("<sst>{}</sst>", "<si/>".repeat(6_000_001)))]);
    assert!(refused("t.xlsx", &many).contains("more shared texts than cells"));
    let long = xlsx(&[strings(format!("<sst><si><t>{}</t></si></sst>", "x".repeat(5 << 20)))]);
    assert!(refused("t.xlsx", &long).contains("an element of more bytes than a cell can have"));
    let pieces = xlsx(&[strings(format!("<sst><si>{}</si></sst>", "<r><t>xxxxxxxxxx</t></r>".repeat(200_000)))]);
    assert!(refused("t.xlsx", &pieces).contains("an element of more bytes than a cell can have"));
    // A wrong count that does no harm is none.
    let wrong = xlsx(&[strings("<sst uniqueCount=\"1000\"><si><t>x</t></si></sst>".to_owned())]);
    assert_eq!(Bench::rows("t.xlsx", &wrong).stage().1.rows(), 1);
}

#[test]
fn a_text_that_many_cells_share_is_counted_for_each() {
    let strings = format!("<sst><si><t>{}</t></si></sst>", "x".repeat(1 << 20));
    let cells: String =
        (2..400).map(|row| format!("<row r=\"{row}\"><c r=\"A{row}\" t=\"s\"><v>0</v></c></row>")).collect();
    let first = "<row r=\"1\"><c r=\"A1\" t=\"inlineStr\"><is><t>a</t></is></c></row>";
    let bomb = xlsx(&[("xl/sharedStrings.xml", strings), sheet(&format!("{first}{cells}"))]);
    assert!(bomb.len() < 1 << 16);
    let bench = Bench::rows("t.xlsx", &bomb);
    let error = bench.error();
    assert!(error.contains("bytes of text or more, expected at most 268435456"), "{error}");
}

#[test]
fn formats_that_copy_a_long_font_are_refused() {
    let font = format!("<fonts><font><name val=\"{}\"/></font></fonts>", "x".repeat(1 << 20));
    let formats = format!("<cellXfs>{}</cellXfs>", "<xf fontId=\"0\"/>".repeat(100_000));
    let bomb = xlsx(&[("xl/styles.xml", format!("<styleSheet>{font}{formats}</styleSheet>"))]);
    assert!(refused("t.xlsx", &bomb).contains("formats that take too many bytes"));
    let formats = format!("<cellXfs>{}</cellXfs>", "<xf/>".repeat(300_000));
    let bomb = xlsx(&[("xl/styles.xml", format!("<styleSheet>{formats}</styleSheet>"))]);
    assert!(refused("t.xlsx", &bomb).contains("more formats, names and sheets"));
}

/// A sheet of OpenDocument with these rows.
pub(super) fn ods(rows: &str) -> Vec<u8> {
    let content = format!(
        "<office:document-content><office:body><office:spreadsheet><table:table table:name=\"one\"><table:table-column/>{rows}\
         </table:table><table:table table:name=\"two\"/></office:spreadsheet></office:body></office:document-content>"
    );
    let mimetype = b"application/vnd.oasis.opendocument.spreadsheet".to_vec();
    let manifest = b"<manifest:manifest/>".to_vec();
    zipped(&[("mimetype", mimetype), ("META-INF/manifest.xml", manifest), ("content.xml", content.into_bytes())])
}

fn ods_text(text: &str) -> String {
    format!("<table:table-cell office:value-type=\"string\"><text:p>{text}</text:p></table:table-cell>")
}

#[test]
fn a_sheet_of_opendocument_is_a_table() {
    let number = |value: &str, more: &str| {
        format!(
            "<table:table-cell office:value-type=\"float\" office:value=\"{value}\"{more}><text:p>?</text:p></table:table-cell>"
        )
    };
    let row = |cells: &[String]| format!("<table:table-row>{}</table:table-row>", cells.concat());
    let rest = "<table:table-cell table:number-columns-repeated=\"16380\"/>".to_owned();
    let note = "<table:table-cell office:value-type=\"string\"><office:annotation><text:p>no</text:p></office:annotation>\
                <text:p>a &amp; b</text:p><text:p>c<text:s text:c=\"2\"/>d</text:p></table:table-cell>";
    let rows = [
        row(&["<table:table-cell/>".to_owned(), ods_text("a"), ods_text("y"), ods_text("c"), rest.clone()]),
        row(&["<table:table-cell/>".to_owned(), number("1.5", " table:number-columns-repeated=\"2\""), note.to_owned(), rest.clone()]),
        format!(
            "<table:table-row table:number-rows-repeated=\"3\"><table:table-cell/>{}{}</table:table-row>",
            number("2", ""),
            number("4", "")
        ),
        "<table:table-row table:number-rows-repeated=\"1048000\"><table:table-cell table:number-columns-repeated=\"16384\"/>\
         </table:table-row>"
            .to_owned(),
    ];
    let mut bench = Bench::rows("t.ods", &ods(&rows.concat()));
    bench.config.duplicates = enn_common::config::data::DuplicatePolicy::Keep;
    let (_, arrays) = bench.stage();
    assert_eq!((arrays.x(), arrays.y()), ([1.5, 2.0, 2.0, 2.0].as_slice(), [1.5, 4.0, 4.0, 4.0].as_slice()));
    let source = source::open(&bench.config.files[0], &bench.config, bench.dir.path()).unwrap();
    assert_eq!(source.header(), ["a", "y", "c"]);
    bench.config.sheet = Some("three".into());
    assert!(bench.error().contains("has no sheet \"three\"; it has \"one\", \"two\""), "{}", bench.error());
}

#[test]
fn cells_that_opendocument_repeats_take_no_memory() {
    let row = |rows: &str, columns: &str, text: &str| {
        let cell = ods_text(text).replacen(' ', &format!(" table:number-columns-repeated=\"{columns}\" "), 1);
        ods(&format!("<table:table-row table:number-rows-repeated=\"{rows}\">{cell}</table:table-row>"))
    };
    for (rows, columns) in [("1048576", "16384"), ("99999999999999", "99999999999999"), ("1000000", "7")] {
        let error = refused("t.ods", &row(rows, columns, "1"));
        assert!(error.contains("cells, more than the 6000000"), "{error}");
    }
    let error = Bench::rows("t.ods", &row("1000", "100", &"x".repeat(1 << 20))).error();
    assert!(error.contains("bytes of text or more"), "{error}");
    let spaces =
        ods("<table:table-row><table:table-cell office:value-type=\"string\"><text:s text:c=\"99999999999\"/>\
                      <text:s text:c=\"99999999999\"/></table:table-cell></table:table-row>");
    assert!(refused("t.ods", &spaces).contains("longer than any can be"));
}

const SECTOR: usize = 512;

/// An old workbook around a stream of records; `next` may change the table of sectors.
pub(super) fn xls(records: &[u8], next: impl Fn(&mut Vec<u32>)) -> Vec<u8> {
    let mut stream = records.to_vec();
    stream.resize(stream.len().max(4096).next_multiple_of(SECTOR), 0);
    // Sectors: those of the table, the directory, the stream.
    let sectors = stream.len() / SECTOR;
    let tables = (sectors + 1).div_ceil(SECTOR / 4 - 1);
    let mut table: Vec<u32> = vec![0xffff_fffd; tables];
    table.push(0xffff_fffe);
    table.extend((0..sectors).map(|at| if at + 1 == sectors { 0xffff_fffe } else { (tables + 2 + at) as u32 }));
    next(&mut table);
    table.resize(tables * SECTOR / 4, 0xffff_ffff);
    let mut header = vec![0; SECTOR];
    header[..8].copy_from_slice(b"\xD0\xCF\x11\xE0\xA1\xB1\x1A\xE1");
    for (at, number) in [(26, 3_u16), (28, 0xfffe), (30, 9), (32, 6)] {
        header[at..at + 2].copy_from_slice(&number.to_le_bytes());
    }
    for (at, number) in [(44, tables as u32), (48, tables as u32), (56, 4096), (60, 0xffff_fffe), (68, 0xffff_fffe)] {
        header[at..at + 4].copy_from_slice(&number.to_le_bytes());
    }
    header[76..].fill(0xff);
    (0..tables).for_each(|at| header[76 + 4 * at..][..4].copy_from_slice(&(at as u32).to_le_bytes()));
    let entry = |name: &str, first: u32, bytes: usize| {
        let mut entry: Vec<u8> = name.encode_utf16().flat_map(u16::to_le_bytes).collect();
        entry.resize(128, 0);
        entry[116..120].copy_from_slice(&first.to_le_bytes());
        entry[120..124].copy_from_slice(&(bytes as u32).to_le_bytes());
        entry
    };
    let mut directory =
        [entry("Root Entry", 0xffff_fffe, 0), entry("Workbook", tables as u32 + 1, stream.len())].concat();
    directory.resize(SECTOR, 0);
    let table: Vec<u8> = table.iter().flat_map(|number| number.to_le_bytes()).collect();
    [header, table, directory, stream].concat()
}

fn record(kind: u16, data: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &(data.len() as u16).to_le_bytes(), data].concat()
}

fn place(row: u16, column: u16) -> Vec<u8> {
    [row, column, 0].into_iter().flat_map(u16::to_le_bytes).collect()
}

pub(super) fn number(row: u16, column: u16, value: f64) -> Vec<u8> {
    record(0x0203, &[place(row, column), value.to_le_bytes().to_vec()].concat())
}

pub(super) fn shared(row: u16, column: u16, text: u32) -> Vec<u8> {
    record(0x00fd, &[place(row, column), text.to_le_bytes().to_vec()].concat())
}

/// The records of a workbook with one sheet, of these records.
pub(super) fn book(texts: &[&str], cells: &[Vec<u8>]) -> Vec<u8> {
    let begin = record(0x0809, &[0, 6, 5, 0, 0, 0, 0, 0]);
    let all = texts.iter().flat_map(|text| [&(text.len() as u16).to_le_bytes()[..], &[0], text.as_bytes()].concat());
    let texts = record(0x00fc, &[vec![0; 8], all.collect()].concat());
    let before = begin.len() + texts.len() + 4 + 4 + 12;
    let sheet = record(0x0085, &[&(before as u32).to_le_bytes()[..], &[0, 0, 4, 0], b"data"].concat());
    assert_eq!(sheet.len(), 4 + 12);
    let end = record(0x000a, &[]);
    [begin.clone(), texts, sheet, end.clone(), begin, cells.concat(), end].concat()
}

#[test]
fn an_old_workbook_is_a_table_and_its_circles_are_refused() {
    let cells = [shared(0, 0, 0), shared(0, 1, 1), number(1, 0, 1.5), number(1, 1, 2.0)];
    let records = book(&["a", "y"], &cells);
    let (_, arrays) = Bench::rows("t.xls", &xls(&records, |_| {})).stage();
    assert_eq!((arrays.x(), arrays.y()), ([1.5].as_slice(), [2.0].as_slice()));
    let circle = |at: usize, to: u32| xls(&records, move |next| next[at] = to);
    for (name, bytes) in [("directory", circle(1, 1)), ("stream", circle(5, 2))] {
        let error = refused("t.xls", &bytes);
        assert!(error.contains("in a circle") || error.contains("ends early"), "{name}: {error}");
    }
    assert!(refused("t.xls", &circle(4, 99_999)).contains("lies behind its end"));
}

#[test]
fn cells_far_apart_in_an_old_workbook_take_no_memory() {
    let far = book(&["a", "y"], &[number(0, 0, 1.0), number(65_535, 65_535, 2.0)]);
    assert!(refused("t.xls", &xls(&far, |_| {})).contains("4294967296 cells"));
    let said = [0_u32, u32::MAX - 1]
        .iter()
        .flat_map(|row| row.to_le_bytes())
        .chain([0, 0, 255, 255, 0, 0])
        .collect::<Vec<u8>>();
    let said = book(&["a", "y"], &[record(0x0200, &said), number(0, 0, 1.0)]);
    assert!(refused("t.xls", &xls(&said, |_| {})).contains("cells, as one says"));
    let text = "x".repeat(8000);
    let long: Vec<Vec<u8>> = (0..20_000).map(|row| shared(row, 0, 0)).collect();
    assert!(refused("t.xls", &xls(&book(&[&text], &long), |_| {})).contains("bytes of text in the cells"));
}

fn npy(shape: &[u64], bytes: usize) -> Vec<u8> {
    let mut array = Header::write(NpyElement::F32, shape, 128).unwrap();
    array.resize(128 + bytes, 0);
    array
}

/// The refusal of arrays in a zip.
fn arrays_refused(arrays: &[(&str, Vec<u8>)]) -> String {
    let mut bench = Bench::rows("t.npz", &zipped(arrays));
    bench.config.layout = Layout::Arrays(ArraysLayout { x: "x".into(), y: "y".into(), row_id: None });
    bench.error()
}

#[test]
fn arrays_have_the_bytes_that_their_shape_asks_for_and_no_more_columns_than_are_read() {
    let y = ("y.npy", npy(&[1], 4));
    let error = arrays_refused(&[("x.npy", npy(&[1, 3_900_000], 15_600_000)), y.clone()]);
    assert!(error.contains("array \"x\" with 3900000 numbers in a row, expected at most 100000"), "{error}");
    let error = refused("t.npz", &zipped(&[("a.npy", npy(&[1, 900_000], 3_600_000))]));
    assert!(error.contains("a table of 900000 columns, expected at most 100000"), "{error}");
    let error = arrays_refused(&[("x.npy", npy(&[1, 2], 1 << 24)), y.clone()]);
    assert!(error.contains("has more bytes than shape [1, 2] asks for"), "{error}");
    let error = arrays_refused(&[("x.npy", npy(&[1000, 2], 64)), y.clone()]);
    assert!(error.contains("ends early"), "{error}");
    let error = arrays_refused(&[("x.npy", npy(&[1 << 50, 2], 64)), y]);
    assert!(error.contains("free"), "there is no room for it: {error}");
    // Rows without a number may be said to be any number.
    let error = refused("t.npz", &zipped(&[("a.npy", npy(&[1 << 55, 0], 0))]));
    assert!(error.contains("no rows"), "{error}");
    assert!(refused("t.npy", &npy(&[1 << 40, 2], 64)).contains("ends early"));
}

#[test]
fn a_header_of_safetensors_has_a_bound() {
    let mut bytes = (100_u64 << 20).to_le_bytes().to_vec();
    bytes.resize(1 << 20, b' ');
    assert!(refused("t.safetensors", &bytes).contains("a header of 104857600 bytes"));
}

#[test]
fn pipes_sockets_and_devices_are_told_at_once_in_every_format() {
    for format in [SourceFormat::Csv, SourceFormat::Parquet, SourceFormat::Arrow, SourceFormat::Npz, SourceFormat::Xlsx]
    {
        let mut bench = Bench::rows("t.csv", b"a,y\n1,2\n");
        bench.config.format = Some(format);
        let pipe = bench.dir.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let socket = bench.dir.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let named = [(pipe, "a pipe"), (socket, "a socket"), (PathBuf::from("/dev/zero"), "a device")];
        for (path, what) in named.into_iter().chain([(bench.dir.path().to_owned(), "a directory")]) {
            bench.config.files = vec![path];
            let error = bench.error();
            assert!(error.contains(&format!("is {what}, expected a")), "{error}");
        }
    }
}

#[test]
fn a_page_of_parquet_that_unpacks_to_more_than_is_read_is_refused() {
    use arrow_array::{ArrayRef, Float64Array, RecordBatch};
    use parquet::{arrow::ArrowWriter, basic::Compression, file::properties::WriterProperties};
    let zeros: ArrayRef = std::sync::Arc::new(Float64Array::from(vec![0.0; (256 << 20) / 8 + 1]));
    let batch = RecordBatch::try_from_iter([("a", zeros.clone()), ("y", zeros)]).unwrap();
    let properties = WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_data_page_size_limit(usize::MAX)
        .set_data_page_row_count_limit(usize::MAX)
        .set_max_row_group_row_count(None)
        .set_compression(Compression::ZSTD(Default::default()))
        .build();
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    drop(batch);
    let error = refused("t.parquet", &bytes);
    assert!(error.contains("page of column \"a\"") && error.contains("bytes, expected at most 268435456"), "{error}");
}
