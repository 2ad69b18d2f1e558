//! What is read of Arrow streams and files: sound, cut, damaged and absurd ones.

use super::*;
use arrow_array::{
    ArrayRef, DictionaryArray, Float64Array, NullArray, StringViewArray,
    builder::{ListBuilder, StringViewBuilder},
    types::{Float64Type, Int32Type},
};
use arrow_ipc::{
    CompressionType,
    writer::{FileWriter, IpcWriteOptions, StreamWriter},
};
use std::{io::Write, sync::Arc};

/// The same column twice in a stream.
fn stream(column: ArrayRef, codec: CompressionType) -> Vec<u8> {
    let batch = RecordBatch::try_from_iter([("a", Arc::clone(&column)), ("b", column)]).unwrap();
    let options = IpcWriteOptions::default().try_with_compression(Some(codec)).unwrap();
    let mut writer = StreamWriter::try_new_with_options(Vec::new(), &batch.schema(), options).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
    writer.into_inner().unwrap()
}

/// What is asked of the room for these columns, and what comes.
fn read(bytes: &[u8], columns: Columns, most: u64) -> (u64, Result<Vec<RecordBatch>, ArrowError>) {
    let mut asked = 0_u64;
    let room = |bytes: u64| {
        asked = asked.saturating_add(bytes);
        if asked <= most { Ok(()) } else { Err(io::Error::other("no room")) }
    };
    let read = Batches::open(bytes, columns.map(<[usize]>::to_vec), room).and_then(Iterator::collect);
    (asked, read)
}

/// The same column twice in a file.
fn file(column: ArrayRef, codec: CompressionType) -> Vec<u8> {
    let batch = RecordBatch::try_from_iter([("a", Arc::clone(&column)), ("b", column)]).unwrap();
    let options = IpcWriteOptions::default().try_with_compression(Some(codec)).unwrap();
    let mut writer = FileWriter::try_new_with_options(Vec::new(), &batch.schema(), options).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
    writer.into_inner().unwrap()
}

/// As `read`, of a file.
fn read_file(bytes: &[u8], columns: Columns, most: u64) -> (u64, Result<Vec<RecordBatch>, ArrowError>) {
    let mut place = tempfile::tempfile().unwrap();
    place.write_all(bytes).unwrap();
    let mut asked = 0_u64;
    let room = |bytes: u64| {
        asked = asked.saturating_add(bytes);
        if asked <= most { Ok(()) } else { Err(io::Error::other("no room")) }
    };
    let read = FileBatches::open(place, columns.map(<[usize]>::to_vec), room).and_then(Iterator::collect);
    (asked, read)
}

type Columns = Option<&'static [usize]>;
type Read = fn(&[u8], Columns, u64) -> (u64, Result<Vec<RecordBatch>, ArrowError>);
type Written = fn(ArrayRef, CompressionType) -> Vec<u8>;
const FIRST: Columns = Some(&[0]);
const KINDS: [(Written, Read); 2] = [(stream, read), (file, read_file)];

#[test]
fn what_the_columns_of_a_compressed_batch_become_is_asked_for_before_they_are_unpacked() {
    for codec in [CompressionType::LZ4_FRAME, CompressionType::ZSTD] {
        for ((written, read), columns) in
            KINDS.into_iter().flat_map(|kind| [Some(&[0][..]), Some(&[1]), Some(&[]), None].map(|some| (kind, some)))
        {
            let zeros = Arc::new(Float64Array::from(vec![0.0; 1 << 20]));
            let bytes = written(zeros.clone(), codec);
            assert!(bytes.len() < 256 << 10, "{} bytes that become 16 MiB", bytes.len());
            let count = columns.map_or(2, <[usize]>::len);
            let least = (count as u64) << 23;
            let most = (count as u64) * (8 << 20) + (1 << 20);
            let (asked, found) = read(&bytes, columns, most);
            assert!((least..most).contains(&asked), "{asked} for {columns:?}");
            let found = found.unwrap();
            assert_eq!(found[0].num_columns(), count);
            assert!(found[0].columns().iter().all(|column| column.as_primitive::<Float64Type>() == zeros.as_ref()));
            if count > 0 {
                let (_, refused) = read(&bytes, columns, least);
                let Err(ArrowError::IoError(_, why)) = refused else { panic!("{refused:?}") };
                assert_eq!(why.to_string(), "no room");
            }
        }
    }
}

#[test]
fn of_a_wide_stream_only_what_is_read_takes_room() {
    let words: Vec<String> = (0..1000).map(|word| format!("word {word}")).collect();
    let words: DictionaryArray<Int32Type> = words.iter().map(String::as_str).collect();
    let column = |at: usize| -> (String, ArrayRef) {
        let numbers: ArrayRef = Arc::new(Float64Array::from(vec![at as f64; 1000]));
        (format!("c{at}"), if at % 2 == 1 { Arc::new(words.clone()) } else { numbers })
    };
    let batch = RecordBatch::try_from_iter((0..60).map(column)).unwrap();
    let options = IpcWriteOptions::default().try_with_compression(Some(CompressionType::ZSTD)).unwrap();
    let mut writer = StreamWriter::try_new_with_options(Vec::new(), &batch.schema(), options).unwrap();
    writer.write(&batch).unwrap();
    writer.write(&batch.slice(0, 10)).unwrap();
    writer.finish().unwrap();
    let bytes = writer.into_inner().unwrap();
    let (wide, all) = read(&bytes, None, u64::MAX);
    let (asked, found) = read(&bytes, Some(&[7, 40]), u64::MAX);
    let all = all.unwrap();
    let found = found.unwrap();
    assert!(
        wide > 30 * 16_000 && asked < 2 * 16_000 + bytes.len() as u64 && bytes.len() < 300_000,
        "{asked} of {wide}"
    );
    assert_eq!(found.len(), 2);
    for (found, all) in found.iter().zip(&all) {
        assert_eq!(*found, all.project(&[7, 40]).unwrap());
    }
    // By what the schema says, before anything else is read; what it is refused with comes back.
    let named = |schema: &Schema| Ok(Some(vec![schema.index_of("c3")?]));
    let mut batches = Batches::open_some(bytes.as_slice(), named, ample).unwrap();
    assert_eq!(batches.next().unwrap().unwrap(), all[0].project(&[3]).unwrap());
    let none = |schema: &Schema| Ok(Some(vec![schema.index_of("z")?]));
    let error = Batches::open_some(&bytes[..bytes.len() / 9], none, ample).err().unwrap().to_string();
    assert!(error.contains("\"z\""), "{error}");
    // Wherever it is cut, also in a dictionary that nobody reads, and behind a message.
    for cut in (0..bytes.len()).step_by(499).chain(bytes.len() - 64..bytes.len()) {
        let (_, found) = read(&bytes[..cut], Some(&[0]), u64::MAX);
        let error = found.expect_err("a stream that is cut").to_string();
        let place = format!("at byte {cut} ");
        assert!(error.contains(&place) || cut == 0 && error.contains("is empty"), "cut at {cut}: {error}");
    }
}

#[test]
fn what_follows_a_stream_is_told_where_nothing_may() {
    let one = stream(Arc::new(Float64Array::from(vec![0.5; 20])), CompressionType::ZSTD);
    let open = |bytes| Batches::open(bytes, None, ample).unwrap();
    let two = [one.as_slice(), &one].concat();
    assert_eq!(open(one.as_slice()).alone().filter_map(Result::ok).count(), 1);
    assert!(open(two.as_slice()).all(|batch| batch.is_ok()), "a client may go on writing");
    let error = open(two.as_slice()).alone().find_map(Result::err).unwrap().to_string();
    assert!(error.contains(&format!("at byte {}", one.len())), "{error}");
}

#[test]
fn rows_that_take_no_bytes_are_bounded() {
    let nulls = |rows| RecordBatch::try_from_iter([("a", Arc::new(NullArray::new(rows)) as ArrayRef)]).unwrap();
    let streamed = |batch: RecordBatch| {
        let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
        writer.write(&batch).unwrap();
        writer.into_inner().unwrap()
    };
    let filed = |batch: RecordBatch| {
        let mut writer = FileWriter::try_new(Vec::new(), &batch.schema()).unwrap();
        writer.write(&batch).unwrap();
        writer.into_inner().unwrap()
    };
    for (bytes, read) in [(streamed(nulls(1 << 40)), read as Read), (filed(nulls(1 << 40)), read_file as Read)] {
        let error = read(&bytes, None, u64::MAX).1.unwrap_err().to_string();
        assert!(error.contains("1099511627776 rows"), "{error}");
    }
    assert_eq!(read(&streamed(nulls(1000)), None, u64::MAX).1.unwrap()[0].num_rows(), 1000);
}

#[test]
fn a_damaged_file_is_an_error() {
    let numbers = Arc::new(Float64Array::from_iter_values((0..300).map(f64::from)));
    let keys: DictionaryArray<Int32Type> = ["x", "y", "x"].into_iter().collect();
    for column in [numbers as ArrayRef, Arc::new(keys)] {
        let sound = file(column, CompressionType::LZ4_FRAME);
        let rows = read_file(&sound, FIRST, u64::MAX).1.unwrap()[0].num_rows();
        for at in 0..sound.len() {
            for bits in [0x55, 0xff] {
                let mut bytes = sound.clone();
                bytes[at] ^= bits;
                // It may still be one, e.g. of other numbers; it makes no room for what is not there.
                if let (asked, Ok(found)) = read_file(&bytes, FIRST, 1 << 20) {
                    assert!(asked <= 1 << 20 && found.iter().all(|batch| batch.num_rows() <= rows << 8), "byte {at}");
                }
            }
            assert!(read_file(&sound[..at], FIRST, 1 << 20).1.is_err(), "cut at {at}");
        }
    }
}

#[test]
fn a_length_that_nobody_has_room_for_is_only_a_number() {
    for codec in [CompressionType::LZ4_FRAME, CompressionType::ZSTD] {
        for (written, read) in KINDS {
            let sound = written(Arc::new(Float64Array::from(vec![0.0; 4096])), codec);
            let says = 32768_i64.to_le_bytes();
            let at = 8 * sound.chunks(8).position(|bytes| bytes == says).unwrap();
            for length in [1_i64 << 46, i64::MAX, -2] {
                let mut bytes = sound.clone();
                bytes[at..at + 8].copy_from_slice(&length.to_le_bytes());
                assert!(read(&bytes, FIRST, 1 << 30).1.is_err(), "{length}");
            }
        }
        assert!(ample(1 << 46).is_err() && ample(1 << 20).is_ok());
    }
}

#[test]
fn a_text_that_many_cells_share_counts_for_each() {
    let text = "x".repeat(1000);
    let of = |column: ArrayRef| text_bytes(&RecordBatch::try_from_iter([("a", column)]).unwrap());
    let views = StringViewArray::from(vec![text.as_str(); 7]);
    assert_eq!(of(Arc::new(views)), 7000);
    let keys: DictionaryArray<Int32Type> = std::iter::repeat_n(text.as_str(), 5).collect();
    assert_eq!(of(Arc::new(keys)), 5000);
    let none: DictionaryArray<Int32Type> = [None::<&str>; 3].into_iter().collect();
    assert_eq!(of(Arc::new(none)), 0);
    let mut lists = ListBuilder::new(StringViewBuilder::new());
    lists.append_value([Some(text.as_str()); 3]);
    lists.append_value([Some(text.as_str()); 4]);
    assert_eq!(of(Arc::new(lists.finish())), 7 * (1000 + TEXT_BYTES));
}
