//! `enn run --on-failure replace` with programs that attach: survivors keep their processes, a spare or a new process takes the seat of a
//! worker that failed; programs that do not attach all start again.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test by panicking")]

use enn_common::wire::script::ScriptSeat;
use enn_tests::launch::{Ended, Place, end, free_port, kill, until};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::PathBuf,
    process::{Child, Command},
};

/// Long enough that what a test waits for comes before the end.
const STEPS: u64 = 1200;

/// A run of the program that attaches.
struct Replaced {
    place: Place,
    child: Child,
}

/// A place with the program that attaches, and its task.
fn place(task: &str) -> Place {
    Place::new(&format!(
        "export ENN_FAKE_SCRIPT=steps={STEPS},step_ms=5,{task}\nexec {}",
        env!("CARGO_BIN_EXE_script_under_test")
    ))
}

fn start(task: &str, flags: &[&str]) -> Replaced {
    let place = place(task);
    let all = [&["--standalone", "--on-failure=replace"], flags].concat();
    let child = place.command(&all).spawn().unwrap();
    Replaced { place, child }
}

/// The directory of the only run of a place, as one of its nodes sees it.
fn run_dir(place: &Place, state: &str) -> Option<PathBuf> {
    Some(fs::read_dir(place.path(state).join("enn/runs")).ok()?.next()?.unwrap().path())
}

/// Events of one kind in a journal: the number of the process.
fn pids(events: &[Value], kind: &str) -> Vec<i32> {
    let found = events.iter().filter(|event| event["event"] == kind);
    found.map(|event| i32::try_from(event["pid"].as_i64().unwrap()).unwrap()).collect()
}

impl Replaced {
    fn file(&self, name: &str) -> Option<String> {
        fs::read_to_string(run_dir(&self.place, "state")?.join(name)).ok()
    }

    /// Waits until these ranks have done some steps of the first round.
    fn at_work(&self, ranks: &[u32]) {
        for rank in ranks {
            until("a rank works", || self.file(&format!("reached-0-{rank}")).is_some());
        }
    }

    /// Waits until a step was done after so many failures.
    fn recovered(&self, count: usize) {
        let is_recovered = |event: &&Value| event["event"] == "recovered";
        until("the next step", || self.place.events().iter().filter(is_recovered).count() >= count);
    }

    /// Waits for so many processes of a kind.
    fn pids(&self, kind: &str, count: usize) -> Vec<i32> {
        until(kind, || pids(&self.place.events(), kind).len() >= count);
        pids(&self.place.events(), kind)
    }

    fn seat(&self, round: u64, rank: u32) -> ScriptSeat {
        serde_json::from_str(&self.file(&format!("seat-{round}-{rank}")).unwrap()).unwrap()
    }

    fn end(self) -> Left {
        let ended = end(self.child);
        let mut files = BTreeMap::new();
        for entry in fs::read_dir(run_dir(&self.place, "state").unwrap()).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_file() {
                let name = entry.file_name().unwrap().to_string_lossy().into_owned();
                files.insert(name, fs::read_to_string(&entry).unwrap());
            }
        }
        Left { ended, files, events: self.place.events() }
    }
}

/// What a run left.
struct Left {
    ended: Ended,
    files: BTreeMap<String, String>,
    events: Vec<Value>,
}

impl Left {
    /// What all ranks computed, which an undisturbed run of `world` workers computes, too.
    #[track_caller]
    fn has_sums(&self, world: u64) {
        assert_eq!(self.ended.code, Some(0), "{}", self.ended.stderr);
        let sum: u64 = (1..=STEPS).map(|step| step * world * (world + 1) / 2).sum();
        for rank in 0..world {
            assert_eq!(self.files.get(&format!("final-{rank}")), Some(&format!("{STEPS} {sum}")), "rank {rank}");
        }
    }

    #[track_caller]
    fn says(&self, words: &[&str]) {
        for word in words {
            assert!(self.ended.stderr.contains(word), "no {word:?} in:\n{}", self.ended.stderr);
        }
    }

    fn count(&self, kind: &str) -> usize {
        self.events.iter().filter(|event| event["event"] == kind).count()
    }
}

#[test]
fn a_killed_worker_is_replaced_by_a_new_process_and_the_others_go_on() {
    let run = start("", &["--nproc-per-node=3"]);
    let workers = run.pids("worker_started", 3);
    run.at_work(&[0, 1, 2]);
    kill(workers[1], Signal::SIGKILL);
    run.recovered(1);
    let newcomer = run.seat(1, 1);
    assert!(newcomer.source_rank.is_some_and(|rank| rank != 1) && newcomer.step >= 20, "{newcomer:?}");
    let left = run.end();
    left.has_sums(3);
    assert_eq!((left.count("worker_started"), left.count("recovered"), left.count("round_failed")), (4, 1, 0));
    left.says(&[
        "rank 1 was killed by SIGKILL",
        "a new process (pid",
        "takes the seat of worker 1",
        "the next step was done",
    ]);
}

#[test]
fn a_spare_takes_the_seat_and_is_replaced_itself() {
    let run = start("", &["--nproc-per-node=2", "--spares=1"]);
    let workers = run.pids("worker_started", 2);
    let spare = run.pids("spare_ready", 1)[0];
    run.at_work(&[0, 1]);
    kill(workers[0], Signal::SIGKILL);
    run.recovered(1);
    let second = run.pids("spare_ready", 2)[1];
    kill(spare, Signal::SIGKILL);
    run.recovered(2);
    let left = run.end();
    left.has_sums(2);
    let taken: Vec<(u64, i32)> = left
        .events
        .iter()
        .filter(|event| event["event"] == "seat_taken" && event["spare"] == true)
        .map(|event| (event["round"].as_u64().unwrap(), i32::try_from(event["pid"].as_i64().unwrap()).unwrap()))
        .collect();
    assert_eq!(taken, [(1, spare), (2, second)]);
    assert_eq!(left.count("worker_started"), 2);
    left.says(&[&format!("a spare (pid {spare}) takes the seat of worker 0")]);
}

#[test]
fn a_spare_that_dies_as_it_takes_the_seat_is_replaced() {
    let run = start("", &["--nproc-per-node=2", "--spares=1"]);
    let workers = run.pids("worker_started", 2);
    let spare = run.pids("spare_ready", 1)[0];
    run.at_work(&[0, 1]);
    // A process that is stopped does not take its seat: that it dies then is certain.
    kill(spare, Signal::SIGSTOP);
    kill(workers[1], Signal::SIGKILL);
    until("the spare has the seat", || run.pids("seat_taken", 1).contains(&spare));
    kill(spare, Signal::SIGKILL);
    run.recovered(1);
    let left = run.end();
    left.has_sums(2);
    assert_eq!((left.count("worker_started"), left.count("round_failed")), (3, 0));
}

/// Processes that took seats as spares, and the processes that were started for seats.
fn takers_and_newcomers(left: &Left) -> (Vec<i32>, usize) {
    let is_spare = |event: &&Value| event["event"] == "seat_taken" && event["spare"] == true;
    let taken: Vec<Value> = left.events.iter().filter(is_spare).cloned().collect();
    (pids(&taken, "seat_taken"), left.count("worker_started"))
}

#[test]
fn spares_take_seats_at_once_where_all_were_killed() {
    let run = start("", &["--nproc-per-node=2", "--spares=1"]);
    let workers = run.pids("worker_started", 2);
    let spares = run.pids("spare_ready", 1);
    run.at_work(&[0, 1]);
    workers.iter().for_each(|worker| kill(*worker, Signal::SIGKILL));
    run.recovered(1);
    let left = run.end();
    left.has_sums(2);
    assert_eq!(takers_and_newcomers(&left), (spares, 3));
}

#[test]
fn spares_take_seats_at_once_where_one_fails_after_the_others_have_finished() {
    let run = start("late=1", &["--nproc-per-node=3", "--spares=2"]);
    run.pids("worker_started", 3);
    let mut spares = run.pids("spare_ready", 2);
    run.pids("worker_exited", 2);
    fs::write(run_dir(&run.place, "state").unwrap().join("fail"), "").unwrap();
    let left = run.end();
    left.has_sums(3);
    left.says(&["all workers restart: 2 workers have finished already"]);
    let (mut taken, started) = takers_and_newcomers(&left);
    spares.sort_unstable();
    taken.sort_unstable();
    assert_eq!((taken, started), (spares, 4));
}

#[test]
fn programs_that_do_not_attach_all_start_again_and_are_told_why() {
    let place = Place::new(
        r#"mkdir -p seen; echo "$RANK $WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE $ROLE_RANK" > seen/$RANK.$TORCHELASTIC_RESTART_COUNT
[ "$TORCHELASTIC_RESTART_COUNT" = 1 ] && exit 0
while [ ! -e seen/1.0 ]; do :; done
[ $RANK = 0 ] && exit 3
exec sleep 100"#,
    );
    let ended = place.run(&["--standalone", "--nproc-per-node=2", "--on-failure=replace", "--spares=1"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains("all workers restart: rank 1 (pid"), "{}", ended.stderr);
    assert!(ended.stderr.contains("has not attached") && ended.stderr.contains("exit"), "{}", ended.stderr);
    assert_eq!(fs::read_to_string(place.path("seen/1.1")).unwrap(), "1 2 0 1 1\n");
    let events = place.events();
    assert_eq!((pids(&events, "worker_started").len(), pids(&events, "spare_started").len()), (4, 0));
}

#[test]
fn a_failure_that_comes_again_and_again_ends_the_run_with_the_report() {
    let place = Place::new("echo oh dear >&2; exit 3");
    let ended = place.run(&["--standalone", "--on-failure=replace", "--propagate-exit"]);
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
    assert!(ended.stderr.contains("oh dear") && ended.stderr.contains("rank 0"), "{}", ended.stderr);
}

#[test]
fn a_stop_ends_programs_that_attach_after_the_same_step() {
    let run = start("", &["--nproc-per-node=2", "--spares=1"]);
    run.pids("spare_ready", 1);
    run.at_work(&[0, 1]);
    kill(run.child.id().cast_signed(), Signal::SIGINT);
    let left = run.end();
    assert_eq!(left.ended.code, Some(130), "{}", left.ended.stderr);
    let stopped = &left.files["stopped-0"];
    assert_eq!(left.files.get("stopped-1"), Some(stopped));
    left.says(&["SIGINT: stopping the workers"]);
}

#[test]
fn only_programs_that_may_attach_are_told_where() {
    let script = r#"echo "socket=$ENN_SCRIPT_SOCKET seats=$ENN_SEAT_DIR worker=$ENN_WORKER_ID nccl=$TORCH_NCCL_ASYNC_ERROR_HANDLING""#;
    let place = Place::new(script);
    let mut command = place.command(&["--standalone"]);
    // As in a worker of another run.
    command.env("ENN_SCRIPT_SOCKET", "/x").env("ENN_SEAT_DIR", "/y").env("ENN_WORKER_ID", "7");
    let ended = end(command.spawn().unwrap());
    assert_eq!(ended.stdout.trim(), "socket= seats= worker= nccl=1", "{}", ended.stderr);
    let ended = place.run(&["--standalone", "--on-failure=replace"]);
    assert!(
        ended.stdout.contains("script.sock seats=/") && ended.stdout.contains("worker=0 nccl=\n"),
        "{}",
        ended.stdout
    );
}

#[test]
fn what_is_kept_in_memory_goes_with_a_launcher_that_is_killed() {
    let mut run = start("", &["--nproc-per-node=2"]);
    let workers = run.pids("worker_started", 2);
    run.at_work(&[0, 1]);
    let environment = fs::read(format!("/proc/{}/environ", workers[0])).unwrap();
    let seats = environment.split(|byte| *byte == 0).find_map(|entry| entry.strip_prefix(b"ENN_SEAT_DIR="));
    let seats = PathBuf::from(OsStr::from_bytes(seats.unwrap()));
    assert_eq!(fs::metadata(&seats).unwrap().mode() & 0o777, 0o700);
    fs::write(seats.join("mirror-0-0"), [7; 1000]).unwrap();
    run.child.kill().unwrap();
    run.child.wait().unwrap();
    if !seats.starts_with("/dev/shm") {
        // No memory was found there. The next run removes the folder.
        assert_eq!(Place::new("exit 0").run(&["--standalone", "--on-failure=replace"]).code, Some(0));
    }
    until("the folder is removed", || !seats.exists());
}

#[test]
fn a_run_goes_on_with_fewer_workers_and_grows_again() {
    let run = start("", &["--workers=1:2"]);
    let workers = run.pids("worker_started", 2);
    run.at_work(&[0, 1]);
    kill(workers[1], Signal::SIGKILL);
    until("one goes on alone", || run.file("seat-1-0").is_some());
    assert_eq!(run.seat(1, 0).world, 1);
    until("both work again", || run.file("seat-2-1").is_some());
    let grown = run.seat(2, 1);
    assert_eq!((grown.world, grown.source_rank), (2, Some(0)));
    let left = run.end();
    assert_eq!(left.ended.code, Some(0), "{}", left.ended.stderr);
    assert_eq!((left.count("recovered"), left.count("round_failed")), (1, 0));
}

/// Fails unless these ranks have the sum of an undisturbed run in which the ranks share eight parts of a step.
#[track_caller]
fn has_sums_of_eight_parts(left: &Left, ranks: &[&str]) {
    assert_eq!(left.ended.code, Some(0), "{}", left.ended.stderr);
    let sum: u64 = (1..=STEPS).map(|step| step * 36).sum();
    let finals = left.files.iter().filter(|(name, _)| name.starts_with("final-") || name.starts_with("stopped-"));
    let finals: Vec<_> = finals.map(|(name, text)| (name.as_str(), text.as_str())).collect();
    let expected = format!("{STEPS} {sum}");
    let expected: Vec<_> = ranks.iter().map(|rank| (*rank, expected.as_str())).collect();
    assert_eq!(finals, expected, "{}", left.ended.stderr);
}

#[test]
fn a_world_shares_the_parts_of_a_step_and_who_is_left_out_waits() {
    let run = start("parts=8", &["--workers=1:4"]);
    let workers = run.pids("worker_started", 4);
    run.at_work(&[0, 1, 2, 3]);
    let no_spares = run_dir(&run.place, "state").unwrap().join("no-spares");
    fs::write(&no_spares, "").unwrap();
    kill(workers[1], Signal::SIGKILL);
    until("two go on", || run.file("seat-1-1").is_some());
    assert_eq!((run.seat(1, 0).world, run.seat(1, 1).local_rank), (2, 2));
    let left = run.end();
    has_sums_of_eight_parts(&left, &["final-0", "final-1"]);
    let waits =
        format!("8 parts cannot be shared by 3 ranks: the run goes on with 2, and rank 3 (pid {}) waits", workers[3]);
    left.says(&[&waits]);
    assert_eq!((left.count("recovered"), left.count("round_failed"), left.count("worker_dismissed")), (1, 0, 0));
}

#[test]
fn a_worker_that_was_left_out_takes_its_seat_again_when_the_world_grows() {
    let run = start("parts=8", &["--workers=1:4"]);
    let workers = run.pids("worker_started", 4);
    run.at_work(&[0, 1, 2, 3]);
    kill(workers[0], Signal::SIGKILL);
    until("all work again", || run.file("seat-2-3").is_some());
    let seats: Vec<_> = (0..4).map(|rank| run.seat(2, rank)).collect();
    assert_eq!(seats.iter().map(|seat| seat.local_rank).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert!(seats[3].source_rank.is_some_and(|rank| rank == 1 || rank == 2), "{seats:?}");
    let left = run.end();
    has_sums_of_eight_parts(&left, &["final-0", "final-1", "final-2", "final-3"]);
    assert_eq!(left.files[&format!("steps-{}", workers[3])].lines().last(), Some(&*STEPS.to_string()));
    assert_eq!((left.count("recovered"), left.count("round_failed")), (1, 0));
}

#[test]
fn a_first_world_that_does_not_share_the_parts_ends_with_the_sizes_that_do() {
    let left = start("parts=8", &["--workers=1:3"]).end();
    assert_eq!(left.ended.code, Some(1), "{}", left.ended.stderr);
    left.says(&["8 parts cannot be shared equally by 3 ranks, but by 1, 2, 4, 8"]);
    assert_eq!((left.count("round_started"), left.count("recovered")), (1, 0));
}

#[test]
fn flags_that_do_not_fit_are_refused_with_what_would() {
    let place = Place::new("exit 0");
    let refused: [(&[&str], &str); 5] = [
        (&["--spares=1"], "--spares without --on-failure replace"),
        (&["--workers=1:2"], "--workers MIN:MAX without --on-failure replace"),
        (
            &["--on-failure=replace", "--warm-device", "--nproc-per-node=2", "--spares=1"],
            "--spares 2, or leave --warm-device out",
        ),
        (&["--on-failure=replace", "--virtual-local-rank"], "--on-failure replace and --virtual-local-rank"),
        (&["--on-failure=replace", "--workers=2:1"], "0 < MIN <= MAX"),
    ];
    for (flags, words) in refused {
        let ended = place.run(flags);
        assert_eq!(ended.code, Some(2), "{}", ended.stderr);
        assert!(ended.stderr.contains(words), "no {words:?} in:\n{}", ended.stderr);
    }
}

/// A node of a run on loopback addresses, which meets the others at this port, with a state folder of its own.
fn node(place: &Place, port: u16, nnodes: &str, number: u32, policy: &str) -> Command {
    let endpoint = format!("--rdzv-endpoint=127.0.0.1:{port}");
    let address = format!("--local-addr=127.0.0.{number}");
    let conf = format!("--rdzv-conf=last_call_timeout=2,is_host={}", u32::from(number == 1));
    let nnodes = format!("--nnodes={nnodes}");
    let policy = format!("--on-failure={policy}");
    let flags =
        ["--rdzv-backend=c10d", "--rdzv-id=net", "--max-restarts=3", &endpoint, &address, &nnodes, &conf, &policy];
    let mut command = place.command(&flags);
    command.env("XDG_STATE_HOME", place.path(&format!("state{number}"))).env("ENN_TOKEN", "0123456789abcdef");
    command
}

fn nodes(place: &Place, nnodes: &str, count: u32) -> Vec<Child> {
    let port = free_port();
    (1..=count).map(|number| node(place, port, nnodes, number, "replace").spawn().unwrap()).collect()
}

/// The files of a node's run whose names begin so, by the rest of the name.
fn files_of(place: &Place, node: u32, prefix: &str) -> BTreeMap<String, String> {
    let Some(dir) = run_dir(place, &format!("state{node}")) else { return BTreeMap::new() };
    let paths = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let named = |path: PathBuf| {
        let name = path.file_name()?.to_str()?.strip_prefix(prefix)?.to_owned();
        Some((name, fs::read_to_string(&path).ok()?))
    };
    paths.filter_map(named).collect()
}

/// Waits until a worker of each node has done some steps of the first round.
fn all_at_work(place: &Place, nodes: &[u32]) {
    until("all nodes work", || nodes.iter().all(|node| !files_of(place, *node, "reached-0-").is_empty()));
}

#[test]
fn a_worker_of_another_node_is_replaced_there() {
    let place = place("");
    let nodes = nodes(&place, "2", 2);
    all_at_work(&place, &[1, 2]);
    let pid = files_of(&place, 2, "steps-").into_keys().next().unwrap();
    kill(pid.parse().unwrap(), Signal::SIGKILL);
    let sum: u64 = (1..=STEPS).map(|step| step * 3).sum();
    for (node, child) in (1..).zip(nodes) {
        let ended = end(child);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let done = files_of(&place, node, "final-").into_values().next();
        assert_eq!(done, Some(format!("{STEPS} {sum}")));
    }
}

#[test]
fn the_others_go_on_without_the_node_that_led() {
    let place = place("");
    let mut nodes = nodes(&place, "2:3", 3);
    all_at_work(&place, &[1, 2, 3]);
    let mut leader = nodes.remove(0);
    leader.kill().unwrap();
    leader.wait().unwrap();
    for (node, child) in (2..).zip(nodes) {
        let ended = end(child);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let done = files_of(&place, node, "final-").into_values().next().unwrap();
        assert!(done.starts_with(&format!("{STEPS} ")), "{done}");
        // The worker kept its process.
        assert_eq!(files_of(&place, node, "steps-").len(), 1);
    }
}

#[test]
fn a_node_that_comes_again_makes_the_run_grow() {
    let place = place("");
    let port = free_port();
    let start = |number| node(&place, port, "1:2", number, "replace").spawn().unwrap();
    let first = start(1);
    let mut lost = start(2);
    all_at_work(&place, &[1, 2]);
    lost.kill().unwrap();
    lost.wait().unwrap();
    let is_alone = |seat: &String| serde_json::from_str::<ScriptSeat>(seat).unwrap().world == 1;
    until("one goes on alone", || files_of(&place, 1, "seat-").values().any(is_alone));
    let rounds = files_of(&place, 1, "seat-").len();
    let again = start(3);
    until("both work", || !files_of(&place, 3, "seat-").is_empty() && files_of(&place, 1, "seat-").len() > rounds);
    for child in [first, again] {
        let ended = end(child);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    }
    assert_eq!(files_of(&place, 1, "steps-").len(), 1);
}

#[test]
fn a_node_that_restarts_all_is_not_taken_into_a_run_that_replaces() {
    let place = place("");
    let port = free_port();
    let host = node(&place, port, "2", 1, "replace").spawn().unwrap();
    let refused = end(node(&place, port, "2", 2, "restart").spawn().unwrap());
    assert!(refused.stderr.contains("what follows a failure is restart"), "{}", refused.stderr);
    assert!(refused.stderr.contains("with the same --on-failure"), "{}", refused.stderr);
    kill(host.id().cast_signed(), Signal::SIGTERM);
    let ended = end(host);
    assert_eq!(ended.code, Some(143), "{}", ended.stderr);
}
