//! `--preload`: modules that are imported once for all workers of a node, and the decision whether a script gains by it.
//!
//! An import of PyTorch that no worker needs would waste time, so that `auto` reads which modules the script imports, directly and
//! through modules beside it. It reads files, bounded in number and length, and runs nothing.

use super::{
    Dialect, EnnFlags, Flags, RunError,
    program::is_module,
    values::{self, Expected},
};
use crate::facts::Facts;
use enn_cluster::rendezvous::Settings;
use enn_process::preload::{Preload, WARM_IDLE, WarmSettings};
use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

/// Name that stands for the parts of PyTorch that scripts use.
const TORCH: &str = "torch";
/// Packages that import PyTorch.
const WITH_TORCH: [&str; 17] = [
    "accelerate",
    "composer",
    "deepspeed",
    "diffusers",
    "fairscale",
    "fairseq",
    "fairseq2",
    "ignite",
    "lightning",
    "lightning_fabric",
    "monai",
    "peft",
    "pytorch_lightning",
    "sentence_transformers",
    "timm",
    "transformers",
    "trl",
];
/// Limits on the files that are read and on the bytes of each.
const FILES_MAX: usize = 200;
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Note for a warm server that would have nothing to do.
const NOTHING_TO_WARM: &str = "--warm: according to its files the program imports no PyTorch, so its workers are executed; --preload torch \
                               forks them nevertheless";
const EXPECTED: Expected = Expected {
    what: "auto, none, or modules such as torch,torchvision",
    hint: "--preload auto is right when in doubt",
};

/// Decision about preloading for a launch.
pub(super) struct PreloadChoice {
    pub(super) preload: Option<Preload>,
    /// Whether the next launch of this program would gain by a warm server, which this one lacks.
    pub(super) could_be_warm: bool,
}

/// Decides what to preload.
///
/// # Errors
/// The value cannot be parsed, or there is no Python to preload in.
pub(super) fn preload(
    own: &EnnFlags,
    flags: &Flags,
    rendezvous: &Settings,
    dialect: Dialect,
    facts: &Facts,
    notes: &mut Vec<String>,
) -> Result<PreloadChoice, RunError> {
    let warm = warm(own, facts)?;
    let default = if dialect == Dialect::Torchrun && warm.is_none() { "none" } else { "auto" };
    let text = own.preload.as_deref().unwrap_or(default).trim();
    let python = !flags.program.no_python || flags.program.run_path;
    match text {
        "none" if own.warm => {
            let hint = "a warm server is one that has preloaded; leave one of the two out";
            Err(RunError::Together { first: "--warm", second: "--preload none", hint })
        }
        "none" => Ok(PreloadChoice { preload: None, could_be_warm: false }),
        "auto" => {
            let imports = python && flags.command.first().is_some_and(|script| imports_torch(script, flags, facts));
            if own.warm && !imports {
                notes.push(NOTHING_TO_WARM.to_owned());
            }
            let could_be_warm = imports && warm.is_none();
            // A spare is of use once it has been forked: it does not wait for an import in the background.
            let behind = warm.is_none() && own.spares.is_none() && rendezvous.local_world as usize <= facts.cores;
            let comes_again = rendezvous.restarts_max > 0 || rendezvous.nodes_min < rendezvous.nodes_max;
            let preload = || Preload { modules: vec![TORCH.to_owned()], asked: false, behind, warm };
            Ok(PreloadChoice { preload: (imports && (comes_again || !behind)).then(preload), could_be_warm })
        }
        _ if !python => {
            let hint = "modules are preloaded for Python scripts; leave one of the two out";
            Err(RunError::Together { first: "--preload", second: "--no-python", hint })
        }
        list => {
            let modules: Vec<String> = list.split(',').map(|name| name.trim().to_owned()).collect();
            if modules.iter().all(|name| is_module(name)) {
                let could_be_warm = warm.is_none();
                Ok(PreloadChoice {
                    preload: Some(Preload { modules, asked: true, behind: false, warm }),
                    could_be_warm,
                })
            } else {
                Err(EXPECTED.error("--preload", text, true))
            }
        }
    }
}

/// Returns the settings of a warm server; `None`: the run uses none.
fn warm(own: &EnnFlags, facts: &Facts) -> Result<Option<WarmSettings>, RunError> {
    let by_variable = values::switch("ENN_WARM", facts.warm.as_ref(), "ENN_WARM=1 is the same as --warm")?;
    let warm = WarmSettings { parent: facts.socket_parent.clone(), idle: WARM_IDLE, leave: own.leave_background };
    Ok((own.warm || by_variable).then_some(warm))
}

/// Returns whether the program imports PyTorch, according to its files.
fn imports_torch(script: &OsString, flags: &Flags, facts: &Facts) -> bool {
    if flags.program.module && !flags.program.run_path {
        let Some(name) = script.to_str() else { return false };
        let files = files_of(name, &facts.cwd);
        // An installed module that is started by torchrun is assumed to use PyTorch.
        return files.is_empty() || reach_torch(files, &facts.cwd);
    }
    let path = facts.cwd.join(script);
    let main = if path.is_dir() { path.join("__main__.py") } else { path };
    let folder = main.parent().unwrap_or(&facts.cwd).to_owned();
    reach_torch(vec![main], &folder)
}

/// Returns whether one of these files imports PyTorch, or a file that they import from `root` or from beside them.
fn reach_torch(files: Vec<PathBuf>, root: &Path) -> bool {
    let mut seen: BTreeSet<PathBuf> = files.iter().cloned().collect();
    let mut pending = files;
    while let Some(file) = pending.pop() {
        let Some(text) = text_of(&file) else { continue };
        let folder = file.parent().unwrap_or(root);
        for name in imports(&text) {
            let top = name.split('.').next().unwrap_or_default();
            if top.starts_with(TORCH) || WITH_TORCH.contains(&top) {
                return true;
            }
            let near = match name.strip_prefix('.') {
                Some(relative) => files_of(relative.trim_start_matches('.'), &above(folder, relative)),
                None => files_of(&name, root),
            };
            for file in near {
                if seen.len() < FILES_MAX && seen.insert(file.clone()) {
                    pending.push(file);
                }
            }
        }
    }
    false
}

/// Returns the folder in which a relative import begins: one up for each further dot.
fn above(folder: &Path, relative: &str) -> PathBuf {
    let dots = relative.chars().take_while(|c| *c == '.').count();
    folder.ancestors().nth(dots).unwrap_or(folder).to_owned()
}

/// Returns the files of a module and of the packages around it, below a folder.
fn files_of(name: &str, folder: &Path) -> Vec<PathBuf> {
    let mut place = folder.to_owned();
    let mut files = Vec::new();
    for part in name.split('.').filter(|part| !part.is_empty()) {
        place.push(part);
        let candidates = [place.with_extension("py"), place.join("__init__.py"), place.join("__main__.py")];
        files.extend(candidates.into_iter().filter(|file| file.is_file()));
    }
    files
}

fn text_of(file: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    let file = File::open(file).ok().filter(|file| file.metadata().is_ok_and(|found| found.is_file()))?;
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the modules that a text imports by statements on lines of their own. A relative name keeps its dots; names after `import`
/// in `from a import b` may be modules too and are returned as `a.b`.
fn imports(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some(names) = line.strip_prefix("import ") {
            found.extend(names.split(',').filter_map(first_word));
        } else if let Some((module, names)) = line.strip_prefix("from ").and_then(|rest| rest.split_once(" import ")) {
            let Some(module) = first_word(module) else { continue };
            let joint = if module.ends_with('.') { "" } else { "." };
            let below = names.trim_matches(['(', ')', ' ']).split(',').filter_map(first_word);
            let below: Vec<String> = below.map(|name| format!("{module}{joint}{name}")).collect();
            found.push(module);
            found.extend(below);
        }
    }
    found
}

fn first_word(text: &str) -> Option<String> {
    text.split([' ', '#', ';', '\\']).find(|word| !word.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reaches(files: &[(&str, &str)]) -> bool {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        reach_torch(vec![dir.path().join(files[0].0)], dir.path())
    }

    #[test]
    fn a_script_imports_torch_by_itself_or_through_files_beside_it() {
        assert!(reaches(&[("a.py", "import os, torch  # the framework\n")]));
        assert!(reaches(&[("a.py", "def f():\n    from torch.nn import Linear\n")]));
        assert!(reaches(&[("a.py", "from transformers import Trainer\n")]));
        assert!(reaches(&[("a.py", "import torchvision\n")]));
        assert!(reaches(&[("a.py", "import b\n"), ("b.py", "from c.d import e\n"), ("c/d.py", "import torch\n")]));
        assert!(reaches(&[("p/a.py", "from . import b\n"), ("p/b.py", "import torch\n")]));
        assert!(reaches(&[("p/q/a.py", "from ..b import c\n"), ("p/b.py", "import torch\n")]));
        assert!(!reaches(&[
            ("a.py", "# import torch\nprint('import torch')\nimport os\nimport b\n"),
            ("b.py", "import a\n")
        ]));
        assert!(!reaches(&[("a.py", "from b import torch_like\n"), ("b.py", "torch_like = 1\n")]));
        assert!(!reaches(&[("missing.txt/a", "")]));
    }

    #[test]
    fn names_of_modules_are_checked() {
        assert!(["torch", "torch.nn", "_a1.b_2"].into_iter().all(is_module));
        assert!(["", "torch,", "a b", "a..b", "1a", "a/b", "-c"].into_iter().all(|name| !is_module(name)));
    }
}
