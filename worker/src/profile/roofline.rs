//! What each operation cost, added up by operation and kernel.

use super::timing::Spans;
use crate::autograd::{Meta, Program, Rec};
use enn_common::profile::{Ceiling, OpCost, ROOFLINE_VERSION, Roofline};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use tch::Device;

/// Sums so far.
#[derive(Debug, Default)]
pub(super) struct Costs {
    steps: u64,
    ops: BTreeMap<(&'static str, &'static str), OpCost>,
}

impl Costs {
    pub(super) fn steps(&self) -> u64 {
        self.steps
    }

    /// Adds a step.
    pub(super) fn add(&mut self, program: &Program, spans: &[Spans]) {
        self.steps += 1;
        for (rec, spans) in program.recs().iter().zip(spans) {
            let name = rec.op.row().name;
            let cost = self.ops.entry((name, rec.kernel)).or_insert_with(|| OpCost {
                op: name.to_owned(),
                kernel: rec.kernel.to_owned(),
                calls: 0,
                seconds: 0.0,
                flops: 0,
                bytes: 0,
            });
            let flops = flops(program, rec);
            cost.calls += 1;
            cost.seconds += spans.cost() as f64 / 1e9;
            cost.flops += flops;
            cost.bytes += bytes(program, rec, flops);
        }
    }

    pub(super) fn table(&self, device: Device, ceiling: Ceiling) -> Roofline {
        let mut ops: Vec<OpCost> = self.ops.values().cloned().collect();
        ops.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        Roofline { version: ROOFLINE_VERSION, device: format!("{device:?}"), steps: self.steps, ceiling, ops }
    }
}

fn flops(program: &Program, rec: &Rec) -> u64 {
    let ins: SmallVec<[&Meta; 4]> = rec.ins.iter().map(|val| &program.val(*val).meta).collect();
    let outs: SmallVec<[Meta; 2]> = rec.outs().map(|val| program.val(val).meta.clone()).collect();
    (rec.op.row().flops)(&rec.op, &ins, &outs)
}

/// Bytes that must be moved at least: operands once, written ones twice, results once. What costs no operation is a view.
fn bytes(program: &Program, rec: &Rec, flops: u64) -> u64 {
    if flops == 0 && !rec.op.is_collective() {
        return 0;
    }
    let size = |val| {
        let meta = &program.val(val).meta;
        meta.numel().max(0).cast_unsigned() * meta.kind.elt_size_in_bytes() as u64
    };
    let ins = rec.ins.iter().enumerate().map(|(i, val)| size(*val) * if rec.op.writes(i) { 2 } else { 1 });
    ins.sum::<u64>() + rec.outs().map(size).sum::<u64>()
}
