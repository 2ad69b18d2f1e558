//! What releases.json, made from torch itself, says of each release of torchrun: variables and values of its flags.

use super::*;
use serde_json::Value;
use std::collections::BTreeSet;

const RELEASES: &str = include_str!("../releases.json");

fn of_each_flag(look: impl Fn(&str, &str, &Value)) {
    let releases: Value = serde_json::from_str(RELEASES).unwrap();
    let releases = releases.as_object().unwrap();
    assert!(["2.8.0", "2.11.0", "2.15.0"].iter().all(|release| releases.contains_key(*release)));
    for (release, flags) in releases {
        for (name, flag) in flags.as_object().unwrap() {
            look(release, name, flag);
        }
    }
}

#[test]
fn flags_have_the_variables_that_torch_gives_them() {
    let known: BTreeSet<String> = Flags::default().variables().into_iter().collect();
    of_each_flag(|release, name, flag| {
        if let Some(variable) = flag["variable"].as_str() {
            assert!(known.contains(variable), "{release} {name}: {variable}");
        } else {
            let variable = format!("PET_{}", name[2..].to_uppercase().replace('-', "_"));
            assert!(!known.contains(&variable), "{release} {name} has none");
        }
    });
}

#[test]
fn values_that_torch_lists_are_accepted() {
    let desk = Desk::new();
    of_each_flag(|release, name, flag| {
        // Shells are read by the parser.
        if name == "--print-completion" {
            return;
        }
        for value in flag["choices"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            let launch = desk.try_launch(&format!("{name} {value} train.py"), Dialect::Torchrun);
            // A machine without such CPUs or GPUs is another matter.
            let fits = matches!(&launch, Ok(_) | Err(RunError::Numa(_)));
            assert!(fits, "{release} {name} {value}: {}", launch.unwrap_err());
        }
    });
}
