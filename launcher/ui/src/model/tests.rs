//! The fold, told by a story: two workers train, one is killed, the round is tried again from a checkpoint, training ends.

use super::*;
use enn_common::{
    event::{NodeBrief, StepTimes},
    failure::Failure,
    id::{LocalRank, Rank, Round},
    metrics::Metrics,
    staged::meta::{CleaningReport, ColumnReport},
};
use proptest::prelude::*;

/// When the story begins.
const START: f64 = 1_790_000_000.0;

/// An epoch of 8 steps whose validation MAE is `mae`.
pub(crate) fn epoch(epoch: u64, loss: f64, mae: f64, best: bool) -> EpochReport {
    EpochReport {
        epoch,
        step: epoch * 8,
        train_loss: loss,
        val: Metrics { mae, rmse: mae * 1.3, r2: 0.9, n: 3_800, ..Metrics::default() },
        best,
        lr: 1e-3,
        grad_norm: 0.8,
        gate_mean: 0.5,
        reactivity: 0.9,
        step_ms: StepTimes { total: 41.0, data: 0.5, forward: 14.0, backward: 22.0, comm: 2.5, optimizer: 2.0 },
        samples_per_s: 780.5,
        skipped: 0,
        part: 1.0,
    }
}

fn stepped(step: u64, loss: f64) -> EventKind {
    EventKind::Stepped { epoch: (step - 1) / 8 + 1, step, loss, lr: 1e-3, grad_norm: 0.9, samples_per_s: 781.0 }
}

fn round(round: u64, resume_step: Option<u64>) -> Vec<(f64, EventKind)> {
    let mut all =
        vec![(0.1, EventKind::RoundStarted { round: Round(round), world_size: 2, attempt: round as u32, resume_step })];
    for rank in 0..2 {
        let pid = 4_000 + 10 * round as u32 + rank;
        all.push((
            0.01,
            EventKind::WorkerStarted {
                round: Round(round),
                local_rank: LocalRank(rank),
                rank: Rank(rank),
                pid,
                host: String::new(),
                forked: false,
            },
        ));
    }
    for rank in 0..2 {
        let device = "cpu".to_owned();
        let backend = "gloo".to_owned();
        let libtorch = "2.11.0".to_owned();
        all.push((
            0.4,
            EventKind::WorkerReady { round: Round(round), rank: Rank(rank), device, backend, libtorch, seconds: 0.81 },
        ));
    }
    all.push((
        0.1,
        EventKind::ModelBuilt {
            parameters: 412_345,
            program_hash: "9c1e77aa".into(),
            batch: 32,
            steps_per_epoch: 8,
            steps_total: 24,
        },
    ));
    all
}

fn exited(round: u64, rank: u32, code: Option<i32>, signal: Option<i32>) -> EventKind {
    let pid = 4_000 + 10 * round as u32 + rank;
    EventKind::WorkerExited { round: Round(round), rank: Rank(rank), pid, code, signal, seconds_to_notice: 0.0012 }
}

fn report() -> CleaningReport {
    CleaningReport {
        rows_read: 26_130,
        samples: 363,
        absent_cells: 75,
        dropped_samples: 2,
        columns: BTreeMap::from([
            ("temp".into(), ColumnReport { missing: 1, ..ColumnReport::default() }),
            ("pressure".into(), ColumnReport { missing: 2_730, out_of_range: 1, ..ColumnReport::default() }),
        ]),
        notes: vec!["temp: rows <JFK> \"5 & 6\" look odd".into()],
        ..CleaningReport::default()
    }
}

fn preparation() -> Vec<(f64, EventKind)> {
    let baseline = |mae: f64| Metrics { mae, rmse: mae * 1.28, ..Metrics::default() };
    let all = |add: f64| {
        BTreeMap::from([
            ("cell_mean".to_owned(), baseline(8.9 + add)),
            ("persistence".to_owned(), baseline(6.1 + add)),
            ("ridge".to_owned(), baseline(4.7 + add)),
        ])
    };
    vec![
        (
            0.0,
            EventKind::RunStarted {
                run: "weather-20260921-2f1c".into(),
                mode: "train".into(),
                dir: "/runs/weather-20260921-2f1c".into(),
                host: "node7".into(),
                nproc: 2,
                argv: vec!["enn".into(), "train".into(), "weather.toml".into()],
            },
        ),
        (0.1, EventKind::StageProgressed { rows: 12_000, bytes: 1_100_000, bytes_total: 2_300_000 }),
        (
            0.1,
            EventKind::Staged {
                dir: "/runs/weather-20260921-2f1c/staged/ab12".into(),
                rows: 363,
                features: 652,
                out_shape: vec![3, 24],
                split_rows: [255, 54, 54],
                sources: vec![],
                units: "°F".into(),
                reused: false,
                resumed_rows: 0,
                seconds: 0.21,
                report: report(),
            },
        ),
        (
            0.2,
            EventKind::BaselinesComputed {
                split: BTreeMap::from([("val".to_owned(), all(0.0)), ("test".to_owned(), all(0.2))]),
                notes: vec!["ridge: λ = 316 by generalised cross-validation".into()],
            },
        ),
    ]
}

/// The whole story in order, with times.
pub(crate) fn events() -> Vec<Event> {
    let mut all = preparation();
    all.extend(round(0, None));
    all.extend((1..=8).map(|step| (0.04, stepped(step, 1.0 / step as f64))));
    all.push((0.1, EventKind::EpochEnded(Box::new(epoch(1, 0.41, 6.2, true)))));
    all.push((
        0.05,
        EventKind::CheckpointCommitted {
            step: 8,
            path: "/c/8".into(),
            bytes: 5_012_345,
            seconds: 0.04,
            metric: Some(6.2),
            blocked_seconds: 0.01,
        },
    ));
    all.extend((9..=14).map(|step| (0.04, stepped(step, 0.3))));
    all.push((0.01, exited(0, 1, None, Some(9))));
    all.push((0.02, exited(0, 0, Some(1), None)));
    let cause = "worker 1 was killed by SIGKILL".to_owned();
    all.push((0.01, EventKind::RoundFailed { round: Round(0), cause, restarting: true, restarts_left: 2 }));
    all.extend(round(1, Some(8)));
    all.extend((9..=24).map(|step| (0.04, stepped(step, 2.0 / step as f64))));
    all.insert(all.len() - 8, (0.0, EventKind::EpochEnded(Box::new(epoch(2, 0.2, 4.4, true)))));
    all.push((0.1, EventKind::EpochEnded(Box::new(epoch(3, 0.11, 4.5, false)))));
    all.push((0.02, EventKind::CheckpointFailed { step: 24, error: "rank 0: no space left on device".into() }));
    all.push((
        0.05,
        EventKind::CheckpointCommitted {
            step: 24,
            path: "/c/24".into(),
            bytes: 5_012_345,
            seconds: 0.05,
            metric: Some(4.4),
            blocked_seconds: 0.02,
        },
    ));
    let split = [("train", 3.1, 18_000), ("val", 4.4, 3_800), ("test", 4.62, 3_850)];
    let split = split
        .map(|(name, mae, n)| (name.to_owned(), Metrics { mae, rmse: mae * 1.3, r2: 0.91, n, ..Metrics::default() }));
    all.push((
        0.1,
        EventKind::Trained {
            epoch: 3,
            step: 24,
            stopped_early: false,
            split: BTreeMap::from(split),
            samples_per_s: 780.0,
            seconds: 4.2,
        },
    ));
    all.extend((0..2).map(|rank| (0.02, exited(1, rank, Some(0), None))));
    all.push((0.1, EventKind::Warned { message: "wind_gust is all missing\n  hint: leave it out".into() }));
    all.push((0.1, EventKind::RunEnded { code: 0, seconds: 6.1, restarts: 1, rounds: 2, cause: None }));
    timed(all)
}

/// The view after some events.
pub(crate) fn view_after(events: &[Event]) -> RunView {
    let mut view = RunView::default();
    events.iter().for_each(|event| view.apply(event));
    view
}

#[test]
fn who_lost_its_seat_is_shown_as_ended_in_the_round_it_left() {
    let mut all = preparation();
    all.extend(round(0, None));
    all.push((0.1, EventKind::RoundLeft { round: Round(0), reason: "resized".into() }));
    all.push((0.0, EventKind::RoundStarted { round: Round(1), world_size: 1, attempt: 0, resume_step: Some(3) }));
    let rank = Rank(0);
    let local_rank = LocalRank(0);
    all.push((
        0.0,
        EventKind::SeatTaken { round: Round(1), rank, local_rank, pid: 4_000, spare: false, host: String::new() },
    ));
    let dismissed = EventKind::WorkerDismissed { round: Round(0), rank: Rank(1), pid: 4_001 };
    all.push((0.1, dismissed.clone()));
    let view = view_after(&timed(all));
    let ended: Vec<(u32, u32)> =
        view.workers.iter().filter(|worker| worker.exit.is_some()).map(|worker| (worker.rank, worker.pid)).collect();
    assert_eq!((ended, view.alive()), (vec![(1, 4_001)], (1, 1)));
    let told = crate::lines::lines(&Event { time: 9.0, what: dismissed }, &view);
    assert!(told[0].text.contains("worker 1 (pid 4001) had lost its seat"), "{told:?}");
}

/// A third story: a worker dies, a spare takes its seat; another dies and nobody survives.
pub(crate) fn reform_events() -> Vec<Event> {
    let mut all = preparation();
    all.extend(round(0, None));
    all.push((
        0.1,
        EventKind::SpareStarted { pid: 4_900, local_rank: LocalRank(0), host: String::new(), forked: false },
    ));
    all.push((0.1, EventKind::SpareEnded { pid: 4_900, code: None, signal: Some(9) }));
    all.push((
        1.0,
        EventKind::SpareStarted { pid: 4_901, local_rank: LocalRank(0), host: String::new(), forked: false },
    ));
    all.push((2.0, EventKind::SpareReady { pid: 4_901, seconds: 2.0 }));
    all.extend((1..=3).map(|step| (0.04, stepped(step, 1.0 / step as f64))));
    all.push((0.0, exited(0, 1, None, Some(9))));
    let reason = "rank 1 was killed by SIGKILL".to_owned();
    all.push((0.01, EventKind::RoundLeft { round: Round(0), reason }));
    all.push((0.0, EventKind::RoundStarted { round: Round(1), world_size: 2, attempt: 0, resume_step: Some(3) }));
    let seat = |rank: u32, pid, spare| {
        let local_rank = LocalRank(rank);
        let rank = Rank(rank);
        (0.0, EventKind::SeatTaken { round: Round(1), rank, local_rank, pid, spare, host: String::new() })
    };
    all.extend([seat(0, 4_000, false), seat(1, 4_901, true)]);
    let rank = Rank(1);
    let from = Rank(0);
    all.push((0.2, EventKind::StateReceived { round: Round(1), rank, from, step: 3, bytes: 5_012_345, seconds: 0.02 }));
    for rank in [0, 1].map(Rank) {
        let device = "cpu".to_owned();
        let backend = "gloo".to_owned();
        let libtorch = "2.11.0".to_owned();
        all.push((0.0, EventKind::WorkerReady { round: Round(1), rank, device, backend, libtorch, seconds: 0.2 }));
    }
    all.push((0.1, stepped(4, 0.2)));
    all.push((0.0, EventKind::Recovered { round: Round(1), seconds: 0.31, lost_steps: 0, from_rank: Some(Rank(0)) }));
    timed(all)
}

#[test]
fn survivors_and_spares_are_workers_of_the_next_round() {
    let view = view_after(&reform_events());
    let workers: Vec<_> =
        view.current_workers().map(|worker| (worker.rank, worker.pid, worker.ready.is_some())).collect();
    assert_eq!(workers, [(0, 4_000, true), (1, 4_901, true)]);
    assert_eq!((view.alive(), view.regroupings(), view.restarts()), ((2, 2), 1, 0));
    let dead = view.workers.iter().find(|worker| worker.pid == 4_001).unwrap();
    assert_eq!((dead.round, dead.exit.map(|exit| exit.signal)), (0, Some(Some(9))));
}

/// A second story: any program on two nodes; a late node, a failure, a restart, a lost node, a hang, the end.
#[expect(clippy::too_many_lines, reason = "one story, told event by event")]
pub(crate) fn gang_events() -> Vec<Event> {
    let node = |host: &str| NodeBrief { host: host.into(), workers: 2 };
    let formed = |round, restart| EventKind::RoundFormed {
        round: Round(round),
        restart,
        master: "n1:29500".into(),
        nodes: vec![node("n1"), node("n2")],
    };
    let started = |round, restart, hosts: [&str; 2]| {
        let mut all = vec![
            (0.1, formed(round, restart)),
            (0.0, EventKind::RoundStarted { round: Round(round), world_size: 4, attempt: restart, resume_step: None }),
        ];
        all.extend((0..4).map(|rank| {
            let host = hosts[rank as usize / 2].into();
            let pid = 4_000 + 10 * round as u32 + rank;
            let local_rank = LocalRank(rank % 2);
            let rank = Rank(rank);
            (0.01, EventKind::WorkerStarted { round: Round(round), local_rank, rank, pid, host, forked: false })
        }));
        all
    };
    let failure = |round: u64, rank: u32, time| Failure {
        round,
        host: "n2".into(),
        node_rank: 1,
        local_rank: rank - 2,
        rank,
        pid: 4_000 + 10 * round as u32 + rank,
        time,
        ..Failure::default()
    };
    let raised = Failure {
        code: Some(1),
        message: Some("ValueError: no such file\nsecond line".into()),
        stderr: "ValueError: no such file\n".into(),
        ..failure(0, 3, START + 12.0)
    };
    let killed = Failure { signal: Some(9), ..failure(2, 2, START + 20.0) };
    let argv = ["enn", "run", "--nnodes", "2", "train.py"].map(String::from).to_vec();
    let run = "train-20260921T101500Z-77aa".to_owned();
    let dir = PathBuf::from("/state/train-20260921T101500Z-77aa");
    let mut all = vec![
        (0.0, EventKind::RunStarted { run, mode: "run".into(), dir, host: "n1".into(), nproc: 2, argv }),
        (0.1, EventKind::NodeJoined { host: "n1".into(), workers: 2 }),
        (0.0, EventKind::Waiting { reason: "1 of 2 nodes joined".into() }),
        (3.0, EventKind::NodeJoined { host: "n2".into(), workers: 2 }),
    ];
    all.extend(started(0, 0, ["", "n2"]));
    all.push((8.0, exited(0, 3, Some(1), None)));
    all.push((0.0, EventKind::FailureReported { failure: Box::new(raised) }));
    all.extend([0, 1, 2].map(|rank| (0.01, exited(0, rank, None, Some(15)))));
    let cause = "rank 3 on n2 failed".to_owned();
    all.push((0.0, EventKind::RoundFailed { round: Round(0), cause, restarting: true, restarts_left: 0 }));
    all.extend(started(1, 1, ["", "n2"]));
    all.push((1.0, EventKind::NodeLost { host: "n2".into(), reason: "silent for 5 s".into() }));
    let cause = "node n2 was lost: silent for 5 s".to_owned();
    all.push((0.1, EventKind::RoundFailed { round: Round(1), cause, restarting: true, restarts_left: 0 }));
    all.push((0.1, EventKind::Waiting { reason: "1 of 2 nodes joined".into() }));
    all.push((2.0, EventKind::NodeJoined { host: "n2".into(), workers: 2 }));
    all.extend(started(2, 1, ["", "n2"]));
    all.push((
        0.5,
        EventKind::HangDetected { round: Round(2), seconds: 600.0, stacks: Some("/state/x/stacks/2".into()) },
    ));
    all.push((0.5, exited(2, 2, None, Some(9))));
    all.push((0.0, EventKind::FailureReported { failure: Box::new(killed) }));
    all.extend([0, 1, 3].map(|rank| (0.01, exited(2, rank, None, Some(15)))));
    let cause = "rank 2 on n2 failed".to_owned();
    all.push((0.0, EventKind::RoundFailed { round: Round(2), cause, restarting: false, restarts_left: 0 }));
    all.push((0.0, EventKind::RunEnded { code: 1, seconds: 16.0, restarts: 1, rounds: 3, cause: None }));
    timed(all)
}

fn timed(all: Vec<(f64, EventKind)>) -> Vec<Event> {
    let mut time = START;
    let at = |(after, what)| {
        time += after;
        Event { time, what }
    };
    all.into_iter().map(at).collect()
}

#[test]
fn nodes_wait_meet_fail_and_come_back() {
    let all = gang_events();
    let after = |wanted: &dyn Fn(&EventKind) -> bool| {
        let index = all.iter().rposition(|event| wanted(&event.what)).unwrap();
        view_after(&all[..=index])
    };
    let states = |view: &RunView| -> Vec<(String, NodeState)> {
        view.nodes.iter().map(|node| (node.host.clone(), node.state.clone())).collect()
    };
    let node = |host: &str, state: NodeState| (host.to_owned(), state);
    let first = view_after(&all[..3]);
    let wait = first.waiting.clone().unwrap();
    assert_eq!((wait.reason.as_str(), wait.since), ("1 of 2 nodes joined", START + 0.1));
    assert_eq!(states(&first), [node("n1", NodeState::Joined)]);
    let formed = after(&|what| matches!(what, EventKind::RoundStarted { round: Round(1), .. }));
    assert_eq!(formed.waiting, None);
    assert_eq!(states(&formed), [node("n1", NodeState::InRound), node("n2", NodeState::InRound)]);
    assert_eq!((formed.rounds.len(), formed.rounds[1].world_size, formed.restarts()), (2, 4, 1));
    let lost = after(&|what| matches!(what, EventKind::NodeLost { .. }));
    assert_eq!(lost.nodes[1].state, NodeState::Lost("silent for 5 s".into()));
    let end = view_after(&all);
    assert_eq!(states(&end), [node("n1", NodeState::Out), node("n2", NodeState::Out)]);
    assert_eq!((end.failures.len(), end.hangs.len(), end.restarts(), end.rounds.len()), (2, 1, 1, 3));
    assert_eq!(end.current_workers().map(|worker| worker.host.as_str()).collect::<Vec<_>>(), ["", "", "n2", "n2"]);
}

#[test]
fn two_nodes_of_one_host_are_two() {
    let joined = EventKind::NodeJoined { host: "n1".into(), workers: 1 };
    let node = || NodeBrief { host: "n1".into(), workers: 1 };
    let formed = |nodes| EventKind::RoundFormed { round: Round(0), restart: 0, master: "n1:1".into(), nodes };
    let view = view_after(&timed(vec![(0.0, joined.clone()), (0.0, joined.clone())]));
    assert_eq!(view.nodes.len(), 2);
    let view = view_after(&timed(vec![(0.0, joined.clone()), (0.0, joined), (0.0, formed(vec![node(), node()]))]));
    assert_eq!(view.nodes.iter().map(|node| node.rank).collect::<Vec<_>>(), [Some(0), Some(1)]);
    assert_eq!(view.rounds[0].world_size, 2);
}

#[test]
fn the_story_is_understood() {
    let view = view_after(&events());
    assert_eq!((view.name(), view.units(), view.restarts()), ("weather-20260921-2f1c", "°F", 1));
    assert_eq!(view.epochs.iter().map(|report| report.epoch).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(view.best().map(|report| report.epoch), Some(2));
    assert_eq!(view.workers.len(), 4);
    assert_eq!(view.workers[1].exit.map(|exit| exit.signal), Some(Some(9)));
    assert_eq!(view.rounds[0].failure, Some(("worker 1 was killed by SIGKILL".into(), true)));
    assert!(view.rounds.iter().all(|round| round.ended.is_some()));
    assert_eq!(view.checkpoints.iter().filter(|checkpoint| checkpoint.error.is_some()).count(), 1);
    assert_eq!(view.session().and_then(|session| session.ended).map(|end| end.code), Some(0));
    // Steps 9 to 14 of the failed round are replaced by those of the next one.
    let points = view.losses.points();
    assert_eq!(points.len(), 24);
    assert!((points[8].mean - 2.0 / 9.0).abs() < 1e-12);
}

#[test]
fn the_living_are_counted() {
    let all = events();
    let killed = all.iter().position(|event| matches!(event.what, EventKind::WorkerExited { .. })).unwrap();
    assert_eq!(view_after(&all[..killed]).alive(), (2, 2));
    assert_eq!(view_after(&all[..=killed]).alive(), (1, 2));
    assert_eq!(view_after(&all).alive(), (0, 2));
}

#[test]
fn time_left_follows_the_pace_of_the_round() {
    let all = events();
    let last = all.iter().rposition(|event| matches!(event.what, EventKind::Stepped { step: 23, .. })).unwrap();
    let left = view_after(&all[..=last]).remaining_s().unwrap();
    assert!((left - 0.04).abs() < 1e-3, "one step of 40 ms is left, not {left}");
}

proptest! {
    /// Any subset of the events in any order is taken without a panic, and a view read back equals the live one.
    #[test]
    fn the_fold_is_total(order in proptest::collection::vec(any::<proptest::sample::Index>(), 0..60)) {
        let all = [events(), gang_events()].concat();
        let chosen: Vec<Event> = order.iter().map(|index| index.get(&all).clone()).collect();
        let dir = tempfile::tempdir().unwrap();
        let mut journal = journal::JournalWriter::open(dir.path()).unwrap();
        chosen.iter().for_each(|event| journal.write(event).unwrap());
        let live = view_after(&chosen);
        prop_assert_eq!(RunView::read(dir.path()).unwrap(), live);
    }
}
