//! Programs of a user that attach to the broker: survivors of a failure keep their processes and their state, and go on in another round;
//! where one has not attached, all start again.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test by panicking")]

use enn_common::{event::EventKind, wire::script::ScriptSeat};
use enn_tests::agent::{self, End, Run, kill_9};
use nix::sys::signal::Signal;
use std::{
    collections::BTreeMap,
    path::Path,
    time::{Duration, Instant},
};

const PROGRAMS: agent::Programs = (env!("CARGO_BIN_EXE_agent_under_test"), env!("CARGO_BIN_EXE_script_under_test"));
const WAIT_MAX: Duration = Duration::from_secs(30);
const STEPS: u64 = 300;

fn start(script: &str, world: u32, options: &[&str]) -> Run {
    let script = format!("steps={STEPS},step_ms=4,{script}");
    let all = [&["policy=reform", "contract=script"], options].concat();
    agent::start(PROGRAMS, &script, (world, 3, 20.0), &all)
}

/// Waits until these ranks have done some steps of a round.
fn at_work(run: &Run, round: u64, ranks: &[u32]) {
    for rank in ranks {
        let mark = run.dir.path().join(format!("reached-{round}-{rank}"));
        let deadline = Instant::now() + WAIT_MAX;
        while !mark.exists() {
            assert!(Instant::now() < deadline, "{} is not there; seen: {:#?}", mark.display(), run.seen);
            std::thread::park_timeout(Duration::from_millis(2));
        }
    }
}

/// An ended run, and the directory with what its workers left.
struct Ended {
    end: End,
    files: BTreeMap<String, String>,
}

fn end(mut run: Run) -> Ended {
    while run.event().is_some() {}
    // The directory goes with the run.
    let files = read_files(run.dir.path());
    Ended { end: run.end(), files }
}

fn read_files(dir: &Path) -> BTreeMap<String, String> {
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
    files
        .map(|path| (path.file_name().unwrap().to_string_lossy().into(), std::fs::read_to_string(&path).unwrap()))
        .collect()
}

impl Ended {
    /// What all ranks computed, which an undisturbed run of `world` workers computes, too.
    #[track_caller]
    fn has_sums(&self, world: u64) {
        let sum: u64 = (1..=STEPS).map(|step| step * world * (world + 1) / 2).sum();
        for rank in 0..world {
            assert_eq!(self.files.get(&format!("final-{rank}")), Some(&format!("{STEPS} {sum}")), "rank {rank}");
        }
    }

    /// The steps that a process did.
    fn steps(&self, pid: i32) -> Vec<u64> {
        self.files[&format!("steps-{pid}")].lines().map(|line| line.parse().unwrap()).collect()
    }

    fn seat(&self, round: u64, rank: u32) -> ScriptSeat {
        serde_json::from_str(&self.files[&format!("seat-{round}-{rank}")]).unwrap()
    }

    fn warnings(&self) -> Vec<String> {
        self.end.all(|what| match what {
            EventKind::Warned { message } => Some(message.clone()),
            _ => None,
        })
    }

    fn started(&self) -> usize {
        self.end.count(|what| matches!(what, EventKind::WorkerStarted { .. }))
    }

    /// (round, rank, pid, spare) of the seats that living processes took.
    fn taken(&self) -> Vec<(u64, u32, i32, bool)> {
        self.end.all(|what| match what {
            EventKind::SeatTaken { round, rank, pid, spare, .. } => Some((round.0, rank.0, pid.cast_signed(), *spare)),
            _ => None,
        })
    }
}

#[test]
fn a_killed_script_is_replaced_and_the_others_lose_no_step() {
    let mut run = start("", 4, &[]);
    let pids = run.pids(4);
    at_work(&run, 0, &[0, 1, 2, 3]);
    kill_9(pids[1]);
    let ended = end(run);
    ended.end.has(0, 2);
    ended.has_sums(4);
    assert_eq!(ended.taken(), [(1, 0, pids[0], false), (1, 2, pids[2], false), (1, 3, pids[3], false)]);
    assert_eq!((ended.started(), ended.warnings()), (5, vec![]));
    let newcomer = ended.seat(1, 1);
    let source = newcomer.source_rank.unwrap();
    assert!(source != 1 && newcomer.step >= 20, "{newcomer:?}");
    assert!(newcomer.store_prefix.starts_with("enn/1-"), "{newcomer:?}");
    assert_eq!(ended.seat(1, source), ScriptSeat { rank: source, local_rank: source, ..newcomer.clone() });
    // Each step once, but for one that another rank did already.
    for rank in [0, 2, 3] {
        let steps = ended.steps(pids[rank]);
        assert!(steps.windows(2).all(|pair| pair[0] < pair[1]) && steps.len() as u64 >= STEPS - 1, "{rank}: {steps:?}");
    }
    let recovered = ended.end.all(|what| match what {
        EventKind::Recovered { round, lost_steps, from_rank, .. } => {
            Some((round.0, *lost_steps, from_rank.map(|rank| rank.0)))
        }
        _ => None,
    });
    assert!(matches!(recovered[..], [(1, lost, Some(rank))] if lost <= 1 && rank == source), "{recovered:?}");
}

#[test]
fn a_spare_that_has_attached_takes_the_seat() {
    let mut run = start("", 2, &["spares=1"]);
    let pids = run.pids(2);
    let spare = run.spares(1)[0];
    at_work(&run, 0, &[0, 1]);
    kill_9(pids[0]);
    let ended = end(run);
    ended.end.has(0, 2);
    ended.has_sums(2);
    assert_eq!(ended.taken(), [(1, 0, spare, true), (1, 1, pids[1], false)]);
    assert_eq!((ended.started(), ended.seat(1, 0).source_rank), (2, Some(1)));
}

#[test]
fn a_second_death_in_the_recovery_begins_one_more_round() {
    let mut run = start("", 4, &[]);
    let pids = run.pids(4);
    at_work(&run, 0, &[0, 1, 2, 3]);
    kill_9(pids[3]);
    let newcomer = run.pids(1)[0];
    kill_9(newcomer);
    kill_9(pids[0]);
    let ended = end(run);
    assert_eq!(ended.end.code, Some(0), "{}", ended.end.stderr);
    ended.has_sums(4);
    for rank in [1, 2] {
        assert!(ended.steps(pids[rank]).windows(2).all(|pair| pair[0] < pair[1]), "{rank}");
    }
    assert_eq!(ended.end.count(|what| matches!(what, EventKind::RoundFailed { .. })), 0);
}

#[test]
fn where_one_has_not_attached_all_restart_and_the_journal_says_why() {
    let mut run = start("detached=2", 4, &[]);
    let pids = run.pids(4);
    at_work(&run, 0, &[0, 1, 2, 3]);
    kill_9(pids[0]);
    let ended = end(run);
    ended.end.has(0, 2);
    ended.has_sums(4);
    assert_eq!((ended.started(), ended.taken()), (8, vec![]));
    let reason = format!(
        "all workers restart: rank 2 (pid {}) has not attached, so that no worker can be replaced while the others live",
        pids[2]
    );
    assert_eq!(ended.warnings(), [reason]);
    assert_eq!(ended.seat(1, 0).source_rank, None);
}

#[test]
fn none_has_to_attach() {
    let mut run = start("detached=*", 3, &[]);
    run.pids(3);
    let ended = end(run);
    ended.end.has(0, 1);
    ended.has_sums(3);
    assert_eq!((ended.started(), ended.warnings()), (3, vec![]));
}

#[test]
fn garbage_is_refused_in_words_and_costs_the_sender_its_place_in_a_recovery_only() {
    let mut run = start("garbage=1", 2, &[]);
    let pids = run.pids(2);
    at_work(&run, 0, &[0, 1]);
    kill_9(pids[0]);
    let ended = end(run);
    ended.end.has(0, 2);
    ended.has_sums(2);
    let refusal = &ended.files["refused-1"];
    assert!(refusal.starts_with("frame of 5 bytes is not a message of this protocol: "), "{refusal}");
    let warnings = ended.warnings();
    let [detached, restart] = &warnings[..] else { panic!("{warnings:#?}") };
    assert_eq!(*detached, format!("rank 1 (pid {}) is not attached any more: {refusal}", pids[1]));
    assert!(
        restart.starts_with(&format!("all workers restart: rank 1 (pid {}) has not attached", pids[1])),
        "{restart}"
    );
    assert_eq!(ended.started(), 4);
}

#[test]
fn a_script_that_does_not_answer_is_killed_and_replaced() {
    let mut run = start("mute=2", 3, &[]);
    let pids = run.pids(3);
    at_work(&run, 0, &[0, 1, 2]);
    kill_9(pids[1]);
    let ended = end(run);
    ended.end.has(0, 2);
    ended.has_sums(3);
    assert_eq!((ended.started(), ended.taken()), (5, vec![(1, 0, pids[0], false)]));
}

#[test]
fn where_nobody_is_whole_the_processes_live_and_the_state_is_nobodys() {
    let mut run = start("empty=0", 2, &[]);
    let pids = run.pids(2);
    at_work(&run, 0, &[0, 1]);
    kill_9(pids[1]);
    let ended = end(run);
    ended.end.has(0, 2);
    ended.has_sums(2);
    assert_eq!((ended.taken(), ended.seat(1, 1).source_rank), (vec![(1, 0, pids[0], false)], None));
    assert_eq!(ended.end.count(|what| matches!(what, EventKind::RoundFailed { restarting: true, .. })), 1);
}

#[test]
fn a_stop_reaches_all_and_they_end_at_one_step() {
    let mut run = start("", 3, &[]);
    run.pids(3);
    at_work(&run, 0, &[0, 1, 2]);
    run.signal(Signal::SIGTERM);
    let ended = end(run);
    ended.end.has(143, 1);
    let stopped = |rank| &ended.files[&format!("stopped-{rank}")];
    assert!(stopped(0) == stopped(1) && stopped(1) == stopped(2), "{:?}", ended.files);
}

#[test]
fn a_stop_is_a_signal_where_one_has_not_attached() {
    let mut run = start("detached=1", 2, &[]);
    run.pids(2);
    at_work(&run, 0, &[0, 1]);
    run.signal(Signal::SIGTERM);
    let ended = end(run);
    ended.end.has(143, 1);
    assert_eq!(ended.warnings(), Vec::<String>::new());
}

#[test]
fn a_stop_in_a_recovery_lets_the_survivors_save_where_they_stand() {
    let mut run = start("", 3, &[]);
    let pids = run.pids(3);
    at_work(&run, 0, &[0, 1, 2]);
    kill_9(pids[1]);
    run.until(|what| matches!(what, EventKind::WorkerExited { .. }).then_some(()));
    run.signal(Signal::SIGTERM);
    let ended = end(run);
    assert_eq!(ended.end.code, Some(143), "{}\n{:#?}", ended.end.stderr, ended.end.events);
    for rank in [0, 2] {
        let stopped = &ended.files[&format!("stopped-{rank}")];
        let step: u64 = stopped.split(' ').next().unwrap().parse().unwrap();
        assert_eq!(ended.steps(pids[rank]).last(), Some(&step), "no step after the stop");
    }
}
