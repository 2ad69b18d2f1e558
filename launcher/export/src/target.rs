//! The formats: a table of their names, file suffixes, sources, and tolerances.

use crate::{
    ExportError, Model, Precision, Reduction, coreml, litert, onnx, pass,
    precision::Precision::{Bf16, Fp16, Fp32},
    pt2, savedmodel,
};
use enn_common::graph::{Graph, infer::GraphError};
use std::{
    path::{Path, PathBuf},
    str::FromStr,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "each variant is described by its row")]
pub enum Target {
    Onnx,
    Ort,
    Pt2,
    Aoti,
    Executorch,
    Tensorrt,
    Coreml,
    Litert,
    Tensorflow,
}

struct FormatRow {
    name: &'static str,
    suffix: &'static str,
    /// Format from which another tool makes this one.
    source: Option<Target>,
    about: &'static str,
}

const fn row(name: &'static str, suffix: &'static str, source: Option<Target>, about: &'static str) -> FormatRow {
    FormatRow { name, suffix, source, about }
}

impl Target {
    /// Every format, sources before the formats that are made from them.
    pub const ALL: [Self; 9] = [
        Self::Onnx,
        Self::Ort,
        Self::Pt2,
        Self::Aoti,
        Self::Executorch,
        Self::Tensorrt,
        Self::Coreml,
        Self::Litert,
        Self::Tensorflow,
    ];

    const fn row(self) -> FormatRow {
        match self {
            Self::Onnx => row("onnx", "onnx", None, "ONNX, opset 18"),
            Self::Ort => row("ort", "ort", Some(Self::Onnx), "onnxruntime's own form, by libonnxruntime"),
            Self::Pt2 => row("pt2", "pt2", None, "torch.export's archive"),
            Self::Aoti => row("aoti", "aoti.pt2", Some(Self::Pt2), "compiled by AOTInductor for this machine"),
            Self::Executorch => row("executorch", "pte", Some(Self::Pt2), "ExecuTorch"),
            Self::Tensorrt => row("tensorrt", "engine", Some(Self::Onnx), "built by TensorRT for this machine's GPU"),
            Self::Coreml => row("coreml", "mlpackage", None, "Core ML package, for macOS 14 and iOS 17 on"),
            Self::Litert => row("litert", "tflite", None, "LiteRT (TensorFlow Lite)"),
            Self::Tensorflow => row("tensorflow", "savedmodel", None, "TensorFlow SavedModel"),
        }
    }

    /// Returns the name on the command line.
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// Returns a description in a few words.
    pub const fn about(self) -> &'static str {
        self.row().about
    }

    /// Returns the artifact's file name for a model's name.
    pub fn file(self, model: &str) -> String {
        format!("{model}.{}", self.row().suffix)
    }

    /// Returns the format from which another tool makes this one.
    pub const fn source(self) -> Option<Self> {
        self.row().source
    }

    /// Returns the largest allowed difference from the model's own answers, in spreads of the targets.
    pub const fn tolerance(self) -> f64 {
        // In f32, whatever the order of the sums.
        1e-4
    }

    /// Returns the limit on the axes of an operation, where the format's kernels have one.
    const fn axes_max(self) -> Option<usize> {
        match self {
            Self::Coreml => Some(coreml::RANK_MAX),
            Self::Litert => Some(litert::AXES_MAX),
            _ => None,
        }
    }

    /// Returns a graph as this format takes it.
    ///
    /// # Errors
    /// Never, for a graph that was checked where it was built.
    pub fn fitted(self, graph: &Graph) -> Result<Graph, GraphError> {
        self.axes_max().map_or_else(|| Ok(graph.clone()), |axes_max| pass::within(graph, axes_max))
    }

    /// Returns the change of a graph for this format in a precision.
    pub const fn reduction(self, precision: Precision) -> Reduction {
        match (self, precision) {
            (_, Fp32) => Reduction::None,
            (Self::Litert, Fp16 | Bf16) => Reduction::Stored(precision),
            (_, Fp16 | Bf16) => Reduction::Computed(precision),
        }
    }

    /// Checks that the format, and a runtime of it, support a precision.
    ///
    /// # Errors
    /// The missing feature.
    pub fn check_precision(self, precision: Precision) -> Result<(), ExportError> {
        let (why, hint) = match (self, precision) {
            (Self::Onnx | Self::Ort, Bf16) => {
                ("onnxruntime has no kernels of bf16 for processors", "fp16, or tensorrt in bf16")
            }
            (Self::Coreml, Bf16) => ("Core ML has no numbers of bf16", "fp16"),
            (Self::Litert, Bf16) => ("LiteRT's kernels have no bf16", "fp16, in which weights are stored"),
            _ => return Ok(()),
        };
        Err(ExportError::Precision { target: self.name(), precision, why, hint })
    }

    /// Writes the artifact of a format that is written here; returns its files, or `None` for a format that another tool makes.
    ///
    /// # Errors
    /// Any error of the writer.
    pub fn write(self, model: &Model<'_>, path: &Path) -> Option<Result<Vec<PathBuf>, ExportError>> {
        let written = match self {
            Self::Onnx => return Some(onnx::write(model, path)),
            Self::Pt2 => pt2::write(model, path),
            Self::Coreml => coreml::write(model, path),
            Self::Litert => litert::write(model, path),
            Self::Tensorflow => savedmodel::write(model, path),
            Self::Ort | Self::Aoti | Self::Executorch | Self::Tensorrt => return None,
        };
        Some(written.map(|()| vec![path.to_owned()]))
    }
}

impl Precision {
    /// Returns the largest allowed difference of `target` from the model's own answers, in spreads of the targets: in half precision some
    /// hundred, or dozen, times the rounding error of a product with so many digits.
    pub fn tolerance(self, target: Target) -> f64 {
        let of = match self {
            Self::Fp32 => 0.0,
            Self::Fp16 => 1e-2,
            Self::Bf16 => 5e-2,
        };
        target.tolerance().max(of)
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|target| target.name() == name);
        let names = Self::ALL.map(Self::name).join(", ");
        found.ok_or_else(|| format!("{name} is no format, expected one of {names}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_that_of_its_format_and_comes_after_its_source() {
        for (i, target) in Target::ALL.into_iter().enumerate() {
            assert_eq!(target as usize, i);
            assert_eq!(target.name().parse::<Target>().unwrap(), target);
            assert!(target.source().is_none_or(|source| source < target));
        }
        assert!("tf".parse::<Target>().unwrap_err().contains("tensorflow"));
    }
}
