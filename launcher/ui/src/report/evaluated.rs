//! The report of an evaluation: contenders, where the error is, errors by horizon and by group, how honest intervals are, and which
//! inputs matter.

use super::{
    chart::{Chart, PANEL},
    classes,
    elements::{document, figure, head, section, warnings},
    grid::Grid,
    heatmap,
    html::{Html, Rect, Row},
    learning::level_class,
    scale::Scale,
};
use crate::{evaluation::measure, format, metrics};
use enn_common::{
    artifact::{
        evaluation::{Evaluation, EvaluationPart, MODEL},
        ranking::ranked,
    },
    metrics::{Measure, Metrics},
    staged::StagedMeta,
};

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
        let files: Vec<String> = evaluation.data.iter().map(|file| file.display().to_string()).collect();
        let rows = crate::evaluation::rows(evaluation);
        let lede = format!("{rows}, of {} in {}", evaluation.rows, files.join(", "));
        head(html, &evaluation.run, &outcome(evaluation), &lede, |_| {});
        warnings(html, evaluation.warning.as_slice());
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
            evaluation.notes.iter().for_each(|note| html.note(note));
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
    let columns = format::columns(measure(evaluation));
    let names = [&[""][..], &columns.map(|(name, _)| name)].concat();
    let rows = ranked(&evaluation.all.errors).into_iter().map(|one| {
        let cells = columns.map(|(_, of)| format::measure(of(one.metrics)));
        Row { is_ours: one.name == MODEL, ..Row::new(format::label(one.name), cells.to_vec()) }
    });
    section(html, "errors", "Errors beside the baselines", |html| html.table("errors", &names, rows));
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
    let every = parts.len().div_ceil(6);
    let last = |(name, points): &(&String, Vec<(f64, f64)>)| Some((points.last()?.1, class(name), format::label(name)));
    let x = Scale::linear((0.0, (parts.len() - 1) as f64), PANEL.across());
    let y = Scale::linear((0.0, highest.fold(0.0, f64::max)), PANEL.upwards()).rounded(5);
    let chart = Chart {
        x_ticks: parts.iter().enumerate().step_by(every).map(|(at, part)| (at as f64, part.name.clone())).collect(),
        labels: all.iter().filter_map(last).collect(),
        ..Chart::new("clip-horizons", "error by horizon", PANEL, x, y)
    };
    figure(html, "Error by horizon", &error_of(evaluation), |html| {
        chart.draw(html, |html| all.iter().for_each(|(name, points)| chart.line(html, class(name), points)));
    });
}

fn calibration(html: &mut Html, evaluation: &Evaluation) {
    if evaluation.levels.is_empty() {
        return;
    }
    let points: Vec<(f64, f64)> = evaluation.levels.iter().map(|level| (level.level, level.below)).collect();
    let description = "share of targets below each predicted quantile";
    let chart = Chart::of_shares("clip-levels", description, PANEL, "level");
    let tip = |at: usize| format!("level {}: {:.3}", points[at].0, points[at].1);
    figure(html, "Quantiles", "share of targets below each; faint: as it should be", |html| {
        chart.draw_shares(html, &points, tip);
    });
}

fn class(name: &str) -> &'static str {
    if name == MODEL { "model" } else { level_class(name) }
}

fn error_of(evaluation: &Evaluation) -> String {
    format::error_name(measure(evaluation), &evaluation.units)
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
            let unit = measure(evaluation).unit(&evaluation.units);
            let rise_name = format::in_unit("rise of the error when shuffled", unit);
            bar_chart(html, &name, &error_of(evaluation), &groups);
            bar_chart(html, "Importance of inputs", &rise_name, &inputs);
        });
    });
}

fn bar_chart(html: &mut Html, title: &str, subtitle: &str, bars: &[Bar]) {
    let longest = bars.iter().map(|bar| bar.1).fold(0.0, f64::max);
    if bars.is_empty() {
        return;
    }
    figure(html, title, subtitle, |html| {
        html.svg(BARS_WIDTH, BAR_HEIGHT * bars.len() as f64, title, |html| {
            for (at, (name, length, text)) in bars.iter().enumerate() {
                let top = BAR_HEIGHT * at as f64;
                let line = top + BAR_HEIGHT - 5.0;
                let room = BARS_WIDTH - NAMES_WIDTH - VALUES_WIDTH;
                let width = if longest > 0.0 { length / longest * room } else { 0.0 };
                html.svg_text("tick end", NAMES_WIDTH - 7.0, line, name);
                html.rect("q6", Rect { x: NAMES_WIDTH, y: top + 3.0, width, height: BAR_HEIGHT - 6.0 }, 0, text);
                html.svg_text("tick", NAMES_WIDTH + width + 6.0, line, text);
            }
        });
    });
}
