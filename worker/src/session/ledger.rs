//! This process's file of the ledger: which rows it puts into each step.
//!
//! **Invariant:** a line is one write at the end of the file; nothing waits for the disk.

use super::SessionError;
use enn_common::ledger::{FOLDER, Line, name};
use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

/// An open file of lines.
pub(super) struct Ledger {
    file: File,
    path: PathBuf,
}

impl Ledger {
    /// In the run's folder; what an earlier training of this process wrote stays.
    ///
    /// # Errors
    /// What the system said.
    pub(super) fn open(run: &Path) -> Result<Self, SessionError> {
        let folder = run.join(FOLDER);
        let path = folder.join(name(std::process::id()));
        let open = || -> io::Result<File> {
            std::fs::create_dir_all(&folder)?;
            OpenOptions::new().create(true).append(true).open(&path)
        };
        match open() {
            Ok(file) => Ok(Self { file, path }),
            Err(source) => Err(SessionError::Ledger { path, source }),
        }
    }

    /// Adds a line.
    ///
    /// # Errors
    /// What the system said: a ledger with a gap would be worth nothing.
    pub(super) fn write(&self, line: &Line) -> Result<(), SessionError> {
        let written = line.encode().and_then(|text| (&self.file).write_all(&text));
        written.map_err(|source| SessionError::Ledger { path: self.path.clone(), source })
    }
}
