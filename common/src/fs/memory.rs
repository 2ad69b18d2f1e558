//! How much memory may still be taken: the machine's, or less where a control group or the process itself has a limit.
//!
//! Sources: the kernel's Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst, and proc_pid_limits(5).

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::{
    fs::read_to_string,
    io,
    path::{Path, PathBuf},
};

const GROUPS: &str = "/sys/fs/cgroup";

/// Names under which a version of control groups tells of memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MemoryNames {
    /// File with the limit.
    limit: &'static str,
    /// File with the memory in use.
    used: &'static str,
    /// Line of `memory.stat` with the file pages that were not used lately.
    inactive: &'static str,
}

const VERSION_2: MemoryNames = MemoryNames { limit: "memory.max", used: "memory.current", inactive: "inactive_file" };
const VERSION_1: MemoryNames =
    MemoryNames { limit: "memory.limit_in_bytes", used: "memory.usage_in_bytes", inactive: "total_inactive_file" };

/// Bytes that this process may take without others having to give some up. `None`: the system does not say.
pub fn available_bytes() -> Option<u64> {
    let machine = field(&read_to_string("/proc/meminfo").ok()?, "MemAvailable:")?.checked_mul(1024)?;
    let groups = groups_of(&read_to_string("/proc/self/cgroup").unwrap_or_default());
    let groups = groups.iter().filter_map(|(folder, files)| room_of(folder, files));
    let [limits, status] = ["/proc/self/limits", "/proc/self/status"].map(|file| read_to_string(file).ok());
    let own = limits.zip(status).map(|(limits, status)| own_rooms(&limits, &status));
    Some(groups.chain(own.into_iter().flatten()).fold(machine, u64::min))
}

/// Lets this process, and those that it starts, have no more memory than this, each, from now on and for good: what is asked for beyond it
/// is refused. What was asked for and not touched counts; files that are mapped to be read do not.
pub fn limit(bytes: u64) -> io::Result<()> {
    let (_, most) = getrlimit(Resource::RLIMIT_DATA)?;
    let bytes = bytes.min(most);
    Ok(setrlimit(Resource::RLIMIT_DATA, bytes, bytes)?)
}

/// The control groups of a process and those above them, whose limits count too.
fn groups_of(own: &str) -> Vec<(PathBuf, MemoryNames)> {
    let place = |line: &str| {
        let mut parts = line.splitn(3, ':').skip(1);
        let controllers = parts.next()?;
        let path = parts.next()?.trim_start_matches('/').to_owned();
        match controllers {
            "" => Some((PathBuf::from(GROUPS), path, VERSION_2)),
            _ if controllers.split(',').any(|one| one == "memory") => {
                Some((Path::new(GROUPS).join("memory"), path, VERSION_1))
            }
            _ => None,
        }
    };
    let above = |(root, path, files): (PathBuf, String, MemoryNames)| -> Vec<(PathBuf, MemoryNames)> {
        Path::new(&path).ancestors().map(|part| (root.join(part), files)).collect()
    };
    own.lines().filter_map(place).flat_map(above).collect()
}

fn room_of(folder: &Path, names: &MemoryNames) -> Option<u64> {
    let number = |name: &str| read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
    let limit = number(names.limit)?;
    let used = number(names.used)?;
    // The kernel gives these pages up first.
    let files = field(&read_to_string(folder.join("memory.stat")).unwrap_or_default(), names.inactive).unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(files)))
}

/// Memory that `ulimit -v` and [`limit`] leave, as far as there are such limits.
fn own_rooms(limits: &str, status: &str) -> Vec<u64> {
    let room = |(limit, used): (&str, &str)| {
        let used = field(status, used)?.checked_mul(1024)?;
        Some(field(limits, limit)?.saturating_sub(used))
    };
    [("Max address space", "VmSize:"), ("Max data size", "VmData:")].into_iter().filter_map(room).collect()
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
    fn limits_of_both_versions_are_read() {
        assert_eq!(field("MemTotal: 9 kB\nMemAvailable:   24 kB\n", "MemAvailable:"), Some(24));
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        write("memory.stat", "anon 500\ninactive_file 150\ntotal_inactive_file 250\n");
        for (files, room) in [(VERSION_2, 450), (VERSION_1, 550)] {
            assert_eq!(room_of(dir.path(), &files), None);
            write(files.used, "700\n");
            write(files.limit, "max\n");
            assert_eq!(room_of(dir.path(), &files), None);
            write(files.limit, "1000\n");
            assert_eq!(room_of(dir.path(), &files), Some(room));
        }
        assert!(available_bytes().is_some_and(|bytes| bytes > 1 << 20));
    }

    #[test]
    fn every_group_above_counts_and_other_controllers_do_not() {
        let found = groups_of("12:cpu:/x\n4:memory,blkio:/a/b\n0::/c\n");
        let [v1, v2] = ["memory/", ""].map(|root| format!("{GROUPS}/{root}"));
        let expected = [(&v1, "a/b"), (&v1, "a"), (&v1, ""), (&v2, "c"), (&v2, "")];
        let expected = expected.map(|(root, part)| Path::new(root).join(part));
        assert_eq!(found.iter().map(|(folder, _)| folder.clone()).collect::<Vec<_>>(), expected);
        assert_eq!(
            found.iter().map(|(_, files)| files.limit).collect::<Vec<_>>()[2..4],
            [VERSION_1.limit, VERSION_2.limit]
        );
    }

    #[test]
    fn a_limit_of_the_process_less_its_size() {
        let limits = |data: &str, soft: &str| {
            format!(
                "Limit  Soft Limit\nMax data size {data} unlimited bytes\nMax address space         {soft}   unlimited   bytes\n"
            )
        };
        let status = "VmSize:\t       4 kB\nVmData:\t   1 kB\n";
        assert_eq!(own_rooms(&limits("unlimited", "10240"), status), [6144]);
        assert_eq!(own_rooms(&limits("2048", "1024"), status), [0, 1024]);
        assert!(own_rooms(&limits("unlimited", "unlimited"), status).is_empty());
    }
}
