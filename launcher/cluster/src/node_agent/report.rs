//! Effects of one input in order; events only while a leader can hear them.

use super::effect::NodeEffect;
use enn_common::wire::node_agent::NodeEvent;

/// Effects that one input leads to.
pub(super) struct EffectList<'a> {
    effects: &'a mut Vec<NodeEffect>,
    /// Somebody leads. What is reported while nobody does is void: the next leader gets an inventory.
    has_leader: bool,
}

impl<'a> EffectList<'a> {
    pub(super) fn new(effects: &'a mut Vec<NodeEffect>, has_leader: bool) -> Self {
        Self { effects, has_leader }
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

    pub(super) fn has_leader(&self) -> bool {
        self.has_leader
    }

    pub(super) fn set_leader(&mut self, has_leader: bool) {
        self.has_leader = has_leader;
    }
}
