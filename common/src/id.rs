//! Names with a type of their own, so that a rank is never taken for a step.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A worker process, unique among all that an agent ever starts; it keeps this name through every round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WorkerId(pub u32);

/// Global rank of a worker in its round, `0..world_size`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Rank(pub u32);

/// Index of a worker among those of its node, `0..local_world_size`; also the index of its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LocalRank(pub u32);

/// One completed rendezvous: a fixed world. Counted from 0 within a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Round(pub u64);

macro_rules! shown_as_number {
    ($($name:ident)*) => {
        $(impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        })*
    };
}
shown_as_number!(WorkerId Rank LocalRank Round);
