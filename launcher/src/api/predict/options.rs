//! The options of a prediction.

use crate::api::Override;
use enn_common::config::train::Precision;
use enn_export::Target;
use enn_ui::Mode;

#[derive(Debug, Clone)]
pub struct PredictOptions {
    /// How the progress is shown.
    pub mode: Mode,
    /// Whether SIGINT and SIGTERM stop the prediction. Finished chunks are kept and not predicted again.
    pub handle_signals: bool,
    pub replace: bool,
    /// The number format of the encoder; the heads always compute in f32.
    pub precision: Precision,
    /// The engine that computes; `None`: an artifact's own runtime, or the run's workers.
    pub engine: Option<Engine>,
    /// Whether only point predictions are written, without quantiles.
    pub point: bool,
    /// Whether a column is accepted although the model does not know most of its values.
    pub allow_unseen: bool,
    /// Whether targets are evaluated, so that the model must know all of their classes.
    pub is_judged: bool,
    /// Changes to the run's configuration, such as the number of workers.
    pub overrides: Vec<Override>,
}

impl Default for PredictOptions {
    fn default() -> Self {
        Self {
            mode: Mode::Quiet,
            handle_signals: false,
            replace: false,
            precision: Precision::Fp32,
            engine: None,
            point: false,
            allow_unseen: false,
            is_judged: false,
            overrides: Vec::new(),
        }
    }
}

/// The program that computes predictions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    Native,
    Exported(Target),
}

impl Engine {
    /// Returns the name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Exported(target) => target.name(),
        }
    }
}

impl std::str::FromStr for Engine {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let target = name.parse::<Target>().ok().filter(|target| *target != Target::Coreml);
        match target {
            Some(target) => Ok(Self::Exported(target)),
            None if name == "native" => Ok(Self::Native),
            None => {
                let runs = Target::ALL.into_iter().filter(|target| *target != Target::Coreml);
                let names: Vec<&str> = std::iter::once("native").chain(runs.map(Target::name)).collect();
                Err(format!("{name} is no engine, expected one of {}", names.join(", ")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_have_the_names_of_formats_that_run() {
        assert_eq!("native".parse::<Engine>().unwrap(), Engine::Native);
        assert_eq!("onnx".parse::<Engine>().unwrap(), Engine::Exported(Target::Onnx));
        for name in ["coreml", "onxx"] {
            let error = name.parse::<Engine>().unwrap_err();
            assert!(error.contains("expected one of native, onnx, ort, pt2, aoti"), "{error}");
        }
    }
}
