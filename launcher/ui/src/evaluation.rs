//! The output of `enn evaluate`: all forecasters over all rows, then the model and the best baseline by horizon, group and
//! cell, the coverage of intervals, and the importance of inputs.

use super::{
    classes,
    format::{self, aligned, errors_in, marked},
};
use enn_common::{
    artifact::{
        evaluation::{Evaluation, EvaluationPart, MODEL},
        ranking::ranked,
    },
    metrics::{self, Measure, Metrics},
};
use std::fmt::Write;

/// Horizons or groups that are listed one by one; of more, the worst.
const LISTED_MAX: usize = 24;
const CELLS_MAX: usize = 5;

pub fn table(evaluation: &Evaluation) -> String {
    let mut text = contenders(evaluation);
    seen(&mut text, evaluation);
    details(&mut text, evaluation);
    // Writing to a String cannot fail.
    for note in &evaluation.notes {
        let _ = writeln!(text, "{note}");
    }
    let _ = writeln!(text, "{}", sentence(evaluation));
    if let Some(warning) = &evaluation.warning {
        let _ = writeln!(text, "warning: {warning}");
    }
    text
}

/// Appends the model's and the best baseline's errors by horizon, group and cell, intervals and importance.
pub(super) fn details(text: &mut String, evaluation: &Evaluation) {
    let horizon = if measure(evaluation) == Measure::LogLoss { "by class" } else { "by horizon" };
    parts(text, horizon, &evaluation.horizons, LISTED_MAX);
    parts(text, &format!("by {}", evaluation.group), &evaluation.groups, LISTED_MAX);
    // A grid of a single horizon, or of horizons alone, is shown above.
    if evaluation.cells.len() > evaluation.horizons.len() {
        parts(text, "worst cells", &evaluation.cells, CELLS_MAX);
    }
    if let Some(class_scores) = &evaluation.classes {
        text.push_str(&classes::tables(class_scores, &rows(evaluation)));
    }
    intervals(text, evaluation);
    importance(text, evaluation);
}

fn contenders(evaluation: &Evaluation) -> String {
    let columns = format::columns(measure(evaluation));
    let mut rows = vec![vec![errors_in(&evaluation.units)]];
    rows[0].extend(columns.iter().map(|(name, _)| (*name).to_owned()));
    for one in ranked(&evaluation.all.errors) {
        let name = marked(one.name, one.name == MODEL);
        rows.push([vec![name], columns.map(|(_, of)| format::measure(of(one.metrics))).to_vec()].concat());
    }
    aligned(&rows)
}

/// Appends the errors of rows that the run trained or validated on, and of those that it never saw; nothing where all
/// are new.
fn seen(text: &mut String, evaluation: &Evaluation) {
    if evaluation.seen.iter().all(|one| one.rows == evaluation.judged) && evaluation.warning.is_none() {
        return;
    }
    let name = measure(evaluation).name();
    let mut rows = vec![["the run has", "rows", name, "best baseline", ""].map(str::to_owned).to_vec()];
    for one in &evaluation.seen {
        let label = one.part.best().map(|best| format::label(best.0));
        let best = one.part.best().map(|best| best.1);
        let name = format!("  {}", one.part.name);
        let count = format::count(one.rows);
        rows.push(vec![
            name,
            count,
            format::optional(one.part.model()),
            format::optional(best),
            label.unwrap_or_default(),
        ]);
    }
    text.push_str(&aligned(&rows));
}

pub(super) fn measure(evaluation: &Evaluation) -> Measure {
    evaluation.all.measure().unwrap_or(Measure::Mae)
}

/// Appends a table of parts: all, or the worst ones.
fn parts(text: &mut String, title: &str, parts: &[EvaluationPart], listed: usize) {
    let measure = parts.iter().find_map(EvaluationPart::measure).unwrap_or(Measure::Mae);
    // The second column: R², or the share of rows whose class is predicted correctly.
    let [(name, _), _, (r2, of_r2)] = format::columns(measure);
    let beside = if measure == Measure::Mae { (r2, of_r2) } else { format::columns(measure)[1] };
    if parts.len() < 2 {
        return;
    }
    let mut shown: Vec<&EvaluationPart> = parts.iter().collect();
    let mut title = title.to_owned();
    if shown.len() > listed {
        shown.sort_by(|a, b| b.model().unwrap_or(-1.0).total_cmp(&a.model().unwrap_or(-1.0)));
        title = format!("{title}, {listed} of {}", format::count(parts.len() as u64));
        shown.truncate(listed);
    }
    let mut rows = vec![[title.as_str(), name, beside.0, "best baseline", ""].map(str::to_owned).to_vec()];
    for part in shown {
        let model = part.errors.get(MODEL);
        let number = |of: fn(&Metrics) -> f64| format::optional(model.map(of));
        let best = format::optional(part.best().map(|best| best.1));
        let name = part.best().map_or_else(String::new, |best| format::label(best.0));
        rows.push(vec![format!("  {}", part.name), number(Metrics::judged), number(beside.1), best, name]);
    }
    text.push_str(&aligned(&rows));
}

fn intervals(text: &mut String, evaluation: &Evaluation) {
    if evaluation.levels.is_empty() {
        return;
    }
    let percent = format::percent;
    let mut rows = vec![["intervals", "should hold", "hold", "mean width"].map(str::to_owned).to_vec()];
    for one in &evaluation.intervals {
        let name = format!("  {} to {}", one.lower, one.upper);
        rows.push(vec![name, percent(one.upper - one.lower), percent(one.covered), format::measure(one.width)]);
    }
    for level in &evaluation.levels {
        rows.push(vec![format!("  below {}", level.level), percent(level.level), percent(level.below), String::new()]);
    }
    text.push_str(&aligned(&rows));
}

fn importance(text: &mut String, evaluation: &Evaluation) {
    if evaluation.importance.is_empty() {
        return;
    }
    let mut rows =
        vec![vec!["shuffled input".to_owned(), format!("{} rises by", measure(evaluation).name()), "±".to_owned()]];
    for one in &evaluation.importance {
        let name = format!("  {}", one.input);
        rows.push(vec![name, format::measure(one.rise.mean), format::measure(one.rise.std)]);
    }
    text.push_str(&aligned(&rows));
}

/// Describes the rows over which errors are computed.
pub(super) fn rows(evaluation: &Evaluation) -> String {
    let rows = format::plural(evaluation.judged, "row");
    match (evaluation.seen.is_empty(), &evaluation.warning) {
        (false, None) => format!("{rows} that the run never saw"),
        (false, Some(_)) => format!("{rows} that the run has seen"),
        (true, _) => format!("{rows} of the given data"),
    }
}

/// Describes how much the model's forecasts vary compared with the targets; empty where the targets are constant.
pub(super) fn moves(evaluation: &Evaluation) -> String {
    evaluation.reactivity.map_or_else(String::new, |reactivity| {
        format!("; its forecasts spread {reactivity:.2} times as far as the targets (median over cells)")
    })
}

/// Compares the model with the best baseline, and states how much its forecasts vary.
fn sentence(evaluation: &Evaluation) -> String {
    let rows = rows(evaluation);
    let moves = moves(evaluation);
    match evaluation.all.model().zip(evaluation.all.best()) {
        Some((mae, (name, best))) => {
            let side = if mae < best { "below" } else { "above" };
            let percent = 100.0 * metrics::above(mae, best).abs();
            format!(
                "{rows}: ENN's {} is {percent:.1} % {side} that of the best baseline, {}{moves}",
                measure(evaluation).name(),
                format::label(name)
            )
        }
        None => format!("{rows}, no baseline to compare with{moves}"),
    }
}
