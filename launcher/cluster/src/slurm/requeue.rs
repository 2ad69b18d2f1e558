//! Requeueing of the job, once everything is saved.

use super::{
    SlurmError,
    command::{Commands, answer},
};

/// Puts the job back into the queue. Slurm then ends its remaining processes: TERM at once, KILL after its KillWait.
///
/// Call it on one node only, when the workers of all nodes have ended. An error means a refusal: the job may not be requeued
/// (`--no-requeue`, JobRequeue=0), or Slurm does not answer.
pub fn requeue(job_id: u64, commands: &dyn Commands) -> Result<(), SlurmError> {
    answer(commands, "scontrol", &["requeue".into(), job_id.to_string().into()], "").map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::{super::command::CommandOutput, *};
    use std::{cell::RefCell, ffi::OsString};

    struct Recorded(RefCell<Vec<OsString>>, i32, &'static str);

    impl Commands for Recorded {
        fn run(&self, program: &'static str, args: &[OsString], _: &str) -> Result<CommandOutput, SlurmError> {
            self.0.borrow_mut().push(program.into());
            self.0.borrow_mut().extend_from_slice(args);
            Ok(CommandOutput { code: self.1, stdout: String::new(), stderr: self.2.into() })
        }
    }

    #[test]
    fn the_job_goes_back_into_the_queue() {
        let commands = Recorded(RefCell::default(), 0, "");
        requeue(42, &commands).unwrap();
        assert_eq!(commands.0.into_inner(), ["scontrol", "requeue", "42"]);
    }

    #[test]
    fn a_refusal_is_passed_on_in_slurms_words() {
        // Slurm 22.05 to a job of --no-requeue.
        let commands = Recorded(RefCell::default(), 1, "Requested operation is presently disabled for job 12\n");
        let error = requeue(12, &commands).unwrap_err().to_string();
        assert_eq!(error, "scontrol failed with code 1: Requested operation is presently disabled for job 12");
    }
}
