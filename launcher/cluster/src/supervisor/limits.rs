//! Longest waits of the supervisor.

use std::time::Duration;

/// A worker that was started has at least so long to connect, also where hangs are found sooner.
pub(super) const CONNECT_WAIT_MIN: Duration = Duration::from_secs(30);
/// Longest time for a worker to leave a round that is over. One that does not is killed.
pub(super) const HALT_WAIT_MAX: Duration = Duration::from_secs(10);
/// Time between SIGTERM and SIGKILL for a worker of which nothing is needed any more.
pub(super) const END_GRACE: Duration = Duration::from_millis(500);
/// Longest wait for a process to end after SIGKILL and for its node to say so; nodes give up after 10 s themselves.
pub(super) const KILLED_WAIT_MAX: Duration = Duration::from_secs(25);
/// Longest wait for the checkpoints of the run to be looked at, behind the commits under way.
pub(super) const FIND_WAIT_MAX: Duration = Duration::from_secs(900);
/// Longest wait for checkpoints under way when training has ended by itself, since the last one came further.
pub(super) const COMMIT_WAIT_MAX: Duration = Duration::from_secs(600);
/// Longest wait for the stacks of the workers of a round that hangs.
pub(super) const STACKS_WAIT_MAX: Duration = Duration::from_secs(5);
/// Longest time in which a node collects them; the rest is for its answer.
pub(super) const STACKS_READ_MAX: Duration = Duration::from_secs(4);
/// Longest wait of a successor for the lock of the run directory.
pub(super) const TAKE_OVER_WAIT_MAX: Duration = Duration::from_secs(15);
/// Longest wait for another node to get the lead.
pub(super) const HAND_OFF_WAIT_MAX: Duration = Duration::from_secs(20);
/// Longest time in which the first step after a failure keeps the next spare waiting.
pub(super) const REFILL_WAIT_MAX: Duration = Duration::from_secs(2);
/// Time between two looks at a phase that waits for others, which have deadlines of their own.
pub(super) const CHECK_PERIOD: Duration = Duration::from_secs(60);
/// Warnings of one worker that are passed on.
pub(super) const WARNINGS_MAX: u32 = 100;
/// Bits of a worker's name that count the workers of one leader; the others say how often the lead has changed.
pub(super) const NAME_BITS: u32 = 20;
