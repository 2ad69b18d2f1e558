//! `enn run --warm` and `enn warm`: a fork server that lives between runs, with modules of Python's own library, so that no PyTorch is
//! needed here. What its workers are like is compared in `preload`.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test's helpers fail the test by panicking, and wait for processes"
)]

use enn_tests::{
    launch::{Ended, Place, alive, copy, end, enn, kill, until},
    scripts::{MODULES, TORCH, command, forked, pids, place},
    terminal::Terminal,
};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{Command, Stdio},
};

/// A user with a script and warm servers of his own, which end with this.
struct User {
    place: Place,
}

impl User {
    fn new(script: &str) -> Self {
        let place = place(script);
        fs::create_dir(place.path("sockets")).unwrap();
        Self { place }
    }

    /// `enn run --warm` with these flags, which preloads what most tests do.
    fn command(&self, flags: &[&str]) -> Command {
        let all = [&["--standalone", "--warm", "--preload", MODULES], flags].concat();
        let mut command = command(&self.place, &all, &["script.py"]);
        command.env("XDG_RUNTIME_DIR", self.place.path("sockets")).env_remove("ENN_WARM");
        command
    }

    fn run(&self, flags: &[&str]) -> Ended {
        end(self.command(flags).spawn().unwrap())
    }

    /// `enn warm` with these words.
    fn warm(&self, words: &[&str]) -> Ended {
        let mut command = Command::new(enn());
        command.arg("warm").args(words).current_dir(self.place.dir.path());
        command.env("XDG_RUNTIME_DIR", self.place.path("sockets")).env_remove("PYTHON_EXEC").env_remove("PYTHONPATH");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        end(command.spawn().unwrap())
    }

    /// What the servers say of themselves, the one that was used last first.
    fn servers(&self) -> Vec<Value> {
        let said = self.warm(&["status", "--json"]);
        let mut document: Value = serde_json::from_str(&said.stdout).unwrap();
        let servers = document["servers"].as_array_mut().unwrap();
        servers.iter_mut().map(|server| server["server"].take()).collect()
    }

    fn server_pids(&self) -> Vec<i32> {
        self.servers().iter().map(|server| i32::try_from(server["pid"].as_i64().unwrap()).unwrap()).collect()
    }

    /// The folders of the servers.
    fn folders(&self) -> Vec<PathBuf> {
        let places = fs::read_dir(self.place.path("sockets")).unwrap().map(|entry| entry.unwrap().path());
        places.flat_map(|place| fs::read_dir(place).unwrap().map(|entry| entry.unwrap().path())).collect()
    }
}

impl Drop for User {
    fn drop(&mut self) {
        self.warm(&["stop"]);
    }
}

#[test]
fn the_next_run_is_served_by_what_this_one_left_behind() {
    let user = User::new("import os, sys, json\nprint(sys.argv, os.getcwd(), os.environ['RANK'])\n");
    let first = user.run(&["--nproc-per-node", "2"]);
    assert_eq!(first.code, Some(0), "{}", first.stderr);
    let servers = user.servers();
    assert_eq!((servers.len(), servers[0]["runs"].as_u64()), (1, Some(1)), "{servers:?}");
    let second = user.run(&["--nproc-per-node", "2"]);
    assert_eq!(second.code, Some(0), "{}", second.stderr);
    assert_eq!(forked(&user.place), [true; 4]);
    let served = user.servers();
    assert_eq!((&served[0]["pid"], served[0]["runs"].as_u64()), (&servers[0]["pid"], Some(2)), "{served:?}");
    let sorted = |ended: &Ended| {
        let mut lines: Vec<String> = ended.stdout.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&first), sorted(&second));
    assert!(first.stdout.contains(&format!("['script.py'] {} 0", user.place.dir.path().display())), "{}", first.stdout);
    let preloaded: Vec<Value> = user.place.events().into_iter().filter(|event| event["event"] == "preloaded").collect();
    assert!(preloaded.len() == 2 && preloaded.iter().all(|event| event["warm"] == true), "{preloaded:?}");
    // The run's own server is gone, and the worker was no child of the launcher.
    until("no run is served", || user.servers()[0]["running"] == 0);
}

#[test]
fn how_a_worker_of_a_warm_server_ends_is_how_the_run_ends() {
    let user = User::new("");
    for (end, code, words) in [
        ("import sys; sys.exit(3)", 3, "code 3"),
        ("raise ValueError('the cause')", 1, "ValueError: the cause"),
        ("import os; os._exit(7)", 7, "code 7"),
        ("import os; os.kill(os.getpid(), 11)", 139, "SIGSEGV"),
        ("def broken(:", 1, "SyntaxError"),
    ] {
        fs::write(user.place.path("script.py"), end).unwrap();
        let ended = user.run(&["--propagate-exit"]);
        assert_eq!(ended.code, Some(code), "{end}: {}", ended.stderr);
        assert!(ended.stderr.contains(words) && !ended.stderr.contains("enn_forkserver"), "{end}: {}", ended.stderr);
    }
    assert_eq!(forked(&user.place), [true; 5]);
    assert_eq!(user.servers()[0]["runs"], 5);
}

#[test]
fn a_restart_is_forked_by_the_warm_server() {
    let user = User::new(
        "import os, signal\nif os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' and os.environ['RANK'] == '1':\n    \
         os.kill(os.getpid(), signal.SIGKILL)\nprint('done')\n",
    );
    let ended = user.run(&["--nproc-per-node", "2", "--max-restarts", "1"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(forked(&user.place), [true; 4]);
    let exits: Vec<Value> = user.place.events().into_iter().filter(|event| event["event"] == "worker_exited").collect();
    assert!(exits.iter().any(|exit| exit["signal"] == 9 && exit["rank"] == 1), "{exits:?}");
    assert_eq!(user.servers()[0]["runs"], 1, "one run, whatever its rounds");
}

#[test]
fn a_run_that_differs_gets_another_server_and_is_told_why() {
    let user = User::new("import os\nprint(os.environ['OMP_NUM_THREADS'], len(os.sched_getaffinity(0)))\n");
    for threads in ["3", "5"] {
        let ended = end(user.command(&[]).env("OMP_NUM_THREADS", threads).spawn().unwrap());
        assert!(ended.stdout.starts_with(threads), "{}", ended.stderr);
        let told = ended.stderr.contains("no warm server fits: ") && ended.stderr.contains("OMP_NUM_THREADS");
        assert_eq!(told, threads == "5", "{}", ended.stderr);
    }
    let bound = copy(user.command(&[]).env("OMP_NUM_THREADS", "5"), &["taskset", "-c", "0"]);
    let ended = end(piped(bound).spawn().unwrap());
    assert_eq!(ended.stdout, "5 1\n", "{}", ended.stderr);
    let differs = std::thread::available_parallelism().unwrap().get() > 1;
    assert_eq!(ended.stderr.contains("no warm server fits: "), differs, "{}", ended.stderr);
    assert_eq!(user.servers().len(), if differs { 3 } else { 2 });
    assert_eq!(forked(&user.place), [true; 3]);
    // Not more than four are kept.
    for threads in ["6", "7", "8"] {
        end(user.command(&[]).env("OMP_NUM_THREADS", threads).spawn().unwrap());
    }
    assert_eq!(user.servers().len(), 4);
}

/// A copied command with the streams of the first.
fn piped(mut command: Command) -> Command {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn limits_and_descriptors_are_those_of_the_run() {
    let script = "import os, resource\nprint(resource.getrlimit(resource.RLIMIT_NOFILE)[0], os.read(9, 5))\n";
    let user = User::new(script);
    fs::write(user.place.path("nine"), "nine!").unwrap();
    for limit in ["700", "600"] {
        let words = ["sh", "-c", &format!("ulimit -S -n {limit}; exec \"$@\" 9< nine"), "sh"];
        let ended = end(piped(copy(&user.command(&[]), &words)).spawn().unwrap());
        assert_eq!(ended.stdout, format!("{limit} b'nine!'\n"), "{}", ended.stderr);
    }
    assert_eq!(forked(&user.place), [true; 2]);
}

#[test]
fn a_server_that_is_killed_or_stopped_takes_no_run_with_it() {
    for stop in [false, true] {
        let user = User::new(
            "import os, sys, time\nopen('pid.' + os.environ['RANK'], 'w').write(str(os.getpid()))\n\
             while not os.path.exists('go'): time.sleep(0.01)\nsys.exit(4)\n",
        );
        let child = user.command(&["--nproc-per-node", "2", "--propagate-exit"]).spawn().unwrap();
        until("both workers run", || (0..2).all(|rank| user.place.path(&format!("pid.{rank}")).exists()));
        let [server] = user.server_pids()[..] else { panic!("one server") };
        match stop {
            true => assert_eq!(user.warm(&["stop"]).stdout, format!("stopped: pid {server}\n")),
            false => kill(server, Signal::SIGKILL),
        }
        until("the server is gone", || !alive(server));
        assert!(pids(&user.place, "worker_started").iter().all(|pid| alive(*pid)), "the workers live");
        fs::write(user.place.path("go"), "").unwrap();
        let ended = end(child);
        assert_eq!(ended.code, Some(4), "{}", ended.stderr);
        // What a killed one leaves goes with the next look.
        assert!(user.servers().is_empty() && user.folders().is_empty());
    }
}

#[test]
fn nothing_of_a_run_outlives_a_launcher_that_is_killed_but_the_server() {
    let user = User::new(
        "import os, subprocess, time\nfor detached in (0, 1):\n    \
         child = subprocess.Popen(['sleep', '100'], start_new_session=bool(detached), env={})\n    \
         open(f'pid.{detached}.' + os.environ['RANK'], 'w').write(str(child.pid))\n\
         open('up.' + os.environ['RANK'], 'w')\ntime.sleep(100)\n",
    );
    let mut child = user.command(&["--nproc-per-node", "2"]).spawn().unwrap();
    until("both workers run", || (0..2).all(|rank| user.place.path(&format!("up.{rank}")).exists()));
    let names = ["pid.0.0", "pid.0.1", "pid.1.0", "pid.1.1"];
    let read = |name| fs::read_to_string(user.place.path(name)).unwrap().parse().unwrap();
    let all = [pids(&user.place, "worker_started"), names.map(read).to_vec()].concat();
    child.kill().unwrap();
    child.wait().unwrap();
    until("nothing is left", || all.iter().all(|pid| !alive(*pid)));
    until("no run is served", || user.servers()[0]["running"] == 0);
}

#[test]
fn a_stopped_run_ends_its_workers_and_leaves_the_server() {
    let user =
        User::new("import os, time\nopen('pid.' + os.environ['RANK'], 'w').write(str(os.getpid()))\ntime.sleep(100)\n");
    let child = user.command(&["--nproc-per-node", "2"]).spawn().unwrap();
    until("both workers run", || (0..2).all(|rank| user.place.path(&format!("pid.{rank}")).exists()));
    kill(i32::try_from(child.id()).unwrap(), Signal::SIGINT);
    let ended = end(child);
    assert_eq!(ended.code, Some(130), "{}", ended.stderr);
    until("nothing is left", || pids(&user.place, "worker_started").iter().all(|pid| !alive(*pid)));
    assert_eq!(user.servers().len(), 1);
}

#[test]
fn background_jobs_live_on_where_they_may() {
    for leave in [false, true] {
        let user = User::new(
            "import os, subprocess\nchild = subprocess.Popen(['sleep', '100'], start_new_session=True, env={},\n    \
             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n\
             open('job', 'w').write(str(child.pid))\n",
        );
        let ended = user.run(if leave { &["--leave-background"] } else { &[] });
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        assert_eq!(forked(&user.place), [true]);
        let job: i32 = fs::read_to_string(user.place.path("job")).unwrap().parse().unwrap();
        if leave {
            std::thread::sleep(std::time::Duration::from_millis(300));
            assert!(alive(job), "it was to live on");
            kill(job, Signal::SIGKILL);
        } else {
            until("the job is gone", || !alive(job));
        }
    }
}

#[test]
fn servers_are_started_shown_and_stopped_by_hand() {
    let user = User::new("print('ran')\n");
    assert_eq!(user.warm(&["status"]).stdout, "no warm server\n");
    assert_eq!(user.warm(&["stop"]).stdout, "no warm server\n");
    let started = user.warm(&["start", "--preload", MODULES]);
    assert!(started.stdout.starts_with("started: pid "), "{}{}", started.stdout, started.stderr);
    let again = user.warm(&["start", "--preload", MODULES]);
    assert!(again.stdout.starts_with("there is one already: pid "), "{}{}", again.stdout, again.stderr);
    let ended = user.run(&["--nproc-per-node", "2"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "ran\nran\n"), "{}", ended.stderr);
    assert_eq!(user.servers().len(), 1, "several workers have the variables with which it was started");
    let shown = user.warm(&["status"]).stdout;
    assert!(shown.contains(": Python 3.") && shown.contains("6 modules") && shown.contains("30 min 00 s"), "{shown}");
    let unknown = user.warm(&["stop", "1"]);
    assert_eq!(unknown.code, Some(2), "{}", unknown.stderr);
    assert!(unknown.stderr.contains("no warm server of this user has pid 1") && unknown.stderr.contains("hint: "));
    let [server] = user.server_pids()[..] else { panic!("one server") };
    assert_eq!(user.warm(&["stop", &server.to_string()]).stdout, format!("stopped: pid {server}\n"));
    until("the folder is gone", || user.folders().is_empty() && !alive(server));
    let refused = user.warm(&["start", "--preload", "no_such_module_anywhere"]);
    assert_eq!(refused.code, Some(4), "{}", refused.stderr);
    assert!(refused.stderr.contains("its Python has no no_such_module_anywhere"), "{}", refused.stderr);
}

#[test]
fn a_wrapper_around_the_interpreter_is_looked_through_by_each_run() {
    let user = User::new("import os\nprint(os.environ.get('BY_WRAPPER'))\n");
    let found = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output().unwrap();
    let python = String::from_utf8(found.stdout).unwrap().trim().to_owned();
    let wrapper = user.place.path("wrapper");
    fs::write(&wrapper, format!("#!/bin/sh\nBY_WRAPPER=1 exec '{python}' \"$@\"\n")).unwrap();
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)).unwrap();
    for _ in 0..2 {
        let ended = end(user.command(&[]).env("PYTHON_EXEC", &wrapper).spawn().unwrap());
        assert_eq!((ended.stdout.as_str(), ended.stderr.as_str()), ("1\n", ""));
    }
    assert_eq!(forked(&user.place), [true; 2]);
    let servers = user.servers();
    assert_eq!((servers.len(), &servers[0]["runs"]), (1, &Value::from(2)), "{servers:?}");
}

#[test]
fn a_terminal_is_told_once_that_the_next_run_could_start_at_once() {
    let user = User::new("import torch\nprint(torch.NAME)\n");
    fs::create_dir(user.place.path("site")).unwrap();
    fs::write(user.place.path("site/torch.py"), TORCH).unwrap();
    let start = |flags: &[&str]| {
        let mut command = command(&user.place, &[&["--standalone"], flags].concat(), &["script.py"]);
        command.env("XDG_RUNTIME_DIR", user.place.path("sockets")).env("PYTHONPATH", user.place.path("site"));
        command
    };
    let hint = "enn run --warm keeps PyTorch imported";
    let seen = |flags: &[&str]| Terminal::start(&start(flags), 120, 30).end().1.has(hint);
    assert!(!end(start(&[]).spawn().unwrap()).stderr.contains(hint), "nobody sits at a pipe");
    assert!(!seen(&["--warm"]), "it has one");
    assert!(seen(&[]));
    assert!(!seen(&[]), "once");
}

#[test]
fn a_server_outlives_the_folder_in_which_it_was_started() {
    let user = User::new("print('ran')\n");
    let folder = user.place.path("first");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("script.py"), "print('first')\n").unwrap();
    let ended = end(user.command(&[]).current_dir(&folder).spawn().unwrap());
    assert_eq!(ended.stdout, "first\n", "{}", ended.stderr);
    fs::remove_dir_all(folder).unwrap();
    let ended = user.run(&[]);
    assert_eq!((ended.stdout.as_str(), ended.stderr.as_str()), ("ran\n", ""));
    assert_eq!(forked(&user.place), [true; 2]);
    assert_eq!(user.servers()[0]["runs"], 2);
}

#[test]
fn a_server_without_runs_ends_by_itself() {
    let user = User::new("");
    let started = user.warm(&["start", "--preload", MODULES, "--idle-timeout", "1s"]);
    assert_eq!(started.code, Some(0), "{}", started.stderr);
    until("it has ended", || user.folders().is_empty());
}

#[test]
fn the_variable_asks_for_it_and_a_script_without_torch_needs_none() {
    let user = User::new("import torch\nprint(torch.NAME)\n");
    fs::create_dir(user.place.path("site")).unwrap();
    fs::write(user.place.path("site/torch.py"), TORCH).unwrap();
    let start = |flags: &[&str], variable: &str| {
        let mut command = command(&user.place, &[&["--standalone"], flags].concat(), &["script.py"]);
        command.env("XDG_RUNTIME_DIR", user.place.path("sockets")).env("ENN_WARM", variable);
        end(command.env("PYTHONPATH", user.place.path("site")).spawn().unwrap())
    };
    let ended = start(&[], "1");
    assert_eq!((ended.code, ended.stdout.as_str(), ended.stderr.as_str()), (Some(0), "torch\n", ""));
    assert_eq!(user.servers().len(), 1);
    let ended = start(&["--preload", "none"], "1");
    assert_eq!((ended.code, ended.stdout.as_str(), ended.stderr.as_str()), (Some(0), "torch\n", ""));
    let ended = start(&["--warm", "--preload", "none"], "0");
    assert!(
        ended.code == Some(2) && ended.stderr.contains("--warm") && ended.stderr.contains("hint: "),
        "{}",
        ended.stderr
    );
    let ended = start(&[], "yes");
    assert!(ended.code == Some(2) && ended.stderr.contains("ENN_WARM \"yes\": expected 1 or 0"), "{}", ended.stderr);
    fs::write(user.place.path("script.py"), "print('plain')\n").unwrap();
    let ended = start(&["--warm"], "0");
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "plain\n"));
    assert!(ended.stderr.contains("--warm: according to its files the program imports no PyTorch"), "{}", ended.stderr);
    assert_eq!(user.servers()[0]["runs"], 1);
}
