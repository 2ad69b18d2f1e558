//! Where libtorch is: one search for workers, for `enn doctor` and for programs of the user's own that `enn run` starts.
//!
//! **Invariant:** the order is ENN_LIBTORCH (wrong is an error), the torch of the active Python, LIBTORCH or target/libtorch, then
//! `LD_LIBRARY_PATH`. What was passed over and why is kept. Python is asked at most once, and only when libtorch is needed.

mod elf;
mod python;
mod release;

pub(crate) use elf::needs;
use release::Release;
use std::{
    env,
    ffi::{OsStr, OsString},
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

/// Release of libtorch that this release of ENN is built for: its first two numbers.
pub(crate) const RELEASE: &str = "2.11";
/// What every libtorch has, and what those have that compute on GPUs.
pub(crate) const CPU_LIBRARY: &str = "libtorch_cpu.so";
const CUDA_LIBRARY: &str = "libtorch_cuda.so";

/// What is searched by: read from the environment once.
#[derive(Debug, Clone, Default)]
pub struct Places {
    /// `ENN_LIBTORCH`.
    pub given: Option<PathBuf>,
    /// The active Python.
    pub python: PathBuf,
    /// `LIBTORCH`: what the program was built against instead of target/libtorch.
    pub built: Option<PathBuf>,
    /// This program.
    pub exe: Option<PathBuf>,
    /// `LD_LIBRARY_PATH`.
    pub library_path: Option<OsString>,
    /// Whether the worker program needs the libraries for GPUs.
    pub cuda: bool,
}

/// A libtorch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Libtorch {
    /// Directory with libtorch_cpu.so.
    pub lib: PathBuf,
    /// How it was found.
    pub from: String,
    /// What was looked at before it that is worth a line: a torch of another release.
    pub note: Option<String>,
}

impl Libtorch {
    /// `LD_LIBRARY_PATH` with its libraries first, before what was there.
    pub fn path(&self, rest: Option<&OsStr>) -> OsString {
        let mut path = self.lib.clone().into_os_string();
        if let Some(rest) = rest.filter(|rest| !rest.is_empty()) {
            path.push(":");
            path.push(rest);
        }
        path
    }
}

/// No libtorch fits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotFound {
    /// `ENN_LIBTORCH` names something else.
    #[error(
        "ENN_LIBTORCH: {0}, expected a libtorch {RELEASE}\nhint: set it to the directory of a libtorch {RELEASE} or to its lib directory, \
         or unset it: the torch of the active Python and target/libtorch are found without it"
    )]
    Given(String),
    /// Nothing that was looked at fits.
    #[error(
        "no libtorch {RELEASE} was found: {}\nhint: `make libtorch` fetches it; else `python3 -m pip install torch=={RELEASE}.0`, or \
         set ENN_LIBTORCH to a libtorch {RELEASE} you have",
        .0.join("; ")
    )]
    Nowhere(Vec<String>),
}

/// Searches at most once, when it is asked for the first time.
#[derive(Clone, Default)]
pub struct Finder {
    places: Places,
    found: Arc<OnceLock<Result<Libtorch, NotFound>>>,
}

impl fmt::Debug for Finder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Finder").field("places", &self.places).finish_non_exhaustive()
    }
}

impl Finder {
    /// Searches these places.
    pub fn new(places: Places) -> Self {
        Self { places, found: Arc::default() }
    }

    /// The libtorch.
    ///
    /// # Errors
    /// All that was looked at, where none fits.
    pub fn find(&self) -> Result<&Libtorch, &NotFound> {
        self.found.get_or_init(|| search(&self.places, &python::torch)).as_ref()
    }
}

/// What a Python says of its torch: the directory of the package, or why there is none.
type Ask<'a> = &'a dyn Fn(&Path) -> Result<PathBuf, String>;

fn search(places: &Places, ask: Ask<'_>) -> Result<Libtorch, NotFound> {
    let fit = |dir: &Path| fits(dir, places.cuda);
    if let Some(dir) = &places.given {
        let lib = fit(dir).map_err(NotFound::Given)?;
        return Ok(Libtorch { lib, from: "ENN_LIBTORCH".to_owned(), note: None });
    }
    let mut tried = vec!["ENN_LIBTORCH is not set".to_owned()];
    let mut note = None;
    let python = places.python.display();
    match ask(&places.python) {
        Ok(torch) => match fit(&torch) {
            Ok(lib) => return Ok(Libtorch { lib, from: format!("the torch of {python}"), note: None }),
            Err(why) => {
                let line = format!("the torch of {python} is passed over: {why}");
                tried.push(line.clone());
                note = Some(line);
            }
        },
        Err(why) => tried.push(why),
    }
    for (dir, from) in places.built() {
        match fit(&dir) {
            Ok(lib) => return Ok(Libtorch { lib, from, note }),
            // Few of the directories above the program can have one; who has none of these names needs no word.
            Err(why) if dir.exists() || from == "LIBTORCH" => tried.push(why),
            Err(_) => {}
        }
    }
    if places.near().all(|dir| !dir.exists()) {
        tried.push("no target/libtorch is near the program enn".to_owned());
    }
    Err(NotFound::Nowhere(tried))
}

impl Places {
    /// Where the libtorch lies that programs were built against, in the order in which it is looked for, and what it is called.
    fn built(&self) -> Vec<(PathBuf, String)> {
        let named = self.built.iter().map(|dir| (dir.clone(), "LIBTORCH".to_owned()));
        let near = self.near().map(|dir| (dir, "near the program enn".to_owned()));
        let loaded = self.library_path.iter().flat_map(env::split_paths).filter(|dir| dir.join(CPU_LIBRARY).exists());
        named.chain(near).chain(loaded.map(|dir| (dir, "LD_LIBRARY_PATH".to_owned()))).collect()
    }

    fn near(&self) -> impl Iterator<Item = PathBuf> {
        let above = self.exe.iter().flat_map(|exe| exe.ancestors().skip(1));
        above.flat_map(|dir| [dir.join("libtorch"), dir.join("target/libtorch")])
    }
}

/// The library directory of a libtorch, if it is one that workers can load; why not, with its place.
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
        Some(release) if !release.is(RELEASE) => return Err(format!("{place} is torch {release}, expected {RELEASE}")),
        _ => {}
    }
    if cuda && !lib.join(CUDA_LIBRARY).exists() {
        return Err(format!("{place} has no {CUDA_LIBRARY}, which this enn-worker needs"));
    }
    Ok(lib)
}

#[cfg(test)]
mod tests;
