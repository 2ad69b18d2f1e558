//! Converts two recordings of one function, for batches of two sizes, to a graph whose sizes follow the batch.

use super::ExportError;
use enn_common::graph::{DType, Dim, Graph, Id, Known};
use enn_core::{
    autograd::{Cx, Program, Rec},
    op::{
        Op,
        lower::{Lower, LowerError},
        row::Export,
        value::{Role, Val},
    },
    params::Params,
};
use std::collections::HashMap;
use tch::{Device, Kind, Tensor as Raw};

/// Rows of the two recordings: primes that do not occur as sizes in models.
pub(super) const BATCHES: [i64; 2] = [7, 11];

/// One recorded call of a function: its context, and its inputs and outputs by name.
pub(super) struct Recording<'p> {
    pub(super) cx: Cx<'p>,
    pub(super) inputs: Vec<(String, Val)>,
    pub(super) outputs: Vec<(String, Val)>,
}

pub(super) fn graph(recordings: &[Recording<'_>; 2], params: &Params) -> Result<Graph, ExportError> {
    let [a, b] = recordings;
    a.cx.with_program(|first| b.cx.with_program(|second| Tracer::new(a, [first, second], params).trace()))
}

struct Tracer<'a> {
    recording: &'a Recording<'a>,
    programs: [&'a Program; 2],
    params: &'a Params,
    leaves: HashMap<Val, Raw>,
    graph: Graph,
    made: HashMap<Val, Id>,
    rests: HashMap<Id, Id>,
    constants: usize,
}

impl<'a> Tracer<'a> {
    fn new(recording: &'a Recording<'a>, programs: [&'a Program; 2], params: &'a Params) -> Self {
        let leaves = recording.cx.kept_leaves().into_iter().collect();
        let made = HashMap::new();
        let rests = HashMap::new();
        Self { recording, programs, params, leaves, graph: Graph::new(), made, rests, constants: 0 }
    }

    fn trace(mut self) -> Result<Graph, ExportError> {
        let [first, second] = self.programs;
        if first.recs().len() != second.recs().len() || first.values() != second.values() {
            let found = format!("{} and {} operations", first.recs().len(), second.recs().len());
            return Err(ExportError::Batch { what: "what is computed", place: "the model".to_owned(), found });
        }
        for (name, val) in &self.recording.inputs {
            let dtype = dtype(first.val(*val).meta.kind, name)?;
            let shape = self.shape(*val, name)?;
            let id = self.graph.input(name, dtype, shape);
            self.made.insert(*val, id);
        }
        for (rec, other) in first.recs().iter().zip(second.recs()) {
            self.lower(rec, &other.op)?;
        }
        for (name, val) in &self.recording.outputs {
            let id = self.operand(*val, "the answer")?;
            self.graph.output(id, name);
        }
        Ok(self.graph)
    }

    fn lower(&mut self, rec: &Rec, other: &Op) -> Result<(), ExportError> {
        let place = self.programs[0].place(rec.scope);
        if !same(&rec.op, other) {
            let found = format!("{:?} and {other:?}", rec.op);
            return Err(ExportError::Batch { what: rec.op.name(), place, found });
        }
        let lowering = match rec.op.row().export {
            Export::As(lowering) => lowering,
            Export::No(no) => return Err(ExportError::unsupported(&rec.op, &place, &LowerError::No(no))),
        };
        let ins: Vec<Id> = rec.ins.iter().map(|val| self.operand(*val, &place)).collect::<Result<_, _>>()?;
        let outs: Vec<Vec<Dim>> = rec.outs().map(|val| self.shape(val, &place)).collect::<Result<_, _>>()?;
        let mut lower = Lower { graph: &mut self.graph, ins: &ins, rests: &self.rests, outs: &outs, place: &place };
        let made = lowering(&rec.op, &mut lower).map_err(|why| ExportError::unsupported(&rec.op, &place, &why))?;
        // Outputs that only a derivative reads are not in the graph, and are never requested.
        self.made.extend(rec.outs().zip(made));
        Ok(())
    }

    /// Returns a value as an operand; leaves enter the graph on first use.
    fn operand(&mut self, val: Val, place: &str) -> Result<Id, ExportError> {
        if let Some(id) = self.made.get(&val) {
            return Ok(*id);
        }
        let Some(raw) = self.leaves.get(&val).map(Raw::shallow_clone) else {
            let why = "it exists during training only".to_owned();
            return Err(ExportError::without("an operand", place, why, "results of the forward pass".to_owned()));
        };
        let sizes = self.shape(val, place)?.iter().map(|dim| dim.fixed()).collect::<Option<Vec<u64>>>();
        let what = "a known tensor";
        let found = format!("{:?}", raw.size());
        let sizes = sizes.ok_or_else(|| ExportError::Batch { what, place: place.to_owned(), found })?;
        let (name, known) = match self.programs[0].val(val).role {
            Role::Param(id) => (self.params.name(id).to_owned(), Known::Parameter),
            _ => {
                self.constants += 1;
                (format!("constant_{}", self.constants), Known::Constant)
            }
        };
        let id = self.graph.known(&name, dtype(raw.kind(), place)?, &sizes, known, bytes(&raw)?)?;
        if raw.kind() == Kind::Double
            && let Some(rest) = rest(&raw)?
        {
            let rest = self.graph.known(&format!("{name}_rest"), DType::F32, &sizes, Known::Constant, rest)?;
            self.rests.insert(id, rest);
        }
        self.made.insert(val, id);
        Ok(id)
    }

    /// Derives the sizes for any batch from those of the two recordings.
    fn shape(&self, val: Val, place: &str) -> Result<Vec<Dim>, ExportError> {
        let [a, b] = self.programs.map(|program| &program.val(val).meta.shape);
        let found = || format!("sizes {a:?} and {b:?}");
        let wrong = || ExportError::Batch { what: "a tensor", place: place.to_owned(), found: found() };
        if a.len() != b.len() {
            return Err(wrong());
        }
        a.iter().zip(b).map(|(a, b)| size(*a, *b).ok_or_else(wrong)).collect()
    }
}

/// Returns a size that is equal for both batches, or the same multiple of each.
fn size(a: i64, b: i64) -> Option<Dim> {
    let times = a / BATCHES[0];
    match a == b {
        true => Some(Dim::Fixed(a.unsigned_abs())),
        false if times > 0 && [a, b] == BATCHES.map(|batch| times * batch) => Some(Dim::Batch(times.unsigned_abs())),
        false => None,
    }
}

/// Whether two operations are equal except for the batch in the shapes they produce.
fn same(a: &Op, b: &Op) -> bool {
    match (a, b) {
        (Op::Reshape(_), Op::Reshape(_)) | (Op::Expand(_), Op::Expand(_)) | (Op::SumTo(_), Op::SumTo(_)) => true,
        (Op::Zeros(a), Op::Zeros(b)) => a.kind == b.kind,
        (Op::Ones(a), Op::Ones(b)) => a.kind == b.kind,
        _ => a == b,
    }
}

fn dtype(kind: Kind, place: &str) -> Result<DType, ExportError> {
    match kind {
        Kind::Float | Kind::Double => Ok(DType::F32),
        Kind::Int64 => Ok(DType::I64),
        Kind::Bool => Ok(DType::Bool),
        kind => Err(ExportError::Kind { place: place.to_owned(), kind }),
    }
}

/// Returns the elements, row-major; f64 rounded to f32.
fn bytes(raw: &Raw) -> Result<Vec<u8>, tch::TchError> {
    let flat = raw.f_to_device(Device::Cpu)?.f_contiguous()?.f_view([-1])?;
    Ok(match raw.kind() {
        Kind::Int64 => Vec::<i64>::try_from(flat)?.iter().flat_map(|v| v.to_le_bytes()).collect(),
        Kind::Bool => Vec::<bool>::try_from(flat)?.iter().map(|v| u8::from(*v)).collect(),
        _ => floats(&flat)?,
    })
}

fn floats(flat: &Raw) -> Result<Vec<u8>, tch::TchError> {
    Ok(Vec::<f32>::try_from(flat.f_to_kind(Kind::Float)?)?.iter().flat_map(|v| v.to_le_bytes()).collect())
}

/// Returns the remainders of rounding f64 to f32; `None` where all are zero.
fn rest(raw: &Raw) -> Result<Option<Vec<u8>>, tch::TchError> {
    let flat = raw.f_to_device(Device::Cpu)?.f_contiguous()?.f_view([-1])?;
    let left = flat.f_sub(&flat.f_to_kind(Kind::Float)?.f_to_kind(Kind::Double)?)?;
    let some = left.f_ne(0.0)?.f_any()?.f_int64_value(&[])? != 0;
    Ok(if some { Some(floats(&left)?) } else { None })
}
