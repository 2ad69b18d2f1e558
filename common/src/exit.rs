//! Exit codes of `enn`, documented once and printed under `--help`.

/// Why `enn` ended. The number is the process's exit status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitCode {
    /// Everything asked for was done.
    Success = 0,
    /// A worker failed, and the restarts allowed were used up or would not help.
    WorkerFailed = 1,
    /// The command line or the configuration is wrong.
    Usage = 2,
    /// The data could not be read or staged.
    Data = 3,
    /// The machine lacks something: libtorch, a device, disk, shared memory, a port.
    Machine = 4,
    /// A checkpoint, model or artifact is missing, damaged or of another model.
    Artifact = 5,
    /// The nodes did not meet, or the host of the rendezvous was lost.
    Rendezvous = 6,
    /// No worker made progress within --hang-timeout.
    Hung = 7,
    /// A cross-validated model is not better than the best baseline.
    NotBetter = 8,
    /// A checkpoint is readable, and may be a mixture of two saves.
    Suspect = 9,
    /// A fault in ENN itself: a panic, as Rust ends a program of which the main thread panicked.
    Fault = 101,
    /// A script cannot be read, or a program not executed; as the shell says it.
    NotExecutable = 126,
    /// A script, a program or its interpreter is not there; as the shell says it.
    NotFound = 127,
    /// Ended by SIGINT, after a checkpoint where there are any.
    Interrupted = 130,
    /// Ended by SIGTERM, after a checkpoint where there are any.
    Terminated = 143,
}

impl ExitCode {
    /// All codes, in the order help prints them.
    pub const ALL: &'static [(Self, &'static str)] = &[
        (Self::Success, "everything asked for was done"),
        (Self::WorkerFailed, "a worker failed, and the restarts allowed were used up or would not help"),
        (Self::Usage, "the command line or the configuration is wrong"),
        (Self::Data, "the data could not be read or staged"),
        (Self::Machine, "the machine lacks something: libtorch, a device, disk, shared memory, a port"),
        (Self::Artifact, "a checkpoint, model or artifact is missing, damaged or of another model"),
        (Self::Rendezvous, "the nodes did not meet, or the host of the rendezvous was lost"),
        (Self::Hung, "no worker made progress within --hang-timeout"),
        (Self::NotBetter, "a cross-validated model is not better than the best baseline"),
        (Self::Suspect, "a checkpoint is readable, and may be a mixture of two saves"),
        (Self::Fault, "a fault in ENN itself: the message says where its details are"),
        (Self::NotExecutable, "a script cannot be read, or a program not executed"),
        (Self::NotFound, "a script, a program or its interpreter is not there"),
        (Self::Interrupted, "ended by SIGINT, after a checkpoint where there are any"),
        (Self::Terminated, "ended by SIGTERM, after a checkpoint where there are any; 128 + N: by another signal N"),
    ];
}
