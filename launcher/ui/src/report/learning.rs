//! How the model learned: training loss and validation error over epochs, and where a step's time goes.

use super::{
    chart::{Chart, EndLabel, Frame, PANEL},
    elements::{figure, section},
    html::{Attributes, Html, Rect},
    scale::{Scale, extent},
};
use crate::{format, metrics, model::RunView};
use enn_common::{
    event::{EpochReport, StepTimes},
    metrics::Measure,
};

/// The loss has only a number at its end.
const LOSS_PANEL: Frame = Frame { right: 58.0, ..PANEL };

/// Share of the epochs at the beginning whose errors may run out of the chart.
const WARM_UP_SHARE: f64 = 0.2;

/// Parts of a step: name, class and how to find it.
type StepPart = (&'static str, &'static str, fn(&StepTimes) -> f64);

const PARTS: [StepPart; 5] = [
    ("data", "q2", |t| t.data),
    ("forward", "q4", |t| t.forward),
    ("backward", "q6", |t| t.backward),
    ("communication", "accent", |t| t.comm),
    ("optimizer", "q8", |t| t.optimizer),
];

pub(super) fn write(html: &mut Html, view: &RunView) {
    if view.epochs.is_empty() && view.losses.points().is_empty() {
        return;
    }
    section(html, "learning", "Learning", |html| {
        html.element("div", &[("class", &"pair")], |html| {
            loss(html, view);
            validation(html, view);
        });
        step_time(html, view);
    });
}

/// Epochs passed after a step.
fn epoch_of(view: &RunView, step: u64) -> f64 {
    let per_epoch = view.model.as_ref().map_or(0, |model| model.steps_per_epoch).max(1);
    step as f64 / per_epoch as f64
}

fn epochs_axis(view: &RunView, frame: Frame) -> Scale {
    let last = view.epochs.last().map_or(0.0, EpochReport::epochs);
    let last = view.latest.map_or(last, |step| last.max(epoch_of(view, step.step)));
    Scale::linear((0.0, last.max(1.0)), frame.across())
}

fn loss(html: &mut Html, view: &RunView) {
    let trace: Vec<(f64, f64)> =
        view.losses.points().iter().map(|point| (epoch_of(view, point.step), point.mean)).collect();
    let epochs: Vec<(f64, f64)> = view.epochs.iter().map(|report| (report.epochs(), report.train_loss)).collect();
    let domain = extent(trace.iter().chain(&epochs).map(|point| point.1));
    let x = epochs_axis(view, LOSS_PANEL);
    let y = Scale::spanning(domain, LOSS_PANEL.upwards()).rounded(5);
    let chart = Chart {
        x_ticks: whole(&x),
        x_name: "epoch",
        labels: epochs.last().map(|last| (last.1, "model", format::measure(last.1))).into_iter().collect(),
        ..Chart::new("clip-loss", "training loss over epochs", LOSS_PANEL, x, y)
    };
    figure(html, "Training loss", "standardised target; faint: single steps", |html| {
        chart.draw(html, |html| {
            chart.line(html, "faint", &trace);
            chart.line(html, "model", &epochs);
            chart.tooltips(html, &epochs, |i| {
                let report = &view.epochs[i];
                let rate = format::measure(report.lr);
                format!("{}: loss {}, learning rate {rate}", report.name(), format::measure(report.train_loss))
            });
        });
    });
}

fn validation(html: &mut Html, view: &RunView) {
    let points: Vec<(f64, f64)> =
        view.epochs.iter().filter(|r| r.val.n > 0).map(|r| (r.epochs(), r.val.judged())).collect();
    if points.is_empty() {
        return;
    }
    let levels: Vec<(String, f64)> = view
        .baselines
        .get("val")
        .into_iter()
        .flatten()
        .map(|(name, errors)| (format::label(name), errors.judged()))
        .filter(|(_, error)| error.is_finite())
        .collect();
    let label = |name: &str, class, error: f64| (error, class, format!("{name} {}", format::measure(error)));
    let mut labels: Vec<EndLabel> = levels.iter().map(|(name, error)| label(name, level_class(name), *error)).collect();
    labels.extend(points.last().map(|last| label("ENN", "model", last.1)));
    let x = epochs_axis(view, PANEL);
    let y = Scale::linear(validation_domain(&points, &levels), PANEL.upwards()).rounded(5);
    let description = "validation error over epochs beside the baselines";
    let chart = Chart {
        x_ticks: whole(&x),
        x_name: "epoch",
        labels,
        ..Chart::new("clip-validation", description, PANEL, x, y)
    };
    let subtitle = format::error_name(measured(view), view.units());
    figure(html, "Validation error", &subtitle, |html| {
        chart.draw(html, |html| {
            for (name, error) in &levels {
                let tooltip = format!("{name}: {}", format::with_unit(*error, measured(view).unit(view.units())));
                chart.level(html, level_class(name), *error, &tooltip);
            }
            chart.line(html, "model", &points);
            chart.tooltips(html, &points, |i| validated(view, points[i]));
            if let Some(best) = view.best().filter(|best| best.val.n > 0) {
                let place = (best.epochs(), best.val.judged());
                chart.dot(html, "best", place.0, place.1, 4.5, &format!("kept: {}", validated(view, place)));
            }
        });
    });
}

fn validated(view: &RunView, point: (f64, f64)) -> String {
    format!(
        "epoch {}: {}",
        (point.0 * 100.0).round() / 100.0,
        format::with_unit(point.1, measured(view).unit(view.units()))
    )
}

fn measured(view: &RunView) -> Measure {
    view.epochs.last().map_or(Measure::Mae, |report| report.val.measure())
}

/// From zero to above the baselines and the settled part of the curve: an untrained model's error would flatten the rest.
pub(super) fn validation_domain(points: &[(f64, f64)], levels: &[(String, f64)]) -> (f64, f64) {
    let settled = &points[(points.len() as f64 * WARM_UP_SHARE) as usize..];
    let high =
        settled.iter().map(|p| p.1).chain(levels.iter().map(|l| l.1)).filter(|v| v.is_finite()).fold(0.0, f64::max);
    (0.0, high * 1.08)
}

/// The class of a baseline's line and label.
pub(super) fn level_class(name: &str) -> &'static str {
    match name.replace(' ', "_").as_str() {
        "ridge" | "logistic" => "ridge",
        "persistence" => "persistence",
        name if metrics::FLOORS.contains(&name) => "floor",
        _ => "other",
    }
}

/// Whole numbers only: there is no epoch 2.5.
pub(super) fn whole(x: &Scale) -> Vec<(f64, String)> {
    x.ticks(6)
        .into_iter()
        .filter(|(value, _)| value.fract() == 0.0)
        .map(|(value, _)| (value, format!("{value:.0}")))
        .collect()
}

/// One bar: the mean step of the last half of the epochs, by its parts.
fn step_time(html: &mut Html, view: &RunView) {
    let settled = &view.epochs[view.epochs.len() / 2..];
    let mean = |of: fn(&StepTimes) -> f64| settled.iter().map(|r| of(&r.step_ms)).sum::<f64>() / settled.len() as f64;
    let total = mean(|t| t.total);
    if settled.is_empty() || !(total.is_finite() && total > 0.0) {
        return;
    }
    let mut parts: Vec<(&str, &str, f64)> = PARTS.iter().map(|(name, class, of)| (*name, *class, mean(*of))).collect();
    let rest = total - parts.iter().map(|part| part.2).sum::<f64>();
    parts.push(("other", "q1", rest));
    parts.retain(|part| part.2.is_finite() && part.2 >= 0.005 * total);
    let sum: f64 = parts.iter().map(|part| part.2).sum();
    let subtitle = format!(
        "{} per optimizer step, mean of the last {}; on the host’s clock: a GPU’s work shows where the host waits for it",
        milliseconds(total),
        format::plural(settled.len() as u64, "validation")
    );
    figure(html, "Where a step’s time goes", &subtitle, |html| {
        let stretched: Attributes = &[("class", &"strip"), ("preserveAspectRatio", &"none")];
        let described: Attributes =
            &[("viewBox", &"0 0 1000 22"), ("role", &"img"), ("aria-label", &"parts of a step")];
        html.element("svg", &[stretched, described].concat(), |html| {
            let mut x = 0.0;
            for (name, class, ms) in &parts {
                let width = 1000.0 * ms / sum;
                let rect = Rect { x, y: 0.0, width: (width - 2.0).max(0.5), height: 22.0 };
                html.rect(class, rect, 0, &format!("{name}: {}", milliseconds(*ms)));
                x += width;
            }
        });
        let share = |ms: f64| format!("{} · {:.0} %", milliseconds(ms), 100.0 * ms / sum);
        html.keys(parts.iter().map(|(name, class, ms)| (*class, *name, Some(share(*ms)))));
    });
}

fn milliseconds(value: f64) -> String {
    if value < 10.0 { format!("{value:.2} ms") } else { format!("{value:.1} ms") }
}
