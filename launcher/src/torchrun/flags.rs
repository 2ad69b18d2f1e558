//! The flags of torchrun 2.8 to 2.15, as typed: texts, not yet parsed. Each is known by both spellings, `-` and `_`, and by its
//! variable `PET_<NAME>`; the flag wins over the variable, the variable over the default.

use super::{RunError, values::Expected};
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
};

#[derive(Debug, Clone, Default, clap::Args)]
pub struct Flags {
    /// Nodes, workers, and their rendezvous.
    #[command(flatten)]
    pub rendezvous: RendezvousFlags,
    /// Program and restarts.
    #[command(flatten)]
    pub program: ProgramFlags,
    /// Destination of the workers' output.
    #[command(flatten)]
    pub output: OutputFlags,
    /// Script, module or program, and everything that is its own
    #[arg(value_name = "PROGRAM", trailing_var_arg = true, required = true, num_args = 1.., help_heading = "Program")]
    pub command: Vec<OsString>,
    /// Flags whose value came from their variable.
    #[arg(skip)]
    from_variable: BTreeSet<&'static str>,
    /// Notes for the user about ignored flags, one line each.
    #[arg(skip)]
    pub notes: Vec<String>,
}

/// Flags for the nodes that take part, the number of workers on each, and the address at which they meet.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Nodes and workers")]
pub struct RendezvousFlags {
    /// Nodes: a number, or MIN:MAX for a run that may shrink and grow [default: 1:1]
    #[arg(long, value_name = "N|MIN:MAX")]
    pub nnodes: Option<String>,
    /// Workers on this node: a number, auto, gpu, cpu or xpu [default: 1]
    ///
    /// gpu, xpu: one per device. cpu: one per core that this process may run on. auto: one per GPU or XPU, else one per core.
    #[arg(long, alias = "nproc_per_node", value_name = "N|KIND", allow_negative_numbers = true)]
    pub nproc_per_node: Option<String>,
    /// Rank of this node, for static rendezvous [default: 0]
    #[arg(long, alias = "node_rank", value_name = "N", allow_negative_numbers = true)]
    pub node_rank: Option<String>,
    /// Address of the node of rank 0, for static rendezvous [default: 127.0.0.1]
    #[arg(long, alias = "master_addr", value_name = "HOST")]
    pub master_addr: Option<String>,
    /// Port on the node of rank 0, for static rendezvous [default: 29500]
    #[arg(long, alias = "master_port", value_name = "PORT", allow_negative_numbers = true)]
    pub master_port: Option<String>,
    /// Address at which the other nodes reach this one [default: detected]
    #[arg(long, alias = "local_addr", value_name = "HOST")]
    pub local_addr: Option<String>,
    /// One node, any free port, a name of its own; --rdzv-backend, --rdzv-endpoint and --rdzv-id are ignored
    #[arg(long)]
    pub standalone: bool,
    /// How the nodes meet: static (ranks given) or c10d (elastic) [default: static]
    ///
    /// With etcd, etcd-v2 or a plug-in of the entry points torchrun.handlers the command is handed to torch's own torchrun.
    #[arg(long, alias = "rdzv_backend", value_name = "NAME")]
    pub rdzv_backend: Option<String>,
    /// Where the nodes meet; the port may be left out (29400)
    #[arg(long, alias = "rdzv_endpoint", value_name = "HOST[:PORT]")]
    pub rdzv_endpoint: Option<String>,
    /// Name of the run; nodes with another name are refused [default: none]
    #[arg(long, alias = "rdzv_id", value_name = "NAME")]
    pub rdzv_id: Option<String>,
    /// Details of the rendezvous: join_timeout=600, last_call_timeout=30, keep_alive_interval, is_host, …
    ///
    /// Seconds. timeout (static) and join_timeout: longest wait for the nodes. last_call_timeout: wait for more than MIN nodes.
    /// keep_alive_interval × keep_alive_max_attempt: a node silent for so long is lost; 5 s when neither is given. is_host: whether
    /// this node serves the endpoint. close_timeout and read_timeout are accepted and have no effect.
    #[arg(long, alias = "rdzv_conf", value_name = "KEY=VALUE,…")]
    pub rdzv_conf: Option<String>,
}

/// Flags for the program and its restarts.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Program")]
pub struct ProgramFlags {
    /// PROGRAM is a Python module, run as `python -m` does
    #[arg(long, short = 'm')]
    pub module: bool,
    /// PROGRAM is run as it is, without Python
    #[arg(long, alias = "no_python")]
    pub no_python: bool,
    /// PROGRAM is run by Python's runpy.run_path as __main__; wins over --no-python and -m
    #[arg(long, alias = "run_path")]
    pub run_path: bool,
    /// Role of this node's workers (ROLE_NAME) [default: default]
    #[arg(long, value_name = "NAME")]
    pub role: Option<String>,
    /// LOCAL_RANK is 0 for every worker, and each sees its own GPU only
    #[arg(long, alias = "virtual_local_rank")]
    pub virtual_local_rank: bool,
    /// Bind each worker to CPUs near its GPU: node, socket, exclusive or core-complex
    #[arg(long, alias = "numa_binding", value_name = "MODE")]
    pub numa_binding: Option<String>,
    /// Restarts of the workers before the run fails; a change of nodes is no restart [default: 0; 3 with --on-failure replace]
    #[arg(
        long,
        alias = "max_restarts",
        value_name = "N",
        allow_negative_numbers = true,
        help_heading = "Restarting and stopping"
    )]
    pub max_restarts: Option<String>,
    /// Signals that stop the run [default: SIGTERM,SIGINT,SIGHUP,SIGQUIT]
    #[arg(long, alias = "signals_to_handle", value_name = "NAME,…", help_heading = "Restarting and stopping")]
    pub signals_to_handle: Option<String>,
    /// Seconds between asking the workers to stop and killing them, a whole number; --grace takes parts of a second
    /// [default: TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 30]
    #[arg(
        long,
        alias = "shutdown_timeout",
        value_name = "SECONDS",
        allow_negative_numbers = true,
        help_heading = "Restarting and stopping"
    )]
    pub shutdown_timeout: Option<String>,
    /// Accepted as by torchrun, without effect: nothing is polled, a death is seen when it happens
    #[arg(
        long,
        alias = "monitor_interval",
        value_name = "SECONDS",
        allow_negative_numbers = true,
        help_heading = "Accepted for torchrun's sake"
    )]
    pub monitor_interval: Option<String>,
    /// Accepted as by torchrun, without effect: workers are programs of their own (spawn, fork, forkserver)
    #[arg(long, alias = "start_method", value_name = "NAME", help_heading = "Accepted for torchrun's sake")]
    pub start_method: Option<String>,
    /// Accepted as by torchrun; events are in the run's events.jsonl (null)
    #[arg(long, alias = "event_log_handler", value_name = "NAME", help_heading = "Accepted for torchrun's sake")]
    pub event_log_handler: Option<String>,
    /// A plug-in of the entry points torchrun.logs_specs; with it the command is handed to torch's own torchrun
    #[arg(long, alias = "logs_specs", value_name = "NAME", help_heading = "Output of the workers")]
    pub logs_specs: Option<String>,
}

/// Flags for the destination of the workers' output.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Output of the workers")]
pub struct OutputFlags {
    /// Folder for logs; each run makes a folder of its own in it [default: in the run's directory]
    #[arg(long, alias = "log_dir", value_name = "DIR")]
    pub log_dir: Option<String>,
    /// To files only: 0 nothing, 1 stdout, 2 stderr, 3 both; or by local rank, 0:1,1:2 [default: 0]
    #[arg(long, short = 'r', value_name = "STD")]
    pub redirects: Option<String>,
    /// To files and, with a prefix, to the console; values as of --redirects [default: 0]
    #[arg(long, short = 't', value_name = "STD")]
    pub tee: Option<String>,
    /// Before each line on the console under --tee [default: TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE, else
    /// [${role_name}${local_rank}]:]
    ///
    /// Placeholders: ${role_name}, ${rank}, ${local_rank}, ${hostname}; $$ is a dollar sign.
    #[arg(long, alias = "log_line_prefix_template", value_name = "TEMPLATE")]
    pub log_line_prefix_template: Option<String>,
    /// Local ranks whose output reaches the console, e.g. 0,1 [default: all]
    #[arg(long, alias = "local_ranks_filter", value_name = "RANK,…", allow_negative_numbers = true)]
    pub local_ranks_filter: Option<String>,
    /// Copy lines of standard output that contain one of these texts to filtered_stdout.log; ,, is a comma
    #[arg(long, alias = "duplicate_stdout_filters", value_name = "TEXT,…")]
    pub duplicate_stdout_filters: Option<String>,
    /// Likewise for standard error and filtered_stderr.log
    #[arg(long, alias = "duplicate_stderr_filters", value_name = "TEXT,…")]
    pub duplicate_stderr_filters: Option<String>,
}

impl Flags {
    /// Fills in the values of variables where no flag is given. An empty variable has no effect.
    ///
    /// # Errors
    /// [`RunError::Value`] when the variable of a switch holds no number.
    pub fn with_variables(mut self, pet: &BTreeMap<String, String>) -> Result<Self, RunError> {
        let found = |flag: &str| pet.get(&variable(flag)).filter(|value| !value.is_empty());
        let mut from_variable = BTreeSet::new();
        for (flag, slot) in self.texts() {
            if slot.is_none()
                && let Some(value) = found(flag)
            {
                *slot = Some(value.clone());
                from_variable.insert(flag);
            }
        }
        for (flag, slot) in self.switches() {
            if *slot {
                continue;
            }
            let Some(value) = found(flag) else { continue };
            let expected = Expected { what: "0 or 1", hint: "unset the variable, or set it to 1" };
            let number = value.trim().parse::<i64>().map_err(|_| expected.error(variable(flag), value, false))?;
            *slot = number != 0;
        }
        // The values look like flags from here on: a second call must not forget that they came from variables.
        self.from_variable.append(&mut from_variable);
        Ok(self)
    }

    /// Returns whether this flag was typed: it has a value, and not from its variable.
    pub(super) fn typed(&self, flag: &'static str, value: Option<&str>) -> bool {
        value.is_some() && !self.from_variable.contains(flag)
    }

    /// Returns the name of a value's origin for messages: its variable where the value came from there.
    pub(super) fn place(&self, flag: &'static str) -> String {
        if self.from_variable.contains(flag) { variable(flag) } else { flag.to_owned() }
    }

    /// Returns the text flags that have a variable; torchrun has none for --logs-specs and --numa-binding.
    fn texts(&mut self) -> [(&'static str, &mut Option<String>); 24] {
        let Self { rendezvous, program, output, .. } = self;
        [
            ("--nnodes", &mut rendezvous.nnodes),
            ("--nproc-per-node", &mut rendezvous.nproc_per_node),
            ("--node-rank", &mut rendezvous.node_rank),
            ("--master-addr", &mut rendezvous.master_addr),
            ("--master-port", &mut rendezvous.master_port),
            ("--local-addr", &mut rendezvous.local_addr),
            ("--rdzv-backend", &mut rendezvous.rdzv_backend),
            ("--rdzv-endpoint", &mut rendezvous.rdzv_endpoint),
            ("--rdzv-id", &mut rendezvous.rdzv_id),
            ("--rdzv-conf", &mut rendezvous.rdzv_conf),
            ("--role", &mut program.role),
            ("--max-restarts", &mut program.max_restarts),
            ("--signals-to-handle", &mut program.signals_to_handle),
            ("--shutdown-timeout", &mut program.shutdown_timeout),
            ("--monitor-interval", &mut program.monitor_interval),
            ("--start-method", &mut program.start_method),
            ("--event-log-handler", &mut program.event_log_handler),
            ("--log-dir", &mut output.log_dir),
            ("--redirects", &mut output.redirects),
            ("--tee", &mut output.tee),
            ("--log-line-prefix-template", &mut output.log_line_prefix_template),
            ("--local-ranks-filter", &mut output.local_ranks_filter),
            ("--duplicate-stdout-filters", &mut output.duplicate_stdout_filters),
            ("--duplicate-stderr-filters", &mut output.duplicate_stderr_filters),
        ]
    }

    /// Returns the variables of all flags.
    #[cfg(test)]
    pub(super) fn variables(mut self) -> Vec<String> {
        let texts: Vec<String> = self.texts().iter().map(|(flag, _)| variable(flag)).collect();
        let switches = self.switches().map(|(flag, _)| variable(flag));
        texts.into_iter().chain(switches).collect()
    }

    fn switches(&mut self) -> [(&'static str, &mut bool); 5] {
        let Self { rendezvous, program, .. } = self;
        [
            ("--standalone", &mut rendezvous.standalone),
            ("--module", &mut program.module),
            ("--no-python", &mut program.no_python),
            ("--run-path", &mut program.run_path),
            ("--virtual-local-rank", &mut program.virtual_local_rank),
        ]
    }
}

fn variable(flag: &str) -> String {
    format!("PET_{}", flag.trim_start_matches('-').to_uppercase().replace('-', "_"))
}
