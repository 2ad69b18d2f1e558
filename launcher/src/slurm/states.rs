//! States of a job, as `scontrol`, `squeue` and `sacct` write them. A state that is not listed is data, not an error.

use std::fmt;

macro_rules! states {
    ($($variant:ident $name:literal $short:literal $ended:literal $doc:literal,)*) => {
        /// State of a job.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum State {
            $(#[doc = $doc] $variant,)*
            /// A word that this version of ENN does not know.
            Unlisted(String),
        }

        /// Word, short form, state, whether the job has ended.
        const STATES: &[(&str, &str, State, bool)] = &[$(($name, $short, State::$variant, $ended),)*];
    };
}

states! {
    Pending "PENDING" "PD" false "Waits for nodes.",
    Configuring "CONFIGURING" "CF" false "Its nodes are made ready.",
    Running "RUNNING" "R" false "Runs.",
    Completing "COMPLETING" "CG" false "Its last processes are being ended.",
    Suspended "SUSPENDED" "S" false "Stopped; keeps its nodes.",
    Stopped "STOPPED" "ST" false "Stopped by SIGSTOP; keeps its cores.",
    Signaling "SIGNALING" "SI" false "A signal is on its way.",
    StageOut "STAGE_OUT" "SO" false "Files are staged out.",
    Resizing "RESIZING" "RS" false "Its size changes.",
    Requeued "REQUEUED" "RQ" false "Goes back into the queue.",
    RequeueHold "REQUEUE_HOLD" "RH" false "Went back into the queue and is held there.",
    RequeueFed "REQUEUE_FED" "RF" false "Went back into the queue of a federation.",
    SpecialExit "SPECIAL_EXIT" "SE" false "Went back into the queue with a mark.",
    ResvDelHold "RESV_DEL_HOLD" "RD" false "Held: its reservation was deleted.",
    Completed "COMPLETED" "CD" true "Ended with code 0.",
    Failed "FAILED" "F" true "Ended with another code.",
    Cancelled "CANCELLED" "CA" true "Cancelled by somebody.",
    Timeout "TIMEOUT" "TO" true "Ended at its time limit.",
    NodeFail "NODE_FAIL" "NF" true "A node failed.",
    OutOfMemory "OUT_OF_MEMORY" "OOM" true "It asked for more memory than it was given.",
    Preempted "PREEMPTED" "PR" true "Gave way to another job.",
    BootFail "BOOT_FAIL" "BF" true "Its nodes did not boot.",
    Deadline "DEADLINE" "DL" true "Ended at its deadline.",
    Revoked "REVOKED" "RV" true "Runs in another cluster of the federation.",
    LaunchFailed "LAUNCH_FAILED" "LF" true "Could not be launched.",
    ReconfigFail "RECONFIG_FAIL" "RCF" true "Its nodes could not be configured.",
}

impl State {
    /// From any form: long, short, cut off with a plus, or with more behind it ("CANCELLED by 1000").
    pub fn parse(text: &str) -> Self {
        let word = text.split_whitespace().next().unwrap_or_default();
        let cut = word.strip_suffix('+');
        let fits = |name: &str, short: &str| match cut {
            Some(beginning) => name.starts_with(beginning) && beginning.len() > 3,
            None => name == word || short == word,
        };
        let found = STATES.iter().find(|(name, short, ..)| fits(name, short));
        found.map_or_else(|| Self::Unlisted(word.to_owned()), |(_, _, state, _)| state.clone())
    }

    /// Whether the job is over for good; one that is not known is taken to go on.
    pub fn has_ended(&self) -> bool {
        STATES.iter().any(|(_, _, state, ended)| state == self && *ended)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unlisted(word) => f.write_str(word),
            known => f.write_str(STATES.iter().find(|(_, _, state, _)| state == known).map_or("", |(name, ..)| name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_is_read_back_in_both_forms() {
        for (name, short, state, _) in STATES {
            assert_eq!((&State::parse(name), &State::parse(short)), (state, state));
            assert_eq!(state.to_string(), *name);
        }
    }

    #[test]
    fn forms_of_sacct() {
        assert_eq!(State::parse("CANCELLED by 1000"), State::Cancelled);
        assert_eq!(State::parse("CANCELLED+"), State::Cancelled);
        assert_eq!(State::parse("OUT_OF_ME+"), State::OutOfMemory);
        assert_eq!(State::parse("R+"), State::Unlisted("R+".into()));
    }

    #[test]
    fn unknown_states_are_data() {
        let state = State::parse("POWERED_BY_WIND");
        assert_eq!(state.to_string(), "POWERED_BY_WIND");
        assert!(!state.has_ended());
        assert_eq!(State::parse(""), State::Unlisted(String::new()));
    }

    #[test]
    fn what_has_ended() {
        for (name, ended) in [("NODE_FAIL", true), ("PREEMPTED", true), ("REQUEUED", false), ("SUSPENDED", false)] {
            assert_eq!(State::parse(name).has_ended(), ended, "{name}");
        }
    }
}
