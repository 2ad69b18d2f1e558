//! T1, T2, T9: which crate and which module may know which.

use super::{
    hold,
    source::{CRATES, Source, Workspace},
};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
};

/// A crate and those of ours it may depend on. Development dependencies are free.
const CRATE_ARROWS: [(&str, &[&str]); 7] = [
    ("enn-common", &[]),
    ("enn-broker", &["enn-common"]),
    ("enn-export", &["enn-common"]),
    ("enn-launcher", &["enn-broker", "enn-common", "enn-export"]),
    ("enn-worker", &["enn-common"]),
    ("enn-tests", &["enn-broker", "enn-common", "enn-export", "enn-launcher"]),
    ("enn-examples", &["enn-broker", "enn-common", "enn-export", "enn-launcher", "enn-worker"]),
];

/// Dependencies nobody may have, with the reason.
const BANNED: [(&str, &str); 2] =
    [("anyhow", "errors are enums near the operation"), ("tokio", "threads and channels, one owner loop")];

/// The clients of object stores need it, and so does the library that speaks HTTP with clients of `enn serve`: one who speaks it in
/// earnest is well kept and asynchronous, and none that is not asynchronous is kept at all. The client stays inside one file, the server
/// inside its file and that of its connections' places.
const TOKIO_EXCEPTION: ((&str, &str), [&str; 3]) = (
    ("enn-launcher", "tokio"),
    ["launcher/src/remote/store.rs", "launcher/src/serve/http.rs", "launcher/src/serve/connections.rs"],
);

#[test]
fn t1_an_asynchronous_runtime_stays_in_its_files() {
    let workspace = Workspace::load();
    let is_named =
        |source: &Source| ["tokio::", "hyper::", "hyper_util::"].iter().any(|name| source.text.contains(name));
    let is_allowed = |source: &Source| TOKIO_EXCEPTION.1.iter().any(|file| source.path.ends_with(file));
    let breaches = workspace.all().filter(|source| source.krate != "tests" && is_named(source) && !is_allowed(source));
    let breaches = breaches.map(|source| source.path.display().to_string()).collect();
    hold("an asynchronous runtime is named in three files", "call what those files offer", breaches);
}

/// The worker's floors, lowest first; an arrow never points up.
const WORKER_FLOORS: [&[&str]; 10] = [
    &["probe"],
    &["error", "backend"],
    &["op"],
    &["kernel", "precision"],
    &["autograd"],
    &["functional", "params"],
    &["layer"],
    &["block", "loss"],
    &["model"],
    &["export"],
];

/// They know tensors and parameters; only `session` knows them.
const WORKER_TOWERS: [&str; 5] = ["data", "comm", "optim", "checkpoint", "profile"];
const TOWER_BASE: [&str; 7] = ["error", "backend", "op", "params", "autograd", "functional", "precision"];

/// Modules of the launcher that know nothing of the rest of it.
const LAUNCHER_LEAVES: [&str; 7] = ["ui", "stage", "gather", "convert", "doctor", "baselines", "tasks"];

#[test]
fn t1_crates_know_only_those_below() {
    let workspace = Workspace::load();
    let cargo = option_env!("CARGO").unwrap_or("cargo");
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--offline", "--format-version=1"])
        .current_dir(&workspace.root)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    assert_eq!(packages.len(), CRATES.len(), "a crate was added: give it its arrows in CRATE_ARROWS");
    let allowed: BTreeMap<&str, &[&str]> = CRATE_ARROWS.into_iter().collect();
    let mut breaches = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap();
        let arrows = allowed.get(name).unwrap_or_else(|| panic!("{name} has no arrows in CRATE_ARROWS"));
        for dependency in package["dependencies"].as_array().unwrap() {
            let other = dependency["name"].as_str().unwrap();
            if dependency["kind"] == "dev" {
                continue;
            }
            if other.starts_with("enn-") && !arrows.contains(&other) {
                breaches.push(format!("{name} depends on {other}"));
            }
            if ["tch", "torch-sys"].contains(&other) && name != "enn-worker" {
                breaches.push(format!("{name} links libtorch through {other}"));
            }
            let excepted = (name, other) == TOKIO_EXCEPTION.0;
            if let Some((_, reason)) = BANNED.iter().find(|(banned, _)| *banned == other && !excepted) {
                breaches.push(format!("{name} depends on {other}: {reason}"));
            }
        }
    }
    hold(
        "a crate knows only crates below it, and only worker links libtorch",
        "move the code, not the arrow",
        breaches,
    );
}

/// Breaches of "`source`'s module may use `other`", for every module `source` names.
fn upward(source: &Source, may: impl Fn(&str, &str) -> bool, modules: &BTreeSet<String>) -> Vec<String> {
    let own = source.module();
    source
        .modules_used("crate")
        .into_iter()
        .filter(|(other, _)| *other != own && modules.contains(other) && !may(&own, other))
        .map(|(other, line)| format!("{}:{line}: {own} uses crate::{other}", source.path.display()))
        .collect()
}

fn modules(workspace: &Workspace, krate: &'static str) -> BTreeSet<String> {
    workspace.sources(krate).map(Source::module).filter(|module| !module.is_empty()).collect()
}

fn check(krate: &'static str, rule: &str, may: impl Fn(&str, &str) -> bool) {
    let workspace = Workspace::load();
    let modules = modules(&workspace, krate);
    let breaches = workspace
        .sources(krate)
        .filter(|source| !source.module().is_empty())
        .flat_map(|source| upward(source, &may, &modules))
        .collect();
    hold(rule, "move what is shared down, or pass it in as a value", breaches);
}

fn floor(module: &str) -> Option<usize> {
    WORKER_FLOORS.iter().position(|floor| floor.contains(&module))
}

#[test]
fn t2_worker_modules_keep_their_floors() {
    check(
        "worker",
        "worker: an arrow never points up; towers know no model; only session sees all",
        |own, other| match (floor(own), floor(other)) {
            _ if own == "session" => true,
            (Some(own), Some(other)) => own >= other,
            (None, Some(_)) if WORKER_TOWERS.contains(&own) => TOWER_BASE.contains(&other),
            (None, Some(_)) if own == "export" => true,
            _ => false,
        },
    );
}

#[test]
fn t2_every_worker_module_has_a_floor() {
    let workspace = Workspace::load();
    let homeless = modules(&workspace, "worker")
        .into_iter()
        .filter(|module| floor(module).is_none() && !WORKER_TOWERS.contains(&module.as_str()))
        .filter(|module| !["session", "export"].contains(&module.as_str()))
        .collect();
    hold("worker: every module has its place", "put it on a floor in tests/tests/it/tidy/arrows.rs", homeless);
}

#[test]
fn t2_launcher_modules_keep_their_direction() {
    check(
        "launcher",
        "launcher: cli -> api -> the engines; ui and the engines know nothing of each other",
        |own, other| match (own, other) {
            ("cli", _) => true,
            (_, "cli") => false,
            ("api", _) => true,
            (_, "api") => false,
            // Output that waits for a slow reader is written alike everywhere.
            ("ui", _) => ["baselines", "process"].contains(&other),
            ("cv", _) => ["baselines", "evaluation", "gather", "process"].contains(&other),
            ("evaluation", _) => ["baselines", "stage"].contains(&other),
            ("serve", _) => ["stage", "gather", "ui"].contains(&other),
            ("agent", _) => !["gather", "convert", "doctor", "baselines"].contains(&other),
            ("process" | "numa" | "rendezvous" | "template", _) => false,
            ("preload", _) => other == "process",
            ("logs", _) => ["run_dir", "process", "template"].contains(&other),
            ("stacks", _) => other == "process",
            ("chaos", _) => ["process", "run_dir", "ui"].contains(&other),
            ("slurm", _) => other == "rendezvous",
            ("group", _) => ["process", "logs", "preload", "rendezvous", "stacks", "template"].contains(&other),
            // It asks a Python for its plug-ins.
            ("torchrun", "process") => true,
            ("torchrun", _) => {
                ["group", "logs", "numa", "preload", "rendezvous", "retention", "facts", "libtorch", "doctor"]
                    .contains(&other)
            }
            ("libtorch", _) => other == "process",
            // It tells what the search finds, asks programs what they are, and tries the fork server.
            ("doctor", "libtorch" | "preload" | "process") => true,
            ("retention", _) => ["logs", "run_dir", "runs"].contains(&other),
            ("runs", _) => ["logs", "run_dir", "ui"].contains(&other),
            (leaf, _) if LAUNCHER_LEAVES.contains(&leaf) => ["error", "facts"].contains(&other),
            // Doctor's table says which variables there are to read.
            ("facts", "doctor" | "libtorch") => true,
            ("facts" | "run_dir" | "error", _) => ["facts", "run_dir", "error"].contains(&other) || own == "error",
            _ => true,
        },
    );
}

#[test]
fn t2_broker_tcpstore_and_roster_stand_alone() {
    check("broker", "broker: server -> {tcpstore, roster}; tcpstore alone, roster on values only", |own, other| {
        match own {
            "tcpstore" => false,
            "roster" => ["event", "shards"].contains(&other),
            _ => true,
        }
    });
}

#[test]
fn t2_formats_know_neither_configuration_nor_messages() {
    check("common", "common: staged, checkpoint, artifact and fs import neither config nor wire", |own, other| {
        !(["staged", "checkpoint", "artifact", "fs"].contains(&own) && ["config", "wire"].contains(&other))
    });
}

/// Modules of `common` with one user that are common all the same, and why.
const COMMON_ALLOWED: [(&str, &str); 1] = [("exit", "the contract with whoever starts enn")];

#[test]
fn t9_what_is_common_is_used_by_two_crates() {
    let workspace = Workspace::load();
    let mut users: BTreeMap<String, BTreeSet<&str>> =
        modules(&workspace, "common").into_iter().map(|module| (module, BTreeSet::new())).collect();
    for krate in CRATES.into_iter().filter(|krate| *krate != "common") {
        for (module, _) in workspace.sources(krate).flat_map(|source| source.modules_used("enn_common")) {
            users.entry(module).or_default().insert(krate);
        }
        let tests = workspace.integration_test_text(krate);
        for (module, users) in &mut users {
            if tests.contains(&format!("enn_common::{module}")) {
                users.insert(krate);
            }
        }
    }
    let inside: BTreeSet<String> = workspace
        .sources("common")
        .flat_map(|source| source.modules_used("crate").into_iter().filter(|(module, _)| *module != source.module()))
        .map(|(module, _)| module)
        .collect();
    let lonely = users
        .into_iter()
        .filter(|(module, users)| users.len() < 2 && !inside.contains(module))
        .filter(|(module, _)| !COMMON_ALLOWED.iter().any(|(allowed, _)| allowed == module))
        .map(|(module, users)| format!("common::{module} is used by {users:?} only"))
        .collect();
    hold(
        "what is in common is used by two crates, or by the rest of common",
        "move it to the crate that uses it",
        lonely,
    );
}
