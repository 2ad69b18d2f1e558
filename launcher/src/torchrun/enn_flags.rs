//! The flags of `enn run` that torchrun does not have.

use super::{
    FailurePolicy, Flags, RunError,
    values::{self, Expected},
};
use crate::{facts::Facts, retention::Retention};
use clap::ValueEnum;
use std::{collections::BTreeSet, path::PathBuf};

const POLICIES: Expected =
    Expected { what: "restart or replace", hint: "ENN_ON_FAILURE=replace is the same as --on-failure replace" };

/// Further options of `enn run`.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Restarting and stopping")]
pub struct EnnFlags {
    /// What follows the failure of a worker: restart (all workers) or replace (that worker) [default: ENN_ON_FAILURE, else restart]
    ///
    /// With replace, a script that uses the Python package enn goes on: a spare, or else a new process, takes the place of a worker that
    /// failed, and the others keep theirs. Without --max-restarts, 3 failures in a row without a step between them are allowed, as by
    /// enn train. Workers that have not called enn.elastic.init(), or have left their training function, are all restarted.
    #[arg(long, value_enum, value_name = "POLICY", hide_possible_values = true)]
    pub on_failure: Option<FailurePolicy>,
    /// Processes of each node that stand by for the place of a worker; with --on-failure replace [default: ENN_SPARES, else 0]
    ///
    /// A spare is started as the workers are, after their first step, and waits before its training function. One that was used, or
    /// died, is replaced.
    #[arg(long, value_name = "N")]
    pub spares: Option<String>,
    /// Each spare takes the device of one worker before it is needed: it costs memory there, and saves a second or two [default: ENN_WARM_DEVICE=1]
    ///
    /// It takes at least as many spares as the node has workers.
    #[arg(long)]
    pub warm_device: bool,
    /// Seconds between asking the workers to stop and killing them [default: 30]
    #[arg(long, value_name = "SECONDS")]
    pub grace: Option<String>,
    /// Seconds without any output or heartbeat of any worker after which the run counts as hung [default: never]
    #[arg(long, value_name = "SECONDS")]
    pub hang_timeout: Option<String>,
    /// Count restarts within the last SECONDS only [default: over the whole run]
    #[arg(long, value_name = "SECONDS")]
    pub restart_window: Option<String>,
    /// Seconds before a restart, doubled each time [default: 0]
    #[arg(long, value_name = "SECONDS")]
    pub backoff: Option<String>,
    /// Go on restarting when workers fail again before they were ready; enn-torchrun always does
    #[arg(long)]
    pub retry_early: bool,
    /// End with the failed worker's own exit code instead of 1
    #[arg(long)]
    pub propagate_exit: bool,
    /// Import modules once for all workers of a node and fork them: auto, none, or names such as torch,torchvision [default: auto]
    ///
    /// auto: torch, where PROGRAM is a Python script that imports it. Where every worker has a core, the first ones are executed and the
    /// import is made in the background, for restarts. torch stands for the parts of it that scripts use. A worker that cannot be forked
    /// as if it had been executed is executed, and a line gives the reason. enn-torchrun preloads only on request.
    #[arg(long, value_name = "MODULE,…", help_heading = "Program")]
    pub preload: Option<String>,
    /// Use a fork server that lives between runs, and leave one behind: the next run has no import to wait for [default: ENN_WARM=1]
    ///
    /// It is this user's, and ends after half an hour without a run; `enn warm` shows and stops it. A run that needs another one, because
    /// of its Python, its variables, its control group or its limits, starts that.
    #[arg(long, help_heading = "Program")]
    pub warm: bool,
    /// Let processes that a worker started and left behind live on when the run has ended well; implies --no-capture
    ///
    /// Without it nothing outlives a run. A round that fails, is restarted or is stopped ends them nevertheless, and a launcher that
    /// is killed ends its workers with their process groups. A control group of Slurm or of a container ends them with itself.
    #[arg(long)]
    pub leave_background: bool,
    /// File with the secret that the nodes of a run share [default: ENN_TOKEN, else ~/.config/enn/token]
    ///
    /// Only its owner may read it. Asked for when there is more than one node; the default file is made when it is not there.
    #[arg(long, value_name = "FILE", help_heading = "Nodes and workers")]
    pub token_file: Option<PathBuf>,
    /// Let nodes run different numbers of workers; enn-torchrun always does
    ///
    /// Checked on the node that hosts the rendezvous. Nodes of different roles may always differ.
    #[arg(long, help_heading = "Nodes and workers")]
    pub uneven: bool,
    /// Workers of this node, as --nproc-per-node MAX; while some are missing, the run goes on with as few as MIN in all [default: ENN_WORKERS]
    ///
    /// With --on-failure replace. Without it a run waits until a worker that failed is replaced.
    #[arg(long, value_name = "MIN:MAX", help_heading = "Nodes and workers")]
    pub workers: Option<String>,
    /// Let programs on other hosts use the store without the token
    #[arg(long, help_heading = "Nodes and workers")]
    pub store_open: bool,
    /// Folder of runs [default: ENN_RUNS, else ~/.local/state/enn/runs]
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub runs_dir: Option<PathBuf>,
    /// Remove runs of enn run that were last written to so many days ago, or "unlimited" [default: ENN_KEEP_DAYS, else 30]
    #[arg(long, value_name = "DAYS", help_heading = "Output")]
    pub keep_days: Option<String>,
    /// Remove the oldest runs of enn run when all take more than this, e.g. 500M, or "unlimited" [default: ENN_KEEP_SIZE, else 4G]
    ///
    /// One run keeps no more copies of its workers' output than this, either; what is redirected or teed is always written. A run
    /// whose launcher lives is never removed.
    #[arg(long, value_name = "SIZE", help_heading = "Output")]
    pub keep_size: Option<String>,
    /// Keep no copy of output that is neither redirected nor teed
    #[arg(long, help_heading = "Output of the workers")]
    pub no_capture: bool,
    /// Flags whose value came from their variable.
    #[arg(skip)]
    pub(crate) from_variable: BTreeSet<&'static str>,
}

impl EnnFlags {
    /// Returns the flags with what variables say of `--on-failure replace`, where the command line does not. Variables about spares say
    /// nothing where all workers restart, nor does that of `--workers` beside `--nproc-per-node`.
    ///
    /// # Errors
    /// A variable that cannot be parsed.
    pub fn with_variables(mut self, flags: &Flags, facts: &Facts) -> Result<Self, RunError> {
        let set = |name| facts.replace.get(name);
        if self.on_failure.is_none()
            && let Some(text) = set("ENN_ON_FAILURE")
        {
            let policy = FailurePolicy::from_str(text, false);
            self.on_failure = Some(policy.map_err(|_| POLICIES.error("ENN_ON_FAILURE", text, true))?);
        }
        if self.workers.is_none()
            && flags.rendezvous.nproc_per_node.is_none()
            && let Some(text) = set("ENN_WORKERS")
        {
            self.workers = Some(text.clone());
            self.from_variable.insert("--workers");
        }
        if !self.replaces() {
            return Ok(self);
        }
        if self.spares.is_none()
            && let Some(text) = set("ENN_SPARES")
        {
            self.spares = Some(text.clone());
            self.from_variable.insert("--spares");
        }
        self.warm_device |= values::switch(
            "ENN_WARM_DEVICE",
            set("ENN_WARM_DEVICE"),
            "ENN_WARM_DEVICE=1 is the same as --warm-device",
        )?;
        Ok(self)
    }

    /// Returns whether a worker that failed is replaced.
    pub(super) fn replaces(&self) -> bool {
        self.on_failure == Some(FailurePolicy::Replace)
    }

    /// Returns the name of a value's origin for messages: its variable where the value came from there.
    pub(super) fn place(&self, flag: &'static str) -> String {
        let variable = || format!("ENN_{}", flag.trim_start_matches('-').to_uppercase().replace('-', "_"));
        if self.from_variable.contains(flag) { variable() } else { flag.to_owned() }
    }

    /// Returns the limits on kept runs: from the flags, else from the variables.
    ///
    /// # Errors
    /// The first value that cannot be parsed.
    pub fn retention(&self, facts: &Facts) -> Result<Retention, RunError> {
        let given = |flag: &Option<String>, name: &'static str, variable: &'static str, value: &Option<String>| {
            let typed = flag.clone().map(|text| (name, text));
            typed.or_else(|| value.clone().map(|text| (variable, text)))
        };
        let mut retention = Retention::default();
        if let Some((place, text)) = given(&self.keep_days, "--keep-days", "ENN_KEEP_DAYS", &facts.keep_days) {
            retention.age_max = values::days(&text).map_err(|expected| expected.error(place, &text, true))?;
        }
        if let Some((place, text)) = given(&self.keep_size, "--keep-size", "ENN_KEEP_SIZE", &facts.keep_size) {
            retention.bytes_max = values::size(&text).map_err(|expected| expected.error(place, &text, true))?;
        }
        Ok(retention)
    }
}
