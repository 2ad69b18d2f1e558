//! The page of `enn compare`: the runs, their figures, their curves over each other, and what differs in their configurations.

use super::{
    chart::{Chart, EndLabel, PANEL},
    elements::{document, figure, head, section, warnings},
    html::{Attributes, Html},
    learning::{validation_domain, whole},
    scale::{Scale, extent},
};
use crate::{
    compare::{Comparison, Difference, FIGURES, RankedRun},
    format,
    run_status::RunStatus,
    runs::RunState,
};
use enn_common::metrics::Measure;

/// Number of runs from which on curves have no labels at their ends: there is no room for more.
const LABELS_MAX: usize = 16;
/// Longest value of the configuration shown, characters.
const VALUE_CHARS_MAX: usize = 300;
/// Share of the range of errors that is left free below them.
const ROOM_SHARE: f64 = 0.1;
/// Classes of the lines of runs; further runs have the same colours, dashed.
const SERIES: [&str; 8] =
    ["series s0", "series s1", "series s2", "series s3", "series s4", "series s5", "series s6", "series s7"];
const DASHES: usize = 4;

type Point = (f64, f64);

/// The curve of one run.
struct Curve<'a> {
    entry: &'a RankedRun,
    points: Vec<Point>,
}

pub(super) fn page(comparison: &Comparison) -> String {
    let count = format::plural(comparison.entries.len() as u64, "run");
    document(&format!("{count} compared – ENN"), |html| body(html, comparison))
}

fn body(html: &mut Html, comparison: &Comparison) {
    head(html, "enn compare", &result(comparison), &lede(comparison), |_| {});
    let reasons: Vec<String> = comparison
        .entries
        .iter()
        .filter_map(|entry| Some(format!("{} is not ranked: {}.", entry.number, entry.incomparable.as_ref()?)))
        .collect();
    warnings(html, &reasons);
    runs(html, comparison);
    figures(html, comparison);
    curves(html, comparison);
    configuration(html, comparison);
}

fn result(comparison: &Comparison) -> String {
    let ranked = comparison.compared().filter(|entry| entry.run.metrics("val").is_some()).count();
    let measure = comparison.measure().unwrap_or(Measure::Mae);
    let error = comparison.best.and_then(|best| Some(comparison.entries[best].run.metrics("val")?.judged()));
    match (comparison.best, error) {
        (Some(best), Some(error)) if ranked > 1 => {
            let error = format!("{} {}", format::brief(error), measure.unit(comparison.units())).trim_end().to_owned();
            format!("Run {} is the best of {ranked}: a validation {} of {error}.", best + 1, measure.name())
        }
        _ => {
            let mut verdict = comparison.verdict();
            verdict.replace_range(..1, &verdict[..1].to_uppercase());
            verdict + "."
        }
    }
}

fn lede(comparison: &Comparison) -> String {
    let keys = match comparison.differences.len() as u64 {
        0 if comparison.entries.len() > 1 => "The configurations are the same.".to_owned(),
        0 => String::new(),
        1 => "One key of the configuration differs.".to_owned(),
        count => format!("{count} keys of the configurations differ."),
    };
    let unfinished = comparison.entries.iter().filter(|entry| !is_finished(entry)).count() as u64;
    let unfinished = match unfinished {
        0 => String::new(),
        1 => " One run is not finished.".to_owned(),
        count => format!(" {count} runs are not finished."),
    };
    let chosen = if comparison.best.is_some() {
        " Runs are ranked by their validation error; test errors choose nothing."
    } else {
        ""
    };
    format!("{keys}{unfinished}{chosen}").trim().to_owned()
}

fn is_finished(entry: &RankedRun) -> bool {
    entry.run.summary.state == RunState::Recorded(RunStatus::Finished)
}

fn series(entry: &RankedRun) -> &'static str {
    SERIES[(entry.number - 1) % SERIES.len()]
}

/// Class of a line: its colour, and its dashes where several lines have the same colour.
fn line_class(entry: &RankedRun) -> String {
    let dashes = (entry.number - 1) / SERIES.len() % DASHES;
    format!("{} d{dashes}", series(entry))
}

fn swatch(html: &mut Html, entry: &RankedRun) {
    html.leaf("span", &[("class", &format!("swatch {}", series(entry)))], "");
}

fn runs(html: &mut Html, comparison: &Comparison) {
    section(html, "runs", "Runs", |html| {
        html.element("ol", &[("class", &"runs")], |html| {
            for entry in &comparison.entries {
                html.element("li", &[], |html| run(html, comparison, entry));
            }
        });
    });
}

fn run(html: &mut Html, comparison: &Comparison, entry: &RankedRun) {
    let summary = &entry.run.summary;
    html.element("span", &[("class", &"number")], |html| {
        swatch(html, entry);
        html.text(&entry.number.to_string());
    });
    html.element("span", &[], |html| {
        html.leaf("b", &[], &summary.name);
        html.leaf("span", &[("class", &format!("state {}", state_class(&summary.state)))], &summary.state.to_string());
        if comparison.is_best(entry) {
            html.leaf("span", &[("class", &"state best")], "best");
        }
    });
    if let Some(error) = &summary.error {
        html.leaf("p", &[], error);
    }
    if let Some(session) = entry.run.view.session() {
        html.leaf("p", &[], &format!("{} on {}", session.argv.join(" "), session.host));
    }
}

fn state_class(state: &RunState) -> &'static str {
    match state {
        RunState::Recorded(RunStatus::Finished) => "good",
        RunState::Recorded(RunStatus::Failed(_) | RunStatus::Gone) => "bad",
        _ => "",
    }
}

/// A row of a table with a column for each run.
struct RunRow {
    name: String,
    cells: Vec<String>,
}

/// A table with a column for each run.
fn beside(html: &mut Html, comparison: &Comparison, table: &'static str, rows: &[RunRow]) {
    let class = |entry: &RankedRun, other: &'static str| {
        if comparison.is_best(entry) { format!("{other} is-best") } else { other.to_owned() }
    };
    html.element("div", &[("class", &"scroll")], |html| {
        html.element("table", &[("class", &table)], |html| {
            html.element("thead", &[], |html| {
                html.element("tr", &[], |html| {
                    html.leaf("th", &[], "");
                    for entry in &comparison.entries {
                        html.element("th", &[("class", &class(entry, "number")), ("scope", &"col")], |html| {
                            swatch(html, entry);
                            html.text(&entry.number.to_string());
                        });
                    }
                });
            });
            html.element("tbody", &[], |html| {
                for RunRow { name, cells } in rows {
                    html.element("tr", &[], |html| {
                        html.leaf("th", &[("scope", &"row")], name);
                        for (entry, cell) in comparison.entries.iter().zip(cells) {
                            let attributes: Attributes = &[("class", &class(entry, "number"))];
                            html.leaf("td", attributes, cell);
                        }
                    });
                }
            });
        });
    });
}

fn figures(html: &mut Html, comparison: &Comparison) {
    let known = FIGURES.iter().filter(|figure| figure.is_known(comparison));
    let rows: Vec<RunRow> = known
        .map(|figure| {
            let or_absent = |text: String| if text.is_empty() { "–".to_owned() } else { text };
            let cells = comparison.entries.iter().map(|entry| or_absent((figure.text)(entry))).collect();
            RunRow { name: figure.title(comparison), cells }
        })
        .collect();
    if !rows.is_empty() {
        section(html, "figures", "Figures", |html| beside(html, comparison, "beside", &rows));
    }
}

fn configuration(html: &mut Html, comparison: &Comparison) {
    if comparison.differences.is_empty() {
        return;
    }
    let cell = |value: &Option<String>| format::shortened(value.as_deref().unwrap_or("–"), VALUE_CHARS_MAX);
    let row = |one: &Difference| RunRow { name: one.key.clone(), cells: one.values.iter().map(cell).collect() };
    let rows: Vec<RunRow> = comparison.differences.iter().map(row).collect();
    section(html, "configuration", "Keys that differ", |html| {
        beside(html, comparison, "beside values", &rows);
    });
}

fn curves(html: &mut Html, comparison: &Comparison) {
    let of = |points: &dyn Fn(&RankedRun) -> Vec<Point>| -> Vec<Curve<'_>> {
        let all = comparison.compared().map(|entry| Curve { entry, points: points(entry) });
        all.filter(|curve| !curve.points.is_empty()).collect()
    };
    let losses = of(&|entry| entry.run.view.epochs.iter().map(|report| (report.epochs(), report.train_loss)).collect());
    let errors = of(&|entry| {
        let validated = entry.run.view.epochs.iter().filter(|report| report.val.n > 0);
        validated.map(|report| (report.epochs(), report.val.judged())).collect()
    });
    if losses.is_empty() && errors.is_empty() {
        return;
    }
    section(html, "learning", "Learning", |html| {
        html.element("div", &[("class", &"pair")], |html| {
            loss(html, &losses);
            validation(html, comparison, &errors);
        });
    });
}

fn loss(html: &mut Html, curves: &[Curve<'_>]) {
    if curves.is_empty() {
        return;
    }
    let domain = extent(curves.iter().flat_map(|curve| &curve.points).map(|point| point.1));
    let y = Scale::spanning(domain, PANEL.upwards()).rounded(5);
    figure(html, "Training loss", "standardised target, over epochs", |html| {
        let plot = Plot {
            id: "clip-loss",
            description: "training loss of the runs over epochs",
            y,
            level: None,
            is_of_errors: false,
        };
        plot.draw(html, curves);
    });
}

fn validation(html: &mut Html, comparison: &Comparison, curves: &[Curve<'_>]) {
    let Some(first) = curves.first() else { return };
    let measure = comparison.measure().unwrap_or(Measure::Mae);
    let baseline = first.entry.run.best_baseline("val");
    let level = baseline.map(|best| (format::label(best.name), best.judged()));
    let levels: Vec<(String, f64)> = level.into_iter().collect();
    let y = Scale::linear(error_domain(curves, &levels), PANEL.upwards()).rounded(5);
    let subtitle = format::error_name(measure, comparison.units());
    figure(html, "Validation error", &format!("{subtitle}, over epochs; circles: the weights that are kept"), |html| {
        let description = "validation error of the runs over epochs";
        let plot = Plot { id: "clip-validation", description, y, level: levels.first(), is_of_errors: true };
        plot.draw(html, curves);
    });
}

/// The errors from the lowest to the highest settled one, with some room: from zero on, runs that are alike would be one line.
fn error_domain(curves: &[Curve<'_>], levels: &[(String, f64)]) -> (f64, f64) {
    let high = curves.iter().map(|curve| validation_domain(&curve.points, levels).1).fold(0.0, f64::max);
    let values = curves.iter().flat_map(|curve| &curve.points).map(|point| point.1);
    let low = extent(values.chain(levels.iter().map(|level| level.1))).0;
    ((low - ROOM_SHARE * (high - low)).max(0.0), high)
}

/// A chart with the curves of all runs.
struct Plot<'a> {
    id: &'a str,
    description: &'a str,
    y: Scale,
    /// Name and error of a baseline.
    level: Option<&'a (String, f64)>,
    /// Whether the chart shows validation errors, of which the lowest is marked.
    is_of_errors: bool,
}

impl Plot<'_> {
    /// Draws the curves over each other, with the number of each run at its end.
    fn draw(&self, html: &mut Html, curves: &[Curve<'_>]) {
        let last = curves.iter().filter_map(|curve| curve.points.last()).map(|point| point.0).fold(1.0, f64::max);
        let x = Scale::linear((0.0, last), PANEL.across());
        let labels = self.labels(curves);
        let chart = Chart {
            x_ticks: whole(&x),
            x_name: "epoch",
            labels,
            ..Chart::new(self.id, self.description, PANEL, x, self.y)
        };
        chart.draw(html, |html| {
            if let Some((name, error)) = self.level {
                chart.level(html, "floor", *error, &format!("{name}: {}", format::measure(*error)));
            }
            curves.iter().for_each(|curve| chart.line(html, &line_class(curve.entry), &curve.points));
            curves.iter().for_each(|curve| self.marks(html, &chart, curve));
        });
    }

    fn labels(&self, curves: &[Curve<'_>]) -> Vec<EndLabel> {
        if curves.len() > LABELS_MAX {
            return Vec::new();
        }
        let of_curve = |curve: &Curve<'_>| {
            let last = curve.points.last()?.1;
            Some((last, series(curve.entry), format!("{}: {}", curve.entry.number, format::measure(last))))
        };
        let of_level = |(name, error): &(String, f64)| (*error, "floor", format!("{name} {}", format::measure(*error)));
        curves.iter().filter_map(of_curve).chain(self.level.map(of_level)).collect()
    }

    fn marks(&self, html: &mut Html, chart: &Chart<'_>, curve: &Curve<'_>) {
        let RankedRun { number, run, .. } = curve.entry;
        chart.tooltips(html, &curve.points, |index| {
            let (epoch, value) = curve.points[index];
            format!("{number} ({}), epoch {}: {}", run.summary.name, round(epoch), format::measure(value))
        });
        if let Some(best) = run.view.best().filter(|best| self.is_of_errors && best.val.n > 0) {
            let tooltip = format!("{number}: kept, {}", format::measure(best.val.judged()));
            chart.dot(html, &format!("dot {}", series(curve.entry)), best.epochs(), best.val.judged(), 4.0, &tooltip);
        }
    }
}

fn round(epoch: f64) -> f64 {
    (epoch * 100.0).round() / 100.0
}
