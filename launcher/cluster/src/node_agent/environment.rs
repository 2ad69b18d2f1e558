//! The environment of one worker: torchrun's names and our own. Pure.

use enn_common::{id::WorkerId, wire::node_agent::SeatFacts};
use enn_process::WorkerSpec;
use std::{ffi::OsString, path::Path};

/// Identity of a worker, as far as its environment says it.
#[derive(Debug, Clone)]
pub(super) struct Identity<'a> {
    pub(super) worker: WorkerId,
    /// Seat that it is started for; a spare has none.
    pub(super) seat: Option<SeatFacts>,
    pub(super) control_fd: i32,
    pub(super) broker: &'a Path,
    /// Of a worker that is a script.
    pub(super) script: Option<ScriptPlaces<'a>>,
    pub(super) run_dir: &'a Path,
    pub(super) store: Option<&'a StoreAddress>,
}

/// What a script needs to attach.
#[derive(Debug, Clone, Copy)]
pub(super) struct ScriptPlaces<'a> {
    /// Socket of the broker for scripts.
    pub(super) socket: &'a Path,
    /// Folder in which scripts keep what is private to a seat.
    pub(super) seat_dir: &'a Path,
}

/// Variables of a script that can attach; no other process may inherit them.
pub(super) const OF_A_SCRIPT: [&str; 3] = ["ENN_WORKER_ID", "ENN_SCRIPT_SOCKET", "ENN_SEAT_DIR"];

/// Host and port of the store in which the workers of a round meet.
pub(crate) type StoreAddress = (String, u16);

/// Variables that describe a seat; a worker without one must not inherit the launcher's.
pub(super) const OF_A_SEAT: [&str; 5] = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "ENN_ROUND"];

/// Returns the variables to set, over those inherited.
pub(super) fn variables(spec: &WorkerSpec, identity: &Identity<'_>) -> Vec<(&'static str, OsString)> {
    let number = |value: u64| OsString::from(value.to_string());
    let mut variables = vec![
        ("ENN_WORKER_ID", number(identity.worker.0.into())),
        ("ENN_CONTROL_FD", OsString::from(identity.control_fd.to_string())),
        ("ENN_BROKER", identity.broker.into()),
        ("ENN_RUN_DIR", identity.run_dir.into()),
    ];
    if let Some(ScriptPlaces { socket, seat_dir }) = identity.script {
        variables.push(("ENN_SCRIPT_SOCKET", socket.into()));
        variables.push(("ENN_SEAT_DIR", seat_dir.into()));
    }
    if let Some(SeatFacts { round, rank, local_rank, world, local_world, .. }) = identity.seat {
        let values = [rank.into(), local_rank.into(), world.into(), local_world.into(), round];
        variables.extend(OF_A_SEAT.into_iter().zip(values.map(number)));
    }
    if let Some((host, port)) = identity.store {
        variables.push(("MASTER_ADDR", host.into()));
        variables.push(("MASTER_PORT", number((*port).into())));
    }
    variables.extend(spec.openmp());
    variables.extend(spec.cublas());
    variables.extend(spec.libraries().map(|path| ("LD_LIBRARY_PATH", path)));
    variables
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libtorch_comes_first_and_the_rest_is_kept() {
        let spec = WorkerSpec {
            library_dir: Some("/t/lib".into()),
            library_path: Some("/a:/b".into()),
            threads: 3,
            repeatable_products: true,
            ..WorkerSpec::new("enn-worker".into())
        };
        let store = ("127.0.0.1".to_owned(), 29500);
        let identity = Identity {
            worker: WorkerId(7),
            seat: Some(SeatFacts {
                round: 2,
                rank: 1,
                local_rank: 3,
                world: 4,
                local_world: 4,
                node_rank: 0,
                nodes: 1,
                restarts: 0,
            }),
            control_fd: 9,
            broker: Path::new("/tmp/b.sock"),
            script: None,
            run_dir: Path::new("/run"),
            store: Some(&store),
        };
        let variables = super::variables(&spec, &identity);
        let get = |name: &str| variables.iter().find(|(key, _)| *key == name).unwrap().1.to_str().unwrap().to_owned();
        assert_eq!(get("LD_LIBRARY_PATH"), "/t/lib:/a:/b");
        assert_eq!(
            (get("RANK"), get("WORLD_SIZE"), get("ENN_ROUND"), get("ENN_CONTROL_FD")),
            ("1".into(), "4".into(), "2".into(), "9".into())
        );
        assert_eq!(
            (get("LOCAL_RANK"), get("LOCAL_WORLD_SIZE"), get("ENN_WORKER_ID")),
            ("3".into(), "4".into(), "7".into())
        );
        assert_eq!((get("MASTER_PORT"), get("OMP_NUM_THREADS")), ("29500".into(), "3".into()));
        assert_eq!((get("GOMP_SPINCOUNT"), get("CUBLAS_WORKSPACE_CONFIG")), ("1000".into(), ":4096:8".into()));
        let spare = super::variables(&spec, &Identity { seat: None, ..identity });
        assert!(!spare.iter().any(|(name, _)| *name == "ENN_SCRIPT_SOCKET"));
        assert!(
            !spare.iter().any(|(name, _)| OF_A_SEAT.contains(name))
                && spare.iter().any(|(name, _)| *name == "ENN_WORKER_ID")
        );
    }
}
