//! Collectives: recorded with the rest of the step, run by the ranks together.
//!
//! **Invariant:** a kernel never runs them; the door hands them to the step's [`Collectives`].

use super::Op;
use super::infer::Metas;
use super::row::{Export, Launch, Launched, OpRow, free};
use crate::error::{HookError, OpErrorKind};

const NOT_EXPORTED: Export =
    Export::no("the ranks' business, not the model's", "what this rank has: an exported model runs alone");

/// AllReduce, AllReduceWait, ReduceScatter, AllGather, Order, AllReduceShares, AllReduceCopies.
///
/// AllReduce begins to sum its operands over the ranks, in place. ReduceScatter begins the same over the ranks that share the state
/// with this one, of flat arrays of as many equal parts as there are such ranks, for the part with the rank's number only;
/// AllGather begins to give all parts to all of them; AllReduceShares is an AllReduce over them. AllReduceCopies sums over the ranks
/// that have the same share as this one. AllReduceWait makes everything after it see the results of all that was begun before it;
/// Order the same for the device only, without the host, and not of AllReduceCopies.
pub static ROWS: [OpRow; 7] = [
    OpRow::backward("all_reduce", |_, _| Ok(Metas::new()), refuse).flops(free).export(NOT_EXPORTED),
    OpRow::backward("all_reduce_wait", |_, _| Ok(Metas::new()), refuse).flops(free).export(NOT_EXPORTED),
    OpRow::backward("reduce_scatter", |_, _| Ok(Metas::new()), refuse).flops(free).export(NOT_EXPORTED),
    OpRow::backward("all_gather", |_, _| Ok(Metas::new()), refuse).flops(free).export(NOT_EXPORTED),
    OpRow::backward("order", |_, _| Ok(Metas::new()), refuse).flops(free).export(NOT_EXPORTED),
    OpRow::backward("all_reduce_shares", |_, _| Ok(Metas::new()), refuse).flops(free).export(NOT_EXPORTED),
    OpRow::backward("all_reduce_copies", |_, _| Ok(Metas::new()), refuse).flops(free).export(NOT_EXPORTED),
];

/// The row of an operation of this family.
pub(super) fn row(op: &Op) -> &'static OpRow {
    match op {
        Op::AllReduce => &ROWS[0],
        Op::AllReduceWait => &ROWS[1],
        Op::ReduceScatter => &ROWS[2],
        Op::AllGather => &ROWS[3],
        Op::Order => &ROWS[4],
        Op::AllReduceShares => &ROWS[5],
        Op::AllReduceCopies => &ROWS[6],
        _ => unreachable!("an operation of another family"),
    }
}

fn refuse(_: &Op, _: &Launch<'_>) -> Launched {
    Err(OpErrorKind::NoCollectives)
}

/// How a step's ranks add up.
pub trait Collectives {
    /// How many ranks there are. With one, nothing is begun, and nothing recorded but a pause where one is wanted.
    fn ranks(&self) -> u32;

    /// Whether a step waits ([`Collectives::wait`]) before it changes the state. It cuts the step's graph in two.
    fn pauses(&self) -> bool {
        self.ranks() > 1
    }

    /// Floating-point operations that a device can do while the ranks sum one byte, 0 where summing keeps it from computing: how
    /// much there is to gain from sums that travel while something is computed.
    fn flops_per_byte(&self) -> f64 {
        0.0
    }

    /// Where [`Collectives::all_reduce`] measures the sums of that array: norms, f32, that make up the array's when the sums are there.
    fn norms_of(&self, array: &tch::Tensor) -> Option<tch::Tensor> {
        let _not_measured = array;
        None
    }

    /// Fails once a rank has ended the group of these ranks before its time: what is captured goes to the device without asking.
    ///
    /// # Errors
    /// Which rank did, where that is known.
    fn intact(&self) -> Result<(), HookError> {
        Ok(())
    }

    /// Begins to sum `tensor` over the ranks, in place.
    ///
    /// # Errors
    /// When the collective cannot be begun.
    fn all_reduce(&self, tensor: &tch::Tensor) -> Result<(), HookError>;

    /// How many ranks have the same share of the state as this one, itself counted.
    fn copies(&self) -> u32 {
        1
    }

    /// [`Collectives::all_reduce`] over the ranks that share the state with this one: all of them, or those of its node.
    ///
    /// # Errors
    /// When the collective cannot be begun.
    fn all_reduce_shares(&self, tensor: &tch::Tensor) -> Result<(), HookError> {
        self.all_reduce(tensor)
    }

    /// [`Collectives::all_reduce`] over the ranks that have the same share of the state. Only [`Collectives::wait`] waits for it.
    ///
    /// # Errors
    /// When the collective cannot be begun.
    fn all_reduce_copies(&self, tensor: &tch::Tensor) -> Result<(), HookError> {
        let _the_only_one = tensor;
        Ok(())
    }

    /// Begins to sum a flat array over the ranks that share the state, of as many equal parts as there are of these, for this
    /// rank's part only.
    ///
    /// # Errors
    /// When the collective cannot be begun.
    fn reduce_scatter(&self, whole: &tch::Tensor) -> Result<(), HookError>;

    /// Begins to give every rank that shares the state all parts of a flat array, of which each has its own.
    ///
    /// # Errors
    /// When the collective cannot be begun.
    fn all_gather(&self, whole: &tch::Tensor) -> Result<(), HookError>;

    /// Lets what follows on this device see the results of everything begun so far, but for sums over copies; a host need not wait
    /// for its device. What is found to have failed may show at [`Collectives::wait`] only.
    ///
    /// # Errors
    /// When a collective failed or did not end in time.
    fn order(&self) -> Result<(), HookError>;

    /// Lets what follows on this device see the results of everything begun so far.
    ///
    /// # Errors
    /// When a collective failed or did not end in time.
    fn wait(&self) -> Result<(), HookError>;
}

/// So many ranks, of which none is asked or waited for: one, in whatever world; or several whose sums are thrown away.
#[derive(Debug, Clone, Copy)]
pub struct Unasked(pub u32);

impl Collectives for Unasked {
    fn ranks(&self) -> u32 {
        self.0
    }

    fn all_reduce(&self, _: &tch::Tensor) -> Result<(), HookError> {
        Ok(())
    }

    fn reduce_scatter(&self, _: &tch::Tensor) -> Result<(), HookError> {
        Ok(())
    }

    fn all_gather(&self, _: &tch::Tensor) -> Result<(), HookError> {
        Ok(())
    }

    fn order(&self) -> Result<(), HookError> {
        Ok(())
    }

    fn wait(&self) -> Result<(), HookError> {
        Ok(())
    }
}

/// Runs one recorded collective.
///
/// # Errors
/// Those of `collectives`, and [`OpErrorKind::NoCollectives`] without any.
pub fn run(op: &Op, l: &Launch<'_>, collectives: Option<&dyn Collectives>) -> Result<(), OpErrorKind> {
    let collectives = collectives.ok_or(OpErrorKind::NoCollectives)?;
    match op {
        Op::AllReduceWait => collectives.wait(),
        Op::Order => collectives.order(),
        Op::ReduceScatter => l.ins.iter().try_for_each(|tensor| collectives.reduce_scatter(tensor)),
        Op::AllReduceShares => l.ins.iter().try_for_each(|tensor| collectives.all_reduce_shares(tensor)),
        Op::AllReduceCopies => l.ins.iter().try_for_each(|tensor| collectives.all_reduce_copies(tensor)),
        // Through handles with version counters of their own: whoever saved the array finds in it what it held.
        Op::AllGather => {
            let handles = l.ins.iter().map(|tensor| tensor.f_data()).collect::<Result<Vec<_>, _>>()?;
            handles.iter().try_for_each(|tensor| collectives.all_gather(tensor))
        }
        _ => l.ins.iter().try_for_each(|tensor| collectives.all_reduce(tensor)),
    }
    .map_err(OpErrorKind::Hook)
}
