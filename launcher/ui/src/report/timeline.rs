//! The run over time: rounds as bands, a lane per rank with its processes, checkpoints as ticks, deaths with their cause.

use super::{
    elements::{figure_wide, section},
    html::{Html, Px, Rect},
    scale::Scale,
};
use crate::{
    format,
    model::{RoundView, RunView, WorkerView},
};

const WIDTH: f64 = 1000.0;
const LEFT: f64 = 92.0;
const RIGHT: f64 = 12.0;
const LANE: f64 = 26.0;
const BAR: f64 = 14.0;
const TOP: f64 = 24.0;

/// Lanes drawn; larger worlds show their first ranks.
const LANES_MAX: u32 = 48;

struct LaunchSpan<'a> {
    rounds: Vec<&'a RoundView>,
    workers: Vec<&'a WorkerView>,
    start: f64,
    end: f64,
    lanes: u32,
    x: Scale,
}

impl LaunchSpan<'_> {
    /// Returns the horizontal position of a time, which is clamped to the launch.
    fn at(&self, time: f64) -> f64 {
        self.x.at((time - self.start).clamp(0.0, self.end - self.start))
    }
}

pub(super) fn write(html: &mut Html, view: &RunView) {
    let Some(span) = span(view) else { return };
    section(html, "timeline", "The run", |html| {
        let failed = span.rounds.iter().filter(|round| round.failure.is_some()).count() as u64;
        let mut subtitle = format!(
            "{} in {}, {}",
            format::plural(span.rounds.len() as u64, "round"),
            format::seconds(span.end - span.start),
            if failed == 0 { "none failed".to_owned() } else { format!("{} failed", format::count(failed)) }
        );
        if span.lanes == LANES_MAX {
            subtitle.push_str(&format!("; the first {LANES_MAX} ranks are shown"));
        }
        figure_wide(html, "Workers over time", &subtitle, |html| draw(html, view, &span));
        let keys = [("starting", "starting"), ("working", "working"), ("death", "died"), ("commit", "checkpoint")];
        html.keys(keys.map(|(class, name)| (class, name, None)));
        failures(html, &span);
    });
}

/// The launch that trained last; `None` when it started no worker.
fn span(view: &RunView) -> Option<LaunchSpan<'_>> {
    let session = view.session()?;
    let start = session.started;
    let until = view.sessions.iter().map(|other| other.started).find(|time| *time > start).unwrap_or(f64::INFINITY);
    let within = |time: f64| time >= start && time < until;
    let rounds: Vec<&RoundView> = view.rounds.iter().filter(|round| within(round.started)).collect();
    let workers: Vec<&WorkerView> = view.workers.iter().filter(|worker| within(worker.started)).collect();
    let lanes = workers.iter().map(|worker| worker.rank + 1).max()?.min(LANES_MAX);
    let end = session.ended.map_or(view.now, |end| end.time).max(start + 1e-3);
    let x = Scale::linear((0.0, end - start), (LEFT, WIDTH - RIGHT));
    Some(LaunchSpan { rounds, workers, start, end, lanes, x })
}

/// Whether a worker ended otherwise than with code 0.
fn broken(worker: &WorkerView) -> bool {
    worker.exit.is_some_and(|exit| exit.code != Some(0))
}

/// The worker whose end failed its round: the first that broke. Those after it were stopped because of it.
fn first_death<'a>(span: &LaunchSpan<'a>, round: &RoundView) -> Option<&'a WorkerView> {
    round.failure.as_ref()?;
    let time = |worker: &WorkerView| worker.exit.map_or(f64::INFINITY, |exit| exit.time);
    let broken = span.workers.iter().copied().filter(|worker| worker.round == round.round && broken(worker));
    broken.min_by(|a, b| time(a).total_cmp(&time(b)))
}

fn draw(html: &mut Html, view: &RunView, span: &LaunchSpan) {
    let bottom = TOP + LANE * f64::from(span.lanes) + LANE;
    html.svg(WIDTH, bottom + 34.0, "workers over time", |html| {
        for (index, round) in span.rounds.iter().enumerate() {
            band(html, span, round, index, bottom);
        }
        for (seconds, label) in span.x.ticks(8) {
            let x = span.x.at(seconds);
            html.segment("axis", [x, x], [bottom, bottom + 4.0]);
            html.svg_text("tick mid", x, bottom + 18.0, &label);
        }
        html.segment("axis", [LEFT, WIDTH - RIGHT], [bottom, bottom]);
        html.svg_text("tick end", WIDTH - RIGHT, bottom + 32.0, "seconds");
        for lane in 0..span.lanes {
            html.svg_text("label", 0.0, lane_top(lane) + LANE / 2.0 + 4.0, &format!("worker {lane}"));
        }
        for worker in span.workers.iter().filter(|worker| worker.rank < span.lanes) {
            process(html, span, worker);
        }
        for worker in span.rounds.iter().filter_map(|round| first_death(span, round)) {
            death(html, span, worker);
        }
        checkpoints(html, view, span, bottom - LANE / 2.0);
    });
}

fn band(html: &mut Html, span: &LaunchSpan, round: &RoundView, index: usize, bottom: f64) {
    let left = span.at(round.started);
    let right = span.at(round.ended.unwrap_or(span.end));
    let class = if index.is_multiple_of(2) { "band" } else { "band other" };
    let ended = round.ended.unwrap_or(span.end);
    let mut tooltip = format!(
        "round {}: {}, {}",
        round.round,
        format::plural(u64::from(round.world_size), "worker"),
        format::seconds(ended - round.started)
    );
    if let Some(step) = round.resume_step {
        tooltip.push_str(&format!(", from step {}", format::count(step)));
    }
    if let Some((cause, _)) = &round.failure {
        tooltip.push_str(&format!("; failed: {cause}"));
    }
    let rect = Rect { x: left, y: TOP - 8.0, width: (right - left).max(1.0), height: bottom - TOP + 8.0 };
    html.rect(class, rect, 0, &tooltip);
    // A band too narrow for its name has it in the tooltip only.
    if right - left > 54.0 {
        html.svg_text("tick", left + 2.0, TOP - 13.0, &format!("round {}", round.round));
    }
}

fn lane_top(lane: u32) -> f64 {
    TOP + LANE * f64::from(lane)
}

fn process(html: &mut Html, span: &LaunchSpan, worker: &WorkerView) {
    let y = lane_top(worker.rank) + (LANE - BAR) / 2.0;
    let end = worker.exit.map_or(span.end, |exit| exit.time);
    let ready = worker.ready.as_ref().map_or(end, |ready| ready.time);
    let who = who(worker);
    for (class, from, to) in [("starting", worker.started, ready), ("working", ready, end)] {
        if to > from {
            let x = span.at(from);
            let tooltip = format!("{who}: {class} for {}; {}", format::seconds(to - from), cause(worker));
            html.rect(class, Rect { x, y, width: (span.at(to) - x).max(0.8), height: BAR }, 2, &tooltip);
        }
    }
}

/// A cross at the end of the worker that failed its round.
fn death(html: &mut Html, span: &LaunchSpan, worker: &WorkerView) {
    let Some(exit) = worker.exit.filter(|_| worker.rank < LANES_MAX) else { return };
    let x = span.at(exit.time);
    let y = lane_top(worker.rank) + LANE / 2.0;
    let r = 5.5;
    let [left, right, up, down] = [x - r, x + r, y - r, y + r].map(Px);
    let cross = format!("M{left} {up}L{right} {down}M{left} {down}L{right} {up}");
    html.void("path", &[("class", &"halo"), ("d", &cross)]);
    html.mark("path", &[("class", &"death"), ("d", &cross)], &format!("{} {}", who(worker), cause(worker)));
}

fn who(worker: &WorkerView) -> String {
    format!("worker {} (pid {}, round {})", worker.rank, worker.pid, worker.round)
}

fn cause(worker: &WorkerView) -> String {
    let ended = worker.exit.map(|exit| {
        let how = format::exit(exit.code, exit.signal);
        format!("{how}, noticed in {}", format::seconds(exit.seconds_to_notice))
    });
    let how = ended.unwrap_or_else(|| "is alive".to_owned());
    let said = worker.error.as_ref().map_or_else(String::new, |error| format!("; it said: {error}"));
    format!("{how}{said}")
}

fn checkpoints(html: &mut Html, view: &RunView, span: &LaunchSpan, y: f64) {
    html.svg_text("label", 0.0, y + 4.0, "checkpoints");
    for checkpoint in view.checkpoints.iter().filter(|c| c.time >= span.start && c.time <= span.end) {
        let x = span.at(checkpoint.time);
        let step = format::count(checkpoint.step);
        let (class, tooltip) = match &checkpoint.error {
            Some(error) => ("commit failed", format!("step {step}: abandoned, {error}")),
            None => {
                let bytes = format::bytes(checkpoint.bytes);
                let seconds = format::seconds(checkpoint.seconds);
                ("commit", format!("step {step}: {bytes} in {seconds}"))
            }
        };
        let diamond = format!("M{} {}l5 5l-5 5l-5 -5z", Px(x), Px(y - 5.0));
        html.mark("path", &[("class", &class), ("d", &diamond)], &tooltip);
    }
}

/// The failures in words below the drawing, for print and for those who cannot hover.
fn failures(html: &mut Html, span: &LaunchSpan) {
    let failed: Vec<_> = span.rounds.iter().filter(|round| round.failure.is_some()).collect();
    if failed.is_empty() {
        return;
    }
    html.element("ol", &[("class", &"failures")], |html| {
        for round in failed {
            let Some((why, restarting)) = &round.failure else { continue };
            html.element("li", &[], |html| {
                let time = round.ended.map_or_else(String::new, |time| format!("{:.1} s", time - span.start));
                html.leaf("b", &[], &format!("Round {}, {time}", round.round));
                let then = if *restarting { "; started again from the last checkpoint" } else { "; not started again" };
                html.text(&format!(" {why}{then}."));
                if let Some(exit) = first_death(span, round).and_then(|worker| worker.exit) {
                    html.text(&format!(" Noticed in {}.", format::seconds(exit.seconds_to_notice)));
                }
            });
        }
    });
}
