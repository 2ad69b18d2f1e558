//! `enn run` with real processes: the contract, restarts, the first failure, signals, and that nothing is left behind.
//!
//! Everything is on loopback and in a private directory; every launch has a deadline.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test's helpers fail the test by panicking, and wait for processes"
)]

use enn_tests::launch::{LITTER, Place, alive, end, free_port, kill, until};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    fs,
    io::{Read, Write},
    process::{Command, Stdio},
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
    let first = node("0");
    let second = node("1");
    let first = end(first);
    let second = end(second);
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

/// Writes 3,000 lines of 120 bytes, far more than a pipe holds, and ends at once.
const LONG: &str = "seq -f %0119.0f 3000; touch written";
const LONG_BYTES: usize = 3000 * 120;

/// Whether the process goes on living for so long.
fn lives_for(pid: u32, time: Duration) -> bool {
    let began = Instant::now();
    while began.elapsed() < time {
        if !alive(pid.cast_signed()) {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

#[test]
fn all_output_arrives_though_its_reader_pauses_as_the_run_ends() {
    let place = Place::new(LONG);
    let mut child = place.command(&["--standalone"]).spawn().unwrap();
    let mut stderr = child.stderr.take().unwrap();
    let told = std::thread::spawn(move || {
        let mut text = String::new();
        stderr.read_to_string(&mut text).map(|_| text)
    });
    // Long enough that the wait is told of.
    assert!(lives_for(child.id(), Duration::from_millis(6500)), "it waits for its reader");
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!((text.len(), text.lines().count()), (LONG_BYTES, 3000));
    let told = told.join().unwrap().unwrap();
    assert!(told.contains("waiting for the reader of standard output") && told.contains("hint: two signals"), "{told}");
}

#[test]
fn a_second_signal_ends_the_wait_for_a_reader_and_says_what_it_has_not_read() {
    let place = Place::new(LONG);
    let child = place.command(&["--standalone", "--log-dir", "logs"]).spawn().unwrap();
    let logged = || {
        let run = fs::read_dir(place.path("logs")).ok()?.next()?.ok()?.path();
        Some(fs::metadata(run.join("attempt_0/0/stdout.log")).ok()?.len())
    };
    until("the pipe is full", || logged().is_some_and(|bytes| bytes > 64 << 10));
    let pid = child.id();
    let signal = || kill(pid.cast_signed(), nix::sys::signal::Signal::SIGTERM);
    assert!(lives_for(pid, Duration::from_millis(300)));
    signal();
    assert!(lives_for(pid, Duration::from_millis(500)), "one signal asks the run to stop; its output still arrives");
    let began = Instant::now();
    signal();
    until("it has ended", || !alive(pid.cast_signed()));
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    let ended = end(child);
    assert_eq!(ended.code, Some(143), "{}", ended.stderr);
    let told =
        ended.stderr.lines().find(|line| line.contains("were not written to standard output")).expect(&ended.stderr);
    let lost: usize = told.split(' ').find_map(|word| word.parse().ok()).unwrap();
    assert!(lost > 0 && ended.stdout.len() < LONG_BYTES, "{told}");
}

#[test]
fn a_second_signal_ends_the_wait_also_where_nobody_reads_the_warnings() {
    let place = Place::new(LONG);
    let (mut read, write) = std::io::pipe().unwrap();
    let mut command = place.command(&["--standalone"]);
    let mut child = command.stdout(write.try_clone().unwrap()).stderr(write).spawn().unwrap();
    drop(command);
    until("the worker has begun", || place.events().iter().any(|event| event["event"] == "worker_started"));
    let pid = child.id();
    assert!(lives_for(pid, Duration::from_millis(1500)));
    for _ in 0..2 {
        kill(pid.cast_signed(), nix::sys::signal::Signal::SIGINT);
        std::thread::sleep(Duration::from_millis(200));
    }
    let began = Instant::now();
    until("it has ended", || !alive(pid.cast_signed()));
    // A second signal while the worker still writes kills it, and the reader has a few seconds more.
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let mut text = Vec::new();
    read.read_to_end(&mut text).unwrap();
    assert!(!text.is_empty() && text.len() < LONG_BYTES);
    let ended =
        place.events().into_iter().rfind(|event| event["event"] == "run_ended").expect("the journal is complete");
    assert_eq!(ended["code"], 130);
}

#[test]
fn a_reader_that_is_gone_is_not_waited_for() {
    let place = Place::new(LONG);
    let mut child = place.command(&["--standalone"]).spawn().unwrap();
    drop(child.stdout.take());
    let began = Instant::now();
    assert_eq!(enn_tests::launch::wait(&mut child), Some(0));
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

#[test]
fn a_node_whose_reader_pauses_holds_up_no_other_node() {
    let place = Place::new(LONG);
    let port = free_port().to_string();
    let node = |rank: &str| {
        let flags = ["--nnodes=2", "--node-rank", rank, "--master-addr=127.0.0.1", "--master-port", &port];
        place.command(&flags).spawn().unwrap()
    };
    let host = node("0");
    let other = node("1");
    let other = end(other);
    assert_eq!((other.code, other.stdout.len()), (Some(0), LONG_BYTES), "{}", other.stderr);
    assert!(lives_for(host.id(), Duration::from_millis(2500)), "it waits for its own reader");
    let host = end(host);
    assert_eq!((host.code, host.stdout.len()), (Some(0), LONG_BYTES), "{}", host.stderr);
}

#[test]
fn workers_read_the_standard_input_of_the_launcher() {
    let place = Place::new("read line; echo \"rank $RANK got $line\"");
    let mut command = place.command(&["--standalone", "--nproc-per-node", "2"]);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    // Written one after the other, so that each goes to one worker whole.
    let mut stdin = child.stdin.take().unwrap();
    for line in ["first", "second"] {
        stdin.write_all(format!("{line}\n").as_bytes()).unwrap();
        std::thread::sleep(Duration::from_millis(300));
    }
    let ended = end(child);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let words: BTreeSet<&str> = ended.stdout.lines().map(|line| line.rsplit(' ').next().unwrap()).collect();
    assert_eq!(words, BTreeSet::from(["first", "second"]), "{}", ended.stdout);
    drop(stdin);
}

#[test]
fn a_worker_leads_a_session_of_its_own() {
    let place = Place::new("echo $$ $(ps -o sid= -p $$)");
    let ended = place.run(&["--standalone"]);
    let numbers: Vec<&str> = ended.stdout.split_whitespace().collect();
    assert!(numbers.len() == 2 && numbers[0] == numbers[1], "{}{}", ended.stdout, ended.stderr);
}

#[test]
fn the_order_of_standard_output_and_error_is_kept_where_both_are_one_file() {
    let script = "i=0; while [ $i -lt 500 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done";
    let expected: String = (0..500).map(|i| format!("out {i}\nerr {i}\n")).collect();
    for flags in [&["--standalone"][..], &["--standalone", "--no-capture"]] {
        let place = Place::new(script);
        let (mut read, write) = std::io::pipe().unwrap();
        let mut command = place.command(flags);
        let mut child = command.stdout(write.try_clone().unwrap()).stderr(write).spawn().unwrap();
        drop(command);
        let mut text = String::new();
        read.read_to_string(&mut text).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0));
        assert!(text == expected, "{flags:?}: {}", text.chars().take(400).collect::<String>());
    }
}

/// Runs a command line of `enn` on a terminal of its own, which it controls, types `input` when `prompt` is shown, and returns what
/// the terminal showed to the end.
fn on_a_terminal(command: &Command, prompt: &str, input: &str) -> String {
    let size = nix::pty::Winsize { ws_row: 33, ws_col: 77, ws_xpixel: 0, ws_ypixel: 0 };
    let terminal = nix::pty::openpty(&size, None).unwrap();
    // Without this end the test would not see the end.
    let flags = nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC);
    nix::fcntl::fcntl(&terminal.master, flags).unwrap();
    let mut command = enn_tests::launch::copy(command, &["setsid", "--ctty", "--wait"]);
    let stream = || Stdio::from(terminal.slave.try_clone().unwrap());
    let mut child = command.stdin(stream()).stdout(stream()).stderr(stream()).spawn().unwrap();
    drop((command, terminal.slave));
    let mut master = fs::File::from(terminal.master);
    let mut keyboard = master.try_clone().unwrap();
    let (shown, seen) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        // The end of a terminal is an error.
        while let Ok(count @ 1..) = master.read(&mut buffer) {
            if shown.send(buffer[..count].to_vec()).is_err() {
                break;
            }
        }
    });
    let mut text = String::new();
    let mut typed = false;
    while let Ok(bytes) = seen.recv_timeout(Duration::from_secs(30)) {
        text.push_str(&String::from_utf8_lossy(&bytes));
        if !typed && text.contains(prompt) {
            keyboard.write_all(input.as_bytes()).unwrap();
            typed = true;
        }
    }
    let code = enn_tests::launch::wait(&mut child);
    assert_eq!(code, Some(0), "{text}");
    text
}

#[test]
fn a_terminal_stays_one_and_reading_from_it_stops_nobody() {
    let script = r#"for fd in 0 1 2; do [ -t $fd ] || echo "fd $fd is none"; done
stty size <&1; printf 'name? '; read name; echo "hello $name"; echo "bye $name" >&2"#;
    for flags in [&["--standalone"][..], &["--standalone", "--no-capture"]] {
        let place = Place::new(script);
        let text = on_a_terminal(&place.command(flags), "name? ", "ada\n");
        assert!(!text.contains("is none"), "{flags:?}: {text}");
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        assert!(lines.contains(&"33 77"), "{flags:?}: it has the size of the window: {text}");
        let hello = lines.iter().position(|line| line.ends_with("hello ada"));
        let bye = lines.iter().position(|line| *line == "bye ada");
        assert!(hello.is_some() && bye > hello, "{flags:?}: {text}");
    }
}

#[test]
fn what_is_shown_on_a_terminal_is_kept_as_well() {
    let place = Place::new("printf 'go? '; read go; echo kept $go");
    on_a_terminal(&place.command(&["--standalone", "--log-dir", "logs"]), "go? ", "yes\n");
    let run = fs::read_dir(place.path("logs")).unwrap().next().unwrap().unwrap().path();
    assert_eq!(fs::read_to_string(run.join("attempt_0/0/stdout.log")).unwrap(), "go? kept yes\n");
}

#[test]
fn a_worker_whose_timer_expires_is_ended() {
    let script = r#"[ -p "$TORCHELASTIC_TIMER_FILE" ] || { echo "no pipe: $TORCHELASTIC_TIMER_FILE"; exit 3; }
timer='{"version": 1, "pid": %d, "scope_id": "a step", "expiration_time": %d, "signal": 9}\n'
printf "$timer" $$ $(($(date +%s) + 1)) > "$TORCHELASTIC_TIMER_FILE"
exec sleep 100"#;
    let place = Place::new(script);
    let mut command = place.command(&["--standalone"]);
    command.env_remove("TORCHELASTIC_TIMER_FILE").env("TORCHELASTIC_ENABLE_FILE_TIMER", "1");
    let ended = end(command.spawn().unwrap());
    assert_eq!(ended.code, Some(1), "{}{}", ended.stdout, ended.stderr);
    assert!(ended.stderr.contains("the timer \"a step\" of rank 0"), "{}", ended.stderr);
    assert!(ended.stderr.contains("was killed by SIGKILL"), "{}", ended.stderr);
}

#[test]
fn nodes_without_a_common_home_are_told_how_to_share_a_token() {
    let place = Place::new("echo worker of node $GROUP_RANK");
    let port = free_port().to_string();
    let node = |rank: &str, token: Option<&str>| {
        let flags = ["--nnodes=2", "--node-rank", rank, "--master-addr=127.0.0.1", "--master-port", &port];
        let mut command = place.command(&flags);
        command.env("XDG_CONFIG_HOME", place.path(&format!("home{rank}"))).env_remove("ENN_TOKEN");
        if let Some(token) = token {
            command.env("ENN_TOKEN", token);
        }
        command.spawn().unwrap()
    };
    let mut host = node("0", None);
    let other = node("1", None);
    let other = end(other);
    assert_eq!(other.code, Some(6), "{}", other.stderr);
    let hint = other.stderr.lines().find(|line| line.contains("hint:")).expect(&other.stderr);
    assert!(hint.contains("ENN_TOKEN") && hint.contains("--token-file"), "{hint}");
    host.kill().unwrap();
    let host = end(host);
    assert!(host.stderr.contains("--token-file"), "{}", host.stderr);
    let host = node("0", Some("the-same-words"));
    let other = node("1", Some("the-same-words"));
    for ended in [end(host), end(other)] {
        assert_eq!(ended.code, Some(0), "the hint works: {}", ended.stderr);
    }
}

#[test]
fn old_runs_make_room_and_a_living_one_is_left_alone() {
    let place = Place::new("while [ -e wait ]; do sleep 0.01; done; echo some output");
    let runs = || fs::read_dir(place.path("state/enn/runs")).into_iter().flatten().flatten().count();
    for _ in 0..2 {
        assert_eq!(place.run(&["--standalone"]).code, Some(0));
    }
    assert_eq!(runs(), 2);
    fs::write(place.path("wait"), "").unwrap();
    let living = place.command(&["--standalone"]).spawn().unwrap();
    until("the third runs", || place.events().iter().filter(|event| event["event"] == "worker_started").count() == 3);
    let waits = place.path("wait");
    let fourth = place.command(&["--standalone", "--keep-size", "1K"]).spawn().unwrap();
    until("the first two are gone", || runs() == 2);
    fs::remove_file(waits).unwrap();
    for ended in [end(living), end(fourth)] {
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "some output\n"), "{}", ended.stderr);
    }
    assert_eq!(runs(), 2, "the two that lived");
}

#[test]
fn what_one_run_keeps_ends_at_the_size_and_its_console_does_not() {
    let place = Place::new(LONG);
    let ended = place.run(&["--standalone", "--keep-size", "100K", "--log-dir", "logs"]);
    assert_eq!((ended.code, ended.stdout.len()), (Some(0), LONG_BYTES), "{}", ended.stderr);
    let run = fs::read_dir(place.path("logs")).unwrap().next().unwrap().unwrap().path();
    let kept = fs::metadata(run.join("attempt_0/0/stdout.log")).unwrap().len();
    assert!(kept > 0 && kept <= 100 << 10, "{kept}");
    assert!(ended.stderr.contains("102400 bytes") && ended.stderr.contains("--keep-size"), "{}", ended.stderr);
}

#[test]
fn the_version_is_told_under_every_name() {
    use std::os::unix::process::CommandExt;
    let version = |name: &str, words: &[&str]| {
        let done = Command::new(enn_tests::launch::enn()).arg0(name).args(words).output().unwrap();
        assert_eq!(done.status.code(), Some(0), "{name} {words:?}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap()
    };
    let expected = version("enn", &["--version"]);
    assert_eq!(version("enn", &["run", "--version"]), expected);
    assert_eq!(version("enn-torchrun", &["--version"]), expected.replace("enn ", "enn-torchrun "));
}

#[test]
fn a_worker_inherits_no_secret_of_the_launcher() {
    let place = Place::new("env > seen.$RANK; exit 0");
    let mut command = place.command(&["--standalone", "--nproc-per-node", "2"]);
    let ended = end(command.env("ENN_TOKEN", "a secret of thirty-two characters").env("OWN", "kept").spawn().unwrap());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    for rank in 0..2 {
        let seen = fs::read_to_string(place.path(&format!("seen.{rank}"))).unwrap();
        assert!(!seen.contains("ENN_TOKEN") && !seen.contains("a secret of"), "{seen}");
        assert!(seen.contains("OWN=kept"), "{seen}");
    }
    // What a run leaves on the disk does not hold it either.
    let kept = Command::new("grep").args(["-rl", "a secret of thirty-two"]).arg(place.dir.path()).output().unwrap();
    assert!(kept.stdout.is_empty(), "{}", String::from_utf8_lossy(&kept.stdout));
}
