//! The environment variables ENN reads: all of them, in one table. The tidy test holds the code to it.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Variable {
    pub name: &'static str,
    /// The programs that read the variable: "enn", "enn-worker" or "build".
    pub reader: &'static str,
    pub effect: &'static str,
}

const fn variable(name: &'static str, reader: &'static str, effect: &'static str) -> Variable {
    Variable { name, reader, effect }
}

/// Variables read from the user's environment. Users do not set those that `enn` sets for its workers (ENN_BROKER,
/// RANK, …).
pub const VARIABLES: &[Variable] = &[
    variable("ENN_WORKER", "enn", "the enn-worker to start, instead of the one beside enn or in the package enn_train"),
    variable(
        "ENN_LIBTORCH",
        "enn",
        "the libtorch that workers load, before all others; a folder without one that fits is an error",
    ),
    variable(
        "ENN_LOG",
        "enn, enn-worker",
        "what to log: off, error, warn (default), info, debug, or a list such as enn_launcher=debug,warn",
    ),
    variable(
        "ENN_ATTENTION",
        "enn-worker",
        "kernels of attention in the order in which they are tried, e.g. flash,math; over kernels.attention",
    ),
    variable("ENN_RUNS", "enn", "folder of new runs, instead of ./runs"),
    variable(
        "XDG_STATE_HOME",
        "enn",
        "folder in which enn/runs holds the runs of `enn run`, instead of ~/.local/state",
    ),
    variable(
        "ENN_RUNTIMES",
        "enn",
        "where runtimes of exported models are looked for: libraries, folders, Python environments; with colons",
    ),
    variable("LIBTORCH", "build, enn", "a libtorch 2.11 to build against, and to run on behind that of PYTHON_EXEC"),
    variable("LIBTORCH_USE_PYTORCH", "build", "1: build against the libtorch inside Python's torch 2.11"),
    variable("CUDA_VISIBLE_DEVICES", "enn", "GPUs that may be used"),
    variable("SSH_CONNECTION", "enn", "set by ssh: `enn top --web` says how the page is reached from elsewhere"),
    variable("LD_LIBRARY_PATH", "enn", "kept for the workers, behind the folder of libtorch"),
    variable(
        "OMP_NUM_THREADS",
        "enn",
        "threads of one operation, when the configuration says nothing; `enn run` sets 1",
    ),
    variable(
        "OMP_WAIT_POLICY",
        "enn",
        "how threads of a worker wait for each other; they sleep almost at once if it is not set",
    ),
    variable(
        "GOMP_SPINCOUNT",
        "enn",
        "iterations for which a waiting thread spins before it sleeps; 1000 for workers if it is not set",
    ),
    variable("ENN_TOKEN", "enn", "secret that the nodes of a run share; never shown"),
    variable(
        "ENN_LAUNCH",
        "enn",
        "set for workers: the launch they belong to, so that a launch inside another is known",
    ),
    variable(
        "VIRTUAL_ENV",
        "enn",
        "active environment of Python: workers load its torch, and runtimes and tools of export are searched in it first",
    ),
    variable(
        "CONDA_PREFIX",
        "enn",
        "environment of Conda, in which runtimes and tools of export are searched after python3 on PATH",
    ),
    variable(
        "PYTHON_EXEC",
        "enn",
        "the active Python, instead of python3 on PATH: it runs scripts and tools of export, and workers load its torch",
    ),
    variable(
        "ENN_WARM",
        "enn",
        "1: `enn run` uses a fork server that lives between runs, as with --warm; 0: it does not",
    ),
    variable(
        "ENN_ON_FAILURE",
        "enn",
        "restart or replace: what follows the failure of a worker of `enn run`; as --on-failure",
    ),
    variable("ENN_SPARES", "enn", "processes of each node that stand by, where workers are replaced; as --spares"),
    variable("ENN_WARM_DEVICE", "enn", "1: each spare takes its device ahead, as with --warm-device; 0: it does not"),
    variable("ENN_WORKERS", "enn", "MIN:MAX workers of a node of `enn run`; as --workers"),
    variable("ENN_KEEP_DAYS", "enn", "days for which runs of `enn run` are kept, instead of 30; as --keep-days"),
    variable("ENN_KEEP_SIZE", "enn", "size of all kept runs of `enn run` together, instead of 4G; as --keep-size"),
    variable("XDG_RUNTIME_DIR", "enn", "folder of sockets, instead of /run/user/UID or that for temporary files"),
    variable("XDG_CONFIG_HOME", "enn", "folder of the user's token, instead of ~/.config"),
    variable(
        "XDG_CACHE_HOME",
        "enn, enn-worker",
        "folder of compiled CUDA kernels and of what `enn export --prepare` installs, instead of ~/.cache",
    ),
    variable("SLURM", "enn", "what Slurm sets, all variables that begin so: the allocation that `enn run` runs in"),
];

/// Variables of torchrun's agent. `enn run` honours each of them, or its effect here says what happens instead.
pub const OF_TORCHRUN: &[Variable] = &[
    variable(
        "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",
        "enn",
        "prefix of lines under --tee, with ${role_name}, ${local_rank}, ${rank}, ${hostname}; as --log-line-prefix-template",
    ),
    variable(
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
        "enn",
        "seconds between asking workers to stop and killing them, instead of 30; as --shutdown-timeout",
    ),
    variable("TORCH_NCCL_ASYNC_ERROR_HANDLING", "enn", "passed on to workers instead of 1"),
    variable(
        "TORCHELASTIC_ERROR_FILE",
        "enn",
        "where the first failure of `enn run` is left, as a worker of a launcher leaves its own",
    ),
    variable("TORCHELASTIC_ENABLE_FILE_TIMER", "enn", "1: workers may set themselves timers, as under torchrun"),
    variable(
        "TORCHELASTIC_TIMER_FILE",
        "enn",
        "the pipe through which they set them, instead of one of a name of its own",
    ),
    variable(
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE",
        "enn",
        "not honoured: workers share the store that enn serves at MASTER_ADDR:MASTER_PORT, which is empty at the beginning of every round",
    ),
    variable(
        "TORCHELASTIC_HEALTH_CHECK_PORT",
        "enn",
        "not honoured: no health check server is started (torchrun 2.11 starts none either); --metrics-addr serves the state of the run",
    ),
    variable("TORCH_ELASTIC_WORKER_IDENTICAL", "enn", "not honoured: ranks are the same with and without it"),
    variable(
        "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT",
        "enn",
        "not honoured: --hang-timeout ends a round in which no worker makes progress, whatever it waits for",
    ),
    variable(
        "HIP_VISIBLE_DEVICES",
        "enn",
        "GPUs of AMD's that may be used, for --virtual-local-rank; before CUDA_VISIBLE_DEVICES",
    ),
];

/// Variables that `enn` sets for each worker, with torchrun's RANK, WORLD_SIZE, … for programs that know those.
pub const FOR_WORKERS: &[Variable] = &[
    variable("ENN_WORKER_ID", "enn-worker", "name of the process among those of its launcher"),
    variable("ENN_BROKER", "enn-worker", "path of the broker's socket"),
    variable("ENN_SCRIPT_SOCKET", "scripts", "path of the broker's socket for programs that can join another round"),
    variable(
        "ENN_SEAT_DIR",
        "scripts",
        "folder in which programs keep what is private to a rank, for the process that replaces one",
    ),
    variable("ENN_ROUND", "enn-worker", "round the worker was started for"),
    variable("ENN_RUN_DIR", "enn-worker", "run directory"),
    variable("ENN_CONTROL_FD", "enn-worker", "descriptor of the control page"),
    variable("LOCAL_RANK", "enn-worker", "index of the worker on its node"),
    variable("LOCAL_WORLD_SIZE", "own programs", "workers of the node"),
    variable("WORLD_SIZE", "own programs", "workers of the round"),
    variable("MASTER_ADDR", "own programs", "host of the store in which the workers meet"),
    variable("MASTER_PORT", "own programs", "its port"),
    variable(
        "ENN_PROGRESS_FILE",
        "own programs",
        "file that is touched to say that the worker is alive, under `enn run`",
    ),
    variable("TORCHELASTIC_RESTART_COUNT", "own programs", "restarts so far, under `enn run`"),
];
