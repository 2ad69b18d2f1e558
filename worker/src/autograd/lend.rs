//! Parameters and gradients whose memory is there only while a step uses them: what ranks that share the weights do.
//!
//! Each rank keeps its part of every flat array. The door brings an array when an operation reads a parameter in it: memory,
//! this rank's part, then everybody's; all of it recorded. The neighbour that will be read next is brought at the same time.
//! A few arrays stay; the one not used for longest goes first. A gradient array comes when the first gradient in it is made,
//! is summed over the ranks when the last one is there, added to the part that this rank keeps, and goes. Where other ranks keep
//! the same part, the last micro-batch's sums of it are summed over them, too, while the backward pass goes on.
//!
//! **Invariant:** what is here when depends on the program only, so that all ranks run the same collectives. At the end of a step
//! nothing is here.

use super::cx::Cx;
use super::leaf::GradLeaves;
use super::memory::is_view;
use super::program::{Phase, Rec};
use crate::backend::duplicate;
use crate::backend::torch::safe::renew_storage;
use crate::error::OpError;
use crate::op::Op;
use crate::op::value::{BucketId, Tensor, Val};
use smallvec::SmallVec;
use std::collections::{HashMap, VecDeque};
use tch::{TchError, Tensor as Raw};

/// Arrays of parameters that are here at a time: the one that is read, the one before it, and the next.
const HERE_MAX: usize = 3;

/// A flat array whose memory comes and goes.
#[derive(Debug)]
pub struct Lent {
    /// The array.
    whole: Raw,
    /// What of it the ranks have in equal parts, if there is any.
    divided: Option<Raw>,
    /// What of it all of them have, if there is any.
    common: Option<Raw>,
    /// What this rank keeps: the place in the array, and the values.
    kept: Vec<(Raw, Raw)>,
}

impl Lent {
    /// Takes the memory of `whole` away, which owns its storage. What the ranks have in equal parts, what all of them have, and
    /// `places` are views of it; the values at the places are kept.
    ///
    /// # Errors
    /// When there is no memory for what is kept.
    pub fn new(whole: &Raw, (divided, common): (Option<Raw>, Option<Raw>), places: Vec<Raw>) -> Result<Self, TchError> {
        let keep = |place: Raw| duplicate(&place).map(|values| (place, values));
        let kept = places.into_iter().map(keep).collect::<Result<_, _>>()?;
        let lent = Self { whole: whole.shallow_clone(), divided, common, kept };
        lent.renew(false)?;
        Ok(lent)
    }

    /// What this rank keeps.
    pub fn kept(&self) -> impl Iterator<Item = &Raw> {
        self.kept.iter().map(|(_, values)| values)
    }

    /// Gives the array memory of unknown content, or takes it away.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn renew(&self, there: bool) -> Result<(), TchError> {
        renew_storage(&self.whole, there).map_err(|error| TchError::Torch(error.to_string()))
    }

    /// Outside a step: gives the array memory, and in it what this rank keeps and zeros.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn fill(&self) -> Result<(), TchError> {
        self.renew(true)?;
        tch::no_grad(|| {
            let _ = self.whole.shallow_clone().f_zero_()?;
            self.kept.iter().try_for_each(|(place, values)| place.shallow_clone().f_copy_(values))
        })
    }
}

/// What of the arrays is here.
#[derive(Default)]
pub(super) struct Lending {
    /// Values that lie in an array of parameters.
    owners: HashMap<Val, usize>,
    /// Arrays of parameters that are here, the one used last at the end.
    here: VecDeque<usize>,
    /// Of these, one that was begun to be brought.
    coming: Option<usize>,
    /// Gradient arrays that are here, by bucket.
    gradients: Vec<bool>,
    /// The one whose sums were begun.
    summed: Option<BucketId>,
}

impl Lending {
    pub(super) fn note(&mut self, val: Val, array: usize) {
        self.owners.insert(val, array);
    }
}

impl Cx<'_> {
    /// Sees to it that what an operation reads is here.
    pub(super) fn borrow(&self, ins: &[&Tensor]) -> Result<(), OpError> {
        if self.leaves.lent().is_empty() {
            return Ok(());
        }
        let mut needed: SmallVec<[usize; 4]> = SmallVec::new();
        for tensor in ins {
            let owner = self.lending.borrow().owners.get(&tensor.val()).copied();
            needed.extend(owner.filter(|array| !needed.contains(array)));
        }
        for &array in &needed {
            let (here, coming) = {
                let lending = self.lending.borrow();
                (lending.here.contains(&array), lending.coming == Some(array))
            };
            if !here {
                self.bring(array, &needed)?;
            }
            if !here || coming {
                self.lending.borrow_mut().coming = None;
                self.together(Op::Order, &[])?;
                self.expect_next_to(array, &needed)?;
            }
            let here = &mut self.lending.borrow_mut().here;
            here.retain(|other| *other != array);
            here.push_back(array);
        }
        Ok(())
    }

    /// Views of what lies in an array lie there, too.
    pub(super) fn follow(&self, rec: &Rec) {
        if self.leaves.lent().is_empty() || !is_view(&rec.op) {
            return;
        }
        let mut lending = self.lending.borrow_mut();
        if let Some(array) = rec.ins.first().and_then(|val| lending.owners.get(val).copied()) {
            rec.outs().for_each(|val| lending.note(val, array));
        }
    }

    /// Begins to bring the array that will be read behind `array`.
    fn expect_next_to(&self, array: usize, needed: &[usize]) -> Result<(), OpError> {
        let next = match self.phase.get() {
            Phase::Forward => array.checked_sub(1),
            _ => Some(array + 1),
        };
        let lent = self.leaves.lent();
        // Masters and their copies lie behind each other, as many of these as of those.
        let kind = |array: usize| lent[array].whole.kind();
        let next = next.filter(|next| *next < lent.len() && kind(*next) == kind(array));
        let Some(next) = next.filter(|next| !self.lending.borrow().here.contains(next)) else { return Ok(()) };
        self.bring(next, &[needed, &[array]].concat())?;
        self.lending.borrow_mut().coming = Some(next);
        Ok(())
    }

    /// Begins to bring an array, and sends away who is in its place.
    fn bring(&self, array: usize, needed: &[usize]) -> Result<(), OpError> {
        let gone = {
            let lending = &mut *self.lending.borrow_mut();
            let full = lending.here.len() >= HERE_MAX;
            let oldest =
                lending.here.iter().position(|other| !needed.contains(other) && lending.coming != Some(*other));
            oldest.filter(|_| full).and_then(|at| lending.here.remove(at))
        };
        let lent = self.leaves.lent();
        if let Some(gone) = gone {
            self.beside(Op::Release, &[&lent[gone].whole])?;
        }
        let Lent { whole, divided, kept, .. } = &lent[array];
        self.beside(Op::Allocate, &[whole])?;
        for (place, values) in kept {
            self.beside(Op::Place, &[place, values])?;
        }
        if let Some(divided) = divided {
            self.together(Op::AllGather, &[divided])?;
        }
        self.lending.borrow_mut().here.push_back(array);
        Ok(())
    }

    /// Sees to it that a gradient array is here: zeros when it comes.
    pub(super) fn borrow_gradients(&self, grads: &dyn GradLeaves, bucket: BucketId) -> Result<(), OpError> {
        let lent = grads.lent();
        let Some(array) = lent.get(bucket.index()) else { return Ok(()) };
        {
            let here = &mut self.lending.borrow_mut().gradients;
            here.resize(lent.len(), false);
            if std::mem::replace(&mut here[bucket.index()], true) {
                return Ok(());
            }
        }
        self.beside(Op::Allocate, &[&array.whole])?;
        self.beside(Op::Zero, &[&array.whole])
    }

    /// A bucket of gradients that come and go is complete: begins to sum it over the ranks, and takes up the sums of the one
    /// before it. For the hook of [`Cx::backward`], for every micro-batch; `last` is the step's last one.
    ///
    /// # Errors
    /// As [`Cx::all_reduce`].
    pub fn give_gradients(&self, grads: &dyn GradLeaves, bucket: BucketId, last: bool) -> Result<(), OpError> {
        self.borrow_gradients(grads, bucket)?;
        self.take_sums(grads, last)?;
        let array = &grads.lent()[bucket.index()];
        if let Some(divided) = &array.divided {
            self.together(Op::ReduceScatter, &[divided])?;
        }
        if let Some(common) = &array.common {
            self.together(Op::AllReduceShares, &[common])?;
        }
        self.lending.borrow_mut().summed = Some(bucket);
        Ok(())
    }

    /// Takes up the last sums; behind [`Cx::backward`]. Those of the `last` micro-batch go on to whoever keeps the same part.
    ///
    /// # Errors
    /// As [`Cx::all_reduce`].
    pub fn take_sums(&self, grads: &dyn GradLeaves, last: bool) -> Result<(), OpError> {
        let Some(bucket) = self.lending.borrow_mut().summed.take() else { return Ok(()) };
        let array = &grads.lent()[bucket.index()];
        self.together(Op::Order, &[])?;
        for (place, sum) in &array.kept {
            self.beside(Op::GradAdd, &[sum, place])?;
        }
        self.beside(Op::Release, &[&array.whole])?;
        self.lending.borrow_mut().gradients[bucket.index()] = false;
        if last && self.has_copies() {
            self.together(Op::AllReduceCopies, &array.kept().collect::<SmallVec<[&Raw; 2]>>())?;
        }
        Ok(())
    }

    /// Sends all arrays of parameters away: nothing of this step reads them any more.
    ///
    /// # Errors
    /// As [`Cx::all_reduce`].
    pub fn return_parameters(&self) -> Result<(), OpError> {
        let here = {
            let lending = &mut *self.lending.borrow_mut();
            lending.coming = None;
            std::mem::take(&mut lending.here)
        };
        if !here.is_empty() {
            // One may still be coming.
            self.together(Op::Order, &[])?;
        }
        here.into_iter().try_for_each(|array| self.beside(Op::Release, &[&self.leaves.lent()[array].whole]))
    }
}
