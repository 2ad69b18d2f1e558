//! The state of training from a rank that has it to the ranks that have not: over the process group, without a file.
//!
//! **Invariant:** afterwards every rank holds the same bytes, or every rank has an error.

use super::{
    SessionError,
    agree::{agree, gather},
    boot::COLLECTIVE_WAIT_MAX,
    progress::Progress,
};
use crate::{
    checkpoint::{Named, dtype},
    comm::ProcessGroup,
};
use enn_common::checkpoint::table::DType;
use std::collections::BTreeMap;
use tch::{Device, Kind, Tensor};

/// How far a rank is: whole steps, and whether the epoch that ended with the last of them was judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Standing {
    step: u64,
    judged: bool,
}

/// Who stands furthest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Furthest {
    pub(super) root: u32,
    pub(super) standing: Standing,
    /// All ranks stand there.
    pub(super) everybody: bool,
}

impl Standing {
    pub(super) fn of(progress: &Progress) -> Self {
        Self { step: progress.step, judged: !progress.owes_epoch() }
    }

    /// A positive number in the order of standings.
    fn number(self) -> i64 {
        1 + 2 * self.step.cast_signed() + i64::from(self.judged)
    }
}

/// The lowest of the ranks that stand furthest; `None` when no rank has any state. One collective.
///
/// # Errors
/// The collective's.
pub(super) fn furthest(
    group: &dyn ProcessGroup,
    device: Device,
    mine: Option<Standing>,
) -> Result<Option<Furthest>, SessionError> {
    Ok(judge(&gather(group, device, mine.map_or(0, Standing::number))?))
}

fn judge(all: &[i64]) -> Option<Furthest> {
    let most = all.iter().copied().max().filter(|most| *most > 0)?;
    let root = all.iter().position(|number| *number == most)? as u32;
    let place = (most - 1).cast_unsigned();
    let standing = Standing { step: place / 2, judged: place % 2 == 1 };
    Some(Furthest { root, standing, everybody: all.iter().all(|number| *number == most) })
}

/// Gives every rank the `items` of `root`, in place where a rank has an item of that name, and the bytes they have. An item
/// that only `root` has comes as well, and one that it has not is left out.
///
/// # Errors
/// [`SessionError::Disagree`] when the same name has another shape or kind, or bytes came out differently; the collective's.
pub(super) fn share(
    items: Vec<Named>,
    group: &dyn ProcessGroup,
    device: Device,
    root: u32,
) -> Result<(Vec<Named>, u64), SessionError> {
    let told = list(&items, group, device, root)?;
    let mut mine: BTreeMap<String, Tensor> = items.into_iter().map(|item| (item.fqn, item.tensor)).collect();
    let (mut shared, mut sums, mut bytes) = (Vec::new(), Vec::new(), 0);
    for (fqn, shape, kind) in told {
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

/// Name, shape and kind of an item.
type Entry = (String, Vec<i64>, DType);

/// What `root` has.
fn list(items: &[Named], group: &dyn ProcessGroup, device: Device, root: u32) -> Result<Vec<Entry>, SessionError> {
    let entry = |item: &Named| Some((item.fqn.clone(), item.tensor.size(), dtype::of_kind(item.tensor.kind())?));
    let mine: Vec<Entry> = items.iter().filter_map(entry).collect();
    let leads = group.rank() == root;
    let mut text = serde_json::to_vec(&mine).unwrap_or_default();
    // Blanks are no part of JSON; whole words are what every group can broadcast.
    text.resize(text.len().next_multiple_of(size_of::<i64>()), b' ');
    let words: Vec<i64> = text.as_chunks().0.iter().map(|word| i64::from_le_bytes(*word)).collect();
    let length = Tensor::f_from_slice(&[words.len() as i64])?.f_to_device(device)?;
    group.broadcast(&length, root)?.wait(COLLECTIVE_WAIT_MAX)?;
    let length = length.f_int64_value(&[0])?;
    let told =
        if leads { Tensor::f_from_slice(&words)? } else { Tensor::f_zeros([length], (Kind::Int64, Device::Cpu))? };
    let told = told.f_to_device(device)?;
    group.broadcast(&told, root)?.wait(COLLECTIVE_WAIT_MAX)?;
    let words = Vec::<i64>::try_from(told.f_to_device(Device::Cpu)?)?;
    let text: Vec<u8> = words.into_iter().flat_map(i64::to_le_bytes).collect();
    serde_json::from_slice(&text)
        .map_err(|source| SessionError::Parse { path: format!("rank {root}'s list of its state").into(), source })
}

/// The sum of a tensor's words as whole numbers, on its device.
fn sum_of_bits(tensor: &Tensor) -> Result<i64, SessionError> {
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
        assert_eq!(judge(&[0, 0]), None);
        let number = |step, judged| Standing { step, judged }.number();
        let found = judge(&[0, number(4, false), number(4, true), number(4, true)]).unwrap();
        assert_eq!(found, Furthest { root: 2, standing: Standing { step: 4, judged: true }, everybody: false });
        let found = judge(&[number(5, false), number(4, true)]).unwrap();
        assert_eq!((found.root, found.standing.step), (0, 5));
        assert!(judge(&[number(0, true); 3]).unwrap().everybody);
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
