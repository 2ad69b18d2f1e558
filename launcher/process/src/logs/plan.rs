//! What happens with the output of the workers: torchrun's `--redirects`, `--tee`, filters and directories as a value.

use super::stream_name::StreamName;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

/// A selection of the two standard streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StdStreams {
    pub out: bool,
    pub err: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StdByRank {
    /// Streams of ranks that are not listed.
    pub all: StdStreams,
    pub ranks: BTreeMap<u32, StdStreams>,
}

/// The destinations of the workers' output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogPlan {
    /// The existing directory `<log-dir>/<run-id>_<random>`, below which attempts and ranks are folders.
    pub dir: PathBuf,
    /// Streams that go to a file only (`--redirects`).
    pub redirects: StdByRank,
    /// Streams that go to a file and, with a prefix, to the console (`--tee`).
    pub tee: StdByRank,
    /// Local ranks whose output reaches the console (`--local-ranks-filter`); `None`: all.
    pub local_ranks_filter: Option<BTreeSet<u32>>,
    /// Lines that contain one of these are copied to `filtered_stdout.log` (`--duplicate-stdout-filters`).
    pub stdout_filters: Vec<String>,
    /// Lines that contain one of these are copied to `filtered_stderr.log`.
    pub stderr_filters: Vec<String>,
    /// Template of the prefix (`--log-line-prefix-template`).
    pub prefix: Option<String>,
    /// Keep a copy of both streams in files even when neither redirected nor teed.
    pub keep: bool,
    /// Maximum bytes of all such copies together; `None`: unlimited.
    pub kept_bytes_max: Option<u64>,
}

impl StdStreams {
    pub const NONE: Self = Self { out: false, err: false };

    fn parse(given: &str) -> Option<Self> {
        let number: u8 = given.parse().ok().filter(|number| *number <= 3 && given.len() == 1)?;
        Some(Self { out: number & 1 != 0, err: number & 2 != 0 })
    }
}

impl StdByRank {
    pub fn of(&self, local_rank: u32) -> StdStreams {
        self.ranks.get(&local_rank).copied().unwrap_or(self.all)
    }

    /// Parses `0`, `1`, `2`, `3`, or `0:1,1:3` by local rank, where ranks that are not listed have none and each is listed once.
    pub fn parse(given: &str) -> Option<Self> {
        if !given.contains(':') {
            return Some(Self { all: StdStreams::parse(given)?, ranks: BTreeMap::new() });
        }
        let mut ranks = BTreeMap::new();
        for part in given.split(',') {
            let (rank, streams) = part.split_once(':')?;
            // A sign would pass the number's own parser.
            let rank = Some(rank).filter(|rank| rank.bytes().all(|byte| byte.is_ascii_digit()))?.parse().ok()?;
            if ranks.insert(rank, StdStreams::parse(streams)?).is_some() {
                return None;
            }
        }
        Some(Self { all: StdStreams::NONE, ranks })
    }
}

/// The destinations of one stream of one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Route {
    /// Whether the stream goes to the console with a prefix, and to a file.
    pub(super) teed: bool,
    /// Whether the stream goes to a file and not to the console.
    pub(super) redirected: bool,
    pub(super) shown: bool,
    pub(super) filed: bool,
}

impl Route {
    /// Returns whether the stream goes to the console only.
    pub(super) fn is_plain(self) -> bool {
        self.shown && !self.teed
    }
}

impl LogPlan {
    /// Returns the destinations of a stream of this local rank.
    pub(super) fn route(&self, name: StreamName, local_rank: u32) -> Route {
        let of = |std: StdStreams| if name == StreamName::Out { std.out } else { std.err };
        let teed = of(self.tee.of(local_rank));
        let redirected = of(self.redirects.of(local_rank)) && !teed;
        let visible = self.local_ranks_filter.as_ref().is_none_or(|ranks| ranks.contains(&local_rank));
        Route { teed, redirected, shown: visible && !redirected, filed: teed || redirected || self.keep }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_read_as_torchrun_writes_them() {
        let both = StdStreams { out: true, err: true };
        assert_eq!(StdByRank::parse("3").unwrap().of(7), both);
        let some = StdByRank::parse("0:3,1:0,2:1,13:2").unwrap();
        assert_eq!((some.of(0), some.of(1), some.of(5)), (both, StdStreams::NONE, StdStreams::NONE));
        assert_eq!(
            (some.of(2), some.of(13)),
            (StdStreams { out: true, err: false }, StdStreams { out: false, err: true })
        );
        for bad in ["", "4", "0:4", "0:1,", ":1", "a:1", "+1:1", "0:1;1:1", "0,1", "0:1,2", "-1", "1 ", "1:1,1:2"] {
            assert_eq!(StdByRank::parse(bad), None, "{bad:?}");
        }
    }
}
