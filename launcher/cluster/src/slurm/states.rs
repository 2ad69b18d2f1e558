//! States of a job, as `scontrol`, `squeue` and `sacct` write them. An unlisted state is data, not an error.

use std::fmt;

macro_rules! states {
    ($($variant:ident $name:literal $short:literal $doc:literal,)*) => {
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum JobState {
            $(#[doc = $doc] $variant,)*
            /// A word that this version of ENN does not know.
            Unlisted(String),
        }

        /// Word, short form and state.
        const STATES: &[(&str, &str, JobState)] = &[$(($name, $short, JobState::$variant),)*];
    };
}

states! {
    Pending "PENDING" "PD" "The job waits for nodes.",
    Configuring "CONFIGURING" "CF" "The nodes are being prepared.",
    Running "RUNNING" "R" "The job runs.",
    Completing "COMPLETING" "CG" "The last processes are being ended.",
    Suspended "SUSPENDED" "S" "The job is stopped and keeps its nodes.",
    Stopped "STOPPED" "ST" "The job was stopped by SIGSTOP and keeps its cores.",
    Signaling "SIGNALING" "SI" "The job is being signalled.",
    StageOut "STAGE_OUT" "SO" "Files are staged out.",
    Resizing "RESIZING" "RS" "The job's size is being changed.",
    Requeued "REQUEUED" "RQ" "The job goes back into the queue.",
    RequeueHold "REQUEUE_HOLD" "RH" "The job went back into the queue and is held there.",
    RequeueFed "REQUEUE_FED" "RF" "The job went back into the queue of a federation.",
    SpecialExit "SPECIAL_EXIT" "SE" "The job went back into the queue with a special exit code.",
    ResvDelHold "RESV_DEL_HOLD" "RD" "The job is held because its reservation was deleted.",
    Completed "COMPLETED" "CD" "The job ended with code 0.",
    Failed "FAILED" "F" "The job ended with another code.",
    Cancelled "CANCELLED" "CA" "The job was cancelled by a user or administrator.",
    Timeout "TIMEOUT" "TO" "The job ended at its time limit.",
    NodeFail "NODE_FAIL" "NF" "A node failed.",
    OutOfMemory "OUT_OF_MEMORY" "OOM" "The job ran out of memory.",
    Preempted "PREEMPTED" "PR" "The job was ended to make room for another one.",
    BootFail "BOOT_FAIL" "BF" "The nodes did not boot.",
    Deadline "DEADLINE" "DL" "The job ended at its deadline.",
    Revoked "REVOKED" "RV" "The job runs in another cluster of the federation.",
    LaunchFailed "LAUNCH_FAILED" "LF" "The job could not be launched.",
    ReconfigFail "RECONFIG_FAIL" "RCF" "The nodes could not be configured.",
}

impl JobState {
    /// Parses any form: long, short, cut off with a plus, or with further words ("CANCELLED by 1000").
    pub fn parse(text: &str) -> Self {
        let word = text.split_whitespace().next().unwrap_or_default();
        let cut = word.strip_suffix('+');
        let fits = |name: &str, short: &str| match cut {
            Some(beginning) => name.starts_with(beginning) && beginning.len() > 3,
            None => name == word || short == word,
        };
        let found = STATES.iter().find(|(name, short, _)| fits(name, short));
        found.map_or_else(|| Self::Unlisted(word.to_owned()), |(_, _, state)| state.clone())
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unlisted(word) => f.write_str(word),
            known => f.write_str(STATES.iter().find(|(_, _, state)| state == known).map_or("", |(name, ..)| name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_is_read_back_in_both_forms() {
        for (name, short, state) in STATES {
            assert_eq!((&JobState::parse(name), &JobState::parse(short)), (state, state));
            assert_eq!(state.to_string(), *name);
        }
    }

    #[test]
    fn forms_of_sacct() {
        assert_eq!(JobState::parse("CANCELLED by 1000"), JobState::Cancelled);
        assert_eq!(JobState::parse("CANCELLED+"), JobState::Cancelled);
        assert_eq!(JobState::parse("OUT_OF_ME+"), JobState::OutOfMemory);
        assert_eq!(JobState::parse("R+"), JobState::Unlisted("R+".into()));
    }

    #[test]
    fn unknown_states_are_data() {
        let state = JobState::parse("POWERED_BY_WIND");
        assert_eq!(state.to_string(), "POWERED_BY_WIND");
        assert_eq!(JobState::parse(""), JobState::Unlisted(String::new()));
    }
}
