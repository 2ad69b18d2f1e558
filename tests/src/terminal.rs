//! A program on a terminal of its own, and what a person sees there: the bytes it writes drawn on a screen of a given size, as xterm would.
//! Every wait has a deadline.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test by panicking")]

use crate::launch;
use nix::{
    fcntl::{FcntlArg, FdFlag, fcntl},
    pty::{Winsize, openpty},
    sys::termios::{LocalFlags, tcgetattr},
};
use std::{
    fs::{self, File},
    io::{Read, Write},
    os::fd::{AsRawFd, OwnedFd},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    time::{Duration, Instant},
};

/// Longest wait for something to be seen.
const SEEN_WITHIN: Duration = Duration::from_secs(60);
/// After the end of the program nothing more comes if nothing came for so long.
const QUIET: Duration = Duration::from_millis(200);

/// What is seen.
#[derive(Debug, Clone)]
pub struct Screen {
    columns: usize,
    lines: usize,
    cells: Vec<Vec<char>>,
    row: usize,
    column: usize,
    /// The cursor stands behind the last column: the next character begins a line.
    wraps: bool,
    /// What the other screen had.
    main: Option<(Vec<Vec<char>>, usize, usize)>,
    /// Lines that went out at the top.
    above: Vec<String>,
    /// Whether the cursor is seen.
    pub cursor: bool,
    /// Whether anything was coloured.
    pub coloured: bool,
    /// Everything that was written.
    pub written: String,
    pending: Vec<u8>,
    escape: Option<String>,
}

impl Screen {
    fn new(columns: u16, lines: u16) -> Self {
        let columns = usize::from(columns);
        let lines = usize::from(lines);
        Self {
            columns,
            lines,
            cells: vec![vec![' '; columns]; lines],
            row: 0,
            column: 0,
            wraps: false,
            main: None,
            above: Vec::new(),
            cursor: true,
            coloured: false,
            written: String::new(),
            pending: Vec::new(),
            escape: None,
        }
    }

    /// The lines that are seen, without blanks at their ends.
    pub fn rows(&self) -> Vec<String> {
        self.cells.iter().map(|row| row.iter().collect::<String>().trim_end().to_owned()).collect()
    }

    /// The lines that are seen and those that went out at the top.
    pub fn all(&self) -> Vec<String> {
        self.above.iter().cloned().chain(self.rows()).collect()
    }

    /// Whether a line that is seen has this text.
    pub fn has(&self, text: &str) -> bool {
        self.rows().iter().any(|row| row.contains(text))
    }

    /// How many lines that are seen have this text.
    pub fn count(&self, text: &str) -> usize {
        self.rows().iter().filter(|row| row.contains(text)).count()
    }

    /// Whether the other screen is shown, which leaves no trace.
    pub fn is_alternate(&self) -> bool {
        self.main.is_some()
    }

    fn feed(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
        let bytes = std::mem::take(&mut self.pending);
        let text = match std::str::from_utf8(&bytes) {
            Ok(text) => text.to_owned(),
            Err(error) => {
                self.pending = bytes[error.valid_up_to()..].to_vec();
                assert!(self.pending.len() < 4, "the program wrote what is no UTF-8: {:?}", self.pending);
                String::from_utf8(bytes[..error.valid_up_to()].to_vec()).unwrap()
            }
        };
        text.chars().for_each(|character| self.take(character));
        self.written.push_str(&text);
    }

    fn take(&mut self, character: char) {
        if let Some(mut escape) = self.escape.take() {
            escape.push(character);
            if is_whole(&escape) {
                self.obey(&escape);
            } else {
                self.escape = Some(escape);
            }
            return;
        }
        match character {
            '\x1b' => self.escape = Some(String::new()),
            '\r' => (self.column, self.wraps) = (0, false),
            '\n' => self.line_feed(),
            '\x08' => (self.column, self.wraps) = (self.column.saturating_sub(1), false),
            '\t' => self.column = (self.column / 8 * 8 + 8).min(self.columns - 1),
            '\x07' => {}
            character => self.put(character),
        }
    }

    fn put(&mut self, character: char) {
        if self.wraps {
            self.column = 0;
            self.line_feed();
        }
        self.cells[self.row][self.column] = character;
        self.wraps = self.column + 1 == self.columns;
        self.column = (self.column + 1).min(self.columns - 1);
    }

    fn line_feed(&mut self) {
        self.wraps = false;
        if self.row + 1 < self.lines {
            self.row += 1;
            return;
        }
        let first = self.cells.remove(0);
        if self.main.is_none() {
            self.above.push(first.into_iter().collect::<String>().trim_end().to_owned());
        }
        self.cells.push(vec![' '; self.columns]);
    }

    fn obey(&mut self, escape: &str) {
        let Some(control) = escape.strip_prefix('[') else {
            match escape {
                "M" if self.row > 0 => self.row -= 1,
                _ => {}
            }
            return;
        };
        let (parameters, last) = control.split_at(control.len() - 1);
        let numbers: Vec<usize> = parameters.split(';').map(|number| number.parse().unwrap_or(0)).collect();
        let count = numbers[0].max(1);
        self.wraps = false;
        match last {
            "A" => self.row = self.row.saturating_sub(count),
            "B" => self.row = (self.row + count).min(self.lines - 1),
            "C" => self.column = (self.column + count).min(self.columns - 1),
            "D" => self.column = self.column.saturating_sub(count),
            "G" => self.column = (count - 1).min(self.columns - 1),
            "d" => self.row = (count - 1).min(self.lines - 1),
            "H" | "f" => {
                self.row = (count - 1).min(self.lines - 1);
                self.column = (numbers.get(1).copied().unwrap_or(1).max(1) - 1).min(self.columns - 1);
            }
            "J" | "K" => self.clear(last == "J", numbers[0]),
            "m" => self.coloured |= numbers.iter().any(|number| matches!(number, 30..=38 | 40..=48 | 90..=107)),
            "h" | "l" => self.set(parameters, last == "h"),
            _ => {}
        }
    }

    fn clear(&mut self, lines: bool, which: usize) {
        let (from, to) = match which {
            0 => (self.column, self.columns),
            1 => (0, self.column + 1),
            _ => (0, self.columns),
        };
        self.cells[self.row][from..to].fill(' ');
        if lines {
            let others = match which {
                0 => self.row + 1..self.lines,
                1 => 0..self.row,
                _ => 0..self.lines,
            };
            self.cells[others].iter_mut().for_each(|row| row.fill(' '));
        }
    }

    fn set(&mut self, what: &str, on: bool) {
        match (what, on) {
            ("?25", _) => self.cursor = on,
            ("?1049", true) => {
                let blank = vec![vec![' '; self.columns]; self.lines];
                self.main = Some((std::mem::replace(&mut self.cells, blank), self.row, self.column));
            }
            ("?1049", false) => {
                if let Some((cells, row, column)) = self.main.take() {
                    self.cells = cells;
                    self.row = row;
                    self.column = column;
                }
            }
            _ => {}
        }
    }

    fn resize(&mut self, columns: u16, lines: u16) {
        self.columns = usize::from(columns);
        self.lines = usize::from(lines);
        let fit = |cells: &mut Vec<Vec<char>>| {
            cells.iter_mut().for_each(|row| row.resize(usize::from(columns), ' '));
            cells.resize(usize::from(lines), vec![' '; usize::from(columns)]);
        };
        fit(&mut self.cells);
        self.main.iter_mut().for_each(|(cells, _, _)| fit(cells));
        (self.row, self.column) = (self.row.min(self.lines - 1), self.column.min(self.columns - 1));
    }
}

/// Whether an escape sequence, its first character left out, is at its end.
fn is_whole(escape: &str) -> bool {
    let last = escape.chars().last().unwrap();
    match escape.chars().next().unwrap() {
        '[' => escape.len() > 1 && ('@'..='~').contains(&last),
        ']' => last == '\x07' || escape.ends_with("\x1b\\"),
        '(' | ')' => escape.len() > 1,
        _ => true,
    }
}

/// A terminal with a program that it controls.
pub struct Terminal {
    child: Child,
    keyboard: File,
    /// The program's end: as long as it is open here, the terminal can be looked at.
    slave: OwnedFd,
    seen: Receiver<Vec<u8>>,
    /// What is seen now.
    pub screen: Screen,
}

impl Terminal {
    /// Starts a command on a terminal of this size.
    pub fn start(command: &Command, columns: u16, lines: u16) -> Self {
        let size = Winsize { ws_row: lines, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let terminal = openpty(&size, None).unwrap();
        for end in [&terminal.master, &terminal.slave] {
            fcntl(end, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).unwrap();
        }
        let mut command = launch::copy(command, &["setsid", "--ctty", "--wait"]);
        let stream = || Stdio::from(terminal.slave.try_clone().unwrap());
        let child = command.stdin(stream()).stdout(stream()).stderr(stream()).spawn().unwrap();
        let mut master = File::from(terminal.master);
        let keyboard = master.try_clone().unwrap();
        let (shown, seen) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = master.read(&mut buffer) {
                if shown.send(buffer[..count].to_vec()).is_err() {
                    break;
                }
            }
        });
        Self { child, keyboard, slave: terminal.slave, seen, screen: Screen::new(columns, lines) }
    }

    /// Process of the program.
    pub fn pid(&self) -> i32 {
        self.child.id().try_into().unwrap()
    }

    /// Waits until something holds of the screen; each state between is looked at.
    pub fn until(&mut self, what: &str, mut holds: impl FnMut(&Screen) -> bool) {
        let deadline = Instant::now() + SEEN_WITHIN;
        while !holds(&self.screen) {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.seen.recv_timeout(left) {
                Ok(bytes) => self.screen.feed(&bytes),
                Err(_) => panic!("not seen: {what}\n{}", self.screen.all().join("\n")),
            }
        }
    }

    pub fn type_in(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).unwrap();
    }

    /// Gives the window another size.
    pub fn resize(&mut self, columns: u16, lines: u16) {
        let path = fs::read_link(format!("/proc/self/fd/{}", self.slave.as_raw_fd())).unwrap();
        let columns_text = columns.to_string();
        let lines_text = lines.to_string();
        let mut stty = Command::new("stty");
        stty.arg("-F").arg(path).args(["cols", &columns_text, "rows", &lines_text]);
        assert!(stty.status().unwrap().success());
        self.screen.resize(columns, lines);
    }

    /// Waits for the end of the program: its exit code, and what is seen then.
    pub fn end(mut self) -> (Option<i32>, Screen) {
        let code = launch::wait(&mut self.child);
        while let Ok(bytes) = self.seen.recv_timeout(QUIET) {
            self.screen.feed(&bytes);
        }
        let flags = tcgetattr(&self.slave).unwrap().local_flags;
        assert!(flags.contains(LocalFlags::ICANON | LocalFlags::ECHO), "the terminal takes keys as it did before");
        assert!(self.screen.cursor, "the cursor is seen");
        assert!(!self.screen.is_alternate(), "the screen is the one before");
        (code, self.screen.clone())
    }
}

impl Drop for Terminal {
    /// A test that fails leaves nobody behind.
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _ended = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_screen_shows_what_xterm_would() {
        let mut screen = Screen::new(10, 3);
        screen.feed(b"one\r\ntwo\r\x1b[2Kthree\x1b[31m!\x1b[0m");
        assert_eq!(screen.rows(), ["one", "three!", ""]);
        assert!(screen.coloured);
        screen.feed("\r\n0123456789ab\r\nc━".as_bytes());
        assert_eq!(screen.all(), ["one", "three!", "0123456789", "ab", "c━"]);
        screen.feed(b"\x1b[?1049h\x1b[?25l\x1b[1;2Hx");
        assert_eq!(screen.rows(), [" x", "", ""]);
        assert!(screen.is_alternate() && !screen.cursor);
        screen.feed(b"\x1b[?1049l\x1b[?25h");
        assert_eq!(screen.rows(), ["0123456789", "ab", "c━"]);
        screen.feed(b"\x1b[1A\x1b[J");
        assert_eq!(screen.rows(), ["0123456789", "ab", ""]);
    }
}
