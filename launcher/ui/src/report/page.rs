//! The page: head, outcome, sections in the order a reader asks for them.

use super::{
    classes,
    elements::{document, head, warnings},
    fit::Fit,
    forecasts::{self, ForecastPlots},
    grid::Grid,
    heatmap,
    html::Html,
    inputs::ReportInputs,
    learning, tables, timeline,
};
use crate::{
    format, metrics,
    model::{RunView, SessionView},
};
use enn_common::{
    artifact::{classes::ClassFigures, ranking},
    exit::ExitCode,
    metrics::Measure,
};
use enn_data::baselines::{self, Baselines, Forecaster};

pub(super) fn page(inputs: &ReportInputs) -> String {
    document(&format!("{} – ENN report", inputs.view.name()), |html| body(html, inputs))
}

fn body(html: &mut Html, inputs: &ReportInputs) {
    let view = &inputs.view;
    header(html, view);
    let all: Vec<String> =
        metrics::warning(view).into_iter().chain(view.warnings.iter().map(|w| w.1.clone())).collect();
    warnings(html, &all);
    tables::errors(html, view);
    learning::write(html, view);
    test_split(html, inputs);
    timeline::write(html, view);
    if let Some(staged) = &view.staged {
        tables::data(html, staged);
    }
    if let Some(config) = &inputs.config {
        tables::configuration(html, config);
    }
    tables::surroundings(html, inputs);
}

fn test_split(html: &mut Html, inputs: &ReportInputs) {
    if let Some(class_scores) = of_classes(inputs) {
        return classes::write(html, &class_scores, "the test rows");
    }
    let Some(staged) = &inputs.staged else { return };
    let Some(predictions) = &inputs.predictions else { return };
    let Some(fit) = Fit::new(staged, predictions) else { return };
    let grid = Grid::new(staged.meta());
    let best_baseline = inputs.baselines.as_ref().and_then(|baselines| best_baseline(baselines));
    forecasts::write(html, &ForecastPlots { staged, predictions, fit: &fit, grid: &grid, best_baseline });
    let floor = inputs.baselines.as_ref().and_then(|b| Some(metrics::floor(b.cells.get("test")?)?.mae()));
    heatmap::write(html, &grid, "the test split", &fit.cells.mae(), floor.as_deref(), &staged.meta().units);
}

/// Returns the metrics of predicted classes: those that training recorded, or else those of the stored forecasts.
fn of_classes(inputs: &ReportInputs) -> Option<ClassFigures> {
    let recorded = inputs.view.classes.get("test").cloned();
    recorded.or_else(|| {
        let staged = inputs.staged.as_ref()?;
        let predictions = inputs.predictions.as_ref()?;
        baselines::classes(staged, predictions.each())
    })
}

fn best_baseline(baselines: &Baselines) -> Option<&Forecaster> {
    let best = ranking::best_baseline(baselines.split.get("test")?)?;
    baselines.forecasters.iter().find(|one| one.name() == best.name)
}

fn header(html: &mut Html, view: &RunView) {
    head(html, view.name(), &outcome(view), &summary(view), |html| {
        html.element("dl", &[("class", &"tiles")], |html| {
            for (name, value, unit) in tiles(view) {
                html.element("div", &[], |html| {
                    html.leaf("dt", &[], &name);
                    html.element("dd", &[], |html| {
                        html.text(&value);
                        if !unit.is_empty() {
                            html.leaf("small", &[], &format!(" {unit}"));
                        }
                    });
                });
            }
        });
    });
}

/// The result in one sentence.
fn outcome(view: &RunView) -> String {
    let contenders = metrics::contenders(view);
    let ours = contenders.iter().find(|one| one.ours);
    let split = metrics::compared_split(&contenders);
    let error = ours.and_then(metrics::Contender::compared).map(|one| {
        format!("{} {}", format::brief(one.judged()), one.measure().unit(view.units())).trim_end().to_owned()
    });
    let beside = metrics::margin(&contenders).map(|(difference, name)| {
        let side = if difference < 0.0 { "below" } else { "above" };
        let percent = 100.0 * difference.abs();
        let percent = if percent < 10.0 { format!("{percent:.1}") } else { format!("{percent:.0}") };
        format!(", {percent} % {side} the best baseline on the {split} rows, {name}")
    });
    let beside = beside.unwrap_or_default();
    let ended = view.session().and_then(|session| session.ended);
    match (error, ended) {
        (Some(error), Some(end)) if end.code == 0 => format!("A {split} error of {error}{beside}."),
        (Some(error), None) if view.trained.is_some() => format!("A {split} error of {error}{beside}."),
        (Some(error), Some(end)) => format!("{}, with a {split} error of {error}{beside}.", stopped(end.code)),
        (Some(error), None) => format!("Under way: a {split} error of {error} so far{beside}."),
        (None, Some(end)) if end.code != 0 => format!("{}, before an epoch was validated.", stopped(end.code)),
        _ => "No epoch has been validated yet.".to_owned(),
    }
}

fn stopped(code: u8) -> String {
    match code {
        _ if code == ExitCode::Interrupted as u8 => "Stopped by the user".to_owned(),
        _ if code == ExitCode::Terminated as u8 => "Stopped by SIGTERM".to_owned(),
        _ if code == ExitCode::WorkerFailed as u8 => "Ended by a worker that failed".to_owned(),
        _ => format!("Ended with exit code {code}"),
    }
}

/// Describes the run in two or three sentences.
fn summary(view: &RunView) -> String {
    let mut text = String::new();
    let workers = view.rounds.last().map_or(0, |round| u64::from(round.world_size));
    let on = if workers > 0 { format!(" on {}", format::plural(workers, "worker")) } else { String::new() };
    if let Some(trained) = &view.trained {
        let early = if trained.stopped_early { ", until the validation error stood still" } else { "" };
        text = format!(
            "Trained for {} ({}) in {}{on}{early}.",
            format::plural(trained.epoch, "epoch"),
            format::plural(trained.step, "step"),
            format::seconds(trained.seconds)
        );
    } else if let Some(step) = view.latest {
        text = format!("{} of epoch {}{on}.", format::plural(step.step, "step"), step.epoch);
    }
    if let Some(staged) = &view.staged {
        let samples = format::plural(staged.rows, "sample");
        let features = format::plural(staged.features, "input");
        let target = match split_is_of_classes(view) {
            true => {
                format!("telling {} apart", format::plural(staged.out_shape.iter().product::<usize>() as u64, "class"))
            }
            false => format!("forecasting a grid of {}", format::shape(&staged.out_shape)),
        };
        text.push_str(&format!(" {samples} of {features} each, {target}."));
    }
    match view.restarts() {
        0 => {}
        1 => text.push_str(" One round failed and training went on from the last checkpoint."),
        n => text.push_str(&format!(" {n} rounds failed and training went on from the last checkpoint each time.")),
    }
    text.trim().to_owned()
}

fn split_is_of_classes(view: &RunView) -> bool {
    metrics::split(view).values().any(|metrics| metrics.measure() == Measure::LogLoss)
}

/// Returns the metrics below the outcome: name, value, unit.
fn tiles(view: &RunView) -> Vec<(String, String, String)> {
    let mut tiles = Vec::new();
    let split = metrics::split(view);
    let named = [("test", "test"), ("val", "validation")];
    let judged = named.iter().find_map(|(key, name)| Some((*name, split.get(*key).filter(|m| m.n > 0)?)));
    let mut tile = |name: &str, value: String, unit: &str| tiles.push((name.to_owned(), value, unit.to_owned()));
    if let Some((name, metrics)) = judged {
        for (column, of) in format::columns(metrics.measure()) {
            let unit = if format::has_unit(column) { view.units() } else { "" };
            tile(&format!("{name} {column}"), format::measure(of(metrics)), unit);
        }
    }
    if let Some(model) = &view.model {
        tile("parameters", format::count(model.parameters), "");
    }
    let rate = view.trained.as_ref().map(|trained| trained.samples_per_s);
    if let Some(rate) = rate.or(view.epochs.last().map(|report| report.samples_per_s)) {
        tile("throughput", format::rate(rate), "samples/s");
    }
    if let Some(seconds) = view.session().and_then(|session: &SessionView| session.ended).map(|end| end.seconds) {
        tile("whole run", format::seconds(seconds), "");
    }
    tiles
}
