//! How the ranks come together: rank 0 makes the segment and says in the store where it is, every rank says whether it
//! could map it, and all read all answers. One "no" and nobody uses the segment: the ranks never disagree on the way they
//! talk.

use super::{
    layout::{Layout, RANKS_MAX},
    mmap::Segment,
    sys,
};
use crate::comm::{CommError, c10d::store::Store};
use std::{
    fs::File,
    io::{self, Read},
    os::fd::AsRawFd,
};

const SEGMENT: &str = "shm/segment";

/// The mapped segment and the ranks' processes, or the sentence of the first rank that said no.
pub(super) enum Met {
    Together(Segment, Vec<u32>),
    Apart { rank: u32, reason: String },
}

/// Meets the other ranks. Blocks as long as the store lets it.
pub(super) fn meet(store: &Store, rank: u32, size: u32) -> Result<Met, CommError> {
    let layout = Layout::of(size);
    let answer = |rank: u32| format!("shm/rank-{rank}");
    // Rank 0 keeps the file open until everybody has answered.
    let (mapped, _file) = if rank == 0 {
        match make(&layout) {
            Ok((segment, file, place)) => {
                store.set(SEGMENT, place.as_bytes())?;
                (Ok(segment), Some(file))
            }
            Err(error) => {
                store.set(SEGMENT, b"none")?;
                (Err(error), None)
            }
        }
    } else {
        let place = store.get(SEGMENT)?;
        (find(&layout, &String::from_utf8_lossy(&place)), None)
    };
    let own = std::process::id();
    let usable = mapped.and_then(|segment| {
        sys::pidfd(own).map_err(|errno| io::Error::other(format!("pidfd_open: {errno}")))?;
        Ok(segment)
    });
    let (segment, mine) = match usable {
        Ok(segment) => (Some(segment), format!("ok {own}")),
        Err(error) => (None, format!("no {error}")),
    };
    store.set(&answer(rank), mine.as_bytes())?;
    let mut pids = Vec::new();
    let mut refused = None;
    for rank in 0..size {
        let said = store.get(&answer(rank))?;
        let said = String::from_utf8_lossy(&said);
        match said.split_once(' ') {
            Some(("ok", pid)) => pids.push(pid.parse().unwrap_or_default()),
            _ if refused.is_none() => refused = Some((rank, said.trim_start_matches("no ").to_owned())),
            _ => {}
        }
    }
    Ok(match (refused, segment) {
        (None, Some(segment)) => Met::Together(segment, pids),
        (Some((rank, reason)), _) => Met::Apart { rank, reason },
        (None, None) => Met::Apart { rank, reason: "this rank mapped nothing".to_owned() },
    })
}

fn make(layout: &Layout) -> io::Result<(Segment, File, String)> {
    if layout.ranks > RANKS_MAX as usize {
        return Err(io::Error::other(format!("{} ranks are more than {RANKS_MAX}", layout.ranks)));
    }
    let nonce = nonce()?;
    let (segment, file) = Segment::create(layout.bytes(), nonce)?;
    let place = format!("{} {} {} {}", std::process::id(), file.as_raw_fd(), nonce[0], nonce[1]);
    Ok((segment, file, place))
}

fn find(layout: &Layout, place: &str) -> io::Result<Segment> {
    let absent = || io::Error::new(io::ErrorKind::NotFound, "rank 0 made no segment");
    let mut words = place.split(' ');
    let mut next = || words.next().and_then(|word| word.parse::<u64>().ok()).ok_or_else(absent);
    let (pid, fd, nonce) = (next()?, next()?, [next()?, next()?]);
    let pid = u32::try_from(pid).map_err(|_| absent())?;
    let fd = i32::try_from(fd).map_err(|_| absent())?;
    Segment::open(layout.bytes(), (pid, fd), nonce)
}

/// 128 random bits.
pub(in crate::comm) fn nonce() -> io::Result<[u64; 2]> {
    let mut bytes = [0u8; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let bits = u128::from_le_bytes(bytes);
    Ok([bits as u64, (bits >> 64) as u64])
}
