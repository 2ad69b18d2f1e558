//! Parsers of the values of torchrun's flags, which accept what torchrun accepts. Pure.

use super::RunError;
use crate::retention;
use enn_process::logs::StdByRank;
use nix::sys::signal::Signal;
use std::{
    collections::{BTreeMap, BTreeSet},
    str::FromStr,
    time::Duration,
};

/// Valid values and a hint, for a value that cannot be parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Expected {
    pub(super) what: &'static str,
    pub(super) hint: &'static str,
}

impl Expected {
    /// Returns the error for the value `found` of `place`. `parser`: torchrun's parser rejects it as well.
    pub(super) fn error(self, place: impl Into<String>, found: &str, parser: bool) -> RunError {
        RunError::Value { place: place.into(), found: found.to_owned(), expected: self.what, hint: self.hint, parser }
    }
}

/// Returns whether a variable switches something on.
pub(super) fn switch(variable: &str, text: Option<&String>, hint: &'static str) -> Result<bool, RunError> {
    match text.map(String::as_str) {
        None | Some("0") => Ok(false),
        Some("1") => Ok(true),
        Some(found) => Err(Expected { what: "1 or 0", hint }.error(variable, found, true)),
    }
}

/// `N` or `MIN:MAX`.
pub(super) fn nodes(text: &str) -> Result<(u32, u32), Expected> {
    let expected =
        Expected { what: "N or MIN:MAX with 0 < MIN <= MAX", hint: "--nnodes 2, or --nnodes 2:4 for an elastic run" };
    let number = |text: &str| text.trim().parse::<u32>().map_err(|_| expected);
    let (min, max) = match text.split_once(':') {
        None => (number(text)?, number(text)?),
        Some((min, max)) => (number(min)?, number(max)?),
    };
    if 0 < min && min <= max { Ok((min, max)) } else { Err(expected) }
}

/// Parses a selection of streams, for all ranks or by rank.
pub(super) fn streams(text: &str) -> Result<StdByRank, Expected> {
    let expected = Expected {
        what: "0 (none), 1 (stdout), 2 (stderr), 3 (both), or RANK:VALUE,…",
        hint: "3 for both streams of all workers, 0:3,1:2 by local rank",
    };
    StdByRank::parse(text).ok_or(expected)
}

pub(super) fn ranks(text: &str) -> Result<BTreeSet<u32>, Expected> {
    let expected = Expected { what: "local ranks with commas between", hint: "--local-ranks-filter 0,1" };
    text.split(',').map(|rank| rank.trim().parse().map_err(|_| expected)).collect()
}

/// Parses items between commas; two commas stand for one inside an item.
pub(super) fn list(text: &str) -> Vec<String> {
    let mut items = vec![String::new()];
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match (c, items.last_mut()) {
            (',', Some(item)) if rest.next_if_eq(&',').is_some() => item.push(','),
            (',', _) => items.push(String::new()),
            (c, Some(item)) => item.push(c),
            (_, None) => {}
        }
    }
    // An empty filter would match every line; torchrun's own default is no filter.
    items.retain(|item| !item.is_empty());
    items
}

/// Parses signals by name; the second list holds unknown names and signals that cannot be handled.
pub(super) fn signals(text: &str) -> (Vec<Signal>, Vec<String>) {
    let mut known = Vec::new();
    let mut odd = Vec::new();
    for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        match Signal::from_str(name) {
            Ok(Signal::SIGKILL | Signal::SIGSTOP) | Err(_) => odd.push(name.to_owned()),
            Ok(signal) if !known.contains(&signal) => known.push(signal),
            Ok(_) => {}
        }
    }
    (known, odd)
}

/// Parses a time in seconds, zero or more.
pub(super) fn seconds(text: &str) -> Result<Duration, Expected> {
    let expected = Expected { what: "seconds, zero or more", hint: "e.g. 30 or 0.5" };
    let number: f64 = text.trim().parse().map_err(|_| expected)?;
    Duration::try_from_secs_f64(number).map_err(|_| expected)
}

/// Parses days, zero or more; `None`: unlimited.
pub(super) fn days(text: &str) -> Result<Option<Duration>, Expected> {
    let expected = Expected { what: "days, zero or more, or unlimited", hint: "e.g. 30 or 0.5" };
    retention::days(text.trim()).ok_or(expected)
}

/// Parses a size in bytes; `None`: unlimited.
pub(super) fn size(text: &str) -> Result<Option<u64>, Expected> {
    let expected = Expected { what: "bytes with K, M, G or T behind them, or unlimited", hint: "e.g. 500M or 4G" };
    retention::bytes(text.trim()).ok_or(expected)
}

/// Parses a whole number, zero or more.
pub(super) fn count(text: &str) -> Result<u32, Expected> {
    text.trim().parse().map_err(|_| Expected { what: "a whole number, zero or more", hint: "e.g. 0 or 3" })
}

/// Parses the keys and values of `--rdzv-conf`.
pub(super) fn conf(text: &str) -> Result<BTreeMap<String, String>, Expected> {
    let expected = Expected {
        what: "KEY=VALUE,… with a value for every key",
        hint: "e.g. join_timeout=600,last_call_timeout=30",
    };
    let text = text.trim();
    if text.is_empty() {
        return Ok(BTreeMap::new());
    }
    let pair = |item: &str| {
        let (key, value) = item.split_once('=').ok_or(expected)?;
        let key = key.trim();
        let value = value.trim();
        if key.is_empty() || value.is_empty() { Err(expected) } else { Ok((key.to_owned(), value.to_owned())) }
    };
    text.split(',').map(pair).collect()
}

/// Parses a boolean of `--rdzv-conf`.
pub(super) fn truth(text: &str) -> Result<bool, Expected> {
    match text.to_lowercase().as_str() {
        "1" | "true" | "t" | "yes" | "y" => Ok(true),
        "0" | "false" | "f" | "no" | "n" => Ok(false),
        _ => Err(Expected { what: "true or false", hint: "is_host=true on the node that serves the endpoint" }),
    }
}
