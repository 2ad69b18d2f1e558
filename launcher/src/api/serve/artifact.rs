//! An exported model behind HTTP: what lies beside it says what its columns are, and its own runtime computes.

use super::super::export::tools;
use super::ServeOptions;
use crate::{
    Error,
    agent::WorkerSpec,
    export::{Ports, digest},
    facts::Facts,
    serve::{self, Answers, Engine, Failure, Start},
};
use crossbeam_channel::{Receiver, never};
use enn_common::{
    artifact::export::{Column, Sidecar, VERSION},
    config::{
        data::{
            DataConfig, DuplicatePolicy, Feature, FeatureKind, Layout, RowsLayout, SplitConfig, SplitKind, TargetMask,
        },
        train::Device,
    },
    graph::Dim,
    staged::{
        StagedMeta,
        meta::{CleaningReport, FeatureMeta, Stats},
    },
};
use enn_export::{ExportError, Runner, Target, Tensor};
use std::path::{Path, PathBuf};
/// The output of all levels.
const QUANTILES: &str = "quantiles";
/// Largest file that is read beside an artifact, bytes.
const SAID_BYTES_MAX: u64 = 256 << 20;

/// Whether something is said beside a path, as `enn export` does of what it leaves.
pub fn is_artifact(path: &Path) -> bool {
    path.exists() && beside(path).is_file()
}

fn beside(artifact: &Path) -> PathBuf {
    let mut path = artifact.as_os_str().to_owned();
    path.push(".json");
    path.into()
}

/// What is said beside an artifact; `None` where nothing is, as of a run.
pub(super) fn said_of(artifact: &Path) -> Result<Option<Sidecar>, Error> {
    let path = beside(artifact);
    let Ok(about) = path.metadata() else { return Ok(None) };
    let failed = |source| Error::Read { path: path.clone(), source };
    if about.len() > SAID_BYTES_MAX {
        return Err(failed(std::io::ErrorKind::FileTooLarge.into()));
    }
    let text = std::fs::read(&path).map_err(failed)?;
    let said: Sidecar = serde_json::from_slice(&text).map_err(|source| Error::Json { path: path.clone(), source })?;
    if said.version != VERSION {
        let found = format!("version {}, expected {VERSION}", said.version);
        return Err(refused(&path, found));
    }
    Ok(Some(said))
}

/// The model, and how to start its runtime.
pub(super) fn prepared(
    artifact: &Path,
    said: Sidecar,
    (facts, options): (&Facts, &ServeOptions),
    scratch: &Path,
) -> Result<(serve::Subject, Box<Start>), Error> {
    let target: Target = said.format.parse().map_err(|why| refused(artifact, why))?;
    if said.inputs.len() != 1 {
        return Err(refused(artifact, "it takes the state of a stream, too, which no request has".to_owned()));
    }
    let data = artifact.with_file_name(format!("{}.data", said.artifact));
    let parts: Vec<PathBuf> =
        [Some(artifact.to_owned()), data.exists().then_some(data)].into_iter().flatten().collect();
    if digest(&parts)?.1 != said.blake3 {
        return Err(refused(artifact, "it is not the file that is described beside it".to_owned()));
    }
    let tools = tools(worker(target, facts, options.workers.max(1))?, facts);
    let names = |ports: &[enn_common::artifact::export::Port]| ports.iter().map(|port| port.name.clone()).collect();
    let ports = Ports { inputs: names(&said.inputs), outputs: names(&said.outputs) };
    let answer =
        ports.outputs.iter().position(|name| name == QUANTILES).filter(|_| !said.levels.is_empty()).unwrap_or(0);
    let levels =
        if ports.outputs.get(answer).is_some_and(|name| name == QUANTILES) { said.levels.clone() } else { vec![] };
    let input = ports.inputs[0].clone();
    let rows = (said.batch.min.max(1) as usize, said.batch.max.max(1) as usize);
    let (path, place) = (artifact.to_owned(), scratch.to_owned());
    let start = move || -> Result<Box<dyn Engine>, Failure> {
        let runner = tools.runner(target, (&path, &ports), &place)?;
        let runner = runner.ok_or_else(|| format!("{} does not run on this machine", target.about()))?;
        Ok(Box::new(Runtime { runner, input: input.clone(), answer, rows }))
    };
    Ok((subject(said, levels, scratch), Box::new(start)))
}

fn refused(path: &Path, why: String) -> Error {
    ExportError::Refused { what: "enn serve", path: path.to_owned(), why }.into()
}

/// What libtorch's own formats run in; the others need none.
fn worker(target: Target, facts: &Facts, workers: u32) -> Result<WorkerSpec, Error> {
    let is_needed = matches!(target, Target::Pt2 | Target::Aoti);
    let (program, libtorch) = match (&facts.worker, &facts.libtorch) {
        (None, _) if is_needed => return Err(Error::NoWorker),
        (_, None) if is_needed => return Err(Error::NoLibtorch),
        (program, libtorch) => (program.clone().unwrap_or_default(), libtorch.as_ref().map(|found| found.lib.clone())),
    };
    let share = u32::try_from(facts.cores / workers as usize).unwrap_or(u32::MAX).max(1);
    Ok(WorkerSpec {
        program,
        args: Vec::new(),
        library_dir: libtorch,
        library_path: facts.library_path.clone(),
        device: Device::Cpu,
        threads: facts.omp_threads.unwrap_or(share),
    })
}

/// The columns as rows have them: those of the model itself, categories by their names.
fn subject(said: Sidecar, levels: Vec<f64>, scratch: &Path) -> serve::Subject {
    let out_shape: Vec<usize> =
        said.outputs[0].shape.iter().filter_map(|dim: &Dim| dim.fixed()).map(|size| size as usize).collect();
    let kind = |column: &Column| if column.categories.is_empty() { FeatureKind::Number } else { FeatureKind::Category };
    let layout = RowsLayout {
        features: said
            .columns
            .iter()
            .map(|column| Feature { column: column.name.clone(), kind: kind(column) })
            .collect(),
        targets: vec![String::new(); out_shape.iter().product()],
        classes: false,
        out_shape: out_shape.clone(),
        row_id: None,
    };
    let data = DataConfig {
        files: Vec::new(),
        sources: Vec::new(),
        format: None,
        sheet: None,
        missing: Vec::new(),
        duplicates: DuplicatePolicy::Keep,
        layout: Layout::Rows(layout),
        split: SplitConfig { kind: SplitKind::Random, val: 0.0, test: 0.0, seed: 0, column: None },
        units: said.units.clone(),
        ranges: Vec::new(),
        weight: None,
        mask: TargetMask::Finite,
    };
    // Of what training has seen only means and spreads are told: no value is too far away.
    let stats = |[mean, std]: &[f64; 2]| Stats { n: 0, mean: *mean, std: *std, min: 0.0, max: 0.0 };
    let feature = |column: Column| FeatureMeta {
        name: column.name,
        categories: column.categories,
        has_missing: column.may_be_missing,
    };
    let meta = StagedMeta {
        version: 1,
        digest: said.blake3,
        rows: 0,
        features: said.columns.into_iter().map(feature).collect(),
        out_shape,
        out_labels: said.labels,
        units: said.units,
        persistence: None,
        has_targets: false,
        has_classes: false,
        has_weights: false,
        split_rows: [0; 3],
        sources: Vec::new(),
        row_names: Vec::new(),
        x_stats: said.scaler[0].iter().map(stats).collect(),
        y_stats: said.scaler[1].iter().map(stats).collect(),
        report: CleaningReport::default(),
    };
    serve::Subject { run: said.model.run, step: said.model.step, data, meta, levels, scratch: scratch.to_owned() }
}

/// An artifact at work.
struct Runtime {
    runner: Box<dyn Runner>,
    input: String,
    /// Place of the output that is told.
    answer: usize,
    /// Fewest and most rows of a call.
    rows: (usize, usize),
}

impl Engine for Runtime {
    fn answer(&mut self, x: &[f32], rows: usize) -> Result<Answers, Failure> {
        let width = x.len() / rows.max(1);
        let mut all = Vec::new();
        for part in x.chunks(self.rows.1 * width.max(1)) {
            let mut values = part.to_vec();
            let wanted = part.len() / width.max(1);
            // A call has no fewer rows than it may: the last one is repeated, and its answers are left away.
            let last = part[part.len() - width..].to_vec();
            (wanted..self.rows.0).for_each(|_| values.extend_from_slice(&last));
            let shape = vec![values.len() / width.max(1), width];
            let given = shape[0];
            let mut outputs = self.runner.run(&[Tensor { name: self.input.clone(), shape, values }])?;
            if outputs.len() <= self.answer {
                return Err(format!("{} gave {} outputs", self.runner.version(), outputs.len()).into());
            }
            let told = outputs.swap_remove(self.answer).values;
            let each = told.len() / given;
            all.extend_from_slice(&told[..each * wanted]);
        }
        Ok(Answers::judged(x, all, rows))
    }

    fn ended(&self) -> Receiver<()> {
        // It is in this process, or tells when it is asked.
        never()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    /// Tells the sum of a row, and notes how many rows a call has.
    struct Sums(Arc<Mutex<Vec<usize>>>);

    impl Runner for Sums {
        fn version(&self) -> String {
            "sums".to_owned()
        }

        fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, ExportError> {
            let [x] = inputs else { panic!("one input") };
            assert_eq!((x.name.as_str(), x.shape.iter().product::<usize>()), ("x", x.values.len()));
            self.0.lock().unwrap().push(x.shape[0]);
            let values = x.values.chunks(x.shape[1]).map(|row| row.iter().sum()).collect();
            let sums = Tensor { name: "y".to_owned(), shape: vec![x.shape[0], 1], values };
            Ok(vec![Tensor { values: vec![0.0; x.shape[0]], ..sums.clone() }, sums])
        }
    }

    #[test]
    fn calls_have_as_many_rows_as_they_may() {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let runner = Box::new(Sums(Arc::clone(&calls)));
        let mut engine = Runtime { runner, input: "x".to_owned(), answer: 1, rows: (2, 3) };
        let x: Vec<f32> = (0..14).map(|value| value as f32).collect();
        let answers = engine.answer(&x, 7).unwrap();
        assert_eq!(answers.values, [1.0, 5.0, 9.0, 13.0, 17.0, 21.0, 25.0]);
        assert_eq!(*calls.lock().unwrap(), [3, 3, 2], "the last row stands there twice");
        let answers = engine.answer(&[f32::NAN, f32::NAN, 1.0, f32::NAN], 2).unwrap();
        assert_eq!(answers.status, [1, 2], "no input; an answer that is not finite");
    }

    #[test]
    fn what_lies_beside_a_file_says_whether_it_is_an_artifact() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.onnx");
        assert!(!is_artifact(&path) && said_of(&path).unwrap().is_none());
        std::fs::write(&path, "").unwrap();
        assert!(!is_artifact(&path));
        std::fs::write(dir.path().join("m.onnx.json"), "{}").unwrap();
        assert!(is_artifact(&path));
        assert!(said_of(&path).unwrap_err().to_string().contains("m.onnx.json"));
    }
}
