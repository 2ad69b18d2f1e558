//! What a rank is left with when a round breaks in which the ranks shared the state: its share of the last whole step. Shares of one
//! step that make up the whole are put together over the next round's group, and no file is read.
//!
//! A rank writes its share at one place of a step, after the last collective of it; so every share is whole, of the step before or of
//! this one. Where all weights are on every rank and each is written by one (`zero1`) that is not so: such a share is unusable.

use super::state_transfer::{ShardHolders, StepPosition, broadcast_value, sum_of_bits};
use crate::checkpoint::{Named, Placed, dtype};
use crate::collective::COLLECTIVE_WAIT_MAX;
use crate::session::{SessionError, agree::agree};
use enn_comm::ProcessGroup;
use enn_common::checkpoint::table::TensorDType;
use enn_core::params::Share;
use std::collections::BTreeMap;
use tch::{Device, TchError, Tensor};

/// Most bytes that travel at once, unless one box has more: few collectives, and little memory besides the state's own.
const PACKET_BYTES_MAX: usize = 64 << 20;

/// State that a round leaves behind in which the ranks shared it.
#[derive(Default)]
pub(crate) enum KeptState {
    #[default]
    Nothing,
    /// A share of which some may be of one step and some of the next.
    Unusable(Share),
    Shard(KeptShard),
}

/// A share of the state of a whole step.
pub(crate) struct KeptShard {
    pub(crate) share: Share,
    pub(crate) position: StepPosition,
    items: Vec<Named>,
    /// Boxes of tensors that the ranks had in shares.
    boxes: Vec<Placed>,
}

/// Name, shape of the whole, where the box begins and its shape, kind.
type BoxEntry = (String, Vec<i64>, Vec<i64>, Vec<i64>, TensorDType);

impl KeptState {
    /// The share of a state at `position` of which `parts` are what every rank has and what only this one has, as views: they outlive
    /// the learner.
    pub(crate) fn of(
        share: Share,
        position: StepPosition,
        parts: Result<(Vec<Named>, Vec<Placed>), SessionError>,
    ) -> Self {
        match parts {
            Ok((items, boxes)) => Self::Shard(KeptShard { share, position, items, boxes }),
            Err(error) => {
                tracing::warn!(%error, "this worker's share of the state is lost");
                Self::Unusable(share)
            }
        }
    }

    pub(crate) fn shard(&self) -> Option<&KeptShard> {
        match self {
            Self::Shard(shard) => Some(shard),
            Self::Nothing | Self::Unusable(_) => None,
        }
    }
}

impl KeptShard {
    /// Lists what this rank sends; where it `leads`, with the tensors that every rank had.
    fn entries(&self, leads: bool) -> Vec<(BoxEntry, &Tensor)> {
        let common = self.items.iter().filter(|_| leads).filter_map(|item| {
            let size = item.tensor.size();
            let kind = dtype::of_kind(item.tensor.kind())?;
            Some(((item.fqn.clone(), size.clone(), vec![0; size.len()], size, kind), &item.tensor))
        });
        let boxes = self.boxes.iter().filter_map(|placed| {
            let kind = dtype::of_kind(placed.tensor.kind())?;
            let global = placed.global.clone();
            let offsets = placed.offsets.clone();
            Some(((placed.fqn.clone(), global, offsets, placed.tensor.size(), kind), &placed.tensor))
        });
        let mut all: Vec<(BoxEntry, &Tensor)> = common.chain(boxes).collect();
        // Those of a kind travel together.
        all.sort_by_key(|(entry, _)| entry.4 as u8);
        all
    }
}

/// The whole state by name, on every rank, in place where `whole` has a tensor that fits; and the bytes that came. `own` is this
/// rank's share, if it has one.
///
/// # Errors
/// [`SessionError::Disagree`] when bytes came out differently, or do not make up the whole; the collectives'.
pub(crate) fn assemble(
    whole: Vec<Named>,
    own: Option<&KeptShard>,
    shares: &ShardHolders,
    group: &dyn ProcessGroup,
    device: Device,
) -> Result<(BTreeMap<String, Tensor>, u64), SessionError> {
    let places = whole.into_iter().map(|item| (item.fqn, item.tensor)).collect();
    let mut assembly = Assembly { places, device, found: BTreeMap::new() };
    let mut sums = Vec::new();
    let mut bytes = 0;
    for (share, &root) in shares.holders.iter().enumerate() {
        let mine = own.filter(|_| group.rank() == root).map(|shard| shard.entries(share == shares.common));
        let (entries, tensors): (Vec<BoxEntry>, Vec<&Tensor>) = mine.into_iter().flatten().unzip();
        let entries = broadcast_value(&entries, group, device, root)?;
        let mut first = 0;
        while first < entries.len() {
            let packet = packet(&entries[first..]);
            let flat = broadcast_packet(packet, tensors.get(first..first + packet.len()), root, group, device)?;
            sums.push(sum_of_bits(&flat)?);
            bytes += flat.numel() * flat.kind().elt_size_in_bytes();
            assembly.place(packet, &flat)?;
            first += packet.len();
        }
    }
    let sums: Vec<u8> = sums.into_iter().flat_map(i64::to_le_bytes).collect();
    agree(group, device, "state put together from the ranks' shares", &sums)?;
    Ok((assembly.done()?, bytes as u64))
}

/// Tensors of which boxes come.
struct Assembly {
    /// Where tensors may be put together.
    places: BTreeMap<String, Tensor>,
    device: Device,
    /// The tensors, and how many elements of each have come.
    found: BTreeMap<String, (Tensor, usize)>,
}

impl Assembly {
    /// Puts the boxes that lie behind each other in `flat` into their places.
    fn place(&mut self, packet: &[BoxEntry], flat: &Tensor) -> Result<(), TchError> {
        let mut at = 0;
        for (fqn, global, offsets, sizes, kind) in packet {
            let count: i64 = sizes.iter().product();
            let values = flat.f_narrow(0, at, count)?.f_view(&sizes[..])?;
            at += count;
            if !self.found.contains_key(fqn) {
                let kind = dtype::to_kind(*kind);
                let fits = |place: &Tensor| place.size() == *global && place.kind() == kind;
                let place = self.places.remove(fqn).filter(fits);
                let place = place.map_or_else(|| Tensor::f_zeros(&global[..], (kind, self.device)), Ok)?;
                self.found.insert(fqn.clone(), (place, 0));
            }
            let Some((place, came)) = self.found.get_mut(fqn) else { unreachable!("it was just put there") };
            let mut part = place.shallow_clone();
            for (axis, (&offset, &size)) in offsets.iter().zip(sizes).enumerate() {
                part = part.f_narrow(axis as i64, offset, size)?;
            }
            tch::no_grad(|| part.f_copy_(&values))?;
            *came += count as usize;
        }
        Ok(())
    }

    /// The tensors, when nothing of them is missing.
    fn done(self) -> Result<BTreeMap<String, Tensor>, SessionError> {
        if let Some((fqn, (whole, came))) = self.found.iter().find(|(_, (whole, came))| whole.numel() != *came) {
            let sides = format!("{came} of the {} elements of {fqn} came", whole.numel());
            return Err(SessionError::Disagree { what: "shares of the state", sides });
        }
        Ok(self.found.into_iter().map(|(fqn, (whole, _))| (fqn, whole)).collect())
    }
}

/// Returns the first entries that travel together: of one kind, and not too large.
fn packet(entries: &[BoxEntry]) -> &[BoxEntry] {
    let mut bytes = 0;
    let fits = |entry: &&BoxEntry| {
        bytes += entry.3.iter().product::<i64>() as usize * dtype::to_kind(entry.4).elt_size_in_bytes();
        entry.4 == entries[0].4 && bytes <= PACKET_BYTES_MAX
    };
    &entries[..entries.iter().take_while(fits).count().max(1)]
}

/// Sends a packet of `root`, whose tensors are `mine`, as one flat array to every rank.
fn broadcast_packet(
    packet: &[BoxEntry],
    mine: Option<&[&Tensor]>,
    root: u32,
    group: &dyn ProcessGroup,
    device: Device,
) -> Result<Tensor, SessionError> {
    let flat = match mine {
        Some(mine) => {
            let parts = mine.iter().map(|tensor| tensor.f_detach()?.f_to_device(device)?.f_reshape([-1]));
            Tensor::f_cat(&parts.collect::<Result<Vec<_>, _>>()?, 0)?
        }
        None => {
            let count: i64 = packet.iter().map(|entry| entry.3.iter().product::<i64>()).sum();
            Tensor::f_zeros([count], (dtype::to_kind(packet[0].4), device))?
        }
    };
    if flat.numel() > 0 {
        group.broadcast(&flat, root)?.wait(COLLECTIVE_WAIT_MAX)?;
    }
    Ok(flat)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Kind;

    fn entry(fqn: &str, global: &[i64], offsets: &[i64], sizes: &[i64]) -> BoxEntry {
        (fqn.to_owned(), global.to_vec(), offsets.to_vec(), sizes.to_vec(), TensorDType::F32)
    }

    #[test]
    fn boxes_make_up_a_tensor_and_a_hole_is_told() {
        let whole = Tensor::arange(12, (Kind::Float, Device::Cpu)).view([4, 3]);
        let place = Tensor::zeros([4, 3], (Kind::Float, Device::Cpu));
        let rows = [
            entry("w", &[4, 3], &[1, 0], &[3, 3]),
            entry("b", &[2], &[0], &[2]),
            entry("w", &[4, 3], &[0, 0], &[1, 3]),
        ];
        let flat =
            Tensor::cat(&[whole.narrow(0, 1, 3).reshape([-1]), Tensor::from_slice(&[5f32, 6.0]), whole.get(0)], 0);
        let assembly = || {
            let places = BTreeMap::from([("w".to_owned(), place.shallow_clone())]);
            Assembly { places, device: Device::Cpu, found: BTreeMap::new() }
        };
        let mut all = assembly();
        all.place(&rows, &flat).unwrap();
        let found = all.done().unwrap();
        assert!(found["w"].equal(&whole) && found["w"].data_ptr() == place.data_ptr());
        assert_eq!(Vec::<f32>::try_from(&found["b"]).unwrap(), [5.0, 6.0]);
        let mut some = assembly();
        some.place(&rows[..2], &flat).unwrap();
        let error = some.done().unwrap_err().to_string();
        assert!(error.contains("9 of the 12 elements of w came"), "{error}");
    }

    #[test]
    fn a_packet_has_one_kind_and_a_limit() {
        let large = (PACKET_BYTES_MAX / 4) as i64;
        let mut entries =
            vec![entry("a", &[8], &[0], &[8]), entry("b", &[1], &[0], &[1]), entry("c", &[large], &[0], &[large])];
        assert_eq!(packet(&entries).len(), 2);
        assert_eq!(packet(&entries[2..]).len(), 1);
        entries[2].3 = vec![2 * large];
        assert_eq!(packet(&entries[2..]).len(), 1);
        entries[1].4 = TensorDType::I64;
        assert_eq!(packet(&entries).len(), 1);
    }
}
