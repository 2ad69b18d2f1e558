//! The interface to the ranks of a step.

use crate::error::HookError;

/// The ranks of a step, and the sums over them.
pub trait Collectives {
    /// How many ranks there are. With one, nothing is begun, and nothing recorded but a pause where one is wanted.
    fn ranks(&self) -> u32;

    /// Whether a step waits ([`Collectives::wait`]) before it changes the state. It cuts the step's graph in two.
    fn pauses(&self) -> bool {
        self.ranks() > 1
    }

    /// Floating-point operations that a device can do while the ranks sum one byte, 0 where summing keeps it from computing: how
    /// much there is to gain from sums that travel while something is computed.
    fn flops_per_byte(&self) -> f64 {
        0.0
    }

    /// Where [`Collectives::all_reduce`] measures the sums of that array: norms, f32, that make up the array's when the sums are there.
    fn norms_of(&self, array: &tch::Tensor) -> Option<tch::Tensor> {
        let _not_measured = array;
        None
    }

    /// Fails once a rank has ended the group of these ranks before its time: what is captured goes to the device without asking.
    ///
    /// # Errors
    /// Which rank did, where that is known.
    fn intact(&self) -> Result<(), HookError> {
        Ok(())
    }

    /// Begins to sum `tensor` over the ranks, in place.
    ///
    /// # Errors
    /// When the collective cannot be begun.
    fn all_reduce(&self, tensor: &tch::Tensor) -> Result<(), HookError>;

    /// How many ranks have the same share of the state as this one, itself counted.
    fn copies(&self) -> u32 {
        1
    }

    /// [`Collectives::all_reduce`] over the ranks that share the state with this one: all of them, or those of its node.
    ///
    /// # Errors
    /// When the collective cannot be begun.
    fn all_reduce_shares(&self, tensor: &tch::Tensor) -> Result<(), HookError> {
        self.all_reduce(tensor)
    }

    /// [`Collectives::all_reduce`] over the ranks that have the same share of the state. Only [`Collectives::wait`] waits for it.
    ///
    /// # Errors
    /// When the collective cannot be begun.
    fn all_reduce_copies(&self, tensor: &tch::Tensor) -> Result<(), HookError> {
        let _the_only_one = tensor;
        Ok(())
    }

    /// Begins to sum a flat array over the ranks that share the state, of as many equal parts as there are of these, for this
    /// rank's part only.
    ///
    /// # Errors
    /// When the collective cannot be begun.
    fn reduce_scatter(&self, whole: &tch::Tensor) -> Result<(), HookError>;

    /// Begins to give every rank that shares the state all parts of a flat array, of which each has its own.
    ///
    /// # Errors
    /// When the collective cannot be begun.
    fn all_gather(&self, whole: &tch::Tensor) -> Result<(), HookError>;

    /// Lets what follows on this device see the results of everything begun so far, but for sums over copies; a host need not wait
    /// for its device. What is found to have failed may show at [`Collectives::wait`] only.
    ///
    /// # Errors
    /// When a collective failed or did not end in time.
    fn order(&self) -> Result<(), HookError>;

    /// Lets what follows on this device see the results of everything begun so far.
    ///
    /// # Errors
    /// When a collective failed or did not end in time.
    fn wait(&self) -> Result<(), HookError>;
}

/// A number of ranks that are neither asked nor waited for: one, in any world; or several whose sums are thrown away.
#[derive(Debug, Clone, Copy)]
pub struct Unasked(pub u32);

impl Collectives for Unasked {
    fn ranks(&self) -> u32 {
        self.0
    }

    fn all_reduce(&self, _: &tch::Tensor) -> Result<(), HookError> {
        Ok(())
    }

    fn reduce_scatter(&self, _: &tch::Tensor) -> Result<(), HookError> {
        Ok(())
    }

    fn all_gather(&self, _: &tch::Tensor) -> Result<(), HookError> {
        Ok(())
    }

    fn order(&self) -> Result<(), HookError> {
        Ok(())
    }

    fn wait(&self) -> Result<(), HookError> {
        Ok(())
    }
}
