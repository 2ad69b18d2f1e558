//! The rules of the house that no compiler checks (STYLE, part D2). Each failure names the place and how to mend it.

mod arrows;
mod names;
mod pages;
mod paths;
mod screens;
mod sizes;
mod source;
mod unsafety;

use source::Workspace;

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
    for name in ["common", "broker", "launcher", "worker"] {
        assert!(workspace.sources(name).count() > 3, "{name} was not found");
    }
}
