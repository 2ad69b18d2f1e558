//! The store through which ranks find each other: libtorch's TCPStore client, connected to the broker's store.

use super::result::{ShimFault, StoreClient, c_string};
use crate::{CommError, Forming};
use std::{ops::Deref, time::Duration};

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
    pub(super) raw: StoreClient,
    pub(super) addr: StoreAddr,
}

impl Store {
    /// Connects, retrying until `timeout`, which also becomes the limit of every operation.
    pub fn connect(addr: StoreAddr, timeout: Duration) -> Result<Self, CommError> {
        let host = c_string("host", &addr.host)?;
        let prefix = c_string("prefix", &addr.prefix)?;
        match StoreClient::connect(&host, addr.port, &prefix, timeout) {
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

    /// Returns a client for forming one group: its waits end when `forming` is aborted or out of time.
    pub(crate) fn guarded(&self, forming: &Forming) -> Result<Self, CommError> {
        let raw = self.raw.guarded(&forming.line.raw, forming.left()).map_err(|fault| fault.at("guard", ""))?;
        Ok(Self { raw, addr: self.addr.clone() })
    }
}

impl Deref for Store {
    type Target = StoreClient;

    fn deref(&self) -> &StoreClient {
        &self.raw
    }
}
