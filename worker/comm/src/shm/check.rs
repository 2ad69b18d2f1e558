//! Verifies a new group: all ranks sum known numbers and report whether the results are right.
//!
//! Reports go through the store and not through the group in question: each rank reports to rank 0, which publishes the verdict.

use super::fault::CollectiveContext;
use crate::{CommError, ProcessGroup, Work, c10d::store::Store};
use std::time::Duration;
use tch::{Kind, TchError, Tensor};

/// Period of the numbers, small enough that the numbers of 256 ranks are exact in every kind, and their sums but for one rounding.
const PERIOD: usize = 251;
/// Lengths of the summed arrays: one that is summed whole, and one in shares or chunks.
const COUNTS: [usize; 2] = [1003, 33_001];
/// The kinds that are checked: each has code of its own.
const KINDS: [Kind; 5] = [Kind::Float, Kind::Double, Kind::Int64, Kind::BFloat16, Kind::Half];
const VERDICT: &str = "shm/verdict";

/// Hook for tests that changes a sum before it is checked.
pub(super) type Spoil<'a> = &'a dyn Fn(&Tensor);

struct KnownSums {
    mine: Tensor,
    sums: Tensor,
}

impl KnownSums {
    fn of(count: usize, at: CollectiveContext) -> Result<Self, TchError> {
        let number = |place: usize, rank: u32| ((place + rank as usize) % PERIOD) as i64;
        let sum = |place: usize| -> i64 { (0..at.size).map(|rank| number(place, rank)).sum() };
        let repeated = |period: Vec<i64>| -> Vec<i64> { period.into_iter().cycle().take(count).collect() };
        let mine = Tensor::f_from_slice(&repeated((0..PERIOD).map(|place| number(place, at.rank)).collect()))?;
        Ok(Self { mine, sums: Tensor::f_from_slice(&repeated((0..PERIOD).map(sum).collect()))? })
    }
}

/// Sums known numbers of every kind. Returns what is wrong with the results, if anything. Every rank must call it.
pub(super) fn sums(
    group: &dyn ProcessGroup,
    at: CollectiveContext,
    limit: Duration,
    spoil: Spoil<'_>,
) -> Result<Result<(), String>, CommError> {
    let failed = |error: TchError| at.failed(&error);
    let mut flying = Vec::new();
    for count in COUNTS {
        let known = KnownSums::of(count, at).map_err(failed)?;
        for kind in KINDS {
            let array = known.mine.f_to_dtype(kind, false, true).map_err(failed)?;
            let sums = known.sums.f_to_dtype(kind, false, true).map_err(failed)?;
            flying.push((group.all_reduce_sum(&array)?, array, sums));
        }
    }
    let mut wrong = None;
    for (work, array, sums) in flying {
        work.wait(limit)?;
        spoil(&array);
        if !array.f_equal(&sums).map_err(failed)? {
            wrong.get_or_insert(format!("a sum of {} numbers of kind {:?} is wrong", array.numel(), array.kind()));
        }
    }
    Ok(wrong.map_or(Ok(()), Err))
}

/// Checks a sum of known numbers at the beginning of `shared`, a tensor in shared memory, which holds zeros afterwards.
/// `begin` begins to sum such a tensor. Every rank must call it.
pub(super) fn shared_sum(
    at: CollectiveContext,
    shared: &Tensor,
    begin: impl FnOnce(Tensor) -> Work,
) -> Result<bool, CommError> {
    let failed = |error: TchError| at.failed(&error);
    let count = shared.numel().min(COUNTS[0]);
    let part = shared.f_view(-1).and_then(|flat| flat.f_narrow(0, 0, count as i64)).map_err(failed)?;
    let known = KnownSums::of(count, at).map_err(failed)?;
    tch::no_grad(|| part.shallow_clone().f_copy_(&known.mine)).map_err(failed)?;
    begin(part.shallow_clone()).wait(at.timeout)?;
    let right = known.sums.f_to_kind(part.kind()).and_then(|sums| part.f_equal(&sums)).map_err(failed)?;
    let _zeroed = tch::no_grad(|| part.shallow_clone().f_zero_()).map_err(failed)?;
    Ok(right)
}

/// Reports this rank's finding. Rank 0 reads all reports up to the first failure and publishes the verdict.
pub(super) fn report(store: &Store, rank: u32, size: u32, mine: &Result<(), String>) -> Result<(), CommError> {
    let word = |found: &Result<(), String>| match found {
        Ok(()) => "ok".to_owned(),
        Err(reason) => format!("no {reason}"),
    };
    let place = |rank: u32| format!("shm/check-{rank}");
    if rank != 0 {
        return store.set(&place(rank), word(mine).as_bytes());
    }
    let mut verdict = word(mine);
    let mut about = 0;
    while verdict == "ok" && about + 1 < size {
        about += 1;
        verdict = String::from_utf8_lossy(&store.get(&place(about))?).into_owned();
    }
    store.set(VERDICT, format!("{about} {verdict}").as_bytes())
}

/// Returns the verdict: the first rank that found something wrong, and its reason. The answer is the same on every rank.
pub(super) fn verdict(store: &Store) -> Result<Option<(u32, String)>, CommError> {
    let verdict = store.get(VERDICT)?;
    let verdict = String::from_utf8_lossy(&verdict);
    let (rank, word) = verdict.split_once(' ').unwrap_or_default();
    Ok(word.strip_prefix("no ").map(|reason| (rank.parse().unwrap_or_default(), reason.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Forming, Shm, ShmFormed, ShmOptions, StoreAddr};
    use enn_broker::tcpstore::{Limits, serve};
    use std::{net::Ipv4Addr, thread};
    use tch::Device;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// What each of so many ranks gets of forming, where rank 1 sums this kind wrongly.
    fn formed(size: u32, wrong: Option<Kind>) -> Vec<Result<(), (u32, String)>> {
        let server = serve((Ipv4Addr::LOCALHOST, 0).into(), Limits::default()).unwrap();
        let port = server.addr().port();
        let one = move |rank| {
            let addr = StoreAddr { host: "127.0.0.1".into(), port, prefix: "round-0".into() };
            let store = Store::connect(addr, PATIENCE).unwrap();
            let spoil = |sum: &Tensor| {
                if rank == 1 && wrong == Some(sum.kind()) {
                    let _ = sum.narrow(0, 17, 1).fill_(3.0);
                }
            };
            let options = ShmOptions { rank, size, timeout: PATIENCE };
            match Shm::form_with(&store, &options, &Forming::within(PATIENCE), &spoil).unwrap() {
                ShmFormed::Refused { rank, reason } => Err((rank, reason)),
                ShmFormed::Group(group) => {
                    let shared = group.shared_like(&Tensor::ones([5000], (Kind::Float, Device::Cpu))).unwrap();
                    let shared = shared.expect("memory is shared here");
                    assert_eq!(shared.abs().max().double_value(&[]), 0.0, "its check leaves nothing");
                    Box::new(group).shutdown(PATIENCE).unwrap();
                    Ok(())
                }
            }
        };
        thread::scope(|scope| {
            let ranks: Vec<_> = (0..size).map(|rank| scope.spawn(move || one(rank))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    #[test]
    fn a_rank_whose_sums_are_wrong_makes_all_say_no() {
        for size in [2, 3, 5] {
            assert_eq!(formed(size, None), vec![Ok(()); size as usize]);
        }
        for (size, kind, words) in [(2, Kind::Float, "1003 numbers of kind Float"), (3, Kind::Half, "kind Half")] {
            let found = formed(size, Some(kind));
            assert!(
                found.iter().all(|one| matches!(one, Err((1, reason)) if reason.contains(words))),
                "the same on all: {found:?}"
            );
        }
    }
}
