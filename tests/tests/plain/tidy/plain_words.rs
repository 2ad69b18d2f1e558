//! The code stays in the range of the projects that it learns from: parameters with names, one assignment at a time, one meaning for each
//! type name, documentation with a subject, the words of the field, and short commit subjects.

use super::{
    hold,
    source::{PACKAGES, Source, Workspace, attributes, is_for_tests},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
};
use syn::{Expr, FnArg, Item, Pat, Signature, visit::Visit};

/// Type names that mean the same in every module.
const TYPES_OF_ALL: [&str; 3] = ["Args", "Error", "Result"];
/// First words of a doc comment that leave open what it is about.
const WITHOUT_SUBJECT: [&str; 16] = [
    "Of these",
    "Of it",
    "The same",
    "As [",
    "Its ",
    "It ",
    "It's ",
    "So many",
    "Into so many",
    "Those ",
    "These ",
    "They ",
    "Who ",
    "Whoever ",
    "Some of it",
    "What ",
];
/// A doc comment with so many words repeats a name.
const FEW_WORDS: usize = 3;
/// Places that are printed of a figure above its limit.
const PLACES_MAX: usize = 40;
/// The commit from which on subjects are measured.
const SUBJECTS_SINCE: &str = "23cfd7f6";
const SUBJECT_CHARS_MAX: usize = 72;

/// Names of 0.1 that do not come back: a kind of item and identifiers.
const OLD_NAMES: [(&str, &str); 7] = [
    (
        "enum",
        "CrewError Door Filled Into JudgeError Letter News NoWay Opened Place Refusal Standing Told Trouble Turn Way What Wish",
    ),
    (
        "field",
        "crew door doorkeeper doors figures glance heard heirs heritage judging keeper lending lent life news oracle \
         shelf standing strangers told wishes",
    ),
    (
        "fn",
        "accuse accused bequeath borrow_gradients bring carried coarse culprit deafen farewell glance has_heirs hear \
         inherit is_coarse is_judge is_lent judge lend lend_all lent letters mind_the_door obey poisoned put_off refusal \
         return_parameters spoken standing take_heard take_news take_said take_told tell_classes told told_end told_failure told_settings try_told \
         turn_away turned_away untold wishes",
    ),
    (
        "mod",
        "card coarse crew door doorkeeper figures glance guest guests hand heir heirs heritage implausible inherit judge keeper \
         late lend lent life news oracle remains shelf sig standing told true_retention untold wanted",
    ),
    ("static", "TOLD"),
    (
        "struct",
        "Card Crew Cut Doorkeeper Draw Farewell Figures Glance Guest Hand Hands Heard Heir Heirs Heritage \
         Judgement Keeper Late Lending Lent Letter Life Mark Meter Oracle Place Refusal Shelf Sig Standing Stranger \
         Told TrueRetention Turn Wishes",
    ),
    ("type", "BySig Place Places Strangers Told"),
];

/// Names of that list that are the right word where they stand: kind, identifier, file, and why.
const OLD_NAMES_ALLOWED: &[(&str, &str, &str, &str)] = &[
    ("enum", "Place", "common/src/config/error.rs", "the place of an error in a configuration"),
    ("field", "strangers", "common/src/staged/meta.rs", "a key of a format of 0.1"),
    ("field", "strangers", "common/src/staged/unfinished.rs", "a key of a format of 0.1"),
    ("fn", "refusal", "worker/core/src/precision/decide.rs", "the reason why a format is refused"),
    ("struct", "Cut", "launcher/data/src/stage/windows/samples.rs", "windows are cut into samples"),
    ("struct", "Mark", "launcher/process/src/sweep.rs", "the mark by which processes of a launch are known"),
];

/// What the measured files hold.
#[derive(Default)]
struct Counts {
    lines: usize,
    functions: usize,
    docs: usize,
    /// Type names of packages, with their places.
    types: BTreeMap<(&'static str, String), Vec<String>>,
    patterns: Vec<String>,
    parallel: Vec<String>,
    without_subject: Vec<String>,
    few_words: Vec<String>,
}

/// One row of the table.
struct Figure<'a> {
    what: &'static str,
    places: &'a [String],
    of: usize,
    per: usize,
    max: f64,
}

impl Figure<'_> {
    fn value(&self) -> f64 {
        (self.places.len() * self.per) as f64 / self.of.max(1) as f64
    }
}

struct Syntax<'a> {
    source: &'a Source,
    counts: &'a mut Counts,
}

impl<'ast> Visit<'ast> for Syntax<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_for_tests(attributes(item)) {
            syn::visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !is_for_tests(&function.attrs) {
            syn::visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_signature(&mut self, signature: &'ast Signature) {
        self.counts.functions += 1;
        let is_pattern = |argument: &FnArg| matches!(argument, FnArg::Typed(one) if is_tuple_or_array(&one.pat));
        if signature.inputs.iter().any(is_pattern) {
            self.counts.patterns.push(format!("{}: {}", self.source.at(signature), signature.ident));
        }
        syn::visit::visit_signature(self, signature);
    }

    // The other side of a foreign function gives it its parameters.
    fn visit_item_foreign_mod(&mut self, _: &'ast syn::ItemForeignMod) {}

    fn visit_local(&mut self, local: &'ast syn::Local) {
        let pattern = if let Pat::Type(typed) = &local.pat { &*typed.pat } else { &local.pat };
        if let (Pat::Tuple(_), Some(init)) = (pattern, &local.init)
            && matches!(&*init.expr, Expr::Tuple(_))
        {
            self.counts.parallel.push(self.source.at(local));
        }
        syn::visit::visit_local(self, local);
    }

    fn visit_expr_assign(&mut self, assign: &'ast syn::ExprAssign) {
        if matches!((&*assign.left, &*assign.right), (Expr::Tuple(_), Expr::Tuple(_))) {
            self.counts.parallel.push(self.source.at(assign));
        }
        syn::visit::visit_expr_assign(self, assign);
    }
}

fn is_tuple_or_array(pattern: &Pat) -> bool {
    match pattern {
        Pat::Tuple(_) | Pat::Slice(_) => true,
        Pat::Reference(reference) => is_tuple_or_array(&reference.pat),
        _ => false,
    }
}

/// The doc comments of a file, each in one line, with the number of the first.
fn doc_comments(source: &Source) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut last = 0;
    for (number, line) in source.numbered_code_lines() {
        let text = line.trim_start();
        if let Some(text) = text.strip_prefix("///").filter(|text| !text.starts_with('/')) {
            match found.last_mut() {
                Some((_, doc)) if last + 1 == number => *doc = format!("{doc} {}", text.trim()),
                _ => found.push((number, text.trim().to_owned())),
            }
            last = number;
        }
    }
    found
}

fn is_measured(source: &Source) -> bool {
    !matches!(source.package, "enn-tests" | "enn-examples")
}

fn counts<'a>(sources: impl Iterator<Item = &'a Source>) -> Counts {
    let mut counts = Counts::default();
    for source in sources {
        counts.lines += source.numbered_code_lines().count();
        Syntax { source, counts: &mut counts }.visit_file(source.tree());
        for item in source.tree().items.iter().filter(|item| !is_for_tests(attributes(item))) {
            let name = match item {
                Item::Enum(item) => &item.ident,
                Item::Struct(item) => &item.ident,
                Item::Trait(item) => &item.ident,
                Item::Type(item) => &item.ident,
                Item::Union(item) => &item.ident,
                _ => continue,
            };
            counts.types.entry((source.package, name.to_string())).or_default().push(source.at(item));
        }
        for (line, doc) in doc_comments(source) {
            counts.docs += 1;
            let place = || format!("{}:{line}: {doc}", source.path.display());
            if doc.split_whitespace().count() <= FEW_WORDS {
                counts.few_words.push(place());
            }
            if WITHOUT_SUBJECT.iter().any(|opening| doc.starts_with(opening)) {
                counts.without_subject.push(place());
            }
        }
    }
    counts
}

#[test]
fn the_code_is_in_the_range_of_its_models() {
    let workspace = Workspace::load();
    let counts = counts(workspace.all().filter(|source| is_measured(source)));
    let twice =
        counts.types.iter().filter(|((_, name), places)| places.len() > 1 && !TYPES_OF_ALL.contains(&name.as_str()));
    let twice: Vec<String> =
        twice.map(|((package, name), places)| format!("{package}: {name} at {}", places.join(", "))).collect();
    let row = |what, places, of, per, max| Figure { what, places, of, per, max };
    let table = [
        row("functions with tuple or array patterns as parameters", &counts.patterns, counts.functions, 1000, 1.2),
        row("lines with parallel assignments", &counts.parallel, counts.lines, 1000, 0.45),
        row("type names defined more than once in a package", &twice, counts.types.len(), 100, 7.0),
        row("doc comments without a subject", &counts.without_subject, counts.docs, 100, 0.6),
        row("doc comments of three words or fewer", &counts.few_words, counts.docs, 100, 9.8),
    ];
    println!("{} lines, {} functions, {} doc comments", counts.lines, counts.functions, counts.docs);
    for figure in &table {
        let (value, unit) = (figure.value(), if figure.per == 100 { "%" } else { "of 1,000" });
        println!("{:55} {:5} {value:6.2} {unit}, at most {}", figure.what, figure.places.len(), figure.max);
    }
    let above = table.iter().filter(|figure| figure.value() > figure.max);
    let breaches = above.flat_map(|figure| {
        let title = format!("{}: {:.2}, at most {}; for example", figure.what, figure.value(), figure.max);
        let places = figure.places.iter().take(PLACES_MAX).map(|place| format!("  {place}"));
        std::iter::once(title).chain(places).collect::<Vec<_>>()
    });
    hold(
        "the code is in the range of its models",
        "give what belongs together a type with a name, and documentation a subject, or none where the name says it",
        breaches.collect(),
    );
}

#[test]
fn the_counters_see_what_they_count() {
    let text = r#"
        struct Twice;
        /// Its own count.
        fn f((a, b): (u8, u8)) { let (c, d) = (a, b); (e, g) = (1, 2); let (h, i) = pair; }
        /// The sum of two numbers, in seconds.
        ///
        /// # Errors
        fn g(&[a, b]: &[u8; 2], c: u8) {}
        mod inner { struct Twice; }
        #[cfg(test)]
        mod tests { fn f((a, b): (u8, u8)) { let (c, d) = (a, b); } }
    "#;
    let source = |name: &str| Source::new("enn-p", "p", format!("p/src/{name}").into(), text.to_owned(), false);
    let counts = counts([source("a.rs"), source("b.rs")].iter());
    assert_eq!((counts.functions, counts.docs), (4, 4));
    assert_eq!((counts.patterns.len(), counts.parallel.len()), (4, 4));
    assert_eq!((counts.few_words.len(), counts.without_subject.len()), (2, 2));
    assert_eq!(counts.types.values().map(Vec::len).collect::<Vec<_>>(), [2]);
}

/// Items, fields and modules, with their kind.
struct Names(Vec<(&'static str, syn::Ident)>);

impl<'ast> Visit<'ast> for Names {
    fn visit_item(&mut self, item: &'ast Item) {
        if is_for_tests(attributes(item)) {
            return;
        }
        let found = match item {
            Item::Enum(item) => Some(("enum", &item.ident)),
            Item::Mod(item) => Some(("mod", &item.ident)),
            Item::Static(item) => Some(("static", &item.ident)),
            Item::Struct(item) => Some(("struct", &item.ident)),
            Item::Trait(item) => Some(("trait", &item.ident)),
            Item::Type(item) => Some(("type", &item.ident)),
            _ => None,
        };
        self.0.extend(found.map(|(kind, name)| (kind, name.clone())));
        syn::visit::visit_item(self, item);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !is_for_tests(&function.attrs) {
            syn::visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_signature(&mut self, signature: &'ast Signature) {
        self.0.push(("fn", signature.ident.clone()));
        syn::visit::visit_signature(self, signature);
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        self.0.extend(field.ident.clone().map(|name| ("field", name)));
        syn::visit::visit_field(self, field);
    }
}

#[test]
fn old_names_do_not_come_back() {
    let workspace = Workspace::load();
    let mut breaches = Vec::new();
    let mut unused: BTreeSet<_> = OLD_NAMES_ALLOWED.iter().collect();
    for source in workspace.all().filter(|source| is_measured(source)) {
        let mut names = Names(Vec::new());
        names.visit_file(source.tree());
        for (kind, name) in names.0 {
            let of_kind = OLD_NAMES.iter().filter(|(of_kind, _)| *of_kind == kind);
            if !of_kind.flat_map(|(_, names)| names.split_whitespace()).any(|old| name == old) {
                continue;
            }
            let allowed = OLD_NAMES_ALLOWED.iter().find(|(of_kind, of_name, file, _)| {
                *of_kind == kind && name == *of_name && source.path.ends_with(file)
            });
            match allowed {
                Some(allowed) => drop(unused.remove(allowed)),
                None => breaches.push(format!("{}: {kind} {name}", source.at(&name))),
            }
        }
    }
    for (kind, name, file, _) in unused {
        breaches.push(format!("OLD_NAMES_ALLOWED names {kind} {name} in {file}, which is not there"));
    }
    hold(
        "names are words of the field",
        "say what the thing is in the words of the field, or give the reason in OLD_NAMES_ALLOWED",
        breaches,
    );
}

#[test]
fn commit_subjects_are_short() {
    let workspace = Workspace::load();
    let range = format!("{SUBJECTS_SINCE}^..HEAD");
    let log = Command::new("git").args(["log", "--format=%h %s", &range]).current_dir(&workspace.root).output();
    let Some(log) = log.ok().filter(|log| log.status.success()) else {
        println!("there is no history since {SUBJECTS_SINCE}: nothing was checked");
        return;
    };
    let log = String::from_utf8(log.stdout).unwrap();
    let long = log.lines().filter(|line| {
        let subject = line.split_once(' ').map_or("", |(_, subject)| subject);
        subject.chars().count() > SUBJECT_CHARS_MAX
    });
    let long = long.map(str::to_owned).collect();
    hold("a commit subject has at most 72 characters", "say what in the subject and why in the body", long);
}

#[test]
fn every_package_is_measured_or_named() {
    let workspace = Workspace::load();
    let empty = PACKAGES.iter().filter(|package| workspace.lines(package.name) == 0 && package.name != "enn-examples");
    hold("every package has lines", "correct its folder", empty.map(|package| package.name.to_owned()).collect());
}
