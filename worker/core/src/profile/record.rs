//! Converts the program of a step to the format of program.json.

use super::trace::phase_name;
use crate::autograd::{Program, Rec, ValMeta};
use enn_common::profile::{PROGRAM_VERSION, RecordedOp, RecordedProgram, RecordedValue};

pub(super) fn recorded(program: &Program) -> RecordedProgram {
    let value = |known: &ValMeta| RecordedValue {
        kind: format!("{:?}", known.meta.kind),
        shape: known.meta.shape.to_vec(),
        role: format!("{:?}", known.role),
    };
    let record = |rec: &Rec| RecordedOp {
        op: format!("{:?}", rec.op),
        kernel: rec.kernel.to_owned(),
        phase: phase_name(rec.phase).to_owned(),
        place: program.place(rec.scope),
        operands: rec.ins.iter().map(|val| val.index()).collect(),
        results: rec.outs().map(|val| val.index()).collect(),
    };
    RecordedProgram {
        version: PROGRAM_VERSION,
        hash: program.hash(),
        structure_hash: program.structure_hash(),
        flops: program.flops(),
        peak_bytes: program.peak_bytes(),
        values: program.vals().iter().map(value).collect(),
        records: program.recs().iter().map(record).collect(),
    }
}
