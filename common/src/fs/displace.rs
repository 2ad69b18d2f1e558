//! What an output may take the place of: an earlier output of its own kind, and nothing that somebody else put there.

use super::FileError;
use std::path::{Path, PathBuf};

/// Why what is there is not replaced.
#[derive(Debug, thiserror::Error)]
pub enum DisplaceError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{} is a {found}, expected a {expected} to replace; choose another name", path.display())]
    Kind {
        path: PathBuf,
        /// "file" or "directory".
        found: &'static str,
        expected: &'static str,
    },
    #[error(
        "{} is no part of what would replace its directory, and would be lost with it; choose another name, or remove the directory",
        path.display()
    )]
    Foreign { path: PathBuf },
}

/// Refuses to replace a file by a directory, and a directory in which something is that `is_part` does not know by its name.
pub fn by_directory(path: &Path, is_part: &dyn Fn(&str) -> bool) -> Result<(), DisplaceError> {
    if !path.exists() {
        return Ok(());
    }
    if !path.is_dir() {
        return Err(DisplaceError::Kind { path: path.to_owned(), found: "file", expected: "directory" });
    }
    for entry in std::fs::read_dir(path).map_err(FileError::of("read", path))? {
        let entry = entry.map_err(FileError::of("read", path))?;
        if !entry.file_name().to_str().is_some_and(is_part) {
            return Err(DisplaceError::Foreign { path: entry.path() });
        }
    }
    Ok(())
}

/// Refuses to replace a directory by a file.
pub fn by_file(path: &Path) -> Result<(), DisplaceError> {
    if path.is_dir() {
        return Err(DisplaceError::Kind { path: path.to_owned(), found: "directory", expected: "file" });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_of_the_same_kind_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        let file = dir.path().join("file");
        let is_part = |name: &str| name == "pred.npy";
        by_directory(&out, &is_part).unwrap();
        std::fs::create_dir(&out).unwrap();
        by_directory(&out, &is_part).unwrap();
        std::fs::write(out.join("pred.npy"), "").unwrap();
        by_directory(&out, &is_part).unwrap();
        std::fs::write(out.join("thesis.txt"), "").unwrap();
        let error = by_directory(&out, &is_part).unwrap_err().to_string();
        assert!(error.contains("out/thesis.txt") && error.contains("would be lost"), "{error}");
        std::fs::write(&file, "").unwrap();
        by_file(&file).unwrap();
        assert!(by_directory(&file, &is_part).unwrap_err().to_string().contains("is a file, expected a directory"));
        assert!(by_file(&out).unwrap_err().to_string().contains("is a directory, expected a file"));
    }
}
