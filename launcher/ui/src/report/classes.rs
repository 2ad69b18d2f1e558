//! Metrics of classes: a table of classes, the confusion matrix, and the calibration of probabilities.

use super::{
    chart::{Chart, Frame, PANEL},
    elements::{figure, section},
    html::{Html, Row},
};
use crate::{classes, format};
use enn_common::artifact::classes::ClassFigures;

/// Classes of the tables.
const CLASSES_MAX: usize = 40;

/// Writes the section; `rows` names the rows.
pub(super) fn write(html: &mut Html, of: &ClassFigures, rows: &str) {
    section(html, "classes", "Classes", |html| {
        html.note(&format!("Over {rows}: {}.", classes::line(of)));
        by_class(html, of);
        confusion(html, of);
        calibration(html, of, rows);
    });
}

fn by_class(html: &mut Html, of: &ClassFigures) {
    let order = classes::listed(of, CLASSES_MAX);
    let title = match order.len() == of.classes.len() {
        true => "By class".to_owned(),
        false => format!("By class, the {} with most rows", order.len()),
    };
    html.leaf("h3", &[], &title);
    let rows =
        order.into_iter().map(|class| Row::new(classes::name(of, class), classes::metrics_of(of, class).to_vec()));
    html.table("", &["", "rows", "recall", "precision", "AUC"], rows);
}

fn confusion(html: &mut Html, of: &ClassFigures) {
    if of.confusion.is_empty() || of.confusion.len() > CLASSES_MAX {
        return;
    }
    html.leaf("h3", &[], "Confusion: rows by the class that is true, columns by the one that is predicted");
    let names: Vec<String> = (0..of.confusion.len()).map(|class| classes::name(of, class)).collect();
    let head: Vec<&str> = std::iter::once("").chain(names.iter().map(String::as_str)).collect();
    let cells = of.confusion.iter().map(|counts| counts.iter().map(|count| format::count(*count)).collect());
    html.table("", &head, names.iter().zip(cells).map(|(name, cells)| Row::new(name, cells)));
}

fn calibration(html: &mut Html, of: &ClassFigures, rows: &str) {
    if of.calibration.is_empty() {
        return;
    }
    let points: Vec<(f64, f64)> = of.calibration.iter().map(|part| (part.probability, part.right)).collect();
    let description = "share of rows whose likeliest class is right, by its probability";
    let frame = Frame { right: 24.0, ..PANEL };
    let chart = Chart::of_shares("clip-classes", description, frame, "probability of the likeliest class");
    let subtitle = format!("share of {rows} whose likeliest class is right; faint: as it should be");
    let tip = |at: usize| {
        let part = &of.calibration[at];
        let probability = classes::share(Some(part.probability));
        let right = classes::share(Some(part.right));
        format!("{} with {probability}: {right} right", format::plural(part.rows, "row"))
    };
    figure(html, "Calibration", &subtitle, |html| chart.draw_shares(html, &points, tip));
}
