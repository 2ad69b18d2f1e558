//! Where libtorch is: one search for workers, for `enn doctor` and for programs of the user's own that `enn run` starts.
//!
//! **Invariant:** the order is ENN_LIBTORCH (wrong is an error), the torch of the active Python, LIBTORCH or target/libtorch, then
//! `LD_LIBRARY_PATH`. What was passed over and why is kept. Python is asked at most once, and only when libtorch is needed.

mod elf;
mod python;
mod release;

pub(crate) use elf::needs_libtorch;
use python::Answer;
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

/// Release of libtorch that this release of ENN is built for: its first two numbers.
pub(crate) const RELEASE: &str = "2.11";
/// What every libtorch has, and what those have that compute on GPUs.
const CPU_LIBRARY: &str = "libtorch_cpu.so";
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

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Libtorch {
    /// Directory with libtorch_cpu.so.
    pub lib: PathBuf,
    /// How it was found.
    pub from: String,
    /// What was looked at before it that is worth a line: a torch of another release, a Python that is broken or hangs.
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

    /// Begins to search, beside what is done before libtorch is needed: a Python may take half a second to start.
    pub fn begin(&self) {
        let finder = self.clone();
        let search = move || {
            // Whoever needs it is told what was found.
            let _ = finder.find();
        };
        // Without a thread the search begins when it is needed.
        let _ = thread::Builder::new().name("libtorch".to_owned()).spawn(search);
    }

    /// The libtorch.
    ///
    /// # Errors
    /// All that was looked at, where none fits.
    pub fn find(&self) -> Result<&Libtorch, &NotFound> {
        self.found.get_or_init(|| search(&self.places, &python::torch)).as_ref()
    }
}

/// How a Python is asked for its torch.
type Ask<'a> = &'a dyn Fn(&Path) -> Answer;

fn search(places: &Places, ask: Ask<'_>) -> Result<Libtorch, NotFound> {
    let fit = |dir: &Path| fits(dir, places.cuda);
    if let Some(dir) = &places.given {
        let lib = fit(dir).map_err(NotFound::Given)?;
        return Ok(Libtorch { lib, from: "ENN_LIBTORCH".to_owned(), note: None });
    }
    let mut tried = vec!["ENN_LIBTORCH is not set".to_owned()];
    let python = places.python.display();
    let note = match ask(&places.python) {
        Answer::At(torch) => match fit(&torch) {
            Ok(lib) => return Ok(Libtorch { lib, from: format!("the torch of {python}"), note: None }),
            Err(why) => Some(format!("the torch of {python} is passed over: {why}, expected a libtorch {RELEASE}")),
        },
        Answer::None(why) => {
            tried.push(why);
            None
        }
        Answer::Broken(why) => Some(why),
    };
    tried.extend(note.clone());
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

    /// Not in directories where every user may make what is looked for: libraries of it would be run.
    fn near(&self) -> impl Iterator<Item = PathBuf> {
        let above = self.exe.iter().flat_map(|exe| exe.ancestors().skip(1)).filter(|dir| !is_everybodys(dir));
        above.flat_map(|dir| [dir.join("libtorch"), dir.join("target/libtorch")])
    }
}

fn is_everybodys(dir: &Path) -> bool {
    const WRITTEN_BY_OTHERS: u32 = 0o002;
    fs::metadata(dir).is_ok_and(|found| found.permissions().mode() & WRITTEN_BY_OTHERS != 0)
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
        Some(release) if !release.is(RELEASE) => return Err(format!("{place} is torch {release}")),
        _ => {}
    }
    // The dynamic linker's list of directories has no way to write them.
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
