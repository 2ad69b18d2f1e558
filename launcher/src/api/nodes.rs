//! Training on several nodes: this one leads the others, or does what their head says.

use super::{
    announce::Announcer,
    launch,
    train::{Lead, TrainOptions, TrainedRun, lead},
};
use crate::{
    Error,
    agent::{self, Ended, HandEnd, Headship, Signal},
    facts::Facts,
    rendezvous::Rendezvous,
    run_dir::RunDir,
    ui::Sink,
};
use enn_common::{
    config::RunConfig,
    wire::hand::{Ending, Work},
};
use std::{path::Path, rc::Rc};

/// What the head tells the others of the run.
pub(super) fn headship(
    rendezvous: Rc<Rendezvous>,
    run: &RunDir,
    staged: &Path,
    nodes: (u32, u32),
) -> Result<Headship, Error> {
    let work = Work { run_dir: run.path().to_owned(), config: run.config_digest()?, staged: staged.to_owned() };
    Ok(Headship { rendezvous, work, nodes })
}

/// Does what the head of the run says, until that is over, or leads itself when the head is gone.
pub(super) fn follow(
    config: &RunConfig,
    facts: &Facts,
    options: &TrainOptions,
    rendezvous: &Rc<Rendezvous>,
) -> Result<TrainedRun, Error> {
    let host = options.nodes.as_ref().map_or_else(|| facts.host.clone(), |settings| settings.host.clone());
    let spec = launch::hand_spec(config, facts, host, options.handle_signals)?;
    let announcer = Announcer::start(Sink::bare(options.mode));
    let end = agent::serve(&spec, rendezvous, &mut |what| announcer.tell(what));
    drop(announcer);
    let ended = match end? {
        HandEnd::TookOver(heritage) => {
            return lead(config, facts, options, Some(Lead::Heir(Rc::clone(rendezvous), heritage)));
        }
        HandEnd::Ended(Ending::Finished) | HandEnd::Drained => Ended::Finished,
        HandEnd::Ended(Ending::Stopped { signal }) => Ended::Stopped(Signal::named(&signal)),
        HandEnd::Ended(Ending::Failed { cause }) => return Err(Error::Worker(cause)),
        HandEnd::Stopped(signal) => Ended::Stopped(signal),
        HandEnd::Failed(reason) => return Err(Error::Nodes(reason)),
    };
    let dir = options.runs_dir.clone();
    Ok(TrainedRun { dir, ended, metrics: None, checkpoint: None, restarts: 0, rounds: 0, led: false })
}
