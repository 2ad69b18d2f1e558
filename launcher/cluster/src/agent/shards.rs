//! Which ranks have written their shard of which step. Pure: reports in, verdicts out.
//!
//! **Invariant:** a step gets at most one verdict, and never `Complete` unless every rank reported exactly once from the
//! same directory.

use enn_common::checkpoint::table::ShardTable;
use std::{collections::BTreeMap, path::PathBuf};

/// The shards of one step, one table per rank in rank order.
#[derive(Debug, Clone, PartialEq)]
pub struct ShardSet {
    pub step: u64,
    pub epoch: u64,
    /// The temporary directory all ranks wrote in.
    pub dir: PathBuf,
    /// Validation metric, when a rank had one.
    pub metric: Option<f64>,
    /// Seconds for which training stood still, on the rank where that took longest.
    pub blocked: f64,
    pub tables: Vec<ShardTable>,
}

impl ShardSet {
    /// The attempt whose directory it is.
    pub(super) fn attempt(&self) -> String {
        let tail = self.dir.extension().map(|tail| tail.to_string_lossy().into_owned()).unwrap_or_default();
        tail.strip_prefix("tmp-").unwrap_or(&tail).to_owned()
    }
}

/// Steps whose checkpoint may be incomplete at one time.
pub(super) const STEPS_OPEN_MAX: usize = 4;

/// One rank's report of a written shard.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) rank: u32,
    pub(super) step: u64,
    pub(super) epoch: u64,
    pub(super) dir: PathBuf,
    pub(super) metric: Option<f64>,
    pub(super) table: ShardTable,
    pub(super) blocked: f64,
}

/// What a report led to.
#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    /// Every rank wrote: commit.
    Complete(ShardSet),
    /// The step's checkpoint is given up.
    Abandoned { step: u64, error: String },
}

/// The open steps of one round.
#[derive(Debug)]
pub(super) struct Shards {
    world: usize,
    open: BTreeMap<u64, Open>,
    /// Steps up to this one have had their verdict.
    settled: Option<u64>,
}

#[derive(Debug)]
struct Open {
    epoch: u64,
    dir: PathBuf,
    metric: Option<f64>,
    blocked: f64,
    tables: Vec<Option<ShardTable>>,
}

impl Shards {
    pub(super) fn new(world: usize) -> Self {
        Self { world, open: BTreeMap::new(), settled: None }
    }

    /// A rank wrote its shard.
    pub(super) fn written(&mut self, report: Report) -> Vec<Verdict> {
        let step = report.step;
        if self.settled.is_some_and(|settled| step <= settled) && !self.open.contains_key(&step) {
            return Vec::new();
        }
        let mut verdicts = Vec::new();
        if !self.open.contains_key(&step) && self.open.len() == STEPS_OPEN_MAX {
            let oldest = self.open.keys().next().copied().unwrap_or(step);
            let error = format!("more than {STEPS_OPEN_MAX} checkpoints were begun and not all ranks wrote theirs");
            verdicts.extend(self.abandon(oldest, error));
        }
        let world = self.world;
        let open = self.open.entry(step).or_insert_with(|| Open {
            epoch: report.epoch,
            dir: report.dir.clone(),
            metric: report.metric,
            blocked: 0.0,
            tables: vec![None; world],
        });
        let slot = open.tables.get_mut(report.rank as usize);
        if let Some(error) = mismatch(open.epoch, &open.dir, slot.as_deref(), &report) {
            verdicts.extend(self.abandon(step, error));
            return verdicts;
        }
        if let Some(slot) = slot {
            *slot = Some(report.table);
        }
        open.metric = open.metric.or(report.metric);
        open.blocked = open.blocked.max(report.blocked);
        if open.tables.iter().all(Option::is_some)
            && let Some(open) = self.open.remove(&step)
        {
            self.settle(step);
            let tables = open.tables.into_iter().flatten().collect();
            let Open { epoch, dir, metric, blocked, .. } = open;
            verdicts.push(Verdict::Complete(ShardSet { step, epoch, dir, metric, blocked, tables }));
        }
        verdicts
    }

    /// A rank could not write its shard.
    pub(super) fn failed(&mut self, rank: u32, step: u64, error: &str) -> Vec<Verdict> {
        if self.settled.is_some_and(|settled| step <= settled) && !self.open.contains_key(&step) {
            return Vec::new();
        }
        self.abandon(step, format!("rank {rank}: {error}")).into_iter().collect()
    }

    /// Whether shares of the step are awaited.
    pub(super) fn is_open(&self, step: u64) -> bool {
        self.open.contains_key(&step)
    }

    fn abandon(&mut self, step: u64, error: String) -> Option<Verdict> {
        self.open.remove(&step);
        self.settle(step);
        Some(Verdict::Abandoned { step, error })
    }

    fn settle(&mut self, step: u64) {
        self.settled = Some(self.settled.map_or(step, |settled| settled.max(step)));
    }
}

fn mismatch(epoch: u64, dir: &PathBuf, slot: Option<&Option<ShardTable>>, report: &Report) -> Option<String> {
    let Report { rank, step, .. } = report;
    match slot {
        None => Some(format!("rank {rank} is not in the round")),
        Some(Some(_)) => Some(format!("rank {rank} reported its shard of step {step} twice")),
        Some(None) if *dir != report.dir => {
            Some(format!("rank {rank} wrote step {step} into {}, others into {}", report.dir.display(), dir.display()))
        }
        Some(None) if epoch != report.epoch => {
            Some(format!("rank {rank} says step {step} is in epoch {}, others in epoch {epoch}", report.epoch))
        }
        Some(None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn report(rank: u32, step: u64) -> Report {
        let table = ShardTable { file: format!("__{rank}_0.distcp"), ..ShardTable::default() };
        let dir = format!("/run/.step-{step}.tmp").into();
        Report { rank, step, epoch: 1, dir, metric: (rank == 0).then_some(2.5), table, blocked: f64::from(rank) }
    }

    #[test]
    fn complete_when_all_ranks_reported_in_rank_order() {
        let mut shards = Shards::new(3);
        assert!(shards.written(report(2, 10)).is_empty());
        assert!(shards.written(report(0, 10)).is_empty());
        let verdicts = shards.written(report(1, 10));
        let [Verdict::Complete(set)] = &verdicts[..] else { panic!("{verdicts:?}") };
        assert_eq!((set.step, set.epoch, set.metric, set.blocked), (10, 1, Some(2.5), 2.0));
        let files: Vec<_> = set.tables.iter().map(|table| table.file.as_str()).collect();
        assert_eq!(files, ["__0_0.distcp", "__1_0.distcp", "__2_0.distcp"]);
    }

    #[test]
    fn one_failure_settles_the_step() {
        let mut shards = Shards::new(2);
        assert!(shards.written(report(0, 10)).is_empty());
        let verdicts = shards.failed(1, 10, "disk full");
        assert_eq!(verdicts, [Verdict::Abandoned { step: 10, error: "rank 1: disk full".into() }]);
        assert!(shards.written(report(1, 10)).is_empty());
        assert!(shards.failed(0, 10, "again").is_empty());
        assert!(shards.written(report(0, 20)).is_empty());
        assert!(matches!(shards.written(report(1, 20))[..], [Verdict::Complete(_)]));
    }

    #[test]
    fn contradictions_abandon() {
        let mut shards = Shards::new(2);
        shards.written(report(0, 1));
        assert!(
            matches!(&shards.written(report(0, 1))[..], [Verdict::Abandoned { error, .. }] if error.contains("twice"))
        );
        shards.written(report(0, 2));
        let mut other = report(1, 2);
        other.dir = "/elsewhere".into();
        assert!(
            matches!(&shards.written(other)[..], [Verdict::Abandoned { error, .. }] if error.contains("/elsewhere"))
        );
        assert!(matches!(&shards.written(report(7, 3))[..], [Verdict::Abandoned { .. }]));
    }

    #[test]
    fn open_steps_are_bounded() {
        let mut shards = Shards::new(2);
        for step in 1..=STEPS_OPEN_MAX as u64 {
            assert!(shards.written(report(0, step)).is_empty());
        }
        let verdicts = shards.written(report(0, 100));
        assert!(matches!(verdicts[..], [Verdict::Abandoned { step: 1, .. }]), "{verdicts:?}");
        assert!(matches!(shards.written(report(1, 2))[..], [Verdict::Complete(_)]));
    }

    proptest! {
        #[test]
        fn never_two_verdicts_for_a_step(reports in proptest::collection::vec((0u32..3, 1u64..6, any::<bool>()), 0..80)) {
            let mut shards = Shards::new(3);
            let mut seen = std::collections::BTreeSet::new();
            for (rank, step, fails) in reports {
                let verdicts =
                    if fails { shards.failed(rank, step, "x") } else { shards.written(report(rank, step)) };
                for verdict in verdicts {
                    let step = match verdict {
                        Verdict::Complete(set) => {
                            prop_assert_eq!(set.tables.len(), 3);
                            set.step
                        }
                        Verdict::Abandoned { step, .. } => step,
                    };
                    prop_assert!(seen.insert(step));
                }
                prop_assert!(shards.open.len() <= STEPS_OPEN_MAX);
            }
        }
    }
}
