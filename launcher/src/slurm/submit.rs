//! Handing a script to sbatch, and asking what became of a job.

use super::{
    SlurmError, State,
    command::{Commands, SUBMIT, answer},
    records::Record,
};
use std::fmt;

/// Hands over a script; the job's number.
pub fn submit(script: &str, commands: &dyn Commands) -> Result<u64, SlurmError> {
    let said = answer(commands, SUBMIT, &["--parsable".into()], script)?;
    // "JOB" or "JOB;CLUSTER", after whatever a site's plugin has to say.
    let number = |line: &str| line.split(';').next().and_then(|job| job.trim().parse().ok());
    said.lines().rev().find_map(number).ok_or_else(|| SlurmError::Answer {
        program: SUBMIT,
        answer: said.trim().to_owned(),
        expected: "the number of a job",
    })
}

/// What Slurm says of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    pub state: State,
    /// Why it waits or ended; "None" when there is nothing to say.
    pub reason: String,
    /// Its nodes, as a host list; `None` before it has any.
    pub nodes: Option<String>,
    /// How often it was requeued.
    pub restarts: u32,
    /// Time it has run, and its limit, in Slurm's words.
    pub time: (String, String),
    /// File of its output.
    pub output: Option<String>,
}

/// Asks for one job. Slurm forgets jobs some minutes after their end and then refuses.
pub fn job(job_id: u64, commands: &dyn Commands) -> Result<Job, SlurmError> {
    let said =
        answer(commands, "scontrol", &["-o".into(), "show".into(), "job".into(), job_id.to_string().into()], "")?;
    read(&said).ok_or_else(|| SlurmError::Answer {
        program: "scontrol",
        answer: said.trim().to_owned(),
        expected: "a job with JobState=…",
    })
}

impl fmt::Display for Job {
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

fn read(answer: &str) -> Option<Job> {
    let record = Record::of(answer)?;
    let text = |name: &str| record.get(name).map(str::to_owned);
    Some(Job {
        state: State::parse(record.get("JobState")?),
        reason: text("Reason").unwrap_or_else(|| "None".to_owned()),
        nodes: text("NodeList"),
        restarts: record.get("Restarts").and_then(|count| count.parse().ok()).unwrap_or(0),
        time: (text("RunTime").unwrap_or_default(), text("TimeLimit").unwrap_or_default()),
        output: text("StdOut"),
    })
}

#[cfg(test)]
mod tests {
    use super::{super::command::Said, *};
    use std::ffi::OsString;

    struct Says(i32, &'static str, &'static str);

    impl Commands for Says {
        fn run(&self, _: &'static str, _: &[OsString], _: &str) -> Result<Said, SlurmError> {
            Ok(Said { code: self.0, stdout: self.1.into(), stderr: self.2.into() })
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
        let expected = Job {
            state: State::Running,
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
