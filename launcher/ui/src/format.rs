//! Numbers as people read them: errors, counts, sizes and times in a few characters.
//!
//! **Invariant:** every function is total; a number that is not finite reads "n/a".

use enn_common::{
    event::SourceShare,
    exit::ExitCode,
    metrics::{Measure, Metrics},
    shown,
};
use enn_process::signal;
use std::{borrow::Cow, fmt::Write};

/// The text for a number that is absent.
pub const ABSENT: &str = "n/a";

/// Formats a measured value with four significant digits: "3.412", "0.08123", "1.2e-7".
pub fn measure(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        ABSENT.to_owned()
    } else if size != 0.0 && !(1e-4..1e7).contains(&size) {
        format!("{value:.1e}")
    } else {
        rounded(value, [(1000.0, 0), (100.0, 1), (10.0, 2), (0.1, 3)], 5)
    }
}

/// Formats a measured value for a headline, with three significant digits: "3.41", "0.081".
pub fn brief(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() || (size != 0.0 && !(1e-3..1e7).contains(&size)) {
        measure(value)
    } else {
        rounded(value, [(1000.0, 0), (100.0, 0), (10.0, 1), (1.0, 2)], 3)
    }
}

/// Formats with the decimals of the first bound that the value reaches, or else with `least`. Zero is formatted as one is.
fn rounded(value: f64, bounds: [(f64, usize); 4], least: usize) -> String {
    let size = if value == 0.0 { 1.0 } else { value.abs() };
    let decimals = bounds.iter().find(|(bound, _)| size >= *bound).map_or(least, |(_, decimals)| *decimals);
    let text = format!("{value:.decimals$}");
    if size >= 1000.0 { grouped(&text) } else { text }
}

/// Formats a measured value with its unit, when there is one.
pub fn with_unit(value: f64, unit: &str) -> String {
    if unit.is_empty() { measure(value) } else { format!("{} {unit}", measure(value)) }
}

/// Formats the metric by which forecasters are compared: "MAE 3.412 °F".
pub fn judged(metrics: &Metrics, unit: &str) -> String {
    let measure = metrics.measure();
    format!("{} {}", measure.name(), with_unit(metrics.judged(), measure.unit(unit)))
}

/// Names the error by which forecasters are compared, with its unit.
pub fn error_name(measure: Measure, unit: &str) -> String {
    let name = if measure == Measure::Mae { "mean absolute error" } else { measure.name() };
    in_unit(name, measure.unit(unit))
}

/// Appends the unit of a quantity to its name, when there is one.
pub fn in_unit(name: &str, unit: &str) -> String {
    if unit.is_empty() { name.to_owned() } else { format!("{name}, {unit}") }
}

/// A column of a table of metrics: its name, and the function that reads its value.
pub type MetricColumn = (&'static str, fn(&Metrics) -> f64);

/// Returns the metrics that are shown where forecasters are compared by `measure`, which is the first.
pub fn columns(measure: Measure) -> [MetricColumn; 3] {
    const MAE: MetricColumn = ("MAE", |one| one.mae);
    const RMSE: MetricColumn = ("RMSE", |one| one.rmse);
    let first: MetricColumn = (measure.name(), Metrics::judged);
    match measure {
        Measure::Mae => [first, RMSE, ("R²", |one| one.r2)],
        Measure::Scaled => [first, MAE, RMSE],
        Measure::LogLoss => [first, ("accuracy", |one| one.accuracy.unwrap_or(f64::NAN)), RMSE],
    }
}

/// Returns whether the metric of that name is in the target's unit.
pub fn has_unit(name: &str) -> bool {
    ["MAE", "RMSE"].contains(&name)
}

/// Formats a measured value that may be absent.
pub fn optional(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), measure)
}

/// Formats a share in percent: "12.3 %".
pub fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// Describes the end of a process: "exited with code 1", "was killed by SIGKILL".
pub fn exit(code: Option<i32>, signal: Option<i32>) -> String {
    match (code, signal) {
        (_, Some(number)) => format!("was killed by {}", signal::name(number)),
        (Some(code), None) => format!("exited with code {code}"),
        (None, None) => "ended without a status".to_owned(),
    }
}

/// Returns the meaning of an exit code of `enn`; empty for other codes.
pub(super) fn exit_code(code: u8) -> &'static str {
    ExitCode::ALL.iter().find(|(known, _)| *known as u8 == code).map_or("", |(_, sentence)| sentence)
}

/// Formats a whole number with separated thousands: "1,234,567".
pub fn count(value: u64) -> String {
    grouped(&value.to_string())
}

/// Formats a number with its noun: "1 worker", "2 workers".
pub fn plural(value: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(value), if value == 1 { "" } else { "s" })
}

/// Formats a rate per second, without decimals above ten.
pub fn rate(value: f64) -> String {
    if !value.is_finite() || value < 0.0 {
        ABSENT.to_owned()
    } else if value < 10.0 {
        format!("{value:.1}")
    } else {
        grouped(&format!("{value:.0}"))
    }
}

/// Formats a size in decimal units: "999 B", "1.2 MB".
pub fn bytes(value: u64) -> String {
    const UNITS: [&str; 5] = ["kB", "MB", "GB", "TB", "PB"];
    if value < 1000 {
        return format!("{value} B");
    }
    let mut size = value as f64 / 1000.0;
    let mut unit = 0;
    // 999.95 would print as 1000.0 of the unit, so it moves on to the next one.
    while size >= 999.95 && unit + 1 < UNITS.len() {
        size /= 1000.0;
        unit += 1;
    }
    format!("{size:.1} {}", UNITS[unit])
}

/// Formats a duration: "3 ms", "0.42 s", "12.3 s", "3 min 05 s", "2 h 05 min".
pub fn seconds(value: f64) -> String {
    if !value.is_finite() || value < 0.0 {
        ABSENT.to_owned()
    } else if value < 0.1 {
        format!("{:.0} ms", value * 1000.0)
    } else if value < 10.0 {
        format!("{value:.2} s")
    } else if value < 59.95 {
        format!("{value:.1} s")
    } else {
        let whole = value.round() as u64;
        if whole < 3600 {
            format!("{} min {:02} s", whole / 60, whole % 60)
        } else {
            let minutes = (value / 60.0).round() as u64;
            format!("{} h {:02} min", minutes / 60, minutes % 60)
        }
    }
}

/// Formats a countdown: "0:31", "1:02:03".
pub fn countdown(value: f64) -> String {
    if !value.is_finite() || value < 0.0 {
        return ABSENT.to_owned();
    }
    let whole = value.ceil() as u64;
    if whole < 3600 {
        format!("{}:{:02}", whole / 60, whole % 60)
    } else {
        format!("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60)
    }
}

/// Formats a shape: "3 × 24".
pub fn shape(sizes: &[usize]) -> String {
    sizes.iter().map(usize::to_string).collect::<Vec<_>>().join(" × ")
}

/// Describes a source's samples and the share that training draws of them.
pub fn source(share: &SourceShare) -> String {
    let [train, val, test] = share.split_rows.map(count);
    let held = format!("train {train}, val {val}, test {test}");
    let Some(weight) = share.weight else { return held };
    let passes = share.draws as f64 / share.split_rows[0].max(1) as f64;
    format!("{held}; weight {weight}: {} an epoch, {passes:.2} passes", plural(share.draws, "sample"))
}

/// Formats the name of a baseline: "cell_mean" → "cell mean".
pub fn label(name: &str) -> String {
    name.replace('_', " ")
}

/// Title of a column of forecasters.
pub(super) fn errors_in(unit: &str) -> String {
    if unit.is_empty() { "errors".to_owned() } else { format!("errors ({unit})") }
}

/// Name of a forecaster in a table, in which the model is marked.
pub(super) fn marked(name: &str, is_ours: bool) -> String {
    if is_ours { format!("> {name}") } else { format!("  {}", label(name)) }
}

/// Formats rows as a table: the first column is aligned to the left, the others to the right.
pub(super) fn aligned(rows: &[Vec<String>]) -> String {
    table(rows, |column| column == 0)
}

/// Formats rows as a table with columns that are aligned to the left or to the right.
pub(super) fn table(rows: &[Vec<String>], is_left: impl Fn(usize) -> bool) -> String {
    // A name with a line's end would end the row.
    let rows: Vec<Vec<Cow<'_, str>>> =
        rows.iter().map(|row| row.iter().map(|cell| shown::line(cell)).collect()).collect();
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..count)
        .map(|i| rows.iter().filter_map(|row| row.get(i)).map(|c| c.chars().count()).max().unwrap_or(0))
        .collect();
    let mut text = String::new();
    for row in &rows {
        for (index, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let pad = " ".repeat(width - cell.chars().count());
            let gap = if index == 0 { "" } else { "  " };
            let _ = if is_left(index) { write!(text, "{gap}{cell}{pad}") } else { write!(text, "{gap}{pad}{cell}") };
        }
        text.push('\n');
    }
    text
}

/// Cuts a text to `width` columns.
pub(super) fn shortened(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

fn grouped(digits: &str) -> String {
    let (sign, digits) = digits.strip_prefix('-').map_or(("", digits), |rest| ("-", rest));
    let mut out = String::with_capacity(digits.len() + digits.len() / 3 + 1);
    out.push_str(sign);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        let measures = [3.41249, 0.0, -0.5, 12.345, 123.45, 1234.5, 0.081234, 2e-9, f64::NAN].map(measure);
        assert_eq!(measures, ["3.412", "0.000", "-0.500", "12.35", "123.5", "1,234", "0.08123", "2.0e-9", "n/a"]);
        let headlines = [3.41249, 0.0, 12.345, 123.45, 12345.6, 0.0812, 2e-9].map(brief);
        assert_eq!(headlines, ["3.41", "0.00", "12.3", "123", "12,346", "0.081", "2.0e-9"]);
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(
            [0, 999, 1000, 999_949, 999_950, 2_500_000].map(bytes),
            ["0 B", "999 B", "1.0 kB", "999.9 kB", "1.0 MB", "2.5 MB"]
        );
        assert_eq!(
            [0.0123, 0.5, 12.34, 59.96, 185.0, 7_499.0, -1.0].map(seconds),
            ["12 ms", "0.50 s", "12.3 s", "1 min 00 s", "3 min 05 s", "2 h 05 min", "n/a"]
        );
        assert_eq!([0.2, 31.0, 3723.0].map(countdown), ["0:01", "0:31", "1:02:03"]);
        assert_eq!(rate(5230.4), "5,230");
        assert_eq!(plural(1, "worker"), "1 worker");
    }
}
