//! The handshake of the ranks: rank 0 makes the segment and publishes it in the store, every rank answers whether it
//! could map it, and all read all answers. After one "no" no rank uses the segment, so the ranks always agree on the
//! backend.

use super::{
    layout::{RANKS_MAX, SegmentLayout},
    mmap::{Holder, SharedSegment},
    sys,
};
use crate::{CommError, c10d::store::Store};
use std::{fs::File, io};

const SEGMENT: &str = "shm/segment";

/// The mapped segment and the ranks' process ids, or the reason of the first rank that answered no.
pub(super) enum Handshake {
    Together(SharedSegment, Vec<u32>),
    Apart { rank: u32, reason: String },
}

/// Runs the handshake. Blocks until the store's limit.
pub(super) fn handshake(store: &Store, rank: u32, size: u32) -> Result<Handshake, CommError> {
    let layout = SegmentLayout::of(size);
    let answer = |rank: u32| format!("shm/rank-{rank}");
    // Rank 0 keeps the file open until everybody has answered.
    let (mapped, _file) = if rank == 0 {
        match make(&layout) {
            Ok((segment, file, holder)) => {
                store.set(SEGMENT, holder.map(|number| number.to_string()).join(" ").as_bytes())?;
                (Ok(segment), Some(file))
            }
            Err(error) => {
                store.set(SEGMENT, b"none")?;
                (Err(error), None)
            }
        }
    } else {
        let holder = store.get(SEGMENT)?;
        (find(&layout, &String::from_utf8_lossy(&holder)), None)
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
        let reply = store.get(&answer(rank))?;
        let reply = String::from_utf8_lossy(&reply);
        match reply.split_once(' ') {
            Some(("ok", pid)) => pids.push(pid.parse().unwrap_or_default()),
            _ if refused.is_none() => refused = Some((rank, reply.trim_start_matches("no ").to_owned())),
            _ => {}
        }
    }
    Ok(match (refused, segment) {
        (None, Some(segment)) => Handshake::Together(segment, pids),
        (Some((rank, reason)), _) => Handshake::Apart { rank, reason },
        (None, None) => Handshake::Apart { rank, reason: "this rank mapped nothing".to_owned() },
    })
}

fn make(layout: &SegmentLayout) -> io::Result<(SharedSegment, File, Holder)> {
    if layout.ranks > RANKS_MAX as usize {
        return Err(io::Error::other(format!("{} ranks are more than {RANKS_MAX}", layout.ranks)));
    }
    SharedSegment::create(layout.bytes())
}

fn find(layout: &SegmentLayout, holder: &str) -> io::Result<SharedSegment> {
    let numbers: Vec<i64> = holder.split(' ').map_while(|word| word.parse().ok()).collect();
    let absent = |_| io::Error::new(io::ErrorKind::NotFound, "rank 0 made no segment");
    SharedSegment::open(layout.bytes(), Holder::try_from(numbers).map_err(absent)?)
}
