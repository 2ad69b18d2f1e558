//! The search for libtorch, shared by workers, `enn doctor` and the user's own programs that `enn run` starts.
//!
//! **Invariant:** the order is ENN_LIBTORCH (a wrong one is an error), the torch of the active Python, LIBTORCH or target/libtorch, then
//! `LD_LIBRARY_PATH`. Rejected candidates are kept with the reason. Python is queried at most once, and only when libtorch is needed.

mod elf;
mod python;
mod release;

pub(crate) use elf::needs_libtorch;
use python::TorchLookup;
use release::Release;
use std::{
    env,
    ffi::{OsStr, OsString},
    fmt, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    thread,
};

/// Release of libtorch for which this release of ENN is built: its first two numbers.
pub(crate) const RELEASE: &str = "2.11";
/// Library that every libtorch has, and the one that computes on GPUs.
const CPU_LIBRARY: &str = "libtorch_cpu.so";
const CUDA_LIBRARY: &str = "libtorch_cuda.so";

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
    /// Whether the worker program needs the libraries for GPUs.
    pub cuda: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Libtorch {
    /// Directory with libtorch_cpu.so.
    pub lib: PathBuf,
    /// Place in which it was found, for people.
    pub from: String,
    /// Rejected candidate that is worth a line: a torch of another release, a Python that is broken or hangs.
    pub note: Option<String>,
}

impl Libtorch {
    /// Returns `LD_LIBRARY_PATH` with this directory before `rest`.
    pub fn path(&self, rest: Option<&OsStr>) -> OsString {
        let mut path = self.lib.clone().into_os_string();
        if let Some(rest) = rest.filter(|rest| !rest.is_empty()) {
            path.push(":");
            path.push(rest);
        }
        path
    }
}

/// No suitable libtorch was found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotFound {
    #[error(
        "ENN_LIBTORCH: {0}, expected a libtorch {RELEASE}\nhint: set it to the directory of a libtorch {RELEASE} or to its lib directory, \
         or unset it: the torch of the active Python and target/libtorch are found without it"
    )]
    Given(String),
    #[error(
        "no libtorch {RELEASE} was found: {}\nhint: `make libtorch` fetches it; else `python3 -m pip install torch=={RELEASE}.0`, or \
         set ENN_LIBTORCH to a libtorch {RELEASE} you have",
        .0.join("; ")
    )]
    Nowhere(Vec<String>),
}

/// A search that runs at most once, on the first request.
#[derive(Clone, Default)]
pub struct LibtorchFinder {
    places: SearchPaths,
    found: Arc<OnceLock<Result<Libtorch, NotFound>>>,
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

    /// Returns the libtorch.
    ///
    /// # Errors
    /// All rejected candidates, when none fits.
    pub fn find(&self) -> Result<&Libtorch, &NotFound> {
        self.found.get_or_init(|| search(&self.places, &python::torch)).as_ref()
    }
}

type TorchQuery<'a> = &'a dyn Fn(&Path) -> TorchLookup;

fn search(places: &SearchPaths, query: TorchQuery<'_>) -> Result<Libtorch, NotFound> {
    let fit = |dir: &Path| fits(dir, places.cuda);
    if let Some(dir) = &places.given {
        let lib = fit(dir).map_err(NotFound::Given)?;
        return Ok(Libtorch { lib, from: "ENN_LIBTORCH".to_owned(), note: None });
    }
    let mut tried = vec!["ENN_LIBTORCH is not set".to_owned()];
    let python = places.python.display();
    let note = match query(&places.python) {
        TorchLookup::Found(torch) => match fit(&torch) {
            Ok(lib) => return Ok(Libtorch { lib, from: format!("the torch of {python}"), note: None }),
            Err(why) => Some(format!("the torch of {python} is passed over: {why}, expected a libtorch {RELEASE}")),
        },
        TorchLookup::Absent(why) => {
            tried.push(why);
            None
        }
        TorchLookup::Broken(why) => Some(why),
    };
    tried.extend(note.clone());
    for (dir, from) in places.built() {
        match fit(&dir) {
            Ok(lib) => return Ok(Libtorch { lib, from, note }),
            // Few of the directories above the program can have a libtorch; a missing one is not worth a line.
            Err(why) if dir.exists() || from == "LIBTORCH" => tried.push(why),
            Err(_) => {}
        }
    }
    if places.near().all(|dir| !dir.exists()) {
        tried.push("no target/libtorch is near the program enn".to_owned());
    }
    Err(NotFound::Nowhere(tried))
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

fn is_world_writable(dir: &Path) -> bool {
    const WRITTEN_BY_OTHERS: u32 = 0o002;
    fs::metadata(dir).is_ok_and(|found| found.permissions().mode() & WRITTEN_BY_OTHERS != 0)
}

/// Returns the library directory of a libtorch that workers can load, or the reason why it does not fit.
fn fits(dir: &Path, cuda: bool) -> Result<PathBuf, String> {
    let place = dir.display();
    if !dir.exists() {
        return Err(format!("{place} does not exist"));
    }
    let mut libraries = [dir.join("lib"), dir.to_path_buf()].into_iter();
    let Some(lib) = libraries.find(|lib| lib.join(CPU_LIBRARY).exists()) else {
        return Err(format!("{place} has no {CPU_LIBRARY}"));
    };
    match Release::of(&lib) {
        Some(release) if !release.is(RELEASE) => return Err(format!("{place} is torch {release}")),
        _ => {}
    }
    // LD_LIBRARY_PATH has no way to escape these characters.
    if lib.as_os_str().as_encoded_bytes().iter().any(|byte| matches!(byte, b':' | b';')) {
        return Err(format!("{place} has a colon or semicolon in its name, by which LD_LIBRARY_PATH is divided"));
    }
    if cuda && !lib.join(CUDA_LIBRARY).exists() {
        return Err(format!("{place} has no {CUDA_LIBRARY}, which this enn-worker needs"));
    }
    Ok(lib)
}

#[cfg(test)]
mod tests;
