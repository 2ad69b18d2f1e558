//! Calendar features of a time; cyclic features are points on the unit circle. Pure.

use super::timestamp::{Civil, DAY_S, civil, is_leap};
use enn_common::config::data::Calendar;
use std::f64::consts::TAU;

/// Returns the names of the staged columns of `features`, such as `day_of_year.sin`, in the order of `values`.
pub(crate) fn names(features: &[Calendar]) -> Vec<String> {
    let cyclic = |name: &str| vec![format!("{name}.sin"), format!("{name}.cos")];
    let of = |feature: &Calendar| match feature {
        Calendar::DayOfYear => cyclic("day_of_year"),
        Calendar::Weekday => cyclic("weekday"),
        Calendar::Hour => cyclic("hour"),
        Calendar::Trend => vec!["trend".to_owned()],
    };
    features.iter().flat_map(of).collect()
}

/// Appends the values of `features` at a Unix time (seconds, the user's offset already added).
///
/// Day of year: the part of the year that has passed, to the second. Weekday: whole days since Monday over 7. Hour: the part of
/// the day that has passed. Trend: years since 2000 with fraction.
pub(crate) fn values(features: &[Calendar], seconds: i64, out: &mut Vec<f32>) {
    let now = civil(seconds);
    for feature in features {
        let phase = match feature {
            Calendar::DayOfYear => year_part(&now),
            Calendar::Weekday => now.weekday as f64 / 7.0,
            Calendar::Hour => now.second as f64 / DAY_S as f64,
            Calendar::Trend => {
                out.push(((now.year - 2000) as f64 + year_part(&now)) as f32);
                continue;
            }
        };
        let angle = phase * TAU;
        out.push(angle.sin() as f32);
        out.push(angle.cos() as f32);
    }
}

fn year_part(now: &Civil) -> f64 {
    let days = 365 + i64::from(is_leap(now.year));
    (now.day_of_year as f64 + now.second as f64 / DAY_S as f64) / days as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn midyear_of_a_leap_year_is_half_a_turn() {
        let mut out = Vec::new();
        let all = [Calendar::DayOfYear, Calendar::Weekday, Calendar::Hour, Calendar::Trend];
        // 2024-07-02 is day 183 of 366, a Tuesday.
        values(&all, super::super::timestamp::parse(b"2024-07-02T06:00").unwrap(), &mut out);
        assert_eq!(out.len(), names(&all).len());
        let close = |a: f32, b: f64| (f64::from(a) - b).abs() < 1e-6;
        assert!(close(out[0], (TAU * 183.25 / 366.0).sin()) && close(out[1], (TAU * 183.25 / 366.0).cos()));
        assert!(close(out[2], (TAU / 7.0).sin()) && close(out[3], (TAU / 7.0).cos()));
        assert!(close(out[4], 1.0) && close(out[5], 0.0));
        assert!(close(out[6], 24.0 + 183.25 / 366.0));
    }
}
