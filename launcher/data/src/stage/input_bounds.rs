//! Valid ranges of a model's inputs, for callers that make inputs without staging: an exported model contains these rules.
//!
//! **Invariant:** [`Bounds`](enn_common::artifact::bounds::Bounds) accept a number exactly if staging for prediction does, to the last digit of an f32.

use super::{
    column_bounds::{InputBounds, job},
    encode::Encoder,
    error::StageError,
    windows,
};
use enn_common::{
    config::data::{DataConfig, Layout},
    staged::StagedMeta,
};

/// Returns the rules of a model that was trained on data with this configuration.
///
/// # Errors
/// The configuration does not fit the model.
pub fn input_bounds(config: &DataConfig, training: &StagedMeta) -> Result<InputBounds, StageError> {
    match &config.layout {
        Layout::Windows(layout) => Ok(windows::input_bounds(&job(config, training), layout, training)),
        Layout::Rows(_) | Layout::Arrays(_) => {
            let encoder = Encoder::new(config, training)?;
            let bounds = encoder.map_or_else(Vec::new, |encoder| encoder.input_bounds());
            Ok(InputBounds { bounds, unseen: Vec::new() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::{StageOptions, stage, tests::Bench};
    use enn_common::{
        config::data::{
            ColumnRange, DuplicatePolicy, Feature, FeatureKind, Index, Outside, SplitKind, TargetMask, WindowsLayout,
        },
        staged::Staged,
    };
    use std::{fmt::Write, path::Path};

    fn range(column: &str, low: f64, high: f64) -> ColumnRange {
        ColumnRange { column: column.to_owned(), low, high }
    }

    fn staged(config: &DataConfig, out: &Path, training: Option<&StagedMeta>) -> Staged {
        let options = StageOptions { out: out.to_owned(), threads: 1, for_prediction: training.cloned() };
        Staged::open(&stage(config, &options, &mut |_| {}).unwrap().dir).unwrap()
    }

    /// Numbers at and around every rule, in each of the columns `a` (a range), `b` (none), `c` (none, always missing).
    #[test]
    fn a_number_counts_by_the_rules_as_it_does_when_it_is_staged() {
        let index = |outside| FeatureKind::Index(Index { offset: 10, rows: 4, outside });
        let text = (0..40).map(|row| format!("{},{}.5,,{},{},{row}\n", row % 9, row % 7, 10 + row % 4, 11 + row % 3));
        let text = "a,b,c,i,k,y\n".to_owned() + &text.collect::<String>();
        let mut bench = Bench::rows("train.csv", text.as_bytes());
        let features = ["a", "b", "c"].map(|column| Feature::new(column, FeatureKind::Number)).into_iter();
        let indices = [Feature::new("i", index(Outside::Clamp)), Feature::new("k", index(Outside::Unknown))];
        bench.layout().features = features.chain(indices).collect();
        bench.config.ranges = vec![range("a", -0.1, 8.3), range("k", 11.0, 13.0)];
        bench.config.missing = ["NA", "-999", "0.3", "12"].map(str::to_owned).to_vec();
        bench.config.duplicates = DuplicatePolicy::Keep;
        let training = staged(&bench.config, &bench.dir.path().join("staged"), None);
        let meta = training.meta();
        let found = input_bounds(&bench.config, meta).unwrap();
        assert_eq!((found.bounds.len(), found.unseen.len()), (4, 0), "c has nothing and does not stay");
        let b = &meta.x_stats[1];
        let edge = b.max + 1e6 * (b.max - b.min);
        let numbers = [
            "-0.1",
            "-0.1000001",
            "-0.10001",
            "8.3",
            "8.301",
            "-999",
            "-999.0",
            "0.3",
            "0.30001",
            "0",
            "1e30",
            "-1e300",
            "inf",
        ];
        let numbers: Vec<String> = numbers
            .iter()
            .map(|text| (*text).to_owned())
            .chain([edge.to_string(), (edge + 100.0).to_string(), "NA".into()])
            .collect();
        let rows = ["9", "10", "11", "12", "13", "14", "-999", "NA", "5000"];
        let mut text = "a,b,c,i,k\n".to_owned();
        for (at, number) in numbers.iter().enumerate() {
            let row = rows[at % rows.len()];
            writeln!(text, "{number},{number},1,{row},{row}").unwrap();
        }
        let path = bench.dir.path().join("new.csv");
        std::fs::write(&path, text).unwrap();
        let config = DataConfig { files: vec![path], ..bench.config.clone() };
        let expected = staged(&config, &bench.dir.path().join("predicted"), Some(meta));
        for (at, number) in numbers.iter().enumerate() {
            let raw = |text: &str| if text == "NA" { f32::NAN } else { text.parse::<f32>().unwrap() };
            let number = raw(number);
            let row = raw(rows[at % rows.len()]) - 10.0;
            for (column, value) in [number, number, row, row].into_iter().enumerate() {
                let held = found.bounds[column].held(value);
                let staged = expected.x_row(at)[column];
                // An integer that is no row has the unknown id, whichever it is.
                let unknown = column == 3 && staged == 4.0 && !held.is_nan() && !(0.0..4.0).contains(&held);
                let same = held.to_bits() == staged.to_bits() || (held.is_nan() && staged.is_nan()) || unknown;
                assert!(same, "column {column}, {value}: {held}, staged {staged}; {:?}", found.bounds[column]);
            }
        }
    }

    #[test]
    fn an_angle_has_rules_that_its_sine_does_not_show() {
        let mut text = "who,when,v,w\n".to_owned();
        for (step, who) in (0..60).flat_map(|step| [(step, "a"), (step, "b")]) {
            writeln!(text, "{who},{},{},{}", step * 60, step % 7, step % 360).unwrap();
        }
        let mut bench = Bench::rows("t.csv", text.as_bytes());
        bench.config.split.kind = SplitKind::Chronological;
        bench.config.layout = Layout::Windows(WindowsLayout {
            entity: "who".into(),
            time: "when".into(),
            time_offset_s: 0,
            step_s: 60,
            steps: 2,
            history: 1,
            inputs: vec!["v".into()],
            circular: vec!["w".into()],
            target: "v".into(),
            calendar: vec![],
            target_valid_min: 0.5,
        });
        bench.config.mask = TargetMask::Value(-5.0);
        let training = staged(&bench.config, &bench.dir.path().join("staged"), None);
        let of = |config: &DataConfig| {
            let found = input_bounds(config, training.meta()).unwrap();
            let named = training.meta().features.iter().zip(&found.bounds);
            let bounds =
                |name: &str| named.clone().find(|(feature, _)| feature.name.starts_with(name)).unwrap().1.clone();
            (bounds("v[b"), bounds("w.sin["), found.unseen)
        };
        let (v, sin, unseen) = of(&bench.config);
        assert_eq!((v.missing.as_slice(), v.held(6e6 + 7.0).is_nan()), (&[-5.0][..], true), "a target's history, too");
        assert!(!sin.is_open() && unseen.is_empty(), "{sin:?}");
        bench.config.ranges = vec![range("w", 0.0, 360.0), range("v", 0.0, 6.0)];
        let (v, sin, unseen) = of(&bench.config);
        assert_eq!((v.low, v.high, sin.is_open(), unseen), (Some(0.0), Some(6.0), true, vec!["w".to_owned()]));
    }
}
