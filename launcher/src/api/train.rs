//! `train`: stages data, starts workers, keeps them running, and writes a run directory; on several nodes this one leads the others, or
//! follows their leader.

use super::{
    announce::Announcer,
    finished, launch,
    lead::{Lead, Term, lead},
    train_options::TrainOptions,
    trained_run::TrainedRun,
};
use crate::{Error, facts::Facts};
use enn_cluster::{
    rendezvous::{Rendezvous, Settings},
    supervise::{self, FollowerEnd, Membership, NodeCounts, NodeEnd, NodeSpec, RunEnd, RunEnding},
};
use enn_common::config::RunConfig;
use enn_ui::Sink;
use std::rc::Rc;

/// Stages the data, trains with the configured workers and returns when they have finished or were stopped.
///
/// Call it from a thread that lives until it returns. A resumed run continues in its own directory with `config`; a finished run is not
/// changed.
///
/// # Errors
/// Wrong data, a machine that lacks something, or [`Error::Worker`] when a worker failed and no restart was left. The newest checkpoint is
/// kept in every case.
pub fn train(config: &RunConfig, facts: &Facts, options: &TrainOptions) -> Result<TrainedRun, Error> {
    if let Some(run) = options.resume.as_deref().map(|run| finished::finished(config, run)).transpose()?.flatten() {
        return run.leave(config);
    }
    match &options.nodes {
        None => lead(config, facts, options, None),
        Some(settings) => meet(config, facts, options, settings),
    }
}

/// Meets the other nodes; leads them from the beginning or after taking over.
fn meet(config: &RunConfig, facts: &Facts, options: &TrainOptions, settings: &Settings) -> Result<TrainedRun, Error> {
    let guard = supervise::guard()?;
    let rendezvous = Rc::new(Rendezvous::start(settings.clone())?);
    rendezvous.join();
    let nodes = NodeCounts { min: settings.nodes_min, max: settings.nodes_max };
    let host = || settings.host.clone();
    let is_host = rendezvous.is_host();
    let membership = Membership { guard, rendezvous, nodes };
    if is_host {
        return lead(config, facts, options, Some(Lead { host: host(), term: Term::First(membership) }));
    }
    let node = launch::node_spec(config, facts, launch::world(config), options.handle_signals)?;
    let node = NodeSpec { host: host(), ..node };
    let announcer = Announcer::start(Sink::bare(options.mode));
    let end = supervise::take_part(&node, membership, &mut |what| announcer.send(what), |order| {
        lead(config, facts, options, Some(Lead { host: host(), term: Term::Next(order) }))
    });
    drop(announcer);
    let ended = match end? {
        FollowerEnd::Led(run) => return run,
        // Training is never a group of programs.
        FollowerEnd::Ended(NodeEnd::Ended(RunEnding::Finished) | NodeEnd::Drained | NodeEnd::Group(_)) => {
            RunEnd::Finished
        }
        FollowerEnd::Ended(NodeEnd::Ended(RunEnding::Stopped { signal }) | NodeEnd::Stopped(signal)) => {
            RunEnd::Stopped(signal)
        }
        FollowerEnd::Ended(NodeEnd::Ended(RunEnding::Failed { cause })) => return Err(Error::Worker(cause)),
        FollowerEnd::Ended(NodeEnd::Failed(reason)) => return Err(Error::Nodes(reason)),
    };
    Ok(TrainedRun { led: false, ..TrainedRun::new(options.runs_dir.clone(), ended) })
}
