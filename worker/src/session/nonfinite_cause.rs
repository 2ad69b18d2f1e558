//! The cause of a step that was not finite, as a replay of it finds it: its place in the model, and the sentence for the user.
//!
//! **Invariant:** looks at a replay that was made, and computes nothing.

use super::SessionError;
use enn_core::{
    autograd::{Cx, Program, Role, Val},
    kernel::{self, Bisect, Cause, Finding},
    params::Params,
    precision::COOLDOWN_STEPS,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};
use tch::Kind;

const NAMED_MAX: usize = 8;

/// Where a replay must be finite: a loss, and the records of the backward pass that began with it.
pub(super) struct End {
    pub(super) loss: Val,
    pub(super) backward: Range<usize>,
}

/// A finding with its place in the model.
pub(super) struct NonfiniteCause {
    pub(super) finding: Finding,
    pub(super) place: String,
    /// The place's number, if the operation works below f32 and its numbers outgrew that.
    pub(super) low: Option<usize>,
    /// Role of the operand that is not finite.
    pub(super) role: Option<Role>,
}

/// The record that made each value.
fn makers(program: &Program) -> BTreeMap<Val, usize> {
    let made = program.recs().iter().enumerate();
    made.flat_map(|(record, rec)| rec.outs().map(move |val| (val, record))).collect()
}

fn placed(program: &Program, finding: Finding) -> NonfiniteCause {
    let rec = program.recs().get(finding.record);
    let place = rec.map_or_else(String::new, |rec| program.place(rec.scope));
    let role = match (&finding.cause, rec) {
        (Cause::Operand { operand, .. }, Some(rec)) => rec.ins.get(*operand).map(|val| program.val(*val).role),
        _ => None,
    };
    let is_low = rec.is_some_and(|rec| {
        let mut kinds = rec.ins.iter().copied().chain(rec.outs()).map(|val| program.val(val).meta.kind);
        kinds.any(|kind| matches!(kind, Kind::Half | Kind::BFloat16 | Kind::Float8e4m3fn | Kind::Float8e5m2))
    });
    let low = rec.filter(|_| is_low && matches!(finding.cause, Cause::Result { .. })).map(|rec| rec.scope.index());
    NonfiniteCause { finding, place, low, role }
}

/// The first of these in words.
pub(super) fn first_of(numbers: impl IntoIterator<Item = i64>) -> String {
    let mut numbers = numbers.into_iter();
    let first: Vec<String> = numbers.by_ref().take(NAMED_MAX).map(|number| number.to_string()).collect();
    first.join(", ") + if numbers.next().is_some() { ", …" } else { "" }
}

fn named(rows: &kernel::NonfiniteRows) -> String {
    format!("{} rows ({})", rows.total, first_of(rows.first.iter().copied()))
}

impl NonfiniteCause {
    /// The cause that a replay found which ran in `cx` by `bisect`, and must be finite at its `ends`.
    pub(super) fn of(cx: &Cx<'_>, bisect: &Bisect<'_>, ends: &[End]) -> Option<Self> {
        cx.with_program(|program| {
            let makers = makers(program);
            let losses = ends.iter().filter_map(|end| makers.get(&end.loss).copied());
            let records = losses.chain(ends.iter().flat_map(|end| end.backward.clone()));
            let producers =
                |record: usize| program.recs()[record].ins.iter().map(|val| makers.get(val).copied()).collect();
            bisect.finding(records, producers).map(|finding| placed(program, finding))
        })
    }

    /// Whether a kernel is to blame, which is in quarantine then.
    pub(super) fn is_of_a_kernel(&self) -> bool {
        matches!(self.finding.cause, Cause::Kernel(_))
    }

    /// Slots of a micro-batch of `slots` that may be the cause: rows of a result that is not finite though its operands are.
    pub(super) fn slots(&self, slots: usize) -> Vec<usize> {
        let Cause::Result { rows } = &self.finding.cause else { return Vec::new() };
        let of = rows.of as usize;
        let is_listed = rows.first.len() as u64 == rows.total;
        if self.low.is_some() || !is_listed || slots == 0 || !of.is_multiple_of(slots) {
            return Vec::new();
        }
        // Where a result has several rows per sample, those of a sample follow each other.
        let each = of / slots;
        let mut found: Vec<usize> = rows.first.iter().map(|&row| row as usize / each).collect();
        found.dedup();
        found
    }

    /// The sentence for the user. `left_out` are the identities of this rank's rows that are left out because of it.
    pub(super) fn sentence(self, params: &Params, step: u64, left_out: &BTreeSet<i64>) -> Result<String, SessionError> {
        let Self { finding, place, low, role } = self;
        let op = finding.op;
        let cause = match (finding.cause, role) {
            (Cause::Kernel(fault), _) => {
                format!("kernel {} {}, and is left out from the next step on", fault.kernel, fault.fault)
            }
            (Cause::Operand { .. }, Some(Role::Param(id))) => {
                let weight = params.name(id).to_owned();
                return Err(SessionError::NonfiniteWeight { weight, op, place, step });
            }
            (Cause::Operand { rows, .. }, Some(Role::Input)) => {
                format!("{} of this worker's share of the batch are not finite", named(&rows))
            }
            (Cause::Operand { operand, rows }, _) => format!("{} of operand {operand} are not finite", named(&rows)),
            (Cause::Result { rows }, _) if low.is_some() => format!(
                "{} of its result are not finite though its operands are: numbers have outgrown a low-precision kind; \
                 the place computes in fp32 for {COOLDOWN_STEPS} steps",
                named(&rows)
            ),
            (Cause::Result { rows }, _) => format!(
                "{} of its result are not finite though its operands are: numbers have grown too large (are rows of the \
                 data far out of range? else a smaller learning rate, train.lr, helps)",
                named(&rows)
            ),
        };
        let mut sentence =
            format!("step {step} was refused because its gradient was not finite: {op} at {place}: {cause}");
        if !left_out.is_empty() {
            let rows = first_of(left_out.iter().copied());
            sentence.push_str(&format!("; data with row_id {rows} are the cause and left out from now on"));
        }
        Ok(sentence)
    }
}
