//! Autocast: which operands of a call are cast. Each cast is a record of its own.
//!
//! A value is cast once per kind as long as the result is alive. A parameter's low-precision copy (shadow) replaces a
//! cast of it; copies are refreshed when a context begins to cast.
//!
//! **Invariant:** only the forward pass is cast; reverse rules use the kinds of the forward pass.

use super::cast_cache::Quantised;
use super::cx::Cx;
use super::program::Phase;
use super::run::run;
use super::scope::ScopeId;
use crate::backend::torch::safe::version;
use crate::error::OpError;
use crate::op::low_precision::FORWARD;
use crate::op::row::Class;
use crate::op::value::{BucketId, ParamId, Role, Tensor};
use crate::op::vjp::Results;
use crate::op::{AddNorm, Cast, CastInto, Fp8Linear, GatedNorm, Linear, Op, Quantize};
use crate::precision::{Autocast, fp8, target};
use smallvec::SmallVec;
use std::rc::Rc;
use tch::Kind;

pub(super) struct CastCall {
    pub(super) op: Op,
    pub(super) ins: SmallVec<[Tensor; 4]>,
}

impl Cx<'_> {
    /// Sets the autocast policy, and refreshes the weights' low-precision copies, if there are any, with one
    /// record for each flat array.
    pub fn set_autocast(&self, autocast: Option<Autocast>) -> Result<(), OpError> {
        if autocast.is_some() && !self.casting.fresh.get() {
            let (copies, masters) = self.leaves.shadow_flats();
            for (copy, master) in copies.iter().zip(masters) {
                let [copy, master] = [copy, master].map(|flat| self.leaf(flat.shallow_clone(), Role::OptState, false));
                run(self, CastInto.into(), &[&copy, &master])?;
            }
        }
        self.casting.autocast.replace(autocast.map(Rc::new));
        Ok(())
    }

    /// Declares the low-precision copies up to date, for an optimizer that writes them together with the weights:
    /// [`Cx::set_autocast`] then does not refresh them.
    pub fn keep_shadows(&self) {
        self.casting.fresh.set(true);
    }

    /// Returns the flat low-precision copies of a bucket's weights, for an optimizer that writes them together with the weights.
    pub fn shadow_flat(&self, bucket: BucketId) -> Option<&tch::Tensor> {
        self.leaves.shadow_flats().0.get(bucket.index())
    }

    /// Returns this rank's shards of the low-precision copies, one array per contiguous range; empty if copies are not sharded.
    pub fn low_precision_shards(&self) -> Vec<&tch::Tensor> {
        self.leaves.low_precision_shards()
    }

    /// Runs `f` without low precision, as heads, gates and losses need it. Operands below f32 are cast up.
    pub fn full_precision<R>(&self, f: impl FnOnce(&Self) -> R) -> R {
        let depth = &self.casting.depth;
        depth.set(depth.get() + 1);
        let result = f(self);
        depth.set(depth.get() - 1);
        result
    }
}

/// Casts the operands of `op` as the policy wants them. Returns `None` when there is nothing to cast.
pub(super) fn prepare(cx: &Cx<'_>, op: &Op, ins: &[&Tensor]) -> Result<Option<CastCall>, OpError> {
    if cx.phase.get() != Phase::Forward {
        return Ok(None);
    }
    let Some(autocast) = cx.casting.autocast.borrow().clone() else { return Ok(None) };
    let autocast = autocast.as_ref();
    let mut class = op.row().class;
    if matches!(class, Class::Pass | Class::Inside) {
        return Ok(None);
    }
    if matches!(class, Class::Low | Class::Stream) && (cx.casting.depth.get() > 0 || is_full(cx, autocast)) {
        class = Class::Full;
    }
    if class == Class::Stream
        && let Some(prepared) = cast_stream_norm(cx, op, ins, autocast.low)?
    {
        return Ok(Some(prepared));
    }
    if let (Class::Low, Some(which), Op::Linear(Linear { bias })) = (class, autocast.fp8, op)
        && fp8::takes(which, ins[0].meta(), ins[1].meta())
    {
        return to_fp8_linear(cx, *bias, ins, autocast.low).map(Some);
    }
    let Some(to) = target(class, ins.iter().map(|t| t.kind()), autocast.low) else { return Ok(None) };
    let cast: Result<SmallVec<[Tensor; 4]>, OpError> = ins.iter().map(|t| cast(cx, t, to)).collect();
    Ok(Some(CastCall { op: op.clone(), ins: cast? }))
}

/// Clears the cast cache. The tape's nodes hold the casts that the backward pass needs, and the next micro-batch makes its own.
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

/// Returns `x` in another kind: the low-precision copy of a parameter, an earlier cast, or a new one.
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
    let cast = run(cx, Cast { to }.into(), &[x])?.swap_remove(0);
    let made = &mut cx.state.borrow_mut().made;
    made.casts.insert((x.val(), to), (version, cast.downgrade()));
    if param {
        made.held.push(cast.clone());
    }
    Ok(cast)
}

/// Returns the low-precision copy of `x`, if it is a parameter whose copy has kind `to`.
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

/// Prepares a norm whose branch operands stay in the low kind while the residual stream is f32. Returns `None` where the branch or
/// the stream has another kind.
fn cast_stream_norm(cx: &Cx<'_>, op: &Op, ins: &[&Tensor], low: Kind) -> Result<Option<CastCall>, OpError> {
    let (branch, op) = match *op {
        Op::AddNorm(AddNorm { layer, eps, .. }) => (1..2, AddNorm { layer, eps, low: Some(low) }.into()),
        Op::GatedNorm(GatedNorm { layer, eps, .. }) => (1..3, GatedNorm { layer, eps, low: Some(low) }.into()),
        _ => return Ok(None),
    };
    let stream = ins.iter().enumerate().filter(|(i, _)| !branch.contains(i)).map(|(_, t)| t.kind());
    let wide = target(Class::Stream, stream, low).unwrap_or_else(|| ins[0].kind());
    if ins[branch.clone()].iter().any(|t| t.kind() != low) || wide != Kind::Float {
        return Ok(None);
    }
    let cast: Result<SmallVec<[Tensor; 4]>, OpError> = ins
        .iter()
        .enumerate()
        .map(|(i, t)| if branch.contains(&i) { Ok((*t).clone()) } else { cast(cx, t, wide) })
        .collect();
    Ok(Some(CastCall { op, ins: cast? }))
}

/// Turns a linear layer into an 8-bit one: rows and weight are quantised from their own kinds, the bias is cast to the low kind.
fn to_fp8_linear(cx: &Cx<'_>, bias: bool, ins: &[&Tensor], low: Kind) -> Result<CastCall, OpError> {
    let [x, xt, x_scale] = quantised(cx, ins[0])?;
    let [w, wt, w_scale] = quantised(cx, ins[1])?;
    let mut all: SmallVec<[Tensor; 4]> = SmallVec::new();
    all.extend([ins[0].clone(), ins[1].clone(), x, x_scale, w, w_scale, xt, wt]);
    if bias {
        all.push(cast(cx, ins[2], low)?);
    }
    Ok(CastCall { op: Fp8Linear { bias, out: low }.into(), ins: all })
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
    let outs: Results = run(cx, Quantize { to: FORWARD }.into(), &[x])?;
    let Ok(made) = Quantised::try_from(outs.into_vec()) else { unreachable!("quantize returns three results") };
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
