//! The handshake of the ranks of one host: whether each can take part, its GPU's PCI address, and memory that all of them map.
//!
//! Messages go through a CPU group that the ranks have formed before.

use super::{
    mmap::TurnWords,
    region::LinkRegion,
    safe::{CopyEngine, SCRATCH_BYTES},
    unix::{Address, DescriptorSocket},
    work::LinkMember,
};
use crate::{
    CommError, ProcessGroup,
    abort::AbortSignal,
    shm::mmap::{Holder, SharedSegment},
    wait_time::WaitTime,
};
use enn_core::backend::link::{CopyStream, Gpu, LinkError, Memory};
use std::{
    fs::File,
    ops::Range,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
    time::Duration,
};
use tch::Tensor;

/// Words of a rank's introduction: whether it can take part, its GPU's PCI address, its socket address, and for rank 0 the holder of the
/// segment.
const INTRODUCTION: usize = 10;
/// Position of the holder in an introduction.
const HOLDER: Range<usize> = 6..10;
/// Words of eight bytes for the reason of a rank that does not take part.
const REASON_WORDS: usize = 24;

/// The other ranks, with which memory is shared.
pub(super) struct PeerTable {
    gpu: Gpu,
    post: DescriptorSocket,
    addresses: Vec<Address>,
    timeout: Duration,
}

/// Introduces this rank to the others and opens shared memory. All ranks agree on success or on the reason against it. An abort of
/// `line` ends the device's waits.
pub(super) fn handshake(
    host: &dyn ProcessGroup,
    device: usize,
    timeout: Duration,
    waited: &Arc<WaitTime>,
    line: &AbortSignal,
) -> Result<Result<(PeerTable, CopyEngine), String>, CommError> {
    let rank = host.rank();
    let size = host.size();
    let mut segment: Option<(SharedSegment, File)> = None;
    let mut card = [0; INTRODUCTION];
    let mut introduce = || {
        let gpu = Gpu::open(device).map_err(|error| error.to_string())?;
        let post = DescriptorSocket::open().map_err(|error| format!("a socket for descriptors: {error}"))?;
        card[1..4].copy_from_slice(&gpu.bus().map_err(|error| error.to_string())?);
        card[4..6].copy_from_slice(&post.address.map(u64::cast_signed));
        if rank == 0 {
            let (made, file, holder) =
                SharedSegment::create(TurnWords::bytes(size)).map_err(|error| error.to_string())?;
            card[HOLDER].copy_from_slice(&holder);
            segment = Some((made, file));
        }
        card[0] = 1;
        Ok::<_, String>((gpu, post))
    };
    let introduced = introduce();
    let cards = exchange(host, timeout, &card)?;
    let (segment, _open_until_all_have_it) = segment.unzip();
    let mine = introduced.and_then(|(gpu, post)| {
        let member = join(gpu, segment, rank, size, &cards, waited)?;
        let addresses = cards.iter().map(|card| [card[4], card[5]].map(i64::cast_unsigned)).collect();
        Ok((PeerTable { gpu, post, addresses, timeout }, member))
    });
    let (table, member) = match agree(host, timeout, mine)? {
        Ok(met) => met,
        Err(reason) => return Ok(Err(reason)),
    };
    line.tie(&member.turns);
    let scratch = table.region(host, SCRATCH_BYTES)?;
    Ok(scratch.map(|scratch| (table, CopyEngine::new(member, scratch))))
}

fn join(
    gpu: Gpu,
    segment: Option<SharedSegment>,
    rank: u32,
    size: u32,
    cards: &[Vec<i64>],
    waited: &Arc<WaitTime>,
) -> Result<LinkMember, String> {
    if let Some(other) = cards.iter().position(|card| card[0] == 0) {
        return Err(format!("rank {other} cannot take part"));
    }
    for card in cards.iter().enumerate().filter(|(other, _)| *other != rank as usize).map(|(_, card)| card) {
        gpu.reaches([card[1], card[2], card[3]]).map_err(|error| error.to_string())?;
    }
    let segment = match segment {
        Some(made) => made,
        None => {
            let holder = Holder::try_from(&cards[0][HOLDER]).unwrap_or_default();
            let opened = SharedSegment::open(TurnWords::bytes(size), holder);
            opened.map_err(|error| format!("the segment of words: {error}"))?
        }
    };
    let turns = TurnWords::new(gpu, segment, rank, size).map_err(|error| error.to_string())?;
    let stream = CopyStream::new(gpu).map_err(|error| error.to_string())?;
    Ok(LinkMember { stream, turns: Arc::new(turns), waited: Arc::clone(waited), rank, size })
}

impl PeerTable {
    /// Allocates an array of `array` bytes on every rank and maps those of the others. Fails on all ranks if it fails on one.
    pub(super) fn region(
        &self,
        host: &dyn ProcessGroup,
        array: usize,
    ) -> Result<Result<LinkRegion, String>, CommError> {
        let rank = host.rank() as usize;
        let bytes = LinkRegion::bytes(array, host.size() as usize);
        let make = || {
            let made = Arc::new(Memory::new(self.gpu, bytes)?);
            let descriptor = made.share()?;
            Ok((made, descriptor))
        };
        let made = make().map_err(|error: LinkError| error.to_string());
        let own: Option<BorrowedFd<'_>> = made.as_ref().ok().map(|(_, descriptor): &(_, OwnedFd)| descriptor.as_fd());
        let passed = self.post.pass(rank, &self.addresses, own);
        let mine = passed.map_err(|error| format!("descriptors: {error}")).and_then(|taken| {
            let (made, _) = made.as_ref().map_err(Clone::clone)?;
            if let Some(other) = taken.iter().enumerate().position(|(other, fd)| fd.is_none() && other != rank) {
                return Err(format!("rank {other} has no memory"));
            }
            LinkRegion::open(self.gpu, Arc::clone(made), array, &taken).map_err(|error| error.to_string())
        });
        agree(host, self.timeout, mine)
    }
}

/// Exchanges words among all ranks. Returns the words of every rank.
fn exchange(host: &dyn ProcessGroup, timeout: Duration, own: &[i64]) -> Result<Vec<Vec<i64>>, CommError> {
    let size = host.size() as usize;
    let count = own.len();
    let mut words = vec![0; size * count];
    words[host.rank() as usize * count..][..count].copy_from_slice(own);
    let words = Tensor::from_slice(&words);
    host.all_reduce_sum(&words)?.wait(timeout)?;
    let undefined = |_| CommError::Tensor { operation: "all_reduce", found: "one without numbers" };
    Ok(Vec::<i64>::try_from(words).map_err(undefined)?.chunks(count).map(<[i64]>::to_vec).collect())
}

/// Returns `mine` if all ranks succeeded, else the reason of one that failed, which is the same on every rank. A rank that failed only
/// because another did gives an empty reason.
pub(super) fn agree<T>(
    host: &dyn ProcessGroup,
    timeout: Duration,
    mine: Result<T, String>,
) -> Result<Result<T, String>, CommError> {
    let mut words = [0; 1 + REASON_WORDS];
    let reason = mine.as_ref().err().map_or("", String::as_str);
    for (word, bytes) in words[1..].iter_mut().zip(reason.as_bytes().chunks(8)) {
        let mut of = [0; 8];
        of[..bytes.len()].copy_from_slice(bytes);
        *word = i64::from_le_bytes(of);
    }
    words[0] = i64::from(mine.is_ok());
    let answers = exchange(host, timeout, &words)?;
    let mut failed = answers.iter().enumerate().filter(|(_, words)| words[0] == 0).peekable();
    let first = failed.peek().copied();
    let Some((rank, words)) = failed.find(|(_, words)| words[1] != 0).or(first) else {
        return Ok(mine);
    };
    let bytes: Vec<u8> = words[1..].iter().flat_map(|word| word.to_le_bytes()).take_while(|byte| *byte != 0).collect();
    Ok(Err(format!("rank {rank}: {}", String::from_utf8_lossy(&bytes))))
}
