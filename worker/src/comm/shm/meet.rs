//! How the ranks come together: rank 0 makes the segment and says in the store where it is, every rank says whether it
//! could map it, and all read all answers. One "no" and nobody uses the segment: the ranks never disagree on the way they
//! talk.

use super::{
    layout::{Layout, RANKS_MAX},
    mmap::{Holder, Segment},
    sys,
};
use crate::comm::{CommError, c10d::store::Store};
use std::{fs::File, io};

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
        let told = store.get(SEGMENT)?;
        (find(&layout, &String::from_utf8_lossy(&told)), None)
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

fn make(layout: &Layout) -> io::Result<(Segment, File, Holder)> {
    if layout.ranks > RANKS_MAX as usize {
        return Err(io::Error::other(format!("{} ranks are more than {RANKS_MAX}", layout.ranks)));
    }
    Segment::create(layout.bytes())
}

fn find(layout: &Layout, told: &str) -> io::Result<Segment> {
    let numbers: Vec<i64> = told.split(' ').map_while(|word| word.parse().ok()).collect();
    let absent = |_| io::Error::new(io::ErrorKind::NotFound, "rank 0 made no segment");
    Segment::open(layout.bytes(), Holder::try_from(numbers).map_err(absent)?)
}
