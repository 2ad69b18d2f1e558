//! Exit codes of `enn`, documented once and printed under `--help`.

/// Why `enn` ended: [`ExitCode::ALL`] says it in words. The number is the process's exit status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitCode {
    Success = 0,
    WorkerFailed = 1,
    Usage = 2,
    Data = 3,
    Machine = 4,
    Artifact = 5,
    Rendezvous = 6,
    Hung = 7,
    NotBetter = 8,
    Suspect = 9,
    Fault = 101,
    NotExecutable = 126,
    NotFound = 127,
    Interrupted = 130,
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
