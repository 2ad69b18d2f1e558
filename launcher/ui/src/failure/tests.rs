//! Reports of failures as people see them.

use super::*;
use proptest::prelude::*;

const STACK: &str = "Traceback (most recent call last):\n  File \"/home/ada/train.py\", line 31, in main\n    loss = \
                     step(batch)\n  File \"/home/ada/train.py\", line 12, in step\n    raise RuntimeError(\"boom\")\n\
                     RuntimeError: boom\n";

/// A Python worker of the second of two nodes that raised.
pub(crate) fn raised() -> Failure {
    Failure {
        round: 2,
        host: "n2".into(),
        node_rank: 1,
        local_rank: 1,
        rank: 3,
        role: "default".into(),
        pid: 4711,
        time: 1_790_000_003.2,
        code: Some(1),
        signal: None,
        message: Some("RuntimeError: boom".into()),
        traceback: Some(STACK.into()),
        stderr: format!("\x1b[33mwarning\x1b[0m: slow disk\n 10%|#   \r 50%|##  \r100%|####\n{STACK}"),
        early: false,
        others: vec!["rank 2 (pid 4710): running, 3.1 s of CPU".into()],
    }
}

fn context() -> FailureContext {
    FailureContext {
        began: Some(1_790_000_000.0),
        nodes: 2,
        restarts: 2,
        restarts_max: Some(2),
        run: Some("train-20261121T173000Z-abcd".into()),
        verdict: Some("rank 3 on n2 failed (no restart is left)".into()),
        stacks: None,
        width: 100,
    }
}

fn killed() -> Failure {
    let others = (0..20).map(|rank| format!("rank {rank}: waits in a futex")).collect();
    let stderr = (1..=30).map(|line| format!("line {line}\n")).collect();
    Failure { code: None, signal: Some(9), message: None, traceback: None, stderr, others, ..raised() }
}

#[test]
fn reports() {
    let alone = Failure { node_rank: 0, rank: 1, round: 0, early: true, stderr: String::new(), ..raised() };
    let shell = Failure { code: Some(139), message: None, traceback: None, stderr: String::new(), ..alone.clone() };
    let hung = Failure {
        code: None,
        message: Some("made no progress for 600 s".into()),
        traceback: None,
        stderr: String::new(),
        others: vec![],
        role: "trainer".into(),
        ..raised()
    };
    let stacks = Some("/runs/x/stacks/0".to_owned());
    let cases = [
        ("raised", report(&raised(), &context())),
        ("killed", report(&killed(), &context())),
        ("alone", report(&alone, &FailureContext { nodes: 1, restarts: 0, restarts_max: Some(0), ..context() })),
        ("shell", report(&shell, &FailureContext { width: 60, ..FailureContext::default() })),
        ("hung", report(&hung, &FailureContext { stacks, restarts: 0, restarts_max: Some(3), ..context() })),
    ];
    let text: Vec<String> = cases.iter().map(|(name, text)| format!("--- {name}\n{text}")).collect();
    insta::assert_snapshot!(text.join("\n"));
}

#[test]
fn the_stack_is_shown_once() {
    let text = report(&raised(), &context());
    assert_eq!(text.matches("line 12, in step").count(), 1, "{text}");
    let elsewhere = report(&Failure { stderr: "nothing of it".into(), ..raised() }, &context());
    assert!(elsewhere.contains("its call stack:") && elsewhere.contains("line 12, in step"), "{elsewhere}");
}

proptest! {
    /// Whatever a program printed, the report is bounded, keeps its width and holds no control character.
    #[test]
    fn any_output_is_tamed(stderr in "(?s).{0,3000}", message in "(?s).{0,600}", width in 0usize..200) {
        let failure = Failure { stderr, message: Some(message), ..raised() };
        let text = report(&failure, &FailureContext { width, run: None, ..context() });
        let width = if width == 0 { WIDTH } else { width.max(WIDTH_MIN) };
        prop_assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
        prop_assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
        prop_assert!(text.lines().count() < 300);
    }
}
