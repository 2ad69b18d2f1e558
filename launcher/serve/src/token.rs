//! The secret that clients must send where other hosts can reach the server.

use enn_ui::http_server::BearerSecret;
use std::{
    fs::File,
    io::Read,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

/// Maximum size of the file, bytes.
const FILE_BYTES_MAX: u64 = 4096;
/// Minimum length of the secret, bytes.
const BYTES_MIN: usize = 16;

#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error("cannot read the token {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{} can be read by everybody, expected its owner, and its group at most\n  hint: chmod 600 {}", path.display(), path.display())]
    Open { path: PathBuf },
    #[error("{} holds {found} characters, expected at least {BYTES_MIN} visible ones in one line\n  hint: openssl rand -hex 32 > {}", path.display(), path.display())]
    Short { path: PathBuf, found: usize },
}

/// The secret of a file.
#[derive(Debug, Clone, Copy)]
pub struct Token(BearerSecret);

impl Token {
    /// Reads the secret from a file that other users cannot read.
    ///
    /// # Errors
    /// The cases of [`TokenError`].
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        let failed = |source| TokenError::Read { path: path.to_owned(), source };
        let file = File::open(path).map_err(failed)?;
        if file.metadata().map_err(failed)?.permissions().mode() & 0o004 != 0 {
            return Err(TokenError::Open { path: path.to_owned() });
        }
        let mut text = String::new();
        file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
        let secret = text.trim();
        if secret.len() < BYTES_MIN || !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(TokenError::Short { path: path.to_owned(), found: secret.len() });
        }
        Ok(Self(BearerSecret::of(secret)))
    }

    /// Returns whether a header `Authorization` contains the secret.
    pub(super) fn is_in(&self, header: Option<&[u8]>) -> bool {
        self.0.is_in(header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};

    #[test]
    fn a_token_is_secret_long_and_told_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let read = |text: &str, mode| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            Token::read(&path)
        };
        let token = read("0123456789abcdef\n", 0o600).unwrap();
        assert!(token.is_in(Some(b"Bearer 0123456789abcdef")) && token.is_in(Some(b"bearer  0123456789abcdef ")));
        for other in [&b""[..], b"Bearer ", b"0123456789abcdef", b"Bearer 0123456789abcdeg", b"Basic 0123456789abcdef"]
        {
            assert!(!token.is_in(Some(other)), "{other:?}");
        }
        assert!(!token.is_in(None));
        assert!(read("0123456789abcdef", 0o644).unwrap_err().to_string().contains("chmod 600"));
        assert!(read("short", 0o600).unwrap_err().to_string().contains("5 characters"));
        assert!(read("0123456789 abcdef", 0o600).is_err());
        assert!(Token::read(&dir.path().join("none")).unwrap_err().to_string().contains("cannot read the token"));
    }
}
