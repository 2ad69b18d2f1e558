//! Metrics of classes: a table of classes, the confusion matrix, and the calibration of probabilities.

use super::{
    chart::{Chart, Margin},
    html::Html,
    page::{figure, section},
    scale::Scale,
};
use crate::{classes, format};
use enn_common::artifact::classes::ClassFigures;

const SIZE: (f64, f64) = (480.0, 290.0);
const MARGIN: Margin = Margin { left: 44.0, right: 24.0, top: 12.0, bottom: 40.0 };
/// Classes of the tables.
const CLASSES_MAX: usize = 40;

/// Writes the section; `rows` names the rows.
pub(super) fn write(html: &mut Html, of: &ClassFigures, rows: &str) {
    section(html, "classes", "Classes", |html| {
        html.leaf("p", &[("class", &"note")], &format!("Over {rows}: {}.", classes::line(of)));
        by_class(html, of);
        confusion(html, of);
        calibration(html, of, rows);
    });
}

fn head(html: &mut Html, names: &[String]) {
    html.element("tr", &[], |html| {
        for (at, name) in names.iter().enumerate() {
            html.leaf("th", &[("class", &if at == 0 { "" } else { "number" })], name);
        }
    });
}

fn row(html: &mut Html, name: &str, cells: &[String]) {
    html.element("tr", &[], |html| {
        html.leaf("th", &[("scope", &"row")], name);
        cells.iter().for_each(|cell| html.leaf("td", &[("class", &"number")], cell));
    });
}

/// A table that scrolls on a narrow screen.
fn table(html: &mut Html, title: &str, inner: impl FnOnce(&mut Html)) {
    html.leaf("h3", &[], title);
    html.element("div", &[("class", &"scroll")], |html| html.element("table", &[], inner));
}

fn by_class(html: &mut Html, of: &ClassFigures) {
    let mut order: Vec<usize> = (0..of.classes.len()).collect();
    if order.len() > CLASSES_MAX {
        order.sort_by_key(|class| std::cmp::Reverse(of.classes[*class].rows));
        order.truncate(CLASSES_MAX);
    }
    let title = match order.len() == of.classes.len() {
        true => "By class".to_owned(),
        false => format!("By class, the {} with most rows", order.len()),
    };
    table(html, &title, |html| {
        head(html, &["", "rows", "recall", "precision", "AUC"].map(str::to_owned));
        for class in order {
            let part = &of.classes[class];
            let auc = part.auc.map_or_else(|| "–".to_owned(), |auc| format!("{auc:.3}"));
            let shares = [classes::share(part.recall()), classes::share(part.precision()), auc];
            let cells = [vec![format::count(part.rows)], shares.to_vec()].concat();
            row(html, &classes::name(of, class), &cells);
        }
    });
}

fn confusion(html: &mut Html, of: &ClassFigures) {
    if of.confusion.is_empty() || of.confusion.len() > CLASSES_MAX {
        return;
    }
    table(html, "Confusion: rows by the class that is true, columns by the one that is predicted", |html| {
        let names = (0..of.confusion.len()).map(|class| classes::name(of, class));
        head(html, &std::iter::once(String::new()).chain(names).collect::<Vec<_>>());
        for (class, counts) in of.confusion.iter().enumerate() {
            let cells: Vec<String> = counts.iter().map(|count| format::count(*count)).collect();
            row(html, &classes::name(of, class), &cells);
        }
    });
}

fn calibration(html: &mut Html, of: &ClassFigures, rows: &str) {
    if of.calibration.is_empty() {
        return;
    }
    let points: Vec<(f64, f64)> = of.calibration.iter().map(|part| (part.probability, part.right)).collect();
    let area = Chart::area(SIZE, MARGIN);
    let chart = Chart {
        size: SIZE,
        margin: MARGIN,
        x: Scale::linear((0.0, 1.0), area.0),
        y: Scale::linear((0.0, 1.0), area.1),
        x_ticks: Scale::linear((0.0, 1.0), area.0).ticks(5),
        y_ticks: 5,
        x_name: "probability of the likeliest class",
        description: "share of rows whose likeliest class is right, by its probability",
    };
    let subtitle = format!("share of {rows} whose likeliest class is right; faint: as it should be");
    figure(html, "Calibration", &subtitle, |html| {
        chart.draw(
            html,
            "clip-classes",
            |html| {
                chart.line(html, "faint", &[(0.0, 0.0), (1.0, 1.0)]);
                chart.line(html, "model", &points);
                let tip = |at: usize| {
                    let part = &of.calibration[at];
                    let probability = classes::share(Some(part.probability));
                    let right = classes::share(Some(part.right));
                    format!("{} with {probability}: {right} right", format::plural(part.rows, "row"))
                };
                chart.tooltips(html, &points, tip);
            },
            |_| {},
        );
    });
}
