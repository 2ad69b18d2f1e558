//! Notifications of the membership service as inputs of the node state and of the supervisor.

use super::owner_loop::OwnerLoop;
use crate::{
    node_agent::{input::NodeInput, shell::NodeShell},
    rendezvous::{Notification, RendezvousInfo, RoundEnd, RunEnd},
    supervisor::{MembershipEnd, input::Input},
    transport,
};
use enn_common::{checkpoint::latest, wire::node_agent::NodeEvent};
use enn_process::run_dir;
use std::{path::Path, rc::Rc};

impl<S: NodeShell> OwnerLoop<'_, S> {
    /// Reads all notifications that wait.
    pub(super) fn read_membership(&mut self) {
        let Some(rendezvous) = self.rendezvous.clone() else { return };
        rendezvous.clear();
        let notifications = std::iter::from_fn(|| Rc::as_ref(&rendezvous).next_notification());
        for notification in notifications {
            self.on_notification(notification);
        }
    }

    fn on_notification(&mut self, notification: Notification) {
        match notification {
            Notification::Waiting(reason) if self.runs_group() => self.to_node.push(NodeInput::Waiting { reason }),
            Notification::RoundEnded(end) if self.runs_group() => self.on_group_round_ended(end),
            Notification::RunEnded(end) if self.runs_group() => self.on_group_over(end),
            Notification::Waiting(reason) if self.leads_membership => self.to_leader.push(Input::Waiting { reason }),
            Notification::Waiting(reason) => self.to_node.push(NodeInput::Waiting { reason }),
            Notification::NodeJoined { node, host, workers } => {
                self.to_leader.push(Input::NodeJoined { node, host, workers })
            }
            Notification::NodeLost { node, host, reason } => {
                self.to_leader.push(Input::NodeLost { node, host, reason })
            }
            Notification::Round(plan) => self.on_membership(plan),
            Notification::RoundEnded(_) => {
                self.to_node.push(NodeInput::MembershipReopened);
                if self.leads_membership {
                    self.to_leader.push(Input::MembershipReopened);
                }
            }
            Notification::StoreClients(seen) => self.to_leader.push(Input::StoreClients { seen }),
            Notification::LeaderLost(reason) => self.to_node.push(NodeInput::LeaderLost { reason }),
            Notification::RunEnded(end) => {
                self.group_end = Some(end.clone());
                let end = self.membership_end(end);
                if self.leads_membership {
                    self.to_leader.push(Input::MembershipOver(end.clone()));
                }
                self.to_node.push(NodeInput::MembershipOver(end));
            }
            Notification::Message { from, bytes } if self.leads_membership => {
                // A node sends events to the leader that it has found, not to one before.
                if let Some((epoch, event)) = transport::decode::<NodeEvent>(&bytes)
                    && epoch.is_of_leader(self.leads_since)
                {
                    self.to_leader.push(Input::Node { node: from, event });
                }
            }
            Notification::Message { bytes, .. } => {
                if let Some((epoch, command)) = transport::decode(&bytes) {
                    self.to_node.push(NodeInput::Command { epoch, command });
                }
            }
        }
    }

    fn on_group_round_ended(&mut self, end: RoundEnd) {
        self.to_node.push(NodeInput::RoundEnded(end));
        if self.leads_membership {
            self.to_leader.push(Input::MembershipReopened);
        }
    }

    fn on_group_over(&mut self, end: RunEnd) {
        if self.leads_membership {
            let end = self.membership_end(end.clone());
            self.to_leader.push(Input::MembershipOver(end));
        }
        self.to_node.push(NodeInput::GroupOver(end));
    }

    /// The nodes agreed on the members. The members are listed where this node leads the service.
    fn on_membership(&mut self, plan: RendezvousInfo) {
        let epoch = transport::epoch_of(&plan);
        if self.runs_group() {
            self.to_node.push(NodeInput::RoundPlanned(Box::new(plan.clone())));
        }
        if plan.nodes.is_empty() {
            self.to_node.push(NodeInput::LeaderFound { epoch });
        } else if self.leads_membership {
            self.to_leader.push(Input::MembershipFormed { epoch, members: plan.nodes });
            self.to_node.push(NodeInput::LeaderFound { epoch });
        } else {
            // From here on messages are events of the other nodes.
            self.leads_membership = true;
            self.leads_since = epoch;
            self.to_node.push(NodeInput::BecameLeader { epoch, members: plan.nodes });
        }
    }

    fn membership_end(&self, end: RunEnd) -> MembershipEnd {
        let failed = |reason| MembershipEnd::Failed { reason, fenced: false };
        match end {
            RunEnd::Finished => MembershipEnd::Finished,
            RunEnd::Stopped { by } => MembershipEnd::Stopped { by },
            RunEnd::Failed { end, reason } => {
                // The other side may go on in the same directory.
                let fenced = self.nodes.is_elastic();
                MembershipEnd::Failed { reason: format!("{end} ({reason})"), fenced }
            }
            RunEnd::LeaderLost { reason } => {
                let saved =
                    self.shell.run_dir().filter(|_| !self.leads_membership).map(newest_checkpoint).unwrap_or_default();
                MembershipEnd::Failed { reason: format!("{reason}{saved}"), fenced: self.nodes.is_elastic() }
            }
            RunEnd::TimedOut { reason } | RunEnd::Refused { reason } => failed(reason),
        }
    }
}

/// Returns what is left of a run whose leader is gone, for people.
fn newest_checkpoint(run_dir: &Path) -> String {
    let newest = latest(&run_dir::checkpoints(run_dir)).found;
    let newest = newest.as_ref().and_then(|found| found.dir().file_name()).map(|name| name.to_string_lossy());
    let newest = newest.unwrap_or("none".into());
    let dir = run_dir.display();
    format!(
        "\n  hint: the newest checkpoint is {newest}; when no node leads the run any more, `enn train --resume {dir}` goes on from it"
    )
}
