//! Training on several nodes: this node leads the others, or follows their leader.

use super::{
    announce::Announcer,
    launch,
    lead::{Lead, Term, lead},
    train_options::TrainOptions,
    trained_run::TrainedRun,
};
use crate::{Error, facts::Facts};
use enn_cluster::{
    rendezvous::{Rendezvous, Settings},
    supervise::{self, FollowerEnd, Membership, NodeCounts, NodeEnd, RunEnd, RunEnding},
};
use enn_common::config::RunConfig;
use enn_ui::Sink;
use std::rc::Rc;

/// Meets the other nodes; leads them from the beginning or after taking over.
pub(super) fn meet(
    config: &RunConfig,
    facts: &Facts,
    options: &TrainOptions,
    settings: &Settings,
) -> Result<TrainedRun, Error> {
    let guard = supervise::guard()?;
    let rendezvous = Rc::new(Rendezvous::start(settings.clone())?);
    rendezvous.join();
    let nodes = NodeCounts { min: settings.nodes_min, max: settings.nodes_max };
    let host = || settings.host.clone();
    if rendezvous.is_host() {
        let membership = Membership { guard, rendezvous, nodes };
        return lead(config, facts, options, Some(Lead { host: host(), term: Term::First(membership) }));
    }
    let spec = launch::follower_spec(config, facts, host(), nodes, options.handle_signals)?;
    let announcer = Announcer::start(Sink::bare(options.mode));
    let end = supervise::take_part(&spec, guard, &rendezvous, &mut |what| announcer.send(what), |order| {
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
