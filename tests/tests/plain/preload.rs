//! `enn run --preload`: scripts forked from a process that has imported modules, beside the same scripts executed. With modules of
//! Python's own library, so that no PyTorch is needed here; what PyTorch adds is in the conformance tests.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test's helpers fail the test by panicking, and wait for processes"
)]

use enn_tests::{
    launch::{Ended, Place, alive, end, kill, until},
    scripts::{MODULES, TORCH, command, forked, pids, place},
};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Child, Command},
    time::{Duration, Instant},
};

fn run(place: &Place, preload: &str, flags: &[&str]) -> Ended {
    let all = [&["--standalone", "--preload", preload], flags].concat();
    end(command(place, &all, &["script.py", "a b", ""]).spawn().unwrap())
}

/// The process that serves: the parent of none and a child of the launcher, with the script's command line and no rank.
fn server(launcher: &Child, workers: &[i32]) -> i32 {
    let own = i32::try_from(launcher.id()).unwrap();
    let children = fs::read_to_string(format!("/proc/{own}/task/{own}/children")).unwrap();
    let named = |pid: &i32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| !name.starts_with("enn"));
    let children = children.split_whitespace().filter_map(|pid| pid.parse().ok());
    children.filter(|pid| !workers.contains(pid)).find(named).expect("a server lives")
}

#[test]
fn workers_are_forked_and_see_what_executed_ones_see() {
    let script = "import os, sys, json, random\n\
                  print(sys.argv, __name__, __file__, sys.path[0] == os.getcwd(), os.environ['RANK'], sys.stdin.read())\n";
    let executed = place(script);
    let preloaded = place(script);
    let plain = run(&executed, "none", &["--nproc-per-node", "3"]);
    let fast = run(&preloaded, MODULES, &["--nproc-per-node", "3"]);
    assert_eq!((plain.code, fast.code), (Some(0), Some(0)), "{}", fast.stderr);
    assert_eq!(forked(&executed), [false; 3]);
    assert_eq!(forked(&preloaded), [true; 3], "{}", fast.stderr);
    let lines = |ended: &Ended, place: &Place| {
        let text = ended.stdout.replace(place.dir.path().to_str().unwrap(), "DIR");
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(lines(&plain, &executed), lines(&fast, &preloaded));
    assert!(preloaded.events().iter().any(|event| event["event"] == "preloaded"));
}

#[test]
fn a_restart_is_forked_by_the_same_server() {
    let place = place(
        "import os, signal\nif os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' and os.environ['RANK'] == '1':\n    \
         os.kill(os.getpid(), signal.SIGKILL)\nprint('done')\n",
    );
    let ended = run(&place, MODULES, &["--nproc-per-node", "2", "--max-restarts", "1"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(forked(&place), [true; 4]);
    assert_eq!(place.events().iter().filter(|event| event["event"] == "preloaded").count(), 1);
    let exits: Vec<Value> = place.events().into_iter().filter(|event| event["event"] == "worker_exited").collect();
    assert!(exits.iter().any(|exit| exit["signal"] == 9 && exit["rank"] == 1), "{exits:?}");
}

/// A program that attaches to the broker of its node and says that it works; a spare waits.
const ATTACHING: &str = "\
import json, os, socket, struct, time
broker = socket.socket(socket.AF_UNIX)
broker.connect(os.environ['ENN_SCRIPT_SOCKET'])
def send(**message):
    data = json.dumps(message).encode()
    broker.sendall(struct.pack('<I', len(data)) + data)
send(message='attach', protocol=1, worker=int(os.environ['ENN_WORKER_ID']), pid=os.getpid())
if 'RANK' in os.environ:
    send(message='ready', round=int(os.environ['ENN_ROUND']), step=1)
while 'RANK' not in os.environ or not os.path.exists('go'):
    time.sleep(0.01)
";

#[test]
fn workers_and_spares_of_a_run_that_replaces_say_whether_they_were_forked() {
    for (modules, is_forked) in [(MODULES, true), ("none", false)] {
        let place = place(ATTACHING);
        let preload = format!("--preload={modules}");
        let flags = ["--standalone", "--nproc-per-node=2", "--on-failure=replace", "--spares=1", &preload];
        let child = command(&place, &flags, &["script.py"]).spawn().unwrap();
        until("a spare", || pids(&place, "spare_ready").len() == 1);
        fs::write(place.path("go"), "").unwrap();
        let ended = end(child);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        assert_eq!(forked(&place), [is_forked; 2], "{}", ended.stderr);
        let spares = place.events().into_iter().filter(|event| event["event"] == "spare_started");
        assert_eq!(spares.map(|event| event["forked"] == Value::Bool(true)).collect::<Vec<_>>(), [is_forked]);
    }
}

#[test]
fn how_a_forked_worker_ends_is_how_the_run_ends() {
    for (end, code, words) in [
        ("import sys; sys.exit(3)", 3, "code 3"),
        ("raise ValueError('the cause')", 1, "ValueError: the cause"),
        ("import os; os._exit(7)", 7, "code 7"),
        ("import os; os.kill(os.getpid(), 11)", 139, "SIGSEGV"),
        ("def broken(:", 1, "SyntaxError"),
    ] {
        let place = place(end);
        let ended = run(&place, MODULES, &["--propagate-exit"]);
        assert_eq!(ended.code, Some(code), "{end}: {}", ended.stderr);
        assert!(ended.stderr.contains(words), "{end}: {}", ended.stderr);
        assert!(!ended.stderr.contains("enn_forkserver"), "{end}: {}", ended.stderr);
        assert_eq!(forked(&place), [true], "{end}: {}", ended.stderr);
    }
}

#[test]
fn a_python_that_hides_the_hook_executes_the_script_once() {
    let place = place("import os; print('ran', os.environ.get('RANK'))");
    let wrapper = place.path("python");
    fs::write(&wrapper, "#!/bin/sh\nexec python3 -I \"$@\"\n").unwrap();
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)).unwrap();
    let flags = ["--standalone", "--preload", MODULES];
    let ended = end(command(&place, &flags, &["script.py"]).env("PYTHON_EXEC", &wrapper).spawn().unwrap());
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "ran 0\n"), "{}", ended.stderr);
    assert_eq!(forked(&place), [false]);
    assert_eq!(ended.stderr.matches("workers are executed").count(), 1, "{}", ended.stderr);
}

#[test]
fn what_cannot_be_imported_costs_a_line() {
    let place = place("print('ran')");
    for (modules, words) in [
        ("no_such_module_anywhere", "no_such_module_anywhere"),
        ("json,no_such_module_anywhere", "no_such_module_anywhere"),
        ("thread_at_import", "thread"),
        ("raises_at_import", "broken on purpose"),
    ] {
        fs::write(
            place.path("thread_at_import.py"),
            "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n",
        )
        .unwrap();
        fs::write(place.path("raises_at_import.py"), "raise RuntimeError('broken on purpose')\n").unwrap();
        let flags = ["--standalone", "--preload", modules];
        let ended = end(command(&place, &flags, &["script.py"]).env("PYTHONPATH", place.dir.path()).spawn().unwrap());
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "ran\n"), "{modules}: {}", ended.stderr);
        assert!(ended.stderr.contains(words), "{modules}: {}", ended.stderr);
    }
}

#[test]
fn a_server_that_is_killed_takes_no_worker_with_it_and_the_next_ones_are_executed() {
    let place = place(
        "import os, sys, time\nopen('pid.' + os.environ['RANK'], 'w').write(str(os.getpid()))\n\
         while not os.path.exists('go'): time.sleep(0.01)\nsys.exit(int(os.environ['TORCHELASTIC_RESTART_COUNT'] == '0'))\n",
    );
    let flags = ["--standalone", "--preload", MODULES, "--nproc-per-node", "2", "--max-restarts", "1", "--retry-early"];
    let child = command(&place, &flags, &["script.py"]).spawn().unwrap();
    until("both workers run", || (0..2).all(|rank| place.path(&format!("pid.{rank}")).exists()));
    let workers = pids(&place, "worker_started");
    kill(server(&child, &workers), Signal::SIGKILL);
    std::thread::sleep(Duration::from_millis(200));
    assert!(workers.iter().all(|pid| alive(*pid)), "the workers live");
    fs::write(place.path("go"), "").unwrap();
    let ended = end(child);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(forked(&place), [true, true, false, false]);
    assert_eq!(ended.stderr.matches("signal 9; workers are executed").count(), 1, "{}", ended.stderr);
}

#[test]
fn nothing_outlives_a_launcher_that_is_killed() {
    let place =
        place("import os, time\nopen('pid.' + os.environ['RANK'], 'w').write(str(os.getpid()))\ntime.sleep(100)\n");
    let flags = ["--standalone", "--preload", MODULES, "--nproc-per-node", "2"];
    let mut child = command(&place, &flags, &["script.py"]).spawn().unwrap();
    until("both workers run", || (0..2).all(|rank| place.path(&format!("pid.{rank}")).exists()));
    let workers = pids(&place, "worker_started");
    let all = [workers.clone(), vec![server(&child, &workers)]].concat();
    child.kill().unwrap();
    child.wait().unwrap();
    until("nothing is left", || all.iter().all(|pid| !alive(*pid)));
}

#[test]
fn a_stop_during_the_imports_ends_at_once() {
    let place = place("print('ran')");
    fs::write(place.path("slow_to_import.py"), "import time\nopen('importing', 'w')\ntime.sleep(60)\n").unwrap();
    let flags = ["--standalone", "--preload", "slow_to_import"];
    let child = command(&place, &flags, &["script.py"]).env("PYTHONPATH", place.dir.path()).spawn().unwrap();
    until("the import has begun", || place.path("importing").exists());
    let began = Instant::now();
    kill(i32::try_from(child.id()).unwrap(), Signal::SIGINT);
    let ended = end(child);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(130), ""), "{}", ended.stderr);
}

#[test]
fn what_a_script_changes_before_an_import_counts() {
    // PYTHONHASHSEED and the like are read at the start; a variable that a module reads at import must be as the script set it.
    let script =
        "import os\nos.environ['OMP_NUM_THREADS'] = '3'\nimport reads_at_import\nprint(reads_at_import.VALUE)\n";
    let place = place(script);
    fs::write(place.path("reads_at_import.py"), "import os\nVALUE = os.environ.get('OMP_NUM_THREADS')\n").unwrap();
    let flags = ["--standalone", "--preload", "reads_at_import", "--nproc-per-node", "2"];
    let ended = end(command(&place, &flags, &["script.py"]).env("PYTHONPATH", place.dir.path()).spawn().unwrap());
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "3\n3\n"), "{}", ended.stderr);
    assert_eq!(ended.stderr.matches("changes OMP_NUM_THREADS before it imports").count(), 1, "{}", ended.stderr);
}

#[test]
fn auto_forks_what_imports_torch_and_executes_the_rest() {
    let place = place("");
    fs::create_dir(place.path("site")).unwrap();
    fs::write(place.path("site/torch.py"), TORCH).unwrap();
    // More workers than cores: they would import one after the other.
    let workers = std::thread::available_parallelism().unwrap().get() + 1;
    let start = |script: &str| {
        fs::write(place.path("script.py"), script).unwrap();
        let all = ["--standalone", "--nproc-per-node", &workers.to_string()];
        end(command(&place, &all, &["script.py"]).env("PYTHONPATH", place.path("site")).spawn().unwrap())
    };
    let ended = start("import torch\nprint(torch.NAME)\n");
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), &*"torch\n".repeat(workers)), "{}", ended.stderr);
    let ended = start("print('plain')\n");
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), &*"plain\n".repeat(workers)), "{}", ended.stderr);
    let mut forked = forked(&place);
    forked.sort_unstable();
    assert_eq!(forked, [vec![false; workers], vec![true; workers]].concat());
}

#[test]
fn auto_imports_behind_workers_that_have_a_core_each_and_forks_the_next_ones() {
    let script = "import os, sys, time\nimport torch\nwhile not os.path.exists('go'): time.sleep(0.01)\n\
                  sys.exit(int(os.environ['TORCHELASTIC_RESTART_COUNT'] == '0'))\n";
    let place = place(script);
    fs::create_dir(place.path("site")).unwrap();
    fs::write(place.path("site/torch.py"), TORCH).unwrap();
    let flags = ["--standalone", "--max-restarts", "1", "--retry-early"];
    let child = command(&place, &flags, &["script.py"]).env("PYTHONPATH", place.path("site")).spawn().unwrap();
    until("the import is made", || place.events().iter().any(|event| event["event"] == "preloaded"));
    fs::write(place.path("go"), "").unwrap();
    let ended = end(child);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(forked(&place), [false, true], "{}", ended.stderr);
}

/// Of the oracle of the server alone (each probe executed and forked, byte for byte) those that are quick; `make releases` runs all, with
/// every Python that it finds.
const PROBES: [&str; 30] = [
    "main_module",
    "main_module -m",
    "a folder",
    "an archive",
    "standard input",
    "other arguments",
    "a syntax error",
    "pdb",
    "breakpoint",
    "standard_streams file",
    "standard_streams pipe",
    "standard_streams pty",
    "environment",
    "noisy",
    "environment_then_import",
    "environment_then_import, print",
    "imports",
    "process_state",
    "processes",
    "threads_and_exit",
    "customize",
    "beside",
    "end: exception",
    "end: segv",
    "end: TERM from outside",
    "environment key",
    "garbage",
    "what workers share",
    "no server runs the script",
    "orphans",
];

/// Of the same and of the checks of the warm server those that are quick.
const WARM_PROBES: [&str; 20] = [
    "main_module",
    "main_module -m",
    "a folder",
    "a text",
    "other arguments",
    "a syntax error",
    "standard_streams pipe",
    "environment",
    "environment_then_import",
    "process_state",
    "beside",
    "end: segv",
    "status and stop",
    "another user",
    "runs refused",
    "self check",
    "endings",
    "left behind",
    "killed",
    "launcher killed",
];

/// Runs the oracle with these words.
fn compare(words: &[&str]) {
    let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("preload_probes/client.py");
    let done = Command::new("python3").arg(&client).arg("python3").args(words).output().unwrap();
    let text = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{text}{}", String::from_utf8_lossy(&done.stderr));
    assert!(!text.is_empty(), "it says what it compared");
}

#[test]
fn probes_cannot_tell_a_forked_worker_from_an_executed_one() {
    compare(&PROBES);
}

#[test]
fn probes_cannot_tell_a_worker_of_a_warm_server_from_an_executed_one() {
    compare(&[&["--warm"], &WARM_PROBES[..]].concat());
}
