//! Example programs that use an artifact, in the languages that its runtime has an interface for: they run unchanged in its folder.
//!
//! A program is the head of its language with a body in it, whose first paragraph is its imports. `@NAME@` is a placeholder for
//! values of the artifact.

use super::artifact_runner::NEXT;
use enn_common::{
    artifact::export::{Port, Sidecar},
    graph::Dim,
    staged::meta::Stats,
};
use enn_export::Target;

/// Smallest number of rows in the example.
const ROWS_MIN: u64 = 2;

struct Language {
    end: &'static str,
    /// Text that all programs share.
    head: &'static str,
    /// Template of an input.
    input: &'static str,
}

const PYTHON: Language = Language { end: "py", head: include_str!("usage/head.py"), input: r#""@NAME@": (@SIZES@)"# };
const CPP: Language = Language { end: "cpp", head: include_str!("usage/head.cpp"), input: r#"{"@NAME@", {@SIZES@}}"# };
/// Language of one format: its head is the whole program.
const RUST: Language =
    Language { end: "rs", head: include_str!("usage/onnx.rs.in"), input: r#"("@NAME@", vec![@SIZES@])"# };

const fn bodies(target: Target) -> &'static [(Language, &'static str)] {
    match target {
        Target::Onnx | Target::Ort => {
            &[(PYTHON, include_str!("usage/onnx.py")), (CPP, include_str!("usage/onnx.cpp")), (RUST, "")]
        }
        Target::Pt2 => &[(PYTHON, include_str!("usage/pt2.py"))],
        Target::Aoti => &[(PYTHON, include_str!("usage/aoti.py")), (CPP, include_str!("usage/aoti.cpp"))],
        Target::Executorch => &[(PYTHON, include_str!("usage/executorch.py"))],
        Target::Tensorflow => &[(PYTHON, include_str!("usage/tensorflow.py"))],
        Target::Litert => &[(PYTHON, include_str!("usage/litert.py"))],
        Target::Coreml => &[(PYTHON, include_str!("usage/coreml.py"))],
        Target::Tensorrt => &[(PYTHON, include_str!("usage/tensorrt.py"))],
    }
}

/// Returns the names of the programs beside an artifact.
pub(super) fn names(target: Target, artifact: &str) -> Vec<String> {
    bodies(target).iter().map(|(language, _)| format!("{artifact}.usage.{}", language.end)).collect()
}

pub fn programs(target: Target, sidecar: &Sidecar) -> Vec<(String, String)> {
    let names = names(target, &sidecar.artifact).into_iter();
    names.zip(bodies(target)).map(|(name, body)| (name.clone(), program(&name, &body.0, body.1, sidecar))).collect()
}

fn program(file: &str, language: &Language, body: &str, sidecar: &Sidecar) -> String {
    let is_state = |port: &&Port| sidecar.outputs.iter().any(|output| output.name == format!("{NEXT}{}", port.name));
    let x = sidecar.inputs.iter().find(|port| !is_state(port));
    let input = |port: &Port| language.input.replace("@NAME@", &port.name).replace("@SIZES@", &sizes(port));
    let output = sidecar.outputs[0].name.as_str();
    // In PyTorch several outputs are a dictionary, a single one is itself.
    let answer = if sidecar.outputs.len() > 1 { format!("outputs[\"{output}\"]") } else { "outputs".to_owned() };
    let own = [
        ("@ARTIFACT@", sidecar.artifact.clone()),
        ("@FILE@", file.to_owned()),
        ("@ROWS@", rows(sidecar)),
        ("@INPUTS@", sidecar.inputs.iter().map(input).collect::<Vec<_>>().join(", ")),
        ("@X@", x.map(|port| port.name.clone()).unwrap_or_default()),
        ("@WIDTH@", sidecar.columns.len().to_string()),
        ("@MOST@", sidecar.batch.max.to_string()),
        ("@OUTPUT@", output.to_owned()),
        ("@ANSWER@", answer),
        ("@DEVICE@", sidecar.notes.get(enn_export::maker::aoti::DEVICE).map_or("cpu", String::as_str).to_owned()),
    ];
    let (needs, body) = body.split_once("\n\n").unwrap_or_default();
    let text = language.head.replace("@IMPORTS@", needs).replace("@BODY@", body.trim_end());
    filled(&text, &own)
}

/// Fills a text's placeholders; inserted values are not searched for placeholders.
fn filled(text: &str, own: &[(&str, String)]) -> String {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('@') {
        result.push_str(&rest[..at]);
        rest = &rest[at..];
        let (name, value) = own.iter().find(|(name, _)| rest.starts_with(name)).map_or(("@", "@"), |(n, v)| (*n, v));
        result.push_str(value);
        rest = &rest[name.len()..];
    }
    result + rest
}

/// Returns the sizes of a port for `n` rows.
fn sizes(port: &Port) -> String {
    let size = |dim: &Dim| match dim {
        Dim::Fixed(size) => size.to_string(),
        Dim::Batch(1) => "n".to_owned(),
        Dim::Batch(times) => format!("{times} * n"),
    };
    port.shape.iter().map(size).collect::<Vec<_>>().join(", ")
}

/// Returns example rows as JSON: the means of the training data, and the first of the categories.
fn rows(sidecar: &Sidecar) -> String {
    let mean = |stats: &Stats| if stats.mean.is_finite() { (stats.mean as f32).to_string() } else { "0".to_owned() };
    let row = format!("[{}]", sidecar.staged.x_stats.iter().map(mean).collect::<Vec<_>>().join(", "));
    let count = ROWS_MIN.clamp(sidecar.batch.min, sidecar.batch.max.max(sidecar.batch.min));
    format!("[{}]", vec![row; count as usize].join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_of_aoti_is_told_to_look_at_its_inputs_before_it_is_loaded() {
        for (language, body) in bodies(Target::Aoti) {
            let asks = body.find("\"AOTI_RUNTIME_CHECK_INPUTS\"").unwrap();
            assert!(body[asks..].contains("@ARTIFACT@") && !body[..asks].contains("@ARTIFACT@"), "{}", language.end);
        }
    }

    #[test]
    fn no_program_takes_rows_of_another_width() {
        for language in [PYTHON, CPP, RUST] {
            let refused = language.head.find("@WIDTH@").unwrap();
            assert!(refused < language.head.find("@X@").unwrap(), "{}", language.end);
        }
        // A number that is left of a row of another width would be taken for one of the next.
        assert!(!CPP.head.contains("rows.size() % ") && !RUST.head.contains("rows.len() % "));
    }

    #[test]
    fn an_artifact_may_be_called_as_a_place_is() {
        let own = [("@ARTIFACT@", "@ROWS@.onnx".to_owned()), ("@ROWS@", "[[1]]".to_owned())];
        assert_eq!(filled("ort@=2 \"@ARTIFACT@\" @ROWS@ @", &own), "ort@=2 \"@ROWS@.onnx\" [[1]] @");
    }
}
