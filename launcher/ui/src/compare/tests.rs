//! Comparisons of runs that were made up from the story of a training.

use super::*;
use crate::{
    model::tests::{epoch, events},
    run_status::RunStatus,
    runs::{RunKind, RunState, RunSummary},
};
use enn_common::event::{Event, EventKind};
use std::time::SystemTime;

fn config(changes: &[(&str, &str)]) -> Vec<(String, String)> {
    let base = [("data.files", "/a/weather.csv"), ("name", "weather"), ("train.lr", "0.001"), ("model.depth", "4")];
    let value = |key: &str, value: &str| {
        let changed = changes.iter().find(|(changed, _)| *changed == key).map(|(_, value)| *value);
        (key.to_owned(), changed.unwrap_or(value).to_owned())
    };
    base.iter().map(|(key, of)| value(key, of)).collect()
}

fn made(name: &str, state: RunState, events: &[Event], config: Vec<(String, String)>) -> ComparedRun {
    let summary = RunSummary {
        name: name.to_owned(),
        path: format!("/runs/{name}").into(),
        kind: if config.is_empty() { RunKind::Program } else { RunKind::Train },
        error: matches!(state, RunState::Recorded(RunStatus::Failed(_))).then(|| "rank 0 ended\u{1b}[2J".to_owned()),
        state,
        started: events.first().map(|event| event.time),
        written: SystemTime::UNIX_EPOCH,
        step: None,
        parent: None,
    };
    let mut run = ComparedRun::new(summary, config);
    events.iter().for_each(|event| run.apply(event));
    run
}

/// The story with other validation errors in the end.
fn with_error(error: f64) -> Vec<Event> {
    let mut all = events();
    for event in &mut all {
        if let EventKind::Trained { split, .. } = &mut event.what {
            split.values_mut().for_each(|metrics| metrics.mae = error);
        }
    }
    all
}

fn finished() -> RunState {
    RunState::Recorded(RunStatus::Finished)
}

fn compared() -> Comparison {
    let cut: Vec<Event> = {
        let mut all = events();
        let trained = all.iter().position(|event| matches!(event.what, EventKind::Trained { .. })).unwrap();
        all.truncate(trained);
        all
    };
    Comparison::new(
        vec![
            made("weather-1", finished(), &with_error(4.4), config(&[])),
            made("weather-2", finished(), &with_error(4.1), config(&[("train.lr", "0.003"), ("model.depth", "6")])),
            made("weather-3", RunState::Recorded(RunStatus::Failed(1)), &cut, config(&[("train.lr", "0.01")])),
        ],
        SortKey::Given,
    )
}

#[test]
fn keys_that_differ_stand_beside_figures_and_the_best_is_marked() {
    insta::assert_snapshot!(text(&compared(), Style::default()));
}

#[test]
fn a_narrow_terminal_has_the_runs_below_each_other() {
    let text = text(&compared(), Style { width: Some(52), has_colours: false });
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert_eq!(text.matches("train.lr").count(), 2, "two runs fit beside each other, then one: {text}");
    assert!(!text.contains('\u{1b}'));
}

#[test]
fn colours_are_only_those_of_the_table() {
    let text = text(&compared(), Style { width: Some(120), has_colours: true });
    assert!(text.contains("\u{1b}[32m") && text.contains("\\u{1b}[2J"), "{text}");
    assert!(!text.contains("\u{1b}[2J"));
}

#[test]
fn other_rows_and_other_targets_are_not_ranked() {
    let changed = |change: &dyn Fn(&mut EventKind)| {
        let mut all = with_error(0.1);
        all.iter_mut().for_each(|event| change(&mut event.what));
        all
    };
    let other_rows = changed(&|what| {
        if let EventKind::BaselinesComputed { split, .. } = what {
            split.values_mut().flat_map(|all| all.values_mut()).for_each(|metrics| metrics.mae += 0.5);
        }
    });
    let other_target = changed(&|what| {
        if let EventKind::Staged { units, .. } = what {
            *units = "mm".to_owned();
        }
    });
    let runs = vec![
        made("a", finished(), &other_rows, config(&[])),
        made("b", finished(), &with_error(4.4), config(&[])),
        made("c", finished(), &other_target, config(&[])),
        made("d", finished(), &with_error(4.3), config(&[])),
        made("e", finished(), &[], Vec::new()),
    ];
    let comparison = Comparison::new(runs, SortKey::Given);
    let order: Vec<&str> = comparison.entries.iter().map(|entry| entry.run.summary.name.as_str()).collect();
    assert_eq!(order, ["b", "d", "a", "c", "e"], "most runs are like b, and are ranked");
    let reasons: Vec<String> =
        comparison.entries.iter().filter_map(|entry| Some(entry.incomparable.as_ref()?.to_string())).collect();
    assert_eq!(reasons.len(), 3, "{reasons:?}");
    assert!(reasons.iter().any(|reason| reason.starts_with("other rows (54 for validation")), "{reasons:?}");
    assert!(reasons.iter().any(|reason| reason.starts_with("another target (MAE in mm")), "{reasons:?}");
    assert!(reasons.iter().any(|reason| reason.starts_with("no training")), "{reasons:?}");
    assert!(
        comparison.verdict().starts_with("best by validation MAE: 2, d (4.300 °F), of 2"),
        "{}",
        comparison.verdict()
    );
}

#[test]
fn the_lowest_validation_error_is_best_and_runs_are_sorted() {
    let runs = || {
        vec![
            made("b", finished(), &with_error(4.4), config(&[])),
            made("a", finished(), &with_error(4.1), config(&[])),
            made("c", RunState::Empty, &[], config(&[])),
        ]
    };
    let order = |sort| {
        let comparison = Comparison::new(runs(), sort);
        let names: Vec<String> = comparison.entries.iter().map(|entry| entry.run.summary.name.clone()).collect();
        (names, comparison.best.map(|best| comparison.entries[best].run.summary.name.clone()))
    };
    let of = |names: [&str; 3]| (names.map(str::to_owned).to_vec(), Some("a".to_owned()));
    assert_eq!(order(SortKey::Given), of(["b", "a", "c"]));
    assert_eq!(order(SortKey::Val), of(["a", "b", "c"]));
    assert_eq!(order(SortKey::Name), of(["a", "b", "c"]));
    assert_eq!(order(SortKey::Started), of(["b", "a", "c"]), "a run without a start comes last");
}

#[test]
fn machines_get_figures_and_differences() {
    let comparison = compared();
    let document = json(&comparison);
    assert_eq!(document["best"], "weather-2");
    assert_eq!(document["units"], "°F");
    assert_eq!(document["runs"][2]["finished"], false);
    assert_eq!(document["runs"][1]["val_error"], 4.1);
    assert_eq!(document["runs"][0]["best_baseline"]["name"], "ridge");
    assert_eq!(document["differences"]["train.lr"]["weather-2"], "0.003");
    assert!(document["differences"].get("name").is_none());
    let table = csv(&comparison);
    let rows: Vec<&str> = table.lines().collect();
    assert_eq!(rows.len(), 4);
    assert!(rows[0].starts_with("run,state,error,best,") && rows[0].ends_with("train.lr,model.depth"), "{table}");
    let columns = |row: &str| row.split(',').count();
    assert!(rows.iter().all(|row| columns(row) == columns(rows[0])), "{table}");
}

#[test]
fn a_run_under_way_counts_with_its_best_epoch_so_far() {
    let mut all = events();
    let at = all.iter().position(|event| matches!(event.what, EventKind::Trained { .. })).unwrap();
    all.truncate(at);
    let time = all.last().unwrap().time + 1.0;
    all.push(Event { time, what: EventKind::EpochEnded(Box::new(epoch(4, 0.1, 1.5, true))) });
    let runs = vec![
        made("a", finished(), &with_error(4.4), config(&[])),
        made("b", RunState::Recorded(RunStatus::Running), &all, config(&[])),
    ];
    let comparison = Comparison::new(runs, SortKey::Given);
    assert!(comparison.verdict().contains("2, b (1.500 °F so far), of 2 runs"), "{}", comparison.verdict());
}
