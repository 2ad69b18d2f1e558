//! The ProcessBroker of one node: where the workers meet. [`store`] is the key-value store of c10d's clients.

pub mod store;
