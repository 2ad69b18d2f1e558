//! The numbers that count: the model's errors beside the baselines', for machines and for people.
//!
//! **Invariant:** only what the journal says; errors are in the target's unit, over valid cells.

use super::{classes, error::JournalError, format, model::RunView};
use enn_common::metrics::{self, Measure, Metrics, RunMetrics};
use std::{collections::BTreeMap, fmt::Write, path::Path};

/// Names of the baselines that every model must beat: the training mean of each cell, and for classes their
/// frequencies.
pub const FLOORS: [&str; 2] = ["cell_mean", "class_rates"];

/// Returns the value of that baseline.
pub fn floor<T>(baselines: &BTreeMap<String, T>) -> Option<&T> {
    FLOORS.iter().find_map(|name| baselines.get(*name))
}

/// Splits on which forecasters are compared, in the order in which they are shown.
const COMPARED_SPLITS: [&str; 2] = ["val", "test"];

/// Reads the journal of `run_dir` and returns the metrics of `enn metrics RUN --json`.
///
/// # Errors
/// The journal is missing or cannot be read.
pub fn read(run_dir: &Path) -> Result<RunMetrics, JournalError> {
    let view = RunView::read(run_dir)?;
    let mut metrics = of(&view);
    if metrics.run.is_empty() {
        metrics.run = run_dir.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    }
    Ok(metrics)
}

/// Returns the metrics of the best model; before training has ended, those of the best epoch so far.
pub fn of(view: &RunView) -> RunMetrics {
    let (step, epoch) = match (&view.trained, &view.latest) {
        (Some(trained), _) => (trained.step, trained.epoch),
        (None, Some(step)) => (step.step, view.epochs.last().map_or(0, |report| report.epoch)),
        (None, None) => (0, 0),
    };
    let samples_per_s = match (&view.trained, view.epochs.last()) {
        (Some(trained), _) => trained.samples_per_s,
        (None, Some(report)) => report.samples_per_s,
        (None, None) => 0.0,
    };
    let split = split(view);
    RunMetrics {
        run: view.name().to_owned(),
        step,
        epoch,
        baselines: view.baselines.get(COMPARED_SPLITS[compared_index(view, &split)]).cloned().unwrap_or_default(),
        split,
        classes: view.classes.clone(),
        units: view.units().to_owned(),
        samples_per_s,
        restarts: view.restarts(),
        rounds: view.rounds.len() as u64,
    }
}

pub fn split(view: &RunView) -> BTreeMap<String, Metrics> {
    match (&view.trained, view.best()) {
        (Some(trained), _) => trained.split.clone(),
        (None, Some(best)) => BTreeMap::from([("val".to_owned(), best.val)]),
        (None, None) => BTreeMap::new(),
    }
}

/// Returns the index in `COMPARED_SPLITS` of the split by which forecasters are compared: the last one for which the
/// model and the baselines both have metrics. A model has no test metrics before its training has ended.
fn compared_index(view: &RunView, split: &BTreeMap<String, Metrics>) -> usize {
    let has = |name| {
        let ours = split.is_empty() || split.get(name).is_some_and(|metrics| metrics.n > 0);
        ours && (view.baselines.is_empty() || view.baselines.get(name).is_some_and(|all| !all.is_empty()))
    };
    COMPARED_SPLITS.iter().rposition(|name| has(*name)).unwrap_or(0)
}

/// A forecaster and its errors per judged split, `None` where it has none.
#[derive(Debug, Clone, PartialEq)]
pub struct Contender {
    /// "ENN", or the baseline's name.
    pub name: String,
    pub ours: bool,
    /// Errors on the splits val and test.
    pub errors: [Option<Metrics>; 2],
    /// Index of the split by which forecasters are compared.
    compared_index: usize,
}

impl Contender {
    /// Returns the errors on the split by which forecasters are compared.
    pub fn compared(&self) -> Option<&Metrics> {
        self.errors[self.compared_index].as_ref()
    }

    /// Returns the metric by which forecasters are compared.
    pub fn judged(&self) -> Option<f64> {
        self.compared().map(Metrics::judged)
    }
}

/// Share of the error of the training mean below which the target has probably leaked into the inputs.
const TOO_GOOD: f64 = 2e-3;

/// Returns the model and the baselines, best first.
pub fn contenders(view: &RunView) -> Vec<Contender> {
    let split = split(view);
    let compared_index = compared_index(view, &split);
    let mut all = Vec::new();
    if !split.is_empty() {
        let errors = COMPARED_SPLITS.map(|name| split.get(name).filter(|m| m.n > 0).copied());
        all.push(Contender { name: "ENN".to_owned(), ours: true, errors, compared_index });
    }
    let mut names: Vec<&String> = view.baselines.values().flat_map(BTreeMap::keys).collect();
    names.sort();
    names.dedup();
    for name in names {
        let errors = COMPARED_SPLITS.map(|split| view.baselines.get(split)?.get(name).copied());
        all.push(Contender { name: format::label(name), ours: false, errors, compared_index });
    }
    let key = |contender: &Contender| contender.judged().unwrap_or(f64::INFINITY);
    all.sort_by(|a, b| key(a).total_cmp(&key(b)));
    all
}

/// Returns the name of the split on which [`margin`] compares.
pub fn compared_split(contenders: &[Contender]) -> &'static str {
    match contenders.first().map(|one| COMPARED_SPLITS[one.compared_index]) {
        Some("test") => "test",
        _ => "validation",
    }
}

/// Returns the relative difference between the model's error and the best baseline's (negative: the model is better),
/// and that baseline's name.
pub fn margin(contenders: &[Contender]) -> Option<(f64, &str)> {
    let ours = contenders.iter().find(|one| one.ours)?.judged()?;
    let best = contenders.iter().find(|one| !one.ours && one.judged().is_some())?;
    Some((metrics::above(ours, best.judged()?), &best.name))
}

/// Returns a warning for a run that learned nothing, with a validation error not below that of the training mean of
/// each cell, or for one whose error is next to zero.
pub fn warning(view: &RunView) -> Option<String> {
    let baseline = floor(view.baselines.get("val")?)?;
    let ours = *split(view).get("val").filter(|metrics| metrics.n > 0)?;
    let share = ours.judged() / baseline.judged();
    if share < TOO_GOOD && baseline.judged() > 0.0 {
        return Some(format!(
            "the model's validation error is {:.2} % of that of always predicting the training mean, which is rarely true\n  \
             hint: does an input hold the target, or what is known only after it? `enn evaluate --importance` tells which one matters",
            100.0 * share
        ));
    }
    let model_error = format::judged(&ours, view.units());
    let floor = baseline.judged();
    let ours = ours.judged();
    // Nothing was to be learned where the mean does not err.
    let below = ours < floor || (floor == 0.0 && ours == 0.0);
    (!below).then(|| {
        format!(
            "the model has learned nothing useful: its validation {model_error} is not below {}, the error of always predicting {}\n  \
             hint: train longer, lower the learning rate, or look at the cleaning report",
            format::with_unit(floor, baseline.measure().unit(view.units())),
            match baseline.measure() {
                Measure::LogLoss => "how often each class occurs in training",
                Measure::Mae | Measure::Scaled => "the training mean of each cell",
            },
        )
    })
}

/// Formats the table of `enn metrics RUN`: forecasters from the best on, and a sentence that compares the model with
/// the best baseline.
pub fn table(view: &RunView) -> String {
    let contenders = contenders(view);
    if contenders.is_empty() {
        return "no metrics yet: no epoch has been validated\n".to_owned();
    }
    let judged: Vec<usize> =
        (0..COMPARED_SPLITS.len()).filter(|i| contenders.iter().any(|one| one.errors[*i].is_some())).collect();
    let mut rows = vec![vec![format::errors_in(view.units())]];
    let measure = contenders.iter().find_map(|one| Some(one.compared()?.measure())).unwrap_or(Measure::Mae);
    let columns = &format::columns(measure)[..2];
    for split in &judged {
        rows[0].extend(columns.iter().map(|(name, _)| format!("{} {name}", COMPARED_SPLITS[*split])));
    }
    for one in &contenders {
        let mut row = vec![format::marked(&one.name, one.ours)];
        for split in &judged {
            row.extend(columns.iter().map(|(_, of)| format::optional(one.errors[*split].as_ref().map(of))));
        }
        rows.push(row);
    }
    let mut text = format::aligned(&rows);
    if let Some((difference, name)) = margin(&contenders) {
        let side = if difference < 0.0 { "below" } else { "above" };
        let percent = 100.0 * difference.abs();
        let split = compared_split(&contenders);
        // Writing to a String cannot fail.
        let _ = match percent {
            0.0 => writeln!(text, "ENN's {split} error is that of the best baseline ({name})"),
            _ => writeln!(text, "ENN's {split} error is {percent:.1} % {side} the best baseline's ({name})"),
        };
    }
    text.push_str(&probabilities(view));
    view.classes.iter().for_each(|(split, of)| text.push_str(&classes::tables(of, &format!("{split} rows"))));
    text
}

/// Formats the metrics of predicted distributions or classes, a line each; empty for point forecasts.
fn probabilities(view: &RunView) -> String {
    let split = split(view);
    let of = |metric: &dyn Fn(&Metrics) -> Option<String>| {
        let one = |name: &&str| Some(format!("{name} {}", metric(split.get(*name).filter(|m| m.n > 0)?)?));
        let all: Vec<String> = COMPARED_SPLITS.iter().filter_map(one).collect();
        (!all.is_empty()).then(|| all.join(", "))
    };
    let nominal = split.values().find_map(|metrics| Some(100.0 * metrics.interval?.nominal));
    let lines = [
        of(&|m| Some(format::percent(m.interval?.coverage)))
            .map(|all| format!("within the {:.0} % interval: {all}", nominal.unwrap_or(0.0))),
        of(&|m| Some(format::with_unit(m.interval?.width, view.units())))
            .map(|all| format!("mean width of the interval: {all}")),
        of(&|m| Some(format::percent(m.accuracy?))).map(|all| format!("likeliest class is right: {all}")),
        of(&|m| m.interval.map(|_| format::measure(m.loss))).map(|all| format!("loss: {all}")),
    ];
    lines.into_iter().flatten().map(|line| line + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tests::{events, view_after};
    use enn_common::{event::EventKind, metrics::Interval};

    #[test]
    fn the_table_puts_the_best_first() {
        insta::assert_snapshot!(table(&view_after(&events())));
        assert_eq!(table(&RunView::default()), "no metrics yet: no epoch has been validated\n");
    }

    #[test]
    fn a_run_that_was_cut_off_is_compared_by_what_it_has() {
        let mut all = events();
        all.retain(|event| !matches!(event.what, EventKind::Trained { .. }));
        let view = view_after(&all);
        let ours = view.best().unwrap().val.mae;
        let ridge = view.baselines["val"]["ridge"].mae;
        assert_ne!(ridge, view.baselines["test"]["ridge"].mae);
        let contenders = contenders(&view);
        let found = contenders.iter().map(|one| (one.name.as_str(), one.judged().unwrap())).collect::<BTreeMap<_, _>>();
        assert_eq!((found["ENN"], found["ridge"]), (ours, ridge));
        assert_eq!(of(&view).baselines["ridge"].mae, ridge);
    }

    #[test]
    fn intervals_and_classes_have_their_lines() {
        let mut all = events();
        let change = |all: &mut Vec<enn_common::event::Event>, to: &dyn Fn(&mut Metrics)| {
            for event in all {
                if let EventKind::Trained { split, .. } = &mut event.what {
                    split.values_mut().for_each(to);
                }
            }
        };
        change(&mut all, &|m| {
            m.interval = Some(Interval { nominal: 0.8, coverage: 0.79, width: 8.25 });
            m.loss = 0.25;
        });
        let text = table(&view_after(&all));
        let expected = "within the 80 % interval: val 79.0 %, test 79.0 %\n\
                        mean width of the interval: val 8.250 °F, test 8.250 °F\nloss: val 0.250, test 0.250\n";
        assert!(text.ends_with(expected), "{text}");
        change(&mut all, &|m| (m.interval, m.accuracy) = (None, Some(0.9)));
        let text = table(&view_after(&all));
        assert!(text.contains("val log-loss  val accuracy  test log-loss  test accuracy"), "{text}");
        assert!(text.ends_with("right: val 90.0 %, test 90.0 %\n"), "{text}");
    }

    #[test]
    fn machines_get_the_same_numbers() {
        let metrics = of(&view_after(&events()));
        assert_eq!((metrics.step, metrics.epoch, metrics.restarts, metrics.rounds), (24, 3, 1, 2));
        assert_eq!(metrics.split.keys().collect::<Vec<_>>(), ["test", "train", "val"]);
        assert!((metrics.baselines["ridge"].mae - 4.9).abs() < 1e-12, "baselines are those of the test split");
        assert_eq!(metrics.units, "°F");
    }

    #[test]
    fn a_run_under_way_shows_its_best_epoch() {
        let all = events();
        let trained = all.iter().position(|event| matches!(event.what, EventKind::Trained { .. })).unwrap();
        let view = view_after(&all[..trained]);
        assert_eq!(split(&view).keys().collect::<Vec<_>>(), ["val"]);
        assert!((split(&view)["val"].mae - 4.4).abs() < 1e-12);
    }

    #[test]
    fn learning_nothing_is_said_clearly() {
        let mut all = events();
        assert_eq!(warning(&view_after(&all)), None);
        for event in &mut all {
            if let EventKind::Trained { split, .. } = &mut event.what {
                split.get_mut("val").unwrap().mae = 8.9;
            }
        }
        let text = warning(&view_after(&all)).unwrap();
        assert!(text.contains("8.900 °F is not below 8.900 °F") && text.contains("hint"), "{text}");
        for event in &mut all {
            if let EventKind::Trained { split, .. } = &mut event.what {
                split.get_mut("val").unwrap().mae = 0.0089;
            }
        }
        let text = warning(&view_after(&all)).unwrap();
        assert!(
            text.contains("is 0.10 % of that of always") && text.contains("does an input hold the target"),
            "{text}"
        );
    }
}
