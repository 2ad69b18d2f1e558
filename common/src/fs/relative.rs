//! Paths that come from outside: from a manifest, `.metadata`, an archive, a message, a key of an object store. Each is checked before it is
//! used, and stays inside the directory that it is relative to.
//!
//! **Invariant:** a [`RelPath`] consists of normal components: no `..`, nothing absolute. [`RelPath::locate`] also follows no link out of the
//! directory. `tests/tests/plain/tidy` forbids to join any other text that was read.

use super::FileError;
use serde::{Deserialize, Serialize};
use std::{
    borrow::Borrow,
    fmt, io,
    ops::Deref,
    path::{Path, PathBuf},
};

/// Longest path, longest component, most components.
const PATH_BYTES_MAX: usize = 4096;
const COMPONENT_BYTES_MAX: usize = 255;
const COMPONENTS_MAX: usize = 32;
/// How much of a refused path is shown.
const SHOWN_CHARS_MAX: usize = 100;

/// A path relative to a directory that it cannot leave.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RelPath(String);

/// Why a text is no path inside a directory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the path {shown:?} {what}; expected names separated by single slashes, inside the directory of the file that lists it"
)]
pub struct PathError {
    pub shown: String,
    pub what: &'static str,
}

impl RelPath {
    /// Checks a text that was read.
    ///
    /// # Errors
    /// When it is empty, absolute, too long, or has a component that is no plain name.
    pub fn parse(text: impl Into<String>) -> Result<Self, PathError> {
        let text = text.into();
        match fault(&text) {
            None => Ok(Self(text)),
            Some(what) => Err(PathError { shown: text.chars().take(SHOWN_CHARS_MAX).collect(), what }),
        }
    }

    /// A name that this program makes by itself.
    pub(crate) fn own(name: impl Into<String>) -> Self {
        let name = name.into();
        debug_assert_eq!(fault(&name), None, "{name}");
        Self(name)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is the name of something directly in the directory.
    pub fn is_name(&self) -> bool {
        !self.0.contains('/')
    }

    /// Where it is below `dir`, whatever is there: for messages, and for a directory that this process has just made.
    pub fn below(&self, dir: &Path) -> PathBuf {
        dir.join(&self.0)
    }

    /// Where it is below `dir`, to be read or written: links that lead out of `dir` are refused, and so is what is neither a file nor a
    /// directory. What is not there yet is no error.
    ///
    /// # Errors
    /// A link that leads out, or whose end is not there; a pipe, a socket or a device; what the system says.
    pub fn locate(&self, dir: &Path) -> Result<PathBuf, FileError> {
        self.locate_within(dir, &[])
    }

    /// [`RelPath::locate`] where links may also lead into the directories `also`.
    pub fn locate_within(&self, dir: &Path, also: &[PathBuf]) -> Result<PathBuf, FileError> {
        let path = self.below(dir);
        let mut at = dir.to_path_buf();
        let mut is_linked = false;
        for component in self.0.split('/') {
            at.push(component);
            match at.symlink_metadata() {
                Ok(found) => is_linked |= found.file_type().is_symlink(),
                Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                Err(error) => return Err(FileError::of("look at", &at)(error)),
            }
        }
        if is_linked {
            let real = |path: &Path| path.canonicalize().map_err(FileError::of("follow the link at", path));
            let end = real(&path)?;
            let is_inside = |dir: &Path| real(dir).is_ok_and(|dir| end.starts_with(dir));
            if !is_inside(dir) && !also.iter().any(|dir| is_inside(dir)) {
                let what = format!("it is a link that leads out of {} to {}", dir.display(), end.display());
                return Err(FileError::of("use", &path)(io::Error::new(io::ErrorKind::InvalidData, what)));
            }
        }
        match path.metadata() {
            Ok(found) if !found.is_file() && !found.is_dir() => {
                let what = "it is neither a file nor a directory";
                Err(FileError::of("use", &path)(io::Error::new(io::ErrorKind::InvalidData, what)))
            }
            _ => Ok(path),
        }
    }
}

fn fault(text: &str) -> Option<&'static str> {
    let components = || text.split('/');
    if text.is_empty() {
        Some("is empty")
    } else if text.len() > PATH_BYTES_MAX || components().any(|one| one.len() > COMPONENT_BYTES_MAX) {
        Some("is too long")
    } else if text.contains('\0') {
        Some("holds a NUL")
    } else if text.contains('\\') {
        Some("holds a backslash")
    } else if text.starts_with('/') {
        Some("is absolute")
    } else if components().any(|one| one == "..") {
        Some("leads out of its directory")
    } else if components().any(|one| one.is_empty() || one == ".") {
        Some("has a component that is no name")
    } else if components().count() > COMPONENTS_MAX {
        Some("is too deep")
    } else {
        None
    }
}

impl Deref for RelPath {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for RelPath {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RelPath {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl PartialEq<str> for RelPath {
    fn eq(&self, other: &str) -> bool {
        self.0 == other
    }
}

impl PartialEq<&str> for RelPath {
    fn eq(&self, other: &&str) -> bool {
        self.0 == *other
    }
}

impl TryFrom<String> for RelPath {
    type Error = PathError;

    fn try_from(text: String) -> Result<Self, PathError> {
        Self::parse(text)
    }
}

impl TryFrom<&str> for RelPath {
    type Error = PathError;

    fn try_from(text: &str) -> Result<Self, PathError> {
        Self::parse(text)
    }
}

impl From<RelPath> for String {
    fn from(path: RelPath) -> Self {
        path.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::symlink};

    #[test]
    fn only_paths_that_stay_inside_are_taken() {
        for good in ["a", "__0_0.distcp", ".metadata", "a/b c/ü..x", "..a", "a..", "C:"] {
            assert_eq!(RelPath::parse(good).unwrap(), good);
        }
        let long = "a".repeat(COMPONENT_BYTES_MAX + 1);
        let deep = ["a"; COMPONENTS_MAX + 1].join("/");
        let bad = [
            "",
            "/",
            "/etc/passwd",
            "..",
            "../a",
            "a/..",
            "a/../b",
            "a//b",
            "a/",
            "./a",
            "a/.",
            "a\0b",
            "..\\a",
            "a\\b",
            "\\\\host\\a",
            &long,
            &deep,
        ];
        for bad in bad {
            let error = RelPath::parse(bad).unwrap_err();
            assert!(error.shown.chars().count() <= SHOWN_CHARS_MAX, "{error}");
            assert!(serde_json::from_value::<RelPath>(bad.into()).is_err(), "{bad:?}");
        }
        let error = RelPath::parse("../../.bashrc").unwrap_err().to_string();
        assert!(error.contains("\"../../.bashrc\" leads out of its directory"), "{error}");
    }

    #[test]
    fn links_that_lead_out_are_refused() {
        let all = tempfile::tempdir().unwrap();
        let dir = all.path().join("tree");
        fs::create_dir_all(dir.join("sub")).unwrap();
        fs::write(dir.join("sub/file"), "in").unwrap();
        fs::write(all.path().join("secret"), "out").unwrap();
        symlink("sub/file", dir.join("inner")).unwrap();
        symlink("../secret", dir.join("outer")).unwrap();
        symlink(all.path(), dir.join("up")).unwrap();
        symlink("../nothing", dir.join("dangling")).unwrap();
        let at = |path: &str| RelPath::parse(path).unwrap().locate(&dir);
        for good in ["sub/file", "inner", "not/there"] {
            assert_eq!(at(good).unwrap(), dir.join(good));
        }
        for bad in ["outer", "up/secret", "up/other", "dangling"] {
            assert!(at(bad).is_err(), "{bad}");
        }
        assert!(at("outer").unwrap_err().to_string().contains("leads out of"));
        let link = all.path().join("link");
        symlink(&dir, &link).unwrap();
        assert!(RelPath::parse("sub/file").unwrap().locate(&link).is_ok(), "the directory itself may be a link");
        let outer = RelPath::parse("outer").unwrap();
        assert!(outer.locate_within(&dir, &[all.path().to_path_buf()]).is_ok());
    }

    #[test]
    fn what_is_no_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(dir.path().join("socket")).unwrap();
        assert!(RelPath::parse("socket").unwrap().locate(dir.path()).is_err());
    }
}
