//! Time stamps: parsing of text to Unix seconds, and formatting. Proleptic Gregorian calendar, no leap seconds, no time zones beyond a
//! fixed offset. Pure.

use time::{Date, Duration, Month, macros::date};

pub(crate) const DAY_S: i64 = 86_400;

/// Microseconds of a second, 10⁶.
pub(crate) const SECOND_US: i64 = 1_000_000;

const EPOCH: Date = date!(1970 - 01 - 01);

/// Days of 400 years, after which the calendar repeats, weekdays included.
const CYCLE_DAYS: i64 = 146_097;

/// Unix seconds of the years 0000 to 9999: numbers outside are probably milliseconds, and refused.
const SECONDS_MIN: i64 = -62_167_219_200;
const SECONDS_MAX: i64 = 253_402_300_799;

const MICRO_DIGITS: usize = 6;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Civil {
    pub year: i64,
    /// Range 1 to 12.
    pub month: i64,
    /// Range 1 to 31.
    pub day: i64,
    /// Range 0 to 86399, counted from midnight.
    pub second: i64,
    /// Range 0 to 365.
    pub day_of_year: i64,
    /// Range 0 to 6, Monday is 0.
    pub weekday: i64,
}

/// Parses `YYYY-MM-DD[( |T)HH:MM[:SS[.fraction]][Z|±HH[:]MM|±HH]]` or integer Unix seconds. Without an offset the time is UTC.
/// Fractions of a second are cut off. `None` when the text is neither, or may be either: `20130101`.
pub(crate) fn parse(text: &[u8]) -> Option<i64> {
    parse_micros(text).map(|micros| micros.div_euclid(SECOND_US))
}

/// Parses a time like [`parse`], in microseconds; finer digits are cut off.
pub(crate) fn parse_micros(text: &[u8]) -> Option<i64> {
    let is_date = text.len() >= 10 && text[4] == b'-' && text[7] == b'-';
    if !is_date {
        if is_compact_date(text) {
            return None;
        }
        let seconds = std::str::from_utf8(text).ok()?.parse::<i64>().ok()?;
        return (SECONDS_MIN..=SECONDS_MAX).contains(&seconds).then_some(seconds * SECOND_US);
    }
    let date = date(digits(text, 0, 4)?, digits(text, 5, 2)?, digits(text, 8, 2)?)?;
    let midnight = (date - EPOCH).whole_seconds();
    if text.len() == 10 {
        return Some(midnight * SECOND_US);
    }
    let separated = matches!(text[10], b' ' | b'T' | b't') && text.get(13) == Some(&b':');
    let hour = digits(text, 11, 2)?;
    let minute = digits(text, 14, 2)?;
    if !separated || hour > 23 || minute > 59 {
        return None;
    }
    let mut rest = &text[16..];
    let mut second = 0;
    let mut micros = 0;
    if rest.first() == Some(&b':') {
        second = digits(rest, 1, 2)?;
        rest = &rest[3..];
        if rest.first() == Some(&b'.') {
            let length = rest[1..].iter().take_while(|byte| byte.is_ascii_digit()).count();
            let digit = |place: usize| if place < length { i64::from(rest[1 + place] - b'0') } else { 0 };
            micros = (0..MICRO_DIGITS).fold(0, |all, place| all * 10 + digit(place));
            rest = rest.get(1 + length..).filter(|_| length > 0)?;
        }
    }
    // 23:59:60 is how a leap second is written; it is taken as the second after.
    let is_second = second <= 59 || (second == 60 && minute == 59);
    let seconds = midnight + hour * 3600 + minute * 60 + second - offset(rest)?;
    is_second.then_some(seconds * SECOND_US + micros)
}

/// Parses a date, with or without a time of day in whole seconds, like [`parse`].
pub(crate) fn moment(text: &str) -> Option<i64> {
    let part = text.split_once('.').map_or("", |(_, part)| part);
    let is_whole = part.bytes().take_while(u8::is_ascii_digit).all(|digit| digit == b'0');
    let is_date = text.len() >= 10 && text.as_bytes()[4] == b'-';
    parse(text.as_bytes()).filter(|_| is_date && is_whole)
}

/// Whether eight digits are a day between 1800 and 2199. Such a text, for example `20130101`, is probably a date but could be Unix
/// seconds, so it is not accepted as a time.
pub(crate) fn is_compact_date(text: &[u8]) -> bool {
    let of = |start, count| digits(text, start, count).unwrap_or(0);
    text.len() == 8 && (1800..2200).contains(&of(0, 4)) && date(of(0, 4), of(4, 2), of(6, 2)).is_some()
}

/// Whether digits alone are a year, `2019`, or a month, `202401`. They could also be seconds of the first days of 1970, but have neither
/// day nor hour.
pub(crate) fn is_year_or_month(text: &[u8]) -> bool {
    match (text.len(), digits(text, 0, 4), digits(text, 4, 2)) {
        (4, Some(year), _) => (1000..3000).contains(&year),
        (6, Some(year), Some(month)) => (1800..2200).contains(&year) && (1..=12).contains(&month),
        _ => false,
    }
}

/// Parses the suffix of a time as seconds east of UTC; 0 for an empty suffix.
fn offset(text: &[u8]) -> Option<i64> {
    let sign = match text.first() {
        None => return Some(0),
        Some(b'Z' | b'z') => return (text.len() == 1).then_some(0),
        Some(b'+') => 1,
        Some(b'-') => -1,
        Some(_) => return None,
    };
    let hours = digits(text, 1, 2)?;
    let minutes = match text.len() {
        3 => 0,
        5 => digits(text, 3, 2)?,
        6 if text[3] == b':' => digits(text, 4, 2)?,
        _ => return None,
    };
    (hours <= 23 && minutes <= 59).then_some(sign * (hours * 3600 + minutes * 60))
}

fn digits(text: &[u8], start: usize, count: usize) -> Option<i64> {
    text.get(start..start + count)?
        .iter()
        .try_fold(0, |number, byte| byte.is_ascii_digit().then(|| number * 10 + i64::from(byte - b'0')))
}

/// Returns the date of these numbers; `None` where the calendar has no such day.
fn date(year: i64, month: i64, day: i64) -> Option<Date> {
    let month = Month::try_from(u8::try_from(month).ok()?).ok()?;
    Date::from_calendar_date(i32::try_from(year).ok()?, month, u8::try_from(day).ok()?).ok()
}

pub(crate) fn is_leap(year: i64) -> bool {
    time::util::is_leap_year(year.rem_euclid(400) as i32)
}

/// Returns the date of a Unix time, also beyond the years that [`Date`] holds.
pub(crate) fn civil(seconds: i64) -> Civil {
    let days = seconds.div_euclid(DAY_S);
    let date = EPOCH + Duration::days(days.rem_euclid(CYCLE_DAYS));
    Civil {
        year: i64::from(date.year()) + 400 * days.div_euclid(CYCLE_DAYS),
        month: u8::from(date.month()).into(),
        day: date.day().into(),
        second: seconds.rem_euclid(DAY_S),
        day_of_year: i64::from(date.ordinal()) - 1,
        weekday: date.weekday().number_days_from_monday().into(),
    }
}

/// Formats a Unix time as `2013-01-31`, with ` 06:00` unless it is midnight, and with seconds unless they are 0.
pub fn text(seconds: i64) -> String {
    let text = to_the_second(seconds);
    text.strip_suffix(" 00:00:00").or_else(|| text.strip_suffix(":00")).unwrap_or(&text).to_owned()
}

/// Formats a time in microseconds like [`text`], with the digits of its fraction, so that different times have different texts.
pub(crate) fn text_micros(micros: i64) -> String {
    let seconds = micros.div_euclid(SECOND_US);
    match micros.rem_euclid(SECOND_US) {
        0 => text(seconds),
        part => format!("{}.{}", to_the_second(seconds), format!("{part:06}").trim_end_matches('0')),
    }
}

fn to_the_second(seconds: i64) -> String {
    let Civil { year, month, day, second, .. } = civil(seconds);
    let hour = second / 3600;
    let minute = second / 60 % 60;
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{:02}", second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_form_is_read() {
        for (text, expected) in [
            ("2013-01-01T06:00:00Z", 1_357_020_000),
            ("2013-01-01 06:00", 1_357_020_000),
            ("2013-01-01T06:00:00.123456+00:00", 1_357_020_000),
            ("2013-01-01T01:00:00-05:00", 1_357_020_000),
            ("2013-01-01T11:30+0530", 1_357_020_000),
            ("2013-01-01T08:00:00+02", 1_357_020_000),
            ("1357020000", 1_357_020_000),
            ("-1", -1),
            ("20130100", 20_130_100),
            ("17991231", 17_991_231),
            ("1970-01-01", 0),
            ("1969-12-31T23:59:59Z", -1),
            ("2000-02-29", 951_782_400),
            ("2016-12-31T23:59:60Z", 1_483_228_800),
        ] {
            assert_eq!(parse(text.as_bytes()), Some(expected), "{text}");
        }
    }

    #[test]
    fn fractions_of_a_second_are_kept_where_they_are_wanted() {
        for (text, micros) in
            [("1970-01-01T00:00:00.1", 100_000), ("1970-01-01 00:00:01.0000019Z", 1_000_001), ("-2", -2_000_000)]
        {
            assert_eq!(parse_micros(text.as_bytes()), Some(micros), "{text}");
        }
        assert_eq!(parse(b"1969-12-31T23:59:59.9"), Some(-1));
        for text in ["1969-12-31 23:59:59.9", "2013-01-31 06:00:00.25", "2013-01-31 06:00", "2013-01-31"] {
            assert_eq!(text_micros(parse_micros(text.as_bytes()).unwrap()), text);
        }
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in [
            "",
            "yesterday",
            "2013-02-29",
            "2013-13-01",
            "2013-01-01T25:00",
            "2013-01-01T06",
            "2013-01-01T06:00:00X",
            "2013-01-01T06:00:61",
            "2013-01-01T06:00.5",
            "2013-01-01T06:00:00.",
            "2013-01-01T06:00+5",
            "1357020000000",
            "2013-01-01x06:00",
            "01/02/2013",
            "12.5",
            "2013-01-0a",
            "20130101",
            "19991231",
        ] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn days_have_their_names() {
        let day = civil(1_357_020_000);
        assert_eq!((day.year, day.month, day.day, day.second), (2013, 1, 1, 6 * 3600));
        assert_eq!((day.day_of_year, day.weekday), (0, 1), "a Tuesday");
        assert_eq!(civil(951_782_400).day_of_year, 59);
        assert_eq!(text(1_357_020_000), "2013-01-01 06:00");
        assert_eq!(text(1_357_020_001), "2013-01-01 06:00:01");
    }

    proptest! {
        #[test]
        fn text_and_seconds_agree(seconds in SECONDS_MIN..SECONDS_MAX) {
            prop_assert_eq!(parse(text(seconds).as_bytes()), Some(seconds));
            let today = civil(seconds);
            prop_assert!(today.day_of_year < 365 + i64::from(is_leap(today.year)));
            let tomorrow = civil(seconds + DAY_S);
            prop_assert_eq!(tomorrow.weekday, (today.weekday + 1) % 7);
            prop_assert!(tomorrow.day_of_year == today.day_of_year + 1 || tomorrow.day_of_year == 0);
        }
    }
}
