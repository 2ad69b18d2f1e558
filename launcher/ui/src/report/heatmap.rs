//! Where the error is: the mean absolute error of every cell of the output grid.

use super::{
    elements::{figure_wide, section},
    grid::Grid,
    html::{Html, Rect},
    scale::extent,
};
use crate::format;
use std::ops::Range;

const WIDTH: f64 = 1000.0;
const RIGHT: f64 = 62.0;
const TOP: f64 = 22.0;

/// Rows and columns beyond which neighbours are averaged.
const ROWS_MAX: usize = 96;
const COLUMNS_MAX: usize = 96;

/// Widest cell in which the number is still written, and the least.
const NUMBER_WIDTH_MIN: f64 = 30.0;

/// Errors of the grid, possibly thinned.
struct ErrorMap {
    rows: Vec<String>,
    columns: Vec<String>,
    values: Vec<f64>,
    thinned: bool,
}

/// Draws the mean absolute error of every cell of `grid`; `of` names the rows, `floor` holds the errors of the cells' means.
pub(super) fn write(html: &mut Html, grid: &Grid, of: &str, mae: &[f64], floor: Option<&[f64]>, unit: &str) {
    let map = map(grid, mae);
    let (low, high) = extent(map.values.iter().copied());
    if !(low.is_finite() && high.is_finite()) || map.values.len() < 2 {
        return;
    }
    let floor = floor.map(|floor| self::map(grid, floor).values);
    section(html, "cells", "Where the error is", |html| {
        let mut subtitle = format::in_unit(&format!("mean absolute error of each cell over {of}"), unit);
        if map.thinned {
            subtitle.push_str("; neighbouring cells are averaged to fit");
        }
        figure_wide(html, "Error by place and time", &subtitle, |html| {
            draw(html, &map, low..high, floor.as_deref(), unit);
            legend(html, low, high);
        });
    });
}

fn map(grid: &Grid, mae: &[f64]) -> ErrorMap {
    let rows = grid.entities.len();
    let columns = grid.times.len();
    let down = rows.div_ceil(ROWS_MAX).max(1);
    let across = columns.div_ceil(COLUMNS_MAX).max(1);
    let name = |names: &[String], by: usize| names.chunks(by).map(|some| some[0].clone()).collect::<Vec<_>>();
    let row_names = name(&grid.entities, down);
    let column_names = name(&grid.times, across);
    let mut values = Vec::with_capacity(row_names.len() * column_names.len());
    for row in 0..row_names.len() {
        for column in 0..column_names.len() {
            let mut sum = 0.0;
            let mut n = 0;
            for entity in row * down..((row + 1) * down).min(rows) {
                for time in column * across..((column + 1) * across).min(columns) {
                    let value = mae.get(grid.cell(entity, time)).copied().unwrap_or(f64::NAN);
                    if value.is_finite() {
                        sum += value;
                        n += 1;
                    }
                }
            }
            values.push(sum / f64::from(n));
        }
    }
    ErrorMap { rows: row_names, columns: column_names, values, thinned: down > 1 || across > 1 }
}

/// Returns the shade of a value: 0 (lowest) to 8 (highest).
fn shade(value: f64, limits: &Range<f64>) -> usize {
    (((value - limits.start) / (limits.end - limits.start).max(f64::MIN_POSITIVE) * 9.0) as usize).min(8)
}

fn draw(html: &mut Html, map: &ErrorMap, limits: Range<f64>, floor: Option<&[f64]>, unit: &str) {
    let longest = map.rows.iter().map(|name| name.chars().count()).max().unwrap_or(0) as f64;
    let left = (longest * 7.6 + 14.0).clamp(14.0, 160.0);
    let width = (WIDTH - left - RIGHT) / map.columns.len() as f64;
    let height = match map.rows.len() {
        0..=8 => 34.0,
        9..=24 => 22.0,
        25..=48 => 15.0,
        _ => 12.0,
    };
    let numbers = width >= NUMBER_WIDTH_MIN && height >= 15.0;
    let bottom = TOP + height * map.rows.len() as f64 + 6.0;
    html.svg(WIDTH, bottom, "error of every cell", |html| {
        let every = (34.0 / width).ceil().max(1.0) as usize;
        for (column, name) in map.columns.iter().enumerate().step_by(every) {
            html.svg_text("tick mid", left + (column as f64 + 0.5) * width, TOP - 8.0, name);
        }
        html.svg_text("tick end", WIDTH, TOP - 8.0, "mean");
        for (row, name) in map.rows.iter().enumerate() {
            let y = TOP + row as f64 * height;
            let values = &map.values[row * map.columns.len()..][..map.columns.len()];
            let known: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
            let mean = known.iter().sum::<f64>() / known.len() as f64;
            let middle = y + height / 2.0 + 4.0;
            html.svg_text("label", 0.0, middle, name);
            html.svg_text("label end", WIDTH, middle, &format::measure(mean));
            for (column, value) in values.iter().enumerate().filter(|(_, value)| value.is_finite()) {
                let x = left + column as f64 * width;
                let shade = shade(*value, &limits);
                let beside =
                    floor.and_then(|floor| floor.get(row * map.columns.len() + column)).filter(|v| v.is_finite());
                let beside = beside.map_or_else(String::new, |v| format!(" (cell mean {})", format::measure(*v)));
                let tooltip = format!("{name} {}: {}{beside}", map.columns[column], format::with_unit(*value, unit));
                let rect = Rect { x, y, width: width - 1.5, height: height - 1.5 };
                html.rect(&format!("q{shade}"), rect, 2, &tooltip);
                if numbers {
                    let class = if shade >= 5 { "cell on-dark" } else { "cell on-light" };
                    html.svg_text(class, x + width / 2.0 - 0.7, middle, &short(*value));
                }
            }
        }
    });
}

/// Two or three digits: a cell has room for no more.
fn short(value: f64) -> String {
    if value >= 9.95 { format!("{value:.0}") } else { format!("{value:.1}") }
}

fn legend(html: &mut Html, low: f64, high: f64) {
    html.element("div", &[("class", &"ramp")], |html| {
        html.leaf("span", &[], &format::measure(low));
        html.element("span", &[("class", &"steps"), ("aria-hidden", &"true")], |html| {
            for class in ["q0", "q1", "q2", "q3", "q4", "q5", "q6", "q7", "q8"] {
                html.leaf("span", &[("class", &class)], "");
            }
        });
        html.leaf("span", &[], &format::measure(high));
    });
}
