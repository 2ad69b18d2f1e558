//! Random numbers that are a function of a counter.

pub mod dropout;
pub mod philox;
