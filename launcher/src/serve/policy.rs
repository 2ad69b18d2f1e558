//! When an engine that ended is started again.

use std::time::Duration;

/// The first wait, which doubles from failure to failure, and the longest.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// The wait before the next start after so many failures without an answer between them.
pub(super) fn pause(failures: u32) -> Duration {
    match failures {
        0 | 1 => Duration::ZERO,
        more => (PAUSE * 2_u32.pow((more - 2).min(16))).min(PAUSE_MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_bound() {
        let millis: Vec<u128> = (0..6).map(|failures| pause(failures).as_millis()).collect();
        assert_eq!(millis, [0, 0, 100, 200, 400, 800]);
        assert_eq!(pause(u32::MAX), PAUSE_MAX);
    }
}
