//! Devices that are left out of the run: no process is started on them any more.
//!
//! A node says which of its devices are sick; here it is decided whether the run can do without them. **Invariant:** a device that is
//! left out stays so, and one whose seat the run needs is not left out.

use super::{machine::Supervisor, seating::NodeIndex, worker_table::slot};
use enn_common::{event::EventKind, wire::node_agent::DeviceFailure};

impl Supervisor {
    /// A worker failed because of its device.
    pub(super) fn device_failed(&mut self, node: NodeIndex, failure: DeviceFailure) {
        if failure.is_sick {
            self.nodes.note_sick(node, failure);
            return self.leave_out_devices();
        }
        let DeviceFailure { device, reason, .. } = failure;
        let host = self.host(node);
        let place = if host.is_empty() { String::new() } else { format!(" of {host}") };
        self.warn(format!("{device}{place} failed: {reason}; if it fails again, it is left out"));
    }

    /// Leaves out the sick devices without which there are enough for the run. That is known when all nodes are here.
    pub(super) fn leave_out_devices(&mut self) {
        if !self.nodes.is_settled() {
            return;
        }
        for (node, failure) in self.nodes.sick_devices() {
            let left_out = self.nodes.leave_out(node, failure.local_rank, self.seats_needed());
            let is_news = self.nodes.note_decided(node, failure.local_rank);
            let DeviceFailure { local_rank, device, reason, .. } = failure;
            let slot = slot(node, local_rank);
            if left_out || is_news {
                let host = self.host(node);
                self.journal(EventKind::DeviceSick { local_rank: slot.index, device, reason, left_out, host });
            }
            if !left_out {
                continue;
            }
            self.count_world();
            let are_bound = self.settings.run.spares_are_bound;
            let on_it = self.workers.spares().filter(|spare| spare.slot == slot && (are_bound || spare.parked));
            self.dismiss(on_it.map(|spare| spare.id).collect());
        }
    }

    /// Returns the least number of seats with which the run may go on.
    fn seats_needed(&self) -> u32 {
        let run = &self.settings.run;
        let is_fixed = run.workers_min >= self.settings.workers;
        let least = if is_fixed { self.settings.nodes_min * self.settings.workers } else { run.workers_min };
        least.min(self.world).max(1)
    }
}
