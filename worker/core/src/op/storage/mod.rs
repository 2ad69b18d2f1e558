//! Memory of arrays that is there only while a step uses them.

pub mod memory;
