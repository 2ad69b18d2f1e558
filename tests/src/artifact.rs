//! Exported artifacts in tests: who runs them, and whether they answer as the reference does.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "it is part of tests, which find programs by variables of their own"
)]

use crate::launch;
use enn_common::{
    config::train::Device,
    graph::{Graph, eval::Array},
};
use enn_export::{
    Runner, Tensor,
    maker::prepare::{Backend, Installers, prepare},
    sample::Sample,
};
use enn_launcher::agent::WorkerSpec;
use std::path::{Path, PathBuf};

/// The worker beside `enn`, on the CPU; libtorch is where the environment says.
pub fn worker() -> WorkerSpec {
    let program = launch::enn().with_file_name("enn-worker");
    assert!(program.exists(), "{} is not there; run `make build`", program.display());
    WorkerSpec {
        program,
        args: Vec::new(),
        library_dir: None,
        library_path: None,
        device: Device::Cpu,
        threads: 1,
        sleeps: true,
    }
}

/// The Python of a maker's tools: that of the environment below `ENN_MAKER_ENVS`, which is made once; of AOTInductor's also
/// `ENN_AOTI_PYTHON`, which needs torch and nothing else. `None`, with a line, where neither variable is set; where `ENN_NEEDS_MAKERS`
/// is, one must be.
pub fn python(backend: Backend) -> Option<PathBuf> {
    if let Some(python) = std::env::var_os("ENN_AOTI_PYTHON").filter(|_| backend == Backend::Aoti) {
        return Some(python.into());
    }
    let Some(root) = std::env::var_os("ENN_MAKER_ENVS") else {
        assert!(std::env::var_os("ENN_NEEDS_MAKERS").is_none(), "ENN_MAKER_ENVS is not set; `make makers` sets it");
        eprintln!("skipped: ENN_MAKER_ENVS names no directory of environments; `make makers` makes them and sets it");
        return None;
    };
    let uv = std::env::var_os("ENN_UV").map(PathBuf::from);
    let installers = Installers { uv: uv.as_deref(), python: Path::new("python3") };
    Some(prepare(backend, Path::new(&root), installers, &mut |line| eprintln!("{line}")).unwrap())
}

/// Names of a graph's inputs and outputs.
pub fn ports(graph: &Graph) -> (Vec<String>, Vec<String>) {
    let names = |ids: &[enn_common::graph::Id]| ids.iter().map(|id| graph.value(*id).name.clone()).collect();
    (names(graph.inputs()), names(graph.outputs()))
}

/// Fails unless the runner answers batches of these rows as the reference does, within `tolerance` of 1 + |value|.
pub fn agrees(runner: &mut dyn Runner, sample: &Sample, batches: &[usize], tolerance: f64) {
    let (inputs, outputs) = ports(&sample.graph);
    for &batch in batches {
        let (given, expected) = sample.case(batch);
        let single = |(name, array): (&String, &Array)| Tensor {
            name: name.clone(),
            shape: array.shape.clone(),
            values: array.values.iter().map(|value| *value as f32).collect(),
        };
        // In another order than the graph's: names count.
        let given: Vec<Tensor> = inputs.iter().zip(&given).map(single).rev().collect();
        let answered = runner.run(&given).unwrap_or_else(|error| panic!("{}, {batch} rows: {error}", sample.name));
        assert_eq!(answered.iter().map(|tensor| &tensor.name).collect::<Vec<_>>(), outputs.iter().collect::<Vec<_>>());
        for (tensor, array) in answered.iter().zip(&expected) {
            assert_eq!(tensor.shape, array.shape, "{}", sample.name);
            for (found, wanted) in tensor.values.iter().zip(&array.values) {
                let off = (f64::from(*found) - wanted).abs();
                assert!(off <= tolerance * (1.0 + wanted.abs()), "{}: {found}, expected {wanted}", sample.name);
            }
        }
    }
}
