//! The report of a failure of a run: the root cause first, then its circumstances.
//!
//! **Invariant:** pure; at most `width` columns, a bounded number of lines, no control characters of the failed program.

use super::{format, model::RunView, plain, run_status::any_program};
use enn_common::failure::Failure;
use enn_process::signal;
use time::{OffsetDateTime, macros::format_description};

/// Columns when the terminal does not say.
pub const WIDTH: usize = 100;
/// Minimum number of columns that are filled; narrower terminals wrap lines themselves.
const WIDTH_MIN: usize = 40;
const STDERR_LINES_MAX: usize = 20;
/// Lines shown of the end of a call stack, where the error is.
const STACK_LINES_MAX: usize = 24;
/// Lines shown of the worker's own message.
const WORDS_LINES_MAX: usize = 12;
const OTHERS_MAX: usize = 16;
/// Number of nodes from which on nodes are named.
const SEVERAL: u32 = 2;

/// Facts that a report contains besides the failure itself.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FailureContext {
    /// When the round began, seconds since the Unix epoch.
    pub began: Option<f64>,
    /// Nodes of the round; 0: not known.
    pub nodes: u32,
    pub restarts: u32,
    pub restarts_max: Option<u32>,
    /// Why no other round follows.
    pub verdict: Option<String>,
    /// Name of the run, for looking further.
    pub run: Option<String>,
    /// Where the stacks of all workers were written.
    pub stacks: Option<String>,
    /// Width of the report, columns; 0: [`WIDTH`].
    pub width: usize,
}

/// Returns a sentence that names the worker, its failure and the time.
pub fn headline(failure: &Failure, context: &FailureContext) -> String {
    let Failure { rank, local_rank, node_rank, host, pid, role, .. } = failure;
    let mut who = Vec::new();
    if !role.is_empty() && role != "default" {
        who.push(format!("role {role}"));
    }
    if context.nodes >= SEVERAL || *node_rank > 0 || rank != local_rank {
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
    // Clocks of two hosts may differ: a time before the beginning is left out.
    let after = context.began.map(|began| failure.time - began).filter(|seconds| *seconds >= 0.0);
    let round = failure.round;
    let after =
        after.map_or_else(String::new, |seconds| format!(", {} after round {round} began", format::seconds(seconds)));
    format!("rank {rank} ({}) {how}{early}{}{after}", who.join(", "), at(failure.time))
}

/// Returns the headline, and behind `between` the first line of the worker's own message.
pub(super) fn brief(failure: &Failure, view: &RunView, width: usize, between: &str) -> String {
    let words = failure.message.as_deref().and_then(|words| words.trim().lines().next());
    let words = words.map_or_else(String::new, |words| format!("{between}{words}"));
    format!("{}{words}", headline(failure, &context(view, failure, width)))
}

/// Returns the whole report, without a newline at its end.
pub fn report(failure: &Failure, context: &FailureContext) -> String {
    let width = if context.width == 0 { WIDTH } else { context.width.max(WIDTH_MIN) };
    let mut out = Vec::new();
    plain::wrap(&headline(failure, context), "", width, &mut out);
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
    if let Some(stacks) = &context.stacks {
        out.push(format!("  what all workers were doing: {stacks}"));
    }
    let verdict = context.verdict.as_ref().map(|verdict| format!("not tried again: {verdict}"));
    if let Some(text) = verdict.or_else(|| restarts(context)) {
        plain::wrap(&text, "  ", width, &mut out);
    }
    if let Some(run) = &context.run {
        out.push(format!("  more: enn logs {run}, enn top {run}"));
    }
    out.join("\n")
}

/// Returns the report of the last round's failure; `None` when no failure was reported.
pub fn last_of(view: &RunView, width: usize) -> Option<String> {
    let failure = view.failures.last()?;
    if view.rounds.last().is_some_and(|round| round.round != failure.round) {
        return None;
    }
    Some(report(failure, &context(view, failure, width)))
}

/// Collects the facts about a failure from the events.
pub fn context(view: &RunView, failure: &Failure, width: usize) -> FailureContext {
    let round = view.round(failure.round);
    let restarts = u32::try_from(view.restarts()).unwrap_or(u32::MAX);
    let left = round.and_then(|round| round.restarts_left);
    let stacks = view.hangs.iter().rev().find(|hang| hang.round == failure.round);
    FailureContext {
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

fn restarts(context: &FailureContext) -> Option<String> {
    let max = context.restarts_max?;
    Some(match (max, context.restarts) {
        (0, _) => "restarts: none were allowed (--max-restarts)".to_owned(),
        (max, 0) => format!("restarts: none of {max} used"),
        (max, used) => format!("restarts: {used} of {max} used"),
    })
}

/// Formats a time as " at 12:03:04 UTC"; empty when the time is invalid.
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

/// Returns the last lines, after a line that counts those left out.
fn last(lines: &[String], most: usize) -> Vec<String> {
    let left_out = lines.len().saturating_sub(most);
    let shown = lines[left_out..].iter().cloned();
    if left_out == 0 {
        return shown.collect();
    }
    std::iter::once(format!("… {} before", format::plural(left_out as u64, "line"))).chain(shown).collect()
}

/// Returns whether `stderr` contains the end of `stack`.
fn repeats(stack: &[String], stderr: &[String]) -> bool {
    let tail: Vec<&str> = stack.iter().map(|line| line.trim()).rev().take(3).collect();
    !tail.is_empty() && tail.iter().all(|line| stderr.iter().any(|other| other.contains(line)))
}

#[cfg(test)]
mod tests;
