//! The binary `enn-worker`: one process of a run.

fn main() {}
