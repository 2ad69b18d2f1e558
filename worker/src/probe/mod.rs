//! Facts about this worker's build, which `enn-worker --probe` prints for `enn doctor`. Loads libtorch, starts nothing.

mod result;

use enn_common::probe::Probe;
use std::{io::Write, process::ExitCode};

/// Runs `enn-worker --probe`: prints one line of JSON to standard output.
pub fn print() -> ExitCode {
    let written = serde_json::to_vec(&probe()).map_err(std::io::Error::from).and_then(|mut line| {
        line.push(b'\n');
        std::io::stdout().lock().write_all(&line)
    });
    if written.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Collects facts about this build and its libtorch.
pub fn probe() -> Probe {
    let nccl = result::nccl();
    Probe {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        libtorch_built: result::built(),
        libtorch: libtorch_version(),
        cuda_build: cfg!(feature = "cuda"),
        cuda_devices: u32::try_from(tch::Cuda::device_count()).unwrap_or(0),
        cuda: setting(&result::config(), "CUDA_VERSION").filter(|_| cfg!(feature = "cuda")),
        nccl: (!nccl.is_empty()).then_some(nccl),
        runs_archives: enn_core::backend::artifact::runs_archives(),
        cpu_capability: capability(&result::config()),
        threads: u32::try_from(result::threads()).unwrap_or(0),
    }
}

/// Returns the version of the loaded libtorch, as in "2.11.0"; the version built against if libtorch does not report one.
pub fn libtorch_version() -> String {
    setting(&result::config(), "TORCH_VERSION").unwrap_or_else(result::built)
}

/// Returns the value of `NAME=value` in libtorch's build settings.
fn setting(config: &str, name: &str) -> Option<String> {
    let start = config.find(&format!(" {name}="))? + name.len() + 2;
    let value = config[start..].split([',', '\n']).next()?.trim();
    (!value.is_empty()).then(|| value.to_owned())
}

fn capability(config: &str) -> Option<String> {
    let (_, rest) = config.split_once("CPU capability usage:")?;
    Some(rest.lines().next()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "PyTorch built with:\n  - CPU capability usage: AVX512\n  - Build settings: BLAS_INFO=mkl, \
                          CUDA_VERSION=13.0, TORCH_VERSION=2.11.0, USE_CUDA=ON, \n";

    #[test]
    fn our_loops_are_on_the_threads_that_libtorch_has() {
        let before = tch::get_num_threads();
        for threads in [1, 2, 5] {
            tch::set_num_threads(threads);
            assert_eq!(result::threads(), threads);
        }
        tch::set_num_threads(before);
    }

    #[test]
    fn settings_are_found_by_their_whole_name() {
        assert_eq!(setting(CONFIG, "TORCH_VERSION").as_deref(), Some("2.11.0"));
        assert_eq!(setting(CONFIG, "CUDA_VERSION").as_deref(), Some("13.0"));
        assert_eq!(setting(CONFIG, "VERSION"), None);
        assert_eq!(capability(CONFIG).as_deref(), Some("AVX512"));
        assert_eq!(capability(""), None);
    }

    #[test]
    fn the_libtorch_that_runs_is_the_one_built_against() {
        let probe = probe();
        assert_eq!(probe.libtorch, probe.libtorch_built);
        assert!(probe.libtorch.starts_with("2."), "{}", probe.libtorch);
        assert!(probe.threads >= 1);
    }
}
