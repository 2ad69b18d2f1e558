//! One test binary that needs no libtorch: what holds for the whole workspace.

mod measured;
mod second_tries;
mod tidy;
