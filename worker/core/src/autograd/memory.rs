//! How much memory a program needs, from its record alone.
//!
//! A value lives from the record that makes it to the last one that reads it, or any view of it; during a recorded step what
//! reverse rules read lives as long as in a replay. Workspaces of kernels are not counted.

use super::program::Program;
use crate::op::value::Role;

impl Program {
    /// Returns the largest number of bytes of intermediate values alive at once. Parameters, gradients, moments, inputs and buffers are
    /// not counted.
    pub fn peak_bytes(&self) -> u64 {
        let mut owner: Vec<usize> = (0..self.values()).collect();
        let mut last = vec![0usize; self.values()];
        for (at, rec) in self.recs().iter().enumerate() {
            let view = rec.op.row().is_view;
            for out in rec.outs() {
                if view && let Some(source) = rec.ins.first() {
                    owner[out.index()] = owner[source.index()];
                }
                last[owner[out.index()]] = at;
            }
            for val in &rec.ins {
                last[owner[val.index()]] = at;
            }
        }
        let mut dying: Vec<Vec<usize>> = vec![Vec::new(); self.recs().len()];
        for (val, at) in last.iter().enumerate() {
            if owner[val] == val
                && let Some(list) = dying.get_mut(*at)
            {
                list.push(val);
            }
        }
        let mut alive = 0u64;
        let mut peak = 0u64;
        for (rec, dead) in self.recs().iter().zip(&dying) {
            alive +=
                rec.outs().filter(|v| owner[v.index()] == v.index()).map(|v| self.temp_bytes(v.index())).sum::<u64>();
            peak = peak.max(alive);
            alive -= dead.iter().map(|val| self.temp_bytes(*val)).sum::<u64>().min(alive);
        }
        peak
    }

    /// Bytes of a value made by a record; 0 for leaves.
    fn temp_bytes(&self, at: usize) -> u64 {
        let value = &self.vals()[at];
        if value.role != Role::Temp {
            return 0;
        }
        value.meta.numel().max(0).cast_unsigned() * value.meta.kind.elt_size_in_bytes() as u64
    }
}
