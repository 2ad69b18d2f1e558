//! T11: others' crates come from one place under licenses that we accept, are not there twice without a reason, and are used. What is
//! accepted is in deny.toml, which `cargo deny` reads, too; this test needs no tool that takes minutes to compile.

#![expect(clippy::unwrap_used, reason = "it is part of tests")]

use super::{hold, source::rust_files};
use enn_tests::pages::root;
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Command,
};
use toml::Table;

/// What cargo knows of the crates of a build on this machine, without asking the network.
fn metadata() -> Value {
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut command = Command::new(option_env!("CARGO").unwrap_or("cargo"));
    command.args(["metadata", "--offline", "--format-version=1", "--filter-platform", &platform]).current_dir(root());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn deny() -> Table {
    fs::read_to_string(root().join("deny.toml")).unwrap().parse().unwrap()
}

fn texts(list: &toml::Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect()
}

/// The packages, and whether each is ours.
fn packages(metadata: &Value) -> impl Iterator<Item = (&Value, bool)> {
    metadata["packages"].as_array().unwrap().iter().map(|package| (package, package["source"].is_null()))
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

#[test]
fn t11_crates_come_from_one_registry() {
    let deny = deny();
    let allowed = texts(&deny["sources"]["allow-registry"]);
    let metadata = metadata();
    let strangers = packages(&metadata).filter(|(package, is_ours)| {
        let from = text(package, "source").strip_prefix("registry+");
        !is_ours && from.is_none_or(|from| !allowed.contains(&from))
    });
    let breaches = strangers.map(|(package, _)| format!("{} of {}", text(package, "name"), text(package, "source")));
    hold("a crate comes from crates.io", "take a release of it", breaches.collect());
}

/// Whether an SPDX expression is met by licenses that are allowed. A slash is an old way to write OR.
fn is_met(expression: &str, allowed: &[&str]) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut words = spaced.split_whitespace().peekable();
    let met = either(&mut words, allowed);
    met && words.next().is_none()
}

type Words<'a, 'b> = &'a mut std::iter::Peekable<std::str::SplitWhitespace<'b>>;

fn either(words: Words<'_, '_>, allowed: &[&str]) -> bool {
    let mut met = both(words, allowed);
    while words.next_if_eq(&"OR").is_some() {
        met |= both(words, allowed);
    }
    met
}

fn both(words: Words<'_, '_>, allowed: &[&str]) -> bool {
    let mut met = one(words, allowed);
    while words.next_if_eq(&"AND").is_some() {
        met &= one(words, allowed);
    }
    met
}

fn one(words: Words<'_, '_>, allowed: &[&str]) -> bool {
    if words.next_if_eq(&"(").is_some() {
        let met = either(words, allowed);
        return words.next() == Some(")") && met;
    }
    let license = words.next().unwrap_or_default();
    // An exception is a license of its own.
    let exception = words.next_if_eq(&"WITH").and_then(|_| words.next());
    let whole = exception.map_or_else(|| license.to_owned(), |exception| format!("{license} WITH {exception}"));
    allowed.contains(&whole.as_str())
}

#[test]
fn t11_licenses_are_those_of_deny_toml() {
    let deny = deny();
    let allowed = texts(&deny["licenses"]["allow"]);
    let metadata = metadata();
    let mut breaches = Vec::new();
    for (package, _) in packages(&metadata).filter(|(_, is_ours)| !is_ours) {
        let license = text(package, "license");
        if !is_met(license, &allowed) {
            breaches.push(format!("{} {}: {license:?}", text(package, "name"), text(package, "version")));
        }
    }
    let is_needed =
        |license: &&str| packages(&metadata).any(|(package, _)| text(package, "license").contains(*license));
    breaches
        .extend(allowed.iter().filter(|license| !is_needed(license)).map(|license| format!("nobody has {license}")));
    hold("licenses are those that deny.toml allows", "take another crate, or allow the license there", breaches);
}

#[test]
fn t11_the_lint_reads_licenses() {
    let allowed = ["MIT", "ISC", "BSD-3-Clause"];
    for good in ["MIT", "GPL-3.0/MIT", "Apache-2.0 OR MIT", "ISC AND (Apache-2.0 OR MIT)", "(GPL-3.0 OR ISC) AND MIT"] {
        assert!(is_met(good, &allowed), "{good}");
    }
    for bad in ["", "GPL-3.0", "MIT AND GPL-3.0", "ISC AND (Apache-2.0 OR GPL-3.0)", "MIT WITH x", "MIT ISC", "(MIT"] {
        assert!(!is_met(bad, &allowed), "{bad}");
    }
}

#[test]
fn t11_no_crate_is_there_twice_without_a_reason() {
    let deny = deny();
    let skipped = deny["bans"]["skip"].as_array().unwrap().iter().map(|entry| {
        assert!(!entry["reason"].as_str().unwrap().is_empty(), "{entry}");
        entry["crate"].as_str().unwrap().to_owned()
    });
    let skipped: BTreeSet<String> = skipped.collect();
    let metadata = metadata();
    let nodes = metadata["resolve"]["nodes"].as_array().unwrap();
    let built: BTreeSet<&str> = nodes.iter().map(|node| text(node, "id")).collect();
    let mut versions: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (package, _) in packages(&metadata).filter(|(package, _)| built.contains(text(package, "id"))) {
        let name = text(package, "name");
        versions.entry(name).or_default().push(format!("{name}@{}", text(package, "version")));
    }
    let several: BTreeSet<&String> = versions.values().filter(|all| all.len() > 1).flatten().collect();
    let mut breaches: Vec<String> = versions
        .values()
        .map(|all| all.iter().filter(|one| !skipped.contains(*one)).cloned().collect::<Vec<_>>())
        .filter(|left| left.len() > 1)
        .map(|left| left.join(" and "))
        .collect();
    breaches.extend(skipped.iter().filter(|one| !several.contains(one)).map(|one| format!("{one} is not there twice")));
    hold(
        "a crate is there once, and deny.toml has the reason where it is not",
        "use the version that is there, or add or remove an entry of `skip` there",
        breaches,
    );
}

/// Code of a package in three parts: its own, that of its tests and examples, and that of its build. Packages below it are not part of it.
fn code(folder: &Path) -> [String; 3] {
    let mut parts = [String::new(), String::new(), String::new()];
    for path in rust_files(folder) {
        let mut above = path.ancestors().skip(1).take_while(|above| *above != folder);
        if above.any(|above| above.join("Cargo.toml").exists()) {
            continue;
        }
        let below = path.strip_prefix(folder).unwrap();
        let part = match below.iter().next().and_then(|first| first.to_str()) {
            Some("tests" | "examples") => 1,
            Some("build.rs") => 2,
            _ => 0,
        };
        let text = fs::read_to_string(&path).unwrap();
        let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        lines.for_each(|line| parts[part].extend([line, "\n"]));
    }
    parts
}

/// Whether code names a crate: in a path, or in a `use` of the whole of it.
fn names(code: &str, name: &str) -> bool {
    code.match_indices(name).any(|(at, _)| {
        let before = code[..at].trim_end_matches([' ', '\n']);
        let is_end = !code[..at].ends_with(|one: char| one.is_alphanumeric() || matches!(one, '_' | '.'));
        // `::name` is a root, `other::name` is none.
        let above = before.strip_suffix("::");
        let is_root = above.is_none_or(|above| !above.ends_with(|one: char| one.is_alphanumeric() || one == '_'));
        let after = &code[at + name.len()..];
        let is_used = before.ends_with("use") || before.ends_with("extern crate");
        is_end && is_root && (after.starts_with("::") || is_used && after.starts_with([';', ' ']))
    })
}

#[test]
fn t11_every_dependency_is_used() {
    let metadata = metadata();
    let mut breaches = Vec::new();
    for (package, _) in packages(&metadata).filter(|(_, is_ours)| *is_ours) {
        let own = text(package, "name");
        let [code, tests, build] = code(Path::new(text(package, "manifest_path")).parent().unwrap());
        for dependency in package["dependencies"].as_array().unwrap() {
            let name = dependency["rename"].as_str().unwrap_or(text(dependency, "name"));
            let root = name.replace('-', "_");
            let is_named = match dependency["kind"].as_str() {
                None => names(&code, &root),
                Some("dev") => names(&code, &root) || names(&tests, &root),
                Some(_) => names(&build, &root),
            };
            if !is_named {
                breaches.push(format!("{own} has {name}, which its code does not name"));
            }
        }
    }
    hold(
        "a dependency is used by the package that asks for it",
        "remove it from Cargo.toml, or make it one of dev-dependencies",
        breaches,
    );
}

#[test]
fn t11_the_lint_sees_a_name() {
    for used in ["use half::f16;", "use half;", "let x = half::bf16::ZERO;", "::half::f16", "[\n    half::f16\n]"] {
        assert!(names(used, "half"), "{used}");
    }
    for unused in ["let half = 3;", "self.half::<u8>()", "crate::half::x", "behalf::x", "use crate::half;"] {
        assert!(!names(unused, "half"), "{unused}");
    }
}

#[test]
fn t11_crates_without_code_in_their_documentation_are_not_searched_for_it() {
    let runs = |line: &str| {
        let text = line.trim_start().strip_prefix("//!").or_else(|| line.trim_start().strip_prefix("///"));
        text.and_then(|text| text.trim_start().strip_prefix("```")).map(|kind| kind.trim().to_owned())
    };
    let metadata = metadata();
    let mut breaches = Vec::new();
    for (package, _) in packages(&metadata).filter(|(_, is_ours)| *is_ours) {
        let folder = Path::new(text(package, "manifest_path")).parent().unwrap();
        let targets = package["targets"].as_array().unwrap();
        let Some(library) = targets.iter().find(|target| target["kind"][0] == "lib") else { continue };
        let mut has_code = false;
        for path in rust_files(&folder.join("src")) {
            let text = fs::read_to_string(path).unwrap();
            let fences: Vec<String> = text.lines().filter_map(runs).collect();
            // Every second one ends a block.
            has_code |= fences.iter().step_by(2).any(|kind| !kind.starts_with("text"));
        }
        if has_code != library["doctest"].as_bool().unwrap() {
            breaches.push(format!("{}: doctest = {has_code}", text(package, "name")));
        }
    }
    hold(
        "a crate has doctest = false if no code is in its documentation",
        "say so below [lib] in Cargo.toml",
        breaches,
    );
}
