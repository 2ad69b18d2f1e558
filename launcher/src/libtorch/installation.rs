//! How this enn was installed, which decides what hints suggest: `make` in a checkout, pip elsewhere.

use super::places::site_packages;
use std::path::{Path, PathBuf};

/// Release of libtorch in a hint, where it fits: the one for which ENN is tested most.
const TORCH: &str = "2.11.0";
const VERSION: &str = env!("CARGO_PKG_VERSION");

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Installation {
    /// Built in a clone of the repository.
    #[default]
    Checkout,
    /// Installed by pip or from an archive.
    Package {
        /// The active Python, into which torch is to be installed.
        python: PathBuf,
        /// The Python of the environment in which enn lies, into which enn-train is to be installed.
        beside: Option<PathBuf>,
    },
}

impl Installation {
    /// Returns how the program `exe` was installed.
    pub fn of(exe: Option<&Path>, python: &Path) -> Self {
        // A virtual environment may lie inside a checkout.
        let in_environment = exe.and_then(environment).is_some();
        let is_checkout = |exe: &Path| exe.ancestors().any(|dir| dir.join("worker/setup/libtorch.py").is_file());
        if !in_environment && exe.is_some_and(is_checkout) {
            return Self::Checkout;
        }
        let beside = exe.and_then(Path::parent).and_then(python_in);
        Self::Package { python: python.to_owned(), beside }
    }

    #[cfg(test)]
    pub(super) fn package(python: &str, beside: Option<&str>) -> Self {
        Self::Package { python: python.into(), beside: beside.map(PathBuf::from) }
    }

    /// Returns how to get the program enn, which fits after `hint: `.
    pub fn get_enn(&self) -> String {
        match self {
            Self::Checkout => "`make build` builds both".to_owned(),
            Self::Package { python, beside } => {
                format!("`{} -m pip install enn-run=={VERSION}`", beside.as_ref().unwrap_or(python).display())
            }
        }
    }

    /// Returns how to get an enn-worker, which fits after `hint: `.
    pub fn get_worker(&self) -> String {
        match self {
            Self::Checkout => "`make build` builds both".to_owned(),
            Self::Package { python, beside } => format!(
                "`{} -m pip install enn-train=={VERSION}`, or set ENN_WORKER to an enn-worker",
                beside.as_ref().unwrap_or(python).display()
            ),
        }
    }

    /// Returns how to get a libtorch of one of `releases`, which fits after `hint: `. Without releases it is that of a program that does not
    /// start, of which no release is known.
    pub fn get_libtorch(&self, releases: &[&str]) -> String {
        let torch = torch_of(releases);
        let releases = match releases {
            [] => "of the release for which it is built, that".to_owned(),
            _ => releases.join(" or "),
        };
        match self {
            Self::Checkout if torch == TORCH => format!(
                "`make libtorch` fetches it; else `python3 -m pip install torch=={TORCH}`, or set ENN_LIBTORCH to a libtorch {releases} \
                 you have"
            ),
            Self::Checkout => {
                format!(
                    "`python3 -m pip install torch=={torch}`, or set ENN_LIBTORCH to a libtorch {releases} you have"
                )
            }
            Self::Package { python, .. } => format!(
                "`{} -m pip install torch=={torch}`, in the variant that you want, for GPUs or for CPUs; or set ENN_LIBTORCH to a \
                 libtorch {releases} you have",
                python.display()
            ),
        }
    }

    /// Returns how to get a worker that computes on GPUs.
    pub fn get_cuda_worker(&self) -> String {
        match self {
            Self::Checkout => "make cuda, then ENN_WORKER=target/cuda/release/enn-worker".to_owned(),
            Self::Package { python, .. } => format!(
                "install enn-train and a torch for CUDA 13: `{} -m pip install enn-train=={VERSION} torch=={TORCH}`",
                python.display()
            ),
        }
    }

    /// Returns how to get a worker that starts on this machine.
    pub fn repair_worker(&self, system_is_old: bool) -> String {
        match self {
            Self::Checkout if system_is_old => "build on this machine: make build".to_owned(),
            Self::Checkout => "make build".to_owned(),
            Self::Package { .. } if system_is_old => {
                "this system is older than the package enn-train allows: build ENN on it, as docs/install.md of the repository says"
                    .to_owned()
            }
            Self::Package { python, beside } => format!(
                "`{} -m pip install --force-reinstall --no-deps enn-train=={VERSION}`",
                beside.as_ref().unwrap_or(python).display()
            ),
        }
    }
}

/// Returns a release of torch that is one of `releases`: the one for which ENN is tested most, else the first that is named.
fn torch_of(releases: &[&str]) -> String {
    match releases {
        [first, ..] if !releases.iter().any(|one| TORCH.starts_with(one)) => {
            // Each release begins with its patch 0.
            let patch = if first.matches('.').count() == 1 { ".0" } else { "" };
            format!("{first}{patch}")
        }
        _ => TORCH.to_owned(),
    }
}

/// Returns the virtual environment in which a program lies.
fn environment(exe: &Path) -> Option<&Path> {
    exe.parent()?.parent().filter(|root| root.join("pyvenv.cfg").is_file())
}

fn python_in(bin: &Path) -> Option<PathBuf> {
    ["python3", "python"].map(|name| bin.join(name)).into_iter().find(|path| path.is_file())
}

/// Returns the Python of the virtual environment in which enn lies, where that has torch: it is the one meant by who calls
/// `environment/bin/enn` without activating the environment.
pub fn python_of_environment(exe: &Path) -> Option<PathBuf> {
    let root = environment(exe)?;
    let has_torch = site_packages(root).iter().any(|packages| packages.join("torch").is_dir());
    python_in(&root.join("bin")).filter(|_| has_torch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn write(path: PathBuf) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }

    #[test]
    fn a_checkout_suggests_make_and_a_package_pip() {
        let dir = tempfile::tempdir().unwrap();
        let exe = dir.path().join("target/release/enn");
        let of = |exe: &Path| Installation::of(Some(exe), Path::new("/usr/bin/python3"));
        assert_eq!(of(&exe), Installation::package("/usr/bin/python3", None));
        write(dir.path().join("worker/setup/libtorch.py"));
        assert_eq!(of(&exe), Installation::Checkout);
        let root = dir.path().join("target/an environment");
        write(root.join("pyvenv.cfg"));
        write(root.join("bin/python3"));
        let beside = root.join("bin/python3").display().to_string();
        let installation = of(&root.join("bin/enn"));
        assert_eq!(installation, Installation::package("/usr/bin/python3", Some(&beside)));
        let all = |installation: &Installation| {
            [
                installation.get_enn(),
                installation.get_worker(),
                installation.get_libtorch(&["2.11"]),
                installation.get_cuda_worker(),
                installation.repair_worker(false),
                installation.repair_worker(true),
            ]
        };
        assert!(all(&Installation::Checkout).iter().all(|hint| hint.contains("make ")));
        assert!(all(&installation).iter().all(|hint| !hint.contains("make ")));
        assert!(installation.get_worker().starts_with(&format!("`{beside} -m pip install enn-train==")));
        assert!(
            installation.get_libtorch(&["2.11", "2.13"]).starts_with("`/usr/bin/python3 -m pip install torch==2.11.0`")
        );
    }

    #[test]
    fn the_torch_of_a_hint_is_one_that_fits() {
        for (releases, torch) in [
            (&["2.11"][..], "2.11.0"),
            (&["2.9", "2.11", "2.13"], "2.11.0"),
            (&["2.13"], "2.13.0"),
            (&["2.13.1"], "2.13.1"),
            (&[], "2.11.0"),
        ] {
            assert_eq!(torch_of(releases), torch, "{releases:?}");
        }
        let hint = Installation::Checkout.get_libtorch(&["2.13"]);
        assert!(!hint.contains("make libtorch") && hint.contains("torch==2.13.0"), "{hint}");
    }

    #[test]
    fn the_python_of_an_environment_counts_where_it_has_torch() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("venv");
        let exe = root.join("bin/enn");
        write(root.join("bin/python3"));
        write(root.join("lib/python3.11/site-packages/torch/version.py"));
        assert_eq!(python_of_environment(&exe), None, "no environment");
        write(root.join("pyvenv.cfg"));
        assert_eq!(python_of_environment(&exe), Some(root.join("bin/python3")));
        fs::remove_dir_all(root.join("lib/python3.11/site-packages/torch")).unwrap();
        assert_eq!(python_of_environment(&exe), None, "no torch");
    }
}
