//! `enn top`: a run on the whole screen, live or after its end.
//!
//! `state` takes keys and `view` draws, both pure; `sample` reads the load of processes and GPUs, `tail` the logs, and
//! `screen` owns the terminal and the loop; `web` serves the same as a page. **Invariant:** nothing here touches the run; it only looks.

mod event_log;
mod panels;
mod rows;
mod sample;
mod scene;
mod screen;
mod state;
mod tail;
mod view;
mod web;

pub use screen::{TopOptions, run};
pub use web::{WebOptions, WebPage};
