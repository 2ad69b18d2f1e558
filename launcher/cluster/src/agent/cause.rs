//! The sentence that says why a worker failed: its own words when it had any, else how its process ended. Pure.

use super::kernels;
use enn_common::{
    id::Rank,
    kernels::KernelFault,
    wire::control::{Intent, Phase},
};
use enn_process::Exit;
use enn_process::signal;

/// Lines of standard error that are shown with a failure.
pub(super) const STDERR_LINES: usize = 20;

/// What is known of a worker that failed.
#[derive(Debug, Clone)]
pub(super) struct Evidence {
    pub(super) rank: Rank,
    /// What the worker said.
    pub(super) words: Option<String>,
    pub(super) exit: Option<Exit>,
    /// Whether it said that its work is done.
    pub(super) done: bool,
    pub(super) phase: Phase,
    pub(super) step: u64,
    /// A kernel that ran for the first time on such operands when the worker ended.
    pub(super) intent: Option<Intent>,
    /// End of its standard error.
    pub(super) stderr: String,
}

/// Whether the worker did what it was asked.
pub(super) fn succeeded(evidence: &Evidence) -> bool {
    evidence.done && evidence.words.is_none() && evidence.exit == Some(Exit::Code(0))
}

/// Why the worker failed: one sentence, then the end of its standard error when it did not explain itself.
pub(super) fn sentence(evidence: &Evidence) -> String {
    let Evidence { rank, step, .. } = evidence;
    if let Some(words) = &evidence.words {
        return format!("rank {rank}: {words}{}", first_launch(evidence));
    }
    let place = format!("while {} (step {step})", evidence.phase.words());
    let what = match evidence.exit {
        Some(Exit::Signal(number)) => format!("was killed by {}{} {place}", signal::name(number), hint(number)),
        Some(Exit::Code(0)) => format!("exited with code 0 before its work was done, {place}"),
        Some(Exit::Code(code)) => format!("exited with code {code} without saying why, {place}"),
        None => format!("does not answer, {place}"),
    };
    let what = format!("{what}{}", first_launch(evidence));
    let stderr = evidence.stderr.trim_end();
    if stderr.is_empty() {
        format!("rank {rank} {what}")
    } else {
        format!("rank {rank} {what}; its standard error ends with:\n{stderr}")
    }
}

/// The kernel that is to blame, when there is one.
fn first_launch(evidence: &Evidence) -> String {
    match kernels::accused(evidence) {
        Some(KernelFault { op, kernel, operands, .. }) => {
            format!(", in the first launch of kernel {kernel} of {op} on {operands}, which is not tried again")
        }
        None => String::new(),
    }
}

/// The last lines of a text that may begin in the middle of one.
pub(super) fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.trim_end().lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

fn hint(number: i32) -> String {
    signal::hint(number).map_or_else(String::new, |hint| format!(" ({hint})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evidence() -> Evidence {
        let exit = Some(Exit::Code(0));
        let phase = Phase::Collective;
        Evidence { rank: Rank(1), words: None, exit, done: true, phase, step: 7, intent: None, stderr: String::new() }
    }

    #[test]
    fn success_needs_word_and_code() {
        assert!(succeeded(&evidence()));
        assert!(!succeeded(&Evidence { done: false, ..evidence() }));
        assert!(!succeeded(&Evidence { exit: Some(Exit::Code(1)), ..evidence() }));
        assert!(!succeeded(&Evidence { exit: Some(Exit::Signal(9)), ..evidence() }));
        assert!(!succeeded(&Evidence { words: Some("x".into()), ..evidence() }));
    }

    #[test]
    fn sentences() {
        let killed = sentence(&Evidence { exit: Some(Exit::Signal(9)), stderr: "a\nb\n".into(), ..evidence() });
        assert_eq!(
            killed,
            "rank 1 was killed by SIGKILL (not by enn; was memory short? `dmesg` tells) while waiting in a collective \
             (step 7); its standard error ends with:\na\nb"
        );
        let words = sentence(&Evidence { words: Some("no space".into()), exit: Some(Exit::Code(1)), ..evidence() });
        assert_eq!(words, "rank 1: no space");
        let intent = Intent { op: "sdpa".into(), kernel: "flash".into(), sig: 1, operands: "f32[2]".into() };
        let crashed = sentence(&Evidence { exit: Some(Exit::Signal(6)), intent: Some(intent), ..evidence() });
        assert!(
            crashed
                .ends_with("(step 7), in the first launch of kernel flash of sdpa on f32[2], which is not tried again"),
            "{crashed}"
        );
        let early = sentence(&Evidence { done: false, ..evidence() });
        assert_eq!(early, "rank 1 exited with code 0 before its work was done, while waiting in a collective (step 7)");
    }

    #[test]
    fn tail_keeps_the_last_lines() {
        assert_eq!(tail("a\nb\nc\n\n", 2), "b\nc");
        assert_eq!(tail("", 2), "");
    }
}
