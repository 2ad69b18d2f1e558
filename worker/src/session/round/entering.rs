//! How the ranks of a round come to the same state: from the rank that stands furthest, from shares that make up the whole, from a
//! checkpoint, or anew; and what each keeps of it.

use super::{Round, context::TrainContext, state::TrainState, task::RoundTask};
use crate::session::excluded_rows::{self, ExcludedRows};
use crate::session::learner::{OPTIONAL, pretrained};
use crate::session::progress::{self, Progress};
use crate::session::recovery::shard_recovery::{self, KeptState};
use crate::session::recovery::state_transfer::{self, LocalState, MissingShards, NewestState, ShardHolders};
use crate::session::{SessionError, agree, checkpointing::saved_model::SavedModel, report::ready};
use crate::sharding::{self, ChosenSharding};
use crate::{checkpoint, collective, data::Sampler};
use enn_comm::ProcessGroup;
use enn_common::{checkpoint::name, wire::control::Phase, wire::message::FromWorker};
use std::path::Path;
use tch::Device;

impl<'a> Round<'a> {
    /// Brings all ranks to the same state: that of the rank which stands furthest, else a checkpoint's, else a new one.
    pub(in crate::session) fn enter(
        training: &'a TrainContext<'a>,
        state: &'a mut TrainState,
        group: &'a dyn ProcessGroup,
        task: &'a RoundTask,
    ) -> Result<Self, SessionError> {
        let rank = u64::from(group.rank());
        let world = u64::from(group.size());
        let accumulation = training.order.accumulation * u64::from(task.split.max(1));
        let sampler = Sampler { rank, world, accumulation, ..training.order.clone() };
        let ctx = training.step_context(group, &sampler);
        if state.broken {
            let kept = std::mem::take(&mut state.kept);
            let reported_strategy = state.reported_strategy.take();
            *state = TrainState { kept, reported_strategy, ..training.state(state.saver.take())? };
        }
        state.learner.executor.reset();
        state.pace.report_next();
        let mut round = Self { training, state, ctx, sampler, task, fresh: false, calibrated: None };
        round.decide_precision()?;
        let mine = round.state.local_state();
        let started = match state_transfer::find_newest(group, training.device, mine)? {
            NewestState::Nothing(missing) => Some(round.start(task.resume.as_deref(), missing.as_ref())?),
            NewestState::Whole(newest) => {
                if newest.everybody {
                    round.agree_on_nonfinite()?;
                } else {
                    round.receive_state(mine, newest)?;
                }
                None
            }
            NewestState::Shards(holders) => {
                round.assemble(mine, &holders)?;
                None
            }
        };
        round.state.begun = true;
        round.state.kept = KeptState::Nothing;
        let chosen = started.map_or_else(|| round.shard_state(), Ok)?;
        round.prepare_saving()?;
        ready(round.ctx.reporter, training.device, group.backend())?;
        if round.fresh {
            let choice = round.state.learner.precision.choice();
            let format = choice.format.name().to_owned();
            let reason = choice.reason.to_string();
            round.tell_from_first(FromWorker::PrecisionChosen { format, reason })?;
            if let Some(decision) = group.fell_back() {
                round.tell_from_first(FromWorker::Decided { decision })?;
            }
        }
        round.tell_strategy(&chosen)?;
        Ok(round)
    }

    /// Every rank takes the same; one that went on from another round keeps its loss scale.
    fn decide_precision(&mut self) -> Result<(), SessionError> {
        let decided = self.training.precision(&self.sampler, self.ctx.group)?;
        if self.state.begun && decided.choice().format == self.state.learner.precision.choice().format {
            return Ok(());
        }
        self.state.learner.take_precision(decided)
    }

    /// Every rank keeps what the strategy leaves it.
    fn shard_state(&mut self) -> Result<ChosenSharding, SessionError> {
        let training = self.training;
        let group = self.ctx.group;
        let weights = self.state.learner.arrays.params.numel();
        let strategy = training.config.train.strategy;
        let chosen = sharding::choose(strategy, weights, training.device, self.task.local, group)?;
        chosen.sharding.form_groups(group, self.task.local)?;
        self.state.learner.shard(group, chosen.sharding)?;
        Ok(chosen)
    }

    /// Reports the strategy when it is news and the ranks share the state or were asked to: nodes come and go, and what can be shared with
    /// them.
    fn tell_strategy(&mut self, chosen: &ChosenSharding) -> Result<(), SessionError> {
        let colon = if chosen.instead { "" } else { ":" };
        let decision = format!("strategy {}{colon} {}", chosen.sharding.strategy().name(), chosen.reason);
        let before = self.state.reported_strategy.replace(decision.clone());
        let shared = self.state.learner.arrays.is_sharded() || chosen.instead;
        if shared && before.as_ref() != Some(&decision) {
            self.tell_from_first(FromWorker::Decided { decision })?;
        }
        Ok(())
    }

    /// Initial or saved weights, equal on all ranks, of which each keeps what the strategy leaves it. Shares may have been left, of
    /// which some are `missing`.
    fn start(
        &mut self,
        resume: Option<&Path>,
        missing: Option<&MissingShards>,
    ) -> Result<ChosenSharding, SessionError> {
        self.fresh = true;
        let training = self.training;
        let group = self.ctx.group;
        if let Some(missing) = missing {
            let from = resume.map_or_else(
                || "training begins again".to_owned(),
                |path| {
                    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
                    format!("the state comes from the checkpoint {name}")
                },
            );
            self.tell_from_first(FromWorker::Decided { decision: format!("{from}: {missing}") })?;
        }
        if let Some(path) = resume {
            // First, so that a rank reads and holds no more than its share.
            let chosen = self.shard_state()?;
            self.resume(path)?;
            self.state.learner.prove_equal(group, training.device)?;
            return Ok(chosen);
        }
        if group.rank() == 0 {
            let rows = training.data.start_rows(training.device)?;
            let report = self.state.learner.start_from(&rows)?;
            tracing::info!(?report, "initial weights from data");
        }
        if let Some(parent) = &training.config.parent {
            let meta = training.data.staged.0.meta();
            let decision = pretrained::begin_from(&mut self.state.learner, parent, meta)?;
            self.tell_from_first(FromWorker::Decided { decision })?;
        }
        self.state.learner.share_weights(group)?;
        self.state.learner.prove_equal(group, training.device)?;
        self.shard_state()
    }

    fn resume(&mut self, path: &Path) -> Result<(), SessionError> {
        let training = self.training;
        let group = self.ctx.group;
        let manifest = std::fs::read(path.join(name::MANIFEST)).unwrap_or_default();
        agree::agree(group, training.device, "the checkpoint to go on from", blake3::hash(&manifest).as_bytes())?;
        let state = &mut *self.state;
        let (mut wanted, shared) = state.learner.expected()?;
        wanted.extend(Progress::expected());
        // Of initial weights made without data only a part is taken.
        let begun =
            path.file_name().and_then(|name| name.to_str()).and_then(name::step_of).is_some_and(|step| step > 0);
        let over = begun && self.training.device == Device::Cpu;
        let own = if over { state.named(&self.training.order)? } else { Vec::new() };
        let optional = [&OPTIONAL[..], &[excluded_rows::STATE, progress::MIX]].concat();
        let saved = checkpoint::load_over(path, &wanted, &optional, own, &shared);
        let taken = saved
            .map_err(|error| SessionError::of_checkpoint(error, path))
            .and_then(|saved| state.take(&saved, &self.training.order, path));
        if (over || !shared.boxes.is_empty()) && taken.is_err() {
            // What it would have replaced may be half replaced.
            state.learner = self.training.learner()?;
            state.sums.clear()?;
        }
        taken?;
        state.saved_step = Some(state.progress.step);
        // Saved weights were validated where they were to be, however often that was.
        state.progress.validated = state.progress.step;
        let before = SavedModel::open(path)?.config.train;
        let now = &self.training.config.train;
        let longer = now.epochs > before.passes(self.training.order.rows) || now.patience != before.patience;
        let progress = &mut state.progress;
        // One that had ended goes on where more is asked for.
        progress.stopped_early &= !longer;
        progress.finished = progress.stopped_early || progress.position.epoch >= now.epochs;
        Ok(())
    }

    /// Ranks that stand alike have the same weights; a round that broke while they agreed on a place to cool down, or on rows to
    /// leave out, may have left them with different ones.
    fn agree_on_nonfinite(&mut self) -> Result<(), SessionError> {
        let items = self.state.learner.precision.named().into_iter().chain(self.state.excluded.named()).collect();
        let (items, _) = state_transfer::broadcast_state(items, self.ctx.group, self.training.device, 0)?;
        let saved = items.into_iter().map(|item| (item.fqn, item.tensor)).collect();
        self.state.excluded = ExcludedRows::restore(&saved)?;
        Ok(self.state.learner.precision.restore(&saved)?)
    }

    /// The state of the rank that stands furthest, over the group: no file is read.
    fn receive_state(&mut self, mine: LocalState, newest: state_transfer::NewestWhole) -> Result<(), SessionError> {
        self.ctx.reporter.mark(Phase::Load, self.state.progress.step);
        let _ = self.state.pace.watch.lap_ms();
        let behind = mine != LocalState::Whole(newest.position);
        self.state.learner.arrays.allocate()?;
        let items = self.state.named(&self.training.order)?;
        // Where the other one dies meanwhile, some of it is of its step and some of this one's.
        self.state.begun &= !behind;
        let (items, bytes) = state_transfer::broadcast_state(items, self.ctx.group, self.training.device, newest.root)?;
        if behind {
            let saved = items.into_iter().map(|item| (item.fqn, item.tensor)).collect();
            self.state.take(&saved, &self.training.order, Path::new("the state of another rank"))?;
            self.state.saved_step = None;
            let step = self.state.progress.step;
            let seconds = self.state.pace.watch.lap_ms() / 1e3;
            self.tell(FromWorker::StateReceived { step, from: newest.root, bytes, seconds })?;
        }
        Ok(())
    }

    /// The state from the shares of those that have them, over the group: no file is read. Every rank has all of it then.
    fn assemble(&mut self, mine: LocalState, holders: &ShardHolders) -> Result<(), SessionError> {
        self.ctx.reporter.mark(Phase::Load, holders.position.step());
        let _ = self.state.pace.watch.lap_ms();
        let training = self.training;
        let group = self.ctx.group;
        self.state.learner.arrays.allocate()?;
        let whole = self.state.named(&training.order)?;
        let kept = std::mem::take(&mut self.state.kept);
        let joined = shard_recovery::assemble(whole, kept.shard(), holders, group, training.device);
        // Until every rank has the whole, the share is what there is.
        self.state.kept = kept;
        let (saved, bytes) = joined?;
        self.state.take(&saved, &training.order, Path::new("the shares of other ranks"))?;
        if holders.some_unvalidated {
            self.state.keep_validated_as_best()?;
        }
        let step = self.state.progress.step;
        let seconds = self.state.pace.watch.lap_ms() / 1e3;
        let there = training.checkpoints.join(name::committed(step)).exists();
        let seen = collective::sum(group, training.device, &[if there { 1.0 } else { 0.0 }])?[0] > 0.0;
        self.state.saved_step = seen.then_some(step);
        if mine == LocalState::Nothing {
            // Its own share is the one with its place on the node.
            let from = holders.holders[group.rank() as usize % holders.holders.len()];
            self.tell(FromWorker::StateReceived { step, from, bytes, seconds })?;
        }
        let decision = format!(
            "the state of step {step} comes from the workers' shares, and from no file: {}",
            holders.sentence()
        );
        self.tell_from_first(FromWorker::Decided { decision })
    }
}
