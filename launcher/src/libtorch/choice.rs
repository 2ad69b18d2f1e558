//! The choice of the enn-worker for a libtorch: its release, and whether it computes on GPUs.

use super::{
    release::{CPU_LIBRARY, CUDA_LIBRARY, Release},
    worker::{WorkerProgram, Workers},
};
use std::path::{Path, PathBuf};

/// A libtorch that fits, with the program that is started for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Choice {
    /// Directory of its libraries.
    pub(super) lib: PathBuf,
    /// The program for it; `None` where there is no program at all.
    pub(super) worker: Option<WorkerProgram>,
    /// Why GPUs are not used, where that is so.
    pub(super) note: Option<String>,
}

/// Chooses the program for the libtorch in `dir`, or returns why it does not fit.
pub(super) fn choose(dir: &Path, workers: &Workers, gpus: bool) -> Result<Choice, String> {
    let place = dir.display();
    if !dir.exists() {
        return Err(format!("{place} does not exist"));
    }
    let mut libraries = [dir.join("lib"), dir.to_path_buf()].into_iter();
    let Some(lib) = libraries.find(|lib| lib.join(CPU_LIBRARY).exists()) else {
        return Err(format!("{place} has no {CPU_LIBRARY}"));
    };
    let release = Release::of(&lib);
    if let Some(release) = &release
        && !workers.releases().iter().any(|one| release.is(one))
    {
        return Err(format!("{place} is torch {release}"));
    }
    // LD_LIBRARY_PATH has no way to escape these characters.
    if lib.as_os_str().as_encoded_bytes().iter().any(|byte| matches!(byte, b':' | b';')) {
        return Err(format!("{place} has a colon or semicolon in its name, by which LD_LIBRARY_PATH is divided"));
    }
    let of_release = |program: &&WorkerProgram| release.as_ref().is_none_or(|release| release.is(&program.release));
    let programs: Vec<&WorkerProgram> = workers.programs.iter().filter(of_release).collect();
    let for_cpus = programs.iter().find(|program| program.cuda.is_none());
    let for_gpus = programs.iter().find(|program| program.cuda.is_some());
    let refused = for_gpus.and_then(|program| misfit(program, &lib, release.as_ref()));
    let (worker, note) = match (for_cpus, for_gpus) {
        (None, Some(program)) => match refused {
            Some(why) => return Err(format!("{place} {why}, which this enn-worker needs")),
            None => (Some(program), None),
        },
        (Some(program), Some(_)) if refused.is_some() || !gpus => {
            let note = refused.filter(|_| gpus).map(|why| format!("no GPU is used: the torch in {place} {why}"));
            (Some(program), note)
        }
        (Some(_), Some(program)) => (Some(program), None),
        (program, None) => (program, None),
    };
    Ok(Choice { lib, worker: worker.map(|worker| (*worker).clone()), note })
}

/// Returns what a libtorch lacks for a program that computes on GPUs.
fn misfit(program: &WorkerProgram, lib: &Path, release: Option<&Release>) -> Option<String> {
    if !lib.join(CUDA_LIBRARY).exists() {
        return Some(format!("has no {CUDA_LIBRARY}"));
    }
    let wanted = program.cuda?;
    let found = release?.cuda.filter(|found| *found != wanted)?;
    Some(format!("is for CUDA {found} and not for CUDA {wanted}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn workers(names: &[&str]) -> Workers {
        let programs = names.iter().map(|name| WorkerProgram::named(PathBuf::from(name))).collect();
        Workers { programs, ..Workers::default() }
    }

    /// A package torch of a release, for a release of CUDA or for CPUs.
    fn torch(dir: &Path, version: &str, cuda: Option<&str>) -> PathBuf {
        let torch = dir.join(format!("torch-{version}"));
        fs::create_dir_all(torch.join("lib")).unwrap();
        fs::write(torch.join("lib").join(CPU_LIBRARY), "").unwrap();
        let cuda_line = cuda.map_or_else(|| "None".to_owned(), |cuda| format!("'{cuda}'"));
        fs::write(torch.join("version.py"), format!("__version__ = '{version}'\ncuda: Optional[str] = {cuda_line}\n"))
            .unwrap();
        if cuda.is_some() {
            fs::write(torch.join("lib").join(CUDA_LIBRARY), "").unwrap();
        }
        torch
    }

    const ALL: [&str; 4] =
        ["enn-worker-2.11-cpu", "enn-worker-2.11-cu13", "enn-worker-2.13-cpu", "enn-worker-2.13-cu13"];

    #[test]
    fn the_torch_decides_which_program_is_started() {
        let dir = tempfile::tempdir().unwrap();
        let name = |torch: &Path, gpus: bool| {
            let choice = choose(torch, &workers(&ALL), gpus).unwrap();
            (choice.worker.unwrap().path.display().to_string(), choice.note)
        };
        let started = |torch: &Path, gpus: bool| {
            let (name, note) = name(torch, gpus);
            assert_eq!(note, None);
            name
        };
        let cuda = torch(dir.path(), "2.11.0", Some("13.0"));
        assert_eq!(started(&cuda, true), "enn-worker-2.11-cu13");
        assert_eq!(started(&cuda, false), "enn-worker-2.11-cpu", "without a GPU, CUDA's libraries need not be loaded");
        let cpu = torch(dir.path(), "2.13.1+cpu", None);
        assert_eq!(started(&cpu, false), "enn-worker-2.13-cpu");
        let (program, note) = name(&cpu, true);
        assert_eq!(program, "enn-worker-2.13-cpu");
        assert!(note.unwrap().ends_with("torch-2.13.1+cpu has no libtorch_cuda.so"));
        let (program, note) = name(&torch(dir.path(), "2.11.0+cu128", Some("12.8")), true);
        assert_eq!(program, "enn-worker-2.11-cpu");
        assert!(note.unwrap().contains("is for CUDA 12 and not for CUDA 13"));
    }

    #[test]
    fn a_torch_for_which_no_program_is_built_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let other = torch(dir.path(), "2.12.0", None);
        assert!(choose(&other, &workers(&ALL), false).unwrap_err().ends_with("is torch 2.12.0"));
        let alone = workers(&["enn-worker-2.11-cu13"]);
        let old = torch(dir.path(), "2.11.0+cu126", Some("12.6"));
        assert!(choose(&old, &alone, true).unwrap_err().contains("is for CUDA 12 and not for CUDA 13, which this"));
        let cpu = torch(dir.path(), "2.11.0+cpu", None);
        assert!(choose(&cpu, &alone, true).unwrap_err().contains("has no libtorch_cuda.so, which this"));
        let none = choose(&cpu, &workers(&[]), true).unwrap();
        assert_eq!((none.worker, none.note), (None, None));
    }
}
