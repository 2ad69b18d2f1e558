//! A place among other ranks for a program with a training loop of its own, from torchrun's environment: under `enn run`,
//! under torchrun, or alone.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use enn_worker::session::torchrun::{DeviceChoice, join};
//! let place = join(DeviceChoice::Auto)?;
//! println!("rank {} of {} on {:?}", place.rank(), place.world(), place.device);
//! place.leave()?;
//! # Ok(())
//! # }
//! ```
//! **Invariant:** talks only to the store and the other ranks; needs no launcher of ENN.

use super::boot::{self, TorchrunEnvironment};
use super::{SessionError, clock::Throttle};
use crate::collective::{COLLECTIVE_WAIT_MAX, SHUTDOWN_WAIT_MAX};
use enn_comm::{Forming, Pending, ProcessGroup, Solo, Store, StoreAddr};
use enn_core::{error::HookError, op::collective::Collectives};
use std::{cell::RefCell, path::Path, time::Duration};
use tch::Device;

pub use enn_common::config::train::{Collectives as WantedCollectives, Device as DeviceChoice};

const ALIVE_EVERY: Duration = Duration::from_secs(1);

/// This process among the others.
pub struct Member {
    /// The others: for adding gradients up.
    pub group: Box<dyn ProcessGroup>,
    pub device: Device,
    pub(super) environment: TorchrunEnvironment,
    alive: RefCell<Throttle>,
    pending: Pending,
}

/// All ranks are what a step's [`enn_core::autograd::Cx::all_reduce`] sums over.
impl Collectives for Member {
    fn ranks(&self) -> u32 {
        self.world()
    }

    fn flops_per_byte(&self) -> f64 {
        self.group.flops_per_byte()
    }

    fn norms_of(&self, array: &tch::Tensor) -> Option<tch::Tensor> {
        self.group.norms_of(array)
    }

    fn intact(&self) -> Result<(), HookError> {
        Ok(self.group.intact()?)
    }

    fn all_reduce(&self, tensor: &tch::Tensor) -> Result<(), HookError> {
        self.pending.keep(self.group.all_reduce_sum(tensor)?);
        Ok(())
    }

    fn reduce_scatter(&self, whole: &tch::Tensor) -> Result<(), HookError> {
        self.pending.keep(self.group.reduce_scatter_sum(whole)?);
        Ok(())
    }

    fn all_gather(&self, whole: &tch::Tensor) -> Result<(), HookError> {
        self.pending.keep(self.group.all_gather(whole)?);
        Ok(())
    }

    fn order(&self) -> Result<(), HookError> {
        Ok(self.pending.order(COLLECTIVE_WAIT_MAX)?)
    }

    fn wait(&self) -> Result<(), HookError> {
        let ordered = self.order();
        self.pending.forget();
        ordered
    }
}

/// Reads who this process is and meets the others.
///
/// # Errors
/// A variable that makes no sense, a device that is not there, a rank that does not come in time.
pub fn join(device: DeviceChoice) -> Result<Member, SessionError> {
    join_with(device, WantedCollectives::Auto)
}

/// [`join`], with sums that go the way that is `wanted`; every rank wants the same.
pub fn join_with(device: DeviceChoice, wanted: WantedCollectives) -> Result<Member, SessionError> {
    let environment = TorchrunEnvironment::read()?;
    let name = match device {
        DeviceChoice::Cpu => "cpu",
        DeviceChoice::Cuda => "cuda",
        DeviceChoice::Auto if cfg!(feature = "cuda") && tch::Cuda::device_count() > 0 => "cuda",
        DeviceChoice::Auto => "cpu",
    };
    let device = boot::named_device(name, environment.local_rank)?;
    let group: Box<dyn ProcessGroup> = match &environment.store {
        Some((host, port)) if environment.world_size > 1 => {
            let prefix = format!("round-{}", environment.round);
            let addr = StoreAddr { host: host.clone(), port: *port, prefix };
            let rank = environment.rank;
            let size = environment.world_size;
            let local = environment.local_world_size;
            let store = Store::connect(addr, COLLECTIVE_WAIT_MAX)?;
            let forming = Forming::within(COLLECTIVE_WAIT_MAX);
            boot::form(&store, boot::RankPlace { rank, size, local }, device, wanted, &forming)?
        }
        _ => Box::new(Solo),
    };
    Ok(Member {
        group,
        device,
        environment,
        alive: RefCell::new(Throttle::new(ALIVE_EVERY)),
        pending: Pending::default(),
    })
}

impl Member {
    pub fn rank(&self) -> u32 {
        self.environment.rank
    }

    pub fn world(&self) -> u32 {
        self.environment.world_size
    }

    /// Rank 0: the one that prints and saves.
    pub fn leads(&self) -> bool {
        self.environment.rank == 0
    }

    /// The run's directory, under `enn run`.
    pub fn run_dir(&self) -> Option<&Path> {
        self.environment.run_dir.as_deref()
    }

    /// Says that step `step` is done, for the launcher's watch over hanging workers. Costs next to nothing.
    pub fn alive(&self, step: u64) -> Result<(), SessionError> {
        let Some(path) = &self.environment.progress_file else { return Ok(()) };
        if self.alive.borrow_mut().due() {
            std::fs::write(path, format!("step {step}\n"))
                .map_err(|source| SessionError::Progress { path: path.clone(), source })?;
        }
        Ok(())
    }

    /// Leaves the group after the last collective; every rank does.
    pub fn leave(self) -> Result<(), SessionError> {
        Ok(self.group.shutdown(SHUTDOWN_WAIT_MAX)?)
    }
}
