//! The language between the broker and its workers: frames over a Unix socket, and one shared page per worker.

pub mod control;
pub mod message;
