//! Costs of operations, added up by operation, kernel and kind of numbers.

use super::timing::Spans;
use crate::autograd::{Program, Rec, Val};
use crate::op::row::Traffic;
use enn_common::profile::{Ceiling, NumberKind, OpCost, ROOFLINE_VERSION, Roofline};
use std::collections::{BTreeMap, BTreeSet};
use tch::{Device, Kind};

#[derive(Debug, Default)]
pub(super) struct OpCosts {
    pub(super) steps: u64,
    ops: BTreeMap<(&'static str, &'static str, NumberKind), OpCost>,
}

impl OpCosts {
    /// Returns the kinds of numbers that operations computed with.
    pub(super) fn kinds(&self) -> BTreeSet<NumberKind> {
        self.ops.keys().map(|(_, _, kind)| *kind).collect()
    }

    pub(super) fn add(&mut self, program: &Program, spans: &[Spans]) {
        self.steps += 1;
        for (rec, spans) in program.recs().iter().zip(spans) {
            let name = rec.op.row().name;
            let kind = number_kind(program, rec);
            let cost = self.ops.entry((name, rec.kernel, kind)).or_insert_with(|| OpCost {
                op: name.to_owned(),
                kernel: rec.kernel.to_owned(),
                kind,
                calls: 0,
                seconds: 0.0,
                flops: 0,
                bytes: 0,
            });
            cost.calls += 1;
            cost.seconds += spans.cost() as f64 / 1e9;
            cost.flops += program.cost(rec);
            cost.bytes += bytes(program, rec);
        }
    }

    pub(super) fn table(&self, device: Device, ceiling: Ceiling) -> Roofline {
        let mut ops: Vec<OpCost> = self.ops.values().cloned().collect();
        ops.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        Roofline { version: ROOFLINE_VERSION, device: format!("{device:?}"), steps: self.steps, ceiling, ops }
    }
}

/// Returns the kind of numbers that a record computes with: 8 bits if any operand has 8 bits, otherwise the kind of its first
/// floating-point operand, or of its first such result.
fn number_kind(program: &Program, rec: &Rec) -> NumberKind {
    let of = |val: Val| match program.val(val).meta.kind {
        Kind::Double => Some(NumberKind::F64),
        Kind::Float => Some(NumberKind::F32),
        Kind::Half => Some(NumberKind::F16),
        Kind::BFloat16 => Some(NumberKind::Bf16),
        Kind::Float8e4m3fn | Kind::Float8e5m2 => Some(NumberKind::Fp8),
        _ => None,
    };
    let operands = || rec.ins.iter().filter_map(|val| of(*val));
    // An 8-bit layer also has the unquantised rows and weight as operands.
    if operands().any(|kind| kind == NumberKind::Fp8) {
        return NumberKind::Fp8;
    }
    operands().next().or_else(|| rec.outs().find_map(of)).unwrap_or(NumberKind::F32)
}

/// Returns the least number of bytes to move: operands once, operands that are read and written twice, results once.
fn bytes(program: &Program, rec: &Rec) -> u64 {
    // A collective overlaps with later operations, so its time does not follow from its bytes.
    let row = rec.op.row();
    if row.is_view || row.collective.is_some() {
        return 0;
    }
    let size = |val: Val| {
        let meta = &program.val(val).meta;
        meta.numel().max(0).cast_unsigned() * meta.kind.elt_size_in_bytes() as u64
    };
    let made: u64 = rec.outs().map(size).sum();
    let moved = |(i, val): (usize, &Val)| match row.traffic {
        Traffic::Nothing => 0,
        Traffic::Overwritten => size(*val),
        Traffic::Selected if i == 0 => size(*val).min(made),
        Traffic::Selected | Traffic::Whole => size(*val) * if rec.op.writes(i) { 2 } else { 1 },
    };
    rec.ins.iter().enumerate().map(moved).sum::<u64>() + made
}
