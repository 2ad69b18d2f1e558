//! Proof that all ranks hold the same thing before they compute together: a difference becomes an error that shows both
//! sides, instead of a hang or a silently wrong sum.

use super::SessionError;
use crate::collective::{COLLECTIVE_WAIT_MAX, gather};
use enn_comm::ProcessGroup;
use std::collections::BTreeMap;
use tch::{Device, Kind, Tensor};

/// Compares `mine` with every other rank's. One collective.
///
/// # Errors
/// [`SessionError::Disagree`] with each rank's digest when any differs; the collective's own error.
pub fn agree(group: &dyn ProcessGroup, device: Device, what: &'static str, mine: &[u8]) -> Result<(), SessionError> {
    if group.size() == 1 {
        return Ok(());
    }
    compare(what, &gather(group, device, short_digest(mine))?)
}

/// Every rank's bytes, by rank. One collective when nobody has any, else one more for each rank that has.
pub(super) fn exchange(group: &dyn ProcessGroup, device: Device, mine: &[u8]) -> Result<Vec<Vec<u8>>, SessionError> {
    let lengths = gather(group, device, mine.len() as i64)?;
    let all = (0..).zip(lengths).map(|(rank, length)| {
        if length == 0 {
            return Ok(Vec::new());
        }
        let bytes = match rank == group.rank() {
            true => Tensor::f_from_slice(mine)?,
            false => Tensor::f_zeros([length], (Kind::Uint8, Device::Cpu))?,
        };
        let bytes = bytes.f_to_device(device)?;
        group.broadcast(&bytes, rank)?.wait(COLLECTIVE_WAIT_MAX)?;
        Ok(Vec::<u8>::try_from(bytes.f_to_device(Device::Cpu)?)?)
    });
    all.collect()
}

/// The first 63 bits of blake3: positive, so that a sum with zeros is exact.
pub(super) fn short_digest(bytes: &[u8]) -> i64 {
    let mut head = [0u8; 8];
    head.copy_from_slice(&blake3::hash(bytes).as_bytes()[..8]);
    (u64::from_le_bytes(head) >> 1).cast_signed()
}

/// [`agree`] on digests that are here already, by rank.
pub(super) fn compare(what: &'static str, all: &[i64]) -> Result<(), SessionError> {
    if all.windows(2).all(|pair| pair[0] == pair[1]) {
        return Ok(());
    }
    let mut sides: BTreeMap<i64, Vec<String>> = BTreeMap::new();
    for (rank, digest) in all.iter().enumerate() {
        sides.entry(*digest).or_default().push(rank.to_string());
    }
    let sides = sides
        .iter()
        .map(|(digest, ranks)| format!("{:016x} on rank {}", digest, ranks.join(", ")))
        .collect::<Vec<_>>()
        .join("; ");
    Err(SessionError::Disagree { what, sides })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_names_every_side() {
        assert!(compare("weights", &[5, 5, 5]).is_ok());
        let error = compare("weights", &[5, 7, 5]).unwrap_err().to_string();
        assert!(error.contains("weights") && error.contains("on rank 0, 2") && error.contains("on rank 1"), "{error}");
    }

    #[test]
    fn digests_are_positive_and_differ() {
        for text in ["", "a", "b", "program"] {
            assert!(short_digest(text.as_bytes()) >= 0);
        }
        assert_ne!(short_digest(b"a"), short_digest(b"b"));
    }
}
