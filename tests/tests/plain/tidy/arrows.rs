//! T1, T2, T9: which package and which module may know which.

use super::{
    hold,
    imports::imports,
    source::{PACKAGES, Source, Workspace},
};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
};

/// A package and those of ours that it may depend on. Development dependencies are free.
const CRATE_ARROWS: [(&str, &[&str]); 16] = [
    ("enn-common", &[]),
    ("enn-broker", &["enn-common"]),
    ("enn-process", &["enn-common"]),
    ("enn-cluster", &["enn-broker", "enn-common", "enn-process"]),
    ("enn-checkpoint", &["enn-common", "enn-process"]),
    ("enn-data", &["enn-checkpoint", "enn-common", "enn-process"]),
    ("enn-ui", &["enn-common", "enn-data", "enn-process"]),
    ("enn-serve", &["enn-checkpoint", "enn-common", "enn-data", "enn-ui"]),
    ("enn-export", &["enn-common"]),
    (
        "enn-launcher",
        &[
            "enn-checkpoint",
            "enn-cluster",
            "enn-common",
            "enn-data",
            "enn-export",
            "enn-process",
            "enn-serve",
            "enn-ui",
        ],
    ),
    ("enn-core", &["enn-common"]),
    ("enn-comm", &["enn-common", "enn-core"]),
    ("enn-model", &["enn-common", "enn-core"]),
    ("enn-worker", &["enn-comm", "enn-common", "enn-core", "enn-model"]),
    ("enn-tests", &["enn-broker", "enn-checkpoint", "enn-cluster", "enn-common", "enn-export"]),
    ("enn-examples", &["enn-common", "enn-launcher", "enn-worker"]),
];
/// Packages that link libtorch.
const LIBTORCH: [&str; 5] = ["enn-core", "enn-comm", "enn-model", "enn-worker", "enn-examples"];

/// Dependencies nobody may have, with the reason.
const BANNED: [(&str, &str); 2] =
    [("anyhow", "errors are enums near the operation"), ("tokio", "threads and channels, one owner loop")];

/// The clients of object stores need an asynchronous runtime, and so does the HTTP library of `enn serve`: the maintained ones are all
/// asynchronous. The client stays in one file, the server in three.
const TOKIO_PACKAGES: [&str; 3] = ["enn-checkpoint", "enn-serve", "enn-ui"];
const TOKIO_FILES: [&str; 5] = [
    "launcher/checkpoint/src/remote/store.rs",
    "launcher/serve/src/http.rs",
    "launcher/ui/src/http_server.rs",
    "launcher/ui/src/http_server/connections.rs",
    "launcher/ui/src/http_server/long_poll.rs",
];

#[test]
fn t1_an_asynchronous_runtime_stays_in_its_files() {
    let workspace = Workspace::load();
    let is_named =
        |source: &Source| ["tokio::", "hyper::", "hyper_util::"].iter().any(|name| source.text.contains(name));
    let is_allowed = |source: &Source| TOKIO_FILES.iter().any(|file| source.path.ends_with(file));
    let breaches =
        workspace.all().filter(|source| source.package != "enn-tests" && is_named(source) && !is_allowed(source));
    let breaches = breaches.map(|source| source.path.display().to_string()).collect();
    hold("an asynchronous runtime is named in five files", "call what those files offer", breaches);
}

/// Modules of a package by height, lowest first: a module imports those of its floor and of lower ones.
struct Floors {
    package: &'static str,
    floors: &'static [&'static [&'static str]],
    /// Modules that import no other and that no other imports.
    apart: &'static [&'static str],
}

const FLOORS: [Floors; 4] = [
    Floors {
        package: "enn-core",
        floors: &[
            &["error", "backend"],
            &["op"],
            &["kernel", "precision"],
            &["autograd"],
            &["functional", "params"],
            &["profile"],
        ],
        apart: &[],
    },
    Floors { package: "enn-model", floors: &[&["layer"], &["block", "loss"], &["model"]], apart: &["optim"] },
    Floors {
        package: "enn-worker",
        floors: &[&["probe", "data", "checkpoint", "collective"], &["export", "sharding"], &["session"]],
        apart: &[],
    },
    Floors {
        package: "enn-launcher",
        floors: &[
            &["names", "pages"],
            &["chaos", "doctor", "error", "export", "facts", "libtorch", "retention", "schema", "tasks", "torchrun"],
            &["api", "help"],
            &["cli"],
        ],
        apart: &[],
    },
];

/// Files and folders of the worker's session by height, lowest first: one imports those of its floor and of lower ones.
const SESSION_FLOORS: [&[&str]; 8] = [
    &["clock", "decide", "error", "excluded_rows", "own", "report"],
    &["agree", "checkpointing", "dataset", "kernels", "link", "memory", "nonfinite_cause", "precision", "progress"],
    &["boot", "eval", "learner", "recovery"],
    &["inference", "init", "round", "torchrun"],
    &["steps", "train"],
    &["worker_loop"],
    &["run"],
    &["program"],
];

/// Modules of enn-process that are not about one process.
const AROUND_PROCESSES: [&str; 6] = ["logs", "numa", "preload", "run_dir", "stacks", "template"];

/// A package, a module, and all that it may import of ours besides enn-common: modules of the package, other packages, and modules of
/// other packages. A module `*` stands for all of the package and limits what it imports of others. In enn-process, `process` stands for
/// the modules about one process.
const LIMITS: [(&str, &str, &[&str]); 31] = [
    ("enn-broker", "tcpstore", &[]),
    ("enn-broker", "roster", &["event"]),
    ("enn-process", "process", &[]),
    ("enn-process", "numa", &[]),
    ("enn-process", "run_dir", &[]),
    ("enn-process", "template", &[]),
    ("enn-process", "logs", &["process", "run_dir", "template"]),
    ("enn-process", "preload", &["process"]),
    ("enn-process", "stacks", &["process"]),
    ("enn-cluster", "rendezvous", &["enn_broker::tcpstore"]),
    ("enn-cluster", "slurm", &["enn_process", "rendezvous"]),
    ("enn-checkpoint", "convert", &[]),
    ("enn-checkpoint", "gather", &[]),
    ("enn-data", "baselines", &[]),
    ("enn-data", "stage", &[]),
    ("enn-data", "evaluation", &["baselines", "stage"]),
    ("enn-data", "cv", &["baselines", "enn_checkpoint::gather", "enn_process", "evaluation", "stage"]),
    // Output that waits for a slow reader is written alike everywhere.
    ("enn-ui", "*", &["enn_data::baselines", "enn_process"]),
    ("enn-serve", "*", &["enn_checkpoint::gather", "enn_data::stage", "enn_ui"]),
    ("enn-launcher", "chaos", &["enn_process", "enn_ui"]),
    ("enn-launcher", "libtorch", &["enn_process"]),
    // It tells what the search finds, asks programs what they are, and tries the fork server.
    ("enn-launcher", "doctor", &["enn_process", "error", "facts", "libtorch"]),
    // Doctor's table says which variables there are to read.
    ("enn-launcher", "facts", &["doctor", "enn_process", "error", "libtorch"]),
    ("enn-launcher", "retention", &["enn_process", "enn_ui::runs"]),
    ("enn-launcher", "schema", &["facts", "pages"]),
    ("enn-launcher", "tasks", &["error", "facts", "names"]),
    (
        "enn-launcher",
        "torchrun",
        &[
            "doctor",
            "enn_cluster::rendezvous",
            "enn_cluster::supervise",
            "enn_process",
            "facts",
            "libtorch",
            "retention",
        ],
    ),
    ("enn-worker", "data", &["enn_core"]),
    ("enn-worker", "checkpoint", &["enn_core"]),
    ("enn-worker", "collective", &["enn_comm", "enn_core", "enn_model"]),
    ("enn-worker", "sharding", &["collective", "enn_comm", "enn_core", "enn_model"]),
];

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
    assert_eq!(packages.len(), PACKAGES.len(), "a package was added: give it a row in PACKAGES and in CRATE_ARROWS");
    let allowed: BTreeMap<&str, &[&str]> = CRATE_ARROWS.into_iter().collect();
    let mut breaches = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap();
        let is_listed = PACKAGES.iter().any(|one| {
            let manifest = workspace.root.join(one.folder).join("Cargo.toml");
            one.name == name && manifest.to_str() == package["manifest_path"].as_str()
        });
        assert!(is_listed, "{name} is not in PACKAGES with its folder");
        let arrows = allowed.get(name).unwrap_or_else(|| panic!("{name} has no arrows in CRATE_ARROWS"));
        for dependency in package["dependencies"].as_array().unwrap() {
            let other = dependency["name"].as_str().unwrap();
            if dependency["kind"] == "dev" {
                continue;
            }
            if other.starts_with("enn-") && !arrows.contains(&other) {
                breaches.push(format!("{name} depends on {other}"));
            }
            if ["tch", "torch-sys"].contains(&other) && !LIBTORCH.contains(&name) {
                breaches.push(format!("{name} links libtorch through {other}"));
            }
            let excepted = other == "tokio" && TOKIO_PACKAGES.contains(&name);
            if let Some((_, reason)) = BANNED.iter().find(|(banned, _)| *banned == other && !excepted) {
                breaches.push(format!("{name} depends on {other}: {reason}"));
            }
        }
    }
    hold(
        "a package imports only packages below it, and only those of worker and examples link libtorch",
        "move the code, not the arrow",
        breaches,
    );
}

fn modules(workspace: &Workspace, package: &str) -> BTreeSet<String> {
    workspace.sources(package).map(Source::module).filter(|module| !module.is_empty()).collect()
}

/// Breaches of "`own` may import `other`" between modules of a package.
fn between_modules(workspace: &Workspace, package: &str, may: impl Fn(&str, &str) -> bool) -> Vec<String> {
    let mut breaches = Vec::new();
    for import in imports(workspace.sources(package)).inside {
        let (own, other) = (import.from.module(), import.to.module());
        if own != other && !own.is_empty() && !other.is_empty() && !may(&own, &other) {
            breaches.push(format!(
                "{}:{}: {own} imports {} of {other}",
                import.from.path.display(),
                import.line,
                import.path
            ));
        }
    }
    breaches
}

#[test]
fn t2_modules_keep_their_floors() {
    let workspace = Workspace::load();
    let mut breaches = Vec::new();
    for Floors { package, floors, apart } in FLOORS {
        let floor = |module: &str| floors.iter().position(|floor| floor.contains(&module));
        let modules = modules(&workspace, package);
        let homeless = modules.iter().filter(|module| floor(module).is_none() && !apart.contains(&module.as_str()));
        breaches.extend(homeless.map(|module| format!("{package}: {module} has no floor")));
        let gone = floors.iter().copied().flatten().chain(apart).filter(|module| !modules.contains(**module));
        breaches.extend(gone.map(|module| format!("{package}: FLOORS names {module}, which is not there")));
        breaches.extend(between_modules(&workspace, package, |own, other| match (floor(own), floor(other)) {
            (Some(own), Some(other)) => own >= other,
            _ => false,
        }));
    }
    hold(
        "a module imports no module of a higher floor",
        "move what is shared down, or pass it in as a value; a new module gets its floor in tests/tests/plain/tidy/arrows.rs",
        breaches,
    );
}

/// The file or folder of the session that a source belongs to; none for others, and for session/mod.rs.
fn part_of_session(source: &Source) -> Option<String> {
    let path = source.below_src().with_extension("");
    let mut parts = path.iter().map(|part| part.to_string_lossy().into_owned());
    let is_in_session = parts.next()? == "session";
    parts.next().filter(|part| is_in_session && part != "mod")
}

#[test]
fn t2_parts_of_the_session_keep_their_floors() {
    let workspace = Workspace::load();
    let floor = |part: &str| SESSION_FLOORS.iter().position(|floor| floor.contains(&part));
    let parts: BTreeSet<String> = workspace.sources("enn-worker").filter_map(part_of_session).collect();
    let homeless = parts.iter().filter(|part| floor(part).is_none()).map(|part| format!("{part} has no floor"));
    let named = SESSION_FLOORS.into_iter().flatten();
    let gone = named.filter(|part| !parts.contains(**part)).map(|part| format!("{part} is not there"));
    let mut breaches: Vec<String> = homeless.chain(gone).collect();
    for import in imports(workspace.sources("enn-worker")).inside {
        let Some((own, other)) = part_of_session(import.from).zip(part_of_session(import.to)) else { continue };
        if floor(&own) < floor(&other) {
            breaches.push(format!("{}:{}: {own} imports {}", import.from.path.display(), import.line, import.path));
        }
    }
    hold(
        "a part of the session imports no part of a higher floor",
        "move what is shared down, or pass it in as a value; a new file gets its floor in SESSION_FLOORS",
        breaches,
    );
}

#[test]
fn t2_modules_import_what_they_may() {
    let workspace = Workspace::load();
    let mut breaches = Vec::new();
    for (package, module, _) in LIMITS.iter().filter(|(_, module, _)| !["*", "process"].contains(module)) {
        if !modules(&workspace, package).contains(*module) {
            breaches.push(format!("{package}: LIMITS names {module}, which is not there"));
        }
    }
    for package in &PACKAGES {
        let limit = |module: &str| {
            let is_of_processes = package.name == "enn-process" && !AROUND_PROCESSES.contains(&module);
            let name = if is_of_processes { "process" } else { module };
            LIMITS.iter().find(|limit| limit.0 == package.name && limit.1 == name).map(|limit| (limit.1, limit.2))
        };
        let may = |own: &str, other: &str| {
            let Some((own, allowed)) = limit(own) else { return true };
            let other = limit(other).map_or(other, |(name, _)| name);
            own == other || allowed.contains(&other)
        };
        breaches.extend(between_modules(&workspace, package.name, may));
        let of_all = limit("*");
        for (source, line, path) in imports(workspace.sources(package.name)).outside {
            let module = path.get(1).map_or_else(|| path[0].clone(), |module| format!("{}::{module}", path[0]));
            let is_free = path[0] == "enn_common" || path[0] == package.name.replace('-', "_");
            let limits = [limit(&source.module()), of_all];
            let is_allowed =
                |allowed: &[&str]| allowed.contains(&path[0].as_str()) || allowed.contains(&module.as_str());
            if !is_free && limits.into_iter().flatten().any(|(_, allowed)| !is_allowed(allowed)) {
                breaches.push(format!(
                    "{}:{line}: {} imports {}",
                    source.path.display(),
                    source.module(),
                    path.join("::")
                ));
            }
        }
    }
    hold("a module imports only what LIMITS allows", "move what is shared down, or pass it in as a value", breaches);
}

#[test]
fn t2_formats_know_neither_configuration_nor_messages() {
    let workspace = Workspace::load();
    let breaches = between_modules(&workspace, "enn-common", |own, other| {
        !(["staged", "checkpoint", "artifact", "fs"].contains(&own) && ["config", "wire"].contains(&other))
    });
    hold(
        "staged, checkpoint, artifact and fs import neither config nor wire",
        "pass in what they need as a value",
        breaches,
    );
}

/// Modules of `common` with one user that are common all the same, and why.
const COMMON_ALLOWED: [(&str, &str); 1] = [("exit", "the contract with whoever starts enn")];

#[test]
fn t9_what_is_common_is_used_by_two_packages() {
    let workspace = Workspace::load();
    let mut users: BTreeMap<String, BTreeSet<&str>> =
        modules(&workspace, "enn-common").into_iter().map(|module| (module, BTreeSet::new())).collect();
    for package in PACKAGES.iter().filter(|package| package.name != "enn-common") {
        for (module, _) in workspace.sources(package.name).flat_map(|source| source.modules_used("enn_common")) {
            users.entry(module).or_default().insert(package.name);
        }
        let tests = workspace.integration_test_text(package);
        for (module, users) in &mut users {
            if tests.contains(&format!("enn_common::{module}")) {
                users.insert(package.name);
            }
        }
    }
    let inside: BTreeSet<String> = workspace
        .sources("enn-common")
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
        "what is in common is used by two packages, or by the rest of common",
        "move it to the package that uses it",
        lonely,
    );
}
