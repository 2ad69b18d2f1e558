//! onnxruntime: runs ONNX files, and makes `.ort` files of them. Its library is loaded at run time, without Python.

pub mod find;
mod library;
mod sys;

use crate::{ExportError, Runner, Tensor, maker::Made};
use enn_common::fs::atomic;
use library::{Loaded, NAME, guarded};
use ort::{
    session::{
        Session, SessionInputValue,
        builder::{GraphOptimizationLevel, SessionBuilder},
    },
    value::Tensor as Value,
};
use std::{
    collections::BTreeMap,
    fmt::Display,
    fs,
    path::{Path, PathBuf},
};

#[derive(Debug, Clone, Copy)]
pub struct Runtime<'a> {
    /// Path of `libonnxruntime.so`; [`find::library`] finds it.
    pub library: &'a Path,
    /// Threads of a session; 0: the library's default.
    pub threads: usize,
}

/// An `.onnx` or `.ort` file in onnxruntime, on the CPU.
#[derive(Debug)]
pub struct OrtRunner {
    loaded: Loaded,
    session: Session,
    path: PathBuf,
}

impl OrtRunner {
    /// Loads a file.
    ///
    /// # Errors
    /// The library cannot be used, or refuses the file.
    pub fn load(path: &Path, runtime: Runtime<'_>) -> Result<Self, ExportError> {
        let loaded = library::load(runtime.library)?;
        let session = guarded(|| session(&loaded, runtime.threads, Ok)?.commit_from_file(path).map_err(single_line));
        let session = session.map_err(|why| ExportError::refused(NAME, path, why))?;
        Ok(Self { loaded, session, path: path.to_owned() })
    }
}

impl Runner for OrtRunner {
    fn version(&self) -> String {
        format!("{NAME} {}", self.loaded.version)
    }

    fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, ExportError> {
        let session = &mut self.session;
        guarded(|| answer(session, inputs)).map_err(|why| ExportError::refused(NAME, &self.path, why))
    }
}

fn answer(session: &mut Session, inputs: &[Tensor]) -> Result<Vec<Tensor>, String> {
    let held = inputs.iter().map(|input| {
        let value = Value::from_array((input.shape.clone(), input.values.clone())).map_err(single_line)?;
        Ok((input.name.as_str(), value))
    });
    // The values live to the end: an output that is an input shares its memory.
    let held: Vec<(&str, Value<f32>)> = held.collect::<Result<_, String>>()?;
    let given: Vec<(&str, SessionInputValue<'_>)> = held.iter().map(|(name, value)| (*name, value.into())).collect();
    let outputs = session.run(given).map_err(single_line)?;
    let read = outputs.iter().map(|(name, value)| {
        let (shape, values) = value.try_extract_tensor::<f32>().map_err(|error| format!("output {name}: {error}"))?;
        let shape = shape.iter().map(|size| *size as usize).collect();
        Ok(Tensor { name: name.to_owned(), shape, values: values.to_vec() })
    });
    read.collect()
}

/// Makes an `.ort` file of an `.onnx` file, optimised as far as it still runs on every processor of a kind. Returns the versions used.
///
/// # Errors
/// The library cannot be used, or refuses the model; or the file cannot be written.
pub fn convert(onnx: &Path, out: &Path, library: &Path) -> Result<Made, ExportError> {
    let loaded = library::load(library)?;
    let temporary = atomic::temporary(out);
    let to_ort = |builder: SessionBuilder| {
        let builder = builder.with_optimization_level(GraphOptimizationLevel::Level2).map_err(single_line)?;
        let builder = builder.with_optimized_model_path(&temporary).map_err(single_line)?;
        builder.with_config_entry("session.save_model_format", "ORT").map_err(single_line)
    };
    let done = guarded(|| session(&loaded, 1, to_ort)?.commit_from_file(onnx).map_err(single_line));
    if let Err(why) = done {
        let _absent = fs::remove_file(&temporary);
        return Err(ExportError::refused(NAME, onnx, why));
    }
    atomic::place(&temporary, out)?;
    Ok(Made { versions: BTreeMap::from([(NAME.to_owned(), loaded.version)]), ..Made::nothing() })
}

fn session(
    loaded: &Loaded,
    threads: usize,
    more: impl FnOnce(SessionBuilder) -> Result<SessionBuilder, String>,
) -> Result<SessionBuilder, String> {
    let builder = Session::builder(&loaded.environment).map_err(single_line)?;
    more(builder.with_intra_threads(threads).map_err(single_line)?)
}

fn single_line(error: impl Display) -> String {
    error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}
