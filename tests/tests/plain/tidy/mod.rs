//! The rules of the house that no compiler checks (STYLE, part D2). Each failure names the place and how to mend it.

mod arrows;
mod blocks;
mod circles;
mod dependencies;
mod imports;
mod names;
mod pages;
mod paths;
mod picture;
mod plain_words;
mod screens;
mod sizes;
mod source;
mod unsafety;

use source::{PACKAGES, Workspace};

/// Fails with every breach of a rule at once, and the way out.
fn hold(rule: &str, way_out: &str, breaches: Vec<String>) {
    assert!(
        breaches.is_empty(),
        "{rule}\n{}\n{} in all; {way_out}\n",
        breaches.iter().map(|breach| format!("  {breach}")).collect::<Vec<_>>().join("\n"),
        breaches.len(),
    );
}

#[test]
fn the_scan_sees_the_code() {
    let workspace = Workspace::load();
    // The programs of enn-examples have folders of their own.
    for package in PACKAGES.iter().filter(|package| package.name != "enn-examples") {
        assert!(workspace.sources(package.name).count() > 3, "{} was not found", package.name);
    }
}
