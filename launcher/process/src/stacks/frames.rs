//! The innermost frames of a process's main thread, from the text of a tool. Pure.

/// Number of frames in a summary, innermost first.
const FRAMES: usize = 3;

/// Returns "inner < middle < outer" of the thread whose id is `pid`; `None` when the text has no stack.
pub(super) fn top(text: &str, pid: u32) -> Option<String> {
    let frames = python(text).or_else(|| native(text, pid))?;
    Some(frames.join(" < "))
}

/// Parses py-spy's output: a line for the thread, an indented line for each frame, an empty line.
fn python(text: &str) -> Option<Vec<String>> {
    let mut lines = text.lines();
    lines.by_ref().find(|line| line.starts_with("Thread ") && line.ends_with("\"MainThread\""))?;
    some(lines.take_while(|line| line.starts_with(' ')).map(|line| line.trim().to_owned()))
}

/// Parses the output of eu-stack and gdb: a line for the thread, then `#0  0x… name` or `#0  0x… in name (…) at …`.
fn native(text: &str, pid: u32) -> Option<Vec<String>> {
    let tid = format!("TID {pid}:");
    let lwp = format!("(LWP {pid})");
    let mut lines = text.lines();
    lines.by_ref().find(|line| *line == tid || (line.starts_with("Thread ") && line.contains(&lwp)))?;
    some(lines.take_while(|line| line.starts_with('#')).filter_map(function))
}

fn function(line: &str) -> Option<String> {
    let mut words = line.split_ascii_whitespace().skip(1).skip_while(|word| word.starts_with("0x") || *word == "in");
    words.next().map(str::to_owned)
}

fn some(frames: impl Iterator<Item = String>) -> Option<Vec<String>> {
    let frames: Vec<String> = frames.take(FRAMES).collect();
    (!frames.is_empty()).then_some(frames)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_py_spy_writes() {
        let text = "Process 54: python hang.py\nPython v3.11.7 (/usr/bin/python3.11)\n\nThread 60 (idle): \"loader\"\n    get (queue.py:1)\n\nThread 54 (idle): \"MainThread\"\n    Condition.wait (threading.py:327)\n    Event.wait (threading.py:629)\n    deep (hang.py:5)\n    <module> (hang.py:6)\n";
        let expected = "Condition.wait (threading.py:327) < Event.wait (threading.py:629) < deep (hang.py:5)";
        assert_eq!(top(text, 54).as_deref(), Some(expected));
    }

    #[test]
    fn as_eu_stack_and_gdb_write() {
        let stack = "PID 12 - process\nTID 12:\n#0  0x00007f80d00a3f16 __futex_abstimed_wait_common\n#1  0x00007f80 acquire_timed\nTID 16:\n#0  0x0 other\n";
        assert_eq!(top(stack, 12).as_deref(), Some("__futex_abstimed_wait_common < acquire_timed"));
        let gdb = "Thread 2 (Thread 0x7f8 (LWP 16) \"python\"):\n#0  other () at x.c:1\n\nThread 1 (Thread 0x7f9 (LWP 12) \"python\"):\n#0  __futex_wait (private=0) at ./nptl/futex.c:57\n#1  0x00007f80d00a3f7b in __GI___futex (a=1) at ./x.c:1\n[Inferior 1 (process 12) detached]\n";
        assert_eq!(top(gdb, 12).as_deref(), Some("__futex_wait < __GI___futex"));
        assert_eq!(top("ptrace: Operation not permitted.\n", 12), None);
    }
}
