//! TensorBoard's event files: the numbers of every epoch, and the final ones, under `<run>/tensorboard/`.
//!
//! A file is a run of records, each framed as in TensorFlow's TFRecord (little-endian length, its masked CRC32C, bytes, their masked
//! CRC32C). A record is the protocol-buffer message `Event { 1: double wall_time, 2: int64 step, 3: string file_version,
//! 5: Summary }` with `Summary { 1: repeated Value { 1: string tag, 2: float simple_value } }`; the first says the file's version.
//!
//! **Invariant:** a file that cannot be written never fails a run.

use enn_common::{
    event::{EpochReport, Event, EventKind},
    metrics::Metrics,
};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

pub const FOLDER: &str = "tensorboard";
/// The version in the first record of a file.
const FILE_VERSION: &str = "brain.Event:2";
/// Added to a rotated checksum, so that a checksum of checksums is not special.
const MASK: u32 = 0xa282_ead8;
/// Wire types of protocol buffers.
const VARINT: u8 = 0;
const FIXED_64: u8 = 1;
const BYTES: u8 = 2;
const FIXED_32: u8 = 5;

pub(crate) type Scalar = (String, f64);

/// Writes the file of one launch; made with the first numbers that there are.
#[derive(Debug)]
pub(super) struct TensorboardWriter {
    run: PathBuf,
    file: Option<File>,
}

impl TensorboardWriter {
    pub(super) fn new(run: &Path) -> Self {
        Self { run: run.to_owned(), file: None }
    }

    /// Writes the numbers of an event, if it has any.
    ///
    /// # Errors
    /// The disk is full or gone.
    pub(super) fn event(&mut self, event: &Event) -> io::Result<()> {
        let (step, scalars) = match &event.what {
            EventKind::EpochEnded(report) => (report.step, of_epoch(report)),
            EventKind::Trained { step, split, .. } => (*step, of_splits(split)),
            _ => return Ok(()),
        };
        let file = match &mut self.file {
            Some(file) => file,
            None => self.file.insert(begin(&self.run, event.time)?),
        };
        file.write_all(&record(&summary(event.time, step, &scalars)))
    }
}

/// Makes the file; its name tells TensorBoard the order of several.
fn begin(run: &Path, time: f64) -> io::Result<File> {
    let folder = run.join(FOLDER);
    fs::create_dir_all(&folder)?;
    let name = format!("events.out.tfevents.{:010}.enn.{}", time as u64, std::process::id());
    let mut file = File::options().create(true).append(true).open(folder.join(name))?;
    let mut first = Vec::new();
    double(&mut first, 1, time);
    bytes(&mut first, 3, FILE_VERSION.as_bytes());
    file.write_all(&record(&first))?;
    Ok(file)
}

pub(crate) fn of_epoch(report: &EpochReport) -> Vec<Scalar> {
    let one = |tag: &str, value: f64| (tag.to_owned(), value);
    let mut scalars = vec![one("loss/train", report.train_loss)];
    if report.val.n > 0 {
        scalars.extend(of_split("val", &report.val));
    }
    scalars.extend([
        one("optimizer/learning_rate", report.lr),
        one("optimizer/gradient_norm", report.grad_norm),
        one("model/gate_mean", report.gate_mean),
        one("model/reactivity", report.reactivity),
        one("speed/samples_per_second", report.samples_per_s),
        one("speed/step_milliseconds", report.step_ms.total),
    ]);
    scalars
}

pub(crate) fn of_splits(splits: &BTreeMap<String, Metrics>) -> Vec<Scalar> {
    splits.iter().flat_map(|(split, metrics)| of_split(&format!("{split}_best"), metrics)).collect()
}

pub(crate) fn of_split(split: &str, metrics: &Metrics) -> Vec<Scalar> {
    let mut all = vec![("mae", metrics.mae), ("rmse", metrics.rmse), ("r2", metrics.r2)];
    all.extend(metrics.accuracy.into_iter().flat_map(|accuracy| [("log_loss", metrics.loss), ("accuracy", accuracy)]));
    all.extend(metrics.scaled.map(|scaled| ("scaled_mae", scaled)));
    all.into_iter().map(|(name, value)| (format!("{name}/{split}"), value)).collect()
}

fn summary(time: f64, step: u64, scalars: &[Scalar]) -> Vec<u8> {
    let mut values = Vec::new();
    for (tag, value) in scalars {
        let mut one = Vec::new();
        bytes(&mut one, 1, tag.as_bytes());
        key(&mut one, 2, FIXED_32);
        one.extend((*value as f32).to_le_bytes());
        bytes(&mut values, 1, &one);
    }
    let mut event = Vec::new();
    double(&mut event, 1, time);
    key(&mut event, 2, VARINT);
    varint(&mut event, step);
    bytes(&mut event, 5, &values);
    event
}

/// Frames a record with its length and checksums.
fn record(content: &[u8]) -> Vec<u8> {
    let length = (content.len() as u64).to_le_bytes();
    [&length[..], &masked(&length).to_le_bytes(), content, &masked(content).to_le_bytes()].concat()
}

fn masked(content: &[u8]) -> u32 {
    crc32c::crc32c(content).rotate_right(15).wrapping_add(MASK)
}

fn key(out: &mut Vec<u8>, field: u8, wire: u8) {
    out.push(field << 3 | wire);
}

fn double(out: &mut Vec<u8>, field: u8, value: f64) {
    key(out, field, FIXED_64);
    out.extend(value.to_le_bytes());
}

fn bytes(out: &mut Vec<u8>, field: u8, content: &[u8]) {
    key(out, field, BYTES);
    varint(out, content.len() as u64);
    out.extend(content);
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tests::events;

    #[test]
    fn records_are_framed_and_encoded_as_tensorboard_reads_them() {
        // Of the empty string: CRC32C 0, masked to the constant itself.
        assert_eq!(masked(b""), MASK);
        assert_eq!(record(b"a").len(), 8 + 4 + 1 + 4);
        let event = summary(1.0, 300, &[("t".to_owned(), 0.5)]);
        let expected = [
            &[0x09, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f, 0x10, 0xac, 0x02, 0x2a, 0x0a][..],
            &[0x0a, 0x08, 0x0a, 0x01, b't', 0x15, 0, 0, 0, 0x3f],
        ];
        assert_eq!(event, expected.concat());
    }

    #[test]
    fn a_run_leaves_one_file_and_a_run_without_epochs_none() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = TensorboardWriter::new(dir.path());
        let all = events();
        for event in
            all.iter().filter(|event| !matches!(event.what, EventKind::EpochEnded(_) | EventKind::Trained { .. }))
        {
            writer.event(event).unwrap();
        }
        assert!(!dir.path().join(FOLDER).exists());
        all.iter().for_each(|event| writer.event(event).unwrap());
        let files: Vec<_> = fs::read_dir(dir.path().join(FOLDER)).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(files.len(), 1);
        let text = fs::read(&files[0]).unwrap();
        for tag in ["mae/val", "loss/train", "mae/test_best"] {
            assert!(text.windows(tag.len()).any(|window| window == tag.as_bytes()), "{tag}");
        }
    }
}
