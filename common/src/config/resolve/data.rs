//! `[data]`: files, cleaning rules, one layout, the split.

use crate::config::{
    data::{
        ArraysLayout, Calendar, ColumnRange, DataConfig, DataSource, DuplicatePolicy, Feature, FeatureKind, Index,
        Labels, Layout, Outside, RowsLayout, SourceFormat, SplitConfig, SplitKind, TargetMask, WindowsLayout,
    },
    error::{ConfigError, ConfigErrorKind, Place},
    facts::Facts,
    names,
    raw::{RawEntry, RawNode, RawValue},
    section::Section,
    shape::ValueShape,
};
use std::{
    collections::BTreeMap,
    ops::RangeInclusive,
    path::{Path, PathBuf},
};

const KINDS: &[(&str, FeatureKind)] = &[
    ("number", FeatureKind::Number),
    ("category", FeatureKind::Category),
    ("index", FeatureKind::Index(Index { offset: 0, rows: 0, outside: Outside::Unknown })),
    ("labels", FeatureKind::Labels(Labels { separator: ';', empty_is_missing: false })),
    ("time", FeatureKind::Time),
];
/// What keys with code of their own expect.
const SOURCES: &str = "a list of sections, [[data.sources]]";
const RANGES: &str = "a section with a pair of numbers for each column, or a list of sections, [[data.ranges]]";
const FEATURE: &str = "a column name, or a section with column and kind";
const FEATURES: &str = "a list of column names and of sections with column and kind, or \"*\"";
/// Meaning of an empty cell of labels, and whether that is missing.
const EMPTIES: &[(&str, bool)] = &[("none", false), ("missing", true)];
/// How categories are read, and whether that is as one-hot columns.
const ENCODINGS: &[(&str, bool)] = &[("embedding", false), ("one_hot", true)];
/// Keys of a feature, and the kinds that have them.
const OF_KINDS: &[(&str, &str, &[&str])] = &[
    ("encoding", "\"category\" or \"index\"", &["category", "index"]),
    ("offset", "\"index\"", &["index"]),
    ("rows", "\"index\"", &["index"]),
    ("outside", "\"index\"", &["index"]),
    ("separator", "\"labels\"", &["labels"]),
    ("empty", "\"labels\"", &["labels"]),
];
/// Rows of an index, at most, and how far from 0 they may begin.
const INDEX_ROWS_MAX: usize = 100_000;
const INDEX_OFFSET_MAX: i64 = 1 << 52;
const MASKS: &[(&str, TargetMask)] =
    &[("finite", TargetMask::Finite), ("none", TargetMask::None), ("value", TargetMask::Value(0.0))];
/// Kinds of target, and whether they are classes.
const TARGETS: &[(&str, bool)] = &[("number", false), ("category", true)];
/// Cell texts that mean "missing" unless `missing_only` lists others.
pub const MISSING_DEFAULT: &[&str] = &["NA", "N/A", "NaN", "nan", "null", "NULL", "None"];

const SOURCES_MAX: usize = 256;
/// Weights of sources: no ratio of two of them is beyond what rounding to whole samples can keep.
const WEIGHTS: RangeInclusive<f64> = 1e-6..=1e6;

/// Value of `features` that means all columns of the table.
pub const ALL_COLUMNS: &str = "*";

const LAYOUTS: [&str; 3] = ["rows", "windows", "arrays"];
const DAY_S: i64 = 86_400;
const YEAR_S: i64 = 366 * DAY_S;

/// The data section, or `None` after a mistake that leaves nothing to describe.
pub(super) fn resolve(
    mut section: Section<'_>,
    seed: u64,
    facts: &Facts,
    errors: &mut Vec<ConfigError>,
) -> Option<DataConfig> {
    let s = &mut section;
    let (files, sources) = sources(s, facts);
    let format = s.name("format", &SourceFormat::NAMES);
    let sheet = s.text("sheet");
    let missing = missing(s);
    let duplicates = s.name("duplicates", &names::all());
    let units = s.text("units").unwrap_or_default();
    let ranges = ranges(s);
    let weight = s.text("weight");
    let mask = mask(s);
    let mut inner = Vec::new();
    let layout = layout(s, &mut inner);
    let input_units = input_units(s, layout.as_ref());
    if weight.is_some() && !matches!(layout, Some(Layout::Rows(_)) | None) {
        s.error_at("weight", ConfigErrorKind::RowsOnly);
    }
    if matches!(layout, Some(Layout::Windows(_))) && duplicates == Some(DuplicatePolicy::Keep) {
        s.error_at("duplicates", ConfigErrorKind::KeepWindows);
    }
    let kind = match layout {
        Some(Layout::Windows(_)) => SplitKind::Chronological,
        _ => SplitKind::Random,
    };
    let default = SplitConfig { kind, val: 0.15, test: 0.15, seed, column: None };
    let split = match s.section("split") {
        Some(inner_section) => split(inner_section, default, &mut inner),
        None => default,
    };
    section.finish(errors);
    errors.append(&mut inner);
    let layout = layout?;
    let duplicates =
        duplicates.unwrap_or(if layout.has_row_id() { DuplicatePolicy::First } else { DuplicatePolicy::Keep });
    Some(DataConfig {
        files,
        sources,
        format,
        sheet,
        missing,
        duplicates,
        layout,
        split,
        units,
        input_units,
        ranges,
        weight,
        mask,
    })
}

/// `missing = […]` beside the usual tokens, or `missing_only = […]` in their place.
fn missing(s: &mut Section<'_>) -> Vec<String> {
    let more = s.texts("missing");
    let only = s.texts("missing_only");
    if more.is_some() && only.is_some() {
        s.error_at("missing_only", ConfigErrorKind::MissingTwice);
    }
    only.unwrap_or_else(|| {
        let mut tokens: Vec<String> = MISSING_DEFAULT.iter().map(|token| (*token).to_owned()).collect();
        for token in more.unwrap_or_default() {
            if !tokens.contains(&token) {
                tokens.push(token);
            }
        }
        tokens
    })
}

/// `[data.input_units]` with `column = "m/s"`.
fn input_units(s: &mut Section<'_>, layout: Option<&Layout>) -> BTreeMap<String, String> {
    let mut units = BTreeMap::new();
    // Which columns are numbers is known once the table is read.
    let layout = layout.filter(|layout| !matches!(layout, Layout::Rows(rows) if rows.features.is_empty()));
    for entry in s.free("input_units") {
        let name = format!("input_units.{}", entry.key);
        units.extend(s.text_of(&name, &entry.node).map(|text| (entry.key.clone(), text)));
        if layout.is_some_and(|layout| !layout.measures(&entry.key)) {
            s.error(&name, entry.node.place.clone(), ConfigErrorKind::NotMeasured);
        }
    }
    units
}

/// `mask = "finite" | "none" | "value"`, the last with `mask_value`.
fn mask(s: &mut Section<'_>) -> TargetMask {
    let has = s.has("mask_value");
    let value = s.number_if("mask_value", ..).unwrap_or(0.0);
    let mask = s.name("mask", MASKS).unwrap_or_default();
    match (mask, has) {
        (TargetMask::Value(_), true) => return TargetMask::Value(value),
        (TargetMask::Value(_), false) => {
            s.error_at("mask_value", ConfigErrorKind::Missing("the number that means \"missing\" in a target"));
        }
        (_, true) => s.error_at("mask_value", ConfigErrorKind::IdleMaskValue),
        (_, false) => {}
    }
    mask
}

/// `[[data.sources]]` with `name`, `files` and perhaps `weight`, or `files` alone.
fn sources(s: &mut Section<'_>, facts: &Facts) -> (Vec<PathBuf>, Vec<DataSource>) {
    let Some(node) = s.node("sources", SOURCES) else { return (files(s, facts), Vec::new()) };
    if s.texts("files").is_some() {
        s.error_at("files", ConfigErrorKind::FilesAndSources);
    }
    let RawValue::Array(items) = &node.value else {
        s.wrong("sources", node, &ValueShape::Other(SOURCES));
        return (Vec::new(), Vec::new());
    };
    if !(1..=SOURCES_MAX).contains(&items.len()) {
        s.out_of_range("sources", items.len().to_string(), format!("1 to {SOURCES_MAX} sources"));
    }
    let mut all = Vec::new();
    let mut sources = Vec::new();
    for item in items {
        let mut section = s.item("sources", item);
        let name = section.text_required("name", "a name for reports");
        let files = files(&mut section, facts);
        let has_weight = section.has("weight");
        let weight = section.number("weight", WEIGHTS, 1.0);
        section.finish(&mut s.errors);
        sources.push(DataSource { name, files: files.len(), weight: has_weight.then_some(weight) });
        all.extend(files);
    }
    s.distinct("sources", sources.iter().map(|source| source.name.as_str()));
    s.distinct("sources", all.iter().filter_map(|path| path.to_str()));
    let weighted = sources.iter().filter(|source| source.weight.is_some()).count();
    if weighted != 0 && weighted != sources.len() {
        s.error_at("sources", ConfigErrorKind::SomeWeights { weighted, sources: sources.len() });
    }
    (all, sources)
}

fn files(s: &mut Section<'_>, facts: &Facts) -> Vec<PathBuf> {
    if !s.has("files") {
        s.error_at("files", ConfigErrorKind::Missing("a path or a list of paths"));
    }
    let files = s.texts("files").unwrap_or_default();
    if files.is_empty() && s.has("files") {
        s.error_at("files", ConfigErrorKind::Empty("file"));
    }
    let base = match s.place_of("files") {
        Place::File { path, .. } => facts.cwd.join(path.parent().unwrap_or(Path::new(""))),
        Place::Flag(_) => facts.cwd.clone(),
    };
    // As it is written: what ".." leads to is the system's to say, a directory may be a link. Joining leaves out each ".".
    files.iter().map(|file| base.join(file).components().collect()).collect()
}

/// `[data.ranges]` with `column = [low, high]`, or `[[data.ranges]]` with `column`, `low` and `high`.
fn ranges(s: &mut Section<'_>) -> Vec<ColumnRange> {
    let ranges: Vec<_> = match s.node("ranges", RANGES).map(|node| &node.value) {
        None => Vec::new(),
        Some(RawValue::Array(items)) => items.iter().filter_map(|item| range_section(s, item)).collect(),
        Some(_) => s.free("ranges").iter().filter_map(|entry| range_pair(s, entry)).collect(),
    };
    s.distinct("ranges", ranges.iter().map(|range| range.column.as_str()));
    ranges
}

fn range_pair(s: &mut Section<'_>, entry: &RawEntry) -> Option<ColumnRange> {
    let name = format!("ranges.{}", entry.key);
    let (low, high) = s.pair_of(&name, &entry.node, &(..))?;
    ordered(s, &name, &entry.node, ColumnRange { column: entry.key.clone(), low, high })
}

fn range_section(s: &mut Section<'_>, item: &RawNode) -> Option<ColumnRange> {
    let mut section = s.item("ranges", item);
    let column = section.text_required("column", "the name of a column");
    for key in ["low", "high"] {
        if !section.has(key) {
            section.error_at(key, ConfigErrorKind::Missing("a number"));
        }
    }
    let low = section.number("low", .., 0.0);
    let high = section.number("high", .., 0.0);
    ["low", "high"].into_iter().for_each(|key| section.note_required(key));
    let before = s.errors.len();
    section.finish(&mut s.errors);
    let sound = s.errors.len() == before;
    sound.then(|| ordered(s, "ranges", item, ColumnRange { column, low, high })).flatten()
}

fn ordered(s: &mut Section<'_>, name: &str, node: &RawNode, range: ColumnRange) -> Option<ColumnRange> {
    if range.low <= range.high {
        return Some(range);
    }
    let found = format!("[{}, {}]", range.low, range.high);
    s.error(name, node.place.clone(), ConfigErrorKind::Range { found, expected: "low at most high".into() });
    None
}

fn layout(s: &mut Section<'_>, errors: &mut Vec<ConfigError>) -> Option<Layout> {
    let given: Vec<&str> = LAYOUTS.into_iter().filter(|name| s.has(name)).collect();
    let rows = s.section("rows");
    let windows = s.section("windows");
    let arrays = s.section("arrays");
    if given.len() != 1 {
        let found = if given.is_empty() {
            "none".to_owned()
        } else {
            given.iter().map(|name| format!("[data.{name}]")).collect::<Vec<_>>().join(" and ")
        };
        let place = s.place.clone();
        s.error("", place, ConfigErrorKind::Layouts { found });
        return None;
    }
    rows.map(|section| Layout::Rows(rows_layout(section, errors)))
        .or_else(|| windows.map(|section| Layout::Windows(windows_layout(section, errors))))
        .or_else(|| arrays.map(|section| Layout::Arrays(arrays_layout(section, errors))))
}

fn rows_layout(mut section: Section<'_>, errors: &mut Vec<ConfigError>) -> RowsLayout {
    let s = &mut section;
    let takes_all = takes_all(s);
    let features = features(s);
    s.note_required("features");
    let except = s.texts("except");
    if except.is_some() && !takes_all {
        s.error_at("except", ConfigErrorKind::ExceptWithoutAll);
    }
    s.distinct("except", except.iter().flatten().map(String::as_str));
    let targets = s.columns("targets");
    for both in features.iter().map(|feature| &feature.column).filter(|column| targets.contains(column)) {
        s.error_at("features", ConfigErrorKind::TargetAsInput(both.clone()));
    }
    let out_shape = s.integers("out_shape", 1..=1 << 30).unwrap_or_else(|| vec![targets.len()]);
    let cells = out_shape.iter().fold(1usize, |cells, size| cells.saturating_mul(*size));
    if cells != targets.len() && !targets.is_empty() {
        s.error_at("out_shape", ConfigErrorKind::OutShape { shape: out_shape.clone(), cells, targets: targets.len() });
    }
    let row_id = s.text("row_id");
    let classes = s.name("target_kind", TARGETS).unwrap_or(false);
    if classes && (targets.len() > 1 || out_shape.len() > 1) {
        s.error_at("target_kind", ConfigErrorKind::OneClassTarget { targets: targets.len() });
    }
    section.finish(errors);
    RowsLayout { features, targets, classes, out_shape, row_id }
}

/// Whether the inputs are all columns of the table: `features = "*"`.
fn takes_all(s: &mut Section<'_>) -> bool {
    matches!(s.node("features", FEATURES).map(|node| &node.value), Some(RawValue::Text(text)) if text == ALL_COLUMNS)
}

/// `features = ["a", { column = "b", kind = "category" }]`.
fn features(s: &mut Section<'_>) -> Vec<Feature> {
    let name = "features";
    let Some(node) = s.node(name, FEATURES) else {
        s.error_at(name, ConfigErrorKind::Missing("a list of column names"));
        return Vec::new();
    };
    if takes_all(s) {
        return Vec::new();
    }
    let items = node.items();
    let mut features = Vec::with_capacity(items.len());
    for item in items {
        match &item.value {
            RawValue::Text(column) => features.push(Feature::new(column, FeatureKind::Number)),
            RawValue::Table(_) => features.push(feature(s, item)),
            _ => s.wrong(name, item, &ValueShape::Other(FEATURE)),
        }
    }
    if items.is_empty() {
        s.error_at(name, ConfigErrorKind::Empty("column name"));
    }
    s.distinct(name, features.iter().map(|feature| feature.column.as_str()));
    features
}

/// `{ column = "b", kind = "index", offset = 1, rows = 40, outside = "clamp" }`.
fn feature(s: &mut Section<'_>, item: &RawNode) -> Feature {
    let mut section = s.item("features", item);
    let i = &mut section;
    let column = i.text_required("column", "the name of a column");
    let named = i.name("kind", KINDS);
    let mut kind = named.unwrap_or(FeatureKind::Number);
    let own = KINDS.iter().find(|(_, known)| *known == kind).map_or("", |(name, _)| name);
    let one_hot = i.name("encoding", ENCODINGS).unwrap_or(false);
    let index = Index {
        offset: i.integer("offset", -INDEX_OFFSET_MAX..=INDEX_OFFSET_MAX, 0),
        rows: i.integer("rows", 1..=INDEX_ROWS_MAX, 1),
        outside: i.name("outside", &names::all()).unwrap_or(Outside::Unknown),
    };
    let labels =
        Labels { separator: separator(i).unwrap_or(';'), empty_is_missing: i.name("empty", EMPTIES).unwrap_or(false) };
    match &mut kind {
        FeatureKind::Index(own) => {
            if !i.has("rows") {
                i.error_at("rows", ConfigErrorKind::Missing("how many integers from `offset` on there can be"));
            }
            *own = index;
        }
        FeatureKind::Labels(own) => *own = labels,
        FeatureKind::Number | FeatureKind::Category | FeatureKind::Time => {}
    }
    // A kind that is misspelt is told once, and not again by the keys that it would have.
    if named.is_some() || !i.has("kind") {
        for (key, kinds, _) in OF_KINDS.iter().filter(|(_, _, kinds)| !kinds.contains(&own)) {
            if i.has(key) {
                i.error_at(key, ConfigErrorKind::OfKind { kinds, found: own });
            }
        }
    }
    section.finish(&mut s.errors);
    Feature { column, kind, one_hot }
}

fn separator(s: &mut Section<'_>) -> Option<char> {
    let text = s.text("separator")?;
    let mut chars = text.chars();
    match (chars.next(), chars.next()) {
        (Some(one), None) => Some(one),
        _ => {
            let found = format!("{text:?}");
            let expected = "one character, e.g. \";\" or \"|\"".to_owned();
            s.error_at("separator", ConfigErrorKind::Type { found, expected });
            None
        }
    }
}

fn windows_layout(mut section: Section<'_>, errors: &mut Vec<ConfigError>) -> WindowsLayout {
    let s = &mut section;
    let entity = s.text_required("entity", "the column that names the entity");
    let time = s.text_required("time", "the column with the time stamp");
    let target = s.text_required("target", "the column to predict");
    let calendar = match s.node("calendar", "a list of names") {
        None => vec![Calendar::DayOfYear, Calendar::Weekday],
        Some(node) => node.items().iter().filter_map(|item| s.name_of("calendar", item, &names::all())).collect(),
    };
    let inputs = s.texts("inputs").unwrap_or_else(|| vec![target.clone()]);
    let circular = s.texts("circular").unwrap_or_default();
    s.distinct("inputs", inputs.iter().map(String::as_str));
    s.distinct("circular", circular.iter().map(String::as_str));
    let layout = WindowsLayout {
        entity,
        time,
        time_offset_s: s.integer("time_offset_s", -14 * 3600..=14 * 3600, 0),
        step_s: s.integer("step_s", 1..=YEAR_S, 3600),
        steps: s.integer_required("steps", 1..=1 << 20, "the number of steps per sample, e.g. 24 for a day of hours"),
        history: s.integer("history", 1..=1 << 16, 1),
        inputs,
        circular,
        target,
        calendar,
        target_valid_min: s.number("target_valid_min", 0.0..=1.0, 0.5),
    };
    section.finish(errors);
    layout
}

fn arrays_layout(mut section: Section<'_>, errors: &mut Vec<ConfigError>) -> ArraysLayout {
    let s = &mut section;
    let layout = ArraysLayout {
        x: s.text("x").unwrap_or_else(|| "x".into()),
        y: s.text("y").unwrap_or_else(|| "y".into()),
        row_id: s.text("row_id"),
    };
    if layout.x == layout.y {
        s.error_at("x", ConfigErrorKind::TargetAsInput(layout.x.clone()));
    }
    section.finish(errors);
    layout
}

fn split(mut section: Section<'_>, default: SplitConfig, errors: &mut Vec<ConfigError>) -> SplitConfig {
    let s = &mut section;
    let says_val = s.has("val");
    let says_test = s.has("test");
    let mut split = SplitConfig {
        kind: s.name("kind", &names::all()).unwrap_or(default.kind),
        val: s.number("val", 0.0..1.0, default.val),
        test: s.number("test", 0.0..1.0, default.test),
        seed: s.integer("seed", 0..=u64::MAX >> 1, default.seed),
        column: s.text("column"),
    };
    // A share that is not said takes no more than half of what the other leaves.
    if says_val && !says_test {
        split.test = split.test.min((1.0 - split.val) / 2.0);
    } else if says_test && !says_val {
        split.val = split.val.min((1.0 - split.test) / 2.0);
    }
    if split.val + split.test >= 1.0 {
        s.error_at("val", ConfigErrorKind::Split { val: split.val, test: split.test });
    }
    let needs_column = match split.kind {
        SplitKind::Group => Some("group"),
        SplitKind::Column => Some("column"),
        _ => None,
    };
    if let (Some(rule), None) = (needs_column, &split.column) {
        s.error_at("kind", ConfigErrorKind::SplitColumn(rule));
    }
    section.finish(errors);
    split
}
