//! Runs that do not stop, with workers that misbehave on command: survivors go on in a new round, spares take seats, rounds
//! shrink and grow.
//!
//! A script has a line for each round and rank. `halt` waits until the round is over; the worker then goes on with the line of
//! its next seat. "Nobody is left" is asserted at the end of every run.

use enn_common::event::EventKind;
use enn_tests::agent::{self, Dice, End, Run, kill_9};
use nix::sys::signal::Signal;
use std::time::{Duration, Instant};

const GRACE_S: f64 = 20.0;

fn start(script: &str, world: u32, options: &[&str]) -> Run {
    start_with(script, (world, 3, GRACE_S), options)
}

fn start_with(script: &str, numbers: (u32, u32, f64), options: &[&str]) -> Run {
    agent::start(crate::PROGRAMS, script, numbers, &[&["policy=reform"], options].concat())
}

/// (round, rank, pid, spare) of the seats that living processes took.
fn seats(end: &End) -> Vec<(u64, u32, i32, bool)> {
    end.all(|what| match what {
        EventKind::SeatTaken { round, rank, pid, spare, .. } => Some((round.0, rank.0, pid.cast_signed(), *spare)),
        _ => None,
    })
}

fn recovered(what: &EventKind) -> Option<(u64, f64, u64, Option<u32>)> {
    match what {
        EventKind::Recovered { round, seconds, lost_steps, from_rank } => {
            Some((round.0, *seconds, *lost_steps, from_rank.map(|rank| rank.0)))
        }
        _ => None,
    }
}

fn started(end: &End) -> usize {
    end.count(|what| matches!(what, EventKind::WorkerStarted { .. }))
}

fn restarts(end: &End) -> usize {
    end.count(|what| matches!(what, EventKind::RoundFailed { restarting: true, .. }))
}

#[test]
fn a_death_costs_one_process_and_no_restart() {
    let script = "0.0=hello,ready,step:7,halt:7;0.1=hello,ready,hang;1.0=ready,step:8,done,exit:0;\
                  1.1=hello,ready,received:7,done,exit:0";
    let mut run = start(script, 2, &[]);
    let pids = run.pids(2);
    run.until(|what| matches!(what, EventKind::Stepped { step: 7, .. }).then_some(()));
    kill_9(pids[1]);
    let dir = run.dir.path().to_owned();
    let recovery = run.until(recovered);
    assert!(recovery.1 < 5.0, "{recovery:?}");
    assert_eq!((recovery.0, recovery.2, recovery.3), (1, 0, Some(0)));
    assert!(dir.join("logs/1/0/stderr.log").exists() && dir.join("logs/1/1/stderr.log").exists());
    let end = run.end();
    end.has(0, 2);
    assert_eq!((started(&end), restarts(&end)), (3, 0));
    assert_eq!(seats(&end), [(1, 0, pids[0], false)]);
    assert!(end.left()[0].starts_with("rank 1 was killed by SIGKILL"), "{:?}", end.left());
    let resume = end.all(|what| match what {
        EventKind::RoundStarted { resume_step, .. } => Some(*resume_step),
        _ => None,
    });
    assert_eq!(resume, [None, Some(7)]);
}

#[test]
fn a_spare_takes_the_seat_and_another_one_is_started() {
    let script = "0.0=hello,ready,step:3,halt:3;0.1=hello,ready,hang;spare.*=hello,warm,seat;\
                  1.0=ready,wait_stop,stopped,exit:0;1.1=ready,wait_stop,stopped,exit:0";
    let mut run = start(script, 2, &["spares=1"]);
    let pids = run.pids(2);
    let spare = run.spares(1)[0];
    kill_9(pids[1]);
    let pid = run.until(|what| match what {
        EventKind::SeatTaken { round, rank, pid, spare: true, .. } => Some((round.0, rank.0, pid.cast_signed())),
        _ => None,
    });
    assert_eq!(pid, (1, 1, spare));
    run.all_ready(2);
    run.spares(1);
    run.signal(Signal::SIGTERM);
    let end = run.end();
    end.has(143, 2);
    assert_eq!((started(&end), end.count(|what| matches!(what, EventKind::SpareStarted { .. }))), (2, 2));
}

#[test]
fn two_deaths_at_once_end_one_round() {
    // A spare that has a seat said hello before.
    let script = "0.2=hello,ready,step:3,halt:3;0.*=hello,ready,hang;spare.*=hello,warm,seat;1.1=hello,ready,done,exit:0;\
                  1.*=ready,done,exit:0";
    let mut run = start(script, 3, &["spares=1"]);
    let pids = run.pids(3);
    run.spares(1);
    kill_9(pids[0]);
    kill_9(pids[1]);
    let end = run.end();
    end.has(0, 2);
    let taken: Vec<_> = seats(&end).into_iter().map(|(_, rank, _, spare)| (rank, spare)).collect();
    assert_eq!((taken, started(&end)), (vec![(0, true), (2, false)], 4));
    assert_eq!((end.left().len(), restarts(&end)), (1, 0));
}

#[test]
fn a_death_during_regrouping_begins_one_more_round() {
    // The replacement dies before it has a round, and then in its first one.
    let script = "0.0=hello,ready,step:3,halt:3;0.1=hello,ready,await:go,kill:SIGKILL;1.0=halt:3;1.1=kill:SIGKILL;2.0=halt:3;\
                  2.1=hello,kill:SIGKILL;3.0=ready,step:4,done,exit:0;3.1=hello,ready,done,exit:0";
    let mut run = start(script, 2, &[]);
    run.all_ready(2);
    run.mark("go");
    let end = run.end();
    end.has(0, 4);
    assert_eq!((end.left().len(), restarts(&end), started(&end)), (3, 0, 5));
    let recoveries = end.all(recovered);
    assert_eq!((recoveries.len(), recoveries[0].0, recoveries[0].3), (1, 3, Some(0)));
}

#[test]
fn a_replacement_that_still_starts_keeps_its_place_when_another_worker_dies() {
    let script = "0.2=hello,ready,hang;0.*=hello,ready,halt:0;1.0=ready,halt:0;1.1=await:die,kill:SIGKILL;1.2=await:go,hello;\
                  2.1=hello,ready,done,exit:0;2.*=ready,done,exit:0";
    let mut run = start(script, 3, &[]);
    let pids = run.pids(3);
    run.all_ready(3);
    kill_9(pids[2]);
    let replacement = run.pids(1)[0];
    // Rank 0 works in the round that rank 1 dies in.
    run.all_ready(1);
    run.mark("die");
    run.until(|what| matches!(what, EventKind::RoundStarted { round, .. } if round.0 == 2).then_some(()));
    run.mark("go");
    let end = run.end();
    end.has(0, 3);
    let kept = |round, rank: u32| (round, rank, pids[rank as usize], false);
    assert_eq!(seats(&end), [kept(1, 0), kept(1, 1), kept(2, 0), (2, 2, replacement, true)]);
    assert_eq!((started(&end), restarts(&end)), (5, 0));
}

#[test]
fn a_survivor_that_does_not_leave_is_killed_and_the_others_go_on() {
    let script = "0.0=hello,ready,step:3,halt:3;0.1=hello,ready,hang;0.2=hello,ready,hang;1.0=ready,step:4,done,exit:0;\
                  1.*=hello,ready,done,exit:0";
    let mut run = start(script, 3, &[]);
    let pids = run.pids(3);
    run.all_ready(3);
    let began = Instant::now();
    kill_9(pids[2]);
    let end = run.end();
    end.has(0, 2);
    assert!(began.elapsed() >= Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!((seats(&end), started(&end)), (vec![(1, 0, pids[0], false)], 5));
    assert!(end.left()[0].starts_with("rank 2 was killed"), "{:?}", end.left());
}

#[test]
fn spares_that_die_are_replaced_and_end_no_run() {
    let script =
        "0.*=hello,ready,wait_stop,stopped,exit:0;spare.1=hello,kill:SIGKILL;spare.2=exit:3;spare.*=hello,warm,seat";
    let mut run = start(script, 1, &["spares=2"]);
    run.spares(2);
    run.signal(Signal::SIGINT);
    let end = run.end();
    end.has(130, 1);
    let ended = end.all(|what| match what {
        EventKind::SpareEnded { code, signal, .. } => Some((*code, *signal)),
        _ => None,
    });
    assert!(ended.contains(&(None, Some(9))) && ended.contains(&(Some(3), None)), "{ended:?}");
}

#[test]
fn when_all_die_the_newest_checkpoint_is_taken_and_that_is_a_restart() {
    let script = "0.*=hello,ready,shard:5,hang;1.*=hello,ready,step:6,done,exit:0";
    let mut run = start(script, 2, &[]);
    let pids = run.pids(2);
    run.until(|what| matches!(what, EventKind::CheckpointCommitted { .. }).then_some(()));
    kill_9(pids[0]);
    kill_9(pids[1]);
    let end = run.end();
    end.has(0, 2);
    let resume = end.all(|what| match what {
        EventKind::RoundStarted { resume_step, attempt, .. } => Some((*resume_step, *attempt)),
        _ => None,
    });
    assert_eq!((resume, restarts(&end)), (vec![(None, 0), (Some(5), 1)], 1));
    assert_eq!(end.all(recovered)[0].3, None);
}

#[test]
fn failures_without_a_step_between_them_use_the_budget_up_and_the_survivor_saves() {
    let script = "0.0=hello,ready,step:3,halt:3;3.0=ready,wait_stop,shard:4,stopped,exit:0;*.0=ready,halt:3;\
                  *.1=hello,ready,await:go,failed:no such device,exit:1";
    let mut run = start_with(script, (2, 2, GRACE_S), &[]);
    run.all_ready(2);
    run.mark("go");
    let step = run.until(|what| match what {
        EventKind::CheckpointCommitted { step, .. } => Some(*step),
        _ => None,
    });
    let end = run.end();
    end.has(1, 4);
    assert_eq!((step, end.cause(), restarts(&end)), (4, "rank 1: no such device".into(), 0));
    assert!(end.stderr.contains("no step was done between 3 failures in a row"), "{}", end.stderr);
    assert_eq!(end.worlds(), [2, 2, 2, 1]);
}

#[test]
fn failures_with_steps_between_them_use_nothing_up() {
    let rounds = 6;
    let line = |n: usize| {
        let hello = if n == 0 { "hello," } else { "" };
        let step = n + 1;
        format!("{n}.0={hello}ready,step:{step},halt:{step};{n}.1=hello,ready,await:{n},kill:SIGKILL;")
    };
    let lines: String = (0..rounds).map(line).collect();
    let script = format!("{lines}{rounds}.0=ready,done,exit:0;{rounds}.1=hello,ready,done,exit:0");
    let mut run = start_with(&script, (2, 1, GRACE_S), &[]);
    for round in 0..rounds {
        run.until(|what| matches!(what, EventKind::Stepped { .. }).then_some(()));
        run.mark(&round.to_string());
    }
    let end = run.end();
    end.has(0, rounds + 1);
    assert_eq!((end.left().len(), restarts(&end)), (rounds, 0));
}

#[test]
fn a_round_shrinks_at_once_and_grows_when_the_missing_worker_is_warm() {
    let script = "0.0=hello,ready,hang;0.1=hello,ready,step:3,halt:3;0.2=hello,ready,halt:3;spare.*=hello,warm,seat;\
                  1.0=ready,step:5,halt:5;1.1=ready,halt:5;2.*=ready,step:6,done,exit:0";
    let mut run = start(script, 3, &["min=1"]);
    let pids = run.pids(3);
    run.all_ready(3);
    kill_9(pids[0]);
    let end = run.end();
    end.has(0, 3);
    assert_eq!(end.worlds(), [3, 2, 3]);
    let taken = seats(&end);
    assert_eq!(taken[..2], [(1, 0, pids[1], false), (1, 1, pids[2], false)]);
    assert_eq!((taken[2].1, taken[2].3), (0, true), "the vacant index is filled");
    assert_eq!(taken[3..], [(2, 1, pids[1], false), (2, 2, pids[2], false)]);
    assert_eq!(end.left()[1], "1 of 1 missing workers can join");
    assert_eq!(restarts(&end), 0);
}

#[test]
fn below_the_minimum_the_round_waits_for_the_replacements() {
    let script =
        "0.0=hello,ready,step:3,halt:3;0.*=hello,ready,hang;1.0=ready,step:4,done,exit:0;1.*=hello,ready,done,exit:0";
    let mut run = start(script, 3, &["min=2"]);
    let pids = run.pids(3);
    run.all_ready(3);
    kill_9(pids[1]);
    kill_9(pids[2]);
    let end = run.end();
    end.has(0, 2);
    assert_eq!((end.worlds(), started(&end)), (vec![3, 3], 5));
}

#[test]
fn a_worker_that_leaves_by_itself_is_met_again() {
    let script = "0.0=hello,ready,step:3,halt:3;0.1=hello,ready,step:3,halted:3,seat;*.*=ready,step:4,done,exit:0";
    let end = start(script, 2, &[]).end();
    end.has(0, 2);
    assert_eq!(end.left(), ["rank 1 left the round by itself, after 3 steps"]);
    assert_eq!(started(&end), 2);
}

#[test]
fn a_worker_that_hangs_is_taken_for_dead() {
    // 3 computes, 4 waits for the others.
    let script = "0.0=hello,ready,phase:4,halt:0;0.1=hello,ready,phase:3,hang;1.0=ready,step:1,done,exit:0;\
                  1.1=hello,ready,done,exit:0";
    let began = Instant::now();
    let end = start(script, 2, &["hang=1"]).end();
    end.has(0, 2);
    assert!(began.elapsed() >= Duration::from_secs(1));
    assert_eq!(end.count(|what| matches!(what, EventKind::HangDetected { .. })), 1);
    assert!(
        end.left()[0].contains("made no progress for 1 s, nor did the others, while computing"),
        "{:?}",
        end.left()
    );
}

#[test]
fn a_long_step_with_signs_of_life_is_no_hang() {
    let script = "*.*=hello,ready,beat_ms:1500,step:1,done,exit:0";
    let end = start(script, 2, &["hang=0.5"]).end();
    end.has(0, 1);
    assert_eq!(end.count(|what| matches!(what, EventKind::HangDetected { .. })), 0);
}

#[test]
fn a_stop_lets_the_survivors_of_a_death_save() {
    // The signal comes while they work; then one dies, and the other saves alone.
    let script = "0.0=hello,ready,halt_through_stop:3;0.1=hello,ready,wait_stop,kill:SIGKILL;\
                  1.0=ready,wait_stop,shard:4,stopped,exit:0";
    let mut run = start(script, 2, &["spares=1"]);
    run.all_ready(2);
    run.signal(Signal::SIGTERM);
    let end = run.end();
    end.has(143, 2);
    assert_eq!((end.worlds(), started(&end)), (vec![2, 1], 2));
    assert_eq!(end.count(|what| matches!(what, EventKind::CheckpointCommitted { step: 4, .. })), 1);
}

#[test]
fn a_stop_while_the_round_is_being_left_saves_and_a_second_one_kills() {
    // Rank 1 does not leave: the first signal comes while it is waited for.
    let script = "0.0=hello,ready,halt_through_stop:3;0.*=hello,ready,hang;1.0=ready,wait_stop,shard:4,stopped,exit:0";
    for (second, code, rounds) in [(false, 143, 2), (true, 143, 1)] {
        let mut run = start(script, 3, &[]);
        let pids = run.pids(3);
        run.all_ready(3);
        kill_9(pids[2]);
        run.until(|what| matches!(what, EventKind::WorkerExited { .. }).then_some(()));
        run.signal(Signal::SIGTERM);
        run.until(|what| matches!(what, EventKind::StopRequested { .. }).then_some(()));
        if second {
            run.signal(Signal::SIGTERM);
        }
        let began = Instant::now();
        let end = run.end();
        end.has(code, rounds);
        assert!(second == (began.elapsed() < Duration::from_secs(5)), "{:?}", began.elapsed());
    }
}

#[test]
fn a_stop_while_others_are_to_join_ends_the_run() {
    // Round 1 is asked to let the spare in, and does not hear it.
    let script = "0.0=hello,ready,step:1,halt:1;0.1=hello,ready,hang;spare.*=hello,warm,seat;1.0=ready,wait_stop,shard:2,stopped,exit:0";
    let mut run = start(script, 2, &["min=1"]);
    let pids = run.pids(2);
    run.until(|what| matches!(what, EventKind::Stepped { .. }).then_some(()));
    kill_9(pids[1]);
    run.spares(1);
    run.signal(Signal::SIGINT);
    let end = run.end();
    end.has(130, 2);
    assert_eq!(end.count(|what| matches!(what, EventKind::CheckpointCommitted { step: 2, .. })), 1);
}

#[test]
fn no_orphan_survives_a_launcher_killed_with_9() {
    let script = "0.0=hello,ready,step:3,halt:3;0.1=hello,ready,hang;spare.*=hello,warm,hang;1.*=hang";
    let mut run = start(script, 2, &["spares=2"]);
    let mut pids = run.pids(2);
    pids.extend(run.spares(2));
    run.signal(Signal::SIGKILL);
    assert!(agent::gone_within(&pids, Duration::from_secs(1)), "orphans: {pids:?}");
    assert_eq!(run.agent.wait().unwrap().code(), None);
}

#[test]
fn dying_before_ready_is_tried_once_more_only() {
    let end = start_with("*.0=exit:5;*.*=hello,halt:0", (2, 9, GRACE_S), &[]).end();
    end.has(1, 2);
    assert!(end.stderr.contains("no worker became ready"), "{}", end.stderr);
    assert!(end.cause().starts_with("rank 0 exited with code 5"), "{}", end.cause());
}

#[test]
fn the_last_ones_end_forgives_nobody() {
    // Rank 1 is done when rank 0 dies: nobody is left to go on with.
    let script = "0.0=hello,ready,step:3,await:go,kill:SIGKILL;0.1=hello,ready,done,exit:0;1.*=hello,ready,done,exit:0";
    let mut run = start(script, 2, &[]);
    run.until(|what| matches!(what, EventKind::WorkerExited { code: Some(0), .. }).then_some(()));
    run.mark("go");
    let end = run.end();
    end.has(0, 2);
    assert_eq!((restarts(&end), started(&end)), (1, 4));
}

#[test]
fn deaths_at_any_time_leave_a_run_that_stops_when_asked() {
    for seed in 0..12 {
        let mut dice = Dice(seed);
        let min = ["min=1", "min=3"][dice.below(2)];
        let spares = ["spares=0", "spares=2"][dice.below(2)];
        let script = "spare.*=hello,warm,seat;*.*=hello,ready,run";
        let mut run = start_with(script, (3, 100, GRACE_S), &[min, spares]);
        let mut living = run.pids(3);
        // From here on the start-up is known to be right.
        run.until(|what| matches!(what, EventKind::WorkerReady { .. }).then_some(()));
        for _ in 0..15 {
            // Some events later, which may be in the middle of anything.
            for _ in 0..=dice.below(12) {
                let Some(event) = run.event() else { panic!("seed {seed}: the run ended: {:#?}", run.seen) };
                match event.what {
                    EventKind::WorkerStarted { pid, .. } | EventKind::SpareStarted { pid, .. } => {
                        living.push(pid.cast_signed())
                    }
                    EventKind::WorkerExited { pid, .. }
                    | EventKind::SpareEnded { pid, .. }
                    | EventKind::WorkerDismissed { pid, .. } => {
                        living.retain(|living| *living != pid.cast_signed());
                    }
                    _ => {}
                }
            }
            for _ in 0..=dice.below(2) {
                if !living.is_empty() {
                    kill_9(living.swap_remove(dice.below(living.len())));
                }
            }
        }
        run.signal(Signal::SIGTERM);
        let end = run.end();
        assert_eq!(end.code, Some(143), "seed {seed}: {}\n{:#?}", end.stderr, end.events);
        let rounds = end.rounds();
        let left = end.left().len() + restarts(&end);
        // After the stop no round follows, except one in which survivors save.
        assert!([left, left + 1].contains(&rounds), "seed {seed}: {rounds} rounds, {left} ended: {:#?}", end.events);
    }
}
