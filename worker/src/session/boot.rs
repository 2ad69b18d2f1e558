//! From a bare process to a worker with an identity: environment, socket, control page, threads, process group.
//!
//! **Invariant:** the only place of the worker that reads the environment.

use super::SessionError;
use super::link::{Link, Order, mmap, unix};
use crate::collective::COLLECTIVE_WAIT_MAX;
use enn_comm::{CommError, Forming, Gloo, GlooOptions, Meshed, ProcessGroup, Shm, ShmFormed, ShmOptions, Solo, Store};
use enn_common::{
    config::train::Collectives,
    wire::{
        client::Client,
        message::{Assignment, FromWorker, PROTOCOL, ToWorker},
    },
};
use enn_core::backend::{cuda::cache, graph};
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use tch::Device;

/// Settings that the launcher passes to a worker before they can exchange messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Environment {
    /// `ENN_BROKER`: the broker's socket.
    pub broker: PathBuf,
    /// `ENN_WORKER_ID`: the name of this process among those of its launcher.
    pub worker: u32,
    /// `ENN_CONTROL_FD`: descriptor of the control page.
    pub control_fd: Option<i32>,
    /// `ENN_ATTENTION`: kernels of attention in the order in which they are tried, over `kernels.attention`.
    pub attention: Option<Vec<String>>,
    /// `ENN_LOG`: what to log: a level, or a list of `module=level`.
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
        let worker = number(&variable, "ENN_WORKER_ID")?.unwrap_or(0);
        let control_fd = number(&variable, "ENN_CONTROL_FD")?;
        let names = |text: String| text.split(',').map(|name| name.trim().to_owned()).collect();
        let attention = variable("ENN_ATTENTION").filter(|text| !text.is_empty()).map(names);
        let log = variable("ENN_LOG").unwrap_or_else(|| "warn".to_owned());
        Ok(Self { broker: broker.into(), worker, control_fd, attention, log })
    }
}

/// The place of a program, as a launcher of torchrun's kind (`enn run`, torchrun) sets it. Nothing set is a world of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TorchrunEnvironment {
    pub rank: u32,
    /// `WORLD_SIZE`: number of ranks.
    pub world_size: u32,
    /// `LOCAL_RANK`: index on the node.
    pub local_rank: u32,
    /// `LOCAL_WORLD_SIZE`: ranks of the node.
    pub local_world_size: u32,
    /// `MASTER_ADDR` and `MASTER_PORT`: the store in which the ranks meet; there when there are others.
    pub store: Option<(String, u16)>,
    /// `ENN_ROUND`, or `TORCHELASTIC_RESTART_COUNT` under torchrun: tells this meeting from earlier ones.
    pub round: u64,
    /// `ENN_PROGRESS_FILE`: touched to say that the process is alive.
    pub progress_file: Option<PathBuf>,
    /// `ENN_RUN_DIR`: where the run keeps its files.
    pub run_dir: Option<PathBuf>,
}

impl TorchrunEnvironment {
    /// Reads the environment of this process.
    ///
    /// # Errors
    /// [`SessionError::Variable`] naming the variable, what was found and what was expected.
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
    pub fn read() -> Result<Self, SessionError> {
        Self::parse(|name| std::env::var(name).ok())
    }

    fn parse(variable: impl Fn(&'static str) -> Option<String>) -> Result<Self, SessionError> {
        let rank = number(&variable, "RANK")?.unwrap_or(0);
        let world_size = number(&variable, "WORLD_SIZE")?.unwrap_or(1);
        let wrong = |name, found: u32, expected| SessionError::Variable { name, found: found.to_string(), expected };
        if rank >= world_size {
            return Err(wrong("RANK", rank, "a number below WORLD_SIZE"));
        }
        let port = number(&variable, "MASTER_PORT")?;
        let store = variable("MASTER_ADDR").zip(port);
        if world_size > 1 && store.is_none() {
            return Err(wrong("WORLD_SIZE", world_size, "1 where MASTER_ADDR and MASTER_PORT are not set"));
        }
        let round = match number(&variable, "ENN_ROUND")? {
            None => number(&variable, "TORCHELASTIC_RESTART_COUNT")?.unwrap_or(0),
            Some(round) => round,
        };
        Ok(Self {
            rank,
            world_size,
            local_rank: number(&variable, "LOCAL_RANK")?.unwrap_or(0),
            local_world_size: number(&variable, "LOCAL_WORLD_SIZE")?.unwrap_or(1),
            store,
            round,
            progress_file: variable("ENN_PROGRESS_FILE").map(PathBuf::from),
            run_dir: variable("ENN_RUN_DIR").map(PathBuf::from),
        })
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

/// Connects, says hello, and learns what this worker is to do. From here on the launcher's death ends the process.
///
/// # Errors
/// When the socket cannot be used, the launcher refuses the worker, or the control page does not fit.
pub(super) fn meet(environment: &Environment) -> Result<(Link, Order), SessionError> {
    unix::ignore_signals().map_err(SessionError::Signals)?;
    let page = match environment.control_fd {
        None => None,
        Some(fd) => Some(
            mmap::control_page(fd)
                .map_err(|source| SessionError::ControlPage { fd, source })?
                .map_err(SessionError::Control)?,
        ),
    };
    let mut client = Client::connect(&environment.broker)?;
    client.send(&FromWorker::Hello { protocol: PROTOCOL, worker: environment.worker, pid: std::process::id() })?;
    let first = match client.recv()? {
        ToWorker::Refused { error } => return Err(SessionError::Refused { error }),
        ToWorker::Dismissed => unix::exit_now(0),
        message => Order::of(message).map_err(|other| SessionError::Unexpected {
            found: format!("{other:?}"),
            expected: "a seat in a round, or word to stand by",
        })?,
    };
    // The page lies in this memory; without it checkpoints are written while training waits.
    let memory = environment.control_fd.and_then(|fd| mmap::memory(fd).ok());
    let link = Link::new(client, page, memory)?;
    Ok((link, first))
}

/// The device an assignment names.
///
/// # Errors
/// [`SessionError::Device`] when it is unknown or this build or machine has none.
pub fn device(assignment: &Assignment) -> Result<Device, SessionError> {
    named_device(&assignment.device, assignment.local_rank)
}

/// The device called "cpu" or "cuda" of the `local_rank`-th worker of a node.
pub(super) fn named_device(name: &str, local_rank: u32) -> Result<Device, SessionError> {
    let wrong = |expected| SessionError::Device { found: name.to_owned(), expected };
    match name {
        "cpu" => Ok(Device::Cpu),
        // How to get another worker depends on how this one was installed, which the launcher knows.
        "cuda" if !cfg!(feature = "cuda") => {
            Err(wrong("cpu (this enn-worker was built without CUDA; `enn doctor` says how to get one with it)"))
        }
        "cuda" if i64::from(local_rank) >= tch::Cuda::device_count() => {
            Err(wrong("a CUDA device for every worker of the node (start fewer workers)"))
        }
        "cuda" => {
            let index = local_rank as usize;
            // The default stream cannot be captured.
            graph::use_own_stream(index)?;
            if let Some(folder) = kernel_folder() {
                cache::set_folder(folder);
            }
            Ok(Device::Cuda(index))
        }
        _ => Err(wrong("cpu or cuda")),
    }
}

/// Where compiled kernels are kept from run to run; nowhere for a user without a home.
#[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
fn kernel_folder() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = cache.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")));
    cache.map(|cache| cache.join("enn").join("kernels"))
}

/// Meets the other ranks of the round in `store`, which is there when there are others.
///
/// # Errors
/// When a rank does not come within [`COLLECTIVE_WAIT_MAX`], or the forming is cut.
pub(super) fn group(
    store: Option<&Store>,
    seat: &Assignment,
    device: Device,
    wanted: Collectives,
    forming: &Forming,
) -> Result<Box<dyn ProcessGroup>, SessionError> {
    let Some(store) = store.filter(|_| seat.world_size > 1) else { return Ok(Box::new(Solo)) };
    let place = RankPlace { rank: seat.rank, size: seat.world_size, local: seat.local_world_size };
    let store = store.round(&format!("round-{}", seat.round))?;
    let whole = form(&store, place, device, wanted, forming)?;
    let former = move |store: &Store, (rank, size): (u32, u32), together: bool, forming: &Forming| {
        let place = RankPlace { rank, size, local: if together { size } else { 1 } };
        // Beside NCCL, copy engines are not measured.
        let wanted = if device.is_cuda() { Collectives::Nccl } else { wanted };
        form(store, place, device, wanted, forming)
    };
    Ok(Box::new(Meshed::new(whole, store, Box::new(former), forming, COLLECTIVE_WAIT_MAX)))
}

#[derive(Debug, Clone, Copy)]
pub(super) struct RankPlace {
    pub(super) rank: u32,
    pub(super) size: u32,
    pub(super) local: u32,
}

/// The group that meets in `store`: on GPUs their copy engines, or NCCL; else shared memory or Gloo.
pub(super) fn form(
    store: &Store,
    place: RankPlace,
    device: Device,
    wanted: Collectives,
    forming: &Forming,
) -> Result<Box<dyn ProcessGroup>, CommError> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(index) => {
            use enn_comm::{Linked, LinkedFormed, Nccl};
            let mut instead = None;
            if place.size > 1 && place.local == place.size && wanted == Collectives::Auto {
                let host = store.round("host")?;
                let host = host_group(&host, place, wanted, &forming.beside(COLLECTIVE_WAIT_MAX))?;
                match Linked::form(host, index, COLLECTIVE_WAIT_MAX, forming)? {
                    LinkedFormed::Group(linked) => return Ok(linked),
                    LinkedFormed::Refused { reason } => instead = Some(reason),
                }
            }
            let nccl = Nccl::form(store, place.rank, place.size, index as u32, COLLECTIVE_WAIT_MAX, forming)?;
            Ok(Box::new(nccl.instead(instead)))
        }
        _ => host_group(store, place, wanted, forming),
    }
}

/// Shared memory when it is wanted and can be had, else Gloo. Every rank comes to the same answer: from the assignment and
/// the configuration, which are equal, and then in [`Shm::form`] from what all ranks report.
fn host_group(
    store: &Store,
    place: RankPlace,
    wanted: Collectives,
    forming: &Forming,
) -> Result<Box<dyn ProcessGroup>, CommError> {
    let RankPlace { rank, size, local } = place;
    let timeout = COLLECTIVE_WAIT_MAX;
    if wanted == Collectives::Gloo || local != size {
        tracing::info!(wanted = ?wanted, "{local} of {size} workers are on this node; collectives go through Gloo");
        return Ok(Box::new(Gloo::form(store, &GlooOptions { rank, size, timeout }, forming)?));
    }
    let formed = Shm::form(store, &ShmOptions { rank, size, timeout }, forming)?;
    or_gloo(formed, store, place, forming)
}

/// Shared memory, or Gloo where a rank has none or sums wrongly in it.
fn or_gloo(
    formed: ShmFormed,
    store: &Store,
    RankPlace { rank, size, .. }: RankPlace,
    forming: &Forming,
) -> Result<Box<dyn ProcessGroup>, CommError> {
    let reason = match formed {
        ShmFormed::Group(group) => return Ok(Box::new(group)),
        ShmFormed::Refused { rank, reason } => format!("rank {rank} cannot share memory: {reason}"),
    };
    tracing::warn!(reason, "collectives go through Gloo");
    let gloo = Gloo::form(store, &GlooOptions { rank, size, timeout: COLLECTIVE_WAIT_MAX }, forming)?;
    Ok(Box::new(gloo.instead(Some(reason))))
}

pub(super) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, SessionError> {
    let text = std::fs::read(path).map_err(|source| SessionError::Read { path: path.to_owned(), source })?;
    serde_json::from_slice(&text).map_err(|source| SessionError::Parse { path: path.to_owned(), source })
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
            ("ENN_WORKER_ID", "3"),
            ("ENN_CONTROL_FD", "9"),
            ("ENN_ATTENTION", "flash, math"),
            ("ENN_LOG", "info"),
        ])
        .unwrap();
        let expected = Environment {
            broker: "/run/b.sock".into(),
            worker: 3,
            control_fd: Some(9),
            attention: Some(vec!["flash".into(), "math".into()]),
            log: "info".into(),
        };
        assert_eq!(environment, expected);
    }

    fn torchrun(pairs: &[(&str, &str)]) -> Result<TorchrunEnvironment, SessionError> {
        TorchrunEnvironment::parse(|name| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()))
    }

    #[test]
    fn torchruns_variables_say_the_place_and_none_is_a_world_of_one() {
        let alone = torchrun(&[]).unwrap();
        assert_eq!((alone.rank, alone.world_size, alone.store), (0, 1, None));
        let place = [("RANK", "3"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "2")];
        let store = [("MASTER_ADDR", "n1"), ("MASTER_PORT", "29400"), ("TORCHELASTIC_RESTART_COUNT", "2")];
        let found = torchrun(&[place.as_slice(), &store].concat()).unwrap();
        assert_eq!((found.rank, found.local_rank, found.local_world_size, found.round), (3, 1, 2, 2));
        assert_eq!(found.store, Some(("n1".to_owned(), 29400)));
        let ours = torchrun(&[place.as_slice(), &store, &[("ENN_ROUND", "5")]].concat()).unwrap();
        assert_eq!(ours.round, 5, "rounds also grow when nodes come and go");
        let error = torchrun(&place).unwrap_err().to_string();
        assert!(error.contains("MASTER_ADDR"), "{error}");
        let error = torchrun(&[("RANK", "1"), ("WORLD_SIZE", "1")]).unwrap_err().to_string();
        assert!(error.contains("RANK") && error.contains("WORLD_SIZE"), "{error}");
    }

    #[test]
    fn ranks_that_cannot_share_memory_sum_by_gloo_and_say_why() {
        use enn_broker::tcpstore::{Limits, serve};
        use tch::Tensor;
        let server = serve((std::net::Ipv4Addr::LOCALHOST, 0).into(), Limits::default()).unwrap();
        let port = server.addr().port();
        let one = move |rank| {
            let addr = enn_comm::StoreAddr { host: "127.0.0.1".into(), port, prefix: "round-0".into() };
            let store = Store::connect(addr, COLLECTIVE_WAIT_MAX)?;
            let forming = Forming::within(COLLECTIVE_WAIT_MAX);
            let formed = ShmFormed::Refused { rank: 1, reason: "a sum of 1003 numbers is wrong".to_owned() };
            let group = or_gloo(formed, &store, RankPlace { rank, size: 2, local: 2 }, &forming)?;
            let sum = Tensor::from_slice(&[1.5f32]);
            group.all_reduce_sum(&sum)?.wait(COLLECTIVE_WAIT_MAX)?;
            let found = (group.backend(), group.fell_back(), sum.double_value(&[0]));
            group.shutdown(COLLECTIVE_WAIT_MAX)?;
            Ok::<_, CommError>(found)
        };
        let found = std::thread::scope(|scope| {
            let ranks = [0, 1].map(|rank| scope.spawn(move || one(rank)));
            ranks.map(|rank| rank.join().unwrap().unwrap())
        });
        for (backend, message, sum) in found {
            assert_eq!((backend, sum), ("gloo", 3.0));
            assert!(message.unwrap().ends_with("rank 1 cannot share memory: a sum of 1003 numbers is wrong"));
        }
    }

    #[test]
    fn mistakes_name_the_variable() {
        let error = parse(&[]).unwrap_err().to_string();
        assert!(error.contains("ENN_BROKER") && error.contains("enn train"), "{error}");
        let error = parse(&[("ENN_BROKER", "b"), ("ENN_WORKER_ID", "first")]).unwrap_err().to_string();
        assert!(error.contains("ENN_WORKER_ID") && error.contains("first"), "{error}");
    }
}
