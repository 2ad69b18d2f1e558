//! Names of signals and exit codes, and their usual causes.
//!
//! **Invariant:** pure and total; a hint is a guess and reads as one.

use nix::sys::signal::Signal;

/// Codes above this one are a shell's way to say that a signal ended a process.
const SHELL_SIGNAL_BASE: i32 = 128;

/// Returns the name of a signal, or its number.
pub fn name(number: i32) -> String {
    Signal::try_from(number).map_or_else(|_| format!("signal {number}"), |signal| signal.as_str().to_owned())
}

/// Returns the usual cause of a death by this signal; `None` when there is no typical one.
pub fn hint(number: i32) -> Option<&'static str> {
    match Signal::try_from(number) {
        Ok(Signal::SIGKILL) => Some("not by enn; was memory short? `dmesg` tells"),
        Ok(Signal::SIGTERM) => Some("somebody asked it to stop: a person, a scheduler or a limit"),
        Ok(Signal::SIGBUS) => Some("a mapped file shrank, or /dev/shm is full"),
        Ok(Signal::SIGSEGV) => Some("a crash in native code; PYTHONFAULTHANDLER=1 makes Python say where"),
        Ok(Signal::SIGABRT) => Some("native code gave up; the reason is in its standard error"),
        Ok(Signal::SIGILL) => Some("an instruction that this processor lacks"),
        Ok(Signal::SIGFPE) => Some("an integer division by zero in native code"),
        Ok(Signal::SIGXCPU | Signal::SIGXFSZ) => Some("a limit of `ulimit -a` was reached"),
        _ => None,
    }
}

/// Returns the usual cause of this exit code; `None` when there is no typical one.
pub fn code_hint(code: i32) -> Option<String> {
    match code {
        126 => Some("that is how a shell says that a program may not be executed".to_owned()),
        127 => Some("that is how a shell says that a program was not found".to_owned()),
        _ => {
            let number = code.checked_sub(SHELL_SIGNAL_BASE).filter(|number| *number > 0)?;
            let signal = Signal::try_from(number).ok()?;
            let why = hint(number).map_or_else(String::new, |hint| format!(": {hint}"));
            Some(format!("128 + {number}: a process under it was killed by {signal}{why}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_signal_keeps_its_number() {
        assert_eq!([9, 15, 77].map(name), ["SIGKILL", "SIGTERM", "signal 77"]);
        assert_eq!(hint(77), None);
    }

    #[test]
    fn codes_of_shells_are_explained() {
        assert_eq!([0, 1, 128, 255].map(code_hint), [None, None, None, None]);
        assert!(code_hint(137).is_some_and(|hint| hint.contains("SIGKILL") && hint.contains("memory")));
        assert!(code_hint(127).is_some_and(|hint| hint.contains("not found")));
    }
}
