//! Host and port of a rendezvous, parsed as torchrun parses them. Pure.

use super::values::Expected;
use std::net::IpAddr;

/// Returns host and port; the port is `default` when it is left out. IPv6 addresses may be in brackets, which are removed.
pub(super) fn parse(text: &str, default: Option<u16>) -> Result<(String, u16), Expected> {
    let expected = Expected {
        what: "HOST:PORT, PORT from 0 to 65535",
        hint: "e.g. node1:29500, 10.0.0.1:29500 or [fd00::1]:29500",
    };
    let text = text.trim();
    let bracketed = text.starts_with('[') && text.ends_with(']');
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !bracketed => {
            let digits = (1..=5).contains(&port.len()) && port.bytes().all(|byte| byte.is_ascii_digit());
            let port = if digits { port.parse().ok() } else { None };
            (host, Some(port.ok_or(expected)?))
        }
        _ => (text, default),
    };
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let fits = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | ':' | '-');
    if host.is_empty() || !host.chars().all(fits) {
        return Err(expected);
    }
    Ok((host.to_owned(), port.ok_or(expected)?))
}

/// Returns the loopback address that a host denotes without a lookup.
pub(super) fn loopback(host: &str) -> Option<IpAddr> {
    match host {
        "localhost" => Some(IpAddr::from([127, 0, 0, 1])),
        host => host.parse().ok().filter(IpAddr::is_loopback),
    }
}
