//! Whether a stream is a terminal on which lines can be drawn over: one that says it is dumb, or nothing of itself, only takes text.

use indicatif::TermLike;
use std::{
    io::{self, IsTerminal, Write},
    os::fd::AsFd,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

static IS_DUMB: AtomicBool = AtomicBool::new(false);

/// Records whether `TERM` names a terminal without cursor control. Must be called before anything is shown.
pub fn set_dumb(is_dumb: bool) {
    IS_DUMB.store(is_dumb, Ordering::Relaxed);
}

/// Columns of a terminal that does not say how many it has.
const COLUMNS_USUAL: u16 = 80;

pub(crate) fn columns(stream: &impl AsFd) -> usize {
    enn_process::window_columns(stream.as_fd()).unwrap_or(COLUMNS_USUAL).into()
}

/// Returns whether lines can be redrawn on this stream.
pub fn draws(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && !IS_DUMB.load(Ordering::Relaxed)
}

/// Columns that a redrawn line leaves free for typed characters, such as the ^C of Ctrl-C: behind a line that fills the
/// window they would begin another line, and the redrawn one would be cleared from the wrong place.
pub(crate) const FREE_COLUMNS: usize = 4;

/// Standard error as seen by indicatif, which fills its last line: reports [`FREE_COLUMNS`] columns less than there
/// are.
#[derive(Debug, Default)]
pub(crate) struct Narrowed(Mutex<String>);

impl Narrowed {
    fn add(&self, text: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_str(text);
    }

    /// Moves the cursor, in the direction of this letter.
    fn go(&self, count: usize, letter: char) -> io::Result<()> {
        if count > 0 {
            self.add(&format!("\x1b[{count}{letter}"));
        }
        Ok(())
    }
}

impl TermLike for Narrowed {
    fn width(&self) -> u16 {
        u16::try_from(columns(&io::stderr()).saturating_sub(FREE_COLUMNS).max(1)).unwrap_or(u16::MAX)
    }

    fn move_cursor_up(&self, count: usize) -> io::Result<()> {
        self.go(count, 'A')
    }

    fn move_cursor_down(&self, count: usize) -> io::Result<()> {
        self.go(count, 'B')
    }

    fn move_cursor_right(&self, count: usize) -> io::Result<()> {
        self.go(count, 'C')
    }

    fn move_cursor_left(&self, count: usize) -> io::Result<()> {
        self.go(count, 'D')
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.add(text);
        self.add("\n");
        Ok(())
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.add(text);
        Ok(())
    }

    fn clear_line(&self) -> io::Result<()> {
        self.add("\r\x1b[2K");
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        let drawn = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        io::stderr().write_all(drawn.as_bytes())
    }
}
