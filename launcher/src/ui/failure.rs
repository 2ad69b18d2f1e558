//! The report of a failure: what a person sees when a run dies. Root cause first, then what is known around it.
//!
//! **Invariant:** pure; at most `width` columns, a bounded number of lines, no control characters of the failed program.

use super::{figures, model::RunView, plain, signal, standing::any_program};
use enn_common::failure::Failure;
use time::{OffsetDateTime, macros::format_description};

/// Columns when the terminal does not say.
pub const WIDTH: usize = 100;
/// Fewest columns that are filled; narrower terminals wrap by themselves.
const WIDTH_MIN: usize = 40;
/// Lines of standard error that are shown.
const STDERR_LINES_MAX: usize = 20;
/// Lines of a call stack that are shown: the end, where the error is.
const STACK_LINES_MAX: usize = 24;
/// Lines of the worker's own words.
const WORDS_LINES_MAX: usize = 12;
/// Other workers that are listed.
const OTHERS_MAX: usize = 16;
/// Nodes are told apart from this many on.
const SEVERAL: u32 = 2;

/// What the report knows beside the failure itself.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Around {
    /// When the round began, seconds since the Unix epoch.
    pub began: Option<f64>,
    /// Nodes of the round; 0: not known.
    pub nodes: u32,
    /// Restarts used.
    pub restarts: u32,
    /// Restarts allowed.
    pub restarts_max: Option<u32>,
    /// Why no other round follows.
    pub verdict: Option<String>,
    /// Name of the run, for looking further.
    pub run: Option<String>,
    /// Where the stacks of all workers were written.
    pub stacks: Option<String>,
    /// Columns; 0: [`WIDTH`].
    pub width: usize,
}

/// Who failed, how, when: one sentence.
pub fn headline(failure: &Failure, around: &Around) -> String {
    let Failure { rank, local_rank, node_rank, host, pid, role, .. } = failure;
    let mut who = Vec::new();
    if !role.is_empty() && role != "default" {
        who.push(format!("role {role}"));
    }
    if around.nodes >= SEVERAL || *node_rank > 0 || rank != local_rank {
        who.push(format!("local rank {local_rank} of node {node_rank}"));
    }
    if !host.is_empty() {
        who.push(format!("host {host}"));
    }
    who.push(format!("pid {pid}"));
    let how = match (failure.signal, failure.code) {
        (Some(number), _) => format!("was killed by {}", signal::name(number)),
        (None, Some(0)) => "exited with code 0 before its work was done".to_owned(),
        (None, Some(code)) => format!("exited with code {code}"),
        (None, None) => "failed".to_owned(),
    };
    let early = if failure.early { " before it was ready" } else { "" };
    // Clocks of two hosts may differ: a time before the beginning is not told.
    let after = around.began.map(|began| failure.time - began).filter(|seconds| *seconds >= 0.0);
    let round = failure.round;
    let after =
        after.map_or_else(String::new, |seconds| format!(", {} after round {round} began", figures::seconds(seconds)));
    format!("rank {rank} ({}) {how}{early}{}{after}", who.join(", "), at(failure.time))
}

/// The whole report, without a newline at its end.
pub fn report(failure: &Failure, around: &Around) -> String {
    let width = if around.width == 0 { WIDTH } else { around.width.max(WIDTH_MIN) };
    let mut out = Vec::new();
    plain::wrap(&headline(failure, around), "", width, &mut out);
    if let Some(words) = failure.message.as_deref().map(plain::lines).filter(|words| !words.is_empty()) {
        for line in words.iter().take(WORDS_LINES_MAX) {
            plain::wrap(line, "  ", width, &mut out);
        }
    }
    let hint = match (failure.signal, failure.code) {
        (Some(number), _) => signal::hint(number).map(str::to_owned),
        (None, Some(code)) => signal::code_hint(code),
        (None, None) => None,
    };
    if let Some(hint) = hint {
        plain::wrap(&format!("hint: {hint}"), "  ", width, &mut out);
    }
    let stderr = plain::lines(&failure.stderr);
    let stack = failure.traceback.as_deref().map(plain::lines).unwrap_or_default();
    // Python prints the stack on standard error too: once is enough.
    if !repeats(&stack, &stderr) {
        section("its call stack:", last(&stack, STACK_LINES_MAX), width, &mut out);
    }
    section("its standard error ends with:", last(&stderr, STDERR_LINES_MAX), width, &mut out);
    let mut others: Vec<String> = failure.others.iter().flat_map(|line| plain::lines(line)).collect();
    if others.len() > OTHERS_MAX {
        let more = others.len() - OTHERS_MAX;
        others.truncate(OTHERS_MAX);
        others.push(format!("… and {more} more"));
    }
    section("meanwhile on its node:", others, width, &mut out);
    if let Some(stacks) = &around.stacks {
        out.push(format!("  what all workers were doing: {stacks}"));
    }
    let verdict = around.verdict.as_ref().map(|verdict| format!("not tried again: {verdict}"));
    if let Some(text) = verdict.or_else(|| restarts(around)) {
        plain::wrap(&text, "  ", width, &mut out);
    }
    if let Some(run) = &around.run {
        out.push(format!("  more: enn logs {run}, enn top {run}"));
    }
    out.join("\n")
}

/// The report of the failure of the last round as the events tell it; `None` when none was reported.
pub fn last_of(view: &RunView, width: usize) -> Option<String> {
    let failure = &view.failures.last()?.failure;
    if view.rounds.last().is_some_and(|round| round.round != failure.round) {
        return None;
    }
    Some(report(failure, &around(view, failure, width)))
}

/// What the events say around a failure.
pub fn around(view: &RunView, failure: &Failure, width: usize) -> Around {
    let round = view.rounds.iter().rev().find(|round| round.round == failure.round);
    let restarts = u32::try_from(view.restarts()).unwrap_or(u32::MAX);
    let left = round.and_then(|round| round.restarts_left);
    let stacks = view.hangs.iter().rev().find(|hang| hang.round == failure.round);
    Around {
        began: round.map(|round| round.started),
        nodes: round.map_or(0, |round| u32::try_from(round.nodes.len()).unwrap_or(u32::MAX)),
        restarts,
        restarts_max: left.map(|left| restarts.saturating_add(left)),
        verdict: round.and_then(|round| round.failure.clone()).filter(|failure| !failure.1).map(|failure| failure.0),
        run: any_program(view).then(|| view.name().to_owned()),
        stacks: stacks.and_then(|hang| hang.stacks.as_ref()).map(|path| path.display().to_string()),
        width,
    }
}

fn restarts(around: &Around) -> Option<String> {
    let max = around.restarts_max?;
    Some(match (max, around.restarts) {
        (0, _) => "restarts: none were allowed (--max-restarts)".to_owned(),
        (max, 0) => format!("restarts: none of {max} used"),
        (max, used) => format!("restarts: {used} of {max} used"),
    })
}

/// " at 12:03:04 UTC"; nothing when the time is none.
fn at(time: f64) -> String {
    let clock = format_description!("[hour]:[minute]:[second]");
    let moment = OffsetDateTime::from_unix_timestamp(time as i64).ok().filter(|_| time > 0.0);
    let text = moment.and_then(|moment| moment.format(clock).ok());
    text.map_or_else(String::new, |text| format!(" at {text} UTC"))
}

fn section(title: &str, lines: Vec<String>, width: usize, out: &mut Vec<String>) {
    if lines.is_empty() {
        return;
    }
    out.push(format!("  {title}"));
    for line in lines {
        plain::wrap(&line, "    | ", width, out);
    }
}

/// The last lines, and how many were left out before them.
fn last(lines: &[String], most: usize) -> Vec<String> {
    let left_out = lines.len().saturating_sub(most);
    let shown = lines[left_out..].iter().cloned();
    if left_out == 0 {
        return shown.collect();
    }
    std::iter::once(format!("… {} before", figures::plural(left_out as u64, "line"))).chain(shown).collect()
}

/// Whether the end of `stack` stands in `stderr`.
fn repeats(stack: &[String], stderr: &[String]) -> bool {
    let tail: Vec<&str> = stack.iter().map(|line| line.trim()).rev().take(3).collect();
    !tail.is_empty() && tail.iter().all(|line| stderr.iter().any(|other| other.contains(line)))
}

#[cfg(test)]
mod tests;
