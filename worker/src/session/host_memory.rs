//! Memory of the host as this process sees it: what is left of the machine and of the control groups it is in, and what it holds.

use std::path::{Path, PathBuf};

/// Mount point of control groups, version 2.
const CGROUPS: &str = "/sys/fs/cgroup";
/// Written to `clear_refs` it makes the peak begin anew.
const RESET_PEAK: &str = "5";

/// Bytes that this machine, and every control group this process is in, still has to give; `None` where the system does not say.
pub(super) fn available() -> Option<u64> {
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    let machine = field(&read(Path::new("/proc/meminfo"))?, "MemAvailable:")?;
    let own = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let left = groups(&own).into_iter().filter_map(|group| {
        let file = |name: &str| read(&group.join(name));
        left(&file("memory.max")?, &file("memory.current")?, &file("memory.stat").unwrap_or_default())
    });
    Some(left.fold(machine, u64::min))
}

/// The control group of a process and those above it.
fn groups(own: &str) -> Vec<PathBuf> {
    let Some(path) = own.lines().find_map(|line| line.strip_prefix("0::/")) else { return Vec::new() };
    Path::new(path).ancestors().map(|part| Path::new(CGROUPS).join(part)).collect()
}

/// Bytes below a group's limit; pages of files that nobody has touched lately are given up when others are wanted.
fn left(max: &str, current: &str, stat: &str) -> Option<u64> {
    let (max, current): (u64, u64) = (max.trim().parse().ok()?, current.trim().parse().ok()?);
    let files =
        stat.lines().find_map(|line| line.strip_prefix("inactive_file ")?.trim().parse::<u64>().ok()).unwrap_or(0);
    Some(max.saturating_sub(current.saturating_sub(files)))
}

/// Bytes of a line of /proc in kB.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

/// Bytes this process holds, and most that it held since `reset_peak`; files it maps are among them.
pub(super) fn resident() -> Option<(u64, u64)> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    Some((field(&status, "VmRSS:")?, field(&status, "VmHWM:")?))
}

/// The peak that `resident` tells begins anew; whether the system allows it.
pub(super) fn reset_peak() -> bool {
    std::fs::write("/proc/self/clear_refs", RESET_PEAK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_group_above_counts() {
        assert_eq!(groups("12:cpu:/x\n0::/a/b\n"), ["a/b", "a", ""].map(|part| Path::new(CGROUPS).join(part)));
        assert!(groups("12:cpu:/x\n").is_empty());
    }

    #[test]
    fn a_limit_less_what_is_in_use() {
        assert_eq!(left("1000\n", "400\n", "anon 1\ninactive_file 150\n"), Some(750));
        assert_eq!(left("1000", "1400", ""), Some(0));
        assert_eq!(left("max\n", "400\n", ""), None);
    }

    #[test]
    fn this_process_holds_something_and_less_than_there_is() {
        let (now, peak) = resident().unwrap();
        assert!(0 < now && now <= peak + (64 << 20), "{now} {peak}");
        assert!(available().unwrap() > 0);
        assert_eq!(field("MemAvailable:   24 kB\n", "MemAvailable:"), Some(24 * 1024));
    }
}
