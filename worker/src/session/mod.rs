//! One worker: it boots, takes its task from the launcher, trains, predicts or writes initial weights, and ends.
//!
//! | files and folders, an import never points up | |
//! |---|---|
//! | `program`, `run`, `worker_loop` | the program, its first and last message, and a training worker from order to order |
//! | `train`, `steps` | a training over several rounds; the steps of a training loop of the user's own |
//! | `round`, `inference`, `init`, `torchrun` | one round; workers that do not train; initial weights; a place among ranks without a launcher |
//! | `boot`, `learner`, `eval`, `recovery` | environment and process group; model and state; evaluation; the state of earlier rounds |
//! | `link`, `memory`, `checkpointing`, `kernels`, `precision`, `dataset`, … | what these are made of |
//!
//! A program that builds its own worker calls [`program()`] from its `main` (or [`run_with`] after a start of its own), or [`train::train`] with a listener of its own
//! ([`Reporter`]) and a world of one ([`enn_comm::Solo`]) when no launcher is wanted. One with a training loop of its own
//! takes its place among the other ranks from [`torchrun::join`] and makes its steps with [`steps::Steps`].
//!
//! **Invariant:** decisions come from reduced numbers (`decide`) and never from the clock, so that every rank takes the same
//! ones and a resumed run takes them again.

pub mod agree;
pub mod boot;
pub mod checkpointing;
mod clock;
pub mod dataset;
pub mod decide;
mod error;
pub mod eval;
pub mod excluded_rows;
pub mod inference;
pub mod init;
pub mod kernels;
pub mod learner;
pub mod link;
pub mod memory;
mod nonfinite_cause;
mod own;
pub mod precision;
mod program;
pub mod progress;
mod recovery;
pub mod report;
pub mod round;
mod run;
pub mod steps;
pub mod torchrun;
pub mod train;
mod worker_loop;

pub use error::SessionError;
pub use inference::{
    predict::{PredictTask, predict},
    serve,
};
pub use kernels::KernelTask;
pub use own::Own;
pub use program::{end, program};
pub use report::{Recorder, Reporter};
pub use round::task::{Ended, Outcome, RoundTask};
pub use run::{run, run_with};
pub use train::{TrainTask, Training, train};
