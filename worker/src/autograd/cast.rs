//! Autocast at the door: which operands of a call are cast, each cast a record of its own.
//!
//! A cast is made once per value and kind as long as someone holds it. A parameter's low-precision copy stands in for a
//! cast of it; copies are refreshed when a context begins to cast.
//!
//! **Invariant:** only the forward pass is cast; reverse rules find the kinds as the forward pass left them.

use super::call::run;
use super::cx::Cx;
use super::program::Phase;
use super::scope::ScopeId;
use crate::backend::torch::safe::version;
use crate::error::OpError;
use crate::op::Op;
use crate::op::fp8::FORWARD;
use crate::op::value::{BucketId, ParamId, Role, Tensor, Val, WeakTensor};
use crate::op::vjp::Results;
use crate::precision::{Autocast, Class, class, fp8, target};
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use tch::Kind;

/// What a context may cast, and what it has cast.
#[derive(Default)]
pub(super) struct Casting {
    /// What may be cast; nothing if absent.
    autocast: RefCell<Option<Rc<Autocast>>>,
    /// Whether the weights' copies are still as the weights.
    fresh: Cell<bool>,
    /// Guards of full precision entered and not left.
    depth: Cell<u32>,
}

/// Casts made so far, each with the version of the value that it was made of: what was written since needs another.
#[derive(Default)]
pub(super) struct Made {
    casts: HashMap<(Val, Kind), (i64, WeakTensor)>,
    /// Casts of parameters, held until the backward pass: a bias's would be let go at once, as nothing saves it.
    held: Vec<Tensor>,
    quantised: HashMap<Val, (i64, [WeakTensor; 3])>,
    /// 8-bit parameters, held as long as the context: no gradient flows through them, and weights do not change in a step.
    weights: Vec<Quantised>,
    shadows: Vec<Option<Tensor>>,
    /// Whether a place runs in f32, by place.
    full: Vec<Option<bool>>,
}

/// A call with its operands cast.
pub(super) struct Prepared {
    pub(super) op: Op,
    pub(super) ins: SmallVec<[Tensor; 4]>,
}

/// Operands of an 8-bit matrix: q, its transposed, its multiplier.
type Quantised = [Tensor; 3];

impl Cx<'_> {
    /// Lets the door cast what `autocast` says, and refreshes the weights' low-precision copies, if there are any, by one
    /// record for each flat array.
    ///
    /// # Errors
    /// What libtorch says.
    pub fn set_autocast(&self, autocast: Option<Autocast>) -> Result<(), OpError> {
        if autocast.is_some() && !self.casting.fresh.get() {
            let (copies, masters) = self.leaves.shadow_flats();
            for (copy, master) in copies.iter().zip(masters) {
                let [copy, master] = [copy, master].map(|flat| self.leaf(flat.shallow_clone(), Role::OptState, false));
                run(self, Op::CastInto, &[&copy, &master])?;
            }
        }
        self.casting.autocast.replace(autocast.map(Rc::new));
        Ok(())
    }

    /// Says that the weights have not changed since their low-precision copies were refreshed, when the optimizer writes the
    /// copies itself: [`Cx::set_autocast`] then leaves them alone.
    pub fn keep_shadows(&self) {
        self.casting.fresh.set(true);
    }

    /// The flat low-precision copies of a bucket's weights, for an optimizer that writes them beside the weights.
    pub(crate) fn shadow_flat(&self, bucket: BucketId) -> Option<&tch::Tensor> {
        self.leaves.shadow_flats().0.get(bucket.index())
    }

    /// What this rank keeps of the low-precision copies, where it keeps no more than a share: an array per run.
    pub(crate) fn kept_copies(&self) -> Vec<&tch::Tensor> {
        self.leaves.kept_copies()
    }

    /// Runs `f` without low precision: heads, gates, losses. Operands below f32 are cast up.
    pub fn full_precision<R>(&self, f: impl FnOnce(&Self) -> R) -> R {
        let depth = &self.casting.depth;
        depth.set(depth.get() + 1);
        let result = f(self);
        depth.set(depth.get() - 1);
        result
    }
}

/// `op` with the operands that the policy wants; `None` when they are so already.
pub(super) fn prepare(cx: &Cx<'_>, op: &Op, ins: &[&Tensor]) -> Result<Option<Prepared>, OpError> {
    if cx.phase.get() != Phase::Forward {
        return Ok(None);
    }
    let Some(autocast) = cx.casting.autocast.borrow().clone() else { return Ok(None) };
    let autocast = autocast.as_ref();
    let mut class = class(op);
    if matches!(class, Class::Pass | Class::Inside) {
        return Ok(None);
    }
    if matches!(class, Class::Low | Class::Stream) && (cx.casting.depth.get() > 0 || is_full(cx, autocast)) {
        class = Class::Full;
    }
    if class == Class::Stream
        && let Some(prepared) = beside_a_stream(cx, op, ins, autocast.low)?
    {
        return Ok(Some(prepared));
    }
    if let (Class::Low, Some(which), Op::Linear { bias }) = (class, autocast.fp8, op)
        && fp8::takes(which, ins[0].meta(), ins[1].meta())
    {
        return in_8_bits(cx, *bias, ins, autocast.low).map(Some);
    }
    let Some(to) = target(class, ins.iter().map(|t| t.kind()), autocast.low) else { return Ok(None) };
    let cast: Result<SmallVec<[Tensor; 4]>, OpError> = ins.iter().map(|t| cast(cx, t, to)).collect();
    Ok(Some(Prepared { op: op.clone(), ins: cast? }))
}

/// Forgets the casts: what the backward pass needs, its nodes hold, and the next micro-batch needs nodes of its own.
pub(super) fn forget(cx: &Cx<'_>) {
    let made = &mut cx.state.borrow_mut().made;
    made.casts.clear();
    made.held.clear();
}

fn is_full(cx: &Cx<'_>, autocast: &Autocast) -> bool {
    if autocast.full.is_empty() {
        return false;
    }
    let ScopeId(scope) = cx.scope.get();
    let at = scope as usize;
    let state = &mut *cx.state.borrow_mut();
    let known = &mut state.made.full;
    if known.len() <= at {
        known.resize(at + 1, None);
    }
    *known[at].get_or_insert_with(|| autocast.is_full(&state.program.place(ScopeId(scope))))
}

/// `x` in another kind: the copy of a parameter, an earlier cast, or a new one.
fn cast(cx: &Cx<'_>, x: &Tensor, to: Kind) -> Result<Tensor, OpError> {
    if x.kind() == to || !crate::precision::castable(x.kind()) {
        return Ok(x.clone());
    }
    if let Some(shadow) = shadow(cx, x, to)? {
        return Ok(shadow);
    }
    let version = version(x.raw());
    let known = cx
        .state
        .borrow()
        .made
        .casts
        .get(&(x.val(), to))
        .filter(|known| known.0 == version)
        .and_then(|known| known.1.upgrade());
    if let Some(known) = known {
        return Ok(known);
    }
    let param = is_param(cx, x);
    let cast = run(cx, Op::Cast { to }, &[x])?.swap_remove(0);
    let made = &mut cx.state.borrow_mut().made;
    made.casts.insert((x.val(), to), (version, cast.downgrade()));
    if param {
        made.held.push(cast.clone());
    }
    Ok(cast)
}

/// The low-precision copy of `x`, if it is a parameter whose copy has kind `to`.
fn shadow(cx: &Cx<'_>, x: &Tensor, to: Kind) -> Result<Option<Tensor>, OpError> {
    let Role::Param(id) = cx.with_program(|p| p.val(x.val()).role) else { return Ok(None) };
    let Some(shadow) = cx.leaves.shadow(id).filter(|shadow| shadow.kind() == to) else { return Ok(None) };
    if let Some(Some(known)) = cx.state.borrow().made.shadows.get(id.index()) {
        return Ok(Some(known.clone()));
    }
    let made = cx.leaf(shadow.shallow_clone(), Role::Shadow(id), x.requires_grad());
    remember(cx, id, &made);
    Ok(Some(made))
}

fn remember(cx: &Cx<'_>, id: ParamId, shadow: &Tensor) {
    let known = &mut cx.state.borrow_mut().made.shadows;
    if known.len() <= id.index() {
        known.resize(id.index() + 1, None);
    }
    known[id.index()] = Some(shadow.clone());
}

/// A norm with operands that stay low beside a stream in f32; `None` where these or the stream are of another kind.
fn beside_a_stream(cx: &Cx<'_>, op: &Op, ins: &[&Tensor], low: Kind) -> Result<Option<Prepared>, OpError> {
    let (beside, op) = match *op {
        Op::AddNorm { layer, eps, .. } => (1..2, Op::AddNorm { layer, eps, low: Some(low) }),
        Op::GatedNorm { layer, eps, .. } => (1..3, Op::GatedNorm { layer, eps, low: Some(low) }),
        _ => unreachable!("of another class"),
    };
    let stream = ins.iter().enumerate().filter(|(i, _)| !beside.contains(i)).map(|(_, t)| t.kind());
    let wide = target(Class::Stream, stream, low).unwrap_or_else(|| ins[0].kind());
    if ins[beside.clone()].iter().any(|t| t.kind() != low) || wide != Kind::Float {
        return Ok(None);
    }
    let cast: Result<SmallVec<[Tensor; 4]>, OpError> = ins
        .iter()
        .enumerate()
        .map(|(i, t)| if beside.contains(&i) { Ok((*t).clone()) } else { cast(cx, t, wide) })
        .collect();
    Ok(Some(Prepared { op, ins: cast? }))
}

/// A linear layer as an 8-bit one: rows and weight quantised from whatever kind they have, the bias in the low kind.
fn in_8_bits(cx: &Cx<'_>, bias: bool, ins: &[&Tensor], low: Kind) -> Result<Prepared, OpError> {
    let [x, xt, x_scale] = quantised(cx, ins[0])?;
    let [w, wt, w_scale] = quantised(cx, ins[1])?;
    let mut all: SmallVec<[Tensor; 4]> = SmallVec::new();
    all.extend([ins[0].clone(), ins[1].clone(), x, x_scale, w, w_scale, xt, wt]);
    if bias {
        all.push(cast(cx, ins[2], low)?);
    }
    Ok(Prepared { op: Op::Fp8Linear { bias, out: low }, ins: all })
}

fn quantised(cx: &Cx<'_>, x: &Tensor) -> Result<Quantised, OpError> {
    let version = version(x.raw());
    let known =
        cx.state.borrow().made.quantised.get(&x.val()).filter(|known| known.0 == version).and_then(|(_, [q, t, s])| {
            let alive: Option<Quantised> = q.upgrade().zip(t.upgrade()).zip(s.upgrade()).map(|((q, t), s)| [q, t, s]);
            alive
        });
    if let Some(known) = known {
        return Ok(known);
    }
    let mut outs: Results = run(cx, Op::Quantize { to: FORWARD }, &[x])?;
    let scale = outs.pop();
    let transposed = outs.pop();
    let q = outs.pop();
    let (Some(q), Some(transposed), Some(scale)) = (q, transposed, scale) else {
        unreachable!("quantize returns three results")
    };
    let made = [q, transposed, scale];
    let param = is_param(cx, x);
    let known = &mut cx.state.borrow_mut().made;
    let [q, transposed, scale] = &made;
    known.quantised.insert(x.val(), (version, [q.downgrade(), transposed.downgrade(), scale.downgrade()]));
    if param {
        known.weights.push(made.clone());
    }
    Ok(made)
}

fn is_param(cx: &Cx<'_>, x: &Tensor) -> bool {
    cx.with_program(|p| p.val(x.val()).role.param().is_some())
}
