//! Directories that only this user may write to: libraries are loaded from some, and data and answers lie in others.

use super::{FileError, atomic};
use std::{
    fs::{self, DirBuilder, Permissions},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    path::Path,
};

/// Makes a directory that only this user can enter, or checks the one that is there.
///
/// # Errors
/// It is a link, no directory, another user's, or others may write to it; what the system says.
pub fn own_dir(path: &Path) -> Result<(), FileError> {
    make(path)?;
    check(path)
}

/// Says whether a directory can be trusted: it is this user's, no link, and nobody else may write to it.
pub fn check(path: &Path) -> Result<(), FileError> {
    let found = fs::symlink_metadata(path).map_err(FileError::of("look at", path))?;
    let what = if !found.is_dir() {
        "it is a link or no directory"
    } else if found.uid() != user()? {
        "it belongs to another user"
    } else if found.mode() & 0o022 != 0 {
        "other users may write to it"
    } else {
        return Ok(());
    };
    let what = format!(
        "{what}; expected a directory of this user that nobody else may write to\n  hint: set HOME to a directory of yours, or remove \
         this one"
    );
    Err(FileError::of("trust", path)(io::Error::other(what)))
}

/// Makes a directory that only this user can enter. One of this user's that is there is closed to others; another user's is left as it
/// is.
pub fn close_dir(path: &Path) -> Result<(), FileError> {
    atomic::make_dir(atomic::parent(path))?;
    make(path)?;
    let found = fs::metadata(path).map_err(FileError::of("look at", path))?;
    if found.uid() == user()? && found.mode() & 0o077 != 0 {
        let mode = Permissions::from_mode(found.mode() & 0o700);
        fs::set_permissions(path, mode).map_err(FileError::of("close to other users", path))?;
    }
    Ok(())
}

fn make(path: &Path) -> Result<(), FileError> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(FileError::of("make", path)(error)),
        _ => Ok(()),
    }
}

/// The user that this process runs as.
fn user() -> Result<u32, FileError> {
    let own = Path::new("/proc/self");
    Ok(fs::metadata(own).map_err(FileError::of("look at", own))?.uid())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn only_a_directory_of_this_user_is_trusted() {
        let all = tempfile::tempdir().unwrap();
        let dir = all.path().join("enn-0");
        own_dir(&dir).unwrap();
        assert_eq!(mode(&dir), 0o700);
        own_dir(&dir).unwrap();
        for wide in [0o777, 0o720, 0o702] {
            fs::set_permissions(&dir, Permissions::from_mode(wide)).unwrap();
            let error = own_dir(&dir).unwrap_err().to_string();
            assert!(error.contains("other users may write to it") && error.contains("hint: "), "{error}");
        }
        let link = all.path().join("link");
        let file = all.path().join("file");
        std::os::unix::fs::symlink(all.path(), &link).unwrap();
        fs::write(&file, "").unwrap();
        assert!(own_dir(&link).is_err() && own_dir(&file).is_err());
    }

    #[test]
    fn what_is_this_users_is_closed_to_others() {
        let all = tempfile::tempdir().unwrap();
        let dir = all.path().join("runs/.staged");
        close_dir(&dir).unwrap();
        assert_eq!(mode(&dir), 0o700);
        fs::set_permissions(&dir, Permissions::from_mode(0o755)).unwrap();
        close_dir(&dir).unwrap();
        assert_eq!(mode(&dir), 0o700);
    }
}
