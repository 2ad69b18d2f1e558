//! Every operation of the table against libtorch's own autograd and against finite differences, and the properties of
//! the tape: fan-out, tied and unused parameters, saved tensors, the program's hash, reproducible dropout.

#![expect(clippy::unwrap_used, reason = "a test that cannot build its operands has failed")]
#![expect(clippy::print_stderr, reason = "a test says what it skips")]

mod aten;
mod attention;
mod calls;
mod export;
mod flops;
mod late;
mod mixers;
mod operands;
mod oracle;
mod ours;
mod plan;
mod precision;
mod retention;
mod speed;
mod table;
mod tape;
