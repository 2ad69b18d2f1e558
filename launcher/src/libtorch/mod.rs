//! The search for libtorch and for the enn-worker that is built for it, shared by workers, `enn doctor` and the user's own programs that
//! `enn run` starts.
//!
//! **Invariant:** the order is ENN_LIBTORCH (a wrong one is an error), the torch of the active Python, LIBTORCH or target/libtorch, then
//! `LD_LIBRARY_PATH`. Rejected candidates are kept with the reason. Python is queried at most once, and only when libtorch is needed.

mod choice;
mod elf;
mod installation;
mod places;
mod python;
mod release;
mod worker;

use choice::{Choice, choose};
pub(crate) use elf::needs_libtorch;
pub use installation::{Installation, python_of_environment};
use places::is_world_writable;
use python::{PythonPackages, TorchLookup};
use release::CPU_LIBRARY;
use std::{
    env,
    ffi::{OsStr, OsString},
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    thread,
};
pub use worker::{NamedWorker, NoWorker};
use worker::{WorkerProgram, Workers};

/// Directory of CUDA's runtime beside the package torch.
const CUDA_PACKAGE: &str = "nvidia/cu13/lib";

/// Places to search, read from the environment once.
#[derive(Debug, Clone, Default)]
pub struct SearchPaths {
    /// Value of `ENN_LIBTORCH`.
    pub given: Option<PathBuf>,
    pub python: PathBuf,
    /// Value of `LIBTORCH`: the libtorch that the program was built against instead of target/libtorch.
    pub built: Option<PathBuf>,
    pub exe: Option<PathBuf>,
    pub library_path: Option<OsString>,
    /// The enn-worker that `ENN_WORKER` names, or that is beside enn.
    pub worker: Option<NamedWorker>,
    /// Whether this process may use a GPU.
    pub gpus: bool,
    pub installation: Installation,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Libtorch {
    /// Directory with libtorch_cpu.so.
    pub lib: PathBuf,
    /// Place in which it was found, for people.
    pub from: String,
    /// Sentence for people: a torch of another release was rejected, a Python is broken or hangs, GPUs are not used.
    pub note: Option<String>,
}

impl Libtorch {
    /// Returns `LD_LIBRARY_PATH` with this directory before `rest`.
    pub fn path(&self, rest: Option<&OsStr>) -> OsString {
        let mut path = self.lib.clone().into_os_string();
        if let Some(rest) = self.behind(rest) {
            path.push(":");
            path.push(rest);
        }
        path
    }

    /// Returns what follows this directory on `LD_LIBRARY_PATH`: CUDA's runtime, which a torch from PyPI has in a package of its own, and
    /// `rest`.
    pub fn behind(&self, rest: Option<&OsStr>) -> Option<OsString> {
        let rest = rest.filter(|rest| !rest.is_empty()).map(OsStr::to_owned);
        let packages = self.lib.parent().and_then(Path::parent);
        let Some(cuda) = packages.map(|packages| packages.join(CUDA_PACKAGE)).filter(|dir| dir.is_dir()) else {
            return rest;
        };
        let mut path = cuda.into_os_string();
        if let Some(rest) = rest {
            path.push(":");
            path.push(rest);
        }
        Some(path)
    }
}

/// No suitable libtorch was found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotFound {
    #[error(
        "ENN_LIBTORCH: {why}, expected a libtorch {releases}\nhint: set it to the directory of a libtorch {releases} or to its lib \
         directory, or unset it: the torch of the active Python is found without it"
    )]
    Given { why: String, releases: String },
    #[error("no libtorch {releases} was found: {}\nhint: {hint}", .tried.join("; "))]
    Nowhere { tried: Vec<String>, releases: String, hint: String },
}

/// The result of a search.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Found {
    libtorch: Result<Libtorch, NotFound>,
    /// The enn-worker that is built for the libtorch. Where no libtorch was found, one that would be built for it.
    worker: Result<WorkerProgram, NoWorker>,
}

/// A search that runs at most once, on the first request.
#[derive(Clone, Default)]
pub struct LibtorchFinder {
    places: SearchPaths,
    found: Arc<OnceLock<Found>>,
}

impl fmt::Debug for LibtorchFinder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LibtorchFinder").field("places", &self.places).finish_non_exhaustive()
    }
}

impl LibtorchFinder {
    pub fn new(places: SearchPaths) -> Self {
        Self { places, found: Arc::default() }
    }

    /// Starts the search in the background: a Python may take half a second to start.
    pub fn begin(&self) {
        let finder = self.clone();
        let search = move || {
            // The result is kept for the first caller of `find`.
            let _ = finder.find();
        };
        // Without a thread the search begins when it is needed.
        let _ = thread::Builder::new().name("libtorch".to_owned()).spawn(search);
    }

    fn found(&self) -> &Found {
        self.found.get_or_init(|| search(&self.places, &python::packages))
    }

    /// Returns the libtorch.
    ///
    /// # Errors
    /// All rejected candidates, when none fits.
    pub fn find(&self) -> Result<&Libtorch, &NotFound> {
        self.found().libtorch.as_ref()
    }

    /// Returns the program enn-worker, the one that is built for the libtorch where there are several.
    ///
    /// # Errors
    /// All places that were searched, when there is none.
    pub fn worker(&self) -> Result<&Path, &NoWorker> {
        match &self.places.worker {
            Some(named) => Ok(named.path()),
            None => self.found().worker.as_ref().map(|worker| worker.path.as_path()),
        }
    }

    /// Returns whether the program enn-worker computes on GPUs.
    pub fn uses_cuda(&self) -> bool {
        match &self.places.worker {
            Some(named) => named.program().cuda.is_some(),
            None => self.found().worker.as_ref().is_ok_and(|worker| worker.cuda.is_some()),
        }
    }

    pub fn installation(&self) -> &Installation {
        &self.places.installation
    }
}

type PackageQuery<'a> = &'a dyn Fn(&Path) -> PythonPackages;

/// The libtorch, and the program that is built for it.
struct LibtorchAndWorker {
    libtorch: Libtorch,
    worker: Option<WorkerProgram>,
}

fn search(places: &SearchPaths, query: PackageQuery<'_>) -> Found {
    let asked = OnceLock::new();
    let active = || asked.get_or_init(|| query(&places.python));
    let workers = Workers::find(places.worker.as_ref(), places.exe.as_deref(), active);
    let missing = || workers.missing(&places.installation);
    match pair(places, &workers, active) {
        Ok(pair) => Found { libtorch: Ok(pair.libtorch), worker: pair.worker.ok_or_else(missing) },
        Err(why) => Found { libtorch: Err(why), worker: workers.programs.first().cloned().ok_or_else(missing) },
    }
}

fn pair<'a>(
    places: &SearchPaths,
    workers: &Workers,
    active: impl FnOnce() -> &'a PythonPackages,
) -> Result<LibtorchAndWorker, NotFound> {
    let releases = workers.releases().join(" or ");
    let fit = |dir: &Path| choose(dir, workers, places.gpus);
    let made = |choice: Choice, from: String, note: Option<String>| {
        let note = note.or(choice.note);
        LibtorchAndWorker { libtorch: Libtorch { lib: choice.lib, from, note }, worker: choice.worker }
    };
    if let Some(dir) = &places.given {
        let choice = fit(dir).map_err(|why| NotFound::Given { why, releases })?;
        return Ok(made(choice, "ENN_LIBTORCH".to_owned(), None));
    }
    let mut tried = vec!["ENN_LIBTORCH is not set".to_owned()];
    let python = places.python.display();
    let note = match &active().torch {
        TorchLookup::Found(torch) => match fit(torch) {
            Ok(choice) => return Ok(made(choice, format!("the torch of {python}"), None)),
            Err(why) => Some(format!("the torch of {python} is passed over: {why}, expected a libtorch {releases}")),
        },
        TorchLookup::Absent(why) => {
            tried.push(why.clone());
            None
        }
        TorchLookup::Broken(why) => Some(why.clone()),
    };
    tried.extend(note.clone());
    for (dir, from) in places.built() {
        match fit(&dir) {
            Ok(choice) => return Ok(made(choice, from, note)),
            // Few of the directories above the program can have a libtorch; a missing one is not worth a line.
            Err(why) if dir.exists() || from == "LIBTORCH" => tried.push(why),
            Err(_) => {}
        }
    }
    if places.installation == Installation::Checkout && places.near().all(|dir| !dir.exists()) {
        tried.push("no target/libtorch is near the program enn".to_owned());
    }
    let hint = places.installation.get_libtorch(&workers.releases());
    Err(NotFound::Nowhere { tried, releases, hint })
}

impl SearchPaths {
    /// Returns the candidates that programs may have been built against, in the order of the search, with their names for people.
    fn built(&self) -> Vec<(PathBuf, String)> {
        let named = self.built.iter().map(|dir| (dir.clone(), "LIBTORCH".to_owned()));
        let near = self.near().map(|dir| (dir, "near the program enn".to_owned()));
        let loaded = self.library_path.iter().flat_map(env::split_paths).filter(|dir| dir.join(CPU_LIBRARY).exists());
        named.chain(near).chain(loaded.map(|dir| (dir, "LD_LIBRARY_PATH".to_owned()))).collect()
    }

    /// Returns directories near the program, except below world-writable ones, whose libraries could be another user's.
    fn near(&self) -> impl Iterator<Item = PathBuf> {
        let above = self.exe.iter().flat_map(|exe| exe.ancestors().skip(1)).filter(|dir| !is_world_writable(dir));
        above.flat_map(|dir| [dir.join("libtorch"), dir.join("target/libtorch")])
    }
}

#[cfg(test)]
mod tests;
