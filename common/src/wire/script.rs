//! The language between the broker and a worker that is any program, a Python script for instance: frames of JSON on a Unix socket.
//!
//! ```text
//! script ─► attach                         once, when the program can take part in a recovery
//!        ─► parts                          into how many equal parts a step can be cut, where not any number of ranks can share it
//!        ◄─ assigned                       a seat in a round
//!        ─► ready                          it has joined the groups of the round and has the state
//!        ─► progress*                      steps that are done
//!        ─► stalled*                       no step is done, and whether it waits for others
//!        ◄─ broken                         the round is over: abort its groups
//!        ─► halted                         it stands after so many whole steps
//!        ◄─ assigned …                     the next round
//!        ◄─ parked                         or it goes on without this worker, which waits
//!        ◄─ stop                           finish the step, save, end
//! ```
//! A frame is a u32 little-endian length, then one JSON object in UTF-8, whose field `message` says which one it is.
//!
//! **Invariant:** a message is named in words, with all of its fields and no others; another language has another [`SCRIPT_PROTOCOL`].

use super::{
    frame::{FrameBuffer, FrameError},
    message::{Assignment, StateSource, ToWorker, WorkerTask},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::num::NonZeroU32;

/// Newest version.
pub const SCRIPT_PROTOCOL: u32 = 2;
/// Oldest version that a broker speaks. In the first one there is neither `parts` nor `parked`.
pub const SCRIPT_PROTOCOL_MIN: u32 = 1;
/// Largest payload of a frame.
pub const SCRIPT_BYTES_MAX: usize = 64 << 10;
/// Characters of a sentence to a script.
const SENTENCE_CHARS_MAX: usize = 2000;

/// From a script to the broker of its node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case", deny_unknown_fields)]
pub enum FromScript {
    /// First message: this worker can be told to leave a round and to join another one. `worker` is its `ENN_WORKER_ID`.
    Attach { protocol: u32, worker: u32, pid: u32 },
    /// The worker has joined the groups of `round` and has the state after `step` steps.
    Ready { round: u64, step: u64 },
    /// Answer to `Broken`: the worker has left the groups of `round` and stands after `step` whole steps. Unless its state is `whole`,
    /// it is of no use to the others.
    Halted { round: u64, step: u64, whole: bool },
    /// So many steps are done. Send it at most ten times a second.
    Progress { round: u64, step: u64 },
    /// No step has been done for a while since `step`: whether the worker `waits` for others, or does something else. Sent when that changes.
    Stalled { round: u64, step: u64, waits: bool },
    /// The worker cannot go on: one sentence. It ends by itself.
    Failed { error: String },
    /// A step can be cut into so many equal parts: a world shares it if it divides them. Without this message any world does.
    Parts { parts: NonZeroU32 },
}

/// From the broker to a script.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case", deny_unknown_fields)]
pub enum ToScript {
    /// A seat in a round. Comes at once after `attach` if there is one, and again after each `halted`.
    Assigned(ScriptSeat),
    /// The round is over: abort its groups, whatever is in flight, answer `halted`, and wait for `assigned`.
    Broken { round: u64, reason: String },
    /// Finish the step, save what is to be saved, and end, which is no failure.
    Stop {},
    /// The connection is of no use; why. The worker may go on, but is not attached.
    Refused { error: String },
    /// A round begins without this worker. It waits for `assigned` with its own local rank; `stop` ends it, and it saves nothing.
    Parked {},
}

/// Who a script is in a round, and where it meets the others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScriptSeat {
    /// Number of the round: 0, then higher ones.
    pub round: u64,
    pub rank: u32,
    pub world: u32,
    /// Index on this node.
    pub local_rank: u32,
    pub local_world: u32,
    /// Host and port of the c10d store; it may have moved since the last round. Empty and 0 where there is none.
    pub master_addr: String,
    pub master_port: u16,
    /// Prefix of all keys that the groups of this round put into the store, which is not emptied between rounds.
    pub store_prefix: String,
    /// Rank that has the state with which the round begins; null when nobody has it.
    pub source_rank: Option<u32>,
    /// Steps done in that state.
    pub step: u64,
}

impl ScriptSeat {
    fn of(seat: &Assignment) -> Self {
        let source = state_source(seat);
        Self {
            round: seat.round,
            rank: seat.rank,
            world: seat.world_size,
            local_rank: seat.local_rank,
            local_world: seat.local_world_size,
            master_addr: seat.store_host.clone(),
            master_port: seat.store_port,
            store_prefix: store_prefix(seat),
            source_rank: source.map(|source| source.rank),
            step: source.map_or(0, |source| source.step),
        }
    }
}

/// Returns who has the state with which a script's round begins.
pub fn state_source(seat: &Assignment) -> Option<StateSource> {
    match &seat.task {
        WorkerTask::Script { source, .. } => *source,
        WorkerTask::Train { .. } | WorkerTask::Predict { .. } | WorkerTask::Init { .. } | WorkerTask::Save { .. } => {
            None
        }
    }
}

/// Returns the prefix of the keys of a round, which no other round has, also of another leader.
fn store_prefix(seat: &Assignment) -> String {
    match &seat.task {
        WorkerTask::Script { attempt, .. }
        | WorkerTask::Train { attempt, .. }
        | WorkerTask::Init { attempt, .. }
        | WorkerTask::Save { attempt } => format!("enn/{attempt}/"),
        WorkerTask::Predict { .. } => format!("enn/{}/", seat.round),
    }
}

impl ToScript {
    /// Returns what a message for a worker is for a script; `None` for one that is none of its business.
    pub fn of(message: &ToWorker) -> Option<Self> {
        match message {
            ToWorker::Assign(seat) => Some(Self::Assigned(ScriptSeat::of(seat))),
            ToWorker::RoundEnded { round, reason } => Some(Self::Broken { round: *round, reason: short(reason) }),
            ToWorker::Refused { error } => Some(Self::Refused { error: short(error) }),
            ToWorker::Dismissed => Some(Self::Stop {}),
            ToWorker::Parked => Some(Self::Parked {}),
            ToWorker::Committed { .. } | ToWorker::Abandoned { .. } | ToWorker::Kernels(_) | ToWorker::Stand(_) => None,
        }
    }
}

/// Returns as much of a sentence as fits into a frame in any case.
fn short(text: &str) -> String {
    text.chars().take(SENTENCE_CHARS_MAX).collect()
}

/// Appends `message` as one frame to `out`. On error `out` is as it was.
pub fn encode<T: Serialize>(message: &T, out: &mut Vec<u8>) -> Result<(), FrameError> {
    let payload = serde_json::to_vec(message).map_err(|source| FrameError::Json { bytes: 0, source })?;
    let bytes = payload.len();
    let too_long = || FrameError::TooLong { bytes: bytes as u64, most: SCRIPT_BYTES_MAX };
    let length = u32::try_from(bytes).ok().filter(|_| bytes <= SCRIPT_BYTES_MAX).ok_or_else(too_long)?;
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&payload);
    Ok(())
}

/// Returns the next whole message that was received, or `None` until more bytes come.
pub fn decode<T: DeserializeOwned>(buffer: &mut FrameBuffer) -> Result<Option<T>, FrameError> {
    buffer.next_message(SCRIPT_BYTES_MAX, |payload| {
        serde_json::from_slice(payload).map_err(|source| FrameError::Json { bytes: payload.len(), source })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seat() -> ScriptSeat {
        ScriptSeat {
            round: 3,
            rank: 1,
            world: 4,
            local_rank: 1,
            local_world: 2,
            master_addr: "10.0.0.1".into(),
            master_port: 29500,
            store_prefix: "enn/3-1f/".into(),
            source_rank: Some(2),
            step: 40,
        }
    }

    fn both_ways<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(message: T, text: &str) {
        let mut out = Vec::new();
        encode(&message, &mut out).unwrap();
        let golden = [&u32::try_from(text.len()).unwrap().to_le_bytes(), text.as_bytes()].concat();
        assert_eq!(String::from_utf8_lossy(&out), String::from_utf8_lossy(&golden));
        let mut buffer = FrameBuffer::new();
        buffer.extend(&golden);
        assert_eq!(decode::<T>(&mut buffer).unwrap(), Some(message));
    }

    /// Bytes of protocols 1 and 2. A change here is a change of protocol: bump `SCRIPT_PROTOCOL`.
    #[test]
    fn golden_bytes_of_script_protocol_2() {
        assert_eq!((SCRIPT_PROTOCOL, SCRIPT_PROTOCOL_MIN), (2, 1));
        let attach = FromScript::Attach { protocol: 1, worker: 3, pid: 70_000 };
        both_ways(attach, r#"{"message":"attach","protocol":1,"worker":3,"pid":70000}"#);
        let parts = FromScript::Parts { parts: NonZeroU32::new(8).unwrap() };
        both_ways(parts, r#"{"message":"parts","parts":8}"#);
        both_ways(ToScript::Parked {}, r#"{"message":"parked"}"#);
        both_ways(FromScript::Ready { round: 3, step: 40 }, r#"{"message":"ready","round":3,"step":40}"#);
        let halted = FromScript::Halted { round: 3, step: 41, whole: true };
        both_ways(halted, r#"{"message":"halted","round":3,"step":41,"whole":true}"#);
        both_ways(FromScript::Progress { round: 3, step: 42 }, r#"{"message":"progress","round":3,"step":42}"#);
        let stalled = FromScript::Stalled { round: 3, step: 42, waits: true };
        both_ways(stalled, r#"{"message":"stalled","round":3,"step":42,"waits":true}"#);
        both_ways(FromScript::Failed { error: "é".into() }, r#"{"message":"failed","error":"é"}"#);
        both_ways(
            ToScript::Assigned(seat()),
            concat!(
                r#"{"message":"assigned","round":3,"rank":1,"world":4,"local_rank":1,"local_world":2,"#,
                r#""master_addr":"10.0.0.1","master_port":29500,"store_prefix":"enn/3-1f/","source_rank":2,"step":40}"#
            ),
        );
        let broken = ToScript::Broken { round: 3, reason: "rank 0 ended".into() };
        both_ways(broken, r#"{"message":"broken","round":3,"reason":"rank 0 ended"}"#);
        both_ways(ToScript::Stop {}, r#"{"message":"stop"}"#);
        both_ways(ToScript::Refused { error: "x".into() }, r#"{"message":"refused","error":"x"}"#);
    }

    #[test]
    fn nobody_is_null() {
        let text = serde_json::to_string(&ToScript::Assigned(ScriptSeat { source_rank: None, step: 0, ..seat() }));
        assert!(text.unwrap().ends_with(r#""source_rank":null,"step":0}"#));
    }

    fn refused(bytes: &[u8]) -> String {
        let mut buffer = FrameBuffer::new();
        buffer.extend(bytes);
        decode::<FromScript>(&mut buffer).unwrap_err().to_string()
    }

    #[test]
    fn what_is_not_of_the_language_is_refused_in_words() {
        let frame = |text: &str| [&u32::try_from(text.len()).unwrap().to_le_bytes(), text.as_bytes()].concat();
        assert!(refused(b"GET / HTTP/1.1\r\n\r\n").contains("at most 65536 are allowed"));
        assert!(refused(&frame("")).contains("not a message"));
        assert!(refused(&frame(r#"{"message":"explode"}"#)).contains("unknown variant `explode`"));
        assert!(refused(&frame(r#"{"message":"ready","round":3}"#)).contains("missing field `step`"));
        assert!(refused(&frame(r#"{"message":"ready","round":3,"step":4,"x":1}"#)).contains("unknown field `x`"));
        assert!(refused(&frame(r#"{"message":"ready","round":-3,"step":4}"#)).contains("invalid value"));
        assert!(refused(&frame(r#"{"message":"parts","parts":0}"#)).contains("invalid value"));
        assert!(refused(&frame(r#"{"message":"stop"} x"#)).contains("not a message"));
        assert!(
            refused(&frame(&format!(r#"{{"message":"failed","error":{}"#, "[".repeat(60_000))))
                .contains("recursion limit")
        );
    }

    #[test]
    fn a_message_that_is_too_long_is_not_sent() {
        let mut out = vec![1];
        let error = encode(&FromScript::Failed { error: "x".repeat(SCRIPT_BYTES_MAX) }, &mut out).unwrap_err();
        assert!(matches!(error, FrameError::TooLong { most: SCRIPT_BYTES_MAX, .. }) && out == [1], "{error}");
        let broken = ToScript::of(&ToWorker::RoundEnded { round: 1, reason: "\u{1}".repeat(1 << 20) });
        encode(&broken.unwrap(), &mut out).unwrap();
    }
}
