//! Checks of who asks: the host that a request names, and the secret that it brings.

use std::net::IpAddr;

const SCHEME: &[u8] = b"bearer ";

/// A secret, of which only the digest is stored and compared, in constant time.
#[derive(Debug, Clone, Copy)]
pub struct BearerSecret(blake3::Hash);

impl BearerSecret {
    pub fn of(secret: &str) -> Self {
        Self(blake3::hash(secret.as_bytes()))
    }

    /// Returns whether a header `Authorization` contains the secret.
    pub fn is_in(&self, header: Option<&[u8]>) -> bool {
        let Some((scheme, secret)) = header.and_then(|header| header.split_at_checked(SCHEME.len())) else {
            return false;
        };
        // The comparison of digests takes constant time.
        scheme.eq_ignore_ascii_case(SCHEME) && blake3::hash(secret.trim_ascii()) == self.0
    }
}

/// Returns whether a header `Host` names a loopback address. A page of another site that resolves its own name to this
/// host sends that name.
pub fn is_loopback(host: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(host) else { return false };
    let name = match text.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => text.rsplit_once(':').map_or(text, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_that_are_this_one() {
        for host in ["localhost", "LOCALHOST:80", "127.0.0.1:8000", "127.1.2.3", "[::1]:80", "[::1]"] {
            assert!(is_loopback(host.as_bytes()), "{host}");
        }
        for host in ["", "example.org", "localhost.example.org:80", "10.0.0.1:80", "[::2]:1", "127.0.0.1.example.org"] {
            assert!(!is_loopback(host.as_bytes()), "{host}");
        }
        assert!(!is_loopback(b"\xff"));
    }
}
