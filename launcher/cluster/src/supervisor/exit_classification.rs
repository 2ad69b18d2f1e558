//! The sentence that says why a worker failed: its own error when it sent one, else how its process ended; and the kernel that is
//! to blame.

use enn_common::{
    id::Rank,
    kernels::{self, Fault, KernelFault},
    wire::{
        control::Phase as WorkerPhase,
        node_agent::{FirstLaunch, WorkerEvidence},
    },
};
use enn_process::{Exit, signal};

/// What is known of a worker that failed.
#[derive(Debug, Clone)]
pub(super) struct FailureEvidence {
    pub(super) rank: Rank,
    /// Error that the worker sent, or what the supervisor found wrong with it.
    pub(super) error: Option<String>,
    pub(super) exit: Option<Exit>,
    /// The worker said that its work is done.
    pub(super) done: bool,
    pub(super) phase: WorkerPhase,
    pub(super) step: u64,
    pub(super) last: WorkerEvidence,
}

/// Returns whether the worker did what it was asked.
pub(super) fn succeeded(evidence: &FailureEvidence) -> bool {
    evidence.done && evidence.error.is_none() && evidence.exit == Some(Exit::Code(0))
}

/// Returns why the worker failed: one sentence, then the end of its standard error when it did not explain itself.
pub(super) fn sentence(evidence: &FailureEvidence) -> String {
    let FailureEvidence { rank, step, .. } = evidence;
    if let Some(error) = &evidence.error {
        return format!("rank {rank}: {error}{}", first_launch(evidence));
    }
    let place = format!("while {} (step {step})", evidence.phase.words());
    let what = match evidence.exit {
        Some(Exit::Signal(number)) => format!("was killed by {}{} {place}", signal::name(number), hint(number)),
        Some(Exit::Code(0)) => format!("exited with code 0 before its work was done, {place}"),
        Some(Exit::Code(code)) => format!("exited with code {code} without saying why, {place}"),
        None => format!("does not answer, {place}"),
    };
    let what = format!("{what}{}", first_launch(evidence));
    // A worker that exited with code 0 had no reason to write why.
    let stderr = if evidence.exit == Some(Exit::Code(0)) { "" } else { evidence.last.stderr.trim_end() };
    if stderr.is_empty() {
        format!("rank {rank} {what}")
    } else {
        format!("rank {rank} {what}; its standard error ends with:\n{stderr}")
    }
}

/// Returns the kernel with which a worker ended, when it died in its first launch on such operands: by a crash, or with an error of
/// its own, which then is of a device that does not answer any more. A worker that others ended blames no kernel.
pub(super) fn blamed_kernel(evidence: &FailureEvidence) -> Option<KernelFault> {
    let FirstLaunch { op, kernel, signature, operands } = evidence.last.first_launch.clone()?;
    let how = match (&evidence.error, evidence.exit) {
        (_, Some(Exit::Signal(number))) => kernels::crash(number)?.to_owned(),
        (Some(error), _) => error.lines().next().unwrap_or_default().to_owned(),
        (None, _) => return None,
    };
    Some(KernelFault { op, kernel, sig: signature, operands, fault: Fault::Crash { how }, step: evidence.step })
}

fn first_launch(evidence: &FailureEvidence) -> String {
    match blamed_kernel(evidence) {
        Some(KernelFault { op, kernel, operands, .. }) => {
            format!(", in the first launch of kernel {kernel} of {op} on {operands}, which is not tried again")
        }
        None => String::new(),
    }
}

fn hint(number: i32) -> String {
    signal::hint(number).map_or_else(String::new, |hint| format!(" ({hint})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evidence() -> FailureEvidence {
        let exit = Some(Exit::Code(0));
        let phase = WorkerPhase::Collective;
        let last = WorkerEvidence::default();
        FailureEvidence { rank: Rank(1), error: None, exit, done: true, phase, step: 7, last }
    }

    fn flash() -> WorkerEvidence {
        let op = "sdpa".into();
        let launch = FirstLaunch { op, kernel: "flash".into(), signature: 7, operands: "f32[2]".into() };
        WorkerEvidence { first_launch: Some(launch), ..WorkerEvidence::default() }
    }

    #[test]
    fn success_needs_word_and_code() {
        assert!(succeeded(&evidence()));
        assert!(!succeeded(&FailureEvidence { done: false, ..evidence() }));
        assert!(!succeeded(&FailureEvidence { exit: Some(Exit::Code(1)), ..evidence() }));
        assert!(!succeeded(&FailureEvidence { exit: Some(Exit::Signal(9)), ..evidence() }));
        assert!(!succeeded(&FailureEvidence { error: Some("x".into()), ..evidence() }));
    }

    #[test]
    fn sentences() {
        let last = WorkerEvidence { stderr: "a\nb\n".to_owned(), ..WorkerEvidence::default() };
        let killed = sentence(&FailureEvidence { exit: Some(Exit::Signal(9)), last, ..evidence() });
        assert_eq!(
            killed,
            "rank 1 was killed by SIGKILL (not by enn; was memory short? `dmesg` tells) while waiting in a collective \
             (step 7); its standard error ends with:\na\nb"
        );
        let error = Some("no space".to_owned());
        let own = sentence(&FailureEvidence { error, exit: Some(Exit::Code(1)), ..evidence() });
        assert_eq!(own, "rank 1: no space");
        let crashed = sentence(&FailureEvidence { exit: Some(Exit::Signal(6)), last: flash(), ..evidence() });
        assert!(
            crashed
                .ends_with("(step 7), in the first launch of kernel flash of sdpa on f32[2], which is not tried again"),
            "{crashed}"
        );
        let early = sentence(&FailureEvidence { done: false, ..evidence() });
        assert_eq!(early, "rank 1 exited with code 0 before its work was done, while waiting in a collective (step 7)");
    }

    #[test]
    fn a_crash_blames_the_kernel_launched_first_and_a_kill_does_not() {
        let ended = |exit, error: Option<&str>| {
            let error = error.map(str::to_owned);
            blamed_kernel(&FailureEvidence { exit: Some(exit), error, last: flash(), ..evidence() })
        };
        let crash = ended(Exit::Signal(11), None).unwrap();
        assert_eq!((crash.kernel.as_str(), crash.sig, crash.step), ("flash", 7, 7));
        assert_eq!(crash.fault, Fault::Crash { how: "SIGSEGV".into() });
        assert!(ended(Exit::Signal(9), None).is_none());
        assert!(ended(Exit::Code(1), None).is_none(), "it lost its launcher");
        assert!(ended(Exit::Code(1), Some("CUDA error: illegal address")).is_some());
        let none = FailureEvidence { exit: Some(Exit::Signal(11)), ..evidence() };
        assert!(blamed_kernel(&none).is_none());
    }
}
