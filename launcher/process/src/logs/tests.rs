//! The pump with real processes.

use super::*;
use std::{
    fs::File,
    io::Read,
    os::fd::OwnedFd,
    path::Path,
    process::{Child, Command},
    time::{Duration, Instant},
};

fn plan(dir: &Path) -> LogPlan {
    LogPlan {
        dir: dir.join("run"),
        redirects: StdByRank::default(),
        tee: StdByRank::default(),
        local_ranks_filter: None,
        stdout_filters: Vec::new(),
        stderr_filters: Vec::new(),
        prefix: None,
        keep: false,
        kept_bytes_max: None,
    }
}

fn console(path: &Path) -> OwnedFd {
    File::options().create(true).append(true).open(path).unwrap().into()
}

/// Consoles in files `out` and `err` of the directory.
fn start(plan: LogPlan, dir: &Path) -> Pump {
    Pump::start_on(plan, console(&dir.join("out")), console(&dir.join("err"))).unwrap()
}

fn who(local_rank: u32) -> WorkerIdentity {
    WorkerIdentity { role: "default".into(), local_rank, rank: 10 + local_rank, host: "n1".into() }
}

fn shell(pump: &Pump, rank: u32, script: &str) -> (Child, Tail) {
    let streams = pump.open(0, &who(rank)).unwrap();
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script]).stdout(streams.stdout).stderr(streams.stderr);
    (command.spawn().unwrap(), streams.tail)
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

fn read(path: impl AsRef<Path>) -> String {
    String::from_utf8(std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn teed_lines_have_their_prefix_and_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let plan = LogPlan { tee: StdByRank::parse("3").unwrap(), stdout_filters: vec!["two".into()], ..plan(dir.path()) };
    let pump = start(plan, dir.path());
    let (mut child, tail) = shell(&pump, 3, "echo one; echo two; printf three; echo bad >&2");
    child.wait().unwrap();
    assert!(pump.settle(soon()));
    assert_eq!(tail.stderr(), "bad");
    assert!(pump.last_output().is_some());
    drop(pump);
    assert_eq!(read(dir.path().join("out")), "[default3]:one\n[default3]:two\n[default3]:three\n");
    assert_eq!(read(dir.path().join("err")), "[default3]:bad\n");
    let attempt = dir.path().join("run/attempt_0");
    assert_eq!(read(attempt.join("3/stdout.log")), "one\ntwo\nthree");
    assert_eq!(read(attempt.join("3/stderr.log")), "bad\n");
    assert_eq!(read(attempt.join("filtered_stdout.log")), "[default3]:two\n");
}

#[test]
fn redirected_filtered_and_plain_streams_go_where_they_should() {
    let dir = tempfile::tempdir().unwrap();
    let ranks = Some([0, 2].into());
    let redirects = StdByRank::parse("0:1,1:1,2:3").unwrap();
    let plan = LogPlan { redirects, local_ranks_filter: ranks, ..plan(dir.path()) };
    let pump = start(plan, dir.path());
    let mut workers: Vec<_> =
        (0..3).map(|rank| shell(&pump, rank, &format!("echo o{rank}; echo e{rank} >&2"))).collect();
    workers.iter_mut().for_each(|(child, _)| assert!(child.wait().unwrap().success()));
    assert!(pump.settle(soon()));
    assert_eq!(workers.iter().map(|(_, tail)| tail.stderr()).collect::<Vec<_>>(), ["e0", "e1", "e2"]);
    assert_eq!(read(dir.path().join("out")), "");
    assert_eq!(read(dir.path().join("err")), "e0\n");
    let attempt = dir.path().join("run/attempt_0");
    for rank in 0..3 {
        assert_eq!(read(attempt.join(format!("{rank}/stdout.log"))), format!("o{rank}\n"));
        assert_eq!(attempt.join(format!("{rank}/stderr.log")).exists(), rank == 2);
    }
}

#[test]
fn part_of_a_line_is_shown_after_silence_and_never_continued_by_another() {
    let dir = tempfile::tempdir().unwrap();
    let pump = start(LogPlan { keep: true, ..plan(dir.path()) }, dir.path());
    let (reader, writer) = std::io::pipe().unwrap();
    let streams = pump.open(0, &who(0)).unwrap();
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", "printf part; read go; echo whole"])
        .stdin(reader)
        .stdout(streams.stdout)
        .stderr(streams.stderr);
    let mut child = command.spawn().unwrap();
    drop(command);
    let out = dir.path().join("out");
    let began = Instant::now();
    // The file cannot be waited for.
    while read(&out) != "part" {
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", read(&out));
        std::thread::yield_now();
    }
    assert!(began.elapsed() >= Duration::from_millis(90), "{:?}", began.elapsed());
    shell(&pump, 1, "echo other; printf half >&2").0.wait().unwrap();
    assert!(pump.settle(soon()));
    pump.say("restarting".into()).unwrap();
    drop(writer);
    child.wait().unwrap();
    drop(pump);
    assert_eq!(read(&out), "part\nother\nwhole\n");
    assert_eq!(read(dir.path().join("err")), "half\nrestarting\n");
}

#[test]
fn settling_does_not_wait_for_what_a_worker_left_behind() {
    let dir = tempfile::tempdir().unwrap();
    let pump = start(plan(dir.path()), dir.path());
    let (reader, writer) = std::io::pipe().unwrap();
    let streams = pump.open(0, &who(0)).unwrap();
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "cat >&2 & echo last >&2"]).stdin(reader).stdout(streams.stdout).stderr(streams.stderr);
    command.spawn().unwrap().wait().unwrap();
    drop(command);
    let began = Instant::now();
    assert!(pump.settle(soon()));
    assert_eq!(streams.tail.stderr(), "last");
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    drop(writer);
}

#[test]
fn the_tail_of_a_worker_that_was_just_reaped_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let pump = start(plan(dir.path()), dir.path());
    for n in 0..200 {
        let (mut child, tail) = shell(&pump, 0, &format!("echo last words {n} >&2; exit 1"));
        child.wait().unwrap();
        assert_eq!(tail.stderr(), format!("last words {n}"));
    }
    let (mut child, tail) = shell(&pump, 0, "echo more >&2");
    child.wait().unwrap();
    drop(pump);
    assert_eq!(tail.stderr(), "more");
}

#[test]
fn eight_writers_are_not_spliced() {
    const LINES: usize = 10_000;
    let dir = tempfile::tempdir().unwrap();
    let (mut read_end, write_end) = std::io::pipe().unwrap();
    let plan = LogPlan { tee: StdByRank::parse("1").unwrap(), ..plan(dir.path()) };
    let pump = Pump::start_on(plan, write_end.into(), console(&dir.path().join("err"))).unwrap();
    let script = format!(
        "i=0; while [ $i -lt {LINES} ]; do echo \"$i the quick brown fox jumps over the lazy dog\"; i=$((i+1)); done"
    );
    let mut workers: Vec<_> = (0..8).map(|rank| shell(&pump, rank, &script).0).collect();
    let reading = std::thread::spawn(move || {
        let mut all = String::new();
        read_end.read_to_string(&mut all).unwrap();
        all
    });
    workers.iter_mut().for_each(|child| assert!(child.wait().unwrap().success()));
    assert!(pump.settle(soon()));
    drop(pump);
    let shown = reading.join().unwrap();
    let mut next = [0; 8];
    for line in shown.lines() {
        let (rank, text) = line.strip_prefix("[default").and_then(|line| line.split_once("]:")).expect(line);
        let rank: usize = rank.parse().unwrap();
        assert_eq!(text, format!("{} the quick brown fox jumps over the lazy dog", next[rank]));
        next[rank] += 1;
    }
    assert_eq!(next, [LINES; 8]);
    for rank in 0..8 {
        let file = read(dir.path().join(format!("run/attempt_0/{rank}/stdout.log")));
        assert_eq!(file.lines().count(), LINES);
    }
}

#[test]
fn a_slow_console_makes_its_writers_wait_and_nobody_else() {
    let dir = tempfile::tempdir().unwrap();
    let (mut read_end, write_end) = std::io::pipe().unwrap();
    let plan = LogPlan { keep: true, redirects: StdByRank::parse("1:3").unwrap(), ..plan(dir.path()) };
    let pump = Pump::start_on(plan, write_end.into(), console(&dir.path().join("err"))).unwrap();
    let (mut slow, _) = shell(&pump, 0, "yes 0123456789abcde | head -c 4000000");
    let (mut quick, _) = shell(&pump, 1, "yes 0123456789abcde | head -c 4000000");
    assert!(quick.wait().unwrap().success());
    assert!(!pump.settle(Instant::now() + Duration::from_millis(200)));
    assert!(slow.try_wait().unwrap().is_none());
    let reading = std::thread::spawn(move || std::io::copy(&mut read_end, &mut std::io::sink()).unwrap());
    assert!(slow.wait().unwrap().success());
    assert!(pump.settle(soon()));
    drop(pump);
    assert_eq!(reading.join().unwrap(), 4_000_000);
}

#[test]
fn a_closed_console_is_told_once_and_the_files_are_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (read_end, write_end) = std::io::pipe().unwrap();
    drop(read_end);
    let pump =
        Pump::start_on(LogPlan { keep: true, ..plan(dir.path()) }, write_end.into(), console(Path::new("/dev/full")))
            .unwrap();
    let (mut child, tail) = shell(&pump, 0, "for i in 1 2 3; do echo $i; echo e$i >&2; done; exec seq 100000");
    assert!(child.wait().unwrap().success());
    assert!(pump.settle(soon()));
    assert_eq!(tail.stderr(), "e1\ne2\ne3");
    let errors: Vec<String> = pump.take_errors().iter().map(ToString::to_string).collect();
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert!(errors.iter().any(|text| text.contains("standard output")), "{errors:?}");
    assert!(errors.iter().any(|text| text.contains("standard error")), "{errors:?}");
    assert_eq!(read(dir.path().join("run/attempt_0/0/stdout.log")).lines().count(), 100_003);
}

#[test]
fn the_end_waits_for_a_slow_console_unless_it_is_given_up() {
    const BYTES: usize = 3000 * 120;
    let ended = |pump: &Pump, within: Duration| {
        let mut fds = [nix::poll::PollFd::new(pump.ended(), nix::poll::PollFlags::POLLIN)];
        crate::wait_ready(&mut fds, Some(Instant::now() + within)).unwrap();
        fds[0].any().unwrap()
    };
    for given_up in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (mut read_end, write_end) = std::io::pipe().unwrap();
        let plan = LogPlan { keep: true, ..plan(dir.path()) };
        let pump = Pump::start_on(plan, write_end.into(), console(&dir.path().join("err"))).unwrap();
        let (mut child, _) = shell(&pump, 0, "exec seq -f %0119.0f 3000");
        child.wait().unwrap();
        pump.finish();
        assert!(!ended(&pump, Duration::from_millis(300)));
        let backlog = pump.backlog().unwrap();
        assert!(backlog.console == "standard output" && backlog.bytes > 100_000, "{backlog:?}");
        let mut shown = Vec::new();
        if given_up {
            pump.give_up_consoles();
            assert!(ended(&pump, Duration::from_secs(20)));
            let lost = usize::try_from(pump.lost()).unwrap();
            drop(pump);
            read_end.read_to_end(&mut shown).unwrap();
            assert_eq!(shown.len() + lost, BYTES);
        } else {
            let reading = std::thread::spawn(move || read_end.read_to_end(&mut shown).map(|count| (count, shown)));
            assert!(ended(&pump, Duration::from_secs(20)));
            assert_eq!((pump.lost(), pump.backlog()), (0, None));
            drop(pump);
            assert_eq!(reading.join().unwrap().unwrap().0, BYTES);
        }
        assert_eq!(read(dir.path().join("run/attempt_0/0/stdout.log")).len(), BYTES);
    }
}

#[test]
fn streams_that_go_to_one_console_keep_their_order_unless_they_are_to_be_told_apart() {
    let script = "for i in 1 2 3 4 5 6 7 8 9; do echo o$i; echo e$i >&2; done";
    let in_order: String = (1..10).map(|i| format!("o{i}\ne{i}\n")).collect();
    for tee in ["0", "3"] {
        let dir = tempfile::tempdir().unwrap();
        let plan = LogPlan { tee: StdByRank::parse(tee).unwrap(), keep: true, ..plan(dir.path()) };
        let both = console(&dir.path().join("out"));
        let pump = Pump::start_on(plan, both.try_clone().unwrap(), both).unwrap();
        let (mut child, tail) = shell(&pump, 0, script);
        child.wait().unwrap();
        assert!(pump.settle(soon()));
        let attempt = dir.path().join("run/attempt_0/0");
        if tee == "0" {
            assert_eq!(
                (read(dir.path().join("out")), read(attempt.join("stdout.log"))),
                (in_order.clone(), in_order.clone())
            );
            assert!(!attempt.join("stderr.log").exists() && tail.stderr().ends_with("o9\ne9"));
        } else {
            assert_eq!(read(attempt.join("stderr.log")).lines().count(), 9);
            assert_eq!(tail.stderr().lines().count(), 9, "only standard error");
        }
    }
}
