//! The state of training from the ranks that have it to those that have not: over the process group, without a file. One rank has
//! all of it, or several have shares that make up the whole ([`super::shard_recovery`]).
//!
//! **Invariant:** afterwards every rank holds the same bytes, or every rank has an error.

use crate::checkpoint::{Named, dtype};
use crate::collective::{COLLECTIVE_WAIT_MAX, gather};
use crate::session::{SessionError, agree::agree, progress::Progress};
use enn_comm::ProcessGroup;
use enn_common::checkpoint::table::TensorDType;
use enn_core::params::Share;
use serde::{Serialize, de::DeserializeOwned};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use tch::{Device, Kind, Tensor};

const NAMED_MAX: usize = 8;

/// How far a rank is: whole steps, and whether the epoch that ended with the last of them was validated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StepPosition {
    step: u64,
    validated: bool,
}

/// State that a rank has when it meets the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LocalState {
    Nothing,
    Whole(StepPosition),
    Shard(StepPosition, Share),
    /// A share that is of no use any more.
    Unusable(Share),
}

/// State that the ranks have together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NewestState {
    /// No state; what is missing of one, if there were shares.
    Nothing(Option<MissingShards>),
    Whole(NewestWhole),
    Shards(ShardHolders),
}

/// Shares that make up a state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ShardHolders {
    /// That of the furthest of them.
    pub(crate) position: StepPosition,
    /// The lowest of the furthest ranks that have each.
    pub(crate) holders: Vec<u32>,
    /// Index of a holder at this position: it gives what every rank has.
    pub(crate) common: usize,
    /// Some holders have done the same steps, and have not validated the epoch yet.
    pub(crate) some_unvalidated: bool,
}

/// Shares that do not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MissingShards {
    /// Nobody has them; where all are there, they are not of the same step.
    gone: Vec<u32>,
    of: u32,
}

/// The first rank with the newest state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NewestWhole {
    pub(crate) root: u32,
    pub(crate) position: StepPosition,
    pub(crate) everybody: bool,
}

impl StepPosition {
    pub(crate) fn of(progress: &Progress) -> Self {
        Self { step: progress.step, validated: !progress.owes_validation() }
    }

    pub(crate) fn step(self) -> u64 {
        self.step
    }

    /// A positive number in the order of standings.
    fn number(self) -> i64 {
        1 + 2 * self.step.cast_signed() + i64::from(self.validated)
    }

    fn of_number(number: i64) -> Self {
        let place = (number - 1).cast_unsigned();
        Self { step: place / 2, validated: place % 2 == 1 }
    }
}

impl LocalState {
    /// Two numbers: a standing's or 0, and a share's or 0.
    fn numbers(self) -> [i64; 2] {
        let share = |share: Share| i64::from(share.world) << 32 | i64::from(share.rank);
        match self {
            Self::Nothing => [0, 0],
            Self::Whole(position) => [position.number(), share(Share::WHOLE)],
            Self::Shard(position, part) => [position.number(), share(part)],
            Self::Unusable(part) => [0, share(part)],
        }
    }

    fn of_numbers(numbers: [i64; 2]) -> Self {
        let [position, share] = numbers;
        if share == 0 {
            return Self::Nothing;
        }
        let share = Share { rank: share as u32, world: (share >> 32) as u32 };
        match position {
            0 => Self::Unusable(share),
            number if share == Share::WHOLE => Self::Whole(StepPosition::of_number(number)),
            number => Self::Shard(StepPosition::of_number(number), share),
        }
    }

    fn position(self) -> Option<StepPosition> {
        match self {
            Self::Whole(position) | Self::Shard(position, _) => Some(position),
            Self::Nothing | Self::Unusable(_) => None,
        }
    }

    fn share(self) -> Option<Share> {
        match self {
            Self::Shard(_, share) | Self::Unusable(share) => Some(share),
            Self::Nothing | Self::Whole(_) => None,
        }
    }
}

/// The furthest state that the ranks have together, and who has it. Two collectives.
pub(crate) fn find_newest(
    group: &dyn ProcessGroup,
    device: Device,
    mine: LocalState,
) -> Result<NewestState, SessionError> {
    let [position, share] = mine.numbers();
    let positions = gather(group, device, position)?;
    let shares = gather(group, device, share)?;
    let all: Vec<LocalState> = positions.into_iter().zip(shares).map(|(a, b)| LocalState::of_numbers([a, b])).collect();
    Ok(newest(&all))
}

/// Of ranks that went on while others could not, shares may be a step ahead: then they are of no use beside the others, unless
/// every share is there. An epoch's end is no step: what it changes follows from what any rank knows that validated it.
fn newest(all: &[LocalState]) -> NewestState {
    let positions: BTreeSet<StepPosition> = all.iter().filter_map(|held| held.position()).collect();
    for position in positions.into_iter().rev() {
        if let Some(root) = all.iter().position(|held| *held == LocalState::Whole(position)) {
            let everybody = all.iter().all(|held| *held == LocalState::Whole(position));
            return NewestState::Whole(NewestWhole { root: root as u32, position, everybody });
        }
        let worlds = all.iter().filter_map(|held| held.share()).map(|share| share.world).collect::<BTreeSet<_>>();
        for world in worlds {
            let before = StepPosition { validated: false, ..position };
            let holder = |rank| {
                let at =
                    |position| all.iter().position(|held| *held == LocalState::Shard(position, Share { rank, world }));
                at(position).or_else(|| at(before)).map(|at| at as u32)
            };
            let Some(holders) = (0..world).map(holder).collect::<Option<Vec<u32>>>() else { continue };
            let stands = |holder: &u32| all[*holder as usize].position() == Some(position);
            let Some(common) = holders.iter().position(stands) else { continue };
            let some_unvalidated = !holders.iter().all(stands);
            return NewestState::Shards(ShardHolders { position, holders, common, some_unvalidated });
        }
    }
    let had: Vec<Share> = all.iter().filter_map(|held| held.share()).collect();
    NewestState::Nothing(had.first().map(|first| {
        let gone = (0..first.world).filter(|rank| !had.contains(&Share { rank: *rank, ..*first })).collect();
        MissingShards { gone, of: first.world }
    }))
}

impl ShardHolders {
    /// Says for the user which worker gives which share.
    pub(crate) fn sentence(&self) -> String {
        let each = |(share, holder): (usize, &u32)| format!("share {share} from worker {holder}");
        let mut named: Vec<String> = self.holders.iter().enumerate().take(NAMED_MAX).map(each).collect();
        if self.holders.len() > NAMED_MAX {
            named.push("…".to_owned());
        }
        named.join(", ")
    }
}

impl fmt::Display for MissingShards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = self.of;
        match &self.gone[..] {
            [] => write!(f, "the workers' {of} shares of the state are not those of one step"),
            [one] => {
                write!(f, "of {of} shares of the state one is gone, number {one}, with the last worker that had it")
            }
            [first, ..] => {
                let count = self.gone.len();
                write!(
                    f,
                    "of {of} shares of the state {count} are gone, the first number {first}, with the workers that had them"
                )
            }
        }
    }
}

/// Gives every rank the `items` of `root`, in place where a rank has an item of that name, and the bytes they have. An item
/// that only `root` has comes as well, and one that it has not is left out.
///
/// # Errors
/// [`SessionError::Disagree`] when the same name has another shape or kind, or bytes came out differently; the collective's.
pub(crate) fn broadcast_state(
    items: Vec<Named>,
    group: &dyn ProcessGroup,
    device: Device,
    root: u32,
) -> Result<(Vec<Named>, u64), SessionError> {
    let entries = broadcast_entries(&items, group, device, root)?;
    let mut mine: BTreeMap<String, Tensor> = items.into_iter().map(|item| (item.fqn, item.tensor)).collect();
    let mut shared = Vec::new();
    let mut sums = Vec::new();
    let mut bytes = 0;
    for (fqn, shape, kind) in entries {
        let kind = dtype::to_kind(kind);
        let fits = |tensor: &Tensor| tensor.size() == shape && tensor.kind() == kind;
        // What does not fit is received beside it: every rank takes part in every collective.
        let own = mine.remove(&fqn).filter(fits);
        let tensor = own.map_or_else(|| Tensor::f_zeros(&shape[..], (kind, device)), Ok)?;
        let moved = tensor.f_to_device(device)?.f_contiguous()?;
        group.broadcast(&moved, root)?.wait(COLLECTIVE_WAIT_MAX)?;
        if moved.data_ptr() != tensor.data_ptr() {
            tch::no_grad(|| tensor.shallow_clone().f_copy_(&moved))?;
        }
        sums.push(sum_of_bits(&moved)?);
        bytes += (moved.numel() * kind.elt_size_in_bytes()) as u64;
        shared.push(Named { fqn, tensor });
    }
    let sums: Vec<u8> = sums.into_iter().flat_map(i64::to_le_bytes).collect();
    agree(group, device, "state received from another rank", &sums)?;
    Ok((shared, bytes))
}

type ItemEntry = (String, Vec<i64>, TensorDType);

/// Lists the items of `root` on every rank.
fn broadcast_entries(
    items: &[Named],
    group: &dyn ProcessGroup,
    device: Device,
    root: u32,
) -> Result<Vec<ItemEntry>, SessionError> {
    let entry = |item: &Named| Some((item.fqn.clone(), item.tensor.size(), dtype::of_kind(item.tensor.kind())?));
    let mine: Vec<ItemEntry> = items.iter().filter_map(entry).collect();
    broadcast_value(&mine, group, device, root)
}

/// Sends a value of `root` to every rank.
///
/// # Errors
/// The collectives', and when `root` says something else.
pub(crate) fn broadcast_value<T: Serialize + DeserializeOwned>(
    mine: &T,
    group: &dyn ProcessGroup,
    device: Device,
    root: u32,
) -> Result<T, SessionError> {
    let leads = group.rank() == root;
    let mut text = serde_json::to_vec(mine).unwrap_or_default();
    // Blanks are no part of JSON; whole words are what every group can broadcast.
    text.resize(text.len().next_multiple_of(size_of::<i64>()), b' ');
    let words: Vec<i64> = text.as_chunks().0.iter().map(|word| i64::from_le_bytes(*word)).collect();
    let length = Tensor::f_from_slice(&[words.len() as i64])?.f_to_device(device)?;
    group.broadcast(&length, root)?.wait(COLLECTIVE_WAIT_MAX)?;
    let length = length.f_int64_value(&[0])?;
    let sent =
        if leads { Tensor::f_from_slice(&words)? } else { Tensor::f_zeros([length], (Kind::Int64, Device::Cpu))? };
    let sent = sent.f_to_device(device)?;
    group.broadcast(&sent, root)?.wait(COLLECTIVE_WAIT_MAX)?;
    let words = Vec::<i64>::try_from(sent.f_to_device(Device::Cpu)?)?;
    let text: Vec<u8> = words.into_iter().flat_map(i64::to_le_bytes).collect();
    serde_json::from_slice(&text)
        .map_err(|source| SessionError::Parse { path: format!("rank {root}'s list of its state").into(), source })
}

/// The sum of a tensor's words as whole numbers, on its device.
pub(crate) fn sum_of_bits(tensor: &Tensor) -> Result<i64, SessionError> {
    let words = match tensor.kind().elt_size_in_bytes() {
        8 => Kind::Int64,
        4 => Kind::Int,
        2 => Kind::Int16,
        _ => Kind::Int8,
    };
    Ok(tensor.f_reshape([-1])?.f_view_dtype(words)?.f_sum(Kind::Int64)?.f_int64_value(&[])?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_of_the_furthest_gives() {
        assert_eq!(newest(&[LocalState::Nothing; 2]), NewestState::Nothing(None));
        let whole = |step, validated| LocalState::Whole(StepPosition { step, validated });
        let found = |all: &[LocalState]| match newest(all) {
            NewestState::Whole(found) => found,
            other => panic!("{other:?}"),
        };
        let some = found(&[LocalState::Nothing, whole(4, false), whole(4, true), whole(4, true)]);
        assert_eq!(
            some,
            NewestWhole { root: 2, position: StepPosition { step: 4, validated: true }, everybody: false }
        );
        let first = found(&[whole(5, false), whole(4, true)]);
        assert_eq!((first.root, first.position.step), (0, 5));
        assert!(found(&[whole(0, true); 3]).everybody);
    }

    #[test]
    fn shares_make_up_a_state_only_of_one_step() {
        let share =
            |step, rank, world| LocalState::Shard(StepPosition { step, validated: true }, Share { rank, world });
        let found = |all: &[LocalState]| match newest(all) {
            NewestState::Shards(found) => (found.position.step, found.holders),
            other => panic!("{other:?}"),
        };
        let missing = |all: &[LocalState]| match newest(all) {
            NewestState::Nothing(missing) => missing.unwrap().to_string(),
            other => panic!("{other:?}"),
        };
        // Rank 1 died; its replica has its share.
        assert_eq!(found(&[share(7, 0, 2), LocalState::Nothing, share(7, 0, 2), share(7, 1, 2)]), (7, vec![0, 3]));
        // One was ahead of the others, and goes back.
        assert_eq!(found(&[share(8, 0, 2), LocalState::Nothing, share(7, 0, 2), share(7, 1, 2)]), (7, vec![2, 3]));
        // The others go forward.
        let early = |step, rank| LocalState::Shard(StepPosition { step, validated: false }, Share { rank, world: 2 });
        // One judged the epoch before the round broke.
        let mixed = |all: &[LocalState]| match newest(all) {
            NewestState::Shards(found) => {
                (found.holders, found.common, found.some_unvalidated, found.position.validated)
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(mixed(&[early(7, 0), share(7, 1, 2), early(7, 1)]), (vec![0, 1], 1, true, true));
        assert_eq!(mixed(&[early(7, 0), early(7, 1), share(7, 0, 2), share(7, 1, 2)]), (vec![2, 3], 0, false, true));
        assert_eq!(mixed(&[early(7, 0), early(7, 1), share(7, 0, 4)]), (vec![0, 1], 0, false, false));
        // The others go forward.
        assert_eq!(found(&[share(8, 0, 2), share(8, 1, 2), share(7, 0, 2)]), (8, vec![0, 1]));
        let text = missing(&[share(8, 0, 2), LocalState::Nothing, share(7, 1, 2)]);
        assert!(text.contains("not those of one step"), "{text}");
        let text = missing(&[LocalState::Nothing, LocalState::Unusable(Share { rank: 0, world: 2 })]);
        assert!(text.contains("of 2 shares of the state one is gone, number 1"), "{text}");
        let text = missing(&[share(3, 2, 4), share(3, 0, 4)]);
        assert!(text.contains("2 are gone, the first number 1"), "{text}");
        // A round that broke when the first had put the state together.
        let whole = LocalState::Whole(StepPosition { step: 7, validated: true });
        assert!(matches!(
            newest(&[share(7, 0, 2), whole, share(7, 1, 2)]),
            NewestState::Whole(NewestWhole { root: 1, everybody: false, .. })
        ));
        for held in [LocalState::Nothing, whole, share(9, 3, 4), LocalState::Unusable(Share { rank: 1, world: 3 })] {
            assert_eq!(LocalState::of_numbers(held.numbers()), held);
        }
    }

    #[test]
    fn a_sum_shows_a_bit() {
        for kind in [Kind::Float, Kind::Double, Kind::BFloat16, Kind::Int64, Kind::Bool] {
            let one = Tensor::ones([3, 5], (kind, Device::Cpu));
            let other = one.copy();
            let _ = other.get(1).get(2).fill_(0);
            assert_ne!(sum_of_bits(&one).unwrap(), sum_of_bits(&other).unwrap(), "{kind:?}");
        }
        assert_eq!(sum_of_bits(&Tensor::from(7i64)).unwrap(), 7);
    }
}
