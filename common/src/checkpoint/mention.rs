//! Classes and functions that a pickle mentions and that are no part of a checkpoint: of another library, or such as run code.
//!
//! **Invariant:** nothing of them is ever looked up, let alone called; they are names.

use std::fmt;

/// Different ones that are kept; dangerous ones are kept apart.
const KEPT_MAX: usize = 256;

/// Packages of which everything that is called runs code, or reaches what does.
const PACKAGES: [&str; 20] = [
    "_pyrepl",
    "aiohttp",
    "asyncio",
    "cloudpickle",
    "ctypes",
    "dill",
    "distutils",
    "ensurepip",
    "http",
    "importlib",
    "multiprocessing",
    "os",
    "pip",
    "requests",
    "setuptools",
    "torch.hub",
    "torch.package",
    "torch.utils.bottleneck",
    "torch.utils.cpp_extension",
    "urllib",
];
/// Modules alone: a program may have a package of the same name as one of them.
const MODULES: [&str; 37] = [
    "_io",
    "_pickle",
    "_posixsubprocess",
    "_thread",
    "bdb",
    "cProfile",
    "code",
    "codeop",
    "commands",
    "doctest",
    "ftplib",
    "httplib",
    "imp",
    "linecache",
    "marshal",
    "nt",
    "pdb",
    "pickle",
    "platform",
    "popen2",
    "posix",
    "profile",
    "pty",
    "pydoc",
    "runpy",
    "shutil",
    "site",
    "smtplib",
    "socket",
    "ssl",
    "subprocess",
    "sys",
    "timeit",
    "trace",
    "venv",
    "webbrowser",
    "zipimport",
];
/// Functions that run code, import or open, in modules of which others are harmless.
const FUNCTIONS: [(&str, &[&str]); 14] = [
    ("builtins", BUILTINS),
    ("operator", &["attrgetter", "methodcaller"]),
    ("_operator", &["attrgetter", "methodcaller"]),
    ("functools", &["reduce"]),
    ("_functools", &["reduce"]),
    ("io", &["open", "open_code", "FileIO"]),
    ("codecs", &["open"]),
    ("types", &["FunctionType", "CodeType", "LambdaType"]),
    ("torch", &["load", "compile"]),
    ("torch.serialization", &["load"]),
    ("torch.jit", &["load"]),
    ("joblib", &["load"]),
    ("numpy", &["load", "fromfile", "memmap"]),
    ("yaml", &["load", "unsafe_load", "full_load"]),
];
const BUILTINS: &[&str] = &[
    "eval",
    "exec",
    "execfile",
    "compile",
    "open",
    "file",
    "__import__",
    "input",
    "raw_input",
    "breakpoint",
    "getattr",
    "setattr",
    "delattr",
    "globals",
    "locals",
    "vars",
    "apply",
    "help",
];

/// One class or function.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mention {
    pub module: String,
    pub name: String,
    /// Place of the opcode in the pickle.
    pub at: usize,
}

impl fmt::Display for Mention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.module, self.name)
    }
}

impl Mention {
    /// Whether calling it runs code, reads or writes files, or reaches another machine.
    pub fn is_dangerous(&self) -> bool {
        is_dangerous(&self.module, &self.name)
    }
}

/// Whether calling this runs code, reads or writes files, or reaches another machine.
pub(super) fn is_dangerous(module: &str, name: &str) -> bool {
    let module = if module == "__builtin__" { "builtins" } else { module };
    let is_below =
        |known: &str| module.strip_prefix(known).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    // A name with dots reaches through what it names: `os` of any module.
    let is_reached = |part: &str| PACKAGES.contains(&part) || MODULES.contains(&part);
    name.split('.').rev().skip(1).any(is_reached)
        || PACKAGES.iter().any(|known| is_below(known))
        || MODULES.contains(&module)
        || FUNCTIONS.iter().any(|(known, names)| module == *known && names.contains(&name))
}

/// All that a pickle mentions, each once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mentions {
    foreign: Vec<Mention>,
    dangerous: Vec<Mention>,
    /// Whether there were more than are kept.
    is_cut: bool,
}

impl Mentions {
    pub(super) fn add(&mut self, found: Mention) {
        let kept = if found.is_dangerous() { &mut self.dangerous } else { &mut self.foreign };
        if kept.iter().any(|known| known.module == found.module && known.name == found.name) {
            return;
        }
        if kept.len() < KEPT_MAX { kept.push(found) } else { self.is_cut = true }
    }

    pub fn foreign(&self) -> &[Mention] {
        &self.foreign
    }

    /// Globals that run code.
    pub fn dangerous(&self) -> &[Mention] {
        &self.dangerous
    }

    /// Whether there were more than are kept.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Adds those of another pickle.
    pub(super) fn extend(&mut self, others: &Self) {
        others.foreign.iter().chain(&others.dangerous).for_each(|found| self.add(found.clone()));
        self.is_cut |= others.is_cut;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_code_is_told_from_what_another_library_made() {
        for (module, name) in [
            ("os", "system"),
            ("posix", "system"),
            ("nt", "system"),
            ("subprocess", "Popen"),
            ("builtins", "eval"),
            ("__builtin__", "exec"),
            ("builtins", "getattr"),
            ("importlib", "import_module"),
            ("os.path", "os.system"),
            ("anything", "os.system"),
            ("torch", "load"),
            ("torch.hub", "load"),
            ("operator", "attrgetter"),
            ("ctypes.util", "find_library"),
            ("cloudpickle.cloudpickle", "_make_function"),
        ] {
            assert!(is_dangerous(module, name), "{module}.{name}");
        }
        for (module, name) in [
            ("argparse", "Namespace"),
            ("omegaconf.dictconfig", "DictConfig"),
            ("builtins", "set"),
            ("osgeo", "gdal"),
            ("my.os_tools", "X"),
            ("torch.optim.adam", "Adam"),
            ("numpy", "dtype"),
            ("pathlib", "PosixPath"),
            ("__main__", "Net"),
            ("typing", "Any"),
        ] {
            assert!(!is_dangerous(module, name), "{module}.{name}");
        }
    }

    #[test]
    fn dangerous_ones_are_kept_among_any_number_of_others() {
        let mut all = Mentions::default();
        let mention = |module: &str, name: String| Mention { module: module.into(), name, at: 0 };
        (0..1000).for_each(|number| all.add(mention("x", number.to_string())));
        all.add(mention("os", "system".into()));
        all.add(mention("os", "system".into()));
        assert_eq!((all.foreign().len(), all.dangerous().len(), all.is_cut()), (KEPT_MAX, 1, true));
    }
}
