//! Supervision, with workers that misbehave on command and all start again after a failure: deaths, restarts, signals, hangs,
//! orphans.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test by panicking")]

use enn_common::event::EventKind;
use enn_tests::{
    agent::{self, Run, gone_within, grandchild, kill_9},
    launch::alive,
};
use nix::sys::signal::Signal;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// An agent under which all workers start again after a failure.
fn start(script: &str, world: u32, restarts: u32, grace: f64) -> Run {
    agent::start(crate::PROGRAMS, script, (world, restarts, grace), &[])
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

#[test]
fn workers_that_finish_end_the_run() {
    let run = start("*.*=hello,ready,shard:3,done,exit:0", 3, 0, 5.0);
    let dir = run.dir.path().to_owned();
    let checkpoint = dir.join("checkpoints/step-00000003");
    let log = dir.join("logs/0/2/stderr.log");
    let keep = run.dir.path().to_owned();
    let mut run = run;
    let path = run.until(|what| match what {
        EventKind::CheckpointCommitted { step: 3, path, .. } => Some(path.clone()),
        _ => None,
    });
    assert_eq!(path, checkpoint);
    assert!(log.exists() && keep.join("logs/0/0/stdout.log").exists());
    let end = run.end();
    assert_eq!((end.code, end.rounds()), (Some(0), 1), "{}", end.stderr);
}

#[test]
fn a_killed_worker_is_noticed_within_50_ms_and_the_round_restarted() {
    let script = "0.0=hello,ready,shard:5,listen;0.1=hello,ready,shard:5,hang;1.*=hello,ready,done,exit:0";
    let mut run = start(script, 2, 3, 5.0);
    let pids = run.pids(2);
    run.until(|what| matches!(what, EventKind::CheckpointCommitted { .. }).then_some(()));
    let killed_at = now();
    kill_9(pids[1]);
    let measured = run.until(|what| match what {
        EventKind::WorkerExited { signal: Some(9), seconds_to_notice, .. } => Some(*seconds_to_notice),
        _ => None,
    });
    let noticed = run.seen.last().unwrap().time - killed_at;
    assert!(noticed < 0.05 && measured < 0.05, "noticed after {noticed} s, measured {measured} s");
    let resume = run.until(|what| match what {
        EventKind::RoundStarted { resume_step, .. } => Some(*resume_step),
        _ => None,
    });
    assert_eq!(resume, Some(5));
    let end = run.end();
    assert_eq!((end.code, end.rounds()), (Some(0), 2), "{}", end.stderr);
    assert!(end.cause().starts_with("rank 1 was killed by SIGKILL"), "{}", end.cause());
    println!("noticed {:.3} ms after the kill, measured by the agent {:.3} ms", noticed * 1e3, measured * 1e3);
}

#[test]
fn what_a_worker_left_in_memory_becomes_a_checkpoint_though_it_is_killed() {
    let script = "0.0=hello,ready,staged:5,listen;0.1=hello,ready,await:staged-0,staged:5,kill:SIGKILL;\
                  1.*=hello,ready,done,exit:0";
    let mut run = start(script, 2, 3, 5.0);
    let (path, blocked) = run.until(|what| match what {
        EventKind::CheckpointCommitted { step: 5, path, blocked_seconds, .. } => Some((path.clone(), *blocked_seconds)),
        _ => None,
    });
    assert_eq!(blocked, 0.25);
    for rank in 0..2 {
        let bytes = std::fs::read(path.join(format!("__{rank}_0.distcp"))).unwrap();
        assert!(bytes.windows(14).any(|window| window == b"left in memory"), "rank {rank}");
    }
    let resume = run.until(|what| match what {
        EventKind::RoundStarted { resume_step, .. } => Some(*resume_step),
        _ => None,
    });
    assert_eq!(resume, Some(5), "the next round waits for what is being written");
    assert_eq!(run.end().code, Some(0));
}

#[test]
fn a_last_checkpoint_is_tried_twice_and_a_run_without_it_says_so() {
    let script = "0.0=hello,ready,staged:5,done,exit:0";
    for (fails, committed) in [("fails=1", 1), ("fails=2", 0)] {
        let end = agent::start(crate::PROGRAMS, script, (1, 0, 5.0), &[fails]).end();
        assert_eq!(end.code, Some(0), "{}", end.stderr);
        assert_eq!(end.count(|what| matches!(what, EventKind::CheckpointCommitted { step: 5, .. })), committed);
        let failed =
            |what: &EventKind| matches!(what, EventKind::CheckpointFailed { error, .. } if error == "the disk is full");
        assert_eq!(end.count(failed), 1 - committed);
    }
}

#[test]
fn a_share_without_the_others_is_no_checkpoint() {
    let script =
        "0.0=hello,ready,staged:5,listen;0.1=hello,ready,await:staged-0,kill:SIGKILL;1.*=hello,ready,done,exit:0";
    let run = start(script, 2, 3, 5.0);
    let checkpoints = run.dir.path().join("checkpoints");
    let keep = run.dir.path().to_owned();
    let end = run.end();
    assert_eq!((end.code, end.rounds()), (Some(0), 2), "{}", end.stderr);
    assert_eq!(end.count(|what| matches!(what, EventKind::CheckpointCommitted { .. })), 0);
    assert!(!keep.exists() || std::fs::read_dir(checkpoints).unwrap().next().is_none());
}

#[test]
fn restarts_used_up_end_with_the_cause() {
    let end = start("*.1=hello,ready,stderr:boom,exit:3;*.*=hello,ready,hang", 2, 2, 5.0).end();
    assert_eq!((end.code, end.rounds()), (Some(1), 3));
    assert!(end.stderr.contains("rank 1 exited with code 3") && end.stderr.contains("boom"), "{}", end.stderr);
    assert!(end.stderr.contains("all 2 restarts are used up"), "{}", end.stderr);
}

#[test]
fn a_workers_own_words_are_the_cause() {
    let end =
        start("*.0=hello,ready,failed:no space on /data,exit:1;*.*=hello,ready,ignore_term,hang", 3, 0, 5.0).end();
    assert_eq!(end.code, Some(1));
    assert_eq!(end.cause(), "rank 0: no space on /data");
    assert_eq!(end.count(|what| matches!(what, EventKind::WorkerExited { .. })), 3);
}

#[test]
fn dying_before_ready_is_tried_once_more_only() {
    let end = start("*.0=exit:5;*.*=hello,hang", 2, 9, 5.0).end();
    assert_eq!((end.code, end.rounds()), (Some(1), 2));
    assert!(end.cause().starts_with("rank 0 exited with code 5 without saying why, while starting"), "{}", end.cause());
    assert!(end.stderr.contains("no worker became ready"), "{}", end.stderr);
}

#[test]
fn ending_without_done_is_a_failure() {
    let end = start("*.*=hello,ready,exit:0", 1, 0, 5.0).end();
    assert_eq!(end.code, Some(1));
    assert!(end.cause().contains("before its work was done"), "{}", end.cause());
}

#[test]
fn ctrl_c_lets_workers_checkpoint_and_gives_130_and_sigterm_143() {
    for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143), (Signal::SIGUSR1, 138)] {
        let mut run = start("*.*=hello,ready,wait_stop,shard:9,stopped,exit:0", 2, 3, 20.0);
        let checkpoint = run.dir.path().join("checkpoints/step-00000009");
        run.all_ready(2);
        run.signal(signal);
        run.until(|what| matches!(what, EventKind::CheckpointCommitted { step: 9, .. }).then_some(()));
        assert!(checkpoint.exists());
        let end = run.end();
        assert_eq!((end.code, end.rounds()), (Some(code), 1), "{}", end.stderr);
    }
}

#[test]
fn the_second_signal_kills() {
    let mut run = start("*.*=hello,ready,ignore_term,hang", 2, 3, 600.0);
    let pids = run.pids(2);
    run.all_ready(2);
    run.signal(Signal::SIGINT);
    run.until(|what| matches!(what, EventKind::StopRequested { second: false, .. }).then_some(()));
    assert!(pids.iter().all(|pid| alive(*pid)));
    let began = Instant::now();
    run.signal(Signal::SIGINT);
    let end = run.end();
    assert_eq!(end.code, Some(130));
    assert!(began.elapsed() < Duration::from_secs(5));
    assert!(gone_within(&pids, Duration::from_secs(1)));
}

#[test]
fn a_hang_while_stopping_ends_with_the_grace() {
    let mut run = start("*.*=hello,ready,ignore_term,hang", 2, 3, 0.3);
    let pids = run.pids(2);
    run.all_ready(2);
    let began = Instant::now();
    run.signal(Signal::SIGTERM);
    let end = run.end();
    assert_eq!(end.code, Some(143));
    assert!(began.elapsed() >= Duration::from_millis(300) && began.elapsed() < Duration::from_secs(5));
    assert!(gone_within(&pids, Duration::from_secs(1)));
}

#[test]
fn a_worker_that_did_its_work_but_does_not_end_is_killed_and_forgiven() {
    let end = start("*.0=hello,ready,done,ignore_term,hang;*.*=hello,ready,done,exit:0", 2, 0, 0.3).end();
    assert_eq!(end.code, Some(0), "{}", end.stderr);
    let warned = |what: &EventKind| matches!(what, EventKind::Warned { message } if message.contains("did not end"));
    assert_eq!(end.count(warned), 1);
}

#[test]
fn no_orphan_survives_a_launcher_killed_with_9() {
    let mut run = start("*.*=hello,ready,grandchild,ignore_term,hang", 2, 0, 5.0);
    let mut pids = run.pids(2);
    run.all_ready(2);
    pids.extend([grandchild(run.dir.path(), 0), grandchild(run.dir.path(), 1)]);
    assert!(pids.iter().all(|pid| alive(*pid)));
    run.signal(Signal::SIGKILL);
    assert!(gone_within(&pids, Duration::from_secs(1)), "orphans: {pids:?}");
    run.agent.wait().unwrap();
}

#[test]
fn what_a_dead_worker_started_dies_with_it() {
    let mut run = start("*.*=hello,ready,grandchild,done,exit:0", 1, 0, 5.0);
    run.all_ready(1);
    let pid = grandchild(run.dir.path(), 0);
    let end = run.end();
    assert_eq!(end.code, Some(0), "{}", end.stderr);
    assert!(gone_within(&[pid], Duration::from_secs(1)));
}

#[test]
fn a_foreign_protocol_is_refused_with_the_reason() {
    let end = start("*.*=hello_foreign", 1, 0, 5.0).end();
    assert_eq!(end.code, Some(1));
    let words = format!("enn-worker speaks protocol {}", enn_common::wire::message::PROTOCOL + 1);
    let refused = |what: &EventKind| matches!(what, EventKind::Warned { message } if message.contains(&words));
    assert_eq!(end.count(refused), 1, "{:#?}", end.events);
}

#[test]
fn garbage_from_a_stranger_does_not_disturb_the_round() {
    let end = start("*.*=hello,garbage,ready,done,exit:0", 2, 0, 5.0).end();
    assert_eq!(end.code, Some(0), "{}", end.stderr);
}

#[test]
fn a_flood_of_warnings_is_cut_and_ctrl_c_still_works() {
    let mut run = start("*.0=hello,ready,flood;*.*=hello,ready,hang", 2, 0, 0.5);
    run.all_ready(2);
    run.signal(Signal::SIGINT);
    let end = run.end();
    assert_eq!(end.code, Some(130), "{}", end.stderr);
    let warnings = end.count(|what| matches!(what, EventKind::Warned { message } if message.contains("xxx")));
    assert!((1..=100).contains(&warnings), "{warnings} warnings");
}

#[test]
fn leftovers_of_a_dead_attempt_are_removed_and_checkpoints_kept() {
    let script =
        "0.0=hello,ready,shard:4,hang;0.1=hello,ready,shard:4,sleep_ms:50,kill:SIGKILL;1.*=hello,ready,done,exit:0";
    let mut run = start(script, 2, 1, 5.0);
    run.until(|what| matches!(what, EventKind::CheckpointCommitted { .. }).then_some(()));
    let checkpoints = run.dir.path().join("checkpoints");
    std::fs::create_dir_all(checkpoints.join(".step-00000008.tmp-0-dead")).unwrap();
    run.until(|what| matches!(what, EventKind::RoundStarted { resume_step: Some(4), .. }).then_some(()));
    assert!(!checkpoints.join(".step-00000008.tmp-0-dead").exists());
    assert!(checkpoints.join("step-00000004").exists());
    assert_eq!(run.end().code, Some(0));
}
