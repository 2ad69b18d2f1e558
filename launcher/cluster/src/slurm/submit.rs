//! Submission of a script to sbatch, and queries of a job.

use super::{
    JobState, SlurmError,
    command::{Commands, SUBMIT, answer},
    records::ScontrolRecord,
};
use std::fmt;

pub fn submit(script: &str, commands: &dyn Commands) -> Result<u64, SlurmError> {
    let answer = answer(commands, SUBMIT, &["--parsable".into()], script)?;
    // The id is on the last line, "JOB" or "JOB;CLUSTER", after any output of a site's plug-in.
    let number = |line: &str| line.split(';').next().and_then(|job| job.trim().parse().ok());
    answer.lines().rev().find_map(number).ok_or_else(|| SlurmError::Answer {
        program: SUBMIT,
        answer: answer.trim().to_owned(),
        expected: "the number of a job",
    })
}

/// State of a job, as `scontrol show job` prints it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobInfo {
    pub state: JobState,
    /// Reason why the job waits or ended; "None" without one.
    pub reason: String,
    /// Nodes as a host list; `None` before the job has any.
    pub nodes: Option<String>,
    pub restarts: u32,
    /// Elapsed time, and the time limit, as Slurm prints them.
    pub time: (String, String),
    pub output: Option<String>,
}

/// Queries one job. Slurm forgets jobs some minutes after their end and then refuses.
pub fn job(job_id: u64, commands: &dyn Commands) -> Result<JobInfo, SlurmError> {
    let answer =
        answer(commands, "scontrol", &["-o".into(), "show".into(), "job".into(), job_id.to_string().into()], "")?;
    read(&answer).ok_or_else(|| SlurmError::Answer {
        program: "scontrol",
        answer: answer.trim().to_owned(),
        expected: "a job with JobState=…",
    })
}

impl fmt::Display for JobInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.state)?;
        if self.reason != "None" {
            write!(f, " ({})", self.reason)?;
        }
        let (run, limit) = &self.time;
        write!(f, "  {run} of {limit}  requeued {} times", self.restarts)?;
        for (name, value) in [("nodes", &self.nodes), ("output", &self.output)] {
            if let Some(value) = value {
                write!(f, "\n{name:7}  {value}")?;
            }
        }
        Ok(())
    }
}

fn read(answer: &str) -> Option<JobInfo> {
    let record = ScontrolRecord::of(answer)?;
    let text = |name: &str| record.get(name).map(str::to_owned);
    Some(JobInfo {
        state: JobState::parse(record.get("JobState")?),
        reason: text("Reason").unwrap_or_else(|| "None".to_owned()),
        nodes: text("NodeList"),
        restarts: record.get("Restarts").and_then(|count| count.parse().ok()).unwrap_or(0),
        time: (text("RunTime").unwrap_or_default(), text("TimeLimit").unwrap_or_default()),
        output: text("StdOut"),
    })
}

#[cfg(test)]
mod tests {
    use super::{super::command::CommandOutput, *};
    use std::ffi::OsString;

    struct Says(i32, &'static str, &'static str);

    impl Commands for Says {
        fn run(&self, _: &'static str, _: &[OsString], _: &str) -> Result<CommandOutput, SlurmError> {
            Ok(CommandOutput { code: self.0, stdout: self.1.into(), stderr: self.2.into() })
        }
    }

    #[test]
    fn the_number_of_the_job() {
        let submitted = |stdout| submit("#!/bin/bash\n", &Says(0, stdout, ""));
        assert_eq!(submitted("42\n").unwrap(), 42);
        assert_eq!(submitted("42;cluster\n").unwrap(), 42);
        assert_eq!(submitted("welcome to the cluster\n42\n").unwrap(), 42);
        assert!(submitted("").unwrap_err().to_string().contains("the number of a job was expected"));
    }

    #[test]
    fn a_refusal_is_slurms_own() {
        let words = "sbatch: error: invalid partition specified: nope\nsbatch: error: Batch job submission failed: Invalid partition name specified\n";
        let error = submit("#!/bin/bash\n", &Says(1, "", words)).unwrap_err().to_string();
        assert!(error.starts_with("sbatch failed with code 1: sbatch: error: invalid partition specified: nope"));
    }

    #[test]
    fn a_job_as_slurm_shows_it() {
        let expected = JobInfo {
            state: JobState::Running,
            reason: "None".into(),
            nodes: Some("n1".into()),
            restarts: 0,
            time: ("00:00:02".into(), "UNLIMITED".into()),
            output: Some("/home/ada/weather/slurm-12.out".into()),
        };
        let found = job(12, &Says(0, include_str!("captured/show-job-12.txt"), "")).unwrap();
        assert_eq!(found, expected);
        assert_eq!(
            found.to_string(),
            "RUNNING  00:00:02 of UNLIMITED  requeued 0 times\nnodes    n1\noutput   /home/ada/weather/slurm-12.out"
        );
        let gone = job(9, &Says(1, "", "slurm_load_jobs error: Invalid job id specified\n")).unwrap_err().to_string();
        assert_eq!(gone, "scontrol failed with code 1: slurm_load_jobs error: Invalid job id specified");
        assert!(matches!(job(9, &Says(0, "No jobs in the system", "")), Err(SlurmError::Answer { .. })));
    }
}
