//! Rates and times as they are written on the command line: "1/60s", "2/1m:500ms", "10m".
//!
//! **Invariant:** pure. A time is finite and above zero.

use super::policy::Rate;

/// Longest time that is understood, seconds: a year.
const TIME_MAX_S: f64 = 366.0 * 86_400.0;

/// "N/TIME" or "N/TIME:LENGTH".
///
/// # Errors
/// What was found and what is expected.
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
    Ok(Rate { mean_s, length_s: length.map(duration).transpose()? })
}

/// "500ms", "2s", "10m", "1h"; a number alone is seconds.
///
/// # Errors
/// What was found and what is expected.
pub fn duration(text: &str) -> Result<f64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = match unit {
        "ms" => Some(1e-3),
        "" | "s" => Some(1.0),
        "m" | "min" => Some(60.0),
        "h" => Some(3600.0),
        _ => None,
    };
    let seconds = number.parse::<f64>().ok().zip(unit).map(|(number, unit)| number * unit);
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
        assert_eq!((duration("10m"), duration("7")), (Ok(600.0), Ok(7.0)));
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
