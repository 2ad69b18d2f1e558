//! The agent: starts the workers of a run, keeps them alive, commits their checkpoints, and ends them all.
//!
//! ```text
//! spec ─► run ─► seats ─► broker expects ─► spawn ─► wait for events ─► the round is over ─► verdict (policy) ─► seats ─► …
//!                                                    ▲  signal · exit · word · commit · deadline
//! ```
//! One owner loop (`dispatcher`) waits on everything at once (`wait`) and hears the workers (`reports`). What it knows is in the
//! `pool` of worker processes, which live through many rounds, and in the `round`. How a round ends and the next one begins is
//! in `turn`, why it ends without a failure in `wishes`; pure functions decide (`policy`, `seats`, `hang`, `straggler`, `memory`,
//! `cause`). People ask for things at the door (`control`), which `ask` is the other side of; `callers` are who waits there. `child` is one
//! process, `committer` one thread for slow disks, `unix` all that is unsafe.
//!
//! On several nodes one agent is the `head`: a worker process is a `body`, here (`child`) or `far`, and what is wanted of it goes to
//! the broker of its one of the `nodes`. The others are a `hand` each. When the head is gone one of them is its `heir`.
//!
//! **Invariant:** nothing is polled, nothing outlives the agent, and the agent decides nothing about data or models.

mod ask;
mod body;
mod callers;
mod cause;
mod child;
mod committer;
mod control;
mod dispatcher;
mod durable;
mod env;
mod error;
mod far;
mod hand;
mod hang;
mod head;
mod heir;
mod kernels;
mod letter;
mod memory;
mod nodes;
mod policy;
mod pool;
mod reports;
mod round;
mod seats;
mod shards;
mod spec;
mod staged;
mod straggler;
mod turn;
mod unix;
mod wait;
mod wishes;
mod worker;

pub use ask::{AskError, ask};
pub use committer::{Checkpoints, Committed};
pub use dispatcher::run;
pub use dispatcher::{Headship, guard, lead};
pub use durable::{Durable, Known, Then, rule};
pub use enn_process::WorkerSpec;
pub use error::AgentError;
pub use hand::{Heritage, serve};
pub use heir::inherit;
pub use policy::{Decision, Failed, History, Limits, Reason, after_failure};
pub use shards::ShardSet;
pub use spec::{AgentSpec, Chunk, Ended, Job, Outcome, Signal};
pub use spec::{HandEnd, HandSpec};
