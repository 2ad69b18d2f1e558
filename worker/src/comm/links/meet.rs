//! How the ranks of one host meet: whether each can take part, where its GPU is plugged in, and memory that all of them map.
//!
//! All of it goes by a group of the host's that the ranks have formed before.

use super::{
    mmap::Turns,
    region::Region,
    safe::{Engine, SCRATCH_BYTES},
    unix::{Address, Post},
    work::Member,
};
use crate::backend::link::{Beside, Gpu, LinkError, Memory};
use crate::comm::{
    CommError, ProcessGroup,
    cut::Line,
    shm::mmap::{Holder, Segment},
    waited::Waited,
};
use std::{
    fs::File,
    ops::Range,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
    time::Duration,
};
use tch::Tensor;

/// What each rank says of itself: whether it can, where its GPU is plugged in, its address, and of rank 0 the segment's holder.
const CARD: usize = 10;
/// Where on the card the holder is.
const HOLDER: Range<usize> = 6..10;
/// Of eight bytes each, for the sentence of a rank that does not take part.
const REASON_WORDS: usize = 24;

/// The other ranks, for memory that all of them map.
pub(super) struct Table {
    gpu: Gpu,
    post: Post,
    addresses: Vec<Address>,
    timeout: Duration,
}

/// Meets the others; what each has come to, or why none does: the same answer on every rank. A cut of `line` ends the device's waits.
pub(super) fn meet(
    host: &dyn ProcessGroup,
    device: usize,
    (timeout, waited): (Duration, &Arc<Waited>),
    line: &Line,
) -> Result<Result<(Table, Engine), String>, CommError> {
    let at = (host.rank(), host.size());
    let mut segment: Option<(Segment, File)> = None;
    let mut card = [0; CARD];
    let mut introduce = || {
        let gpu = Gpu::open(device).map_err(|error| error.to_string())?;
        let post = Post::open().map_err(|error| format!("a socket for descriptors: {error}"))?;
        card[1..4].copy_from_slice(&gpu.bus().map_err(|error| error.to_string())?);
        card[4..6].copy_from_slice(&post.address.map(u64::cast_signed));
        if at.0 == 0 {
            let (made, file, holder) = Segment::create(Turns::bytes(at.1)).map_err(|error| error.to_string())?;
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
        let member = join(gpu, segment, (at, &cards), waited)?;
        let addresses = cards.iter().map(|card| [card[4], card[5]].map(i64::cast_unsigned)).collect();
        Ok((Table { gpu, post, addresses, timeout }, member))
    });
    let (table, member) = match agree(host, timeout, mine)? {
        Ok(met) => met,
        Err(reason) => return Ok(Err(reason)),
    };
    line.tie(&member.turns);
    let scratch = table.region(host, SCRATCH_BYTES)?;
    Ok(scratch.map(|scratch| (table, Engine::new(member, scratch))))
}

fn join(
    gpu: Gpu,
    segment: Option<Segment>,
    ((rank, size), cards): ((u32, u32), &[Vec<i64>]),
    waited: &Arc<Waited>,
) -> Result<Member, String> {
    if let Some(other) = cards.iter().position(|card| card[0] == 0) {
        return Err(format!("rank {other} cannot"));
    }
    for card in cards.iter().enumerate().filter(|(other, _)| *other != rank as usize).map(|(_, card)| card) {
        gpu.reaches([card[1], card[2], card[3]]).map_err(|error| error.to_string())?;
    }
    let segment = match segment {
        Some(made) => made,
        None => {
            let holder = Holder::try_from(&cards[0][HOLDER]).unwrap_or_default();
            let opened = Segment::open(Turns::bytes(size), holder);
            opened.map_err(|error| format!("the segment of words: {error}"))?
        }
    };
    let turns = Turns::new(gpu, segment, (rank, size)).map_err(|error| error.to_string())?;
    let beside = Beside::new(gpu).map_err(|error| error.to_string())?;
    Ok(Member { beside, turns: Arc::new(turns), waited: Arc::clone(waited), rank, size })
}

impl Table {
    /// Room for an array of so many bytes at every rank, or why one of them has none.
    pub(super) fn region(&self, host: &dyn ProcessGroup, array: usize) -> Result<Result<Region, String>, CommError> {
        let rank = host.rank() as usize;
        let bytes = Region::bytes(array, host.size() as usize);
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
            Region::open(self.gpu, Arc::clone(made), array, &taken).map_err(|error| error.to_string())
        });
        agree(host, self.timeout, mine)
    }
}

/// Those words of every rank.
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

/// What this rank has come to, if all have come to something, or why not: the same answer on every rank. A rank that failed only because
/// another did gives no reason.
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
    let told = exchange(host, timeout, &words)?;
    let mut failed = told.iter().enumerate().filter(|(_, words)| words[0] == 0).peekable();
    let first = failed.peek().copied();
    let Some((rank, words)) = failed.find(|(_, words)| words[1] != 0).or(first) else {
        return Ok(mine);
    };
    let bytes: Vec<u8> = words[1..].iter().flat_map(|word| word.to_le_bytes()).take_while(|byte| *byte != 0).collect();
    Ok(Err(format!("rank {rank}: {}", String::from_utf8_lossy(&bytes))))
}
