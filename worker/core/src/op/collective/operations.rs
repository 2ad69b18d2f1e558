//! The collectives as operations. They have no results and differ only in what they ask of the ranks, so that they are one file.

use super::Collectives;
use crate::error::HookError;
use crate::op::prelude::*;
use crate::op::row::RunCollective;

attributes! {
    /// Begins to sum its operands over the ranks, in place.
    AllReduce => ALL_REDUCE;
    /// Makes everything after it see the results of all that was begun before it.
    AllReduceWait => ALL_REDUCE_WAIT;
    /// Begins to sum its operands over the ranks that share the state with this one: flat arrays of as many equal parts as there are such
    /// ranks, for the part with the rank's number only.
    ReduceScatter => REDUCE_SCATTER;
    /// Begins to give all parts of its operands to all ranks that share the state.
    AllGather => ALL_GATHER;
    /// Makes everything after it on the device, but not on the host, see the results of all that was begun before it, except of
    /// [`AllReduceCopies`].
    Order => ORDER;
    /// An [`AllReduce`] over the ranks that share the state with this one.
    AllReduceShares => ALL_REDUCE_SHARES;
    /// An [`AllReduce`] over the ranks that have the same share as this one.
    AllReduceCopies => ALL_REDUCE_COPIES;
}

const fn row<A>(name: &'static str, run: RunCollective<A>) -> OpRow<A> {
    let exported =
        Export::no("the ranks' business, not the model's", "what this rank has: an exported model runs alone");
    OpRow::backward(name, nothing, |_, _| Err(OpErrorKind::NoCollectives)).collective(run).free().export(exported)
}

const ALL_REDUCE: OpRow<AllReduce> =
    row("all_reduce", |_, l, ranks| each(l, |tensor| ranks.all_reduce(tensor))).writes(|_, _| true);

const ALL_REDUCE_WAIT: OpRow<AllReduceWait> =
    row("all_reduce_wait", |_, _, ranks| ranks.wait().map_err(OpErrorKind::Hook));

const REDUCE_SCATTER: OpRow<ReduceScatter> =
    row("reduce_scatter", |_, l, ranks| each(l, |tensor| ranks.reduce_scatter(tensor))).writes(|_, _| true);

const ALL_GATHER: OpRow<AllGather> = row("all_gather", gather).writes(|_, _| true);

const ORDER: OpRow<Order> = row("order", |_, _, ranks| ranks.order().map_err(OpErrorKind::Hook));

const ALL_REDUCE_SHARES: OpRow<AllReduceShares> =
    row("all_reduce_shares", |_, l, ranks| each(l, |tensor| ranks.all_reduce_shares(tensor))).writes(|_, _| true);

const ALL_REDUCE_COPIES: OpRow<AllReduceCopies> =
    row("all_reduce_copies", |_, l, ranks| each(l, |tensor| ranks.all_reduce_copies(tensor))).writes(|_, _| true);

fn each(l: &Launch<'_>, begin: impl Fn(&Raw) -> Result<(), HookError>) -> Result<(), OpErrorKind> {
    l.ins.iter().try_for_each(|tensor| begin(tensor)).map_err(OpErrorKind::Hook)
}

/// Gathers through handles with version counters of their own: whoever saved an array finds in it what it held.
fn gather(_: &AllGather, l: &Launch<'_>, ranks: &dyn Collectives) -> Result<(), OpErrorKind> {
    let handles = l.ins.iter().map(|tensor| tensor.f_data()).collect::<Result<Vec<_>, _>>()?;
    handles.iter().try_for_each(|tensor| ranks.all_gather(tensor)).map_err(OpErrorKind::Hook)
}
