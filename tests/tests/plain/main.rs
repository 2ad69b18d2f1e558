//! What needs nothing but `enn`, which `make build` makes, the programs that stand in for workers, a C compiler, and a Python for what tests
//! forked scripts: agents, launches, crashes, files of released versions, and in `tidy` the rules that hold for the whole workspace.

mod agent;
mod command_line;
mod control;
mod crash;
mod followers;
mod frozen;
mod known_faults;
mod measured;
mod new;
mod other_release;
mod preload;
mod reform;
mod replace;
mod run;
mod runtime;
mod scripts;
mod second_tries;
mod sick_devices;
mod tidy;
mod torchrun;
mod warm;
mod web;

/// The agent, and the workers that do as their script says.
const PROGRAMS: enn_tests::agent::Programs =
    (env!("CARGO_BIN_EXE_agent_under_test"), env!("CARGO_BIN_EXE_fake_worker"));
