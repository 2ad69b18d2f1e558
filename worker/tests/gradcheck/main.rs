//! Every operation of the table against libtorch's own autograd and against finite differences, and the properties of
//! the tape: fan-out, tied and unused parameters, saved tensors, the program's hash, reproducible dropout.

mod operands;
mod oracle;
mod retention;
mod table;
mod tape;
