//! Names inside a checkpoints directory, made and understood in one place.

use crate::fs::RelPath;
use std::path::{Path, PathBuf};

pub const MANIFEST: &str = "manifest.json";
/// The manifest's name in a checkpoint that was found damaged: no run resumes from it.
pub const SET_ASIDE: &str = "manifest.damaged.json";
pub const METADATA: &str = ".metadata";
/// Suffix of the name of a shard.
pub const SHARD_END: &str = ".distcp";

/// `step-00001200`: a committed checkpoint.
pub fn committed(step: u64) -> String {
    format!("step-{step:08}")
}

/// `.step-00001200.tmp-<attempt>`: a checkpoint being written.
pub fn temporary(step: u64, attempt: &str) -> String {
    format!(".{}.tmp-{attempt}", committed(step))
}

/// `.trash-step-00001200-<process>`: a checkpoint being removed.
pub fn trash(step: u64) -> String {
    format!(".trash-{}-{}", committed(step), std::process::id())
}

/// `__{rank}_0.distcp`: the shard of a rank.
pub fn shard(rank: u32) -> String {
    format!("__{rank}_0{SHARD_END}")
}

/// `__0_{number}.distcp`: a file of a checkpoint that one process writes as several.
pub(super) fn piece(number: usize) -> RelPath {
    RelPath::own(format!("__0_{number}{SHARD_END}"))
}

/// `__{rank}.metadata` of all ranks, in their order: what PyTorch writes instead of `.metadata` when ranks save without
/// hearing of each other.
pub fn local_metadata(dir: &Path) -> Vec<PathBuf> {
    let rank_of = |name: &str| name.strip_prefix("__")?.strip_suffix(".metadata")?.parse::<u32>().ok();
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut found: Vec<_> =
        entries.filter_map(|entry| Some((rank_of(entry.file_name().to_str()?)?, entry.path()))).collect();
    found.sort();
    found.into_iter().map(|(_, path)| path).collect()
}

/// Whether a file of this name can be part of a checkpoint or saved model that is a directory, in any form that is written.
pub fn is_part(name: &str) -> bool {
    let ends = [SHARD_END, METADATA, ".safetensors", ".safetensors.index.json"];
    [MANIFEST, SET_ASIDE].contains(&name) || ends.iter().any(|end| name.ends_with(end))
}

/// Whether a directory holds a checkpoint in PyTorch's form, ours or another's.
pub fn is_dcp(dir: &Path) -> bool {
    dir.join(METADATA).exists() || !local_metadata(dir).is_empty()
}

/// The step of a committed checkpoint's directory name.
pub fn step_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("step-")?;
    let plain = digits.len() >= 8 && digits.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| digits.parse().ok()).flatten()
}

/// Step and attempt of a checkpoint being written.
pub fn being_written(name: &str) -> Option<(u64, &str)> {
    let (step, attempt) = name.strip_prefix('.')?.split_once(".tmp-")?;
    Some((step_of(step)?, attempt))
}

/// Whether a name is that of a checkpoint being written or removed.
pub fn is_leftover(name: &str) -> bool {
    being_written(name).is_some() || name.starts_with(".trash-step-")
}

/// Committed checkpoints of a directory by name, newest first. A directory that is not there has none.
pub fn list(checkpoints: &Path) -> Vec<(u64, PathBuf)> {
    let entries = std::fs::read_dir(checkpoints).into_iter().flatten().flatten();
    let named = entries.filter_map(|entry| Some((step_of(entry.file_name().to_str()?)?, entry.path())));
    let mut found: Vec<_> = named.collect();
    found.sort_by(|one, other| other.cmp(one));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_understood() {
        assert_eq!(step_of(&committed(1200)), Some(1200));
        assert_eq!(step_of(&committed(123_456_789)), Some(123_456_789));
        for other in ["step-", "step-12", "step-0000120x", ".step-00001200", "latest"] {
            assert_eq!(step_of(other), None, "{other}");
        }
        assert!(is_leftover(&temporary(5, "a-0")) && is_leftover(&trash(5)));
        assert!(!is_leftover(&committed(5)) && !is_leftover(".hidden") && !is_leftover(".tmp-x"));
    }
}
