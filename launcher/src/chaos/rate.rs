//! Rates and times as they are written on the command line: "1/60s", "2/1m:500ms", "10m".
//!
//! **Invariant:** pure. A time is finite and above zero.

use super::policy::Rate;

/// Longest time that is accepted, seconds: a year.
const TIME_MAX_S: f64 = 366.0 * 86_400.0;
/// Maximum number of faults a second.
const RATE_MAX: f64 = 1_000.0;

/// Parses "N/TIME" or "N/TIME:LENGTH".
pub fn rate(text: &str) -> Result<Rate, String> {
    let expected =
        || format!("found \"{text}\", expected how many in which time, e.g. 1/60s, or 1/60s:2s to say how long");
    let (often, length) = text.split_once(':').map_or((text, None), |(often, length)| (often, Some(length)));
    let (count, time) = often.split_once('/').ok_or_else(expected)?;
    let count: f64 = count.trim().parse().map_err(|_| expected())?;
    if !(count.is_finite() && count > 0.0) {
        return Err(expected());
    }
    let mean_s = duration(time)? / count;
    if mean_s * RATE_MAX < 1.0 {
        return Err(format!("found \"{text}\", expected no more than {RATE_MAX} in a second"));
    }
    Ok(Rate { mean_s, length_s: length.map(duration).transpose()? })
}

/// Parses a time such as "500ms", "2s", "10m" or "1h" into seconds; a number alone is seconds.
pub fn duration(text: &str) -> Result<f64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let in_seconds: Option<fn(f64) -> f64> = match unit {
        // A thousandth is no binary number, and 700 of them are not 0.7.
        "ms" => Some(|number| number / 1e3),
        "" | "s" => Some(|number| number),
        "m" | "min" => Some(|number| number * 60.0),
        "h" => Some(|number| number * 3600.0),
        _ => None,
    };
    let seconds = number.parse::<f64>().ok().zip(in_seconds).map(|(number, in_seconds)| in_seconds(number));
    let sound = seconds.filter(|seconds| *seconds > 0.0 && *seconds <= TIME_MAX_S);
    sound.ok_or_else(|| format!("found \"{text}\", expected a time above zero, e.g. 500ms, 2s, 10m or 1h"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_times_are_read() {
        let plain = |mean_s, length_s| Ok(Rate { mean_s, length_s });
        assert_eq!(rate("1/60s"), plain(60.0, None));
        assert_eq!(rate("2/1m:500ms"), plain(30.0, Some(0.5)));
        assert_eq!(rate("0.5/10:1h"), plain(20.0, Some(3600.0)));
        assert_eq!((duration("10m"), duration("7"), duration("700ms")), (Ok(600.0), Ok(7.0), Ok(0.7)));
        assert_eq!(rate("1000/1s"), plain(1e-3, None));
    }

    #[test]
    fn faults_without_a_pause_between_them_are_refused() {
        for wild in ["1001/1s", "1e300/1s", "2/1ms"] {
            let error = rate(wild).unwrap_err();
            assert!(error.contains("no more than 1000 in a second"), "{wild}: {error}");
        }
    }

    #[test]
    fn what_is_no_rate_is_refused_with_an_example() {
        for wrong in [
            "",
            "1",
            "1/",
            "/60s",
            "0/60s",
            "-1/60s",
            "1/0s",
            "1/60x",
            "1/60s:",
            "inf/1s",
            "nan/1s",
            "1/1e9h",
            "1/9999999h",
        ] {
            let error = rate(wrong).unwrap_err();
            assert!(error.contains("expected") && error.contains("e.g."), "{wrong}: {error}");
        }
    }
}
