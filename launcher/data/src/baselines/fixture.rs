//! Staged directories made of numbers, for the tests of this package and of those that show its results.

use enn_common::{
    fs::mmap::bytes_of,
    staged::{
        ArrayName, Moments, StagedMeta, StagedWriter, VERSION,
        meta::{CleaningReport, FeatureMeta},
    },
};
use std::path::{Path, PathBuf};

/// Numbers of a staged directory before they are written.
pub(crate) struct Table {
    pub(crate) rows: usize,
    pub(crate) features: Vec<FeatureMeta>,
    pub(crate) out_shape: Vec<usize>,
    pub(crate) out_labels: Vec<Vec<String>>,
    pub(crate) x: Vec<f32>,
    pub(crate) y: Vec<f32>,
    pub(crate) split: Vec<u8>,
    pub(crate) persistence: Option<Vec<u32>>,
}

impl Table {
    /// Writes it; NaN is missing.
    pub(crate) fn write(&self, out: &Path) -> PathBuf {
        self.write_with(out, &self.meta())
    }

    /// The same with other metadata.
    pub(crate) fn write_with(&self, out: &Path, meta: &StagedMeta) -> PathBuf {
        let writer = StagedWriter::create(out).unwrap();
        let rows = self.rows as u64;
        let mask = |values: &[f32]| values.iter().map(|value| u8::from(!value.is_nan())).collect::<Vec<u8>>();
        let grid: Vec<u64> = self.out_shape.iter().map(|size| *size as u64).collect();
        let ids: Vec<i64> = (0..self.rows as i64).collect();
        let arrays: [(ArrayName, &[u64], &[u8]); 6] = [
            (ArrayName::X, &[self.features.len() as u64], bytes_of(&self.x)),
            (ArrayName::XMask, &[self.features.len() as u64], &mask(&self.x)),
            (ArrayName::Y, &grid, bytes_of(&self.y)),
            (ArrayName::YMask, &grid, &mask(&self.y)),
            (ArrayName::RowId, &[], bytes_of(&ids)),
            (ArrayName::Split, &[], &self.split),
        ];
        for (name, inner, bytes) in arrays {
            let array = writer.array(name, inner).unwrap();
            array.write_rows(0, bytes).unwrap();
            array.finish(rows).unwrap();
        }
        writer.finish(meta).unwrap()
    }

    pub(crate) fn meta(&self) -> StagedMeta {
        let stats = Moments::default().stats();
        let count = |code: u8| self.split.iter().filter(|split| **split == code).count() as u64;
        StagedMeta {
            version: VERSION,
            digest: "cd".repeat(32),
            rows: self.rows as u64,
            features: self.features.clone(),
            out_shape: self.out_shape.clone(),
            out_labels: self.out_labels.clone(),
            units: "°F".into(),
            persistence: self.persistence.clone(),
            has_targets: true,
            has_classes: false,
            class_form: None,
            has_weights: false,
            split_rows: [count(0), count(1), count(2)],
            sources: vec![],
            row_names: vec![],
            x_stats: vec![stats; self.features.len()],
            y_stats: vec![stats; self.out_shape.iter().product()],
            report: CleaningReport::default(),
        }
    }
}

/// Metadata of no rows, with the given names along the output's axes.
pub(crate) fn meta_of(out_labels: Vec<Vec<String>>) -> StagedMeta {
    let out_shape = out_labels.iter().map(Vec::len).collect();
    let features = vec![];
    let x = vec![];
    let y = vec![];
    let split = vec![];
    Table { rows: 0, features, out_shape, out_labels, x, y, split, persistence: None }.meta()
}
