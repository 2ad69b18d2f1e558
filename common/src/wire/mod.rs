//! The language between the broker and its workers: frames over a Unix socket, and one shared page per worker.
//!
//! `message` says what is spoken, `frame` how it becomes bytes (no I/O), `client` is the worker's blocking end; the
//! broker's end is an event loop over the same `frame`. `script` is the language of workers that are any program.

pub mod client;
pub mod command;
pub mod control;
pub mod engine;
pub mod export;
pub mod frame;
pub mod message;
pub mod node;
pub mod node_agent;
pub mod script;
pub mod serve;
