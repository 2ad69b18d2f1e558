//! What makes a training pointless although nothing is wrong with its data: a target that never changes, hardly any rows.

use enn_common::{
    config::data::{DataConfig, Layout},
    staged::{Split, StagedMeta, meta::Stats},
};
use enn_ui::format;

/// Number of targets that a warning names.
const NAMES_MAX: usize = 3;

/// Returns warnings about staged data that are to be trained on.
pub(super) fn doubts(meta: &StagedMeta, data: Option<&DataConfig>) -> Vec<String> {
    let [train, val, _] = meta.split_rows;
    let mut found = Vec::new();
    if train < 2 {
        let rows = format::plural(train, "row");
        found.push(format!(
            "the training has {rows}, from which nothing can be learned: the data have {}\n  hint: give more rows",
            format::plural(meta.rows, "row")
        ));
    } else if val == 0 && data.is_some_and(|data| data.split.val > 0.0) {
        found.push(format!(
            "no row is left for validation: the data have {}, so that the weights of the last epoch are taken unseen\n  \
             hint: give more rows, or a larger data.split.val",
            format::plural(meta.rows, "row")
        ));
    }
    found.extend(constant(meta, data));
    found
}

/// Returns a warning about targets that have one value in all training rows.
fn constant(meta: &StagedMeta, data: Option<&DataConfig>) -> Option<String> {
    let hint = "hint: name another target, or look at how the rows were chosen";
    if meta.has_classes {
        let [only] = &meta.out_labels.first()?[..] else { return None };
        return Some(format!("the target has one class, {only}: every prediction will be that one\n  {hint}"));
    }
    if meta.split_rows[Split::Train as usize] < 2 {
        return None;
    }
    let is_constant = |stats: &Stats| stats.n > 0 && stats.min >= stats.max;
    let names: Vec<&String> = match data.map(|data| &data.layout) {
        Some(Layout::Rows(rows)) if rows.targets.len() == meta.y_stats.len() => {
            let named = rows.targets.iter().zip(&meta.y_stats);
            named.filter(|(_, stats)| is_constant(stats)).map(|(name, _)| name).collect()
        }
        _ => Vec::new(),
    };
    let value = meta.y_stats.first().map(|stats| stats.min);
    match (&names[..], value) {
        ([], Some(value)) if meta.y_stats.iter().all(is_constant) => {
            Some(format!("the target is {value} in all training rows: every prediction will be that number\n  {hint}"))
        }
        ([], _) => None,
        ([name], Some(value)) if meta.y_stats.len() == 1 => Some(format!(
            "the target \"{name}\" is {value} in all training rows: every prediction will be that number\n  {hint}"
        )),
        (names, _) => {
            let named: Vec<String> = names.iter().take(NAMES_MAX).map(|name| format!("\"{name}\"")).collect();
            let rest = if names.len() > NAMES_MAX { ", …" } else { "" };
            Some(format!(
                "{} of {} targets have one value each in all training rows: {}{rest}\n  {hint}",
                names.len(),
                meta.y_stats.len(),
                named.join(", ")
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(split_rows: [u64; 3], targets: &[[f64; 2]]) -> StagedMeta {
        let stats = |&[min, max]: &[f64; 2]| serde_json::json!({ "n": 9, "mean": min, "std": max - min, "min": min, "max": max });
        let y_stats: Vec<serde_json::Value> = targets.iter().map(stats).collect();
        serde_json::from_value(serde_json::json!({
            "version": 1, "digest": "", "rows": split_rows.iter().sum::<u64>(), "features": [], "out_shape": [targets.len()],
            "out_labels": [], "units": "", "persistence": null, "has_targets": true, "has_classes": false, "has_weights": false,
            "split_rows": split_rows, "row_names": [], "x_stats": [], "y_stats": y_stats, "report": enn_common::staged::meta::CleaningReport::default(),
        }))
        .unwrap()
    }

    #[test]
    fn what_cannot_be_learned_from_is_said() {
        let of = |split_rows, targets: &[[f64; 2]]| doubts(&meta(split_rows, targets), None);
        assert_eq!(of([70, 15, 15], &[[1.0, 2.0]]), Vec::<String>::new());
        assert!(of([1, 0, 0], &[[1.0, 1.0]])[0].starts_with("the training has 1 row, "));
        assert!(of([70, 15, 15], &[[3.0, 3.0]])[0].starts_with("the target is 3 in all training rows: "));
        assert_eq!(
            of([70, 15, 15], &[[3.0, 3.0], [1.0, 2.0]]),
            Vec::<String>::new(),
            "cells of windows may be constant"
        );
        let one_class = StagedMeta {
            has_classes: true,
            out_labels: vec![vec!["yes".to_owned()]],
            ..meta([70, 15, 15], &[[1.0, 1.0]])
        };
        assert!(doubts(&one_class, None)[0].starts_with("the target has one class, yes: "));
    }
}
