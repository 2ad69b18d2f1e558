//! A LiteRT model under construction, and its bytes: the tables of tflite/schema/schema.fbs by the numbers of their fields.

use super::builtin::Builtin;
use crate::model::signed;
use enn_common::graph::Dim;
use flatbuffers::{
    FlatBufferBuilder, ForwardsUOffset, TableFinishedWIPOffset, UnionWIPOffset, VOffsetT, Vector, WIPOffset,
};
use std::borrow::Cow;

pub const SIGNATURE: &str = "serving_default";
/// Identifier among the file's first bytes.
const IDENTIFIER: &str = "TFL3";
const SCHEMA: u32 = 3;
/// Alignment of tensors in bytes, which the schema demands: runtimes read them in place.
const ALIGNMENT: usize = 16;
/// Largest number of `BuiltinOperator` that is also written in a field of one byte, for older runtimes.
const OLD_CODE_MAX: i32 = 127;

/// Numbers of `TensorType` in the schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum TensorKind {
    Float32 = 0,
    Float16 = 1,
    Int32 = 2,
    Bool = 6,
}

/// A field of an operator's options: its number and value.
#[derive(Debug, Clone, Copy)]
pub(super) enum OptionField {
    Byte(u16, i8),
    Bool(u16, bool),
    Int(u16, i32),
    Float(u16, f32),
}

#[derive(Debug)]
pub(super) struct TensorDraft<'a> {
    pub(super) name: String,
    pub(super) kind: TensorKind,
    pub(super) shape: Vec<Dim>,
    /// Elements, where they are known.
    pub(super) data: Option<Cow<'a, [u8]>>,
}

#[derive(Debug)]
pub(super) struct Operator {
    pub(super) op: Builtin,
    pub(super) version: i32,
    pub(super) ins: Vec<i32>,
    pub(super) out: i32,
    pub(super) options: Vec<OptionField>,
}

/// A port of the signature: its name and tensor.
pub(super) type SignaturePort<'a> = (&'a str, i32);

#[derive(Debug, Default)]
pub(super) struct ModelDraft<'a> {
    pub(super) tensors: Vec<TensorDraft<'a>>,
    pub(super) operators: Vec<Operator>,
    pub(super) inputs: Vec<SignaturePort<'a>>,
    pub(super) outputs: Vec<SignaturePort<'a>>,
}

/// Returns the byte position of a field in a table's vtable.
const fn slot(number: u16) -> VOffsetT {
    4 + 2 * number
}

type FinishedTable = WIPOffset<TableFinishedWIPOffset>;

type TableVector<'f> = WIPOffset<Vector<'f, ForwardsUOffset<TableFinishedWIPOffset>>>;

/// The file under construction, written from its end to its beginning.
struct File<'f>(FlatBufferBuilder<'f>);

impl<'f> File<'f> {
    /// Writes a table with the fields that `fill` adds.
    fn table(&mut self, fill: impl FnOnce(&mut FlatBufferBuilder<'f>)) -> FinishedTable {
        let start = self.0.start_table();
        fill(&mut self.0);
        self.0.end_table(start)
    }

    /// Writes a table whose fields from 0 on lie elsewhere.
    fn linked(&mut self, fields: &[WIPOffset<UnionWIPOffset>]) -> FinishedTable {
        self.table(|flat| (0..).zip(fields).for_each(|(number, field)| flat.push_slot_always(slot(number), *field)))
    }

    /// Writes tables, and a vector of them.
    fn tables<T>(
        &mut self,
        all: impl IntoIterator<Item = T>,
        mut write: impl FnMut(&mut Self, T) -> FinishedTable,
    ) -> TableVector<'f> {
        let tables: Vec<FinishedTable> = all.into_iter().map(|one| write(self, one)).collect();
        self.0.create_vector(&tables)
    }

    /// Pads so that the position `more` bytes further is a multiple of [`ALIGNMENT`].
    fn fill_up(&mut self, more: usize) {
        while !(self.0.unfinished_data().len() + more).is_multiple_of(ALIGNMENT) {
            self.0.push(0_u8);
        }
    }

    /// Writes a `Buffer` whose bytes begin at a multiple of [`ALIGNMENT`].
    fn buffer(&mut self, bytes: &[u8]) -> FinishedTable {
        self.fill_up(bytes.len());
        let data = self.0.create_vector(bytes);
        self.linked(&[data.as_union_value()])
    }

    fn tensor(&mut self, tensor: &TensorDraft<'_>, buffer: u32) -> FinishedTable {
        let name = self.0.create_string(&tensor.name);
        let now: Vec<i32> = tensor.shape.iter().map(|dim| dim.of(1) as i32).collect();
        let shape = self.0.create_vector(&now);
        let open: Vec<i32> = tensor.shape.iter().map(|dim| signed(*dim) as i32).collect();
        let signature = (open != now).then(|| self.0.create_vector(&open));
        self.table(|flat| {
            flat.push_slot_always(slot(0), shape);
            flat.push_slot(slot(1), tensor.kind as i8, 0);
            flat.push_slot(slot(2), buffer, 0);
            flat.push_slot_always(slot(3), name);
            if let Some(signature) = signature {
                flat.push_slot_always(slot(7), signature);
            }
            flat.push_slot(slot(8), true, false);
        })
    }

    fn operator(&mut self, operator: &Operator, code: u32) -> FinishedTable {
        let ins = self.0.create_vector(&operator.ins);
        let outs = self.0.create_vector(&[operator.out]);
        let Builtin(_, kind) = operator.op;
        let options = self.table(|flat| operator.options.iter().for_each(|field| field.push(flat)));
        self.table(|flat| {
            flat.push_slot(slot(0), code, 0);
            flat.push_slot_always(slot(1), ins);
            flat.push_slot_always(slot(2), outs);
            if kind != 0 {
                flat.push_slot_always(slot(3), kind);
                flat.push_slot_always(slot(4), options);
            }
        })
    }

    fn code(&mut self, op: Builtin, version: i32) -> FinishedTable {
        let Builtin(number, _) = op;
        self.table(|flat| {
            flat.push_slot(slot(0), number.min(OLD_CODE_MAX) as i8, 0);
            flat.push_slot(slot(2), version, 1);
            flat.push_slot(slot(3), number, 0);
        })
    }

    /// Writes a `TensorMap`, or an entry of `Metadata`: a name and a number.
    fn named(&mut self, name: &str, number: u32) -> FinishedTable {
        let name = self.0.create_string(name);
        self.table(|flat| {
            flat.push_slot_always(slot(0), name);
            flat.push_slot(slot(1), number, 0);
        })
    }

    fn ports(&mut self, ports: &[SignaturePort<'_>]) -> TableVector<'f> {
        self.tables(ports, |file, (name, tensor)| file.named(name, tensor.cast_unsigned()))
    }

    fn signature(&mut self, draft: &ModelDraft<'_>) -> FinishedTable {
        let inputs = self.ports(&draft.inputs).as_union_value();
        let outputs = self.ports(&draft.outputs).as_union_value();
        let key = self.0.create_string(SIGNATURE).as_union_value();
        self.linked(&[inputs, outputs, key])
    }

    /// Writes the `SubGraph`; tensors without elements share buffer 0, the others use the buffers from 1 on.
    fn subgraph(&mut self, draft: &ModelDraft<'_>, codes: &[(Builtin, i32)]) -> FinishedTable {
        let mut buffers = 1..;
        let tensors: Vec<FinishedTable> = draft
            .tensors
            .iter()
            .map(|tensor| {
                let buffer = tensor.data.as_ref().and_then(|_| buffers.next()).unwrap_or(0);
                self.tensor(tensor, buffer)
            })
            .collect();
        let operators: Vec<FinishedTable> = draft
            .operators
            .iter()
            .map(|operator| {
                let code = codes.iter().position(|code| *code == (operator.op, operator.version));
                self.operator(operator, code.expect("a code for every operator") as u32)
            })
            .collect();
        let of = |ports: &[SignaturePort<'_>]| ports.iter().map(|(_, tensor)| *tensor).collect::<Vec<_>>();
        let tensors = self.0.create_vector(&tensors).as_union_value();
        let operators = self.0.create_vector(&operators).as_union_value();
        let ins = self.0.create_vector(&of(&draft.inputs)).as_union_value();
        let outs = self.0.create_vector(&of(&draft.outputs)).as_union_value();
        let name = self.0.create_string("main").as_union_value();
        self.linked(&[tensors, ins, outs, operators, name])
    }
}

impl OptionField {
    fn push(self, flat: &mut FlatBufferBuilder<'_>) {
        match self {
            Self::Byte(number, value) => flat.push_slot(slot(number), value, 0),
            Self::Bool(number, value) => flat.push_slot(slot(number), value, false),
            Self::Int(number, value) => flat.push_slot(slot(number), value, 0),
            Self::Float(number, value) => flat.push_slot(slot(number), value, 0.0),
        }
    }
}

pub(super) fn bytes(draft: &ModelDraft<'_>, name: &str, metadata: &[(&str, &[u8])]) -> Vec<u8> {
    let mut codes: Vec<(Builtin, i32)> = Vec::new();
    for Operator { op, version, .. } in &draft.operators {
        if !codes.contains(&(*op, *version)) {
            codes.push((*op, *version));
        }
    }
    let mut file = File(FlatBufferBuilder::new());
    let known: Vec<&[u8]> = draft.tensors.iter().filter_map(|tensor| tensor.data.as_deref()).collect();
    let mut buffers = vec![file.table(|_| ())];
    buffers.extend(known.iter().chain(metadata.iter().map(|(_, data)| data)).map(|data| file.buffer(data)));
    let buffers = file.0.create_vector(&buffers);
    let subgraph = file.subgraph(draft, &codes);
    let subgraphs = file.0.create_vector(&[subgraph]);
    let codes = file.tables(codes, |file, (op, version)| file.code(op, version));
    // The buffers of the metadata follow those of the tensors.
    let numbered = metadata.iter().zip(known.len() as u32 + 1..);
    let metadata = file.tables(numbered, |file, ((name, _), buffer)| file.named(name, buffer));
    let signature = file.signature(draft);
    let signatures = file.0.create_vector(&[signature]);
    let description = file.0.create_string(name);
    let model = file.table(|flat| {
        flat.push_slot(slot(0), SCHEMA, 0);
        flat.push_slot_always(slot(1), codes);
        flat.push_slot_always(slot(2), subgraphs);
        flat.push_slot_always(slot(3), description);
        flat.push_slot_always(slot(4), buffers);
        flat.push_slot_always(slot(6), metadata);
        flat.push_slot_always(slot(7), signatures);
    });
    // The root's offset and the identifier are still to come.
    file.fill_up(8);
    file.0.finish(model, Some(IDENTIFIER));
    file.0.finished_data().to_vec()
}
