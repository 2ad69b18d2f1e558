//! The output of `enn status`: a run on one page, as text and as JSON.
//!
//! **Invariant:** pure; ages are counted from the time that is passed in, and of a run that is over from its end.

use super::{
    classes, failure, format,
    model::{NodeState, NodeView, RunView},
    plain,
    run_status::{RunStatus, TAKE_OVER_MAX, WorkerStatus},
};
use serde_json::{Value, json};

/// Workers and nodes that are listed one by one; of more, only those that are not well.
const LISTED_MAX: usize = 16;
const WARNINGS_MAX: usize = 3;
/// Fewest columns for the texts.
const TEXT_MIN: usize = 20;
const LABEL: usize = 11;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StatusContext {
    pub living: bool,
    /// Seconds since the Unix epoch.
    pub now: f64,
    /// Width of the page, columns.
    pub width: usize,
}

pub fn text(view: &RunView, context: &StatusContext) -> String {
    let status = RunStatus::of(view, context.living);
    let mut page = StatusPage(String::new(), context.width);
    page.head(view, &status, context);
    page.rendezvous(view, &status, context);
    page.workers(view, context);
    page.progress(view, context);
    let has_report = status.over() && status != RunStatus::Finished;
    let report = failure::last_of(view, context.width.saturating_sub(LABEL + 2).max(1)).filter(|_| has_report);
    match report {
        Some(report) => page.row("failure", &report),
        None => page.last_failure(view, context),
    }
    for (time, message) in view.warnings.iter().rev().take(WARNINGS_MAX).rev() {
        page.row("warning", &format!("{message} ({} ago)", age(context, view, *time)));
    }
    page.0
}

/// The text so far, and its width in columns.
struct StatusPage(String, usize);

impl StatusPage {
    /// Appends a label and its text; further lines of the text are aligned below the first.
    fn row(&mut self, label: &str, text: &str) {
        let mut rows = Vec::new();
        let room = self.1.saturating_sub(LABEL + 2).max(TEXT_MIN);
        text.lines().for_each(|line| plain::wrap(line, "", room, &mut rows));
        self.lines(label, rows.iter().map(String::as_str));
    }

    /// Appends a label and lines as they are.
    fn lines<'a>(&mut self, label: &str, lines: impl IntoIterator<Item = &'a str>) {
        for (index, line) in lines.into_iter().enumerate() {
            let label = if index == 0 { label } else { "" };
            self.0.push_str(&format!("  {label:<LABEL$}{line}\n"));
        }
    }

    fn head(&mut self, view: &RunView, status: &RunStatus, context: &StatusContext) {
        let Some(session) = view.sessions.last() else {
            self.0.push_str(&format!("{status}: the journal is empty\n"));
            return;
        };
        let until = session.ended.map_or_else(|| moment(context, view), |end| end.time);
        let lasted = format::seconds((until - session.started).max(0.0));
        let workers = format::plural(u64::from(session.nproc), "worker");
        self.0.push_str(&format!("{}  {status}\n", session.run));
        if may_be_taken_over(view, context) {
            self.row("nodes", LEADERLESS);
        }
        self.row("launch", &format!("enn {} on {}, {workers}, {lasted}", session.mode, session.host));
        self.row("command", &session.argv.join(" ").replace(['\n', '\r'], " "));
        self.row("directory", &session.dir.display().to_string());
    }

    fn rendezvous(&mut self, view: &RunView, status: &RunStatus, context: &StatusContext) {
        if let Some(waiting) = view.waiting.as_ref().filter(|_| !status.over()) {
            self.row("waiting", &format!("{}, for {}", waiting.reason, age(context, view, waiting.since)));
        }
        if let Some((_, signal)) = view.stops.last().filter(|_| *status == RunStatus::Stopping) {
            self.row("stopping", &format!("{signal} came"));
        }
        if let Some(since) = view.paused.filter(|_| *status == RunStatus::Paused) {
            self.row("paused", &format!("for {} (enn continue)", age(context, view, since)));
        }
        if let Some(round) = view.rounds.last() {
            let master = if round.master.is_empty() { String::new() } else { format!(", meet at {}", round.master) };
            let span = match round.ended {
                Some(ended) => format!("lasted {}", format::seconds((ended - round.started).max(0.0))),
                None => format!("began {} ago", age(context, view, round.started)),
            };
            let left = round.restarts_left.map_or_else(String::new, |left| format!(", {left} left"));
            let restarts = format::plural(view.restarts(), "restart");
            let world = format::plural(u64::from(round.world_size), "worker");
            let again = regroupings(view);
            self.row("round", &format!("{}, {world}, {span}{master}, {restarts}{left}{again}", round.round));
        }
        if view.nodes.len() > 1 || view.nodes.iter().any(|node| matches!(node.state, NodeState::Lost(_))) {
            let unwell = |node: &&NodeView| view.nodes.len() <= LISTED_MAX || node.state != NodeState::InRound;
            let nodes: Vec<String> = view.nodes.iter().filter(unwell).take(LISTED_MAX).map(node).collect();
            let count = format::plural(view.nodes.len() as u64, "node");
            self.row("nodes", &[vec![count], nodes].concat().join("\n"));
        }
    }

    fn workers(&mut self, view: &RunView, context: &StatusContext) {
        let all: Vec<_> = view.current_workers().map(|w| (w, WorkerStatus::of(view, w, context.living))).collect();
        if all.is_empty() {
            return;
        }
        let mut counts: Vec<(String, usize)> = Vec::new();
        for (_, status) in &all {
            let word = status.to_string();
            match counts.iter_mut().find(|(known, _)| *known == word) {
                Some((_, count)) => *count += 1,
                None => counts.push((word, 1)),
            }
        }
        let counts: Vec<String> = counts.iter().map(|(word, count)| format!("{count} {word}")).collect();
        let listed = all.iter().filter(|(_, status)| all.len() <= LISTED_MAX || status.failed());
        let lines = listed.take(LISTED_MAX).map(|(worker, status)| {
            let host = if worker.host.is_empty() { String::new() } else { format!("  {}", worker.host) };
            format!("rank {:<4}pid {:<8}{status}{host}", worker.rank, worker.pid)
        });
        let lines: Vec<String> = std::iter::once(counts.join(", ")).chain(lines).collect();
        self.row("workers", &lines.join("\n"));
        if !view.sick_devices.is_empty() {
            self.row("devices", &view.sick_devices.join("\n"));
        }
    }

    fn progress(&mut self, view: &RunView, context: &StatusContext) {
        if let Some((rows, bytes, total)) = view.staging {
            let progress =
                format!("{} rows, {} of {}", format::count(rows), format::bytes(bytes), format::bytes(total));
            self.row("staging", &progress);
        }
        // Without a step there is no row either.
        self.row("step", &step_parts(view).join(", "));
        if view.split > 1 {
            self.row("memory", &format!("was short: micro-batches are cut into {}", view.split));
        }
        if let Some(best) = view.best().filter(|report| report.val.n > 0) {
            self.row("best", &format!("val {} in {}", format::judged(&best.val, view.units()), best.name()));
        }
        for (split, of) in &view.classes {
            self.row(&format!("{split} rows"), &classes::line(of));
            self.lines("confusion", classes::confusion(of).lines());
        }
        if let Some(last) = view.last_checkpoint() {
            let step = format::count(last.step);
            let ago = age(context, view, last.time);
            self.row("checkpoint", &format!("step {step}, {}, {ago} ago", format::bytes(last.bytes)));
        }
        if let Some((rows, total)) = view.predicted {
            self.row("predicted", &format!("{} of {} rows", format::count(rows), format::count(total)));
        }
        if let Some(hang) = view.hangs.last() {
            let stacks =
                hang.stacks.as_ref().map_or_else(String::new, |path| format!(", stacks in {}", path.display()));
            let ago = age(context, view, hang.time);
            let idle = format::seconds(hang.seconds);
            self.row("hang", &format!("{ago} ago: no progress for {idle}{stacks}"));
        }
    }

    fn last_failure(&mut self, view: &RunView, context: &StatusContext) {
        if let Some(failure) = view.failures.last() {
            self.row("failure", &failure::brief(failure, view, context.width, "\n"));
        } else if let Some((cause, _)) = view.rounds.iter().rev().find_map(|round| round.failure.as_ref()) {
            self.row("failure", cause);
        } else if let Some(reason) = view.rounds.iter().rev().find_map(|round| round.left.as_ref()) {
            self.row("regrouped", reason);
        }
    }
}

/// Describes how often workers that kept their state formed a new round; empty when never.
pub(super) fn regroupings(view: &RunView) -> String {
    match view.regroupings() {
        0 => String::new(),
        1 => ", met again once".to_owned(),
        times => format!(", met again {times} times"),
    }
}

/// The note on a run whose leader is gone.
const LEADERLESS: &str = "the node that led the run is gone; another one takes over within seconds, or the run ends";

/// Returns whether another node may take over a run whose launcher is gone.
pub fn may_be_taken_over(view: &RunView, context: &StatusContext) -> bool {
    let gone = RunStatus::of(view, context.living) == RunStatus::Gone;
    gone && RunStatus::has_successors(view, context.living) && context.now - view.now < TAKE_OVER_MAX.as_secs_f64()
}

pub fn json(view: &RunView, context: &StatusContext) -> Value {
    let status = RunStatus::of(view, context.living);
    let session = view.sessions.last();
    let round = view.rounds.last();
    let code = session.and_then(|session| session.ended).map(|end| end.code);
    let waiting = view.waiting.as_ref().filter(|_| !status.over());
    let says = if may_be_taken_over(view, context) { LEADERLESS.to_owned() } else { status.to_string() };
    let workers: Vec<Value> = view
        .current_workers()
        .map(|worker| {
            let status = WorkerStatus::of(view, worker, context.living);
            json!({
                "rank": worker.rank, "local_rank": worker.local_rank, "host": worker.host, "pid": worker.pid,
                "state": status.to_string(), "alive": status.alive(), "failed": status.failed(),
                "code": worker.exit.and_then(|exit| exit.code), "signal": worker.exit.and_then(|exit| exit.signal),
            })
        })
        .collect();
    let nodes: Vec<Value> = view
        .nodes
        .iter()
        .map(|node| {
            let (state, reason) = node_state(node);
            json!({ "host": node.host, "workers": node.workers, "rank": node.rank, "state": state, "reason": reason })
        })
        .collect();
    json!({
        "run": view.name(), "state": status.word(), "says": says, "code": code,
        "mode": session.map(|session| &session.mode), "host": session.map(|session| &session.host),
        "dir": session.map(|session| &session.dir), "argv": session.map(|session| &session.argv),
        "started": session.map(|session| session.started),
        "ended": session.and_then(|session| session.ended).map(|end| end.time),
        "last_event": view.now,
        "waiting": waiting.map(|waiting| json!({
            "reason": waiting.reason, "since": waiting.since, "seconds": (moment(context, view) - waiting.since).max(0.0),
        })),
        "round": round.map(|round| json!({
            "round": round.round, "world_size": round.world_size, "started": round.started, "ended": round.ended,
            "master": round.master, "cause": round.failure.as_ref().map(|failure| &failure.0),
        })),
        "restarts": view.restarts(), "restarts_left": round.and_then(|round| round.restarts_left),
        "nodes": nodes, "workers": workers,
        "step": view.latest.map(|step| json!({
            "step": step.step, "epoch": step.epoch, "loss": step.loss, "samples_per_s": step.samples_per_s,
            "steps_total": view.model.as_ref().map(|model| model.steps_total),
        })),
        "checkpoint": view.last_checkpoint().map(|last| json!({
            "step": last.step, "bytes": last.bytes, "time": last.time,
        })),
        "failure": view.failures.last(), "sick_devices": view.sick_devices,
        "paused": view.paused, "micro_batches_cut_into": view.split.max(1),
        "classes": view.classes, "hangs": view.hangs.len(),
        "warnings": view.warnings.iter().map(|(time, message)| json!({ "time": time, "message": message }))
            .collect::<Vec<_>>(),
    })
}

fn node(node: &NodeView) -> String {
    let (rank, state) = node_words(node);
    let workers = format::plural(u64::from(node.workers), "worker");
    format!("node {rank:<4}{:<20}{workers}, {state}", node.host)
}

/// Returns a node's rank, and its state with the reason.
pub(super) fn node_words(node: &NodeView) -> (String, String) {
    let (state, reason) = node_state(node);
    let reason = reason.map_or_else(String::new, |reason| format!(": {reason}"));
    (node.rank.map_or_else(|| "-".to_owned(), |rank| rank.to_string()), format!("{state}{reason}"))
}

/// Returns how far training is: step, epoch, loss and speed; empty before the first step.
pub(super) fn step_parts(view: &RunView) -> Vec<String> {
    let Some(step) = view.latest else { return Vec::new() };
    let total = view.model.as_ref().map_or_else(String::new, |m| format!(" of {}", format::count(m.steps_total)));
    vec![
        format!("{}{total}", format::count(step.step)),
        format!("epoch {}", step.epoch),
        format!("loss {}", format::measure(step.loss)),
        format!("{} samples/s", format::rate(step.samples_per_s)),
    ]
}

/// Returns a node's state in a word, and its reason.
fn node_state(node: &NodeView) -> (&'static str, Option<&str>) {
    match &node.state {
        NodeState::Joined => ("waits", None),
        NodeState::InRound => ("in the round", None),
        NodeState::Out => ("out", None),
        NodeState::Lost(reason) => ("lost", Some(reason)),
    }
}

/// Returns the present time, or the end of a run that is over.
pub fn moment(context: &StatusContext, view: &RunView) -> f64 {
    let ended = view.sessions.last().is_some_and(|session| session.ended.is_some());
    if ended || !context.living { view.now } else { context.now.max(view.now) }
}

fn age(context: &StatusContext, view: &RunView, time: f64) -> String {
    format::seconds((moment(context, view) - time).max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tests::{events, gang_events, view_after};

    fn context(living: bool) -> StatusContext {
        StatusContext { living, now: 1_790_000_010.0, width: 100 }
    }

    #[test]
    fn pages() {
        let train = events();
        let gang = gang_events();
        let cut = |name: &str, view: &RunView, living| format!("--- {name}\n{}", text(view, &context(living)));
        let pages = [
            cut("empty", &RunView::default(), true),
            cut("waiting", &view_after(&gang[..3]), true),
            cut("running", &view_after(&gang[..10]), true),
            cut("launcher killed", &view_after(&gang[..10]), false),
            cut("waiting again", &view_after(&gang[..gang.len() - 16]), true),
            cut("failed", &view_after(&gang), false),
            cut("training", &view_after(&train[..40]), true),
            cut("trained", &view_after(&train), false),
        ];
        insta::assert_snapshot!(pages.join("\n"));
    }

    #[test]
    fn machines_get_the_same() {
        let waiting = json(&view_after(&gang_events()[..3]), &context(true));
        assert_eq!(
            (&waiting["state"], &waiting["waiting"]["reason"]),
            (&json!("waiting"), &json!("1 of 2 nodes joined"))
        );
        assert!((waiting["waiting"]["seconds"].as_f64().unwrap() - 9.9).abs() < 1e-6);
        let mut cut = view_after(&gang_events()[..10]);
        cut.sessions[0].mode = "train".into();
        let since = |seconds: f64| StatusContext { now: cut.now + seconds, ..context(false) };
        assert_eq!(json(&cut, &since(2.0))["says"], json!(LEADERLESS));
        assert!(json(&cut, &since(40.0))["says"].as_str().unwrap().starts_with("gone"));
        let failed = json(&view_after(&gang_events()), &context(false));
        assert_eq!(json(&view_after(&events()), &context(false))["checkpoint"]["step"], json!(24));
        assert_eq!((&failed["state"], &failed["code"], &failed["restarts"]), (&json!("failed"), &json!(1), &json!(1)));
        assert_eq!((&failed["failure"]["rank"], &failed["failure"]["signal"]), (&json!(2), &json!(9)));
        assert_eq!((&failed["workers"][2]["failed"], &failed["waiting"]), (&json!(true), &Value::Null));
    }
}
