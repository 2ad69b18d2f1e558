//! The secret that the nodes of a run share: from a file that only its owner may read, or from ENN_TOKEN. It is never shown and
//! never on a command line.

use super::RunError;
use crate::facts::Facts;
use enn_cluster::rendezvous::{Token, TokenSource};
use enn_common::fs::atomic;
use std::{
    fmt::Write as _,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::Path,
};

/// Random bytes of a generated token; written as twice as many hexadecimal digits.
const MADE_BYTES: usize = 32;
/// Least length of a token in bytes.
const LEAST_BYTES: usize = 8;
/// Limit on the bytes read of a token's file.
const FILE_BYTES_MAX: u64 = 4096;
/// Permission bits of other users.
const OTHERS: u32 = 0o077;

/// Returns the token: of `--token-file`, else ENN_TOKEN, else the user's own file, generated when it does not exist.
pub(super) fn token(file: Option<&Path>, facts: &Facts) -> Result<Token, RunError> {
    if let Some(file) = file {
        return read(&facts.cwd.join(file));
    }
    if let Some(secret) = &facts.token {
        let token = Token { secret: secret.bytes().to_vec(), from: TokenSource::Variable };
        return long_enough(token, "ENN_TOKEN".to_owned());
    }
    let own = facts.config_dir.join("token");
    if !own.exists() {
        make(&own)?;
    }
    read(&own)
}

fn read(path: &Path) -> Result<Token, RunError> {
    let failed = |what| move |source| RunError::TokenFile { what, path: path.to_owned(), source };
    let file = File::open(path).map_err(failed("open"))?;
    let mode = file.metadata().map_err(failed("look at"))?.permissions().mode();
    if mode & OTHERS != 0 {
        return Err(RunError::TokenOpen { path: path.to_owned(), mode: mode & 0o777 });
    }
    let mut text = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut text).map_err(failed("read"))?;
    let secret = text.trim_ascii().to_vec();
    long_enough(Token { secret, from: TokenSource::File(path.to_owned()) }, path.display().to_string())
}

fn long_enough(token: Token, place: String) -> Result<Token, RunError> {
    let found = token.secret.len();
    if found < LEAST_BYTES { Err(RunError::TokenShort { place, found, least: LEAST_BYTES }) } else { Ok(token) }
}

/// Writes the file whole or not at all, and never over one that another enn wrote meanwhile.
fn make(path: &Path) -> Result<(), RunError> {
    let failed = |what| move |source| RunError::TokenFile { what, path: path.to_owned(), source };
    let folder = atomic::parent(path);
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed("make the folder of"))?;
    let mut random = [0; MADE_BYTES];
    File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut random)).map_err(failed("make"))?;
    let mut text = random.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    });
    text.push('\n');
    let temporary = atomic::temporary(path);
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&temporary)
        .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()));
    let placed = written.and_then(|()| fs::hard_link(&temporary, path));
    let _gone = fs::remove_file(&temporary);
    match placed {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(failed("make")(error)),
        _ => Ok(()),
    }
}
