//! The state of a process, from /proc/PID/stat.

use std::fs;

/// Some fields of /proc/PID/stat, proc(5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcStat {
    pub state: char,
    pub parent: u32,
    /// User and system time in ticks.
    pub(crate) cpu: u64,
    /// Start after boot in ticks.
    pub start: u64,
    /// Resident memory in pages.
    pub(crate) pages: u64,
}

impl ProcStat {
    /// Reads the state of a process or zombie; `None`: it is gone.
    pub fn read(pid: u32) -> Option<Self> {
        Self::parse(&String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/stat")).ok()?))
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        // The name of a process may hold spaces and parentheses.
        let (_, rest) = text.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        // Fields are counted from 1 in proc(5); the first of `rest` is the third.
        let number = |field: usize| fields.get(field - 3).and_then(|text| text.parse::<u64>().ok());
        let state = fields.first()?.chars().next()?;
        let parent = u32::try_from(number(4)?).ok()?;
        Some(Self { state, parent, cpu: number(14)? + number(15)?, start: number(22)?, pages: number(24)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses() {
        let text = "7 (a) b) S 1 2 3 0 -1 4194304 1 2 3 4 150 50 0 0 20 0 1 0 270484 99 1234 0\n";
        let stat = ProcStat { state: 'S', parent: 1, cpu: 200, start: 270_484, pages: 1234 };
        assert_eq!(ProcStat::parse(text), Some(stat));
        assert_eq!(ProcStat::parse("7 (a"), None);
        assert_eq!(
            ProcStat::read(std::process::id()).map(|stat| stat.parent),
            Some(std::os::unix::process::parent_id())
        );
    }
}
