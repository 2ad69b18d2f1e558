//! The time of one input and its effects in order; events only while a leader can hear them.

use super::effect::NodeEffect;
use enn_common::wire::node_agent::NodeEvent;
use std::time::Duration;

/// Effects that one input leads to.
pub(super) struct EffectList<'a> {
    /// Time of the input.
    pub(super) now: Duration,
    effects: &'a mut Vec<NodeEffect>,
    /// Somebody leads. What is reported while nobody does is void: the next leader gets an inventory.
    pub(super) has_leader: bool,
}

impl<'a> EffectList<'a> {
    pub(super) fn new(now: Duration, effects: &'a mut Vec<NodeEffect>, has_leader: bool) -> Self {
        Self { now, effects, has_leader }
    }

    pub(super) fn push(&mut self, effect: NodeEffect) {
        self.effects.push(effect);
    }

    pub(super) fn extend(&mut self, effects: impl IntoIterator<Item = NodeEffect>) {
        self.effects.extend(effects);
    }

    /// Sends an event to the leader, if there is one.
    pub(super) fn report(&mut self, event: NodeEvent) {
        if self.has_leader {
            self.effects.push(NodeEffect::Report(event));
        }
    }
}
