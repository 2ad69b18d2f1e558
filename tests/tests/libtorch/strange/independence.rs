//! What is said of a row depends on the row: not on its neighbours, the order, the number of workers, or the way it came.

use super::{Place, Table, data};
use arrow_array::{ArrayRef, Float32Array, Float64Array, Int64Array, RecordBatch, cast::AsArray};
use arrow_ipc::{reader::StreamReader, writer::StreamWriter};
use std::{io::Write, process::Stdio, sync::Arc};

/// Allowed difference, in standard deviations of the forecasts: the sum of a product may be taken in another order.
const TOLERANCES: [(&str, f32); 4] = [("fp32", 1e-5), ("bf16", 1e-2), ("fp16", 1e-2), ("auto", 1e-5)];

fn spread(values: &[f32]) -> f32 {
    let mean = values.iter().sum::<f32>() / values.len() as f32;
    (values.iter().map(|value| (value - mean).powi(2)).sum::<f32>() / values.len() as f32).sqrt()
}

fn largest_difference(one: &[f32], two: impl IntoIterator<Item = f32>) -> f32 {
    one.iter().zip(two).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn place() -> (Place, Table) {
    let place = Place::new(&data(), &[]);
    place.train(&[]);
    // More rows than one forward pass takes, and more than one chunk.
    let shifted = |by: f64| move |_: usize, value: f64| (value * by).to_string();
    let more = |by: f64| data().with("a", shifted(by)).with("b", shifted(-by));
    (place, [0.9, 0.7, 0.5].into_iter().fold(data(), |table, by| table.then(more(by))).without(&["y", "z"]))
}

#[test]
fn neighbours_order_and_workers_change_no_answer() {
    let (place, table) = place();
    for (precision, tolerance) in TOLERANCES {
        let ask = |table: &Table, more: &[&str]| {
            place.predict(table, &[&["--precision", precision][..], more].concat()).values
        };
        let whole = ask(&table, &[]);
        assert_eq!(whole.len(), 2 * 960);
        let limit = tolerance * spread(&whole);
        assert!(ask(&table, &["--nproc-per-node", "2"]) == whole, "{precision}: two workers give the same bits");
        let turned = ask(&table.clone().rows((0..960).rev()), &[]);
        let back = turned.chunks_exact(2).rev().flatten().copied();
        assert!(largest_difference(&whole, back) <= limit, "{precision}: in the other order");
        for rows in [vec![5], vec![700, 5], (100..117).collect(), (3..260).collect::<Vec<usize>>()] {
            let few = ask(&table.clone().rows(rows.iter().copied()), &[]);
            let same = rows.iter().flat_map(|row| [whole[2 * row], whole[2 * row + 1]]);
            let off = largest_difference(&few, same);
            assert!(off <= limit, "{precision}, {} rows alone: off by {off}, allowed {limit}", rows.len());
        }
    }
}

#[test]
fn a_stream_says_what_a_file_does() {
    let (place, table) = place();
    let whole = place.predict(&table, &[]).values;
    let text = table.text();
    let cells: Vec<Vec<f64>> =
        text.lines().skip(1).map(|line| line.split(',').map(|cell| cell.parse().unwrap()).collect()).collect();
    let batch = |rows: &[Vec<f64>]| {
        let ids = Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row[0] as i64))) as ArrayRef;
        let number = |at: usize| Arc::new(Float64Array::from_iter_values(rows.iter().map(|row| row[at]))) as ArrayRef;
        RecordBatch::try_from_iter([("id", ids), ("a", number(1)), ("b", number(2)), ("c", number(3))]).unwrap()
    };
    let mut bytes = Vec::new();
    let mut writer = StreamWriter::try_new(&mut bytes, &batch(&cells[..1]).schema()).unwrap();
    for (from, to) in [(0, 1), (1, 300), (300, 303), (303, 960)] {
        writer.write(&batch(&cells[from..to])).unwrap();
    }
    writer.finish().unwrap();
    drop(writer);
    let mut command = place.command(&["predict", "latest", "--data", "-", "--out", "-"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let sent = std::thread::spawn(move || input.write_all(&bytes));
    let output = child.wait_with_output().unwrap();
    sent.join().unwrap().unwrap();
    assert!(output.status.success());
    let mut streamed = Vec::new();
    for batch in StreamReader::try_new(output.stdout.as_slice(), None).unwrap() {
        let batch = batch.unwrap();
        let column = |name: &str| -> Float32Array { batch.column_by_name(name).unwrap().as_primitive().clone() };
        let y = column("y");
        let z = column("z");
        streamed.extend((0..batch.num_rows()).flat_map(|row| [y.value(row), z.value(row)]));
    }
    assert_eq!(streamed.len(), whole.len());
    let off = largest_difference(&whole, streamed.iter().copied());
    assert!(off <= TOLERANCES[0].1 * spread(&whole), "off by {off}");
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_two_workers_the_same_model() {
    let one = Place::new(&data(), &[]);
    let trained = |sets: &[&str]| {
        one.train(&[&["train.epochs=3", "train.deterministic=true"], sets].concat());
        one.predict(&data(), &[]).values
    };
    let first = trained(&[]);
    assert!(trained(&[]) == first, "the same seed");
    let other = trained(&["seed=4"]);
    assert!(largest_difference(&first, other.iter().copied()) > 1e-4, "another seed is another model");
    let two = trained(&["cluster.nproc_per_node=2"]);
    let off = largest_difference(&first, two.iter().copied());
    assert!(off < 1e-3 * spread(&first), "one worker with twice the batch: off by {off}");
}
