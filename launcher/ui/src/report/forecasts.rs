//! What the model forecast for sample days of the test split, and how forecasts and truth lie together.

use super::{
    chart::{Chart, Frame},
    elements::{figure, section},
    fit::{BINS, Fit},
    grid::Grid,
    html::{Html, Rect},
    learning::level_class,
    predictions::TestPredictions,
    scale::{Scale, extent},
};
use crate::format;
use enn_common::staged::Staged;
use enn_data::baselines::Forecaster;

const DAY: Frame = Frame { width: 320.0, height: 190.0, left: 34.0, right: 8.0, top: 8.0, bottom: 24.0 };
const SQUARE: Frame = Frame { width: 480.0, height: 440.0, left: 44.0, right: 10.0, top: 10.0, bottom: 44.0 };

/// Minimum number of times for which a day is drawn as a curve.
const TIMES_MIN: usize = 3;

/// The days that are shown: a quantile of the days' errors, and its name. The rule avoids a choice by looks.
const DAYS: [(f64, &str); 4] =
    [(0.1, "an easy day"), (0.5, "a typical day"), (0.9, "a hard day"), (1.0, "the hardest day")];

/// Maximum number of panels per day.
const ENTITIES_MAX: usize = 3;

pub(super) struct ForecastPlots<'a> {
    pub(super) staged: &'a Staged,
    pub(super) predictions: &'a TestPredictions,
    pub(super) fit: &'a Fit,
    pub(super) grid: &'a Grid,
    pub(super) best_baseline: Option<&'a Forecaster>,
}

pub(super) fn write(html: &mut Html, plots: &ForecastPlots) {
    section(html, "forecasts", "Forecasts of the test split", |html| {
        if plots.grid.times.len() >= TIMES_MIN {
            days(html, plots);
        }
        html.element("div", &[("class", &"pair")], |html| {
            density(html, plots);
            histogram(html, plots);
        });
    });
}

fn days(html: &mut Html, plots: &ForecastPlots) {
    html.element("p", &[("class", &"note")], |html| {
        html.text("Days at fixed places in the order of the model’s error, not picked by hand. ");
        html.element("span", &[("class", &"legend")], |html| {
            key(html, "actual", "actual");
            key(html, "model", "ENN");
            if let Some(best_baseline) = plots.best_baseline {
                let name = format::label(best_baseline.name());
                key(html, level_class(&name), &name);
            }
        });
    });
    let mut seen = Vec::new();
    for (place, (share, name)) in DAYS.iter().enumerate() {
        let (index, error) = plots.fit.quantile(*share);
        if !seen.contains(&index) {
            seen.push(index);
            day(html, plots, &SampleDay { index, error, name, place });
        }
    }
}

fn key(html: &mut Html, class: &str, name: &str) {
    html.element("span", &[("class", &"key")], |html| {
        html.element("svg", &[("viewBox", &"0 0 22 8"), ("class", &"dash"), ("aria-hidden", &"true")], |html| {
            html.void("path", &[("class", &format!("line {class}")), ("d", &"M0 4L22 4")]);
        });
        html.text(name);
    });
}

/// A forecast of the test split that is drawn.
struct SampleDay<'a> {
    index: usize,
    /// Mean absolute error of the forecast, target units.
    error: f64,
    name: &'a str,
    /// Position of the day in [`DAYS`].
    place: usize,
}

fn day(html: &mut Html, plots: &ForecastPlots, day: &SampleDay) {
    let SampleDay { index, error, name, place } = *day;
    let row = plots.predictions.rows()[index];
    let meta = plots.staged.meta();
    let title = meta.row_names.get(row).cloned().unwrap_or_else(|| format!("row {}", plots.staged.row_id()[row]));
    let best_baseline = plots.best_baseline.map(|forecaster| forecaster.predict(plots.staged, &[row]));
    let actual = |cell: usize| {
        let valid = plots.staged.y_mask_row(row)[cell] != 0;
        if valid { f64::from(plots.staged.y_row(row)[cell]) } else { f64::NAN }
    };
    let forecast = |cell: usize| plots.predictions.forecast(index).get(cell).map_or(f64::NAN, |v| f64::from(*v));
    let best_baseline = |cell: usize| best_baseline.as_ref().map_or(f64::NAN, |values| values[cell]);
    let entities = entities(plots);
    let curves: Vec<[Vec<(f64, f64)>; 3]> = entities
        .iter()
        .map(|e| [plots.grid.series(*e, best_baseline), plots.grid.series(*e, actual), plots.grid.series(*e, forecast)])
        .collect();
    let domain = extent(curves.iter().flatten().flatten().map(|point| point.1));
    let x = Scale::linear((0.0, plots.grid.times.len() as f64 - 1.0), DAY.across());
    let y = Scale::linear(domain, DAY.upwards()).rounded(4);
    let subtitle = format!("{name}, mean absolute error {}", format::with_unit(error, &meta.units));
    figure(html, &title, &subtitle, |html| {
        html.element("div", &[("class", &"trio")], |html| {
            for (entity, curves) in entities.iter().zip(&curves) {
                let id = format!("clip-day-{place}-{entity}");
                let description = "forecast and actual values over one day";
                let x_ticks = plots.grid.time_ticks(5);
                let chart = Chart { x_ticks, y_ticks: 4, ..Chart::new(&id, description, DAY, x, y) };
                panel(html, plots, &chart, &plots.grid.entities[*entity], curves);
            }
        });
    });
}

fn panel(html: &mut Html, plots: &ForecastPlots, chart: &Chart, name: &str, curves: &[Vec<(f64, f64)>; 3]) {
    let unit = &plots.staged.meta().units;
    let [best_baseline, actual, forecast] = curves;
    let baseline_name = plots.best_baseline.map(|forecaster| format::label(forecaster.name()));
    let tip = |time: usize| {
        let [best_baseline, actual, forecast] =
            [best_baseline, actual, forecast].map(|curve| format::with_unit(curve[time].1, unit));
        let beside = baseline_name.as_ref().map_or_else(String::new, |name| format!(", {name} {best_baseline}"));
        format!("{name} {}: actual {actual}, ENN {forecast}{beside}", plots.grid.times[time])
    };
    html.element("div", &[("class", &"panel")], |html| {
        html.leaf("h4", &[], name);
        chart.draw(html, |html| {
            if let Some(name) = &baseline_name {
                chart.line(html, level_class(name), best_baseline);
            }
            chart.line(html, "actual", actual);
            chart.line(html, "model", forecast);
            chart.tooltips(html, forecast, tip);
        });
    });
}

/// Returns at most `ENTITIES_MAX` entities: all, or those with the least, the median and the largest error.
fn entities(plots: &ForecastPlots) -> Vec<usize> {
    let count = plots.grid.entities.len();
    if count <= ENTITIES_MAX {
        return (0..count).collect();
    }
    let mae = plots.fit.cells.mae();
    let mean = |entity: usize| {
        let values = plots.grid.series(entity, |cell| mae[cell]);
        let valid: Vec<f64> = values.iter().map(|point| point.1).filter(|v| v.is_finite()).collect();
        valid.iter().sum::<f64>() / valid.len().max(1) as f64
    };
    let mut order: Vec<(usize, f64)> = (0..count).map(|entity| (entity, mean(entity))).collect();
    order.sort_by(|a, b| a.1.total_cmp(&b.1));
    vec![order[0].0, order[count / 2].0, order[count - 1].0]
}

/// Forecast against actual as a density: darker squares hold more cells, the diagonal is a perfect forecast.
fn density(html: &mut Html, plots: &ForecastPlots) {
    let fit = plots.fit;
    let unit = &plots.staged.meta().units;
    let x = Scale::linear(fit.range, SQUARE.across());
    let y = Scale::linear(fit.range, SQUARE.upwards());
    let description = "density of forecasts against actual values";
    let x_name = "actual (forecast upwards)";
    let chart = Chart { y_ticks: 6, x_name, ..Chart::new("clip-density", description, SQUARE, x, y) };
    let largest = fit.density.iter().copied().max().unwrap_or(1).max(1) as f64;
    let (low, high) = fit.range;
    let edge = |bin: usize| low + (high - low) / BINS as f64 * bin as f64;
    let bin_width = (SQUARE.across().1 - SQUARE.across().0) / BINS as f64 - 0.8;
    let bin_height = (SQUARE.upwards().0 - SQUARE.upwards().1) / BINS as f64 - 0.8;
    let subtitle = format!("{} cells; on the dashed line a forecast is exact", format::count(fit.n));
    figure(html, "Forecast and truth", &subtitle, |html| {
        chart.draw(html, |html| {
            for (index, count) in fit.density.iter().enumerate().filter(|(_, count)| **count > 0) {
                let actual = index / BINS;
                let forecast = index % BINS;
                // Logarithmic, or the one fullest square would pale all others.
                let level = (1.0 + 7.99 * (*count as f64).ln() / largest.ln().max(1e-9)) as usize;
                let range = |bin| format!("{} to {}", format::measure(edge(bin)), format::measure(edge(bin + 1)));
                let cells = format::plural(*count, "cell");
                let tooltip = format!("actual {}, forecast {} {unit}: {cells}", range(actual), range(forecast));
                let left = chart.x.at(edge(actual)) + 0.4;
                let top = chart.y.at(edge(forecast + 1)) + 0.4;
                let rect = Rect { x: left, y: top, width: bin_width, height: bin_height };
                html.rect(&format!("q{}", level.clamp(1, 8)), rect, 0, &tooltip);
            }
            chart.line(html, "diagonal", &[(low, low), (high, high)]);
        });
    });
}

/// Errors of all cells: their spread and bias.
fn histogram(html: &mut Html, plots: &ForecastPlots) {
    let fit = plots.fit;
    let unit = &plots.staged.meta().units;
    let share = |count: u64| count as f64 / fit.n as f64 * 100.0;
    let largest = share(fit.histogram.iter().copied().max().unwrap_or(1));
    let x = Scale::linear((-fit.reach, fit.reach), SQUARE.across());
    let y = Scale::linear((0.0, largest), SQUARE.upwards()).rounded(5);
    let description = "distribution of errors";
    let chart = Chart { x_name: "forecast − actual", ..Chart::new("clip-errors", description, SQUARE, x, y) };
    let bin_width = 2.0 * fit.reach / BINS as f64;
    let (bottom, _) = SQUARE.upwards();
    let within = plots.fit.cells.total().map_or(0.0, |total| total.mae);
    let subtitle = format!("% of cells; mean error {}, mean size {}", signed(fit.bias, unit), brief(within, unit));
    figure(html, "Errors", &subtitle, |html| {
        chart.draw(html, |html| {
            for (bin, count) in fit.histogram.iter().enumerate().filter(|(_, count)| **count > 0) {
                let left = -fit.reach + bin_width * bin as f64;
                let share = share(*count);
                let x = chart.x.at(left);
                let y = chart.y.at(share);
                let width = chart.x.at(left + bin_width) - x - 1.0;
                let beyond = match bin {
                    0 => " or less",
                    _ if bin + 1 == BINS => " or more",
                    _ => "",
                };
                let tooltip = format!("{}{beyond}: {share:.1} % of cells", signed(left + bin_width / 2.0, unit));
                html.rect("bar", Rect { x: x + 0.5, y, width, height: bottom - y }, 0, &tooltip);
            }
            let (low, high) = chart.y.domain();
            chart.line(html, "diagonal", &[(0.0, low), (0.0, high)]);
        });
    });
}

fn signed(value: f64, unit: &str) -> String {
    let sign = if value < 0.0 { "−" } else { "+" };
    format!("{sign}{}", brief(value.abs(), unit))
}

fn brief(value: f64, unit: &str) -> String {
    format!("{} {unit}", format::brief(value)).trim_end().to_owned()
}
