//! The record of a step that `enn train --profile` left, for `enn profile RUN --program`: a line for each operation.

use super::roofline::{ProfileError, versioned};
use enn_common::profile::{FOLDER, PROGRAM_JSON, PROGRAM_VERSION, RecordedOp, RecordedProgram};
use std::{fmt::Write, path::Path};

/// Reads the record of `run`.
///
/// # Errors
/// The run was not profiled, or the file is damaged or of another version.
pub fn read(run: &Path) -> Result<RecordedProgram, ProfileError> {
    versioned(run.join(FOLDER).join(PROGRAM_JSON), PROGRAM_VERSION)
}

/// Formats a line for each operation: its outputs, inputs, part of the step, place in the model and kernel.
pub fn listing(program: &RecordedProgram) -> String {
    let RecordedProgram { hash, structure_hash, flops, peak_bytes, values, records, .. } = program;
    let mut text = format!(
        "program {hash}\nstructure {structure_hash}\n{} operations, {} values, {:.3} GFLOP, at most {:.1} MiB of results at a time\n",
        records.len(),
        values.len(),
        *flops as f64 / 1e9,
        *peak_bytes as f64 / f64::from(1 << 20),
    );
    let value = |number: &usize| match values.get(*number) {
        // What does not come from an operation before says what it is.
        Some(value) if value.role != "Temp" => format!("%{number} {}", value.role),
        _ => format!("%{number}"),
    };
    let made = |number: &usize| match values.get(*number) {
        Some(value) => format!("%{number} {}{:?}", value.kind, value.shape),
        None => format!("%{number}"),
    };
    let listed =
        |numbers: &[usize], one: &dyn Fn(&usize) -> String| numbers.iter().map(one).collect::<Vec<_>>().join(", ");
    for RecordedOp { op, kernel, phase, place, operands, results } in records {
        let place = if place.is_empty() { "top" } else { place };
        let results = listed(results, &made);
        let operands = listed(operands, &value);
        let _ = writeln!(text, "{results} = {op} ({operands})  {phase}  {place}  {kernel}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use enn_common::profile::RecordedValue;

    #[test]
    fn every_operation_has_a_line_with_its_operands_and_its_kernel() {
        let value = |role: &str| RecordedValue { kind: "Float".into(), shape: vec![2, 3], role: role.into() };
        let record = |op: &str, place: &str, operands: &[usize], results: &[usize]| RecordedOp {
            op: op.into(),
            kernel: "aten".into(),
            phase: "forward".into(),
            place: place.into(),
            operands: operands.to_vec(),
            results: results.to_vec(),
        };
        let program = RecordedProgram {
            version: PROGRAM_VERSION,
            hash: "ab".into(),
            structure_hash: "cd".into(),
            flops: 3_000_000,
            peak_bytes: 1 << 20,
            values: vec![value("Input"), value("Param(ParamId(0))"), value("Temp")],
            records: vec![record("Linear { bias: false }", "a.b", &[0, 1], &[2]), record("Zero", "", &[2], &[])],
        };
        let text = listing(&program);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[2], "2 operations, 3 values, 0.003 GFLOP, at most 1.0 MiB of results at a time");
        assert_eq!(
            lines[3],
            "%2 Float[2, 3] = Linear { bias: false } (%0 Input, %1 Param(ParamId(0)))  forward  a.b  aten"
        );
        assert_eq!(lines[4], " = Zero (%2)  forward  top  aten");
        // Numbers that are nobody's are shown as they are.
        let text = listing(&RecordedProgram { values: Vec::new(), ..program });
        assert!(text.contains("%2 = Linear { bias: false } (%0, %1)"), "{text}");
    }
}
