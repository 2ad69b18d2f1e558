//! The Python that a user works with: that of VIRTUAL_ENV, python3 on PATH, that of CONDA_PREFIX, in this order; where PYTHON_EXEC
//! names one, that alone. Runtimes and makers of exported models are searched among its packages.
//!
//! **Invariant:** an interpreter is started only when its packages are searched, once, and with a time limit.

use enn_common::secrets;
use enn_export::maker::prepare::Backend;
use enn_process::output_within;
use std::{
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Duration,
};

/// Longest wait for an interpreter to list its package directories.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(20);
/// Limit on the package directories of one interpreter.
const PLACES_MAX: usize = 64;
/// Program that lists the package directories: those that an isolated interpreter sees, then the user's own.
const QUERY: &str = "import json, site, sys; own = sys.prefix == sys.base_prefix; \
                    print(json.dumps([sys.path, [site.getusersitepackages()] if own else []]))";

/// Interpreters, and their answers once they were queried.
#[derive(Debug, Clone)]
pub struct Pythons {
    interpreters: Vec<PathBuf>,
    queried: Arc<OnceLock<Vec<InterpreterInfo>>>,
}

/// An interpreter with its package directories.
#[derive(Debug, Clone, PartialEq)]
struct InterpreterInfo {
    interpreter: PathBuf,
    /// Directories of the packages that tools see.
    packages: Vec<PathBuf>,
    /// Directories of the user's own packages: tools run isolated, and do not see them.
    of_user: Vec<PathBuf>,
}

impl Pythons {
    /// Makes the list of interpreters, in order of preference.
    pub fn new(interpreters: Vec<PathBuf>) -> Self {
        Self { interpreters, queried: Arc::default() }
    }

    fn all(&self) -> &[InterpreterInfo] {
        self.queried.get_or_init(|| self.interpreters.iter().map(|interpreter| query(interpreter)).collect())
    }

    pub fn places(&self) -> Vec<PathBuf> {
        let mut places: Vec<PathBuf> = Vec::new();
        for place in self.all().iter().flat_map(|python| python.packages.iter().chain(&python.of_user)) {
            if !places.contains(place) {
                places.push(place.clone());
            }
        }
        places
    }

    /// Returns the interpreter that has all that a backend needs; else one that has part of it, or the first: it reports itself what it lacks.
    pub fn for_tools(&self, backend: Backend) -> Option<PathBuf> {
        let with = |has: &dyn Fn(&Path) -> bool| {
            self.all().iter().find(|python| python.packages.iter().any(|packages| has(packages)))
        };
        let fitting = with(&|packages| backend.fits(packages));
        let found = fitting.or_else(|| with(&|packages| backend.is_in(packages))).map(|python| &python.interpreter);
        found.or_else(|| self.interpreters.iter().find(|path| path.is_file())).or(self.interpreters.first()).cloned()
    }
}

/// Queries an interpreter; one that does not answer gets the directories that it would have in an environment.
fn query(interpreter: &Path) -> InterpreterInfo {
    let mut command = secrets::command(interpreter);
    command.args(["-I", "-W", "ignore", "-c", QUERY]);
    let answer = output_within(command, ANSWER_WAIT_MAX).ok();
    let listed = answer.and_then(|text| serde_json::from_str::<[Vec<PathBuf>; 2]>(text.lines().last()?).ok());
    let whole = |paths: Vec<PathBuf>| -> Vec<PathBuf> {
        paths.into_iter().filter(|path| path.is_absolute() && path.is_dir()).take(PLACES_MAX).collect()
    };
    let environment = || interpreter.parent().and_then(Path::parent).map(Path::to_owned).into_iter().collect();
    let [packages, of_user] = listed.unwrap_or_else(|| [environment(), Vec::new()]);
    InterpreterInfo { interpreter: interpreter.to_owned(), packages: whole(packages), of_user: whole(of_user) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt};

    /// An interpreter below `dir` that says that its packages are there.
    fn python(dir: &Path, packages: &[&str]) -> PathBuf {
        let interpreter = dir.join("bin/python3");
        let site = dir.join("lib/python3.11/site-packages");
        fs::create_dir_all(interpreter.parent().unwrap()).unwrap();
        packages.iter().for_each(|name| fs::create_dir_all(site.join(name)).unwrap());
        let answer = format!("[[\"\", \"/nowhere\", {:?}], [{:?}]]", site, dir.join("user"));
        fs::create_dir_all(dir.join("user")).unwrap();
        fs::write(&interpreter, format!("#!/bin/sh\necho noise\necho '{answer}'\n")).unwrap();
        fs::set_permissions(&interpreter, fs::Permissions::from_mode(0o700)).unwrap();
        interpreter
    }

    #[test]
    fn packages_are_where_interpreters_say_and_tools_run_in_the_one_that_has_them() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let bare = python(&at("bare"), &["pip"]);
        let old = python(&at("old"), &["torch", "torch-2.4.0.dist-info"]);
        let right = python(&at("right"), &["torch", "torch-2.11.0+cu130.dist-info"]);
        let site = |name: &str| at(name).join("lib/python3.11/site-packages");
        let all = Pythons::new(vec![at("absent/bin/python3"), bare.clone(), old.clone(), right.clone()]);
        let expected = [site("bare"), at("bare/user"), site("old"), at("old/user"), site("right"), at("right/user")];
        assert_eq!(all.places(), expected);
        assert_eq!(all.for_tools(Backend::Aoti), Some(right));
        assert_eq!(
            Pythons::new(vec![bare.clone(), old.clone()]).for_tools(Backend::Aoti),
            Some(old),
            "it says its version"
        );
        assert_eq!(all.for_tools(Backend::ExecuTorch), Some(bare), "the first that is there");
        assert_eq!(Pythons::new(Vec::new()).for_tools(Backend::Aoti), None);
    }

    #[test]
    fn an_interpreter_that_does_not_answer_has_the_packages_of_its_environment() {
        let dir = tempfile::tempdir().unwrap();
        let interpreter = python(dir.path(), &["onnxruntime"]);
        fs::write(&interpreter, "#!/bin/sh\nexit 3\n").unwrap();
        assert_eq!(Pythons::new(vec![interpreter]).places(), [dir.path()]);
        assert!(Pythons::new(vec![dir.path().join("no/bin/python")]).places().is_empty());
    }
}
