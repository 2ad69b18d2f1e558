//! Faults that 0.1 had, on real processes with workers that misbehave on command: each is cured.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test's helpers fail by panicking, and say what they skip"
)]

use enn_common::event::EventKind;
use enn_tests::agent::{self, End, Run, kill_9};
use nix::{
    sys::{
        signal::{Signal, kill},
        stat::Mode,
    },
    unistd::{Pid, mkfifo},
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

const GRACE_S: f64 = 20.0;
/// A worker that hangs costs its `hang` of 1 s, and no deadline of minutes.
const HANG_NOTICED_MAX: Duration = Duration::from_secs(15);
/// A run that is to stop waits for a commit that comes no further as long as for its workers.
const COMMIT_WAIT_MAX: Duration = Duration::from_secs(30);
/// Descriptors that an agent has from before its workers.
const DESCRIPTORS_KEPT: u32 = 16;
/// A process that survives SIGKILL is waited for 10 s.
const UNKILLABLE_MAX: Duration = Duration::from_secs(25);

fn start(script: &str, world: u32, options: &[&str]) -> Run {
    start_with(script, (world, 3, GRACE_S), options)
}

fn start_with(script: &str, numbers: (u32, u32, f64), options: &[&str]) -> Run {
    agent::start(crate::PROGRAMS, script, numbers, &[&["policy=reform"], options].concat())
}

fn signal(pid: i32, signal: Signal) {
    kill(Pid::from_raw(pid), signal).unwrap();
}

fn round_started(run: &mut Run, wanted: u64) {
    run.until(|what| matches!(what, EventKind::RoundStarted { round, .. } if round.0 == wanted).then_some(()));
}

/// Steps of the checkpoints, in order.
fn committed(end: &End) -> Vec<u64> {
    end.all(|what| match what {
        EventKind::CheckpointCommitted { step, .. } => Some(*step),
        _ => None,
    })
}

/// The survivors of a death saved where they stood: this step, and no further one.
#[track_caller]
fn saved_where_it_stood(end: &End, step: u64, code: i32) {
    assert_eq!(end.code, Some(code), "{}\n{:#?}", end.stderr, end.events);
    assert_eq!(committed(end), [step], "{:#?}", end.events);
    let further = |what: &EventKind| matches!(what, EventKind::Stepped { step: done, .. } if *done > step);
    assert_eq!(end.count(further), 0, "{:#?}", end.events);
}

#[test]
fn a_worker_that_hangs_before_it_is_ready_is_replaced() {
    let script =
        "0.0=hello,ready,phase:4,halt:0;0.1=hello,hang;1.0=ready,step:1,done,exit:0;1.1=hello,ready,done,exit:0";
    let began = Instant::now();
    let end = start(script, 2, &["hang=1"]).end();
    end.has(0, 2);
    assert!(began.elapsed() < HANG_NOTICED_MAX, "{:?}", began.elapsed());
}

#[test]
fn a_replacement_that_hangs_before_it_is_ready_is_replaced_and_the_state_is_kept() {
    let script = "0.0=hello,ready,step:3,halt:3;0.1=hello,ready,hang;1.0=ready,phase:4,halt:3;1.1=hello,hang;\
                  2.0=ready,step:4,done,exit:0;2.1=hello,ready,received:3,done,exit:0";
    let mut run = start(script, 2, &["hang=1"]);
    let pids = run.pids(2);
    run.until(|what| matches!(what, EventKind::Stepped { step: 3, .. }).then_some(()));
    let began = Instant::now();
    kill_9(pids[1]);
    let end = run.end();
    end.has(0, 3);
    assert!(began.elapsed() < HANG_NOTICED_MAX, "{:?}", began.elapsed());
    let resume = end.all(|what| match what {
        EventKind::RoundStarted { resume_step, .. } => Some(*resume_step),
        _ => None,
    });
    assert_eq!(resume, [None, Some(3), Some(3)]);
}

#[test]
fn a_worker_that_waits_for_one_that_still_starts_does_not_hang() {
    let script = "0.0=hello,ready,phase:4,await:go,step:1,done,exit:0;0.1=await:go,hello,ready,done,exit:0";
    let mut run = start(script, 2, &["hang=0.5"]);
    run.all_ready(1);
    std::thread::park_timeout(Duration::from_secs(2));
    run.mark("go");
    run.end().has(0, 1);
}

/// A spare that was stopped when it was warm has the seat of a dead worker in round 1.
fn seated_spare_that_hangs(script: &str, options: &[&str]) -> Run {
    let mut run = start(script, 2, &[&["spares=1"], options].concat());
    let pids = run.pids(2);
    let spare = run.spares(1)[0];
    run.mark("go");
    run.until(|what| matches!(what, EventKind::Stepped { step: 3, .. }).then_some(()));
    signal(spare, Signal::SIGSTOP);
    kill_9(pids[1]);
    run.until(|what| matches!(what, EventKind::SeatTaken { spare: true, .. }).then_some(()));
    run
}

#[test]
fn a_spare_that_hangs_when_it_is_needed_is_replaced() {
    let script = "0.0=hello,ready,await:go,step:3,halt:3;0.1=hello,ready,hang;spare.*=hello,warm,seat;1.0=ready,phase:4,halt:3;\
                  1.1=hello,ready,hang;2.0=ready,step:4,done,exit:0;2.1=hello,ready,received:3,done,exit:0";
    let began = Instant::now();
    let end = seated_spare_that_hangs(script, &["hang=1"]).end();
    end.has(0, 3);
    assert!(began.elapsed() < 2 * HANG_NOTICED_MAX, "{:?}", began.elapsed());
}

#[test]
fn a_stop_while_a_newcomer_hangs_saves_what_the_survivor_has() {
    let script = "0.0=hello,ready,await:go,step:3,halt_through_stop:3;0.1=hello,ready,hang;spare.*=hello,warm,seat;\
                  *.0=saves:3,ready,halt_through_stop:3;*.*=hello,ready,hang";
    let run = seated_spare_that_hangs(script, &[]);
    let began = Instant::now();
    run.signal(Signal::SIGTERM);
    let end = run.end();
    saved_where_it_stood(&end, 3, 143);
    assert!(began.elapsed() < Duration::from_secs_f64(GRACE_S), "{:?}", began.elapsed());
}

#[test]
fn a_stop_during_a_recovery_saves_where_the_survivors_stand() {
    let script = "0.0=hello,ready,await:go,step:7,halt_through_stop:7;0.1=hello,ready,halt_through_stop:7;0.2=hello,ready,hang;\
                  *.2=hello,hang;*.*=saves:7,ready,halt_through_stop:7";
    for wait_ms in [0, 1, 5, 30, 100] {
        let mut run = start(script, 3, &[]);
        let pids = run.pids(3);
        run.all_ready(3);
        run.mark("go");
        run.until(|what| matches!(what, EventKind::Stepped { step: 7, .. }).then_some(()));
        kill_9(pids[2]);
        std::thread::park_timeout(Duration::from_millis(wait_ms));
        run.signal(Signal::SIGTERM);
        let end = run.end();
        saved_where_it_stood(&end, 7, 143);
        assert_eq!(end.worlds().last(), Some(&2), "after {wait_ms} ms: {:#?}", end.events);
    }
}

#[test]
fn a_stop_while_a_replacement_starts_saves_where_the_survivor_stands() {
    let script = "0.0=hello,ready,step:7,halt_through_stop:7;0.1=hello,ready,hang;\
                  *.0=saves:7,ready,halt_through_stop:7;1.1=await:never,hello,ready,hang";
    let mut run = start(script, 2, &[]);
    let pids = run.pids(2);
    run.until(|what| matches!(what, EventKind::Stepped { step: 7, .. }).then_some(()));
    kill_9(pids[1]);
    round_started(&mut run, 1);
    run.signal(Signal::SIGTERM);
    saved_where_it_stood(&run.end(), 7, 143);
}

/// Processes that not even SIGKILL ends, by the freezer of cgroup v1, until it is dropped.
struct Frozen(PathBuf);

impl Frozen {
    /// Freezes a process; `None`, with a word, where there is no such freezer.
    fn process(pid: i32) -> Option<Self> {
        let dir = Path::new("/sys/fs/cgroup/freezer").join(format!("enn-test-{}-{pid}", std::process::id()));
        if let Err(error) = fs::create_dir(&dir) {
            println!("skipped: no process can be frozen here: {}: {error}", dir.display());
            return None;
        }
        let frozen = Self(dir);
        fs::write(frozen.0.join("cgroup.procs"), pid.to_string()).unwrap();
        fs::write(frozen.0.join("freezer.state"), "FROZEN").unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        while fs::read_to_string(frozen.0.join("freezer.state")).unwrap().trim() != "FROZEN" {
            assert!(Instant::now() < deadline, "process {pid} does not freeze");
            std::thread::park_timeout(Duration::from_millis(5));
        }
        Some(frozen)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _gone = fs::write(self.0.join("freezer.state"), "THAWED");
        let deadline = Instant::now() + Duration::from_secs(10);
        // The process has to be gone.
        while fs::remove_dir(&self.0).is_err() && Instant::now() < deadline {
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }
}

/// Ends a run in which process `pid` is frozen, within the time for that; the end names the process.
#[track_caller]
fn end_without(frozen: Frozen, pid: i32, mut run: Run) -> End {
    let began = Instant::now();
    while run.event().is_some() {}
    let elapsed = began.elapsed();
    drop(frozen);
    let end = run.end();
    assert!(elapsed < UNKILLABLE_MAX, "{elapsed:?}: {:#?}", end.events);
    let names = |what: &EventKind| matches!(what, EventKind::Warned { message } if message.contains(&pid.to_string()));
    assert!(end.count(names) > 0 || end.stderr.contains(&pid.to_string()), "{}\n{:#?}", end.stderr, end.events);
    end
}

#[test]
fn a_worker_that_cannot_be_killed_does_not_keep_a_stop_from_its_end() {
    let script = "*.0=hello,ready,wait_stop,stopped,exit:0;*.1=hello,ready,hang";
    let mut run = start_with(script, (2, 3, 0.5), &[]);
    let pids = run.pids(2);
    run.all_ready(2);
    let Some(frozen) = Frozen::process(pids[1]) else { return };
    run.signal(Signal::SIGTERM);
    let end = end_without(frozen, pids[1], run);
    assert_eq!(end.code, Some(143), "{}\n{:#?}", end.stderr, end.events);
}

#[test]
fn a_worker_that_cannot_be_killed_does_not_hide_the_cause() {
    let script = "*.0=hello,ready,await:go,failed:no space on /data,exit:1;*.1=hello,ready,halt:0";
    let mut run = start_with(script, (2, 0, 0.5), &[]);
    let pids = run.pids(2);
    run.all_ready(2);
    let Some(frozen) = Frozen::process(pids[1]) else { return };
    run.mark("go");
    let end = end_without(frozen, pids[1], run);
    assert_eq!(end.code, Some(1), "{}\n{:#?}", end.stderr, end.events);
    assert!(end.stderr.contains("no space on /data"), "{}", end.stderr);
}

#[test]
fn a_run_goes_on_without_a_worker_that_hangs_and_cannot_be_killed() {
    let script =
        "0.0=hello,ready,phase:4,halt:0;0.1=hello,ready,phase:3,hang;1.0=ready,step:1,done,exit:0;spare.*=hang";
    let mut run = start_with(script, (2, 3, GRACE_S), &["min=1", "hang=2"]);
    let pids = run.pids(2);
    run.all_ready(2);
    let Some(frozen) = Frozen::process(pids[1]) else { return };
    let end = end_without(frozen, pids[1], run);
    end.has(0, 2);
    assert_eq!(end.worlds(), [2, 1], "its place is not given away");
}

#[test]
fn a_log_on_a_disk_that_hangs_delays_a_recovery_and_nothing_else() {
    let script = "0.0=hello,ready,step:3,halt:3;0.1=hello,ready,hang;1.0=ready,step:4,done,exit:0;\
                  1.1=hello,ready,received:3,done,exit:0";
    let mut run = start(script, 2, &[]);
    let pids = run.pids(2);
    run.until(|what| matches!(what, EventKind::Stepped { step: 3, .. }).then_some(()));
    // Whoever opens it to read waits for somebody who writes.
    let log = run.dir.path().join("logs/0/1/stderr.log");
    fs::remove_file(&log).unwrap();
    mkfifo(&log, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    let began = Instant::now();
    kill_9(pids[1]);
    let end = run.end();
    end.has(0, 2);
    assert!(began.elapsed() < UNKILLABLE_MAX, "{:?}", began.elapsed());
    assert!(end.left()[0].starts_with("rank 1 was killed by SIGKILL"), "{:?}", end.left());
}

#[test]
fn a_commit_on_a_disk_that_hangs_does_not_keep_a_stop_from_its_end() {
    let mut run =
        start_with("0.0=hello,ready,step:5,staged:5,wait_stop,stopped,exit:0", (1, 3, 1.0), &["fails=always"]);
    run.all_ready(1);
    run.signal(Signal::SIGTERM);
    // A commit that comes no further is waited for, for it is all that is left of the run; but not without end.
    while run.event_within(COMMIT_WAIT_MAX).is_some() {}
    let end = run.end();
    assert_ne!(end.code, Some(0), "{:#?}", end.events);
    assert!(committed(&end).is_empty(), "{:#?}", end.events);
    // What is lost is said.
    let says = |what: &EventKind| match what {
        EventKind::CheckpointFailed { step, .. } => *step == 5,
        EventKind::Warned { message } => message.contains("step 5"),
        _ => false,
    };
    assert!(end.count(says) > 0, "{}\n{:#?}", end.stderr, end.events);
}

/// Lets a process have no descriptor that it does not have, also when it closes others. It may still wait for those that it has.
fn exhaust_descriptors(pid: u32) {
    let is_open = |number: &u32| fs::symlink_metadata(format!("/proc/{pid}/fd/{number}")).is_ok();
    let most = (0..).find(|number| !is_open(number)).unwrap().min(DESCRIPTORS_KEPT);
    let limit = format!("--nofile={most}:{most}");
    let status = Command::new("prlimit").args(["--pid", &pid.to_string(), &limit]).status().unwrap();
    assert!(status.success(), "prlimit {limit}");
}

#[test]
fn without_descriptors_for_a_replacement_the_survivor_saves_and_the_end_says_why() {
    let script = "0.0=hello,ready,step:3,halt_through_stop:3;0.1=hello,ready,hang;\
                  *.0=saves:3,ready,halt_through_stop:3;*.1=hello,ready,hang";
    let mut run = start(script, 2, &[]);
    let pids = run.pids(2);
    run.until(|what| matches!(what, EventKind::Stepped { step: 3, .. }).then_some(()));
    exhaust_descriptors(run.agent.id());
    kill_9(pids[1]);
    let end = run.end();
    saved_where_it_stood(&end, 3, 1);
    assert!(end.stderr.contains("Too many open files"), "{}", end.stderr);
}
