//! From a bare process to a worker with an identity: environment, socket, control page, threads, process group.
//!
//! **Invariant:** the only place of the worker that reads the environment.

use super::{SessionError, link::Link, mmap, unix};
use crate::backend::graph;
use crate::comm::{Gloo, GlooOptions, ProcessGroup, Solo, Store, StoreAddr};
use enn_common::wire::{
    client::Client,
    control::Phase,
    message::{Assignment, FromWorker, PROTOCOL, ToWorker},
};
use std::{path::PathBuf, time::Duration};
use tch::Device;

/// Longest time to meet the other ranks of a round, and the limit of every collective.
pub const COLLECTIVE_WAIT_MAX: Duration = Duration::from_secs(300);

/// What the launcher tells a worker before it can speak to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Environment {
    /// `ENN_BROKER`: the broker's socket.
    pub broker: PathBuf,
    /// `ENN_ROUND`: the round this process was started for.
    pub round: u64,
    /// `LOCAL_RANK`: index on the node.
    pub local_rank: u32,
    /// `ENN_CONTROL_FD`: descriptor of the control page.
    pub control_fd: Option<i32>,
    /// `ENN_LOG`: what to log, in `tracing`'s filter language.
    pub log: String,
}

impl Environment {
    /// Reads the environment of this process.
    ///
    /// # Errors
    /// [`SessionError::Variable`] naming the variable, what was found and what was expected.
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
    pub fn read() -> Result<Self, SessionError> {
        Self::parse(|name| std::env::var(name).ok())
    }

    fn parse(variable: impl Fn(&'static str) -> Option<String>) -> Result<Self, SessionError> {
        let broker = variable("ENN_BROKER").ok_or(SessionError::NotLaunched)?;
        let round = number(&variable, "ENN_ROUND")?.unwrap_or(0);
        let local_rank = number(&variable, "LOCAL_RANK")?.unwrap_or(0);
        let control_fd = number(&variable, "ENN_CONTROL_FD")?;
        let log = variable("ENN_LOG").unwrap_or_else(|| "warn".to_owned());
        Ok(Self { broker: broker.into(), round, local_rank, control_fd, log })
    }
}

fn number<T: std::str::FromStr>(
    variable: &impl Fn(&'static str) -> Option<String>,
    name: &'static str,
) -> Result<Option<T>, SessionError> {
    match variable(name) {
        None => Ok(None),
        Some(text) => match text.parse() {
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(SessionError::Variable { name, found: text, expected: "a whole number" }),
        },
    }
}

/// Connects, says hello, and learns who this worker is. From here on the launcher's death ends the process.
///
/// # Errors
/// When the socket cannot be used, the launcher refuses the worker, or the control page does not fit.
pub fn meet(environment: &Environment) -> Result<(Link, Assignment), SessionError> {
    unix::ignore_interrupts().map_err(SessionError::Signals)?;
    let page = match environment.control_fd {
        None => None,
        Some(fd) => Some(
            mmap::control_page(fd)
                .map_err(|source| SessionError::ControlPage { fd, source })?
                .map_err(SessionError::Control)?,
        ),
    };
    let mut client = Client::connect(&environment.broker)?;
    client.send(&FromWorker::Hello {
        protocol: PROTOCOL,
        round: environment.round,
        local_rank: environment.local_rank,
        pid: std::process::id(),
    })?;
    let assignment = match client.recv()? {
        ToWorker::Assign(assignment) => *assignment,
        ToWorker::Refused { error } => return Err(SessionError::Refused { error }),
        other => return Err(SessionError::Unexpected { found: format!("{other:?}"), expected: "Assign" }),
    };
    let link = Link::new(client, page)?;
    Ok((link, assignment))
}

/// The device an assignment names.
///
/// # Errors
/// [`SessionError::Device`] when it is unknown or this build or machine has none.
pub fn device(assignment: &Assignment) -> Result<Device, SessionError> {
    let wrong = |expected| SessionError::Device { found: assignment.device.clone(), expected };
    match assignment.device.as_str() {
        "cpu" => Ok(Device::Cpu),
        "cuda" if !cfg!(feature = "cuda") => Err(wrong("cpu (this enn-worker was built without CUDA: `make cuda`)")),
        "cuda" if i64::from(assignment.local_rank) >= tch::Cuda::device_count() => {
            Err(wrong("a CUDA device for every worker of the node (start fewer workers)"))
        }
        "cuda" => {
            let index = assignment.local_rank as usize;
            // The default stream cannot be captured.
            graph::use_own_stream(index)?;
            Ok(Device::Cuda(index))
        }
        _ => Err(wrong("cpu or cuda")),
    }
}

/// Meets the other ranks of the round.
///
/// # Errors
/// When the store cannot be reached or a rank does not come within [`COLLECTIVE_WAIT_MAX`].
pub fn group(link: &Link, assignment: &Assignment, device: Device) -> Result<Box<dyn ProcessGroup>, SessionError> {
    if assignment.world_size == 1 {
        return Ok(Box::new(Solo));
    }
    link.phase(Phase::Rendezvous);
    let addr = StoreAddr {
        host: assignment.store_host.clone(),
        port: assignment.store_port,
        prefix: format!("round-{}", assignment.round),
    };
    let store = Store::connect(addr, COLLECTIVE_WAIT_MAX)?;
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(index) => {
            let place = (assignment.rank, assignment.world_size);
            Ok(Box::new(crate::comm::Nccl::form(&store, place, index as u32, COLLECTIVE_WAIT_MAX)?))
        }
        _ => {
            let options =
                GlooOptions { rank: assignment.rank, size: assignment.world_size, timeout: COLLECTIVE_WAIT_MAX };
            Ok(Box::new(Gloo::form(&store, &options)?))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(pairs: &[(&str, &str)]) -> Result<Environment, SessionError> {
        Environment::parse(|name| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()))
    }

    #[test]
    fn reads_what_the_launcher_sets() {
        let environment = parse(&[
            ("ENN_BROKER", "/run/b.sock"),
            ("ENN_ROUND", "3"),
            ("LOCAL_RANK", "1"),
            ("ENN_CONTROL_FD", "9"),
            ("ENN_LOG", "info"),
        ])
        .unwrap();
        let expected = Environment {
            broker: "/run/b.sock".into(),
            round: 3,
            local_rank: 1,
            control_fd: Some(9),
            log: "info".into(),
        };
        assert_eq!(environment, expected);
    }

    #[test]
    fn mistakes_name_the_variable() {
        let error = parse(&[]).unwrap_err().to_string();
        assert!(error.contains("ENN_BROKER") && error.contains("enn train"), "{error}");
        let error = parse(&[("ENN_BROKER", "b"), ("ENN_ROUND", "first")]).unwrap_err().to_string();
        assert!(error.contains("ENN_ROUND") && error.contains("first"), "{error}");
    }
}
