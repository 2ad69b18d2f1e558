//! Everything that is best read as a table: errors, cleaning, data, configuration, surroundings.

use super::{
    elements::section,
    html::{Html, Row},
    inputs::ReportInputs,
};
use crate::{
    configuration::flatten,
    format,
    metrics::{self, Contender},
    model::{RunView, StagedView},
};
use enn_common::{
    event::SourceShare,
    metrics::Measure,
    staged::meta::{CleaningReport, ColumnReport},
};
use serde_json::Value;
use std::collections::BTreeMap;
use time::{OffsetDateTime, macros::format_description};

/// Cleaning columns listed one by one; more are summed up.
const COLUMNS_MAX: usize = 60;

/// Longest configuration value shown, characters.
const VALUE_CHARS_MAX: usize = 300;

pub(super) fn errors(html: &mut Html, view: &RunView) {
    let contenders = metrics::contenders(view);
    if contenders.is_empty() {
        return;
    }
    section(html, "errors", "Errors beside the baselines", |html| {
        error_table(html, &contenders, view.units());
        view.baseline_notes.iter().for_each(|note| html.note(note));
        per_split(html, view);
    });
}

fn error_table(html: &mut Html, contenders: &[Contender], unit: &str) {
    let splits: Vec<(usize, &str)> = [(1, "test"), (0, "validation")]
        .into_iter()
        .filter(|(i, _)| contenders.iter().any(|c| c.errors[*i].is_some()))
        .collect();
    let measure = contenders.iter().find_map(|one| Some(one.compared()?.measure())).unwrap_or(Measure::Mae);
    let columns = &format::columns(measure)[..2];
    let largest = contenders.iter().filter_map(Contender::judged).filter(|v| v.is_finite()).fold(0.0, f64::max);
    let of_each = || splits.iter().flat_map(|split| columns.iter().map(move |column| (split, column)));
    let mut head = vec![String::new()];
    head.extend(of_each().map(|((_, split), (name, _))| {
        format::in_unit(&format!("{split} {name}"), if format::has_unit(name) { unit } else { "" })
    }));
    head.push(format!("{} {}", splits.first().map_or("", |split| split.1), measure.name()));
    let rows = contenders.iter().map(|one| {
        let cells = of_each().map(|((index, _), (_, of))| format::optional(one.errors[*index].as_ref().map(of)));
        let bar = one.judged().map_or(0.0, |error| (100.0 * error / largest).clamp(0.0, 100.0));
        Row { is_ours: one.ours, bar: Some(bar), ..Row::new(&one.name, cells.collect()) }
    });
    html.table("errors", &head.iter().map(String::as_str).collect::<Vec<_>>(), rows);
}

/// The model's own errors on every split.
fn per_split(html: &mut Html, view: &RunView) {
    let split = metrics::split(view);
    let rows: Vec<_> = ["train", "val", "test"]
        .iter()
        .filter_map(|name| Some((name, split.get(*name).filter(|m| m.n > 0)?)))
        .collect();
    if rows.len() < 2 {
        return;
    }
    html.leaf("h3", &[], "ENN on every split");
    let nominal = rows.iter().find_map(|(_, metrics)| Some(100.0 * metrics.interval?.nominal));
    let held = nominal.map(|nominal| format!("within the {nominal:.0} % interval"));
    let mut head = vec!["", "MAE", "RMSE", "R²", "loss"];
    head.extend(held.iter().flat_map(|held| [held.as_str(), "its mean width"]));
    head.extend(rows.iter().any(|(_, metrics)| metrics.accuracy.is_some()).then_some("likeliest class is right"));
    head.push("cells");
    let rows = rows.iter().map(|(name, metrics)| {
        let mut cells = [metrics.mae, metrics.rmse, metrics.r2, metrics.loss].map(format::measure).to_vec();
        if let Some(interval) = metrics.interval {
            cells.extend([format::percent(interval.coverage), format::measure(interval.width)]);
        }
        cells.extend(metrics.accuracy.map(format::percent));
        cells.push(format::count(metrics.n));
        Row::new(if **name == "val" { "validation" } else { name }, cells)
    });
    html.table("", &head, rows);
}

/// Name and value pairs in columns.
fn facts(html: &mut Html, facts: &[(String, String)]) {
    html.element("dl", &[("class", &"facts")], |html| {
        for (name, value) in facts {
            html.element("div", &[], |html| {
                html.leaf("dt", &[], name);
                html.leaf("dd", &[], value);
            });
        }
    });
}

fn fact(name: &str, value: impl Into<String>) -> (String, String) {
    (name.to_owned(), value.into())
}

pub(super) fn data(html: &mut Html, staged: &StagedView) {
    let [train, val, test] = staged.split_rows.map(format::count);
    let how = if staged.reused {
        "found already staged".to_owned()
    } else {
        format!("staged in {}", format::seconds(staged.seconds))
    };
    let outputs: usize = staged.out_shape.iter().product();
    section(html, "data", "Data", |html| {
        facts(
            html,
            &[
                fact("samples", format::count(staged.rows)),
                fact("training", train),
                fact("validation", val),
                fact("test", test),
                fact("inputs", format::count(staged.features)),
                fact("outputs", format!("{} = {}", format::shape(&staged.out_shape), format::count(outputs as u64))),
                fact("unit", if staged.units.is_empty() { "not given".to_owned() } else { staged.units.clone() }),
                fact("staging", how),
            ],
        );
        sources(html, &staged.sources);
        cleaning(html, &staged.report);
    });
}

fn sources(html: &mut Html, sources: &[SourceShare]) {
    if sources.is_empty() {
        return;
    }
    html.leaf("h3", &[], "Sources");
    let rows: Vec<_> = sources.iter().map(|one| fact(&one.name, format::source(one))).collect();
    facts(html, &rows);
}

fn cleaning(html: &mut Html, report: &CleaningReport) {
    html.leaf("h3", &[], "Cleaning");
    let mut totals =
        vec![fact("rows read", format::count(report.rows_read)), fact("samples made", format::count(report.samples))];
    let counted = [
        ("duplicate rows", report.duplicates),
        ("rows of a wrong width", report.wrong_width),
        ("rows without their names", report.nameless),
        ("cells absent from the table", report.absent_cells),
        ("samples dropped", report.dropped_samples),
    ];
    totals.extend(counted.iter().map(|(name, n)| fact(name, format::count(*n))));
    if let Some(line) = report.wrong_width_line {
        totals.push(fact("first wrong width at line", format::count(line)));
    }
    facts(html, &totals);
    let counts = |column: &ColumnReport| {
        let ColumnReport { missing, non_finite, out_of_range, clamped, implausible, unseen_category, .. } = *column;
        [missing, non_finite, out_of_range, clamped, implausible, unseen_category]
    };
    let found = |column: &ColumnReport| column.constant || counts(column).iter().any(|n| *n > 0);
    let (dirty, clean): (Vec<_>, Vec<_>) = report.columns.iter().partition(|(_, column)| found(column));
    if !dirty.is_empty() {
        let head = [
            "column",
            "missing",
            "non-finite",
            "out of range",
            "clamped",
            "implausible",
            "unseen category",
            "constant",
        ];
        let rows = dirty.iter().take(COLUMNS_MAX).map(|(name, column)| {
            let count = |n: u64| if n == 0 { "·".to_owned() } else { format::count(n) };
            let mut cells = counts(column).map(count).to_vec();
            cells.push(if column.constant { "yes" } else { "·" }.to_owned());
            Row::new(*name, cells)
        });
        html.table("", &head, rows);
    }
    if let Some(more) = dirty.len().checked_sub(COLUMNS_MAX).filter(|more| *more > 0) {
        html.note(&format!("and {more} more columns, listed in meta.json of the staged data"));
    }
    if !clean.is_empty() {
        let names: Vec<&str> = clean.iter().take(COLUMNS_MAX).map(|(name, _)| name.as_str()).collect();
        let more =
            if clean.len() > names.len() { format!(" and {} more", clean.len() - names.len()) } else { String::new() };
        html.note(&format!("Nothing found in {}{more}.", names.join(", ")));
    }
    report.warnings.iter().chain(&report.notes).for_each(|note| html.note(note));
}

pub(super) fn configuration(html: &mut Html, config: &Value) {
    let mut groups: BTreeMap<usize, (String, Vec<(String, String)>)> = BTreeMap::new();
    let order = ["run", "data", "model", "train", "cluster"];
    let Value::Object(top) = config else { return };
    for (key, value) in top {
        let group = if value.is_object() { key.as_str() } else { "run" };
        let place = order.iter().position(|name| *name == group).unwrap_or(order.len());
        let (_, pairs) = groups.entry(place).or_insert_with(|| (group.to_owned(), Vec::new()));
        let mut found = Vec::new();
        flatten(if value.is_object() { "" } else { key }, value, &mut found);
        pairs.extend(found.into_iter().map(|(key, value)| (key, shortened(&value))));
    }
    section(html, "configuration", "Configuration", |html| {
        for (name, pairs) in groups.values() {
            html.leaf("h3", &[], name);
            facts(html, pairs);
        }
    });
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(VALUE_CHARS_MAX) {
        Some((end, _)) => format!("{} …", &text[..end]),
        None => text.to_owned(),
    }
}

pub(super) fn surroundings(html: &mut Html, inputs: &ReportInputs) {
    let view = &inputs.view;
    let Some(session) = view.session() else { return };
    section(html, "surroundings", "Surroundings", |html| {
        let mut all = vec![
            fact("run", session.run.clone()),
            fact("directory", session.dir.display().to_string()),
            fact("command", session.argv.join(" ")),
            fact("host", session.host.clone()),
            fact("started", utc(session.started)),
        ];
        if let Some(end) = session.ended {
            all.push(fact("ended", utc(end.time)));
            all.push(fact("exit code", end.code.to_string()));
        }
        if let Some(ready) = view.workers.iter().rev().find_map(|worker| worker.ready.as_ref()) {
            all.push(fact("device", ready.device.clone()));
            all.push(fact("process group", ready.backend.clone()));
            all.push(fact("libtorch", ready.libtorch.clone()));
        }
        all.push(fact("enn", env!("CARGO_PKG_VERSION")));
        all.extend(view.decisions.iter().map(|decision| fact("decided", decision.clone())));
        all.extend(view.precision.iter().map(|(format, reason)| fact("precision", format!("{format}: {reason}"))));
        all.extend(view.micro_batches.iter().map(|text| fact("micro-batches", text.clone())));
        all.extend(view.model.iter().map(|model| fact("program", model.program_hash.clone())));
        all.extend(view.staged.iter().map(|staged| fact("staged data", staged.dir.display().to_string())));
        facts(html, &all);
        if view.sessions.len() > 1 {
            let earlier: Vec<String> = view.sessions.iter().map(|s| format!("{} {}", s.mode, utc(s.started))).collect();
            let launches = format::plural(earlier.len() as u64, "launch").replace("launchs", "launches");
            html.note(&format!("{launches} on this run: {}.", earlier.join(", ")));
        }
        inputs.notes.iter().for_each(|note| html.note(note));
        if !view.unreadable.is_empty() {
            let lines: Vec<String> = view.unreadable.iter().take(5).map(u64::to_string).collect();
            html.note(&format!("Lines of events.jsonl that could not be understood: {}.", lines.join(", ")));
        }
    });
}

fn utc(seconds: f64) -> String {
    let format = format_description!("[year]-[month]-[day] [hour]:[minute]:[second] UTC");
    let time = OffsetDateTime::from_unix_timestamp(seconds as i64);
    time.ok().and_then(|time| time.format(&format).ok()).unwrap_or_else(|| format::ABSENT.to_owned())
}
