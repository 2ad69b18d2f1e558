//! The report of an evaluation: contenders, where the error is, errors by horizon and by group, how honest intervals are, and which
//! inputs matter.

use super::{
    chart::{Chart, Margin},
    classes,
    grid::Grid,
    heatmap,
    html::{Html, Px},
    learning::level_class,
    page::{document, figure, section},
    scale::Scale,
};
use crate::{format, metrics};
use enn_common::{
    artifact::evaluation::{Evaluation, EvaluationPart, MODEL},
    metrics::{Measure, Metrics},
    staged::StagedMeta,
};

const SIZE: (f64, f64) = (480.0, 290.0);
const MARGIN: Margin = Margin { left: 44.0, right: 116.0, top: 12.0, bottom: 40.0 };
/// Bars: width of the drawing, of the names, of a bar's row, and bars drawn at most.
const BARS_WIDTH: f64 = 480.0;
const NAMES_WIDTH: f64 = 130.0;
const VALUES_WIDTH: f64 = 70.0;
const BAR_HEIGHT: f64 = 18.0;
const BARS_MAX: usize = 30;

/// A bar: its name, its length, what is written at its end.
type Bar = (String, f64, String);

pub(super) fn page(evaluation: &Evaluation, meta: &StagedMeta) -> String {
    document(&format!("{} – ENN evaluation", evaluation.run), |html| {
        html.element("header", &[], |html| {
            html.leaf("p", &[("class", &"run")], &evaluation.run);
            html.leaf("h1", &[], &outcome(evaluation));
            let files: Vec<String> = evaluation.data.iter().map(|file| file.display().to_string()).collect();
            let rows = crate::evaluation::rows(evaluation);
            html.leaf("p", &[("class", &"lede")], &format!("{rows}, of {} in {}", evaluation.rows, files.join(", ")));
        });
        if let Some(warning) = &evaluation.warning {
            html.element("aside", &[("class", &"warnings")], |html| html.leaf("p", &[], warning));
        }
        contenders(html, evaluation);
        if measure(evaluation) != Measure::LogLoss {
            let mae = |one: Option<&Metrics>| one.map_or(f64::NAN, |one| one.mae);
            let cells = evaluation.cells.iter().map(|cell| &cell.errors);
            let (errors, floor): (Vec<f64>, Vec<f64>) =
                cells.map(|errors| (mae(errors.get(MODEL)), mae(metrics::floor(errors)))).unzip();
            let floor = floor.iter().any(|mae| mae.is_finite()).then_some(&floor[..]);
            heatmap::write(html, &Grid::new(meta), "these rows", &errors, floor, &evaluation.units);
        }
        if let Some(class_scores) = &evaluation.classes {
            classes::write(html, class_scores, "these rows");
        }
        lines(html, evaluation);
        bars(html, evaluation);
        section(html, "notes", "Notes", |html| {
            evaluation.notes.iter().for_each(|note| html.leaf("p", &[("class", &"note")], note));
        });
    })
}

fn error(part: &EvaluationPart, name: &str) -> f64 {
    part.errors.get(name).map_or(f64::NAN, Metrics::judged)
}

fn outcome(evaluation: &Evaluation) -> String {
    let unit = measure(evaluation).unit(&evaluation.units);
    let error = format::with_unit(evaluation.all.model().unwrap_or(f64::NAN), unit);
    let beside = evaluation.all.model().zip(evaluation.all.best()).map(|(model, (name, best))| {
        let side = if model < best { "below" } else { "above" };
        let name = format::label(name);
        format!(", {:.1} % {side} the best baseline, {name}", 100.0 * (model / best - 1.0).abs())
    });
    let rows = crate::evaluation::rows(evaluation);
    format!("An error of {error} on {rows}{}.", beside.unwrap_or_default())
}

fn contenders(html: &mut Html, evaluation: &Evaluation) {
    let mut all: Vec<_> = evaluation.all.errors.iter().collect();
    all.sort_by(|a, b| a.1.judged().total_cmp(&b.1.judged()));
    let columns = format::columns(measure(evaluation));
    section(html, "errors", "Errors beside the baselines", |html| {
        html.element("table", &[("class", &"errors")], |html| {
            html.element("tr", &[], |html| {
                html.leaf("th", &[], "");
                columns.iter().for_each(|(name, _)| html.leaf("th", &[("class", &"number")], name));
            });
            for (name, one) in all {
                html.element("tr", &[("class", &if name == MODEL { "ours" } else { "" })], |html| {
                    html.leaf("th", &[("scope", &"row")], &format::label(name));
                    for value in columns.map(|(_, of)| of(one)) {
                        html.leaf("td", &[("class", &"number")], &format::measure(value));
                    }
                });
            }
        });
    });
}

/// Errors by horizon, and levels of quantiles.
fn lines(html: &mut Html, evaluation: &Evaluation) {
    if evaluation.horizons.len() < 2 && evaluation.levels.is_empty() {
        return;
    }
    section(html, "horizons", "By horizon", |html| {
        html.element("div", &[("class", &"pair")], |html| {
            horizons(html, evaluation);
            calibration(html, evaluation);
        });
    });
}

fn horizons(html: &mut Html, evaluation: &Evaluation) {
    let parts = &evaluation.horizons;
    if parts.len() < 2 {
        return;
    }
    let series = |name: &str| -> Vec<(f64, f64)> {
        parts.iter().enumerate().map(|(at, part)| (at as f64, error(part, name))).collect()
    };
    let all: Vec<(&String, Vec<(f64, f64)>)> = evaluation.all.errors.keys().map(|name| (name, series(name))).collect();
    let highest = all.iter().flat_map(|(_, points)| points).map(|point| point.1).filter(|v| v.is_finite());
    let area = Chart::area(SIZE, MARGIN);
    let every = parts.len().div_ceil(6);
    let chart = Chart {
        size: SIZE,
        margin: MARGIN,
        x: Scale::linear((0.0, (parts.len() - 1) as f64), area.0),
        y: Scale::linear((0.0, highest.fold(0.0, f64::max)), area.1).rounded(5),
        x_ticks: parts.iter().enumerate().step_by(every).map(|(at, part)| (at as f64, part.name.clone())).collect(),
        y_ticks: 5,
        x_name: "",
        description: "error by horizon",
    };
    figure(html, "Error by horizon", &error_of(evaluation), |html| {
        chart.draw(
            html,
            "clip-horizons",
            |html| all.iter().for_each(|(name, points)| chart.line(html, class(name), points)),
            |html| {
                let last = |(name, points): &(&String, Vec<(f64, f64)>)| {
                    Some((points.last()?.1, class(name), format::label(name)))
                };
                chart.end_labels(html, &all.iter().filter_map(last).collect::<Vec<_>>());
            },
        );
    });
}

fn calibration(html: &mut Html, evaluation: &Evaluation) {
    if evaluation.levels.is_empty() {
        return;
    }
    let points: Vec<(f64, f64)> = evaluation.levels.iter().map(|level| (level.level, level.below)).collect();
    let area = Chart::area(SIZE, MARGIN);
    let chart = Chart {
        size: SIZE,
        margin: MARGIN,
        x: Scale::linear((0.0, 1.0), area.0),
        y: Scale::linear((0.0, 1.0), area.1),
        x_ticks: Scale::linear((0.0, 1.0), area.0).ticks(5),
        y_ticks: 5,
        x_name: "level",
        description: "share of targets below each predicted quantile",
    };
    figure(html, "Quantiles", "share of targets below each; faint: as it should be", |html| {
        chart.draw(
            html,
            "clip-levels",
            |html| {
                chart.line(html, "faint", &[(0.0, 0.0), (1.0, 1.0)]);
                chart.line(html, "model", &points);
                chart.tooltips(html, &points, |i| format!("level {}: {:.3}", points[i].0, points[i].1));
            },
            |_| {},
        );
    });
}

fn class(name: &str) -> &'static str {
    if name == MODEL { "model" } else { level_class(name) }
}

fn measure(evaluation: &Evaluation) -> Measure {
    evaluation.all.measure().unwrap_or(Measure::Mae)
}

fn error_of(evaluation: &Evaluation) -> String {
    let measure = measure(evaluation);
    unit(if measure == Measure::Mae { "mean absolute error" } else { measure.name() }, evaluation)
}

fn unit(what: &str, evaluation: &Evaluation) -> String {
    let unit = measure(evaluation).unit(&evaluation.units);
    if unit.is_empty() { what.to_owned() } else { format!("{what}, {unit}") }
}

/// Errors by group, and what shuffling each input does.
fn bars(html: &mut Html, evaluation: &Evaluation) {
    let group = |part: &EvaluationPart| Some((part.name.clone(), part.model()?, format::measure(part.model()?)));
    let groups: Vec<Bar> = evaluation.groups.iter().filter_map(group).take(BARS_MAX).collect();
    let rise = |one: &enn_common::artifact::evaluation::Importance| {
        let text = format!("{} ± {}", format::measure(one.rise.mean), format::brief(one.rise.std));
        (one.input.clone(), one.rise.mean.max(0.0), text)
    };
    let inputs: Vec<Bar> = evaluation.importance.iter().map(rise).take(BARS_MAX).collect();
    if groups.is_empty() && inputs.is_empty() {
        return;
    }
    section(html, "parts", "Groups and inputs", |html| {
        html.element("div", &[("class", &"pair")], |html| {
            let name = format!("Error by {}", evaluation.group);
            bar_chart(html, &name, &error_of(evaluation), &groups);
            bar_chart(html, "Importance of inputs", &unit("rise of the error when shuffled", evaluation), &inputs);
        });
    });
}

fn bar_chart(html: &mut Html, title: &str, subtitle: &str, bars: &[Bar]) {
    let longest = bars.iter().map(|bar| bar.1).fold(0.0, f64::max);
    if bars.is_empty() {
        return;
    }
    figure(html, title, subtitle, |html| {
        let height = BAR_HEIGHT * bars.len() as f64;
        let view_box = format!("0 0 {BARS_WIDTH} {height}");
        html.element("svg", &[("viewBox", &view_box), ("role", &"img"), ("aria-label", &title)], |html| {
            for (at, (name, length, text)) in bars.iter().enumerate() {
                let top = BAR_HEIGHT * at as f64;
                let room = BARS_WIDTH - NAMES_WIDTH - VALUES_WIDTH;
                let width = if longest > 0.0 { length / longest * room } else { 0.0 };
                let line = Px(top + BAR_HEIGHT - 5.0);
                html.leaf("text", &[("class", &"tick end"), ("x", &Px(NAMES_WIDTH - 7.0)), ("y", &line)], name);
                html.void(
                    "rect",
                    &[
                        ("class", &"q6"),
                        ("x", &Px(NAMES_WIDTH)),
                        ("y", &Px(top + 3.0)),
                        ("width", &Px(width)),
                        ("height", &Px(BAR_HEIGHT - 6.0)),
                    ],
                );
                html.leaf("text", &[("class", &"tick"), ("x", &Px(NAMES_WIDTH + width + 6.0)), ("y", &line)], text);
            }
        });
    });
}
