//! The list of what one step computed: values, records, and their hash.

use super::scope::{ScopeId, Scopes};
use crate::op::Op;
use crate::op::attr::CanonicalBytes;
use crate::op::value::{Meta, Role, Val};
use smallvec::SmallVec;
use tch::Device;

/// Which part of the step a record belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// The model and the loss.
    Forward,
    /// A part of the forward pass, computed again to save memory.
    Recompute,
    /// Emitted by reverse rules.
    Backward,
    /// Parameter updates.
    Optim,
    /// What the ranks do together.
    Comm,
}

/// What is known of a value.
#[derive(Debug, Clone)]
pub struct ValMeta {
    /// Shape, kind, device.
    pub meta: Meta,
    /// What it is for.
    pub role: Role,
    /// Whether a gradient flows through it.
    pub requires_grad: bool,
}

/// One executed operation. Operands it writes in place are named by [`Op::writes`].
#[derive(Debug, Clone)]
pub struct Rec {
    /// What was computed.
    pub op: Op,
    /// Operands.
    pub ins: SmallVec<[Val; 4]>,
    /// First result; the others follow it.
    pub first_out: Val,
    /// Number of results.
    pub outs: u32,
    /// The kernel that ran it.
    pub kernel: &'static str,
    /// Part of the step.
    pub phase: Phase,
    /// Place in the model.
    pub scope: ScopeId,
}

impl Rec {
    /// Its results.
    pub fn outs(&self) -> impl Iterator<Item = Val> + use<> {
        let first = self.first_out.0;
        (first..first + self.outs).map(Val)
    }
}

/// Everything one step computed.
#[derive(Debug, Default)]
pub struct Program {
    vals: Vec<ValMeta>,
    recs: Vec<Rec>,
    pub(super) scopes: Scopes,
}

impl Program {
    pub(super) fn with_capacity(records: usize) -> Self {
        Self { vals: Vec::with_capacity(2 * records), recs: Vec::with_capacity(records), scopes: Scopes::default() }
    }

    pub(super) fn value(&mut self, meta: Meta, role: Role, requires_grad: bool) -> Val {
        let val = Val(self.vals.len() as u32);
        self.vals.push(ValMeta { meta, role, requires_grad });
        val
    }

    pub(super) fn record(&mut self, rec: Rec) -> u32 {
        self.recs.push(rec);
        self.recs.len() as u32 - 1
    }

    /// The number the next value gets.
    pub(super) fn next(&self) -> Val {
        Val(self.vals.len() as u32)
    }

    /// What is known of a value.
    pub fn val(&self, val: Val) -> &ValMeta {
        &self.vals[val.0 as usize]
    }

    pub(super) fn at(&self, index: usize) -> &ValMeta {
        &self.vals[index]
    }

    /// What is known of all values, by number.
    pub fn vals(&self) -> &[ValMeta] {
        &self.vals
    }

    /// Number of values.
    pub fn values(&self) -> usize {
        self.vals.len()
    }

    /// The records, in the order of execution.
    pub fn recs(&self) -> &[Rec] {
        &self.recs
    }

    /// The dotted path of a place.
    pub fn place(&self, scope: ScopeId) -> String {
        self.scopes.path(scope)
    }

    /// The dotted paths of all places by number; the top's is empty.
    pub fn places(&self) -> Vec<String> {
        self.scopes.paths()
    }

    /// Floating-point operations of all records.
    pub fn flops(&self) -> u64 {
        self.recs.iter().map(|rec| self.cost(rec)).sum()
    }

    /// Floating-point operations of one record.
    pub(super) fn cost(&self, rec: &Rec) -> u64 {
        let ins: SmallVec<[&Meta; 4]> = rec.ins.iter().map(|v| &self.val(*v).meta).collect();
        let outs: SmallVec<[Meta; 2]> = rec.outs().map(|v| self.val(v).meta.clone()).collect();
        (rec.op.row().flops)(&rec.op, &ins, &outs)
    }

    /// The canonical bytes: operations, attributes, shapes, kinds, roles, edges, kernels and places; no addresses, no device index.
    pub fn canonical_bytes(&self) -> Vec<u8> {
        self.encoded(true)
    }

    fn encoded(&self, kernels: bool) -> Vec<u8> {
        let mut bytes = CanonicalBytes(Vec::with_capacity(64 * self.recs.len()));
        for v in &self.vals {
            bytes.put(&v.meta.shape);
            bytes.put(&v.meta.kind);
            bytes.put(&matches!(v.meta.device, Device::Cuda(_)));
            bytes.put(&v.role);
        }
        for entry in self.scopes.entries() {
            bytes.put(&entry);
        }
        for rec in &self.recs {
            bytes.put(&(&rec.op, &rec.ins, rec.first_out, rec.outs));
            bytes.put(&(rec.phase, rec.scope));
            if kernels {
                bytes.put(&rec.kernel);
            }
        }
        bytes.0
    }

    /// Hexadecimal hash of what is computed, whichever kernels compute it: equal on all ranks.
    pub fn structure_hash(&self) -> String {
        blake3::hash(&self.encoded(false)).to_hex().to_string()
    }

    /// Hexadecimal hash of the canonical bytes. Equal for equal steps of the same build; comparable between ranks.
    pub fn hash(&self) -> String {
        blake3::hash(&self.canonical_bytes()).to_hex().to_string()
    }
}
