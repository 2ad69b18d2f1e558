//! The run as OpenMetrics text, for a scraper.
//!
//! **Invariant:** pure; the text is a whole exposition with `# EOF`, and names, once given, keep their meaning.

use super::{
    model::{NodeState, RunView},
    run_status::{RunStatus, WorkerStatus},
};
use std::fmt::Write;

pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Returns the exposition; `living` is whether the launcher lives.
pub fn text(view: &RunView, living: bool) -> String {
    let mut page = Exposition::default();
    run(&mut page, view, living);
    rounds(&mut page, view);
    workers(&mut page, view, living);
    training(&mut page, view);
    page.end()
}

fn run(page: &mut Exposition, view: &RunView, living: bool) {
    let Some(session) = view.sessions.last() else { return };
    page.family("enn_run", "info", "", "Name of the run, what the launch does, host of the launcher.");
    page.sample("enn_run_info", &[("run", &session.run), ("mode", &session.mode), ("host", &session.host)], 1.0);
    page.family("enn_run_state", "stateset", "", "Where the run stands.");
    let status = RunStatus::of(view, living);
    for word in RunStatus::WORDS {
        page.sample("enn_run_state", &[("enn_run_state", word)], f64::from(u8::from(word == status.word())));
    }
    page.gauge("enn_run_start_time_seconds", "seconds", "When the launch began, Unix time.", Some(session.started));
    page.gauge("enn_last_event_time_seconds", "seconds", "When something last happened, Unix time.", Some(view.now));
    let code = session.ended.map(|end| f64::from(end.code));
    page.gauge("enn_exit_code", "", "Code the launch ended with; absent before.", code);
    let since = view.waiting.as_ref().map(|waiting| waiting.since);
    let what = "Since when the rendezvous is not complete, Unix time; absent when it is.";
    page.gauge("enn_waiting_since_time_seconds", "seconds", what, since);
}

fn rounds(page: &mut Exposition, view: &RunView) {
    let count = |number: usize| number as f64;
    page.counter("enn_rounds", "Rounds that began.", count(view.rounds.len()));
    page.counter("enn_restarts", "Rounds that were begun again after a failure.", view.restarts() as f64);
    let failed = view.rounds.iter().filter(|round| round.failure.is_some()).count();
    page.counter("enn_failed_rounds", "Rounds that ended before their work was done.", count(failed));
    page.counter("enn_hangs", "Hangs that were detected.", count(view.hangs.len()));
    page.counter("enn_warnings", "Warnings.", count(view.warnings.len()));
    let round = view.rounds.last();
    page.gauge("enn_round", "", "Number of the current round.", round.map(|round| round.round as f64));
    let left = round.and_then(|round| round.restarts_left).map(f64::from);
    page.gauge("enn_restarts_left", "", "Restarts that are left; known after a failure.", left);
    if view.nodes.is_empty() {
        return;
    }
    page.family("enn_nodes", "gauge", "", "Nodes by where they stand.");
    let state = |node: &NodeState| match node {
        NodeState::Joined => "joined",
        NodeState::InRound => "in_round",
        NodeState::Out => "out",
        NodeState::Lost(_) => "lost",
    };
    for name in ["joined", "in_round", "out", "lost"] {
        let nodes = view.nodes.iter().filter(|node| state(&node.state) == name).count();
        page.sample("enn_nodes", &[("state", name)], count(nodes));
    }
}

fn workers(page: &mut Exposition, view: &RunView, living: bool) {
    let Some(round) = view.rounds.last() else { return };
    page.gauge("enn_world_size", "", "Workers of the current round on all nodes.", Some(f64::from(round.world_size)));
    let launcher = view.sessions.last().map_or("", |session| session.host.as_str());
    let all: Vec<_> = view.current_workers().collect();
    if all.is_empty() {
        return;
    }
    page.family("enn_worker_up", "gauge", "", "Whether the worker's process lives.");
    for worker in &all {
        let host = if worker.host.is_empty() { launcher } else { &worker.host };
        let alive = WorkerStatus::of(view, worker, living).alive();
        let labels = [("rank", worker.rank.to_string()), ("host", host.to_owned())];
        let labels = labels.each_ref().map(|(name, value)| (*name, value.as_str()));
        page.sample("enn_worker_up", &labels, f64::from(u8::from(alive)));
    }
}

fn training(page: &mut Exposition, view: &RunView) {
    let step = view.latest;
    page.gauge("enn_step", "", "Optimizer steps done.", step.map(|step| step.step as f64));
    let total = view.model.as_ref().map(|model| model.steps_total as f64);
    page.gauge("enn_steps_wanted", "", "Optimizer steps in the run.", total);
    page.gauge("enn_epoch", "", "Epoch, counted from 1.", step.map(|step| step.epoch as f64));
    page.gauge("enn_loss", "", "Training loss of the last step, standardised targets.", step.map(|step| step.loss));
    page.gauge("enn_learning_rate", "", "Learning rate.", step.map(|step| step.lr));
    let rate = step.map(|step| step.samples_per_s);
    page.gauge("enn_throughput_samples_per_second", "", "Training samples per second over all workers.", rate);
    let best = view.best().filter(|report| report.val.n > 0).map(|report| report.val.judged());
    page.gauge(
        "enn_best_validation_error",
        "",
        "Least validation error: mean absolute, units of the target; of classes the log-loss.",
        best,
    );
    let kept = view.last_checkpoint();
    page.gauge("enn_checkpoint_step", "", "Step of the last checkpoint.", kept.map(|kept| kept.step as f64));
    let what = "When the last checkpoint was committed, Unix time.";
    page.gauge("enn_checkpoint_time_seconds", "seconds", what, kept.map(|kept| kept.time));
    page.gauge(
        "enn_checkpoint_size_bytes",
        "bytes",
        "Size of the last checkpoint.",
        kept.map(|kept| kept.bytes as f64),
    );
}

#[derive(Debug, Default)]
pub struct Exposition(String);

impl Exposition {
    /// Returns the exposition, ended with `# EOF`.
    pub fn end(mut self) -> String {
        self.0.push_str("# EOF\n");
        self.0
    }

    pub fn family(&mut self, name: &str, kind: &str, unit: &str, help: &str) {
        let _infallible = writeln!(self.0, "# TYPE {name} {kind}");
        if !unit.is_empty() {
            let _infallible = writeln!(self.0, "# UNIT {name} {unit}");
        }
        let _infallible = writeln!(self.0, "# HELP {name} {help}");
    }

    /// Appends a sample to the current family.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let labels: Vec<String> = labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _infallible = writeln!(self.0, "{name}{labels} {}", number(value));
    }

    /// Appends a gauge with one sample; nothing when the value is unknown.
    pub fn gauge(&mut self, name: &str, unit: &str, help: &str, value: Option<f64>) {
        if let Some(value) = value {
            self.family(name, "gauge", unit, help);
            self.sample(name, &[], value);
        }
    }

    pub fn counter(&mut self, name: &str, help: &str, value: f64) {
        self.family(name, "counter", "", help);
        self.sample(&format!("{name}_total"), &[], value);
    }
}

fn number(value: f64) -> String {
    if value.is_nan() {
        "NaN".to_owned()
    } else if value.is_infinite() {
        if value > 0.0 { "+Inf".to_owned() } else { "-Inf".to_owned() }
    } else {
        value.to_string()
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tests::{events, gang_events, view_after};

    #[test]
    fn expositions() {
        let train = events();
        let gang = gang_events();
        let all = [
            ("empty", text(&RunView::default(), true)),
            ("waiting", text(&view_after(&gang[..3]), true)),
            ("failed", text(&view_after(&gang), false)),
            ("training", text(&view_after(&train[..40]), true)),
        ];
        insta::assert_snapshot!(all.map(|(name, text)| format!("--- {name}\n{text}")).join(""));
    }

    #[test]
    fn every_prefix_is_one_exposition() {
        for all in [events(), gang_events()] {
            for count in 0..=all.len() {
                let text = text(&view_after(&all[..count]), true);
                assert!(text.ends_with("# EOF\n") && text.matches("# EOF").count() == 1);
                let mut families: Vec<&str> = text.lines().filter(|line| line.starts_with("# TYPE")).collect();
                let before = families.len();
                families.sort_unstable();
                families.dedup();
                assert_eq!(families.len(), before, "{text}");
            }
        }
    }

    #[test]
    fn labels_cannot_break_out() {
        assert_eq!(escaped("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
        assert_eq!(
            [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.5, 1e9].map(number),
            ["NaN", "+Inf", "-Inf", "0.5", "1000000000"]
        );
    }
}
