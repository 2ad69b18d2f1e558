//! The screen in its two sizes: running, waiting, failed, finished.

use super::*;
use crate::{
    model::tests::{events, gang_events},
    status::StatusContext,
    top::{
        event_log::EventLog,
        sample::{Gpu, GpuUse, ProcessLoad, Samples},
        state::WorkerFilter,
        tail::LogTail,
    },
};
use enn_common::event::Event;
use ratatui::{Terminal, backend::TestBackend};
use std::collections::BTreeMap;

const SMALL: (u16, u16) = (80, 24);
const LARGE: (u16, u16) = (120, 40);

/// What one picture is made of.
struct Shot<'a> {
    events: &'a [Event],
    living: bool,
    host: &'a str,
    state: TopState,
}

fn samples() -> Samples {
    let gpu = GpuUse { index: 0, percent: 93, used_bytes: Some(41_200_000_000) };
    let load = |percent, gpu| ProcessLoad { cpu_percent: percent, rss_bytes: 1_234_000_000, gpu };
    let gpus =
        vec![Gpu { index: 0, percent: 93, used_bytes: 42_000_000_000, total_bytes: 80_000_000_000, processes: vec![] }];
    let loads = [4_000, 4_010, 4_020].map(|pid| (pid, load(Some(98.7), Some(gpu))));
    let others = [4_001, 4_011, 4_021].map(|pid| (pid, load(None, None)));
    Samples { loads: BTreeMap::from_iter(loads.into_iter().chain(others)), gpus }
}

fn picture(shot: &Shot<'_>, (width, height): (u16, u16)) -> String {
    let mut event_log = EventLog::default();
    shot.events.iter().for_each(|event| event_log.apply(event));
    let lines: Vec<String> = (1..=40).map(|line| format!("log line {line}")).collect();
    let tail = LogTail::showing("/logs/stderr.log", lines);
    let context = StatusContext { living: shot.living, now: event_log.view.now + 2.5, width: 0 };
    let samples = samples();
    let scene =
        Scene { event_log: &event_log, context, host: shot.host, samples: &samples, state: &shot.state, tail: &tail };
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, &scene)).unwrap();
    let text = terminal.backend().to_string();
    text.lines().map(|line| line.trim_matches('"').trim_end()).collect::<Vec<_>>().join("\n")
}

fn shots<'a>(train: &'a [Event], gang: &'a [Event]) -> Vec<(&'static str, Shot<'a>)> {
    let state = TopState::default;
    let shot = |events, living, host, state| Shot { events, living, host, state };
    let reasons = TopState { pane: Pane::Reasons, ..state() };
    let typing = TopState { typing: true, search: "line 3".into(), ..state() };
    vec![
        ("running", shot(&train[..40], true, "node7", state())),
        ("running on two nodes", shot(&gang[..10], true, "n1", TopState { selected: Some(1), ..state() })),
        ("waiting", shot(&gang[..3], true, "n1", state())),
        ("failed", shot(gang, false, "n1", reasons)),
        (
            "finished",
            shot(train, false, "elsewhere", TopState { pane: Pane::Stdout, filter: WorkerFilter::Here, ..state() }),
        ),
        ("searching", shot(&train[..40], true, "node7", typing)),
        ("help", shot(&train[..40], true, "node7", TopState { help: true, ..state() })),
    ]
}

fn album(size: (u16, u16)) -> String {
    let train = events();
    let gang = gang_events();
    let all = shots(&train, &gang);
    let all: Vec<String> = all.iter().map(|(name, shot)| format!("=== {name}\n{}", picture(shot, size))).collect();
    all.join("\n")
}

#[test]
fn small_screens() {
    insta::assert_snapshot!(album(SMALL));
}

#[test]
fn large_screens() {
    insta::assert_snapshot!(album(LARGE));
}

#[test]
fn any_size_is_drawn() {
    let train = events();
    let gang = gang_events();
    for (_, shot) in shots(&train, &gang) {
        for size in [(1, 1), (7, 3), (20, 8), (300, 9)] {
            assert_eq!(picture(&shot, size).lines().count(), usize::from(size.1));
        }
    }
}

#[test]
fn a_thousand_workers_are_listed_and_the_failed_one_is_in_sight() {
    let mut all = gang_events();
    all.truncate(6);
    let started =
        all.iter().rposition(|event| matches!(event.what, enn_common::event::EventKind::RoundStarted { .. })).unwrap();
    let time = all[started].time;
    for rank in 0..1_000u32 {
        let round = enn_common::id::Round(0);
        let pid = 10_000 + rank;
        let local_rank = enn_common::id::LocalRank(rank);
        let rank = enn_common::id::Rank(rank);
        let what = enn_common::event::EventKind::WorkerStarted {
            round,
            local_rank,
            rank,
            pid,
            host: "n1".into(),
            forked: false,
        };
        all.push(Event { time, what });
    }
    let failure = enn_common::failure::Failure { rank: 777, code: Some(3), ..Default::default() };
    let exited = enn_common::event::EventKind::WorkerExited {
        round: enn_common::id::Round(0),
        rank: enn_common::id::Rank(777),
        pid: 10_777,
        code: Some(3),
        signal: None,
        seconds_to_notice: 0.0,
    };
    all.push(Event { time, what: exited });
    all.push(Event { time, what: enn_common::event::EventKind::FailureReported { failure: Box::new(failure) } });
    let shot = Shot { events: &all, living: true, host: "n1", state: TopState::default() };
    let text = picture(&shot, SMALL);
    assert!(text.contains("WORKERS 1000") && text.contains("failed: code 3"), "{text}");
}
