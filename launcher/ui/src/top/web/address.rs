//! The page's secret, its address, and what a person types on another machine to reach it.

use crate::http_server::BearerSecret;
use std::{
    fs::File,
    io::{self, Read},
};

const SECRET_BYTES: usize = 24;

/// Makes a secret that nobody can guess, hex.
pub(super) fn new_secret() -> io::Result<String> {
    let mut random = [0; SECRET_BYTES];
    File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut random))?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The address with the secret, which the page removes from the address bar once it has loaded.
pub(super) fn url(port: u16, secret: &str) -> String {
    format!("http://127.0.0.1:{port}/?token={secret}")
}

pub(super) fn checked(secret: &str) -> BearerSecret {
    BearerSecret::of(secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_differ() {
        let [first, second] = [new_secret().unwrap(), new_secret().unwrap()];
        assert!(first.len() == 2 * SECRET_BYTES && first != second);
    }
}
