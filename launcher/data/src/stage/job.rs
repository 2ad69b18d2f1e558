//! One staging: its parameters and its progress.

use super::resume_log::ResumePolicy;
use enn_common::{config::data::DataConfig, staged::StagedMeta};
use std::path::Path;

/// Parameters of one staging.
pub(super) struct Job<'a> {
    pub(super) config: &'a DataConfig,
    pub(super) out: &'a Path,
    pub(super) threads: usize,
    pub(super) training: Option<&'a StagedMeta>,
    pub(super) digest: String,
    pub(super) resume_policy: ResumePolicy<'a>,
}

impl<'a> Job<'a> {
    /// Returns the job of reading sources without staging them; temporary files are made below `out`.
    pub(super) fn reading(config: &'a DataConfig, out: &'a Path) -> Self {
        let digest = String::new();
        Job { config, out, threads: cores(), training: None, digest, resume_policy: ResumePolicy::default() }
    }
}

pub(super) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Sums the samples of each file by source; empty without sources.
pub(super) fn source_rows(config: &DataConfig, file_rows: &[u64]) -> Vec<u64> {
    config.source_files().map(|(_, files)| file_rows[files].iter().sum()).collect()
}

/// Progress of staging. A layout that reads the source files twice counts them twice, in `bytes` and in `bytes_total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    pub rows: u64,
    pub bytes: u64,
    pub bytes_total: u64,
}
