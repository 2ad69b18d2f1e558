//! Checkpoints from the outside: write, commit, read, damage, crash.

#![expect(clippy::unwrap_used, reason = "a test says what went wrong by failing")]

mod commit;
mod crash;
mod damage;
mod fixture;
