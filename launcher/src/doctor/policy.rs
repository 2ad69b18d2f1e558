//! Checks the findings. Pure, so that every result is tested without a machine that has it.

use super::{
    findings::{DoctorInputs, Findings, ProbeFailure},
    report::{Check, CheckState, Report},
};
use enn_common::probe::Probe;
use enn_process::preload::Trial;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;
/// A run of the example writes 50 MB; below this a checkpoint may not fit.
const DISK_BYTES_MIN: u64 = GIB;
/// NCCL takes some megabytes of shared memory per pair of local ranks; containers default to 64 MiB.
const SHM_BYTES_MIN: u64 = 256 * MIB;
/// A rank opens some connections to each other one; sockets, shards and maps come on top.
const NOFILE_MIN: u64 = 4096;

pub fn check(findings: &Findings) -> Report {
    let items = [
        worker(findings),
        libtorch(findings),
        cuda(findings),
        gpu_health(findings),
        nccl(findings),
        fork_server(findings),
        ok("cores", findings.inputs.cores.to_string()),
        memory(findings),
        disk(findings),
        shm(findings),
        nofile(findings),
        memlock(findings),
        core_files(findings),
    ];
    Report { items: items.into_iter().flatten().collect(), set: findings.inputs.variables.clone() }
}

fn ok(name: &'static str, found: String) -> Option<Check> {
    Some(Check { name, state: CheckState::Ok, found, fix: None })
}

fn note(name: &'static str, found: String, fix: impl Into<String>) -> Option<Check> {
    Some(Check { name, state: CheckState::Note, found, fix: Some(fix.into()) })
}

fn missing(name: &'static str, found: String, fix: impl Into<String>) -> Option<Check> {
    Some(Check { name, state: CheckState::Missing, found, fix: Some(fix.into()) })
}

fn worker(findings: &Findings) -> Option<Check> {
    const NAME: &str = "enn-worker";
    let path = match &findings.inputs.worker {
        Ok(path) => path.display().to_string(),
        Err(why) => {
            let (found, fix) = why.split_once("\nhint: ").unwrap_or((why, "set ENN_WORKER to an enn-worker"));
            return missing(NAME, found.to_owned(), fix);
        }
    };
    let installation = &findings.inputs.installation;
    match &findings.probe {
        Ok(probe) => ok(NAME, format!("{} at {path}, {} build", probe.version, build(probe))),
        Err(ProbeFailure::NoWorker) => missing(NAME, "not found".into(), installation.get_worker()),
        Err(ProbeFailure::Failed(line)) => {
            missing(NAME, format!("{path} does not start: {line}"), fix_for_start(line, &findings.inputs))
        }
        Err(ProbeFailure::TimedOut(limit)) => missing(
            NAME,
            format!("{path} said nothing for {} s", limit.as_secs()),
            format!("run `{path} --probe` by hand: a slow disk, or a driver that hangs"),
        ),
    }
}

fn build(probe: &Probe) -> &'static str {
    if probe.cuda_build { "CUDA" } else { "CPU" }
}

/// Returns how to fix a worker that does not start, from the dynamic linker's last line.
fn fix_for_start(line: &str, inputs: &DoctorInputs) -> String {
    if !line.contains("libtorch") && !line.contains("libc10") {
        return inputs.installation.repair_worker(line.contains("GLIBC"));
    }
    let of_search = inputs.libtorch.as_ref().err().and_then(|why| why.split_once("\nhint: "));
    of_search.map_or_else(|| inputs.installation.get_libtorch(&[]), |(_, hint)| hint.to_owned())
}

fn libtorch(findings: &Findings) -> Option<Check> {
    const NAME: &str = "libtorch";
    let there = match &findings.inputs.libtorch {
        Ok(there) => there,
        Err(why) => {
            let (found, fix) = why.split_once("\nhint: ").unwrap_or((why, "set ENN_LIBTORCH to a libtorch"));
            return missing(NAME, found.to_owned(), fix);
        }
    };
    let place = format!("{} ({})", there.lib.display(), there.from);
    let Ok(probe) = &findings.probe else {
        return note(NAME, format!("in {place}; its version is not known"), "fix enn-worker first");
    };
    let capability = probe.cpu_capability.as_deref().unwrap_or("unknown");
    let found = format!("{} in {place}, {capability}, {} threads an operation", probe.libtorch, probe.threads);
    if probe.libtorch != probe.libtorch_built {
        let found = format!("{found}; enn-worker was built with {}", probe.libtorch_built);
        return missing(NAME, found, findings.inputs.installation.get_libtorch(&[&probe.libtorch_built]));
    }
    match &there.note {
        Some(line) => note(NAME, found, format!("{line}; nothing needs to be done")),
        None => ok(NAME, found),
    }
}

/// A number of GPUs, for people.
pub(super) fn gpu_count(count: usize) -> String {
    format!("{count} GPU{}", if count == 1 { "" } else { "s" })
}

fn cuda(findings: &Findings) -> Option<Check> {
    const NAME: &str = "CUDA";
    let devices = findings.gpu_devices;
    let Ok(probe) = &findings.probe else {
        return (devices > 0)
            .then(|| note(NAME, format!("{}, unused", gpu_count(devices)), "fix enn-worker first"))
            .flatten();
    };
    let version = probe.cuda.as_deref().unwrap_or("unknown");
    let driver = findings.nvidia_driver.as_deref().unwrap_or("none");
    match (probe.cuda_build, devices, probe.cuda_devices) {
        (false, 0, _) => ok(NAME, "no GPU, CPU build: workers run on the CPU with Gloo".into()),
        (false, _, _) => note(
            NAME,
            format!("{}, but enn-worker is a CPU build", gpu_count(devices)),
            findings.inputs.installation.get_cuda_worker(),
        ),
        (true, 0, 0) => note(NAME, format!("{version}, but no GPU here"), "run it on a machine with GPUs"),
        (true, _, 0) => note(
            NAME,
            format!("{version}, driver {driver}, {}, none usable by libtorch", gpu_count(devices)),
            format!("check CUDA_VISIBLE_DEVICES and that the driver is new enough for CUDA {version}: nvidia-smi"),
        ),
        (true, _, usable) => ok(NAME, format!("{version}, driver {driver}, {usable} of {} usable", gpu_count(devices))),
    }
}

/// Judges what NVML shows of the GPUs: a run leaves out one that has new errors.
fn gpu_health(findings: &Findings) -> Option<Check> {
    const NAME: &str = "GPU health";
    let Some(gpus) = &findings.gpu_troubles else {
        return note(NAME, "the NVIDIA driver does not answer".into(), "look for Xid errors in dmesg");
    };
    let troubles: Vec<String> =
        gpus.iter().filter_map(|(gpu, trouble)| Some(format!("{gpu}: {}", trouble.as_ref()?))).collect();
    match (gpus.len(), troubles.is_empty()) {
        (0, _) => None,
        (count, true) => ok(NAME, format!("{}, no uncorrectable errors", gpu_count(count))),
        (_, false) => {
            note(NAME, troubles.join("; "), "reset these GPUs (nvidia-smi --gpu-reset -i N), or have them replaced")
        }
    }
}

fn nccl(findings: &Findings) -> Option<Check> {
    let probe = findings.probe.as_ref().ok()?;
    match &probe.nccl {
        Some(version) => ok("NCCL", version.clone()),
        None if probe.cuda_build => {
            note("NCCL", "not loaded".into(), "put the lib folder of nvidia-nccl-cu13 on LD_LIBRARY_PATH")
        }
        None => None,
    }
}

fn fork_server(findings: &Findings) -> Option<Check> {
    const NAME: &str = "fork server";
    let python = findings.inputs.python.as_ref()?.display();
    match findings.fork_server.as_ref()? {
        Ok(Trial::Forks { modules, seconds }) => ok(
            NAME,
            format!("{python} imports {} modules of PyTorch in {seconds:.1} s, once for all workers", modules.len()),
        ),
        Ok(Trial::Executes(why)) => note(
            NAME,
            format!("{python}: {why}"),
            "activate an environment with PyTorch, or set PYTHON_EXEC to its Python",
        ),
        Err(why) => {
            note(NAME, format!("{python} could not be tried: {why}"), "free some space in the temporary directory")
        }
    }
}

fn memory(findings: &Findings) -> Option<Check> {
    const NAME: &str = "memory";
    let available = findings.memory_available?;
    let found = format!("{} available", gib(available));
    // Libtorch itself and a small model take about half of this per worker.
    if available >= GIB { ok(NAME, found) } else { note(NAME, found, "end other programs, or use fewer workers") }
}

fn disk(findings: &Findings) -> Option<Check> {
    const NAME: &str = "disk";
    let free = findings.disk_free?;
    let found = format!("{} free in {}", gib(free), findings.inputs.cwd.display());
    if free >= DISK_BYTES_MIN { ok(NAME, found) } else { missing(NAME, found, "free some space, or use --runs-dir") }
}

fn shm(findings: &Findings) -> Option<Check> {
    const NAME: &str = "/dev/shm";
    let Some(free) = findings.shm_free else {
        return note(NAME, "not there".into(), "mount a tmpfs on /dev/shm: NCCL needs it");
    };
    let found = format!("{} free", gib(free));
    if free >= SHM_BYTES_MIN || findings.gpu_devices == 0 {
        ok(NAME, found)
    } else {
        note(NAME, found, "NCCL may fail; in a container: --shm-size=1g")
    }
}

fn nofile(findings: &Findings) -> Option<Check> {
    const NAME: &str = "open files";
    match findings.limits.nofile {
        Some(limit) if limit < NOFILE_MIN => {
            note(NAME, format!("at most {limit}"), format!("ulimit -n {NOFILE_MIN}, for more than a few dozen workers"))
        }
        limit => ok(NAME, limited(limit)),
    }
}

fn memlock(findings: &Findings) -> Option<Check> {
    const NAME: &str = "locked memory";
    match findings.limits.memlock {
        Some(limit) if findings.gpu_devices > 0 => {
            note(NAME, gib(limit), "ulimit -l unlimited, for NCCL over InfiniBand")
        }
        limit => ok(NAME, limit.map_or_else(|| "unlimited".into(), gib)),
    }
}

fn core_files(findings: &Findings) -> Option<Check> {
    let found = match findings.limits.core {
        Some(0) => "none are written".to_owned(),
        limit => limited(limit),
    };
    ok("core files", found)
}

fn limited(limit: Option<u64>) -> String {
    limit.map_or_else(|| "unlimited".into(), |limit| format!("at most {limit}"))
}

/// Formats bytes in GiB or MiB with one decimal.
fn gib(bytes: u64) -> String {
    if bytes >= GIB {
        format!("{:.1} GiB", bytes as f64 / GIB as f64)
    } else {
        format!("{:.1} MiB", bytes as f64 / MIB as f64)
    }
}

#[cfg(test)]
pub(super) mod tests;
