//! `export`: writes a run's best model as files of other runtimes and runs each file in its runtime before it is published.
//!
//! ```text
//! checkpoint ─► enn-worker --export ─► graph, rows, the model's predictions
//!   graph ─► writers ─► artifact ─► its runtime predicts the same rows ─► published with its sidecar
//! ```
//! **Invariant:** an artifact that was not verified is published only on request, and its sidecar file says so.

use super::{cv, launch, predict::Subject as Trained, stamp};
use crate::{
    Error,
    doctor::ExportSupport,
    error::Usage,
    export::{
        DraftDir, Exported, Forms, Packed, Ports, Pythons, Subject, Tools, digest, is_packed, lock_output, programs,
        sidecar,
    },
    facts::Facts,
};
use enn_common::{
    artifact::export::{Level, Sidecar, Source, Verified},
    config::train::Device,
    fs::atomic,
    graph::file,
    wire::{
        export::{ANSWERED, CASES, CENTRE, ExportJob, ExportReply, GIVEN, SPREAD},
        message::PROTOCOL,
    },
};
use enn_data::stage::input_bounds;
use enn_export::{
    Batch, ExportError, Model, Precision, Runner, Target, Tensor, coreml,
    maker::{Made, log_of, prepare},
    onnx, pass,
    verify::{self, Cases},
};
use enn_process::{
    WorkerSpec,
    piped::{PipeError, Piped},
};
use safetensors::SafeTensors;
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::ControlFlow,
    path::{Path, PathBuf},
    time::Instant,
};

/// Number of rows of the check, without those that contain invalid values.
const ROWS: u64 = 64;
/// Characters with a meaning in paths, or in the texts and command lines of programs.
const NAMES_LACK: &str = "/\\\"'";
/// The runtime name of an artifact of which only the structure was checked.
const NOT_RUN: &str = "not run: its runtime is not on this machine";

#[derive(Debug, Clone)]
pub struct ExportOptions {
    pub targets: Vec<Target>,
    /// The name of the artifacts; `None`: the run's name.
    pub name: Option<String>,
    /// The number of rows of one call.
    pub batch: Batch,
    /// Whether the outputs include the quantiles of the loss.
    pub quantiles: bool,
    /// Whether the state of a stream is an input and an output.
    pub stream: bool,
    /// Whether an artifact that cannot be verified is published as unverified.
    pub unverified: bool,
    /// The number format of the weights and of matrix products.
    pub precision: Precision,
    /// An AOTInductor package whose code is used with this model's weights, instead of compiling again.
    pub code_of: Option<PathBuf>,
    /// The device for which artifacts are compiled, where the format depends on it.
    pub device: Device,
}

/// Exports the newest checkpoint of `model`, a run directory or a checkpoint, into `out`. `on_exported` is called for each format with its
/// result and says whether to go on.
///
/// # Errors
/// There is no complete checkpoint, the model cannot be exported, or there is no worker. The failure of one format is in its [`Exported`].
pub fn export(
    model: &Path,
    out: &Path,
    facts: &Facts,
    options: &ExportOptions,
    on_exported: &mut dyn FnMut(&Exported) -> ControlFlow<()>,
) -> Result<Vec<Exported>, Error> {
    if options.targets.is_empty() {
        return Err(Error::Usage(Usage::NothingToExport));
    }
    if let Some(old) = options.code_of.as_ref().filter(|old| is_packed(old)) {
        Packed::open(old)?;
    }
    let out = facts.cwd.join(out);
    let draft = DraftDir::new(&out)?;
    let (subject, cases, tools) = prepared(model, draft.dir(), facts, options)?;
    // Source formats come first, whether they are requested or not.
    let asked: BTreeSet<Target> = options.targets.iter().copied().collect();
    let needed: BTreeSet<Target> = asked.iter().copied().chain(asked.iter().filter_map(|t| t.source())).collect();
    let forms = Forms::of(&subject.graph, &cases, &needed, options.precision)?;
    let workshop = Workshop { subject: &subject, forms: &forms, cases: &cases, tools: &tools, draft: &draft, options };
    let mut sources: BTreeMap<Target, Result<Parts, String>> = BTreeMap::new();
    let mut done = Vec::new();
    for target in needed.iter().copied() {
        let began = Instant::now();
        // A source format need not have a runtime in this precision.
        let others = needed.iter().any(|other| other.source() == Some(target));
        let supported = if others { Ok(()) } else { target.check_precision(options.precision) };
        let made =
            supported.and_then(|()| workshop.make(target, target.source().and_then(|source| sources.get(&source))));
        let [left, kept] = [draft.dir(), out.as_path()].map(|dir| log_of(&dir.join(target.file(&subject.name))));
        let made = made.map_err(|error| error.logged(&left, &kept));
        let seconds = began.elapsed().as_secs_f64();
        if !asked.contains(&target) {
            sources.insert(target, made.map(|(parts, _)| parts).map_err(|error| error.to_string()));
            continue;
        }
        let outcome = made.and_then(|(parts, made)| {
            sources.insert(target, Ok(parts.clone()));
            target.check_precision(options.precision)?;
            let (path, sidecar) = workshop.finish(target, parts.clone(), made, &sources)?;
            let place = workshop.publish(&path, &sidecar, &out);
            // Later formats are made from the published files.
            let moved = |part: PathBuf| out.join(part.file_name().unwrap_or_default());
            let there = place.as_ref().map_err(ToString::to_string);
            sources.insert(target, there.map(|_| parts.into_iter().map(moved).collect()));
            Ok((place?, sidecar))
        });
        if let Err(error) = &outcome {
            sources.entry(target).or_insert_with(|| Err(error.to_string()));
        }
        let exported = Exported { target, outcome, seconds };
        let next = on_exported(&exported);
        done.push(exported);
        if next.is_break() {
            break;
        }
    }
    Ok(done)
}

/// Makes the environment of a format's tools or runtime once; `None` where it needs none.
///
/// # Errors
/// The last message of the installer.
pub fn prepare_export(target: Target, facts: &Facts, progress: &mut dyn FnMut(&str)) -> Result<Option<PathBuf>, Error> {
    let Some(backend) = Tools::backend(target) else { return Ok(None) };
    let uv = facts.program("uv");
    let installers = prepare::Installers { uv: uv.as_deref(), python: &facts.python() };
    let root = facts.cache_dir.join(ENVIRONMENTS);
    Ok(Some(prepare::prepare(backend, &root, installers, progress)?))
}

/// The link to the staged data below a run directory.
const STAGED_LINK: &str = "staged";
/// The directory of environments below the user's cache directory.
const ENVIRONMENTS: &str = "envs";

/// Returns whether each format can be made and checked with the environments that were prepared.
pub(crate) fn export_support(cache_dir: &Path) -> Vec<ExportSupport> {
    let root = cache_dir.join(ENVIRONMENTS);
    let is_ready = |target| Tools::backend(target).is_none_or(|backend| prepare::prepared(backend, &root).is_some());
    Target::ALL.map(|target| ExportSupport { format: target.name(), is_ready: is_ready(target) }).to_vec()
}

/// The files of an artifact in the draft; the first one is the artifact itself.
type Parts = Vec<PathBuf>;

/// Prepares the model as a graph, the verification cases and the tools.
fn prepared(
    model: &Path,
    dir: &Path,
    facts: &Facts,
    options: &ExportOptions,
) -> Result<(Subject, Cases, Tools), Error> {
    let trained = Trained::trained(model)?;
    let name = options.name.clone().unwrap_or_else(|| name_of(&trained.config.name));
    if name.is_empty() || name != name_of(&name) {
        return Err(Error::Usage(Usage::ArtifactName { name }));
    }
    let mut worker = launch::worker(&trained.config, facts, 1)?;
    worker.device = Device::Cpu;
    let data = trained.config.data.as_ref();
    let believed = data.map(|data| input_bounds(data, &trained.meta)).transpose()?.unwrap_or_default();
    let staged = Some(model.join(STAGED_LINK)).filter(|staged| staged.exists());
    let job = ExportJob {
        protocol: PROTOCOL,
        checkpoint: trained.checkpoint.clone(),
        staged,
        rows: ROWS,
        out: dir.to_owned(),
        quantiles: options.quantiles,
        stream: options.stream,
        threads: worker.threads,
        bounds: believed.bounds.clone(),
    };
    let from = graph_by(&job, &worker, dir)?;
    let cases = read_cases(&dir.join(CASES), from)?;
    let graph = pass::prepared(&file::read(dir).map_err(ExportError::from)?).map_err(ExportError::from)?;
    let graph_digest = file::digest(&graph);
    worker.device = options.device;
    let tools = tools(worker, facts);
    let subject = Subject {
        name,
        digest: trained.digest,
        config: trained.config,
        meta: trained.meta,
        graph,
        graph_digest,
        batch: options.batch,
        quantiles: options.quantiles,
        believed,
        versions: stamp::versions(),
    };
    Ok((subject, cases, tools))
}

/// Returns the artifact name of a run, without characters that paths, programs or command lines interpret.
pub(super) fn name_of(run: &str) -> String {
    run.replace(|c: char| NAMES_LACK.contains(c) || c.is_control(), "_")
}

/// Returns the tools of this machine for making and running artifacts.
pub(super) fn tools(worker: WorkerSpec, facts: &Facts) -> Tools {
    Tools {
        worker,
        places: facts.runtimes.clone(),
        environments: facts.cache_dir.join(ENVIRONMENTS),
        pythons: Pythons::new(facts.pythons()),
        enn: cv::program(facts).ok(),
        get_enn: facts.libtorch.installation().get_enn(),
    }
}

/// Lets a worker write the graph and the cases into the job's directory; returns a description of the cases' rows.
fn graph_by(job: &ExportJob, worker: &WorkerSpec, dir: &Path) -> Result<String, Error> {
    let worker_error = |error: PipeError| Error::Worker(error.to_string());
    let mut piped: Piped<ExportReply> = Piped::start(worker, "--export", dir).map_err(|error| match error {
        PipeError::Start(source) => Error::Read { path: worker.program.clone(), source },
        other => worker_error(other),
    })?;
    piped.say(job).map_err(worker_error)?;
    let reply = piped.receive().map_err(worker_error)?;
    // The worker ends by itself after its job.
    piped.end().map_err(worker_error)?;
    match reply {
        ExportReply::Exported { rows } => Ok(rows),
        ExportReply::Failed { error } => Err(Error::Worker(error)),
    }
}

fn read_cases(path: &Path, from: String) -> Result<Cases, Error> {
    let bytes = std::fs::read(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    let wrong = |error: safetensors::SafeTensorError| Error::Worker(format!("{}: {error}", path.display()));
    let found = SafeTensors::deserialize(&bytes).map_err(wrong)?;
    let floats = |data: &[u8]| data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect::<Vec<f32>>();
    let tensors = |prefix: &str| -> Vec<Tensor> {
        let of = |(name, view): (String, safetensors::tensor::TensorView<'_>)| {
            let name = name.strip_prefix(prefix)?.to_owned();
            Some(Tensor { name, shape: view.shape().to_vec(), values: floats(view.data()) })
        };
        found.tensors().into_iter().filter_map(of).collect()
    };
    let whole = |name: &str| found.tensor(name).map(|view| floats(view.data())).map_err(wrong);
    let centre = whole(CENTRE)?;
    let spread = whole(SPREAD)?;
    Ok(Cases { given: tensors(GIVEN), answered: tensors(ANSWERED), centre, spread, from })
}

/// Makes, verifies and publishes artifacts.
struct Workshop<'a> {
    subject: &'a Subject,
    forms: &'a Forms,
    cases: &'a Cases,
    tools: &'a Tools,
    draft: &'a DraftDir,
    options: &'a ExportOptions,
}

impl Workshop<'_> {
    /// Makes an artifact in the draft by its writer or its tool.
    fn make(&self, target: Target, source: Option<&Result<Parts, String>>) -> Result<(Parts, Made), ExportError> {
        let path = self.draft.dir().join(target.file(&self.subject.name));
        let about = self.subject.about();
        let graph = target.fitted(&self.forms.form(target)?.graph)?;
        let name = self.subject.name.as_str();
        let batch = self.subject.batch;
        let model = Model { name, graph: &graph, batch, about: &about };
        if let Some(written) = target.write(&model, &path) {
            return Ok((written?, Made::nothing()));
        }
        let source = match source {
            Some(Ok(parts)) => &parts[0],
            Some(Err(why)) => return Err(ExportError::NoSource { target: target.name(), why: why.clone() }),
            None => unreachable!("what a format is made from comes before it"),
        };
        let old = self.options.code_of.as_deref();
        let made = self.tools.make(target, old, &model, source, &path)?;
        Ok((vec![path], made))
    }

    /// Verifies an artifact in the draft and returns its path and sidecar.
    fn finish(
        &self,
        target: Target,
        parts: Parts,
        made: Made,
        sources: &BTreeMap<Target, Result<Parts, String>>,
    ) -> Result<(PathBuf, Box<Sidecar>), ExportError> {
        let verified = self.verified(target, &parts[0])?;
        let source = target.source().and_then(|source| Some((source, sources.get(&source)?.as_ref().ok()?)));
        let source = source.map(|(source, parts)| {
            Ok::<_, ExportError>(Source { format: source.name().to_owned(), blake3: digest(parts)?.blake3 })
        });
        let sidecar = sidecar(
            self.subject,
            target,
            self.options.precision,
            self.forms.form(target)?,
            digest(&parts)?,
            made,
            source.transpose()?,
            verified,
        );
        Ok((parts[0].clone(), Box::new(sidecar)))
    }

    fn verified(&self, target: Target, path: &Path) -> Result<Verified, ExportError> {
        let began = Instant::now();
        let tolerance = self.options.precision.tolerance(target);
        let nothing = |level: Level, runtime: String| Verified {
            level,
            runtime,
            batches: Vec::new(),
            rows: 0,
            from: self.cases.from.clone(),
            largest: 0.0,
            mean: 0.0,
            tolerance,
            seconds: began.elapsed().as_secs_f64(),
        };
        let ports: Ports = self.subject.ports();
        let mut runner: Box<dyn Runner> = match self.tools.runner(target, path, &ports, self.draft.dir()) {
            Ok(Some(runner)) => runner,
            Ok(None) => {
                coreml::check(path)?;
                return Ok(nothing(Level::Structure, NOT_RUN.to_owned()));
            }
            Err(error @ ExportError::Unavailable { .. }) if self.options.unverified => {
                return Ok(nothing(Level::None, error.to_string()));
            }
            Err(error) => return Err(error),
        };
        let sizes = verify::sizes(&self.subject.graph, self.subject.batch, self.cases.rows());
        let found = verify::verify(runner.as_mut(), self.cases, &sizes, path, tolerance)?;
        if let Some(place) = found.wrong.as_ref().filter(|_| !self.options.unverified) {
            let target = target.name();
            let place = place.clone();
            let largest = found.largest;
            return Err(ExportError::Differs { target, place, largest, tolerance });
        }
        Ok(Verified {
            level: if found.wrong.is_none() { Level::Runtime } else { Level::None },
            runtime: runner.version(),
            batches: found.batches.iter().map(|rows| *rows as u64).collect(),
            rows: found.rows as u64,
            largest: found.largest,
            mean: found.mean,
            ..nothing(Level::Runtime, String::new())
        })
    }

    /// Publishes an artifact with its sidecar; returns its path.
    fn publish(&self, path: &Path, sidecar: &Sidecar, out: &Path) -> Result<PathBuf, ExportError> {
        let target = self.options.targets.iter().find(|target| target.name() == sidecar.format);
        let target = *target.expect("an artifact of a format that was asked for");
        let beside = |name: &str| self.draft.dir().join(name);
        let sidecar_path = beside(&format!("{}.json", sidecar.artifact));
        let json = serde_json::to_vec_pretty(sidecar)
            .map_err(|error| ExportError::Io { path: sidecar_path.clone(), source: error.into() })?;
        atomic::write(&sidecar_path, &json)?;
        let written = programs(target, sidecar)
            .into_iter()
            .map(|(name, text)| atomic::write(&beside(&name), text.as_bytes()).map(|()| beside(&name)));
        let written = written.collect::<Result<Vec<PathBuf>, _>>()?;
        let place = out.join(&sidecar.artifact);
        let _lock = lock_output(out)?;
        let read = |source| ExportError::Io { path: place.clone(), source };
        let data = onnx::data_files(path).map_err(read)?;
        let old = onnx::data_files(&place).map_err(read)?;
        let stale = old.into_iter().filter(|old| data.iter().all(|data| data.file_name() != old.file_name()));
        let stale: Vec<PathBuf> = stale.collect();
        // Tensor files are published first: their names are content hashes, and the artifact refers to them.
        let parts: Vec<PathBuf> = [sidecar_path, path.to_owned()].into_iter().chain(written).chain(data).collect();
        self.draft.publish(&parts, out)?;
        // A log about the previous artifact would be misleading next to this one.
        let _absent = std::fs::remove_file(log_of(&place));
        for old in stale {
            std::fs::remove_file(&old).map_err(|source| ExportError::Io { path: old.clone(), source })?;
        }
        Ok(place)
    }
}
