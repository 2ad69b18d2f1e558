//! What can be done with a run that ended: where its report and its newest checkpoint are, and the command that goes on with it.
//!
//! **Invariant:** pure; every command that is named is one that works on a run in this state.

use super::{
    model::{ANY_PROGRAM, RunView},
    report,
};
use enn_common::{checkpoint::name, exit::ExitCode};
use std::path::Path;

/// Returns the lines for the end with `code` of the last launch in `view`.
pub(super) fn of_end(view: &RunView, code: u8) -> Vec<String> {
    let Some(session) = view.sessions.last() else { return Vec::new() };
    match session.mode.as_str() {
        "train" => of_training(view, &session.dir, code),
        // Without copies there is nothing to be found again.
        ANY_PROGRAM if session.argv.iter().any(|word| word == "--no-capture" || word == "/dev/null") => Vec::new(),
        ANY_PROGRAM => vec![format!("output: enn logs {}", shell_word(&session.dir))],
        _ => Vec::new(),
    }
}

fn of_training(view: &RunView, dir: &Path, code: u8) -> Vec<String> {
    let mut lines = Vec::new();
    // A launch that was refused, or that never came to its workers, has no report.
    let reported = [ExitCode::Success, ExitCode::WorkerFailed, ExitCode::Interrupted, ExitCode::Terminated];
    if !view.rounds.is_empty() && reported.iter().any(|known| *known as u8 == code) {
        lines.push(format!("report: {}", dir.join(report::FILE).display()));
    }
    let newest = view.last_checkpoint();
    if let Some(newest) = newest {
        let place = dir.join("checkpoints").join(name::committed(newest.step));
        lines.push(format!("newest checkpoint: {}", place.display()));
    }
    let run = shell_word(dir);
    if code == ExitCode::Success as u8 {
        lines.push(format!("predict: enn predict {run} --data FILE --out FILE"));
    } else if newest.is_some() {
        lines.push(format!("resume: enn train --resume {run}"));
    }
    lines
}

/// Quotes a path for a shell.
pub fn shell_word(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_alphanumeric() || "/._-+,:@%=".contains(c);
    if text.chars().all(plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tests::{events, gang_events, view_after};
    use enn_common::event::EventKind;

    #[test]
    fn a_run_that_was_trained_is_predicted_with_and_one_that_was_stopped_is_resumed() {
        let view = view_after(&events());
        let dir = "/runs/weather-20260921-2f1c";
        let done = of_end(&view, 0);
        assert_eq!(done[0], format!("report: {dir}/report.html"));
        assert!(done[1].starts_with(&format!("newest checkpoint: {dir}/checkpoints/step-")), "{done:?}");
        assert_eq!(done[2], format!("predict: enn predict {dir} --data FILE --out FILE"));
        let stopped = of_end(&view, ExitCode::Interrupted as u8);
        assert_eq!(stopped[2], format!("resume: enn train --resume {dir}"));
        assert_eq!(of_end(&view, ExitCode::Machine as u8).len(), 2, "no report of a launch that went wrong itself");
    }

    #[test]
    fn without_a_checkpoint_there_is_nothing_to_resume() {
        let saved = |what: &EventKind| matches!(what, EventKind::CheckpointCommitted { .. });
        let all: Vec<_> = events().into_iter().filter(|event| !saved(&event.what)).collect();
        let failed = of_end(&view_after(&all), ExitCode::WorkerFailed as u8);
        assert_eq!(failed.len(), 1, "{failed:?}");
    }

    #[test]
    fn the_output_of_any_program_is_found_again() {
        let lines = of_end(&view_after(&gang_events()), 1);
        assert!(lines.len() == 1 && lines[0].starts_with("output: enn logs /"), "{lines:?}");
        assert_eq!(shell_word(Path::new("/a b/it's")), r"'/a b/it'\''s'");
    }
}
