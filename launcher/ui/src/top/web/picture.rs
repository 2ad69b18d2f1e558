//! What the page shows, as JSON: texts that it writes as they are, and numbers that it draws. Pure, but for the log.

use super::{
    live::ShownRun,
    marks::{self, AxisMark},
    positions::{CurvePosition, Positions},
};
use crate::{
    RunView, format,
    lines::LineLevel,
    metrics,
    model::NodeState,
    plain, progress,
    run_status::{RunStatus, WorkerStatus, any_program},
    status::{StatusContext, moment, node_words, regroupings, step_parts},
    top::{
        panels,
        rows::{self, RowContext, WorkerRow},
        state::{Pane, TopState, WorkerFilter},
        tail,
    },
    trace::{Trace, TracePoint},
};
use enn_common::shown;
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

/// Workers that are listed, those that failed first.
const WORKERS_MAX: usize = 256;
const NODES_MAX: usize = 64;
const ROUNDS_MAX: usize = 8;
const GPUS_MAX: usize = 16;
const NOTES_MAX: usize = 8;
/// Sentences that are sent at once, the last ones.
const EVENTS_MAX: usize = 400;
/// Longest text of one item, characters.
const TEXT_MAX: usize = 4_000;
/// Bytes of a log that are looked at, and lines that are sent of them.
const LOG_BYTES: u64 = 64 << 10;
const LOG_LINES_MAX: usize = 400;
const LOG_LINE_MAX: usize = 2_000;

pub(super) struct PictureInputs<'a> {
    pub(super) shown: &'a ShownRun,
    pub(super) host: &'a str,
    pub(super) version: u64,
}

/// Returns the run without what the client has, and the worker whose log is to be shown.
pub(super) fn of(inputs: &PictureInputs<'_>, positions: &Positions) -> (Value, Option<WorkerRow>) {
    let PictureInputs { shown, host, version } = inputs;
    let view = &shown.live.event_log.view;
    if shown.number == 0 {
        return (
            json!({ "version": version, "run": 0, "name": "", "state": "waiting", "tone": "wait",
            "says": "No run has begun yet. The page shows the next one." }),
            None,
        );
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
    let context = StatusContext { living: shown.living, now, width: 0 };
    let rows = rows::rows(view, &shown.samples, RowContext { living: shown.living, host }, WorkerFilter::All);
    let state = TopState { selected: positions.rank, ..TopState::default() };
    let selected = rows::selected(&rows, &state).and_then(|index| rows.get(index)).cloned();
    let mut all = overview(view, &context);
    let more = json!({
        "version": version, "run": shown.number,
        "figures": figures(view, &context),
        "curves": curves(shown, positions),
        "marks": marks_of(shown, positions.marks),
        "workers": workers(&rows), "workers_total": rows.len(),
        "gpus": gpus(shown), "nodes": nodes(view), "rounds": rounds(view, &context), "rounds_total": view.rounds.len(),
        "events": events(shown, positions.events),
    });
    if let (Value::Object(all), Value::Object(more)) = (&mut all, more) {
        all.extend(more);
    }
    (all, selected)
}

/// Cuts a text that came from elsewhere, and escapes what a browser obeys.
fn text(text: &str) -> String {
    format::shortened(&shown::lines(text), TEXT_MAX)
}

/// Name, state, time and progress.
fn overview(view: &RunView, context: &StatusContext) -> Value {
    let status = RunStatus::of(view, context.living);
    let now = moment(context, view);
    let session = view.sessions.last();
    let started = session.map(|session| session.started);
    let tone = match status {
        RunStatus::Running | RunStatus::Finished => "good",
        RunStatus::Failed(_) | RunStatus::Gone => "bad",
        _ => "wait",
    };
    let notes: Vec<String> = view.sick_devices.iter().rev().take(NOTES_MAX).map(|note| text(note)).collect();
    json!({
        "name": text(view.name()), "state": status.word(), "tone": tone, "living": context.living,
        "says": panels::reason(view, &status, now).map(|reason| text(&reason)), "notes": notes,
        "origin": view.sessions.first().map(|session| session.started), "started": started, "now": now,
        "mode": session.map(|session| &session.mode), "host": session.map(|session| text(&session.host)),
        "dir": session.map(|session| text(&session.dir.to_string_lossy())),
        "command": session.map(|session| text(&session.argv.join(" "))),
        "elapsed": started.map(|started| format::seconds((now - started).max(0.0))),
        "progress": progress(view, context),
    })
}

/// How far the run is: a share, a sentence, and the time that is left.
fn progress(view: &RunView, context: &StatusContext) -> Value {
    let is_training = view.staging.is_none() && view.predicted.is_none_or(|(rows, total)| rows >= total);
    if let Some(step) = view.latest.filter(|_| is_training) {
        let total = view.model.as_ref().map_or(0, |model| model.steps_total);
        let share = if view.trained.is_some() { 1.0 } else { step.step as f64 / total.max(1) as f64 };
        let parts = step_parts(view);
        let said = match &view.trained {
            Some(trained) => {
                let steps = format::plural(trained.step, "step");
                let early = if trained.stopped_early { ", stopped early" } else { "" };
                format!("{steps} in {}{early}", format::plural(trained.epoch, "epoch"))
            }
            None => format!("step {}", parts.iter().take(2).cloned().collect::<Vec<_>>().join(" · ")),
        };
        let under_way = view.trained.is_none() && context.living;
        let left = view.remaining_s().filter(|_| under_way).map(format::countdown);
        return json!({ "share": share.clamp(0.0, 1.0), "text": said, "eta": left });
    }
    // A run of any program says nothing of its progress.
    match progress::state(view).filter(|_| context.living && !any_program(view)) {
        Some((position, length, said)) => {
            json!({ "share": (position as f64 / length.max(1) as f64).clamp(0.0, 1.0), "text": text(&said), "eta": null })
        }
        None => Value::Null,
    }
}

/// The figures below the head: name, value, unit, note, and the curve that is drawn beside them.
fn figures(view: &RunView, context: &StatusContext) -> Value {
    let mut all = Vec::new();
    let mut add = |name: &str, value: String, unit: &str, note: String, curve: &str| {
        all.push(json!({ "name": name, "value": value, "unit": unit, "note": note, "curve": curve }));
    };
    if let Some(best) = view.best().filter(|report| report.val.n > 0) {
        let measure = best.val.measure();
        let last = view.epochs.last().filter(|report| report.val.n > 0 && report.step != best.step);
        let last = last.map_or_else(String::new, |last| format!(", now {}", format::measure(last.val.judged())));
        let note = format!("best, {}{last}", best.name());
        let name = format!("validation {}", measure.name());
        add(&name, format::measure(best.val.judged()), measure.unit(view.units()), note, "");
    }
    if let Some(step) = view.latest {
        add("training loss", format::measure(step.loss), "", "standardised target".into(), "");
        add("learning rate", format::measure(step.lr), "", String::new(), "learning_rate");
        let (alive, world) = view.alive();
        let at_work = format!("{alive} of {} at work", format::plural(u64::from(world), "worker"));
        let note = if context.living { at_work } else { String::new() };
        add("throughput", format::rate(step.samples_per_s), "rows/s", note, "samples_per_s");
    }
    if let Some(times) = view.epochs.last().map(|report| report.step_ms).filter(|times| times.total > 0.0) {
        let note = format!("of a step of {}", format::seconds(times.total / 1e3));
        add("data wait", format::percent(times.data / times.total), "", note, "");
    }
    if let Some(last) = view.last_checkpoint() {
        let ago = format::seconds((moment(context, view) - last.time).max(0.0));
        let note = format!("{}, {ago} ago", format::bytes(last.bytes));
        add("last checkpoint", format!("step {}", format::count(last.step)), "", note, "");
    }
    if let Some(model) = &view.model {
        add("parameters", format::count(model.parameters), "", String::new(), "");
    } else if let Some(round) = view.rounds.last() {
        let (alive, world) = view.alive();
        let value = if context.living { format!("{alive} of {world}") } else { world.to_string() };
        add("workers", value, "", if context.living { "alive".into() } else { String::new() }, "");
        add("round", round.round.to_string(), "", String::new(), "");
    }
    if let Some(round) = view.rounds.last() {
        let left = round.restarts_left.map(|left| format!("{left} left"));
        let again = Some(regroupings(view).trim_start_matches(", ").to_owned()).filter(|again| !again.is_empty());
        let note = left.into_iter().chain(again).collect::<Vec<_>>().join(", ");
        add("restarts", view.restarts().to_string(), "", note, "");
    }
    Value::Array(all)
}

/// The curves, what they are of, and the points that the client lacks.
fn curves(shown: &ShownRun, positions: &Positions) -> Value {
    let view = &shown.live.event_log.view;
    let curves = &shown.live.curves;
    let origin = view.sessions.first().map_or(0.0, |session| session.started);
    let measure = view.epochs.last().map(|report| report.val.measure());
    let levels = view.baselines.get("val").into_iter().flatten();
    let levels = levels.filter(|(_, errors)| errors.judged().is_finite());
    let levels: Vec<Value> =
        levels.map(|(name, errors)| json!({ "name": format::label(name), "value": errors.judged() })).collect();
    let best = view.best().filter(|report| report.val.n > 0);
    json!({
        "loss": points(&view.losses, positions.loss, origin),
        "epoch_loss": points(&curves.epoch_loss, positions.epoch_loss, origin),
        "validation": points(&curves.validation, positions.validation, origin),
        "learning_rate": points(&curves.learning_rate, positions.learning_rate, origin),
        "samples_per_s": points(&curves.samples_per_s, positions.samples_per_s, origin),
        "latest": view.latest.map(|latest| json!({ "step": latest.step, "loss": latest.loss })),
        "error_name": measure.map(|measure| format::error_name(measure, view.units())),
        "unit": measure.map(|measure| measure.unit(view.units())),
        "levels": levels,
        "best": best.map(|best| json!({ "step": best.step, "value": best.val.judged(), "name": best.name() })),
        "steps_per_epoch": view.model.as_ref().map(|model| model.steps_per_epoch),
        "warning": metrics::warning(view),
    })
}

/// The points behind those that the client has; all of them, if others were removed or merged since.
fn points(trace: &Trace, position: CurvePosition, origin: f64) -> Value {
    let all = trace.points();
    let from = if position.edits == trace.edits() { position.points.min(all.len()) } else { 0 };
    let points: Vec<Value> = all[from..].iter().map(|point| one_point(point, origin)).collect();
    json!({ "edits": trace.edits(), "from": from, "points": points })
}

/// Step, seconds since the run began, mean; least and greatest value, if they differ.
fn one_point(point: &TracePoint, origin: f64) -> Value {
    let TracePoint { step, time, mean, low, high } = *point;
    let time = ((time - origin) * 100.0).round() / 100.0;
    if low < high { json!([step, time, mean, low, high]) } else { json!([step, time, mean]) }
}

/// All marks, when the client has another number of them.
fn marks_of(shown: &ShownRun, known: u64) -> Value {
    let marks = &shown.live.marks;
    if marks.count == known {
        return Value::Null;
    }
    let origin = shown.live.event_log.view.sessions.first().map_or(0.0, |session| session.started);
    let one = |mark: &AxisMark| json!({ "step": mark.step, "time": mark.time - origin, "class": mark.class, "text": text(&mark.text) });
    json!({ "count": marks.count, "all": marks.kept.iter().map(one).collect::<Vec<_>>() })
}

fn workers(rows: &[WorkerRow]) -> Value {
    let failed = |row: &&WorkerRow| row.process.is_some_and(|(_, status)| status.failed());
    let listed = rows.iter().filter(failed).chain(rows.iter().filter(|row| !failed(row))).take(WORKERS_MAX);
    let mut listed: Vec<&WorkerRow> = listed.collect();
    listed.sort_by_key(|row| row.rank);
    listed.into_iter().map(worker).collect()
}

fn worker(row: &WorkerRow) -> Value {
    let load = row.load.unwrap_or_default();
    let tone = match row.process.map(|(_, status)| status) {
        Some(WorkerStatus::Failed(_)) => "bad",
        Some(WorkerStatus::Ended(_) | WorkerStatus::Gone) | None => "none",
        Some(WorkerStatus::Starting | WorkerStatus::Paused | WorkerStatus::Stopping) => "wait",
        Some(WorkerStatus::Running | WorkerStatus::Done) => "good",
    };
    json!({
        "rank": row.rank, "host": text(&row.host), "pid": row.process.map(|(pid, _)| pid),
        "state": row.process.map_or_else(|| "of its node".to_owned(), |(_, status)| status.to_string()), "tone": tone,
        "device": row.device.as_deref().map(text),
        "cpu": load.cpu_percent.map(|percent| format!("{percent:.0} %")),
        "memory": row.load.map(|load| format::bytes(load.rss_bytes)),
        "gpu": load.gpu.map(|gpu| format!("{}: {} %", gpu.index, gpu.percent)),
        "gpu_memory": load.gpu.and_then(|gpu| gpu.used_bytes).map(format::bytes),
    })
}

fn gpus(shown: &ShownRun) -> Vec<String> {
    let gpus = shown.samples.gpus.iter().take(GPUS_MAX);
    gpus.map(|gpu| {
        let [used, total] = [gpu.used_bytes, gpu.total_bytes].map(format::bytes);
        format!("GPU {}: {} %, {used} of {total}", gpu.index, gpu.percent)
    })
    .collect()
}

/// The nodes, when there are several or one is not well; those that are not well first.
fn nodes(view: &RunView) -> Vec<Value> {
    let is_well = |state: &NodeState| matches!(state, NodeState::InRound | NodeState::Out);
    if view.nodes.len() < 2 && view.nodes.iter().all(|node| is_well(&node.state)) {
        return Vec::new();
    }
    let mut sorted: Vec<_> = view.nodes.iter().collect();
    sorted.sort_by_key(|node| is_well(&node.state));
    let one = |node: &&crate::model::NodeView| {
        let (rank, state) = node_words(node);
        let tone = match node.state {
            NodeState::Lost(_) => "bad",
            NodeState::Joined => "wait",
            NodeState::InRound => "good",
            NodeState::Out => "none",
        };
        json!({ "rank": rank, "host": text(&node.host), "workers": node.workers, "state": text(&state), "tone": tone })
    };
    sorted.iter().take(NODES_MAX).map(one).collect()
}

/// The last rounds, newest first.
fn rounds(view: &RunView, context: &StatusContext) -> Vec<Value> {
    let last = view.rounds.iter().rev().take(ROUNDS_MAX);
    last.map(|round| {
        let until = round.ended.unwrap_or_else(|| moment(context, view));
        let (end, tone) = match (&round.failure, &round.left, round.ended) {
            (Some((cause, _)), ..) => (format!("failed: {cause}"), "bad"),
            (None, Some(reason), _) if marks::lost_worker(view, round.round) => (format!("met again: {reason}"), "bad"),
            (None, Some(reason), _) => (format!("met again: {reason}"), "wait"),
            (None, None, Some(_)) => ("ended".to_owned(), "none"),
            (None, None, None) if context.living => ("under way".to_owned(), "good"),
            (None, None, None) => ("no end is recorded".to_owned(), "none"),
        };
        let from = round.resume_step.map(|step| format!("step {}", format::count(step)));
        json!({
            "round": round.round, "workers": round.world_size, "time": round.started, "from": from,
            "lasted": format::seconds((until - round.started).max(0.0)),
            "end": text(end.lines().next().unwrap_or_default()), "tone": tone,
        })
    })
    .collect()
}

/// The sentences behind those that the client has, the last ones, and the number of all.
fn events(shown: &ShownRun, known: u64) -> Value {
    let log = &shown.live.event_log;
    let count = log.forgotten + log.lines.len() as u64;
    let fresh = usize::try_from(count.saturating_sub(known)).unwrap_or(usize::MAX);
    let fresh = fresh.min(log.lines.len()).min(EVENTS_MAX);
    let lines = log.lines.iter().skip(log.lines.len() - fresh);
    let lines: Vec<Value> = lines
        .map(|(time, level, sentence)| {
            let level = match level {
                LineLevel::Alert => "alert",
                LineLevel::Notable => "notable",
                LineLevel::Detail => "detail",
            };
            json!({ "time": time, "level": level, "text": text(sentence) })
        })
        .collect();
    json!({ "count": count, "lines": lines })
}

/// Reads the end of a worker's log; `null` when the client has it.
pub(super) fn log(logs: &[PathBuf], row: &WorkerRow, positions: &Positions) -> Value {
    let pane = match positions.is_stdout {
        Some(true) => Pane::Stdout,
        Some(false) => Pane::Stderr,
        None => match tail::default_pane(logs, Some(row)) {
            Pane::Stdout => Pane::Stdout,
            Pane::Stderr | Pane::Reasons => Pane::Stderr,
        },
    };
    let stream = if pane == Pane::Stdout { "stdout" } else { "stderr" };
    let path = tail::path(logs, row, pane);
    let stamp = format!("{}-{}-{stream}-{}", row.round, row.rank, path.as_deref().map(stamp).unwrap_or_default());
    if stamp == positions.log {
        return Value::Null;
    }
    let (note, lines) = match path.map(|path| tail::end_of(&path, LOG_BYTES)) {
        None => (Some(panels::without_log(row).to_owned()), Vec::new()),
        Some(Err(error)) => (Some(format!("cannot read the log: {error}")), Vec::new()),
        Some(Ok(end)) => (None, plain::lines(&end)),
    };
    let lines = lines.iter().skip(lines.len().saturating_sub(LOG_LINES_MAX));
    let lines: Vec<String> = lines.map(|line| format::shortened(line, LOG_LINE_MAX)).collect();
    json!({ "stamp": stamp, "rank": row.rank, "stream": stream, "note": note, "lines": lines })
}

/// Length and time of a file, by which a client knows whether it changed.
fn stamp(path: &Path) -> String {
    let Ok(data) = fs::metadata(path) else { return String::new() };
    let modified = data.modified().ok().and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
    format!("{}-{}", data.len(), modified.map_or(0, |since| since.as_nanos()))
}
