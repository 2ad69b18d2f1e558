//! The store through which ranks find each other: libtorch's TCPStore client, connected to the broker's store.

use super::result::{RawStore, ShimFault};
use crate::{CommError, Forming};
use std::{ffi::CString, time::Duration};

/// Where the store is and under which prefix this round's keys live.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreAddr {
    /// Host name or address, IPv4 or IPv6.
    pub host: String,
    pub port: u16,
    /// Put before every key with a slash between, so that rounds never see each other's keys. Empty for none.
    pub prefix: String,
}

/// A connection to the store. Each operation blocks at most the timeout given to [`Store::connect`].
#[derive(Debug)]
pub struct Store {
    pub(super) raw: RawStore,
    pub(super) addr: StoreAddr,
}

impl Store {
    /// Connects, retrying until `timeout`, which also becomes the limit of every operation.
    pub fn connect(addr: StoreAddr, timeout: Duration) -> Result<Self, CommError> {
        let host = c_string("host", &addr.host)?;
        let prefix = c_string("prefix", &addr.prefix)?;
        match RawStore::connect(&host, addr.port, &prefix, timeout) {
            Ok(raw) => Ok(Self { raw, addr }),
            Err(ShimFault { message, .. }) => {
                Err(CommError::Connect { host: addr.host, port: addr.port, timeout, message })
            }
        }
    }

    /// Whether it is a connection to this host and port.
    pub fn is_at(&self, host: &str, port: u16) -> bool {
        self.addr.host == host && self.addr.port == port
    }

    /// Returns a client on the same connection for another round: `prefix` is put before every key, after this store's own prefix.
    ///
    /// A new connection for every round would cost more than forming a group: libtorch resolves the store's host name
    /// and waits for the answer, for seconds if there is none.
    pub fn round(&self, prefix: &str) -> Result<Self, CommError> {
        let name = c_string("prefix", prefix)?;
        let raw = self.raw.prefixed(&name).map_err(|fault| fault.at("prefix", prefix))?;
        let own = &self.addr.prefix;
        let prefix = if own.is_empty() { prefix.to_owned() } else { format!("{own}/{prefix}") };
        Ok(Self { raw, addr: StoreAddr { prefix, ..self.addr.clone() } })
    }

    /// Sets `key` to `value` and wakes all waiters.
    pub fn set(&self, key: &str, value: &[u8]) -> Result<(), CommError> {
        let name = c_string("key", key)?;
        self.raw.set(&name, value).map_err(|fault| fault.at("set", key))
    }

    /// Value of `key`; waits until it exists.
    pub fn get(&self, key: &str) -> Result<Vec<u8>, CommError> {
        let name = c_string("key", key)?;
        self.raw.get(&name).map_err(|fault| fault.at("get", key))
    }

    /// Sets `key` to `wanted` if its value is `expected` (empty: if it is absent); returns the value afterwards.
    pub fn compare_set(&self, key: &str, expected: &[u8], wanted: &[u8]) -> Result<Vec<u8>, CommError> {
        let name = c_string("key", key)?;
        self.raw.compare_set(&name, expected, wanted).map_err(|fault| fault.at("compare_set", key))
    }

    /// Appends to the value of `key`, which begins empty.
    pub fn append(&self, key: &str, value: &[u8]) -> Result<(), CommError> {
        let name = c_string("key", key)?;
        self.raw.append(&name, value).map_err(|fault| fault.at("append", key))
    }

    /// Adds to the counter `key`, which begins at 0; returns the sum.
    pub fn add(&self, key: &str, amount: i64) -> Result<i64, CommError> {
        let name = c_string("key", key)?;
        self.raw.add(&name, amount).map_err(|fault| fault.at("add", key))
    }

    /// Returns whether `key` exists.
    pub fn check(&self, key: &str) -> Result<bool, CommError> {
        let name = c_string("key", key)?;
        self.raw.check(&name).map_err(|fault| fault.at("check", key))
    }

    /// Waits until `key` exists, at most `timeout`.
    pub fn wait(&self, key: &str, timeout: Duration) -> Result<(), CommError> {
        let name = c_string("key", key)?;
        self.raw.wait(&name, timeout).map_err(|fault| fault.at("wait", key))
    }

    /// Removes `key`; whether it was there.
    pub fn delete(&self, key: &str) -> Result<bool, CommError> {
        let name = c_string("key", key)?;
        self.raw.delete(&name).map_err(|fault| fault.at("delete", key))
    }

    /// Number of keys in the whole store, those of other prefixes included.
    pub fn num_keys(&self) -> Result<i64, CommError> {
        self.raw.num_keys().map_err(|fault| fault.at("num_keys", ""))
    }
}

impl Store {
    /// Returns a client for forming one group: its waits end when `forming` is aborted or out of time.
    pub(crate) fn guarded(&self, forming: &Forming) -> Result<Self, CommError> {
        let raw = self.raw.guarded(&forming.line().raw, forming.left()).map_err(|fault| fault.at("guard", ""))?;
        Ok(Self { raw, addr: self.addr.clone() })
    }
}

impl ShimFault {
    fn at(self, operation: &'static str, key: &str) -> CommError {
        CommError::Store { operation, key: key.to_owned(), message: self.message }
    }
}

pub(super) fn c_string(what: &'static str, text: &str) -> Result<CString, CommError> {
    CString::new(text).map_err(|_| CommError::Nul { what, text: text.to_owned() })
}
