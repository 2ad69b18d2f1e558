//! `enn top --web`: the same as on the terminal, as a page that this process serves on the loopback address.
//!
//! `live` folds the events, `picture` says what a page shows, both pure; `handler` answers requests, `show` follows the
//! run, and `listener` takes the port. **Invariant:** data are given only to clients that bring the secret; a client that
//! asks often, or never again, costs a bounded amount of memory.

mod address;
mod curves;
mod handler;
mod listener;
mod live;
mod marks;
mod picture;
mod positions;
mod show;

pub use show::{WebOptions, WebPage};
