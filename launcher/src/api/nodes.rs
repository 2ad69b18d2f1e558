//! Training on several nodes: this node leads the others, or follows their leader.

use super::{
    announce::Announcer,
    launch,
    lead::{Lead, lead},
    train_options::TrainOptions,
    trained_run::TrainedRun,
};
use crate::{Error, facts::Facts};
use enn_cluster::{
    agent::{self, Ended, HandEnd, Signal},
    rendezvous::{Rendezvous, Settings},
};
use enn_common::{config::RunConfig, wire::follower::Ending};
use enn_ui::Sink;
use std::rc::Rc;

/// Meets the other nodes; leads them if this node hosts the rendezvous or takes over later.
pub(super) fn meet(
    config: &RunConfig,
    facts: &Facts,
    options: &TrainOptions,
    settings: &Settings,
) -> Result<TrainedRun, Error> {
    let guard = agent::guard()?;
    let rendezvous = Rc::new(Rendezvous::start(settings.clone())?);
    rendezvous.join();
    let leads = |guard, takeover| {
        let rendezvous = Rc::clone(&rendezvous);
        let host = settings.host.clone();
        let nodes = (settings.nodes_min, settings.nodes_max);
        lead(config, facts, options, Some(Lead { guard, rendezvous, nodes, host, takeover }))
    };
    if rendezvous.is_host() {
        return leads(guard, None);
    }
    let spec = launch::hand_spec(config, facts, settings.host.clone(), options.handle_signals)?;
    let announcer = Announcer::start(Sink::bare(options.mode));
    let end = agent::serve(&spec, guard, &rendezvous, &mut |what| announcer.send(what));
    drop(announcer);
    let ended = match end? {
        HandEnd::TookOver(guard, takeover) => return leads(guard, Some(takeover)),
        HandEnd::Ended(Ending::Finished) | HandEnd::Drained => Ended::Finished,
        HandEnd::Ended(Ending::Stopped { signal }) => Ended::Stopped(Signal::named(&signal)),
        HandEnd::Ended(Ending::Failed { cause }) => return Err(Error::Worker(cause)),
        HandEnd::Stopped(signal) => Ended::Stopped(signal),
        HandEnd::Failed(reason) => return Err(Error::Nodes(reason)),
    };
    Ok(TrainedRun { led: false, ..TrainedRun::new(options.runs_dir.clone(), ended) })
}
