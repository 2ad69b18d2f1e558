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
    /// A part of the forward pass that is recomputed to save memory.
    Recompute,
    /// The operations emitted by reverse rules.
    Backward,
    /// The parameter updates of the optimizer.
    Optim,
    /// Collectives and changes of sharded memory.
    Comm,
}

#[derive(Debug, Clone)]
pub struct ValMeta {
    pub meta: Meta,
    pub role: Role,
    pub requires_grad: bool,
}

/// One executed operation. [`Op::writes`] tells which operands it writes in place.
#[derive(Debug, Clone)]
pub struct Rec {
    pub op: Op,
    pub ins: SmallVec<[Val; 4]>,
    /// The first result; the others have the numbers after it.
    pub first_out: Val,
    pub outs: u32,
    pub kernel: &'static str,
    pub phase: Phase,
    pub scope: ScopeId,
}

impl Rec {
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

    pub(super) fn next(&self) -> Val {
        Val(self.vals.len() as u32)
    }

    pub fn val(&self, val: Val) -> &ValMeta {
        &self.vals[val.0 as usize]
    }

    /// Returns the properties of all values, by number.
    pub fn vals(&self) -> &[ValMeta] {
        &self.vals
    }

    pub fn values(&self) -> usize {
        self.vals.len()
    }

    pub fn recs(&self) -> &[Rec] {
        &self.recs
    }

    /// Returns the dotted path of a scope.
    pub fn place(&self, scope: ScopeId) -> String {
        self.scopes.path(scope)
    }

    /// Returns the dotted paths of all scopes by number; the top's is empty.
    pub fn places(&self) -> Vec<String> {
        self.scopes.paths()
    }

    pub fn flops(&self) -> u64 {
        self.recs.iter().map(|rec| self.cost(rec)).sum()
    }

    pub(crate) fn cost(&self, rec: &Rec) -> u64 {
        let ins: SmallVec<[&Meta; 4]> = rec.ins.iter().map(|v| &self.val(*v).meta).collect();
        let outs: SmallVec<[Meta; 2]> = rec.outs().map(|v| self.val(v).meta.clone()).collect();
        rec.op.flops(&ins, &outs)
    }

    /// Returns the canonical bytes: operations, attributes, shapes, kinds, roles, edges, kernels and scopes; no addresses, no device index.
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

    /// Returns a hexadecimal hash of the program without its kernels, which is equal on all ranks.
    pub fn structure_hash(&self) -> String {
        blake3::hash(&self.encoded(false)).to_hex().to_string()
    }

    /// Returns a hexadecimal hash of the canonical bytes. It is equal for equal steps of the same build and comparable between ranks.
    pub fn hash(&self) -> String {
        blake3::hash(&self.canonical_bytes()).to_hex().to_string()
    }
}
