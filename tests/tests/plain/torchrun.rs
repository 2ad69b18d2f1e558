//! `enn run` with flags of every torchrun: those of newer releases, those that nobody knows, plug-ins that only torch's own launcher
//! has, and what is counted and left as torchrun does.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test by panicking")]

use enn_tests::launch::{Ended, LITTER, Place, alive, copy, end, kill, until};
use nix::sys::signal::Signal;
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

fn piped(mut command: Command) -> Ended {
    end(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
}

#[test]
fn what_may_be_left_behind_outlives_a_run_that_ended_well_and_no_other() {
    let ended = |place: &Place, code: i32, flags: &[&str]| {
        // Nothing of the launch holds the files of its output: the end of the test would wait for what is left.
        let mut command = place.command(&[&["--standalone", "--leave-background"][..], flags].concat());
        let out = place.path("out");
        let err = place.path("err");
        let file = |path| Stdio::from(fs::File::create(path).unwrap());
        let mut child = command.stdout(file(&out)).stderr(file(&err)).spawn().unwrap();
        let told = enn_tests::launch::wait(&mut child);
        assert_eq!(told, Some(code), "{}", fs::read_to_string(err).unwrap());
        place.numbers("litter")
    };
    let litter = ended(&Place::new(LITTER), 0, &[]);
    assert_eq!(litter.len(), 3);
    let living: Vec<i32> = litter.iter().copied().filter(|pid| alive(*pid)).collect();
    living.iter().for_each(|pid| kill(*pid, Signal::SIGKILL));
    assert_eq!(living, litter);
    // The first worker ends well and leaves them; then the run fails.
    let script = format!(
        "if [ $RANK = 0 ]; then {LITTER}exit 0; fi\nwhile [ ! -e litter/grouped ]; do :; done; sleep 0.3; exit 3"
    );
    let litter = ended(&Place::new(&script), 1, &["--nproc-per-node=2"]);
    assert_eq!(litter.len(), 3);
    assert!(litter.iter().all(|pid| !alive(*pid)), "still there: {litter:?}");
}

#[test]
fn a_launcher_that_is_killed_ends_its_workers_also_where_background_may_be_left() {
    let place = Place::new(&format!("{LITTER}mkdir -p pids; echo $$ > pids/$RANK; exec sleep 1000"));
    let mut command = place.command(&["--standalone", "--leave-background"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until("the worker runs", || place.numbers("pids").len() == 1);
    child.kill().unwrap();
    child.wait().unwrap();
    let number = |name: &str| fs::read_to_string(place.path(name)).unwrap().trim().parse::<i32>().unwrap();
    until("worker and group are gone", || !alive(number("pids/0")) && !alive(number("litter/grouped")));
    for name in ["litter/marked", "litter/bare"] {
        assert!(alive(number(name)), "{name} left its group");
        kill(number(name), Signal::SIGKILL);
    }
}

#[test]
fn workers_by_core_are_counted_by_the_affinity_mask() {
    let place = Place::new("echo $LOCAL_WORLD_SIZE");
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim();
    let one = allowed.split(['-', ',']).next().unwrap();
    for kind in ["cpu", "auto"] {
        let command = place.command(&["--standalone", "--nproc-per-node", kind]);
        let mut command = copy(&command, &["taskset", "--cpu-list", one]);
        command.env("CUDA_VISIBLE_DEVICES", "-1");
        let ended = piped(command);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "1\n"), "{kind}: {}", ended.stderr);
    }
}

#[test]
fn a_flag_of_a_newer_torchrun_is_a_warning_and_a_mistyped_one_an_error() {
    let place = Place::new("echo ran");
    for flags in [&["--cool-new", "3"][..], &["--cool-new=3"], &["--cool_new"]] {
        let ended = place.run(&[&["--standalone"][..], flags].concat());
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "ran\n"), "{flags:?}: {}", ended.stderr);
        assert!(ended.stderr.contains("is not known to this version of enn"), "{flags:?}: {}", ended.stderr);
    }
    let mistyped = place.run(&["--shutdown-timout", "3"]);
    assert_eq!(mistyped.code, Some(2));
    assert!(mistyped.stderr.contains("--shutdown-timeout"), "{}", mistyped.stderr);
    fs::write(place.path("other"), "#!/bin/sh\necho the wrong one\n").unwrap();
    fs::set_permissions(place.path("other"), fs::Permissions::from_mode(0o755)).unwrap();
    let mut doubtful = Command::new(enn_tests::launch::enn());
    doubtful.args(["run", "--no-python", "--cool-new", "./other", "./worker.sh"]).current_dir(place.dir.path());
    let doubtful = piped(doubtful);
    assert_eq!((doubtful.code, doubtful.stdout.as_str()), (Some(2), ""), "{}", doubtful.stderr);
    assert!(doubtful.stderr.contains("both ./other and ./worker.sh can be the program"), "{}", doubtful.stderr);
}

#[test]
fn a_plug_in_is_handed_to_torchs_own_torchrun_with_all_words() {
    let place = Place::new("echo never");
    let python = r#"#!/bin/sh
[ "$1" = -c ] && { printf 'enn: torch\nenn: plug-in mine\n'; exit 0; }
echo "$@ [$ENN_TOKEN]"; exit 9"#;
    fs::write(place.path("python"), python).unwrap();
    fs::set_permissions(place.path("python"), fs::Permissions::from_mode(0o755)).unwrap();
    let run = |flags: &[&str]| {
        let mut command = place.command(flags);
        end(command.env("PYTHON_EXEC", "./python").env("ENN_TOKEN", "a secret word").spawn().unwrap())
    };
    for flags in [["--rdzv-backend", "etcd"], ["--rdzv_backend=mine", "--cool-new"], ["--logs-specs", "mine"]] {
        let ended = run(&flags);
        let words = format!("-m torch.distributed.run {} --no-python ./worker.sh []\n", flags.join(" "));
        assert_eq!((ended.code, ended.stdout), (Some(9), words), "{}", ended.stderr);
        assert!(ended.stderr.contains("the command is handed to torch's own torchrun"), "{}", ended.stderr);
        assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    }
    let lost = run(&["--rdzv-backend", "etcd", "--grace", "3", "-v"]);
    assert_eq!((lost.code, lost.stdout.as_str()), (Some(2), ""));
    assert!(lost.stderr.contains("which has no --grace, --verbose"), "{}", lost.stderr);
    let absent = run(&["--rdzv-backend", "zeus"]);
    assert_eq!((absent.code, absent.stdout.as_str()), (Some(2), ""));
    assert!(absent.stderr.contains("which has mine"), "{}", absent.stderr);
}

#[test]
fn the_shutdown_timeout_is_the_time_before_the_kill() {
    let place = Place::new("trap '' TERM; echo $$ > pid; while :; do sleep 0.05; done");
    let child = place.command(&["--standalone", "--shutdown-timeout", "1"]).spawn().unwrap();
    until("the worker runs", || fs::read_to_string(place.path("pid")).is_ok_and(|pid| pid.ends_with('\n')));
    let began = Instant::now();
    kill(child.id().cast_signed(), Signal::SIGTERM);
    let ended = end(child);
    assert_eq!(ended.code, Some(143), "{}", ended.stderr);
    let took = began.elapsed();
    assert!(took > Duration::from_millis(950) && took < Duration::from_secs(10), "{took:?}");
}

#[test]
fn a_prefix_names_host_and_rank() {
    let place = Place::new("echo hello");
    let ended = place.run(&["--standalone", "--tee=1", "--log-line-prefix-template", "${hostname}/$rank|"]);
    let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
    assert_eq!(ended.stdout, format!("{host}/0|hello\n"), "{}", ended.stderr);
}

#[test]
fn completions_are_printed_as_torchrun_prints_them() {
    use std::os::unix::process::CommandExt;
    for (name, words) in [("torchrun", &[][..]), ("enn", &["run"][..])] {
        for shell in ["bash", "zsh", "tcsh"] {
            let mut command = Command::new(enn_tests::launch::enn());
            let ended = piped({
                command.arg0(name).args(words).args(["--print-completion", shell]);
                command
            });
            assert_eq!(ended.code, Some(0), "{name} {shell}: {}", ended.stderr);
            assert!(ended.stdout.contains(name) && ended.stdout.contains("nproc-per-node"), "{name} {shell}");
        }
    }
}
