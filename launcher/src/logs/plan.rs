//! What happens with the output of the workers: torchrun's `--redirects`, `--tee`, filters and directories as a value.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

/// Which of the two streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Std {
    /// Standard output.
    pub out: bool,
    /// Standard error.
    pub err: bool,
}

/// Streams by local rank.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StdByRank {
    /// For ranks that are not listed.
    pub all: Std,
    /// By local rank.
    pub ranks: BTreeMap<u32, Std>,
}

/// Where output goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogPlan {
    /// `<log-dir>/<run-id>_<random>`, made by whoever makes the plan; attempts and ranks are folders below it.
    pub dir: PathBuf,
    /// To a file only (`--redirects`).
    pub redirects: StdByRank,
    /// To a file and, with a prefix, to the console (`--tee`).
    pub tee: StdByRank,
    /// Local ranks whose output reaches the console (`--local-ranks-filter`); `None`: all.
    pub local_ranks_filter: Option<BTreeSet<u32>>,
    /// Lines that contain one of these are copied to `filtered_stdout.log` (`--duplicate-stdout-filters`).
    pub stdout_filters: Vec<String>,
    /// The same for standard error.
    pub stderr_filters: Vec<String>,
    /// Template of the prefix (`TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE`).
    pub prefix: Option<String>,
    /// Keep a copy of both streams in files even when neither redirected nor teed.
    pub keep: bool,
}
