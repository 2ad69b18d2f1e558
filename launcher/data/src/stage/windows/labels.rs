//! Names of windows and steps, such as `-1d` and `07h`. Pure.

use crate::stage::timestamp::DAY_S;
use enn_common::config::data::WindowsLayout;

const MINUTE_S: i64 = 60;
const HOUR_S: i64 = 3600;

/// Returns the offset of a history window from the target window, such as `-1d` or `-6h`.
pub(crate) fn windows_back(layout: &WindowsLayout, back: usize) -> String {
    format!("-{}", length(layout.step_s * layout.steps as i64 * back as i64))
}

/// Returns the names of the steps within a window: the hour of a day (`07h`, `07:30`), else the time since the window began.
pub(crate) fn steps(layout: &WindowsLayout) -> Vec<String> {
    let within_a_day = layout.step_s * layout.steps as i64 <= DAY_S;
    let name = |step: usize| {
        let seconds = step as i64 * layout.step_s;
        match (within_a_day, layout.step_s) {
            (true, s) if s % HOUR_S == 0 => format!("{:02}h", seconds / HOUR_S),
            (true, s) if s % MINUTE_S == 0 => format!("{:02}:{:02}", seconds / HOUR_S, seconds / MINUTE_S % 60),
            (false, s) if s % DAY_S == 0 => format!("{}d", seconds / DAY_S),
            (false, s) if s % HOUR_S == 0 => format!("{}h", seconds / HOUR_S),
            _ => format!("{seconds}s"),
        }
    };
    (0..layout.steps).map(name).collect()
}

fn length(seconds: i64) -> String {
    match seconds {
        s if s % DAY_S == 0 => format!("{}d", s / DAY_S),
        s if s % HOUR_S == 0 => format!("{}h", s / HOUR_S),
        s if s % MINUTE_S == 0 => format!("{}min", s / MINUTE_S),
        s => format!("{s}s"),
    }
}
