//! Workers that do not train: predictions of staged rows, answers to a server's questions, exported graphs and artifacts.
//!
//! Imports everything up to `learner`; knows neither round nor training.

pub mod engine;
pub(crate) mod export;
mod guard;
pub mod predict;
pub mod serve;
mod stream_state;
