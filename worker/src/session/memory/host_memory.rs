//! Memory of the host that this process holds.

/// Written to `clear_refs` it makes the peak begin anew.
const RESET_PEAK: &str = "5";

/// Bytes of a line of /proc in kB.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

/// Bytes this process holds, and most that it held since `reset_peak`; files it maps are among them.
pub(crate) fn resident() -> Option<(u64, u64)> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    Some((field(&status, "VmRSS:")?, field(&status, "VmHWM:")?))
}

/// Bytes this process holds that are no pages of files.
pub(crate) fn held() -> Option<u64> {
    field(&std::fs::read_to_string("/proc/self/status").ok()?, "RssAnon:")
}

/// The peak that `resident` tells begins anew; whether the system allows it.
pub(crate) fn reset_peak() -> bool {
    std::fs::write("/proc/self/clear_refs", RESET_PEAK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_holds_something() {
        let (now, peak) = resident().unwrap();
        assert!(0 < now && now <= peak + (64 << 20), "{now} {peak}");
        assert!(held().is_some_and(|bytes| 0 < bytes && bytes <= peak));
        assert_eq!(field("VmRSS:   24 kB\n", "VmRSS:"), Some(24 * 1024));
    }
}
