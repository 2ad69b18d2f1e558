//! What `enn status` says: a run on one page, for people and for machines.
//!
//! **Invariant:** pure; ages are counted from the time that is passed in, and of a run that is over from its end.

use super::{
    classes, failure, figures,
    model::{NodeState, NodeView, RunView},
    plain,
    standing::{Standing, TAKE_OVER_MAX, WorkerStanding},
};
use serde_json::{Value, json};

/// Workers and nodes that are listed one by one; of more, only those that are not well.
const LISTED_MAX: usize = 16;
/// Warnings that are shown.
const WARNINGS_MAX: usize = 3;
/// Fewest columns for the texts.
const TEXT_MIN: usize = 20;
/// Width of the labels.
const LABEL: usize = 11;

/// From where a run is looked at.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Glance {
    /// Whether the launcher lives.
    pub living: bool,
    /// Seconds since the Unix epoch.
    pub now: f64,
    /// Columns.
    pub width: usize,
}

/// The page for people.
pub fn text(view: &RunView, glance: &Glance) -> String {
    let standing = Standing::of(view, glance.living);
    let mut page = Page(String::new(), glance.width);
    page.head(view, &standing, glance);
    page.rendezvous(view, &standing, glance);
    page.workers(view, glance);
    page.progress(view, glance);
    if !standing.over() || standing == Standing::Finished {
        page.last_failure(view, glance);
    } else if let Some(report) = failure::last_of(view, glance.width.saturating_sub(LABEL + 2).max(1)) {
        page.row("failure", &report);
    } else {
        page.last_failure(view, glance);
    }
    for (time, message) in view.warnings.iter().rev().take(WARNINGS_MAX).rev() {
        page.row("warning", &format!("{message} ({} ago)", age(glance, view, *time)));
    }
    page.0
}

/// Lines, and the columns there are for them.
struct Page(String, usize);

impl Page {
    /// A label and its text; further lines of the text stand below its first.
    fn row(&mut self, label: &str, text: &str) {
        let mut rows = Vec::new();
        let room = self.1.saturating_sub(LABEL + 2).max(TEXT_MIN);
        text.lines().for_each(|line| plain::wrap(line, "", room, &mut rows));
        for (index, row) in rows.iter().enumerate() {
            let label = if index == 0 { label } else { "" };
            self.0.push_str(&format!("  {label:<LABEL$}{row}\n"));
        }
    }

    /// A label and a table, whose lines stay as they are.
    fn table(&mut self, label: &str, text: &str) {
        for (index, row) in text.lines().enumerate() {
            let label = if index == 0 { label } else { "" };
            self.0.push_str(&format!("  {label:<LABEL$}{row}\n"));
        }
    }

    fn head(&mut self, view: &RunView, standing: &Standing, glance: &Glance) {
        let Some(session) = view.sessions.last() else {
            self.0.push_str(&format!("{standing}: the journal is empty\n"));
            return;
        };
        let until = session.ended.map_or_else(|| moment(glance, view), |end| end.time);
        let lasted = figures::seconds((until - session.started).max(0.0));
        let workers = figures::plural(u64::from(session.nproc), "worker");
        self.0.push_str(&format!("{}  {standing}\n", session.run));
        if may_be_led(view, glance) {
            self.row("nodes", HEADLESS);
        }
        self.row("launch", &format!("enn {} on {}, {workers}, {lasted}", session.mode, session.host));
        self.row("command", &session.argv.join(" ").replace(['\n', '\r'], " "));
        self.row("directory", &session.dir.display().to_string());
    }

    fn rendezvous(&mut self, view: &RunView, standing: &Standing, glance: &Glance) {
        if let Some(waiting) = view.waiting.as_ref().filter(|_| !standing.over()) {
            self.row("waiting", &format!("{}, for {}", waiting.reason, age(glance, view, waiting.since)));
        }
        if let Some((_, signal)) = view.stops.last().filter(|_| *standing == Standing::Stopping) {
            self.row("stopping", &format!("{signal} came"));
        }
        if let Some(since) = view.paused.filter(|_| *standing == Standing::Paused) {
            self.row("paused", &format!("for {} (enn continue)", age(glance, view, since)));
        }
        if let Some(round) = view.rounds.last() {
            let master = if round.master.is_empty() { String::new() } else { format!(", meet at {}", round.master) };
            let span = match round.ended {
                Some(ended) => format!("lasted {}", figures::seconds((ended - round.started).max(0.0))),
                None => format!("began {} ago", age(glance, view, round.started)),
            };
            let left = round.restarts_left.map_or_else(String::new, |left| format!(", {left} left"));
            let restarts = figures::plural(view.restarts(), "restart");
            let world = figures::plural(u64::from(round.world_size), "worker");
            let again = regroupings(view);
            self.row("round", &format!("{}, {world}, {span}{master}, {restarts}{left}{again}", round.round));
        }
        if view.nodes.len() > 1 || view.nodes.iter().any(|node| matches!(node.state, NodeState::Lost(_))) {
            let unwell = |node: &&NodeView| view.nodes.len() <= LISTED_MAX || node.state != NodeState::InRound;
            let nodes: Vec<String> = view.nodes.iter().filter(unwell).take(LISTED_MAX).map(node).collect();
            let count = figures::plural(view.nodes.len() as u64, "node");
            self.row("nodes", &[vec![count], nodes].concat().join("\n"));
        }
    }

    fn workers(&mut self, view: &RunView, glance: &Glance) {
        let all: Vec<_> = view.current_workers().map(|w| (w, WorkerStanding::of(view, w, glance.living))).collect();
        if all.is_empty() {
            return;
        }
        let mut counts: Vec<(String, usize)> = Vec::new();
        for (_, standing) in &all {
            let word = standing.to_string();
            match counts.iter_mut().find(|(known, _)| *known == word) {
                Some((_, count)) => *count += 1,
                None => counts.push((word, 1)),
            }
        }
        let counts: Vec<String> = counts.iter().map(|(word, count)| format!("{count} {word}")).collect();
        let listed = all.iter().filter(|(_, standing)| all.len() <= LISTED_MAX || standing.failed());
        let lines = listed.take(LISTED_MAX).map(|(worker, standing)| {
            let host = if worker.host.is_empty() { String::new() } else { format!("  {}", worker.host) };
            format!("rank {:<4}pid {:<8}{standing}{host}", worker.rank, worker.pid)
        });
        let lines: Vec<String> = std::iter::once(counts.join(", ")).chain(lines).collect();
        self.row("workers", &lines.join("\n"));
    }

    fn progress(&mut self, view: &RunView, glance: &Glance) {
        if let Some((rows, bytes, total)) = view.staging {
            let (rows, bytes, total) = (figures::count(rows), figures::bytes(bytes), figures::bytes(total));
            self.row("staging", &format!("{rows} rows, {bytes} of {total}"));
        }
        if let Some(step) = view.latest {
            let total =
                view.model.as_ref().map_or_else(String::new, |m| format!(" of {}", figures::count(m.steps_total)));
            let loss = figures::measure(step.loss);
            let rate = figures::rate(step.samples_per_s);
            let step_text =
                format!("{}{total}, epoch {}, loss {loss}, {rate} samples/s", figures::count(step.step), step.epoch);
            self.row("step", &step_text);
        }
        if view.split > 1 {
            self.row("memory", &format!("was short: micro-batches are cut into {}", view.split));
        }
        if let Some(best) = view.best().filter(|report| report.val.n > 0) {
            self.row("best", &format!("val {} in {}", figures::judged(&best.val, view.units()), best.name()));
        }
        for (split, of) in &view.classes {
            self.row(&format!("{split} rows"), &classes::line(of));
            self.table("confusion", &classes::confusion(of));
        }
        if let Some(last) = view.checkpoints.iter().rev().find(|checkpoint| checkpoint.error.is_none()) {
            let step = figures::count(last.step);
            let ago = age(glance, view, last.time);
            self.row("checkpoint", &format!("step {step}, {}, {ago} ago", figures::bytes(last.bytes)));
        }
        if let Some((rows, total)) = view.predicted {
            self.row("predicted", &format!("{} of {} rows", figures::count(rows), figures::count(total)));
        }
        if let Some(hang) = view.hangs.last() {
            let stacks =
                hang.stacks.as_ref().map_or_else(String::new, |path| format!(", stacks in {}", path.display()));
            let ago = age(glance, view, hang.time);
            let idle = figures::seconds(hang.seconds);
            self.row("hang", &format!("{ago} ago: no progress for {idle}{stacks}"));
        }
    }

    fn last_failure(&mut self, view: &RunView, glance: &Glance) {
        if let Some(told) = view.failures.last() {
            let headline = failure::headline(&told.failure, &failure::around(view, &told.failure, glance.width));
            let words = told.failure.message.as_deref().and_then(|words| words.trim().lines().next());
            let words = words.map_or_else(String::new, |words| format!("\n{words}"));
            self.row("failure", &format!("{headline}{words}"));
        } else if let Some((cause, _)) = view.rounds.iter().rev().find_map(|round| round.failure.as_ref()) {
            self.row("failure", cause);
        } else if let Some(reason) = view.rounds.iter().rev().find_map(|round| round.left.as_ref()) {
            self.row("regrouped", reason);
        }
    }
}

/// How often workers that kept their state met again; empty when never.
pub(super) fn regroupings(view: &RunView) -> String {
    match view.regroupings() {
        0 => String::new(),
        1 => ", met again once".to_owned(),
        times => format!(", met again {times} times"),
    }
}

/// What a run waits for whose head is gone.
const HEADLESS: &str = "the node that led the run is gone; another one takes over within seconds, or the run ends";

/// Whether a run that is gone may be led by another of its nodes in a moment.
pub fn may_be_led(view: &RunView, glance: &Glance) -> bool {
    let gone = Standing::of(view, glance.living) == Standing::Gone;
    gone && Standing::has_heirs(view, glance.living) && glance.now - view.now < TAKE_OVER_MAX.as_secs_f64()
}

/// The page for machines.
pub fn json(view: &RunView, glance: &Glance) -> Value {
    let standing = Standing::of(view, glance.living);
    let session = view.sessions.last();
    let round = view.rounds.last();
    let code = session.and_then(|session| session.ended).map(|end| end.code);
    let waiting = view.waiting.as_ref().filter(|_| !standing.over());
    let says = if may_be_led(view, glance) { HEADLESS.to_owned() } else { standing.to_string() };
    let workers: Vec<Value> = view
        .current_workers()
        .map(|worker| {
            let standing = WorkerStanding::of(view, worker, glance.living);
            json!({
                "rank": worker.rank, "local_rank": worker.local_rank, "host": worker.host, "pid": worker.pid,
                "state": standing.to_string(), "alive": standing.alive(), "failed": standing.failed(),
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
        "run": view.name(), "state": standing.word(), "says": says, "code": code,
        "mode": session.map(|session| &session.mode), "host": session.map(|session| &session.host),
        "dir": session.map(|session| &session.dir), "argv": session.map(|session| &session.argv),
        "started": session.map(|session| session.started),
        "ended": session.and_then(|session| session.ended).map(|end| end.time),
        "last_event": view.now,
        "waiting": waiting.map(|waiting| json!({
            "reason": waiting.reason, "since": waiting.since, "seconds": (moment(glance, view) - waiting.since).max(0.0),
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
        "checkpoint": view.checkpoints.iter().rev().find(|last| last.error.is_none()).map(|last| json!({
            "step": last.step, "bytes": last.bytes, "time": last.time,
        })),
        "failure": view.failures.last().map(|told| &told.failure),
        "paused": view.paused, "micro_batches_cut_into": view.split.max(1),
        "classes": view.classes, "hangs": view.hangs.len(),
        "warnings": view.warnings.iter().map(|(time, message)| json!({ "time": time, "message": message }))
            .collect::<Vec<_>>(),
    })
}

/// A node in words.
fn node(node: &NodeView) -> String {
    let (state, reason) = node_state(node);
    let reason = reason.map_or_else(String::new, |reason| format!(": {reason}"));
    let rank = node.rank.map_or_else(|| "-".to_owned(), |rank| rank.to_string());
    format!(
        "node {rank:<4}{:<20}{} {state}{reason}",
        node.host,
        figures::plural(u64::from(node.workers), "worker") + ","
    )
}

/// A node's state in a word, and its reason.
pub fn node_state(node: &NodeView) -> (&'static str, Option<&str>) {
    match &node.state {
        NodeState::Joined => ("waits", None),
        NodeState::InRound => ("in the round", None),
        NodeState::Out => ("out", None),
        NodeState::Lost(reason) => ("lost", Some(reason)),
    }
}

/// The present, or the end of a run that is over.
pub fn moment(glance: &Glance, view: &RunView) -> f64 {
    let ended = view.sessions.last().is_some_and(|session| session.ended.is_some());
    if ended || !glance.living { view.now } else { glance.now.max(view.now) }
}

fn age(glance: &Glance, view: &RunView, time: f64) -> String {
    figures::seconds((moment(glance, view) - time).max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ui::model::tests::{events, gang_events, view_after};

    fn glance(living: bool) -> Glance {
        Glance { living, now: 1_790_000_010.0, width: 100 }
    }

    #[test]
    fn pages() {
        let train = events();
        let gang = gang_events();
        let cut = |name: &str, view: &RunView, living| format!("--- {name}\n{}", text(view, &glance(living)));
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
        let waiting = json(&view_after(&gang_events()[..3]), &glance(true));
        assert_eq!(
            (&waiting["state"], &waiting["waiting"]["reason"]),
            (&json!("waiting"), &json!("1 of 2 nodes joined"))
        );
        assert!((waiting["waiting"]["seconds"].as_f64().unwrap() - 9.9).abs() < 1e-6);
        let mut cut = view_after(&gang_events()[..10]);
        cut.sessions[0].mode = "train".into();
        let since = |seconds: f64| Glance { now: cut.now + seconds, ..glance(false) };
        assert_eq!(json(&cut, &since(2.0))["says"], json!(HEADLESS));
        assert!(json(&cut, &since(40.0))["says"].as_str().unwrap().starts_with("gone"));
        let failed = json(&view_after(&gang_events()), &glance(false));
        assert_eq!(json(&view_after(&events()), &glance(false))["checkpoint"]["step"], json!(24));
        assert_eq!((&failed["state"], &failed["code"], &failed["restarts"]), (&json!("failed"), &json!(1), &json!(1)));
        assert_eq!((&failed["failure"]["rank"], &failed["failure"]["signal"]), (&json!(2), &json!(9)));
        assert_eq!((&failed["workers"][2]["failed"], &failed["waiting"]), (&json!(true), &Value::Null));
    }
}
