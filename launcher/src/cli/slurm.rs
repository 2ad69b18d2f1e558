//! `enn slurm`.

use super::output;
use crate::{Error, facts::Facts};
use clap::Subcommand;
use enn_cluster::slurm::{self, JobOptions, SlurmError, SystemCommands};

/// Run under Slurm: write the script of a job, submit it, show its state
///
/// In an allocation `enn run` itself finds nodes, ranks, GPUs and where to meet: `srun enn run train.py`, or `enn run train.py` in a
/// script for sbatch.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: SlurmCommand,
}

#[derive(Debug, Subcommand)]
enum SlurmCommand {
    /// Submit a job and print its number
    ///
    /// CONFIG (*.toml) is trained by `enn train CONFIG --resume auto`, SCRIPT is run by `enn run SCRIPT`. Some time before the limit the
    /// run saves a checkpoint; then the job is requeued and resumes.
    Submit(Job),
    /// Print the script that submit would hand to sbatch
    Script(Job),
    /// Show the state of a job
    Status(Status),
}

/// A job with its program and flags.
#[derive(Debug, clap::Args)]
struct Job {
    #[command(flatten)]
    resources: Resources,
    #[command(flatten)]
    flags: JobFlags,
    /// CONFIG or SCRIPT and its arguments; or `--`, flags of `enn run`, and SCRIPT
    #[arg(value_name = "CONFIG|SCRIPT", trailing_var_arg = true, required = true, num_args = 1.., help_heading = "Job")]
    program: Vec<String>,
}

/// Resources that the job requests.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Resources")]
struct Resources {
    /// Nodes: a number, or MIN:MAX for a run that goes on when it loses some
    #[arg(long, short = 'N', value_name = "N|MIN:MAX", default_value = "1")]
    nodes: String,
    /// GPUs of each node: a number, or TYPE:NUMBER [default: none]
    #[arg(long, value_name = "[TYPE:]N")]
    gpus_per_node: Option<String>,
    /// Cores of each node, for all of its workers [default: the cluster's, often one]
    #[arg(long, short, value_name = "N")]
    cpus_per_task: Option<u32>,
    /// Memory of each node, e.g. 64G; 0 is all of it [default: the cluster's]
    #[arg(long, value_name = "SIZE")]
    mem: Option<String>,
    /// Partition [default: the cluster's]
    #[arg(long, short, value_name = "NAME")]
    partition: Option<String>,
    /// Account [default: the user's]
    #[arg(long, short = 'A', value_name = "NAME")]
    account: Option<String>,
    /// Quality of service [default: the user's]
    #[arg(long, short, value_name = "NAME")]
    qos: Option<String>,
}

/// Name, output and end of the job.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Job")]
struct JobFlags {
    /// Time limit: minutes, HH:MM:SS or D-HH:MM:SS [default: the cluster's]
    #[arg(long, short, value_name = "TIME")]
    time: Option<String>,
    /// Name [default: of CONFIG or SCRIPT]
    #[arg(long, short = 'J', value_name = "NAME")]
    job_name: Option<String>,
    /// File of the job's output; %x is its name, %j its number. Slurm makes no folders [default: %x-%j.log]
    #[arg(long, short, value_name = "FILE")]
    output: Option<String>,
    /// Do not go back into the queue at the time limit or when a node fails
    #[arg(long)]
    no_requeue: bool,
    /// Seconds before the time limit at which the run saves [default: 90]
    #[arg(long, value_name = "SECONDS")]
    signal_before: Option<u32>,
    /// One more option for sbatch, e.g. --sbatch-arg=--exclusive; may be repeated
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    sbatch_arg: Vec<String>,
}

/// Arguments of `enn slurm status`.
#[derive(Debug, clap::Args)]
struct Status {
    /// Number of the job
    #[arg(value_name = "JOB", help_heading = "Job")]
    job: u64,
}

pub(super) fn run(args: &Args, facts: &Facts) -> Result<(), Error> {
    match &args.command {
        SlurmCommand::Script(job) => output::document(&job.script(facts)?)?,
        SlurmCommand::Submit(job) => {
            let number = slurm::submit(&job.script(facts)?, &SystemCommands)?;
            output::text_line(&number.to_string())?;
        }
        SlurmCommand::Status(status) => output::text_line(&slurm::job(status.job, &SystemCommands)?.to_string())?,
    }
    Ok(())
}

impl Job {
    fn script(&self, facts: &Facts) -> Result<String, SlurmError> {
        let flags = &self.flags;
        let options = JobOptions {
            job_name: flags.job_name.clone(),
            time: flags.time.clone(),
            output: flags.output.clone(),
            no_requeue: flags.no_requeue,
            signal_before: flags.signal_before,
            sbatch_args: flags.sbatch_arg.clone(),
            ..self.resources.options()?
        };
        slurm::script(&options, &self.words(facts)?)
    }

    fn words(&self, facts: &Facts) -> Result<Vec<String>, SlurmError> {
        let program = "enn";
        let enn = std::env::current_exe().map_err(|source| SlurmError::Run { program, source })?;
        let mut words = vec![enn.to_string_lossy().into_owned()];
        let target = &self.program[0];
        if !target.starts_with('-') && !facts.cwd.join(target).is_file() {
            return Err(SlurmError::NoTarget { path: target.into() });
        }
        let nodes = &self.resources.nodes;
        // A fixed number of nodes is that of the allocation, which `enn` finds itself.
        let elastic = nodes.contains(':').then(|| format!("--nnodes={nodes}"));
        if target.ends_with(".toml") {
            words.extend(["train".to_owned(), target.clone(), "--resume".to_owned(), "auto".to_owned()]);
            words.extend(elastic);
            words.extend_from_slice(&self.program[1..]);
        } else {
            words.push("run".to_owned());
            words.extend(elastic);
            words.extend_from_slice(&self.program);
        }
        Ok(words)
    }
}

impl Resources {
    /// Returns the options of a job, with the other options empty.
    fn options(&self) -> Result<JobOptions, SlurmError> {
        let wrong = || SlurmError::Option {
            option: "--nodes",
            value: self.nodes.clone(),
            reason: "is neither a number nor MIN:MAX",
        };
        let (least, most) = self.nodes.split_once(':').unwrap_or((&self.nodes, &self.nodes));
        let least: u32 = least.parse().map_err(|_| wrong())?;
        let most: u32 = most.parse().map_err(|_| wrong())?;
        if least > most {
            return Err(wrong());
        }
        Ok(JobOptions {
            nodes: most,
            elastic: least < most,
            gpus_per_node: self.gpus_per_node.clone(),
            cpus_per_node: self.cpus_per_task,
            mem: self.mem.clone(),
            partition: self.partition.clone(),
            account: self.account.clone(),
            qos: self.qos.clone(),
            ..JobOptions::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn script(line: &[&str]) -> Result<String, String> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("train.py"), "").unwrap();
        std::fs::write(dir.path().join("weather.toml"), "").unwrap();
        let facts = Facts { cwd: dir.path().to_owned(), ..Facts::gather() };
        let words = ["slurm", "script"].iter().chain(line);
        let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
        let SlurmCommand::Script(job) = line.args.command else { panic!("not script") };
        job.script(&facts).map_err(|error| error.to_string())
    }

    /// The last line, from `enn` on.
    fn command(line: &[&str]) -> String {
        let text = script(line).unwrap();
        let exe = std::env::current_exe().unwrap().to_string_lossy().into_owned();
        text.lines().last().unwrap().trim().replace(&exe, "enn")
    }

    #[test]
    fn help_of_submit() {
        let submit = Line::command().find_subcommand("submit").unwrap().clone().term_width(100);
        for argument in submit.get_arguments().filter(|argument| argument.get_id() != "help") {
            let place = argument.get_id();
            assert!(argument.get_help().is_some() && argument.get_help_heading().is_some(), "{place}");
        }
        let mut submit = submit.bin_name("enn slurm submit");
        let help = submit.render_long_help().to_string();
        insta::assert_snapshot!("help_slurm_submit", help);
    }

    #[test]
    fn configurations_are_trained_and_scripts_are_run() {
        assert_eq!(
            command(&["weather.toml", "--set", "train.epochs=3"]),
            "enn train weather.toml --resume auto --set train.epochs=3"
        );
        assert_eq!(command(&["-N", "4", "weather.toml", "-q"]), "enn train weather.toml --resume auto -q");
        assert_eq!(command(&["-N2:4", "weather.toml"]), "enn train weather.toml --resume auto --nnodes=2:4");
        assert_eq!(command(&["-N", "4", "train.py", "--lr", "1"]), "enn run train.py --lr 1");
        assert_eq!(
            command(&["-N2:4", "--", "--nproc-per-node", "8", "-m", "train"]),
            "enn run --nnodes=2:4 --nproc-per-node 8 -m train"
        );
    }

    #[test]
    fn options_reach_the_script() {
        let text =
            script(&["-N2:4", "-c", "8", "-t", "10", "--signal-before=30", "--sbatch-arg=--exclusive", "train.py"])
                .unwrap();
        for line in ["--nodes=4", "--cpus-per-task=8", "--time=10", "--signal=B:USR1@30", "--exclusive", "--no-kill"] {
            assert!(text.contains(&format!("#SBATCH {line}\n")), "{line}\n{text}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert!(script(&["nothing.py"]).unwrap_err().starts_with("found no nothing.py"));
        for nodes in ["0", "4:2", "a", "1:2:3"] {
            let error = script(&["-N", nodes, "train.py"]).unwrap_err();
            assert!(error.starts_with("--nodes: "), "{error}");
        }
        assert!(script(&[]).is_err());
    }
}
