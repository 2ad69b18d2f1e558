//! Each flag of torchrun: spellings, variable, default, values, and what is said of a wrong one.

use super::*;
use crate::{
    facts::{Facts, Secret},
    retention::Retention,
};
use clap::Parser;
use enn_cluster::rendezvous::{StoreLocation, TokenSource};
use enn_common::exit::ExitCode;
use enn_process::logs::StdStreams;
use nix::sys::signal::Signal;
use std::{
    ffi::OsString,
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::Path,
    time::Duration,
};

mod releases;

#[derive(Debug, Parser)]
#[command(infer_long_args = true, args_override_self = true)]
struct Line {
    #[command(flatten)]
    flags: Flags,
    #[command(flatten)]
    own: EnnFlags,
}

/// A folder with a script, a program, a Python of its own, and nothing of this machine.
struct Desk {
    dir: tempfile::TempDir,
    facts: Facts,
}

impl Desk {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("bin")).unwrap();
        for (name, mode) in [("bin/python3", 0o755), ("train.py", 0o644), ("go", 0o755)] {
            fs::write(at(name), "").unwrap();
            fs::set_permissions(at(name), Permissions::from_mode(mode)).unwrap();
        }
        let mut facts = Facts::gather();
        facts.cwd = dir.path().to_owned();
        facts.host = "n1".into();
        facts.path = Some(at("bin").into_os_string());
        facts.config_dir = at("config");
        facts.gpus = 0;
        facts.xpus = 0;
        facts.cores_allowed = 4;
        (facts.pet, facts.variables, facts.python_exec) = Default::default();
        (facts.token, facts.visible_devices, facts.hip_devices, facts.launch_mark) = Default::default();
        (facts.keep_days, facts.keep_size, facts.timer_file, facts.replace) = Default::default();
        (facts.unhonoured, facts.file_timer, facts.log_prefix, facts.shutdown_timeout) = Default::default();
        Self { dir, facts }
    }

    fn try_launch(&self, words: &str, dialect: Dialect) -> Result<Launch, RunError> {
        let words = std::iter::once("enn").chain(words.split_whitespace());
        let line = Line::try_parse_from(words).unwrap_or_else(|error| panic!("{error}"));
        resolve(line.flags, &line.own, dialect, &self.facts)
    }

    fn launch(&self, words: &str) -> Launch {
        self.try_launch(words, Dialect::Enn).unwrap_or_else(|error| panic!("{words}: {error}"))
    }

    fn refused(&self, words: &str) -> RunError {
        self.try_launch(words, Dialect::Enn).expect_err(words)
    }

    fn with(&self, variables: &[(&str, &str)]) -> Self {
        let mut facts = self.facts.clone();
        facts.pet = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Self { dir: tempfile::tempdir().unwrap(), facts }
    }
}

fn listen(address: &str, any_port: bool) -> StoreLocation {
    StoreLocation::Local { listen: address.parse().unwrap(), any_port }
}

fn endpoint(host: &str, port: u16, is_host: Option<bool>) -> StoreLocation {
    StoreLocation::Endpoint { host: host.into(), port, is_host }
}

#[test]
fn defaults_are_torchruns() {
    let desk = Desk::new();
    let Launch { spec, name, log_dir, notes, .. } = desk.launch("train.py");
    let meeting = &spec.rendezvous;
    assert_eq!((meeting.nodes_min, meeting.nodes_max, meeting.local_world, meeting.node_rank), (1, 1, 1, Some(0)));
    assert_eq!((meeting.run_id.as_str(), meeting.role.as_str(), meeting.restarts_max), ("none", "default", 0));
    assert_eq!(meeting.location, listen("127.0.0.1:29500", true));
    assert_eq!((meeting.last_call.as_secs(), meeting.silence_max.as_secs()), (30, 5));
    assert_eq!((meeting.token.is_some(), meeting.hang_timeout, spec.limits.backoff), (false, None, Duration::ZERO));
    assert_eq!(spec.signals, [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT]);
    assert_eq!((spec.grace.as_secs(), spec.logs.keep, &spec.logs.prefix), (30, true, &None));
    assert_eq!((name.as_str(), log_dir, notes), ("train", None, Vec::<String>::new()));
    assert!(!desk.facts.config_dir.exists(), "one node needs no token");
}

#[test]
fn replacing_has_the_budget_of_training_unless_one_is_given() {
    let desk = Desk::new();
    let launch = |words: &str| {
        let spec = desk.launch(&format!("--on-failure replace {words} train.py")).spec;
        let replace = spec.replace.unwrap();
        (spec.rendezvous.local_world, replace.workers_min, replace.spares, spec.rendezvous.restarts_max)
    };
    assert_eq!(launch("--nproc-per-node 4"), (4, 4, 0, 3));
    assert_eq!(launch("--workers 2:4 --spares 1 --max-restarts 7"), (4, 2, 1, 7));
    assert!(desk.launch("--on-failure replace train.py").spec.rendezvous.store_kept);
    let plain = desk.launch("--workers 3 train.py").spec;
    assert_eq!((plain.rendezvous.local_world, plain.replace, plain.rendezvous.store_kept), (3, None, false));
    for (words, named) in [
        ("--workers 1:2 --nproc-per-node 2", "--workers and --nproc-per-node"),
        ("--on-failure replace --spares 65", "from 0 to 64"),
        ("--on-failure replace --backoff 1", "--backoff"),
    ] {
        let error = desk.refused(&format!("{words} train.py")).to_string();
        assert!(error.contains(named), "{error}");
    }
}

#[test]
fn variables_say_what_the_command_line_does_not_about_replacing() {
    let mut desk = Desk::new();
    let set = [("ENN_ON_FAILURE", "replace"), ("ENN_SPARES", "4"), ("ENN_WARM_DEVICE", "1"), ("ENN_WORKERS", "2:4")];
    desk.facts.replace = set.into_iter().map(|(name, text)| (name, text.to_owned())).collect();
    let replace = |words: &str| {
        let spec = desk.launch(&format!("{words} train.py")).spec;
        let found = spec.replace.map(|replace| (replace.workers_min, replace.spares, replace.warm_device));
        (spec.rendezvous.local_world, found)
    };
    assert_eq!(replace(""), (4, Some((2, 4, true))));
    assert_eq!(replace("--spares 5 --workers 1:3"), (3, Some((1, 5, true))));
    assert_eq!(replace("--nproc-per-node 2"), (2, Some((2, 4, true))));
    // Spares are of no use where all restart.
    assert_eq!(replace("--on-failure restart --nproc-per-node 2"), (2, None));
    let refused = |words: &str| desk.refused(&format!("{words} train.py")).to_string();
    assert!(refused("--on-failure restart").starts_with("ENN_WORKERS MIN:MAX without --on-failure replace"));
    for (name, found, named) in [
        ("ENN_ON_FAILURE", "never", "ENN_ON_FAILURE \"never\": expected restart or replace"),
        ("ENN_SPARES", "65", "ENN_SPARES \"65\": expected a whole number"),
        ("ENN_WARM_DEVICE", "yes", "ENN_WARM_DEVICE \"yes\": expected 1 or 0"),
        ("ENN_WORKERS", "2:1", "ENN_WORKERS \"2:1\": expected N or MIN:MAX"),
    ] {
        let mut desk = Desk::new();
        desk.facts.replace = [("ENN_ON_FAILURE", "replace".to_owned()), (name, found.to_owned())].into_iter().collect();
        let error = desk.refused("train.py").to_string();
        assert!(error.starts_with(named), "{error}");
    }
}

#[test]
fn spares_do_not_wait_for_an_import_in_the_background() {
    let desk = Desk::new();
    fs::write(desk.dir.path().join("train.py"), "import torch\n").unwrap();
    let behind = |words: &str| {
        let spec = desk.launch(&format!("--on-failure replace {words} train.py")).spec;
        spec.preload.unwrap().behind
    };
    assert!(behind(""));
    assert!(!behind("--spares 1"));
}

/// Flag, value, what else must be given for it to make a difference.
const TEXTS: [(&str, &str, &str); 24] = [
    ("--nnodes", "2", ""),
    ("--nproc-per-node", "3", ""),
    ("--node-rank", "1", "--nnodes 2"),
    ("--master-addr", "10.0.0.9", ""),
    ("--master-port", "1234", ""),
    ("--local-addr", "10.0.0.8", ""),
    ("--rdzv-backend", "c10d", ""),
    ("--rdzv-endpoint", "h:1", ""),
    ("--rdzv-id", "x", ""),
    ("--rdzv-conf", "last_call_timeout=7", ""),
    ("--role", "trainer", ""),
    ("--max-restarts", "3", ""),
    ("--signals-to-handle", "SIGUSR1", ""),
    ("--shutdown-timeout", "7", ""),
    ("--monitor-interval", "0.5", "--event-log-handler x"),
    ("--start-method", "fork", "--event-log-handler x"),
    ("--event-log-handler", "console", ""),
    ("--log-dir", "logs", ""),
    ("--redirects", "3", ""),
    ("--tee", "0:1", ""),
    ("--log-line-prefix-template", "${hostname}:", ""),
    ("--local-ranks-filter", "0,2", ""),
    ("--duplicate-stdout-filters", "a,,b,c", ""),
    ("--duplicate-stderr-filters", "d", ""),
];

fn shown(launch: &Launch) -> String {
    format!("{:?}{:?}{}", launch.spec, launch.log_dir, launch.notes.len())
}

#[test]
fn each_flag_has_two_spellings_and_a_variable() {
    let desk = Desk::new();
    for (flag, value, also) in TEXTS {
        let underscores = format!("--{}", flag[2..].replace('-', "_"));
        let variable = format!("PET_{}", underscores[2..].to_uppercase());
        let dashes = shown(&desk.launch(&format!("{also} {flag} {value} train.py")));
        assert_eq!(dashes, shown(&desk.launch(&format!("{also} {underscores}={value} train.py"))), "{flag}");
        let by_variable = desk.with(&[(&variable, value)]);
        assert_eq!(dashes, shown(&by_variable.launch(&format!("{also} train.py"))), "{variable}");
        let over = by_variable.launch(&format!("{also} {flag} {value} train.py"));
        assert_eq!(dashes, shown(&over), "{flag} beside {variable}");
        let nothing = desk.with(&[(&variable, "")]).launch(&format!("{also} train.py"));
        assert_eq!(shown(&nothing), shown(&desk.launch(&format!("{also} train.py"))), "an empty {variable}");
        if also != "--event-log-handler x" {
            assert_ne!(dashes, shown(&nothing), "{flag} changes something");
        }
    }
}

#[test]
fn switches_have_variables_with_numbers() {
    let desk = Desk::new();
    for flag in ["--module", "--no-python", "--run-path", "--virtual-local-rank"] {
        let variable = format!("PET_{}", flag[2..].to_uppercase().replace('-', "_"));
        let on = shown(&desk.launch(&format!("{flag} ./go")));
        assert_eq!(on, shown(&desk.launch(&format!("--{} ./go", flag[2..].replace('-', "_")))), "{flag}");
        assert_eq!(on, shown(&desk.with(&[(&variable, "1")]).launch("./go")), "{variable}=1");
        assert_eq!(
            on,
            shown(&desk.with(&[(&variable, "0")]).launch(&format!("{flag} ./go"))),
            "{variable}=0 and {flag}"
        );
        assert_ne!(on, shown(&desk.with(&[(&variable, "0")]).launch("./go")), "{variable}=0");
        let error = desk.with(&[(&variable, "yes")]).refused("./go").to_string();
        assert!(error.starts_with(&format!("{variable} \"yes\": expected 0 or 1")), "{error}");
    }
    let one = desk.with(&[("PET_STANDALONE", "1")]).launch("train.py").spec.rendezvous;
    assert_eq!((one.location, one.run_id.len()), (listen("127.0.0.1:0", true), 32));
}

#[test]
fn a_flag_wins_over_its_variable_and_the_last_of_two_wins() {
    let base = Desk::new();
    let desk = base.with(&[("PET_NPROC_PER_NODE", "5"), ("PET_ROLE", "r")]);
    let meeting = desk.launch("--nproc_per_node 2 --nproc-per-node 3 ./train.py").spec.rendezvous;
    assert_eq!((meeting.local_world, meeting.role.as_str()), (3, "r"));
    assert_eq!(desk.launch("--nproc 2 train.py").spec.rendezvous.local_world, 2, "a flag may be cut short");
}

#[test]
fn what_follows_the_program_is_the_programs() {
    let desk = Desk::new();
    let words = "--nproc-per-node 2 train.py --nproc-per-node 9 -m --help -- x --no-python";
    let spec = desk.launch(words).spec;
    let args: Vec<&str> = spec.command.args.iter().map(|arg| arg.to_str().unwrap()).collect();
    assert_eq!(args, ["-u", "train.py", "--nproc-per-node", "9", "-m", "--help", "--", "x", "--no-python"]);
    assert_eq!(spec.rendezvous.local_world, 2);
    assert!(Line::try_parse_from(["enn", "--nproc-per-nodes", "2", "train.py"]).is_err(), "no flag, no program");
    assert!(Line::try_parse_from(["enn", "--standalone"]).is_err(), "no program");
}

#[test]
fn the_command_of_a_worker() {
    let desk = Desk::new();
    let python = desk.dir.path().join("bin/python3").into_os_string();
    let command = |words: &str| desk.launch(words).spec.command;
    let args = |words: &str| command(words).args.into_iter().map(|arg| arg.into_string().unwrap()).collect::<Vec<_>>();
    assert_eq!(command("train.py a").program, python);
    assert_eq!(args("train.py a"), ["-u", "train.py", "a"]);
    assert_eq!(args("-m package.main a"), ["-u", "-m", "package.main", "a"]);
    assert_eq!(
        (command("--no-python ./go a").program, args("--no-python ./go a")),
        ("./go".into(), vec!["a".to_owned()])
    );
    let path = args("--run-path --no-python train.py a");
    assert_eq!((path[..2].join(" "), &path[3..]), ("-u -c".to_owned(), &["train.py".to_owned(), "a".to_owned()][..]));
    assert_eq!(args("-")[1], "-", "a script on standard input");
    let mut other = Desk::new();
    other.facts.python_exec = Some(OsString::from("./go"));
    assert_eq!(other.launch("train.py").spec.command.program, "./go");
}

#[test]
fn a_program_that_is_not_there_or_cannot_run_is_told_before_the_start() {
    let desk = Desk::new();
    let told = |words: &str| {
        let error = desk.refused(words);
        assert_eq!(error.torchrun_code(), ExitCode::WorkerFailed, "{words}");
        (error.exit_code(), error.to_string().lines().next().unwrap().to_owned())
    };
    assert_eq!(told("no.py"), (ExitCode::NotFound, "found no no.py, expected a script".into()));
    assert_eq!(told("--no-python ./no"), (ExitCode::NotFound, "found no ./no, expected a program".into()));
    assert_eq!(told("--no-python go"), (ExitCode::NotFound, "found no go, expected a program".into()));
    let (code, sentence) = told("--no-python ./train.py");
    assert_eq!(code, ExitCode::NotExecutable);
    assert!(sentence.ends_with("train.py is not executable, expected a program"), "{sentence}");
    assert!(desk.refused("--no-python go").to_string().contains("write ./ before its name"));
    assert!(desk.refused("python3").to_string().contains("add --no-python"));
    let (code, sentence) = told("--no-python -m go");
    assert_eq!(
        (code, sentence.as_str()),
        (ExitCode::Usage, "--no-python and --module were given together, expected one of them")
    );
    let mut bare = Desk::new();
    bare.facts.path = None;
    let error = bare.refused("train.py");
    assert_eq!(error.exit_code(), ExitCode::NotFound);
    assert!(error.to_string().starts_with("found no python3 or python on PATH"), "{error}");
}

#[test]
fn workers_by_number_and_by_device() {
    let mut desk = Desk::new();
    let workers =
        |desk: &Desk, text: &str| desk.launch(&format!("--nproc-per-node {text} train.py")).spec.rendezvous.local_world;
    assert_eq!((workers(&desk, "7"), workers(&desk, "cpu"), workers(&desk, "auto")), (7, 4, 4));
    let error = desk.refused("--nproc-per-node gpu train.py");
    assert_eq!(error.exit_code(), ExitCode::Machine);
    assert!(error.to_string().contains("found no GPU that this process may use"), "{error}");
    assert_eq!(desk.refused("--nproc-per-node xpu train.py").exit_code(), ExitCode::Machine);
    desk.facts.gpus = 2;
    desk.facts.xpus = 3;
    assert_eq!((workers(&desk, "gpu"), workers(&desk, "xpu"), workers(&desk, "auto")), (2, 3, 2));
    for wrong in ["0", "-1", "tpu", "1.5"] {
        let error = desk.refused(&format!("--nproc-per-node {wrong} train.py"));
        assert_eq!((error.exit_code(), error.torchrun_code()), (ExitCode::Usage, ExitCode::WorkerFailed), "{wrong}");
    }
}

#[test]
fn threads_are_set_when_several_workers_share_the_machine() {
    let mut desk = Desk::new();
    let Launch { spec, notes, .. } = desk.launch("--nproc-per-node 2 train.py");
    assert_eq!(spec.variables.get("OMP_NUM_THREADS"), Some(&OsString::from("1")));
    assert!(notes.len() == 1 && notes[0].starts_with("OMP_NUM_THREADS is 1"), "{notes:?}");
    assert!(desk.launch("train.py").spec.variables.is_empty());
    desk.facts.variables = vec![("OMP_NUM_THREADS".into(), "8".into())];
    assert!(desk.launch("--nproc-per-node 2 train.py").spec.variables.is_empty());
}

#[test]
fn where_the_nodes_meet() {
    let desk = Desk::new();
    let place = |words: &str| desk.launch(&format!("{words} train.py")).spec.rendezvous.location;
    assert_eq!(place("--master-port 7"), listen("127.0.0.1:7", false));
    assert_eq!(place("--master-addr localhost"), listen("127.0.0.1:29500", true));
    assert_eq!(place("--master-addr [::1] --master-port 8"), listen("[::1]:8", false));
    assert_eq!(place("--master-addr ::1 --master-port 8"), listen("[::1]:8", false));
    assert_eq!(place("--master-addr n1"), endpoint("n1", 29500, Some(true)));
    assert_eq!(place("--nnodes 2"), endpoint("127.0.0.1", 29500, Some(true)));
    assert_eq!(place("--nnodes 2:2 --node-rank 1 --master-addr n1 --master-port 8"), endpoint("n1", 8, Some(false)));
    assert_eq!(place("--nnodes 2 --rdzv-endpoint n1:9 --master-port 8"), endpoint("n1", 9, Some(true)));
    let c10d = |words: &str| place(&format!("--rdzv-backend c10d {words}"));
    assert_eq!(c10d(""), listen("127.0.0.1:29400", true));
    assert_eq!(c10d("--rdzv-endpoint n1:0"), listen("127.0.0.1:0", true));
    assert_eq!(c10d("--nnodes 1:4"), endpoint("localhost", 29400, None));
    assert_eq!(c10d("--nnodes 1:4 --rdzv-endpoint n1"), endpoint("n1", 29400, None));
    assert_eq!(
        c10d("--nnodes 2 --rdzv-endpoint [fd00::1]:3 --rdzv-conf is_host=no"),
        endpoint("fd00::1", 3, Some(false))
    );
    let elastic = desk.launch("--rdzv-backend c10d --nnodes 1:4 --node-rank 3 train.py").spec.rendezvous;
    assert_eq!((elastic.nodes_min, elastic.nodes_max, elastic.node_rank), (1, 4, None));
    assert_eq!(place("--standalone --nnodes 1:4 --rdzv-endpoint x:1 --rdzv-backend etcd"), listen("127.0.0.1:0", true));
}

#[test]
fn times_of_the_rendezvous() {
    let desk = Desk::new();
    let times = |words: &str| {
        let meeting = desk.launch(&format!("{words} train.py")).spec.rendezvous;
        (meeting.join_timeout.as_secs(), meeting.last_call.as_secs(), meeting.silence_max.as_secs_f64())
    };
    assert_eq!(times(""), (900, 30, 5.0));
    assert_eq!(times("--rdzv-backend c10d"), (600, 30, 5.0));
    assert_eq!(times("--rdzv-conf timeout=7"), (7, 30, 5.0));
    assert_eq!(
        times("--rdzv-backend c10d --rdzv-conf join_timeout=7,last_call_timeout=3,close_timeout=1"),
        (7, 3, 5.0)
    );
    assert_eq!(times("--rdzv-conf keep_alive_interval=2"), (900, 30, 6.0));
    assert_eq!(times("--rdzv-conf keep_alive_interval=0.5,keep_alive_max_attempt=4"), (900, 30, 2.0));
    let notes = desk.launch("--rdzv-conf colour=red,close_timeout=1 train.py").notes;
    assert_eq!(notes, ["--rdzv-conf: the key colour is not known and has no effect"]);
}

#[test]
fn output_of_the_workers() {
    let mut desk = Desk::new();
    desk.facts.log_prefix = Some("[${rank}]:".into());
    let logs =
        desk.launch("-r 0:3,11:2 -t1 --duplicate-stdout-filters a,,b,c --local-ranks-filter 0,2 train.py").spec.logs;
    assert_eq!(logs.redirects.all, StdStreams::default());
    assert_eq!(logs.redirects.ranks[&0], StdStreams { out: true, err: true });
    assert_eq!(logs.redirects.ranks[&11], StdStreams { out: false, err: true });
    assert_eq!(logs.tee.all, StdStreams { out: true, err: false });
    assert_eq!(logs.stdout_filters, ["a,b", "c"]);
    assert_eq!(logs.local_ranks_filter.unwrap().into_iter().collect::<Vec<_>>(), [0, 2]);
    assert_eq!(logs.prefix.as_deref(), Some("[${rank}]:"));
    let nowhere = desk.launch("--log-dir /dev/null train.py");
    assert_eq!((nowhere.log_dir, nowhere.spec.logs.keep), (None, false));
    assert!(!desk.launch("--no-capture train.py").spec.logs.keep);
    assert_eq!(desk.launch("--log-dir a/b train.py").log_dir.unwrap(), desk.dir.path().join("a/b"));
}

#[test]
fn the_time_to_stop_in_is_the_typed_one_else_that_of_a_variable() {
    let base = Desk::new();
    let seconds = |desk: &Desk, words: &str| desk.launch(&format!("{words} train.py")).spec.grace.as_secs_f64();
    let mut desk = base.with(&[]);
    assert_eq!((seconds(&desk, ""), seconds(&desk, "--shutdown-timeout 7")), (30.0, 7.0));
    desk.facts.shutdown_timeout = Some("600".into());
    assert_eq!((seconds(&desk, ""), seconds(&desk, "--shutdown_timeout=0")), (600.0, 0.0));
    let desk = base.with(&[("PET_SHUTDOWN_TIMEOUT", "8")]);
    assert_eq!((seconds(&desk, ""), seconds(&desk, "--grace 2.5")), (8.0, 2.5));
    let error = base.refused("--grace 2 --shutdown-timeout 3 train.py").to_string();
    assert!(error.starts_with("--grace and --shutdown-timeout were given together"), "{error}");
    let error = base.refused("--shutdown-timeout 2.5 train.py");
    assert_eq!((error.exit_code(), error.torchrun_code()), (ExitCode::Usage, ExitCode::Usage));
    assert!(error.to_string().starts_with("--shutdown-timeout \"2.5\": expected a whole number"), "{error}");
    let mut desk = base.with(&[]);
    desk.facts.shutdown_timeout = Some("soon".into());
    let error = desk.refused("train.py");
    assert!(
        error.to_string().starts_with("TORCH_ELASTIC_SHUTDOWN_TIMEOUT \"soon\": expected a whole number"),
        "{error}"
    );
}

#[test]
fn a_prefix_that_is_typed_wins_over_the_variable() {
    let mut desk = Desk::new();
    desk.facts.log_prefix = Some("[$rank]".into());
    let prefix = |words: &str| desk.launch(&format!("{words} train.py")).spec.logs.prefix.unwrap();
    assert_eq!(prefix("--log-line-prefix-template="), "[$rank]", "an empty one is none");
    assert_eq!((prefix(""), prefix("--log-line-prefix-template=--$rank:")), ("[$rank]".into(), "--$rank:".into()));
}

#[test]
fn flags_of_our_own() {
    let desk = Desk::new();
    let words = "--grace 2.5 --hang-timeout 60 --restart-window 10 --backoff 1 --retry-early --propagate-exit train.py";
    let spec = desk.launch(words).spec;
    assert_eq!((spec.grace.as_secs_f64(), spec.propagate_exit, spec.limits.retry_early), (2.5, true, true));
    assert_eq!(spec.rendezvous.hang_timeout.unwrap().as_secs(), 60);
    assert_eq!((spec.limits.window.unwrap().as_secs(), spec.limits.backoff.as_secs()), (10, 1));
    assert!(!desk.launch("train.py").spec.limits.retry_early);
    assert!(desk.try_launch("train.py", Dialect::Torchrun).unwrap().spec.limits.retry_early, "torchrun always does");
}

#[test]
fn wrong_values_are_told_with_place_found_expected_and_hint() {
    let desk = Desk::new();
    // The last says whether torchrun's parser refuses it, with code 2.
    let cases = [
        ("--nnodes 0", "--nnodes \"0\": expected N or MIN:MAX with 0 < MIN <= MAX", false),
        ("--nnodes 3:2", "--nnodes \"3:2\": expected N or MIN:MAX with 0 < MIN <= MAX", false),
        ("--nnodes 1:2:3", "--nnodes \"1:2:3\": expected N or MIN:MAX with 0 < MIN <= MAX", false),
        ("--nnodes 1:2", "--nnodes \"1:2\": expected one number, for static rendezvous cannot shrink or grow", false),
        (
            "--redirects 4",
            "--redirects \"4\": expected 0 (none), 1 (stdout), 2 (stderr), 3 (both), or RANK:VALUE,…",
            false,
        ),
        ("--tee 0:1,1", "--tee \"0:1,1\": expected 0 (none), 1 (stdout), 2 (stderr), 3 (both), or RANK:VALUE,…", false),
        ("--local-ranks-filter 0,x", "--local-ranks-filter \"0,x\": expected local ranks with commas between", false),
        (
            "--rdzv-conf join_timeout",
            "--rdzv-conf \"join_timeout\": expected KEY=VALUE,… with a value for every key",
            false,
        ),
        ("--rdzv-conf timeout=x", "--rdzv-conf \"x\": expected seconds, zero or more", false),
        ("--rdzv-backend etcd", "--rdzv-backend \"etcd\": expected static or c10d", false),
        ("--rdzv-endpoint h:99999", "--rdzv-endpoint \"h:99999\": expected HOST:PORT, PORT from 0 to 65535", false),
        ("--rdzv-endpoint h", "--rdzv-endpoint \"h\": expected HOST:PORT, PORT from 0 to 65535", false),
        ("--node-rank 1", "--node-rank 1: expected a number below 1, the number of nodes", false),
        ("--node-rank -1", "--node-rank \"-1\": expected a whole number, zero or more", true),
        ("--master-port 70000", "--master-port \"70000\": expected a port, 0 to 65535", true),
        ("--max-restarts x", "--max-restarts \"x\": expected a whole number, zero or more", true),
        ("--monitor-interval x", "--monitor-interval \"x\": expected seconds", true),
        ("--start-method thread", "--start-method \"thread\": expected spawn, fork or forkserver", true),
        ("--numa-binding near", "--numa-binding \"near\": expected node, socket, exclusive or core-complex", true),
        (
            "--logs-specs mine",
            "--logs-specs \"mine\": expected nothing: entry points are Python and cannot be loaded here",
            false,
        ),
        ("--standalone --nnodes 2", "--standalone with 2 nodes, expected one", false),
        ("--grace soon", "--grace \"soon\": expected seconds, zero or more", true),
        (
            "--rdzv-backend c10d --nnodes 2 --rdzv-endpoint h:0",
            "--rdzv-endpoint \"h:0\": expected a port that all nodes know",
            false,
        ),
    ];
    for (words, sentence, parser) in cases {
        let error = desk.refused(&format!("{words} train.py"));
        let text = error.to_string();
        assert_eq!(text.lines().next().unwrap(), sentence, "{words}");
        assert!(text.contains("\nhint: "), "{words}: {text}");
        let code = if parser { ExitCode::Usage } else { ExitCode::WorkerFailed };
        assert_eq!((error.exit_code(), error.torchrun_code()), (ExitCode::Usage, code), "{words}");
    }
    let variable = desk.with(&[("PET_NNODES", "q")]).refused("train.py").to_string();
    assert!(variable.starts_with("PET_NNODES \"q\": expected"), "{variable}");
    let pet = [("PET_NNODES".to_owned(), "q".to_owned())].into_iter().collect();
    let twice = Flags::default().with_variables(&pet).unwrap().with_variables(&pet).unwrap();
    assert_eq!(twice.place("--nnodes"), "PET_NNODES", "what is read twice keeps its place");
    let bound = desk.launch("--numa-binding node --nproc-per-node 2 train.py").spec.cpus;
    assert!(bound.len() == 2 && !bound[0].is_empty(), "{bound:?}");
    let notes = desk.launch("--signals-to-handle SIGTERM,SIGFOO,SIGKILL --event-log-handler x train.py").notes;
    assert_eq!(notes[0], "--event-log-handler x has no effect; events are in the run's events.jsonl");
    assert_eq!(notes[1], "--signals-to-handle: SIGFOO, SIGKILL cannot be handled");
}

#[test]
fn the_token_is_the_users_own_made_once_and_for_him_alone() {
    let desk = Desk::new();
    let token =
        |desk: &Desk, words: &str| desk.launch(&format!("--nnodes 2 {words} train.py")).spec.rendezvous.token.unwrap();
    let first = token(&desk, "");
    let file = desk.facts.config_dir.join("token");
    assert_eq!(first.from, TokenSource::File(file.clone()));
    assert_eq!(first.secret.len(), 64);
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(token(&desk, "").secret, first.secret, "made once");
    assert_eq!(fs::read_dir(&desk.facts.config_dir).unwrap().count(), 1, "nothing is left beside it");
    fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
    let error = desk.refused("--nnodes 2 train.py");
    assert!(error.to_string().contains("has mode 640") && error.to_string().contains("chmod 600"), "{error}");

    let mut by_variable = Desk::new();
    by_variable.facts.token = Some(Secret::new(b"a secret word".to_vec()));
    let given = token(&by_variable, "");
    assert_eq!((given.secret.as_slice(), &given.from), (&b"a secret word"[..], &TokenSource::Variable));
    let launch = format!("{:?} {:?}", by_variable.launch("--nnodes 2 train.py"), by_variable.facts);
    assert!(!launch.contains("a secret word"), "never shown");

    let own = by_variable.dir.path().join("own");
    write_private(&own, "another word\n");
    assert_eq!(token(&by_variable, "--token-file own").secret, b"another word", "a flag wins");
    write_private(&own, "abc\n");
    let error = by_variable.refused("--nnodes 2 --token-file own train.py").to_string();
    assert!(error.contains("has 3 bytes, expected at least 8") && !error.contains("abc"), "{error}");
    let error = by_variable.refused("--nnodes 2 --token-file no train.py").to_string();
    assert!(error.starts_with("cannot open the token file"), "{error}");
}

#[test]
fn variables_of_torchruns_agent_are_honoured_or_named() {
    let mut desk = Desk::new();
    assert_eq!(desk.launch("train.py").spec.timer_file, None);
    desk.facts.unhonoured =
        vec![("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1".into()), ("TORCHELASTIC_HEALTH_CHECK_PORT", "80".into())];
    let notes = desk.launch("train.py").notes;
    assert!(notes[0].starts_with("TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 is not honoured: workers share"), "{notes:?}");
    assert!(notes[1].starts_with("TORCHELASTIC_HEALTH_CHECK_PORT=80 is not honoured: "), "{notes:?}");
    desk.facts.file_timer = true;
    let spec = desk.launch("train.py").spec;
    let made = spec.timer_file.unwrap();
    assert_eq!(spec.variables["TORCHELASTIC_TIMER_FILE"], made);
    assert_ne!(desk.launch("train.py").spec.timer_file.unwrap(), made, "each launch has its own");
    desk.facts.timer_file = Some("timer".into());
    assert_eq!(desk.launch("train.py").spec.timer_file.unwrap(), desk.dir.path().join("timer"));
}

#[test]
fn more_workers_than_cores_are_told() {
    let mut desk = Desk::new();
    desk.facts.cores = 2;
    desk.facts.omp_threads = None;
    let told = |desk: &Desk, workers: &str| {
        let notes = desk.launch(&format!("--nproc-per-node {workers} train.py")).notes;
        notes.into_iter().find(|note| note.contains("share"))
    };
    assert_eq!((told(&desk, "1"), told(&desk, "2")), (None, None));
    let told_of_many = told(&desk, "64").unwrap();
    assert!(
        told_of_many.starts_with("64 workers share 2 cores") && told_of_many.contains("--nproc-per-node 2"),
        "{told_of_many}"
    );
    desk.facts.omp_threads = Some(2);
    assert!(told(&desk, "2").unwrap().starts_with("2 workers of 2 threads each (OMP_NUM_THREADS) share 2 cores"));
}

#[test]
fn how_long_and_how_much_is_kept() {
    let mut desk = Desk::new();
    let kept = |desk: &Desk, words: &str| desk.launch(&format!("{words} train.py")).retention;
    assert_eq!(kept(&desk, ""), Retention::default());
    desk.facts.keep_days = Some("unlimited".into());
    desk.facts.keep_size = Some("1M".into());
    assert_eq!(kept(&desk, ""), Retention { age_max: None, bytes_max: Some(1 << 20) });
    assert_eq!(desk.launch("train.py").spec.logs.kept_bytes_max, Some(1 << 20));
    let flags = kept(&desk, "--keep-days 1 --keep-size 2G");
    assert_eq!(flags, Retention { age_max: Some(Duration::from_secs(86_400)), bytes_max: Some(2 << 30) });
    let error = desk.refused("--keep-size much train.py").to_string();
    assert!(error.starts_with("--keep-size \"much\": expected bytes") && error.contains("\nhint: "), "{error}");
    desk.facts.keep_days = Some("-1".into());
    assert!(desk.refused("train.py").to_string().starts_with("ENN_KEEP_DAYS \"-1\": expected days"));
}

fn write_private(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
}
