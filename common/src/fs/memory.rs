//! How much memory may still be taken: the machine's, or less where a control group or the process itself has a limit.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::{
    io,
    path::{Path, PathBuf},
};

/// Where control groups are.
const GROUPS: &str = "/sys/fs/cgroup";

/// Bytes that this process may take without others having to give some up. `None`: the system does not say.
pub fn available_bytes() -> Option<u64> {
    let machine = field(&std::fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:")?.checked_mul(1024)?;
    Some(machine.min(group_room().unwrap_or(u64::MAX)))
}

/// Lets this process, and those that it starts, have no more memory than this, each, from now on and for good: what is asked for beyond it
/// is refused. What was asked for and not touched counts; files that are mapped to be read do not.
///
/// # Errors
/// What the system says.
pub fn limit(bytes: u64) -> io::Result<()> {
    let (_, most) = getrlimit(Resource::RLIMIT_DATA)?;
    let bytes = bytes.min(most);
    Ok(setrlimit(Resource::RLIMIT_DATA, bytes, bytes)?)
}

/// Room in the control group of this process; `None`: it has no limit of its own.
fn group_room() -> Option<u64> {
    let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let folder = Path::new(GROUPS).join(path);
    // The nearest limit above counts too.
    let below = |folder: &Path| folder.starts_with(GROUPS);
    folder.ancestors().take_while(|folder| below(folder)).filter_map(|folder| room_of(folder.into())).min()
}

fn room_of(folder: PathBuf) -> Option<u64> {
    let number = |name: &str| std::fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
    let (limit, used) = (number("memory.max")?, number("memory.current")?);
    let stat = std::fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    // The kernel gives these pages up first.
    let cache = field(&stat, "inactive_file").unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(cache)))
}

/// The number behind a name at the beginning of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read() {
        assert_eq!(field("MemTotal: 9 kB\nMemAvailable:   24 kB\n", "MemAvailable:"), Some(24));
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(room_of(dir.path().into()), None);
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        write("memory.max", "max\n");
        write("memory.current", "700\n");
        assert_eq!(room_of(dir.path().into()), None);
        write("memory.max", "1000\n");
        write("memory.stat", "anon 500\ninactive_file 150\n");
        assert_eq!(room_of(dir.path().into()), Some(450));
        assert!(available_bytes().is_some_and(|bytes| bytes > 1 << 20));
    }
}
