//! `predict` for a program that asks again and again: a line of JSON for each request, and a model that stays loaded.
//!
//! ```text
//! {"request":1,"data":["/tmp/a.arrow"],"out":"/tmp/a"} ─► /tmp/a, /tmp/a/manifest.json ─► answered | refused
//! ```
//! An answer is what [`predict`](super::predict) writes, to the bit.
//!
//! **Invariant:** each request has one answer, in their order; what is wrong with one is not felt by the next. A newer checkpoint of the
//! run is used from the next request on. Nothing is left of a request but its output.

use super::{
    loaded_model::LoadedModel,
    predict::{PredictOptions, SCRATCH, Subject, predict_loaded},
    work_dir::WorkDir,
};
use crate::{Error, export::is_packed, facts::Facts};
use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};
use enn_checkpoint::gather::{self, Gathered};
use enn_common::{fs::FileError, wire::serve::get};
use serde::Deserialize;
use std::{
    io::{self, BufRead},
    path::{Path, PathBuf},
    time::Duration,
};

/// Predict these files.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PredictRequest {
    /// The number by which the answer is known.
    pub request: u64,
    pub data: Vec<PathBuf>,
    pub out: PathBuf,
    /// Whether a column is accepted although the model does not know most of its values.
    #[serde(default)]
    pub allow_unseen: bool,
    #[serde(default)]
    pub replace: bool,
    /// Directory of the temporary files of this request; by default one below the run.
    #[serde(default)]
    pub scratch: Option<PathBuf>,
}

/// What is told of requests.
#[derive(Debug)]
pub enum PredictAnswer {
    /// The model is loaded.
    Ready,
    Answered {
        request: u64,
        gathered: Gathered,
    },
    /// A request that cannot be answered; without a number if it cannot be read.
    Refused {
        request: Option<u64>,
        error: Error,
    },
}

#[derive(Debug, Clone, PartialEq)]
pub struct RequestLimits {
    /// Maximum wait for the next request; `None`: no limit.
    pub idle: Option<Duration>,
}

/// The model of a run that is loaded, and the checkpoint that it comes from.
struct Loaded {
    digest: String,
    model: LoadedModel,
    /// The worker removes its directory when it ends.
    work: WorkDir,
}

/// Answers requests until they end, or none has come for a while. A request has at most 64 KiB.
///
/// # Errors
/// There is no model, its worker does not start, or the requests cannot be read.
pub fn answer_requests(
    model: &Path,
    requests: impl BufRead + Send + 'static,
    facts: &Facts,
    options: &PredictOptions,
    limits: &RequestLimits,
    tell: &mut dyn FnMut(PredictAnswer) -> Result<(), Error>,
) -> Result<(), Error> {
    facts.libtorch.begin();
    let mut loaded = Some(load(model, facts, options)?);
    tell(PredictAnswer::Ready)?;
    let incoming = read(requests)?;
    loop {
        let next = match limits.idle {
            Some(idle) => incoming.recv_timeout(idle),
            None => incoming.recv().map_err(|_end| RecvTimeoutError::Disconnected),
        };
        let request = match next {
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            Ok(Ok(request)) => request,
            Ok(Err(source)) => {
                let is_over = source.kind() != io::ErrorKind::InvalidData;
                let error = Error::Read { path: PathBuf::from("the line of a request"), source };
                if is_over {
                    return Err(error);
                }
                tell(PredictAnswer::Refused { request: None, error })?;
                continue;
            }
        };
        let number = request.request;
        tell(match answer(model, &request, &mut loaded, facts, options) {
            Ok(gathered) => PredictAnswer::Answered { request: number, gathered },
            Err(error) => PredictAnswer::Refused { request: Some(number), error },
        })?;
    }
    loaded.map_or(Ok(()), |loaded| loaded.model.end())
}

/// Reads requests in a thread, one ahead. The channel ends with them.
fn read(mut requests: impl BufRead + Send + 'static) -> Result<Receiver<io::Result<PredictRequest>>, Error> {
    let (found, incoming) = bounded(1);
    let read = move || {
        while let Some(request) = get::<PredictRequest>(&mut requests).transpose() {
            let is_over = request.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::InvalidData);
            if found.send(request).is_err() || is_over {
                return;
            }
        }
    };
    let thread = std::thread::Builder::new().name("enn-requests".to_owned());
    thread.spawn(read).map_err(|source| Error::Read { path: PathBuf::from("standard input"), source })?;
    Ok(incoming)
}

/// Loads the newest checkpoint of a run, or an exported model.
fn load(model: &Path, facts: &Facts, options: &PredictOptions) -> Result<Loaded, Error> {
    let place = if is_packed(model) { facts.cache_dir.join(SCRATCH) } else { model.join("predictions") };
    let work = WorkDir::create(&place)?;
    let subject = Subject::of(model, std::slice::from_ref(&work.path), facts, options)?;
    let (levels, _) = subject.levels(options.point)?;
    let model = LoadedModel::start(&subject, facts, options, &work.path, levels.len())?;
    Ok(Loaded { digest: subject.digest.blake3, model, work })
}

fn answer(
    model: &Path,
    request: &PredictRequest,
    loaded: &mut Option<Loaded>,
    facts: &Facts,
    options: &PredictOptions,
) -> Result<Gathered, Error> {
    let output = facts.cwd.join(&request.out);
    let inputs: Vec<PathBuf> = request.data.iter().map(|file| facts.cwd.join(file)).collect();
    gather::writable(&output, request.replace, &inputs)?;
    let replace = request.replace || output.exists();
    let options = PredictOptions { replace, allow_unseen: request.allow_unseen, ..options.clone() };
    let subject = Subject::of(model, &inputs, facts, &options)?;
    let mut current = match loaded.take().filter(|loaded| loaded.digest == subject.digest.blake3) {
        Some(current) => current,
        None => load(model, facts, &options)?,
    };
    let scratch = request.scratch.as_ref().map_or_else(|| current.work.path.clone(), |dir| facts.cwd.join(dir));
    let done = predict_loaded(&mut current.model, &subject, &output, facts, &options, &scratch);
    // A worker that has failed is replaced for the next request.
    if !matches!(&done, Err(Error::Worker(_) | Error::Late(_) | Error::Export(_))) {
        *loaded = Some(current);
    }
    if done.is_err() && !output.exists() {
        // Without an answer its parts are of no use to anybody.
        let partial = gather::partial_dir(&output);
        match std::fs::remove_dir_all(&partial) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                let error = FileError { action: "remove", path: partial, source: error };
                tracing::warn!("{error}");
            }
            _ => {}
        }
    }
    done
}
