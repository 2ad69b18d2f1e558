//! Events as sentences: what a log shows, and what is printed above the progress bar.
//!
//! **Invariant:** pure; one event gives the lines for it, from the event and the view that already holds it.

pub use super::model::ANY_PROGRAM;
use super::{
    classes, failure, format, metrics,
    model::{RunView, out_of_memory, sick_device, straggler},
    next_steps,
    run_status::any_program,
};
use enn_common::{
    artifact::ranking::ranked,
    event::{EpochReport, Event, EventKind},
    exit::ExitCode,
    metrics::Metrics,
    shown,
    staged::meta::CleaningReport,
};
use std::collections::BTreeMap;

/// The importance of a line, by which the display chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LineLevel {
    /// The line is shown in a plain log, but not above the progress bar, which shows the same.
    Detail,
    /// The line is shown in a plain log and above the progress bar.
    Notable,
    /// The line is shown in every mode, also when quiet.
    Alert,
}

/// Maximum number of notes on the data; the report has all.
const NOTES_MAX: usize = 8;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventLine {
    pub level: LineLevel,
    /// The text, without a time; may hold newlines (a hint, a table).
    pub text: String,
}

/// Returns the lines for `event`, which `view` contains already. Control characters are escaped.
pub fn lines(event: &Event, view: &RunView) -> Vec<EventLine> {
    let harmless = |line: EventLine| EventLine { text: shown::lines(&line.text).into_owned(), ..line };
    event_lines(event, view).into_iter().map(harmless).collect()
}

#[expect(clippy::too_many_lines, reason = "one arm an event, and nothing besides")]
fn event_lines(event: &Event, view: &RunView) -> Vec<EventLine> {
    match &event.what {
        EventKind::RunStarted { run, mode, dir, host, nproc, .. } => {
            let workers = format::plural(u64::from(*nproc), "worker");
            notable(format!("{mode} {run}: {workers} on {host}, {}", dir.display()))
        }
        EventKind::Staged { .. } => staged(&event.what),
        EventKind::BaselinesComputed { split, notes } => {
            let mut lines: Vec<EventLine> =
                ["val", "test"].iter().filter_map(|name| baselines(name, split, view.units())).collect();
            lines.extend(notes.iter().flat_map(|note| detail(format!("baselines: {note}"))));
            lines
        }
        EventKind::Decided { decision } => notable(decision.clone()),
        EventKind::BatchChosen { batch, micro, accumulation, recompute, reason } => {
            let again = if *recompute { ", activations computed again" } else { "" };
            let text = format!("batch: {batch}, {micro} rows at once, {accumulation} times a step{again} ({reason})");
            if *accumulation > 1 { notable(text) } else { detail(text) }
        }
        EventKind::PrecisionChosen { format, reason } => detail(format!("precision: {format} ({reason})")),
        EventKind::ModelBuilt { parameters, batch, steps_per_epoch, steps_total, .. } => {
            let [parameters, batch, per_epoch, total] =
                [*parameters, *batch, *steps_per_epoch, *steps_total].map(format::count);
            notable(format!(
                "model: {parameters} parameters, batch {batch}, {per_epoch} steps per epoch, {total} in all"
            ))
        }
        EventKind::Preloaded { modules, seconds, warm } => {
            let modules = modules.join(", ");
            let time = format::seconds(*seconds);
            detail(match warm {
                true => format!("a warm server with {modules} is there after {time}: workers are forked"),
                false => format!("{modules} imported once in {time}: workers are forked"),
            })
        }
        EventKind::RoundStarted { round, world_size, resume_step, .. } => {
            let workers = format::plural(u64::from(*world_size), "worker");
            let from = resume_step.map_or_else(String::new, |step| format!(" from step {}", format::count(step)));
            let level = if round.0 == 0 { LineLevel::Detail } else { LineLevel::Notable };
            let verb = if view.goes_on(round.0) { "going on with" } else { "starting" };
            one(level, format!("round {round}: {verb} {workers}{from}"))
        }
        EventKind::WorkerReady { round, .. } => all_ready(round.0, view),
        EventKind::WorkerExited { code: Some(0), .. } => Vec::new(),
        EventKind::WorkerExited { rank, pid, code, signal, seconds_to_notice, .. } => {
            let how = format::exit(*code, *signal);
            let text = format!("worker {rank} (pid {pid}) {how}, noticed in {}", format::seconds(*seconds_to_notice));
            // After a request to stop, workers that do not end by themselves are killed: that is not news. Of a run of any
            // program the failure is shown once, by its report.
            if view.stops.is_empty() && !any_program(view) { alert(text) } else { detail(text) }
        }
        EventKind::WorkerFailed { rank, error, .. } => alert(format!("worker {rank} failed: {error}")),
        EventKind::RoundLeft { round, reason } if any_program(view) => {
            // The rest is what the worker wrote, which was shown.
            let first = reason.lines().next().unwrap_or_default();
            let first = first.split("; its standard error").next().unwrap_or_default();
            alert(format!("round {round} ended: {first}; the others meet again"))
        }
        EventKind::RoundLeft { round, reason } => {
            alert(format!("round {round} ended: {reason}; the others meet again"))
        }
        EventKind::RoundFailed { .. } => round_failed(&event.what, view),
        EventKind::StopRequested { signal, second: true } => alert(format!("{signal} again: killing the workers")),
        EventKind::StopRequested { signal, second: false } if any_program(view) => {
            alert(format!("{signal}: stopping the workers (once more to kill them)"))
        }
        EventKind::StopRequested { signal, second: false } => {
            alert(format!("{signal}: finishing the step and writing a checkpoint (once more to kill the workers)"))
        }
        EventKind::SpareStarted { pid, local_rank, .. } => {
            detail(format!("spare for seat {local_rank} started (pid {pid})"))
        }
        EventKind::SpareReady { pid, seconds } => {
            detail(format!("spare ready in {} (pid {pid})", format::seconds(*seconds)))
        }
        EventKind::SpareEnded { pid, code, signal } => {
            detail(format!("a spare (pid {pid}) {}", format::exit(*code, *signal)))
        }
        EventKind::WorkerDismissed { rank, pid, .. } => {
            detail(format!("worker {rank} (pid {pid}) had lost its seat and ended"))
        }
        EventKind::SeatTaken { rank, pid, spare: true, .. } => {
            one(recovery_level(view), format!("a spare (pid {pid}) takes the seat of worker {rank}"))
        }
        EventKind::SeatTaken { rank, pid, .. } => detail(format!("pid {pid} goes on as worker {rank}")),
        EventKind::StateReceived { rank, from, step, bytes, seconds, .. } => {
            let step = format::count(*step);
            let bytes = format::bytes(*bytes);
            let time = format::seconds(*seconds);
            detail(format!("worker {rank} has the state of step {step} from worker {from}: {bytes} in {time}"))
        }
        EventKind::Recovered { seconds, lost_steps, from_rank, .. } => {
            let lost = match lost_steps {
                0 => "no step is lost".to_owned(),
                lost => format!("{} done again", format::plural(*lost, "step")),
            };
            let from = match from_rank {
                Some(rank) => format!("with the state of worker {rank}"),
                None => "from the newest checkpoint".to_owned(),
            };
            let seconds = format::seconds(*seconds);
            one(recovery_level(view), format!("the next step was done {seconds} after the failure, {from}; {lost}"))
        }
        EventKind::MicroBatchesSplit { split, rank, error, .. } => {
            alert(format!("{}: {error}", out_of_memory(*rank, *split)))
        }
        EventKind::MicroBatchesGrown { split: 0 | 1, .. } => {
            notable("memory was enough for long: whole micro-batches again".into())
        }
        EventKind::MicroBatchesGrown { split, .. } => {
            notable(format!("memory was enough for long: micro-batches are cut into {split} only"))
        }
        EventKind::Straggler { rank, pid, slower_by, evicted, .. } => {
            alert(straggler(*rank, *pid, *slower_by, *evicted))
        }
        EventKind::DeviceSick { device, reason, left_out, host, .. } => {
            alert(format!("warning: {}", sick_device(device, host, reason, *left_out)))
        }
        EventKind::Paused { step, .. } => {
            notable(format!("paused after step {}: the workers wait (enn continue)", format::count(*step)))
        }
        EventKind::Continued { seconds } => notable(format!("continued after {}", format::seconds(*seconds))),
        EventKind::Resized { before, workers } => {
            notable(format!("to go on with {} instead of {before}", format::plural(u64::from(*workers), "worker")))
        }
        EventKind::EpochEnded(report) => detail(epoch(report, view.units())),
        EventKind::Trained { .. } => trained(&event.what, view),
        EventKind::CheckpointCommitted { step, bytes, seconds, blocked_seconds, .. } => {
            let [seconds, stood] = [*seconds, *blocked_seconds].map(format::seconds);
            let step = format::count(*step);
            let bytes = format::bytes(*bytes);
            detail(format!("checkpoint at step {step}: {bytes} in {seconds}, training stood still for {stood}"))
        }
        EventKind::CheckpointFailed { step, error } => {
            let step = format::count(*step);
            alert(format!("the checkpoint at step {step} was abandoned, the one before it stands: {error}"))
        }
        EventKind::CheckpointDamaged { step, path, error } => {
            let step = format::count(*step);
            let path = path.display();
            alert(format!("the checkpoint at step {step} is damaged and set aside ({path}): {error}"))
        }
        EventKind::Predicted { rows, rows_total } if rows == rows_total => {
            notable(format!("predicted {}", format::plural(*rows, "row")))
        }
        EventKind::ClassesJudged { split, classes } => {
            notable(classes::tables(classes, &format!("{split} rows")).trim_end().to_owned())
        }
        EventKind::Gathered { path, files, bytes } => {
            let files = format::plural(*files, "file");
            let bytes = format::bytes(*bytes);
            notable(format!("gathered {files}, {bytes}: {}", path.display()))
        }
        EventKind::Warned { message } => alert(format!("warning: {message}")),
        EventKind::GaveUp { reason } => alert(format!("error: {reason}")),
        EventKind::Waiting { reason } => notable(format!("waiting: {reason}")),
        EventKind::NodeJoined { host, workers } => {
            notable(format!("node {host} joined with {}", format::plural(u64::from(*workers), "worker")))
        }
        EventKind::NodeLost { host, reason } => alert(format!("node {host} is lost: {reason}")),
        EventKind::RoundFormed { round, restart, master, nodes } => {
            let workers: u64 = nodes.iter().map(|node| u64::from(node.workers)).sum();
            let size = format::plural(nodes.len() as u64, "node");
            let workers = format::plural(workers, "worker");
            let again = if *restart > 0 { format!(", restart {restart}") } else { String::new() };
            let level = if nodes.len() > 1 || round.0 > 0 { LineLevel::Notable } else { LineLevel::Detail };
            one(level, format!("round {round}: {size}, {workers}, which meet at {master}{again}"))
        }
        // In full when it ends the run; when another round follows, with that.
        EventKind::FailureReported { failure } => {
            detail(failure::headline(failure, &failure::context(view, failure, failure::WIDTH)))
        }
        EventKind::HangDetected { seconds, stacks, .. } => {
            let stacks =
                stacks.as_ref().map_or_else(String::new, |path| format!("\nwhat they were doing: {}", path.display()));
            alert(format!("no worker made progress for {}{stacks}", format::seconds(*seconds)))
        }
        EventKind::KernelQuarantined { rank, entry } => {
            let then = match entry.retry_at() {
                Some(step) => format!("it is tried again at step {}", format::count(step)),
                None => "it is not tried again in this build".to_owned(),
            };
            alert(format!("warning: rank {rank}: {}; the next kernel runs instead, {then}", entry.sentence()))
        }
        EventKind::KernelRecovered { entry, .. } => {
            notable(format!("kernel {} of {} is right again and runs", entry.kernel, entry.op))
        }
        EventKind::RunEnded { .. } => ended(&event.what, view),
        EventKind::WorkerStarted { round, rank, pid, .. } if view.goes_on(round.0) => {
            one(recovery_level(view), format!("a new process (pid {pid}) takes the seat of worker {rank}"))
        }
        EventKind::StageProgressed { .. }
        | EventKind::WorkerStarted { .. }
        | EventKind::Stepped { .. }
        | EventKind::Predicted { .. } => Vec::new(),
    }
}

fn staged(what: &EventKind) -> Vec<EventLine> {
    let EventKind::Staged {
        rows,
        features,
        out_shape,
        split_rows,
        sources,
        reused,
        resumed_rows,
        seconds,
        report,
        dir,
        ..
    } = what
    else {
        return Vec::new();
    };
    let [train, val, test] = split_rows.map(format::count);
    let grid = format::shape(out_shape);
    let how = if *reused {
        format!("found staged in {}", dir.display())
    } else if *resumed_rows > 0 {
        let before = format::plural(*resumed_rows, "row");
        format!("staged in {}, from behind {before} of an attempt before", format::seconds(*seconds))
    } else {
        format!("staged in {}", format::seconds(*seconds))
    };
    let rows = format::plural(*rows, "sample");
    let features = format::plural(*features, "input");
    let mut lines =
        notable(format!("data: {rows} of {features} -> {grid}, {how} (train {train}, val {val}, test {test})"));
    lines.extend(sources.iter().flat_map(|one| detail(format!("source {}: {}", one.name, format::source(one)))));
    lines.extend(cleaning(report).into_iter().flat_map(detail));
    lines.extend(report.warnings.iter().flat_map(|warning| alert(format!("data: {warning}"))));
    lines.extend(report.notes.iter().take(NOTES_MAX).flat_map(|note| detail(format!("data: {note}"))));
    lines
}

/// Describes the findings of cleaning in one sentence; `None` when the data were clean.
pub fn cleaning(report: &CleaningReport) -> Option<String> {
    let sum = |of: fn(&enn_common::staged::meta::ColumnReport) -> u64| report.columns.values().map(of).sum::<u64>();
    let found = [
        (sum(|column| column.missing), "missing cell", "missing cells"),
        (sum(|column| column.non_finite), "non-finite cell", "non-finite cells"),
        (sum(|column| column.out_of_range), "cell out of range", "cells out of range"),
        (sum(|column| column.clamped), "clamped index", "clamped indices"),
        (sum(|column| column.implausible), "implausible cell", "implausible cells"),
        (sum(|column| column.unseen_category), "unseen category", "unseen categories"),
        (report.absent_cells, "cell absent from the table", "cells absent from the table"),
        (report.duplicates, "duplicate row", "duplicate rows"),
        (report.wrong_width, "row of a wrong width", "rows of a wrong width"),
        (report.nameless, "row without its name", "rows without their names"),
        (report.dropped_samples, "sample dropped", "samples dropped"),
        (
            report.columns.values().filter(|column| column.constant).count() as u64,
            "constant column",
            "constant columns",
        ),
    ];
    let found = found.iter().filter(|(n, ..)| *n > 0);
    let found: Vec<String> =
        found.map(|(n, one, many)| format!("{} {}", format::count(*n), if *n == 1 { one } else { many })).collect();
    (!found.is_empty()).then(|| format!("cleaning: {}", found.join(", ")))
}

fn baselines(name: &str, split: &BTreeMap<String, BTreeMap<String, Metrics>>, unit: &str) -> Option<EventLine> {
    let all = ranked(split.get(name)?);
    let measure = all.first()?.metrics.measure();
    let all: Vec<String> =
        all.iter().map(|one| format!("{} {}", format::label(one.name), format::measure(one.judged()))).collect();
    let text = format!("baselines, {name} {}: {} {}", measure.name(), all.join(", "), measure.unit(unit));
    (!all.is_empty()).then(|| EventLine { level: LineLevel::Notable, text: text.trim_end().to_owned() })
}

fn round_failed(what: &EventKind, view: &RunView) -> Vec<EventLine> {
    let EventKind::RoundFailed { round, cause, restarting, restarts_left } = what else { return Vec::new() };
    let then = if *restarting {
        format!("starting again, {} left", format::plural(u64::from(*restarts_left), "restart"))
    } else {
        "not started again".to_owned()
    };
    let failure = view.failures.iter().rev().find(|failure| failure.round == round.0);
    match failure {
        Some(failure) if *restarting => alert(format!("{}\n  {then}", failure::brief(failure, view, 0, "\n  "))),
        Some(_) => detail(format!("round {round} failed: {cause}; {then}")),
        None => alert(format!("round {round} failed: {cause}; {then}")),
    }
}

/// Returns the line for a round whose last worker became ready.
fn all_ready(round: u64, view: &RunView) -> Vec<EventLine> {
    let Some(world) = view.round(round).map(|view| view.world_size) else { return Vec::new() };
    let ready: Vec<_> = view.workers.iter().filter(|w| w.round == round).filter_map(|w| w.ready.as_ref()).collect();
    let slowest = ready.iter().map(|r| r.seconds).fold(0.0, f64::max);
    match ready.last() {
        Some(last) if ready.len() == world as usize => {
            let workers = format::plural(u64::from(world), "worker");
            let time = format::seconds(slowest);
            // Programs do not say what they run on.
            let on = match &last.libtorch[..] {
                "" => String::new(),
                libtorch => format!(" ({}, {}, libtorch {libtorch})", last.device, last.backend),
            };
            notable(format!("{workers} ready in {time}{on}"))
        }
        _ => Vec::new(),
    }
}

fn trained(what: &EventKind, view: &RunView) -> Vec<EventLine> {
    let EventKind::Trained { epoch, step, stopped_early, split, seconds, samples_per_s } = what else {
        return Vec::new();
    };
    let early = if *stopped_early { ", stopped early" } else { "" };
    let epochs = format::plural(*epoch, "epoch");
    let steps = format::plural(*step, "step");
    let time = format::seconds(*seconds);
    let rate = format::rate(*samples_per_s);
    let errors = split_errors(split, view.units());
    let mut lines = notable(format!("trained {epochs}, {steps} in {time}{early}, {rate} samples/s{errors}"));
    lines.extend(notable(metrics::table(view).trim_end().to_owned()));
    lines.extend(metrics::warning(view).into_iter().flat_map(|text| alert(format!("warning: {text}"))));
    lines
}

fn epoch(report: &EpochReport, unit: &str) -> String {
    let val = if report.val.n > 0 {
        format!("  val {}{}", format::judged(&report.val, unit), if report.best { " (best)" } else { "" })
    } else {
        String::new()
    };
    let skipped = if report.skipped > 0 {
        format!("  {} skipped", format::plural(report.skipped, "step"))
    } else {
        String::new()
    };
    let loss = format::measure(report.train_loss);
    let rate = format::rate(report.samples_per_s);
    format!("{}  loss {loss}{val}  {rate} samples/s{skipped}", report.name())
}

fn split_errors(split: &BTreeMap<String, Metrics>, unit: &str) -> String {
    let order = ["train", "val", "test"];
    let parts = order.iter().filter_map(|name| Some((name, split.get(*name).filter(|metrics| metrics.n > 0)?)));
    let mut named = String::new();
    let mut errors = Vec::new();
    for (name, one) in parts {
        named = format!(": {} ", one.measure().name());
        errors.push(format!("{name} {}", format::with_unit(one.judged(), one.measure().unit(unit))));
    }
    named + &errors.join(", ")
}

fn ended(what: &EventKind, view: &RunView) -> Vec<EventLine> {
    let EventKind::RunEnded { code, seconds, restarts, rounds, .. } = what else { return Vec::new() };
    let time = format::seconds(*seconds);
    let restarts = format::plural(u64::from(*restarts), "restart");
    let rounds = format::plural(*rounds, "round");
    let next: String = next_steps::of_end(view, *code).iter().map(|line| format!("\n  {line}")).collect();
    if *code == ExitCode::Success as u8 {
        return notable(format!("done in {time}, {rounds}, {restarts}{next}"));
    }
    if view.stops.is_empty()
        && any_program(view)
        && let Some(report) = failure::last_of(view, failure::WIDTH)
    {
        return alert(report);
    }
    let why = format::exit_code(*code);
    alert(format!("ended with code {code} after {time}, {rounds}, {restarts}: {why}{next}"))
}

/// Returns the level of a line about a recovery: of a run of any program nothing else shows it.
fn recovery_level(view: &RunView) -> LineLevel {
    if any_program(view) { LineLevel::Alert } else { LineLevel::Notable }
}

fn one(level: LineLevel, text: String) -> Vec<EventLine> {
    vec![EventLine { level, text }]
}

fn detail(text: String) -> Vec<EventLine> {
    one(LineLevel::Detail, text)
}

fn notable(text: String) -> Vec<EventLine> {
    one(LineLevel::Notable, text)
}

fn alert(text: String) -> Vec<EventLine> {
    one(LineLevel::Alert, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tests::{events, gang_events, reform_events, view_after};

    fn log_text(all: &[Event]) -> String {
        let mut text = String::new();
        for count in 0..all.len() {
            for line in lines(&all[count], &view_after(&all[..=count])) {
                text.push_str(&format!("{:?}: {}\n", line.level, line.text));
            }
        }
        text
    }

    #[test]
    fn a_log_tells_the_story() {
        insta::assert_snapshot!(log_text(&events()));
    }

    #[test]
    fn a_log_tells_of_survivors() {
        insta::assert_snapshot!(log_text(&reform_events()));
    }

    #[test]
    fn a_log_tells_of_nodes() {
        insta::assert_snapshot!(log_text(&gang_events()));
    }
}
