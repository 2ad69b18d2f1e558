//! `enn run` with real processes: the contract, restarts, the first failure, signals, and that nothing is left behind.
//!
//! Everything is on loopback and in a private directory; every launch has a deadline.

use enn_tests::launch::{Place, alive, end, free_port, kill, until};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    fs,
    time::{Duration, Instant},
};

#[test]
fn every_worker_gets_its_ranks() {
    let place = Place::new(
        r#"echo "$RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE $ROLE_RANK $ROLE_WORLD_SIZE $ROLE_NAME \
$TORCHELASTIC_RESTART_COUNT $TORCHELASTIC_MAX_RESTARTS $TORCHELASTIC_USE_AGENT_STORE $OMP_NUM_THREADS $MASTER_PORT""#,
    );
    let ended = place.run(&["--standalone", "--nproc-per-node", "3", "--max-restarts", "2"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let lines: BTreeSet<&str> = ended.stdout.lines().collect();
    let port = lines.first().unwrap().rsplit(' ').next().unwrap().to_owned();
    assert!(port.parse::<u16>().unwrap() > 0);
    let expected = (0..3).map(|rank| format!("{rank} {rank} 3 3 0 1 {rank} 3 default 0 2 True 1 {port}"));
    assert_eq!(lines, expected.collect::<Vec<_>>().iter().map(String::as_str).collect());
}

#[test]
fn a_killed_worker_is_replaced_and_the_restart_is_counted() {
    let place = Place::new(
        r#"mkdir -p pids; echo $$ > pids/$RANK.$TORCHELASTIC_RESTART_COUNT
[ "$TORCHELASTIC_RESTART_COUNT" = 1 ] && exit 0
exec sleep 100"#,
    );
    let child = place.command(&["--standalone", "--nproc-per-node=2", "--max-restarts=1"]).spawn().unwrap();
    until("both workers run", || place.numbers("pids").len() == 2);
    let victim: i32 = fs::read_to_string(place.path("pids/1.0")).unwrap().trim().parse().unwrap();
    kill(victim, nix::sys::signal::Signal::SIGKILL);
    let ended = end(child);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(place.numbers("pids").len(), 4, "two rounds of two workers");
    let exits: Vec<Value> = place.events().into_iter().filter(|event| event["event"] == "worker_exited").collect();
    assert_eq!(exits[0]["signal"], 9);
    assert!(exits[0]["seconds_to_notice"].as_f64().unwrap() < 0.05);
}

#[test]
fn the_first_failure_is_shown_with_its_last_words_and_the_others_end() {
    let place = Place::new(
        r#"mkdir -p pids; echo $$ > pids/$RANK
if [ $RANK = 1 ]; then while [ ! -e pids/0 ]; do :; done; for i in 1 2 3; do echo "cry $i" >&2; done; exit 3; fi
exec sleep 100"#,
    );
    let ended = place.run(&["--standalone", "--nproc-per-node", "2"]);
    assert_eq!(ended.code, Some(1));
    for words in ["rank 1", "code 3", "cry 3", "rank 0"] {
        assert!(ended.stderr.contains(words), "no {words:?} in:\n{}", ended.stderr);
    }
    assert!(place.numbers("pids").into_iter().all(|pid| !alive(pid)));
}

#[test]
fn the_exception_of_a_recorded_main_is_the_cause_even_when_its_victim_dies_first() {
    // Rank 1 writes its error file, then is slow to end; rank 0 fails because of it.
    let place = Place::new(
        r#"if [ $RANK = 1 ]; then
echo '{"message": {"message": "ValueError: the cause", "extraInfo": {"py_callstack": "Traceback: here", "timestamp": "1"}}}' > $TORCHELASTIC_ERROR_FILE
touch raised; exec sleep 100
fi
while [ ! -e raised ]; do :; done; echo "peer closed" >&2; exit 7"#,
    );
    let ended = place.run(&["--standalone", "--nproc-per-node", "2"]);
    assert_eq!(ended.code, Some(1));
    let cause = ended.stderr.find("ValueError: the cause").unwrap_or_else(|| panic!("{}", ended.stderr));
    assert!(
        ended
            .stderr
            .find("peer closed")
            .is_none_or(|victim| victim < cause || ended.stderr[cause..].contains("rank 0"))
    );
    let reported = place.events().into_iter().find(|event| event["event"] == "failure_reported").unwrap();
    assert_eq!(
        (&reported["failure"]["rank"], &reported["failure"]["traceback"]),
        (&1.into(), &"Traceback: here".into())
    );
}

/// Leaves a process in a session of its own, with and without the launch's environment, and one in the worker's group.
const LITTER: &str = r#"mkdir -p litter
setsid sh -c 'echo $$ > litter/marked; exec sleep 1000' &
env -i setsid sh -c 'echo $$ > litter/bare; exec sleep 1000' &
sh -c 'echo $$ > litter/grouped; exec sleep 1000' &
while [ ! -s litter/marked ] || [ ! -s litter/bare ] || [ ! -s litter/grouped ]; do :; done
"#;

#[test]
fn nothing_outlives_a_run_that_ended() {
    let place = Place::new(LITTER);
    let ended = place.run(&["--standalone", "--no-capture"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let litter = place.numbers("litter");
    assert_eq!(litter.len(), 3);
    assert!(litter.iter().all(|pid| !alive(*pid)), "still there: {litter:?}");
}

#[test]
fn nothing_outlives_a_launcher_that_was_killed() {
    let place = Place::new(&format!("{LITTER}mkdir pids; echo $$ > pids/$RANK; exec sleep 1000"));
    let mut child = place.command(&["--standalone", "--nproc-per-node", "2"]).spawn().unwrap();
    until("the workers run", || place.numbers("pids").len() == 2);
    child.kill().unwrap();
    child.wait().unwrap();
    // The bare one carries nothing by which it could be found once its parent is gone, unless there is a control group.
    let bare: i32 = fs::read_to_string(place.path("litter/bare")).unwrap().trim().parse().unwrap();
    let mut all = place.numbers("pids");
    all.extend(place.numbers("litter"));
    until("all are gone", || all.iter().all(|pid| *pid == bare || !alive(*pid)));
    if alive(bare) {
        kill(bare, nix::sys::signal::Signal::SIGKILL);
    }
}

#[test]
fn a_signal_reaches_the_workers_and_the_deaf_are_killed_after_the_grace() {
    let place = Place::new(
        r#"mkdir -p pids
if [ $RANK = 0 ]; then trap 'echo got TERM; exit 0' TERM; else trap '' TERM; fi
echo $$ > pids/$RANK
while :; do sleep 0.05; done"#,
    );
    let child = place.command(&["--standalone", "--nproc-per-node=2", "--grace=0.5"]).spawn().unwrap();
    until("the workers run", || place.numbers("pids").len() == 2);
    let began = Instant::now();
    kill(child.id().cast_signed(), nix::sys::signal::Signal::SIGTERM);
    let ended = end(child);
    assert_eq!(ended.code, Some(143), "{}", ended.stderr);
    assert!(ended.stdout.contains("got TERM"));
    assert!(began.elapsed() > Duration::from_millis(450) && began.elapsed() < Duration::from_secs(10));
    assert!(place.numbers("pids").into_iter().all(|pid| !alive(pid)));
}

#[test]
fn a_failure_on_one_node_ends_the_other_with_the_cause() {
    let place = Place::new(
        r#"mkdir -p pids; echo $$ > pids/$RANK
if [ $RANK = 3 ]; then while [ $(ls pids | wc -l) -lt 4 ]; do sleep 0.01; done; echo "bad luck" >&2; exit 5; fi
exec sleep 100"#,
    );
    let port = free_port().to_string();
    let node = |rank: &str| {
        let flags = [
            "--nnodes=2",
            "--node-rank",
            rank,
            "--nproc-per-node=2",
            "--master-addr=127.0.0.1",
            "--master-port",
            &port,
        ];
        place.command(&flags).spawn().unwrap()
    };
    let began = Instant::now();
    let (first, second) = (node("0"), node("1"));
    let (first, second) = (end(first), end(second));
    assert_eq!((first.code, second.code), (Some(1), Some(1)), "{}\n{}", first.stderr, second.stderr);
    for ended in [&first, &second] {
        assert!(ended.stderr.contains("rank 3") && ended.stderr.contains("bad luck"), "{}", ended.stderr);
    }
    assert!(began.elapsed() < Duration::from_secs(20));
    assert!(place.numbers("pids").into_iter().all(|pid| !alive(pid)));
}

#[test]
fn a_run_without_progress_is_a_hang_and_its_stacks_are_kept() {
    let place = Place::new(r#"[ "$TORCHELASTIC_RESTART_COUNT" = 1 ] && exit 0; echo begin; exec sleep 1000"#);
    let ended = place.run(&["--standalone", "--max-restarts=1", "--hang-timeout=1"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let hang = place.events().into_iter().find(|event| event["event"] == "hang_detected").expect("a hang");
    let stacks = fs::read_dir(hang["stacks"].as_str().unwrap()).unwrap().count();
    assert_eq!(stacks, 1, "one file a worker");
}

#[test]
fn a_worker_that_touches_its_progress_file_does_not_hang() {
    let place = Place::new(r#"for i in 1 2 3 4 5 6 7 8; do touch $ENN_PROGRESS_FILE; sleep 0.25; done"#);
    let ended = place.run(&["--standalone", "--hang-timeout=1"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}
