//! The supervisor of a run: a pure machine that decides everything about the workers of all nodes.
//!
//! Inputs come in with their time (`on`), and after each batch of them it is decided once (`settle`); effects go out in order. It
//! knows no process, no clock and no file: `node_agent` owns processes, `leader` the run directory, `rendezvous` the membership.
//! What it knows lies in tables (`node_table`, `worker_table`, `round`, `record`); pure functions decide over them (`seating`,
//! `batch_parts`, `budget`, `hang`, `straggler_watch`, `micro_batches`, `exit_classification`, `checkpoint_ledger`); `machine` holds
//! them together, and the other files are its methods by concern. `scripts` has what differs where the workers are any program.
//!
//! ```text
//! TakingOver ──lock──► Halting        Gathering ──all here──► Loading ──checkpoint found──► Seating
//!     └──no lock──► Closing                                    ▲  └─ set aside, none whole, stop ─► Seating, Closing
//!                                                              │ nobody keeps the state
//! Seating ──devices free, nodes here──► Starting ──all ready──► Running ──a reason to regroup──► Regrouping
//!    ▲ pause, stop: as from Deciding        │ stop with survivors │ ▲──────────────stop───────────┘ │
//!    │                                      ▼ failure, memory     ▼                                 ▼ late
//!    │                                    Halting ◄───────────────┴─────────────────────────────────┘
//!    │                                      │ all stand or have settled; the late are killed
//!    └──────────── go on ◄── Deciding ◄─────┘◄── all stand (Starting, Running, Regrouping, Saving)
//!                            │   │  │  └─ pause ─► Paused ── continue, stop, drain ─► Seating, Loading, Saving, HandingOff
//!                            │   │  └─ the leader is drained ─► HandingOff ─► Over
//!                            │   └─ stop, or given up, with the whole state ─► Saving ── all have saved ─► Closing
//!                            └─ nothing more to do, or nothing to go on with ─► Closing ── no worker, no commit ─► Over
//! any ── a failure where all start again; a second signal; the grace is over; fenced ─► Stopping ── none but spares lives ─► Deciding, Closing
//! ```
//!
//! **Invariants:** a device is given away only when its last process has settled. Loading is entered only when no worker keeps a
//! whole state. The last holder of a state is ended only when it is fenced, late, failed, or its time is over. A round's end is
//! journaled and charged once. Every phase but Running and Paused has a deadline.

mod batch_parts;
mod budget;
mod checkpoint_ledger;
mod checkpoints;
mod complete_checkpoint;
pub mod effect;
mod ending;
mod exit_classification;
mod group_budget;
mod hang;
pub mod input;
mod kernel_records;
mod limits;
mod machine;
mod membership;
mod micro_batches;
mod node_table;
mod open_step;
mod phase;
mod program_run;
mod programs;
mod record;
mod regrouping;
mod request_handling;
mod requests;
mod round;
mod round_begin;
mod round_end;
mod scripts;
mod seating;
pub mod settings;
mod sick_devices;
mod state_shares;
mod straggler_watch;
mod timeouts;
mod worker_events;
mod worker_messages;
mod worker_table;

pub use complete_checkpoint::CompleteCheckpoint;
pub use group_budget::GroupLimits;
pub use input::MembershipEnd;
pub use machine::Supervisor;
