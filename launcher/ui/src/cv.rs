//! What `enn cv` prints: a line for every fold that ends, then all contenders over all folds, best first, and one sentence.

use super::{
    evaluation,
    format::{self, aligned, errors_in, marked},
};
use enn_common::artifact::{
    cv::{CvRecord, FoldState, MODEL, Spread},
    evaluation::Evaluation,
    ranking::best_baseline,
};
use std::fmt::Write;

pub fn line(record: &CvRecord, fold: usize) -> String {
    let found = &record.folds[fold];
    let done = record.folds.iter().filter(|fold| fold.state != FoldState::Pending).count();
    let place = format!("[{done}/{}] {}", record.folds.len(), found.run);
    match &found.state {
        FoldState::Pending => format!("{place}: not trained to the end"),
        FoldState::Failed { cause } => format!("{place} FAILED: {cause}"),
        FoldState::Done => {
            let ours = found.errors.get(MODEL);
            let ours = ours.map_or_else(|| format::ABSENT.to_owned(), |one| format::judged(one, &record.units));
            let beside = best_baseline(&found.errors).map_or_else(String::new, |best| {
                format!(", {} {}", format::label(best.name), format::measure(best.judged()))
            });
            format!("{place}: {ours}{beside}; {:.1} s", found.seconds)
        }
    }
}

/// Formats the table of all folds, and the sentence below it.
pub fn table(record: &CvRecord, evaluation: Option<&Evaluation>) -> String {
    let columns = format::columns(record.measure());
    let mut rows = vec![vec![errors_in(&record.units)]];
    rows[0].extend(columns.iter().flat_map(|(name, _)| [(*name).to_owned(), "±".to_owned()]));
    for one in &record.contenders {
        let of = |spread: Spread| [format::measure(spread.mean), format::measure(spread.std)];
        let spreads = columns.iter().filter_map(|(_, of)| record.spread(&one.name, *of));
        rows.push([vec![marked(&one.name, one.name == MODEL)], spreads.flat_map(of).collect()].concat());
    }
    let done = record.done().count();
    let mut text = format!("{}\n{}", record.rule, aligned(&rows));
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "means and standard deviations over {}; baselines are fitted to all rows outside the fold, training and validation",
        format::plural(done as u64, "fold"),
    );
    evaluation.iter().for_each(|evaluation| evaluation::details(&mut text, evaluation));
    for fold in &record.folds {
        if let FoldState::Failed { cause } = &fold.state {
            let _ = writeln!(text, "{} FAILED: {cause}", fold.run);
        }
    }
    let _ = writeln!(text, "{}{}", sentence(record), evaluation.map_or_else(String::new, evaluation::moves));
    text
}

/// Returns a sentence that compares the model with the best baseline.
pub fn sentence(record: &CvRecord) -> String {
    let Some(verdict) = record.verdict() else {
        return "there is nothing to compare: no fold has both a model and a baseline".to_owned();
    };
    let measure = record.measure().name();
    let name = format::label(&verdict.baseline);
    let percent = 100.0 * verdict.difference.abs();
    let folds = format!(
        "on the test rows of all folds; lower in {} of {}",
        verdict.wins,
        format::plural(verdict.folds as u64, "fold")
    );
    let (beats, side) = if verdict.difference < 0.0 { ("beats", "below") } else { ("does NOT beat", "above") };
    format!("ENN {beats} the best baseline: its {measure} is {percent:.1} % {side} that of {name} ({folds})")
}
