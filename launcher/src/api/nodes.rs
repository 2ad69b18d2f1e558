//! Training on several nodes: this one leads the others, or does what their head says.

use super::{
    announce::Announcer,
    launch,
    train::{Lead, TrainOptions, TrainedRun, lead},
};
use crate::{
    Error,
    agent::{self, Ended, HandEnd, Signal},
    facts::Facts,
    rendezvous::{Rendezvous, Settings},
    run_dir::RunDir,
    ui::Sink,
};
use enn_common::{
    config::RunConfig,
    wire::hand::{Ending, Work},
};
use std::{path::Path, rc::Rc};

/// What the head tells the others of the run.
pub(super) fn work(run: &RunDir, staged: &Path) -> Result<Work, Error> {
    Ok(Work { run_dir: run.path().to_owned(), config: run.config_digest()?, staged: staged.to_owned() })
}

/// Meets the other nodes, and leads them where this one hosts the rendezvous, or when it comes to.
pub(super) fn meet(
    config: &RunConfig,
    facts: &Facts,
    options: &TrainOptions,
    settings: &Settings,
) -> Result<TrainedRun, Error> {
    let guard = agent::guard()?;
    let rendezvous = Rc::new(Rendezvous::start(settings.clone())?);
    rendezvous.join();
    let leads = |guard, heritage| {
        let rendezvous = Rc::clone(&rendezvous);
        let host = settings.host.clone();
        let nodes = (settings.nodes_min, settings.nodes_max);
        lead(config, facts, options, Some(Lead { guard, rendezvous, nodes, host, heritage }))
    };
    if rendezvous.is_host() {
        return leads(guard, None);
    }
    let spec = launch::hand_spec(config, facts, settings.host.clone(), options.handle_signals)?;
    let announcer = Announcer::start(Sink::bare(options.mode));
    let end = agent::serve(&spec, guard, &rendezvous, &mut |what| announcer.tell(what));
    drop(announcer);
    let ended = match end? {
        HandEnd::TookOver(guard, heritage) => return leads(guard, Some(heritage)),
        HandEnd::Ended(Ending::Finished) | HandEnd::Drained => Ended::Finished,
        HandEnd::Ended(Ending::Stopped { signal }) => Ended::Stopped(Signal::named(&signal)),
        HandEnd::Ended(Ending::Failed { cause }) => return Err(Error::Worker(cause)),
        HandEnd::Stopped(signal) => Ended::Stopped(signal),
        HandEnd::Failed(reason) => return Err(Error::Nodes(reason)),
    };
    let dir = options.runs_dir.clone();
    Ok(TrainedRun { dir, ended, metrics: None, checkpoint: None, restarts: 0, rounds: 0, led: false })
}
