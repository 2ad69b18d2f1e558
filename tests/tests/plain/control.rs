//! What makes a run regroup without a failure, with workers that do as their script says: memory that is short, stragglers, and
//! what people ask for at the agent's door.
//!
//! Scripts are as in `reform`. "Nobody is left" is asserted at the end of every run.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test by panicking")]

use enn_cluster::supervise::{AskError, Asker};
use enn_common::{event::EventKind, wire::command::Request};
use enn_tests::agent::{self, Dice, End, Run, kill_9};
use nix::sys::signal::Signal;
use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

const GRACE_S: f64 = 20.0;
/// Everybody works until told otherwise.
const WORK: &str = "spare.*=hello,warm,seat;*.*=hello,ready,run";

fn start(script: &str, world: u32, options: &[&str]) -> Run {
    agent::start(crate::PROGRAMS, script, (world, 3, GRACE_S), &[&["policy=reform"], options].concat())
}

fn ask(run: &Path, request: &Request, asker: (bool, &str)) -> Result<String, AskError> {
    let (run_is_living, host) = asker;
    enn_cluster::supervise::ask(run, request, Asker { run_is_living, host })
}

fn asked(run: &Run, request: &Request) -> Result<String, AskError> {
    ask(run.dir.path(), request, (true, "here"))
}

#[track_caller]
fn refused(run: &Run, request: &Request, why: &str) {
    let error = asked(run, request).unwrap_err();
    assert!(matches!(error, AskError::Refused { .. }) && error.to_string().contains(why), "{error}");
}

fn stepped(run: &mut Run) -> u64 {
    run.until(|what| match what {
        EventKind::Stepped { step, .. } => Some(*step),
        _ => None,
    })
}

/// The world of the next round.
fn round(run: &mut Run) -> u32 {
    run.until(|what| match what {
        EventKind::RoundStarted { world_size, .. } => Some(*world_size),
        _ => None,
    })
}

fn failures(end: &End) -> usize {
    end.count(|what| {
        matches!(what, EventKind::RoundFailed { .. } | EventKind::WorkerFailed { .. } | EventKind::Recovered { .. })
    })
}

#[test]
fn memory_that_is_short_halves_the_micro_batches_of_all_and_is_no_failure() {
    let script = "0.0=hello,split:1,ready,step:3,halt:3;0.1=hello,split:1,ready,oom:3,halt:3;\
                  1.0=split:2,ready,oom:3,halt:3;1.1=split:2,ready,halt:3;2.*=split:4,ready,done,exit:0";
    let end = start(script, 2, &[]).end();
    end.has(0, 3);
    let splits = end.all(|what| match what {
        EventKind::MicroBatchesSplit { round, split, rank, error } => Some((round.0, *split, rank.0, error.clone())),
        _ => None,
    });
    let error = "no room for 3 GiB".to_owned();
    assert_eq!(splits, [(0, 2, 1, error.clone()), (1, 4, 0, error)]);
    assert_eq!(failures(&end), 0);
    assert_eq!(end.left()[0], "rank 1 ran out of memory; micro-batches are cut into 2");
    assert_eq!(end.count(|what| matches!(what, EventKind::WorkerStarted { .. })), 2);
}

#[test]
fn memory_without_trouble_for_long_is_tried_again() {
    let script = "0.*=hello,ready,oom:3,halt:3;1.0=split:2,ready,step:2002,await:go,step:2003,halt:2003;\
                  1.1=split:2,ready,halt:2003;*.*=split:1,ready,done,exit:0";
    let mut run = start(script, 2, &[]);
    run.until(|what| matches!(what, EventKind::Stepped { step: 2002, .. }).then_some(()));
    run.mark("go");
    let end = run.end();
    end.has(0, 3);
    assert_eq!(end.count(|what| matches!(what, EventKind::MicroBatchesGrown { split: 1, .. })), 1);
    assert_eq!(failures(&end), 0);
}

#[test]
fn a_straggler_is_told_once_and_keeps_its_seat() {
    let script = "*.1=hello,ready,waits:1,run;*.*=hello,ready,waits:60,run";
    let mut run = start(script, 3, &["window=0.2"]);
    let pids = run.pids(3);
    let (rank, pid, slower_by) = run.until(|what| match what {
        EventKind::Straggler { rank, pid, slower_by, evicted: false, .. } => {
            Some((rank.0, pid.cast_signed(), *slower_by))
        }
        _ => None,
    });
    assert_eq!((rank, pid), (1, pids[1]));
    assert!((1.5..4.0).contains(&slower_by), "{slower_by}");
    let until = Instant::now() + Duration::from_secs(2);
    while Instant::now() < until {
        stepped(&mut run);
    }
    run.signal(Signal::SIGTERM);
    let end = run.end();
    end.has(143, 1);
    assert_eq!(end.count(|what| matches!(what, EventKind::Straggler { .. })), 1);
}

#[test]
fn a_straggler_loses_its_seat_to_a_spare_when_that_is_wanted() {
    let script = "spare.*=hello,warm,seat;0.1=hello,ready,waits:1,run;0.*=hello,ready,waits:60,run;\
                  *.*=hello,ready,waits:20,run";
    let mut run = start(script, 2, &["window=0.2", "evict=true", "spares=1"]);
    let pids = run.pids(2);
    let spare = run.spares(1)[0];
    let taken: Vec<_> = (0..2)
        .map(|_| {
            run.until(|what| match what {
                EventKind::SeatTaken { round, rank, pid, spare, .. } => {
                    Some((round.0, rank.0, pid.cast_signed(), *spare))
                }
                _ => None,
            })
        })
        .collect();
    assert_eq!(taken, [(1, 0, pids[0], false), (1, 1, spare, true)]);
    assert!(agent::gone_within(&pids[1..], Duration::from_secs(5)), "the straggler still lives");
    run.all_ready(2);
    run.signal(Signal::SIGTERM);
    let end = run.end();
    end.has(143, 2);
    assert_eq!((failures(&end), end.count(|what| matches!(what, EventKind::Straggler { evicted: true, .. }))), (0, 1));
    assert!(end.left()[0].contains("a spare takes the seat of rank 1"), "{:?}", end.left());
}

#[test]
fn a_run_is_paused_and_continued_and_nobody_computes_between() {
    let mut run = start(WORK, 2, &[]);
    let pids = run.pids(2);
    stepped(&mut run);
    refused(&run, &Request::Continue {}, "not paused");
    asked(&run, &Request::Pause {}).unwrap();
    let step = run.until(|what| match what {
        EventKind::Paused { step, .. } => Some(*step),
        _ => None,
    });
    assert!(step > 0);
    refused(&run, &Request::Pause {}, "paused already");
    let ticks = || pids.iter().map(|pid| cpu_ticks(*pid)).sum::<u64>();
    let before = ticks();
    // Nothing is awaited: this is how long they are watched.
    std::thread::park_timeout(Duration::from_secs(1));
    assert!(ticks() - before <= 2, "paused workers compute");
    asked(&run, &Request::Continue {}).unwrap();
    run.until(|what| matches!(what, EventKind::Continued { .. }).then_some(()));
    assert_eq!(round(&mut run), 2);
    // Workers of a script keep no common step: one may be behind.
    run.until(|what| matches!(what, EventKind::Stepped { step: later, .. } if *later > step).then_some(()));
    run.signal(Signal::SIGTERM);
    let end = run.end();
    end.has(143, 2);
    assert_eq!((failures(&end), end.left()), (0, vec!["the run is paused".to_owned()]));
    assert_eq!(end.count(|what| matches!(what, EventKind::WorkerStarted { .. })), 2);
}

/// Time a process has computed, hundredths of a second.
fn cpu_ticks(pid: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[test]
fn a_paused_run_saves_when_it_is_stopped_and_outlives_deaths() {
    let script = "0.*=hello,ready,step:3,halt:3;*.0=hello,ready,wait_stop,shard:4,stopped,exit:0";
    let mut run = start(script, 2, &[]);
    let pids = run.pids(2);
    run.all_ready(2);
    asked(&run, &Request::Pause {}).unwrap();
    run.until(|what| matches!(what, EventKind::Paused { .. }).then_some(()));
    kill_9(pids[1]);
    run.until(|what| matches!(what, EventKind::WorkerExited { .. }).then_some(()));
    run.signal(Signal::SIGINT);
    let end = run.end();
    end.has(130, 2);
    assert_eq!(end.worlds(), [2, 1]);
    assert_eq!(end.count(|what| matches!(what, EventKind::CheckpointCommitted { step: 4, .. })), 1);
    // All die: it goes on from nothing when it is continued.
    let mut run = start(WORK, 2, &[]);
    let pids = run.pids(2);
    stepped(&mut run);
    asked(&run, &Request::Pause {}).unwrap();
    run.until(|what| matches!(what, EventKind::Paused { .. }).then_some(()));
    pids.iter().for_each(|pid| kill_9(*pid));
    (0..2).for_each(|_| run.until(|what| matches!(what, EventKind::WorkerExited { .. }).then_some(())));
    asked(&run, &Request::Continue {}).unwrap();
    run.pids(2);
    run.all_ready(2);
    asked(&run, &Request::Stop {}).unwrap();
    run.end().has(130, 2);
}

#[test]
fn a_run_shrinks_at_a_step_and_grows_when_the_new_ones_are_warm() {
    let mut run = start(WORK, 3, &["most=4"]);
    run.pids(3);
    stepped(&mut run);
    refused(&run, &Request::Resize { workers: 0 }, "expected 1 to 4");
    refused(&run, &Request::Resize { workers: 5 }, "found 5 workers");
    asked(&run, &Request::Resize { workers: 1 }).unwrap();
    assert_eq!(round(&mut run), 1);
    stepped(&mut run);
    asked(&run, &Request::Resize { workers: 4 }).unwrap();
    assert_eq!(round(&mut run), 4);
    run.all_ready(4);
    stepped(&mut run);
    asked(&run, &Request::Resize { workers: 2 }).unwrap();
    assert_eq!(round(&mut run), 2);
    run.all_ready(2);
    assert!(
        asked(&run, &Request::Drain { node: Some("there".into()) }).unwrap_err().to_string().contains("one node, here")
    );
    asked(&run, &Request::Drain { node: Some("here".into()) }).unwrap();
    let end = run.end();
    end.has(143, 4);
    assert_eq!((end.worlds(), failures(&end)), (vec![3, 1, 4, 2], 0));
    let resized = end.all(|what| match what {
        EventKind::Resized { before, workers } => Some((*before, *workers)),
        _ => None,
    });
    assert_eq!(resized, [(3, 1), (1, 4), (4, 2)]);
    assert_eq!(end.count(|what| matches!(what, EventKind::SpareStarted { .. })), 3);
    let dismissed = end.all(|what| match what {
        EventKind::WorkerDismissed { round, rank, .. } => Some((round.0, rank.0)),
        _ => None,
    });
    assert_eq!(dismissed.iter().filter(|(round, _)| *round == 0).count(), 2, "{dismissed:?}");
    assert_eq!(end.count(|what| matches!(what, EventKind::SpareEnded { .. })), 0);
    assert!(
        end.all(|what| matches!(what, EventKind::WorkerExited { code, .. } if *code != Some(0)).then_some(()))
            .is_empty()
    );
}

#[test]
fn a_resized_run_survives_a_death_with_its_new_size() {
    let mut run = start(WORK, 3, &["spares=1"]);
    let pids = run.pids(3);
    run.spares(1);
    asked(&run, &Request::Resize { workers: 2 }).unwrap();
    assert_eq!(round(&mut run), 2);
    run.all_ready(2);
    kill_9(pids[0]);
    assert_eq!(round(&mut run), 2);
    run.all_ready(2);
    asked(&run, &Request::Stop {}).unwrap();
    run.end().has(130, 3);
}

#[test]
fn a_resized_run_keeps_its_wish_to_wait_for_all_or_to_go_on_with_fewer() {
    for (options, worlds_after) in [(["most=4", "min=2"], vec![2, 3, 3]), (["most=4", "min=1"], vec![2, 3, 2])] {
        let mut run = start(WORK, 2, &options);
        let mut pids = run.pids(2);
        stepped(&mut run);
        asked(&run, &Request::Resize { workers: 3 }).unwrap();
        assert_eq!(round(&mut run), 3);
        run.all_ready(3);
        kill_9(pids.remove(0));
        // All three again, with a new process; or the two that are left, at once.
        round(&mut run);
        asked(&run, &Request::Stop {}).unwrap();
        let end = run.end();
        assert_eq!((end.code, &end.worlds()[..3]), (Some(130), &worlds_after[..]), "{:#?}", end.events);
    }
}

#[test]
fn deaths_during_pauses_are_failures_as_any_other() {
    let script = "0.*=hello,ready,halt:0;1.*=hello,ready,halt:0;*.*=hello,ready,wait_stop,shard:1,stopped,exit:0";
    let mut run = agent::start(crate::PROGRAMS, script, (2, 1, GRACE_S), &["policy=reform"]);
    let mut pids = run.pids(2);
    for new in [1, 0] {
        run.all_ready(2);
        asked(&run, &Request::Pause {}).unwrap();
        run.until(|what| matches!(what, EventKind::Paused { .. }).then_some(()));
        kill_9(pids.pop().unwrap());
        run.until(|what| matches!(what, EventKind::WorkerExited { .. }).then_some(()));
        asked(&run, &Request::Continue {}).unwrap();
        pids.extend(run.pids(new));
    }
    let end = run.end();
    end.has(1, 3);
    assert!(end.stderr.contains("no step was done between 2 failures in a row"), "{}", end.stderr);
    assert_eq!(end.count(|what| matches!(what, EventKind::CheckpointCommitted { step: 1, .. })), 1);
}

#[test]
fn who_does_not_leave_a_round_when_asked_is_made_to_in_time() {
    let script =
        "0.0=hello,ready,step:3,halt:3;0.1=hello,ready,step:3,halt_through_wishes:3;*.*=ready,step:4,done,exit:0";
    let mut run = start(script, 2, &["regroup=0.5"]);
    let pids = run.pids(2);
    run.all_ready(2);
    let began = Instant::now();
    asked(&run, &Request::Pause {}).unwrap();
    run.until(|what| matches!(what, EventKind::Paused { step: 3, .. }).then_some(()));
    assert!((0.5..5.0).contains(&began.elapsed().as_secs_f64()), "{:?}", began.elapsed());
    asked(&run, &Request::Continue {}).unwrap();
    let end = run.end();
    end.has(0, 2);
    assert_eq!((failures(&end), end.left()), (0, vec!["the run is paused".to_owned()]));
    assert_eq!(end.count(|what| matches!(what, EventKind::WorkerStarted { .. })), pids.len());
}

#[test]
fn workers_that_do_not_meet_again_are_not_resized_but_stopped() {
    let script = "*.*=hello,ready,wait_stop,stopped,exit:0";
    let mut run = agent::start(crate::PROGRAMS, script, (2, 3, GRACE_S), &[]);
    run.all_ready(2);
    refused(&run, &Request::Pause {}, "--policy restart");
    refused(&run, &Request::Resize { workers: 1 }, "--policy restart");
    asked(&run, &Request::Stop {}).unwrap();
    let end = run.end();
    end.has(130, 1);
    assert_eq!(
        end.count(|what| matches!(what, EventKind::StopRequested { signal, second: false } if signal == "enn stop")),
        1
    );
}

fn socket(run: &Path) -> PathBuf {
    PathBuf::from(std::fs::read_to_string(run.join("control")).unwrap().lines().next().unwrap())
}

#[test]
fn the_door_is_private_bounded_and_gone_at_the_end() {
    let mut run = start(WORK, 1, &[]);
    run.all_ready(1);
    let dir = run.dir.path().to_owned();
    let socket = socket(&dir);
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&socket), mode(socket.parent().unwrap())), (0o600, 0o700));
    // Who says nothing, too much, or nonsense; the next caller is heard.
    let silent = UnixStream::connect(&socket).unwrap();
    drop(silent);
    let mut mad = UnixStream::connect(&socket).unwrap();
    let _refused = mad.write_all(&[b'x'; 1 << 20]);
    let mut answer = Vec::new();
    let _reset = mad.read_to_end(&mut answer);
    assert!(answer.is_empty());
    let mut wrong = UnixStream::connect(&socket).unwrap();
    wrong.write_all(b"{\"command\":\"explode\"}\n").unwrap();
    let mut line = String::new();
    BufReader::new(wrong).read_line(&mut line).unwrap();
    assert!(line.contains("refused") && line.contains("explode"), "{line}");
    // One that hangs in the middle of a line does not keep the run from ending.
    let mut hangs = UnixStream::connect(&socket).unwrap();
    hangs.write_all(b"{\"comm").unwrap();
    run.signal(Signal::SIGINT);
    run.end().has(130, 1);
    assert!(!socket.exists() && !socket.parent().unwrap().exists());
}

#[test]
fn a_run_that_is_over_or_was_killed_says_so() {
    let mut run = start(WORK, 1, &[]);
    run.all_ready(1);
    let dir = run.dir.path().to_owned();
    let socket = socket(&dir);
    run.signal(Signal::SIGKILL);
    run.agent.wait().unwrap();
    // The file is left and leads nowhere.
    assert!(dir.join("control").exists());
    assert!(matches!(ask(&dir, &Request::Stop {}, (false, "here")), Err(AskError::NotRunning { .. })));
    std::fs::write(dir.join("control"), "/nowhere/control.sock\nn1\n").unwrap();
    let elsewhere = ask(&dir, &Request::Stop {}, (true, "n2")).unwrap_err().to_string();
    assert!(elsewhere.contains("led by host n1"), "{elsewhere}");
    assert!(matches!(ask(&dir, &Request::Stop {}, (true, "n1")), Err(AskError::NotRunning { .. })));
    std::fs::remove_file(dir.join("control")).unwrap();
    assert!(matches!(ask(&dir, &Request::Stop {}, (false, "here")), Err(AskError::NotRunning { .. })));
    let unopened = ask(&dir, &Request::Stop {}, (true, "here")).unwrap_err();
    assert!(matches!(unopened, AskError::NoControlServer { .. }));
    assert!(
        unopened
            .to_string()
            .ends_with("; Ctrl-C where it was started, or SIGTERM to its process, ends it all the same")
    );
    // The next agent of this user may have removed it.
    let _swept = std::fs::remove_dir_all(socket.parent().unwrap());
}

#[test]
fn wishes_and_deaths_at_any_time_leave_a_run_that_stops_when_asked() {
    for seed in 0..10 {
        let mut dice = Dice(seed);
        let options = [["min=1", "most=4", "spares=0"], ["min=2", "most=4", "spares=1"]][dice.below(2)];
        let mut run =
            agent::start(crate::PROGRAMS, WORK, (2, 100, GRACE_S), &[&["policy=reform"], &options[..]].concat());
        let mut living = run.pids(2);
        run.all_ready(1);
        let mut paused = false;
        for _ in 0..20 {
            for _ in 0..=dice.below(12) {
                // A paused run says nothing.
                if paused && living.is_empty() {
                    break;
                }
                let Some(event) = run.event_within(Duration::from_millis(50)) else { break };
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
            match dice.below(4) {
                0 if !living.is_empty() => kill_9(living.swap_remove(dice.below(living.len()))),
                1 => {
                    let workers = 1 + u32::try_from(dice.below(4)).unwrap();
                    asked(&run, &Request::Resize { workers }).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
                }
                2 => {
                    let request = if paused { Request::Continue {} } else { Request::Pause {} };
                    asked(&run, &request).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
                    paused = !paused;
                }
                _ => {}
            }
        }
        asked(&run, &Request::Stop {}).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let end = run.end();
        assert_eq!(end.code, Some(130), "seed {seed}: {}\n{:#?}", end.stderr, end.events);
        // These workers save nothing, which a run that is stopped says; and who died while the run was paused is told afterwards.
        let expected =
            |message: &str| message.contains("is in no checkpoint") || message.contains("was killed by SIGKILL");
        let warned = |what: &EventKind| matches!(what, EventKind::Warned { message } if !expected(message));
        assert!(end.count(warned) == 0, "seed {seed}: {:#?}", end.events);
    }
}
