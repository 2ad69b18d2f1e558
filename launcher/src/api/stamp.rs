//! What artifacts say about their making: the versions of the programs, and the time.

use std::{
    collections::BTreeMap,
    time::{SystemTime, UNIX_EPOCH},
};

/// Returns the versions of the programs that write artifacts.
pub(super) fn versions() -> BTreeMap<String, String> {
    BTreeMap::from([("enn".to_owned(), env!("CARGO_PKG_VERSION").to_owned())])
}

/// Returns the current time in seconds since the Unix epoch.
pub(super) fn wall_time() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
