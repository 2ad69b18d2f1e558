//! Phases of a run.

use super::input::Time;

/// Phase of a run; the arrows between the phases are in the head of `mod.rs`.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Phase {
    /// Another node led. The run directory's lock is being taken.
    TakingOver { until: Time },
    /// Nobody has state, and the nodes have to agree on the members of the run.
    Gathering { check: Time },
    /// Nobody has state, and the run's checkpoints are looked at.
    Loading { until: Time, asked: LoadingStep },
    /// A round began, and not all of its workers can do steps.
    Starting,
    /// The workers of the round do steps.
    Running,
    /// They were asked to leave the round at the same step.
    Regrouping { until: Time },
    /// Survivors save the state that they keep, without a further step. One that shows no sign of life for `patience` is given up.
    Saving { patience: Time },
    /// The round is over; the living workers leave it, or have been killed because they did not.
    Halting { until: Time, killed: bool },
    /// All workers have left the round, and nothing is decided yet: nodes have to agree first, or commits to end.
    Deciding { check: Time },
    /// The next round begins as soon as the nodes agree, the devices of its seats are free and its directory for logs is there. Where
    /// the run is to stop, that is the round in which the survivors save.
    Seating { check: Time, kept: bool },
    /// All workers stand and wait for the run to be continued.
    Paused { since: Time },
    /// All workers end, because one failed and none keeps its state, or because their time is over. Where they start again, spares live on.
    Stopping { until: Time, killed: bool },
    /// Another node gets the lead.
    HandingOff { until: Time, handed_off: bool },
    /// The run ends: workers have until then to end, and commits under way as long again.
    Closing { workers_until: Time, commits_until: Time },
    /// The run is over for this supervisor.
    Over,
}

/// What a run without state waits for.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum LoadingStep {
    /// Checkpoints that are being written and committed.
    Writes,
    /// Answer to `FindCheckpoint`.
    Find,
    /// Answer to `SetAsideCheckpoint`, after a round that failed for this cause.
    SetAside { cause: String },
}

impl Phase {
    /// Returns whether the workers of a round work in it.
    pub(super) fn is_under_way(&self) -> bool {
        matches!(self, Self::Starting | Self::Running | Self::Regrouping { .. } | Self::Saving { .. })
    }

    /// Returns whether all workers are to end.
    pub(super) fn is_last(&self) -> bool {
        matches!(self, Self::Stopping { .. } | Self::HandingOff { .. } | Self::Closing { .. } | Self::Over)
    }

    /// Returns whether no other phase follows but `Over`.
    pub(super) fn is_ending(&self) -> bool {
        matches!(self, Self::HandingOff { .. } | Self::Closing { .. } | Self::Over)
    }
}

#[cfg(test)]
impl Phase {
    /// Returns the name, for traces.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::TakingOver { .. } => "TakingOver",
            Self::Gathering { .. } => "Gathering",
            Self::Loading { .. } => "Loading",
            Self::Starting => "Starting",
            Self::Running => "Running",
            Self::Regrouping { .. } => "Regrouping",
            Self::Saving { .. } => "Saving",
            Self::Halting { .. } => "Halting",
            Self::Deciding { .. } => "Deciding",
            Self::Seating { .. } => "Seating",
            Self::Paused { .. } => "Paused",
            Self::Stopping { .. } => "Stopping",
            Self::HandingOff { .. } => "HandingOff",
            Self::Closing { .. } => "Closing",
            Self::Over => "Over",
        }
    }
}
