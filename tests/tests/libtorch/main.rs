//! The real worker: what is here needs `enn`, `enn-worker` and the examples' programs, which `make build` makes, and libtorch on the library
//! path, as `make test` sets it.

mod address;
mod artifact;
mod chaos;
mod crash;
mod cv;
mod disk;
mod elastic;
mod engine;
mod export;
mod frozen;
mod gpt;
mod nodes;
mod page_commands;
mod pages;
mod predict;
mod runs;
mod saves;
mod search;
mod serve;
mod strange;
mod submodel;
mod table;
