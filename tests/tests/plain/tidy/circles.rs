//! No file imports a file that imports it, neither directly nor through others.

use super::{
    hold,
    imports::{Import, imports},
    source::{PACKAGES, Workspace},
};
use std::collections::{BTreeMap, BTreeSet};

/// The files of a circle.
type Circle = BTreeSet<String>;

/// Circles that exist, each with the files in it and the reason.
const KNOWN: &[(&str, &[&str])] = &[];

/// What each file imports.
struct Graph(BTreeMap<String, BTreeSet<String>>);

impl Graph {
    fn new(imports: &[Import<'_>]) -> Self {
        let mut graph: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for import in imports {
            let to = import.to.path.display().to_string();
            graph.entry(import.from.path.display().to_string()).or_default().insert(to);
        }
        Self(graph)
    }

    /// The files that `file` imports, directly or through others.
    fn reach(&self, file: &str) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let mut open = vec![file.to_owned()];
        while let Some(file) = open.pop() {
            for next in self.0.get(&file).into_iter().flatten() {
                if found.insert(next.clone()) {
                    open.push(next.clone());
                }
            }
        }
        found
    }

    /// The largest sets of files in which each reaches all others.
    fn circles(&self) -> BTreeSet<Circle> {
        let reach: BTreeMap<&String, BTreeSet<String>> = self.0.keys().map(|file| (file, self.reach(file))).collect();
        let circle_of = |file: &String| -> Circle {
            let others = reach[file].iter().filter(|other| reach.get(other).is_some_and(|back| back.contains(file)));
            others.cloned().collect()
        };
        self.0.keys().map(circle_of).filter(|circle| circle.len() > 1).collect()
    }
}

/// The imports between files of a circle: one line for each pair of files.
fn description(circle: &Circle, all: &[Import<'_>]) -> String {
    let mut names: BTreeMap<(String, String), BTreeSet<&str>> = BTreeMap::new();
    for import in all {
        let from = import.from.path.display().to_string();
        let to = import.to.path.display().to_string();
        if circle.contains(&from) && circle.contains(&to) {
            names.entry((from, to)).or_default().insert(&import.path);
        }
    }
    let line = |((from, to), names): ((String, String), BTreeSet<&str>)| {
        format!("\n    {from} imports from {to}: {}", names.into_iter().collect::<Vec<_>>().join(", "))
    };
    names.into_iter().map(line).collect()
}

#[test]
fn files_import_each_other_in_no_circle() {
    let workspace = Workspace::load();
    let mut known: BTreeSet<Circle> =
        KNOWN.iter().map(|(_, files)| files.iter().map(|file| (*file).to_owned()).collect()).collect();
    assert_eq!(known.len(), KNOWN.len(), "a circle stands twice in KNOWN");
    let mut breaches = Vec::new();
    for package in &PACKAGES {
        let all = imports(workspace.sources(package.name)).inside;
        for circle in Graph::new(&all).circles() {
            if !known.remove(&circle) {
                breaches.push(format!(
                    "a circle of {} files in {}:{}",
                    circle.len(),
                    package.folder,
                    description(&circle, &all)
                ));
            }
        }
    }
    for circle in known {
        let files = circle.into_iter().collect::<Vec<_>>().join(", ");
        breaches.push(format!("KNOWN names a circle that no longer exists: {files}"));
    }
    hold(
        "the imports between files of a package form no circle",
        "move what both need to a file below, or pass it in; take a circle that you opened out of KNOWN in tests/tests/plain/tidy/circles.rs",
        breaches,
    );
}
