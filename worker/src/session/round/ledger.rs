//! This process's file of the ledger: which rows it puts into each step.
//!
//! **Invariant:** a line is one write at the end of the file; nothing waits for the disk. What a full disk does not take is kept and
//! written later, and there is no gap: a ledger that cannot go on ends.

use crate::session::SessionError;
use enn_common::ledger::{FOLDER, Line, name};
use std::cell::{Cell, RefCell};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Bytes of lines that are kept while the disk takes none.
const KEPT_BYTES_MAX: usize = 16 << 20;

pub(crate) struct Ledger {
    file: File,
    path: PathBuf,
    /// Lines that the disk did not take yet.
    kept: RefCell<Vec<u8>>,
    ended: Cell<bool>,
}

impl Ledger {
    /// In the run's folder; what an earlier training of this process wrote stays.
    pub(crate) fn open(run: &Path) -> Result<Self, SessionError> {
        let folder = run.join(FOLDER);
        let path = folder.join(name(std::process::id()));
        let open = || -> io::Result<File> {
            std::fs::create_dir_all(&folder)?;
            OpenOptions::new().create(true).append(true).open(&path)
        };
        match open() {
            Ok(file) => Ok(Self { file, path, kept: RefCell::default(), ended: Cell::new(false) }),
            Err(source) => Err(SessionError::Ledger { path, source }),
        }
    }

    /// Adds a line. A sentence for the user when the disk begins not to take it, and when it took too little for too long.
    pub(crate) fn write(&self, line: &Line) -> Option<String> {
        if self.ended.get() {
            return None;
        }
        let mut kept = self.kept.borrow_mut();
        let was_behind = !kept.is_empty();
        let error = match line.encode() {
            Ok(text) => {
                kept.extend(text);
                drain(&mut &self.file, &mut kept).err()?
            }
            Err(error) => error,
        };
        let path = self.path.display();
        if kept.len() > KEPT_BYTES_MAX {
            self.ended.set(true);
            *kept = Vec::new();
            return Some(format!("the ledger {path} ends here, more lines than {KEPT_BYTES_MAX} bytes wait: {error}"));
        }
        (!was_behind).then(|| format!("the ledger {path} cannot be written, its lines wait in memory: {error}"))
    }
}

/// Writes what is kept, and forgets what is written.
fn drain(file: &mut impl Write, kept: &mut Vec<u8>) -> io::Result<()> {
    while !kept.is_empty() {
        match file.write(kept) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => drop(kept.drain(..count)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes so many bytes, then says that it is full.
    struct Room(usize, Vec<u8>);

    impl Write for Room {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.0);
            self.0 -= count;
            self.1.extend(&bytes[..count]);
            if count == 0 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(count) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_a_full_disk_does_not_take_comes_later_and_in_order() {
        let mut disk = Room(5, Vec::new());
        let mut kept = b"one\ntwo\n".to_vec();
        assert_eq!(drain(&mut disk, &mut kept).unwrap_err().kind(), io::ErrorKind::StorageFull);
        kept.extend(b"three\n");
        assert!(drain(&mut disk, &mut kept).is_err());
        disk.0 = 100;
        drain(&mut disk, &mut kept).unwrap();
        assert_eq!((kept.len(), disk.1.as_slice()), (0, b"one\ntwo\nthree\n".as_slice()));
    }

    #[test]
    fn a_ledger_that_cannot_go_on_says_so_twice_and_ends() {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let ledger = Ledger { file: full, path: "l".into(), kept: RefCell::default(), ended: Cell::new(false) };
        let line = Line::LeftOut { left_out: vec![1; 1 << 20], step: 1, round: 0 };
        let told: Vec<String> = (0..20).filter_map(|_| ledger.write(&line)).collect();
        assert!(told.len() == 2 && told[0].contains("wait in memory") && told[1].contains("ends here"), "{told:?}");
        assert!(ledger.kept.borrow().is_empty());
    }
}
