//! Load of the workers of this host: CPU and memory of their process groups from /proc, GPUs through NVML when its library
//! is there. Measured in a thread of its own, for a driver that hangs must not freeze the screen.

use crossbeam_channel::{Receiver, Sender, bounded};
use nvml_wrapper::{Nvml, enums::device::UsedGpuMemory};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ffi::OsStr,
    fs,
    io::{self, PipeReader, PipeWriter, Read, Write},
    os::fd::{AsFd, BorrowedFd},
    time::Instant,
};

/// Names of NVIDIA's management library, the one of the driver first.
const NVML: [&str; 2] = ["libnvidia-ml.so.1", "libnvidia-ml.so"];

/// Load of one worker and of all processes in its group.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct ProcessLoad {
    /// Hundredths of a core; `None` at the first look.
    pub(super) cpu_percent: Option<f64>,
    /// Resident memory, bytes; what processes share counts for each.
    pub(super) rss_bytes: u64,
    pub(super) gpu: Option<GpuUse>,
}

/// A worker's part of a GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct GpuUse {
    pub(super) index: u32,
    /// How busy the GPU is, by whoever.
    pub(super) percent: u32,
    /// The worker's memory on it, bytes; `None`: the driver does not say.
    pub(super) used_bytes: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Gpu {
    pub(super) index: u32,
    pub(super) percent: u32,
    pub(super) used_bytes: u64,
    pub(super) total_bytes: u64,
    /// Processes on the GPU: process id, memory in bytes.
    pub(super) processes: Vec<(u32, Option<u64>)>,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Samples {
    pub(super) loads: BTreeMap<u32, ProcessLoad>,
    pub(super) gpus: Vec<Gpu>,
}

impl Samples {
    /// Load of the worker with this process id.
    pub(super) fn of(&self, pid: u32) -> Option<ProcessLoad> {
        self.loads.get(&pid).copied()
    }
}

/// Measures the load in a thread, on request.
#[derive(Debug)]
pub(super) struct Sampler {
    ask: Sender<BTreeSet<u32>>,
    answers: Receiver<Samples>,
    ready: PipeReader,
}

impl Sampler {
    /// Starts the thread; it ends with the sampler, or with the process when the driver does not answer.
    pub(super) fn start() -> io::Result<Self> {
        let (ready, mut wake) = io::pipe()?;
        let (ask, asked) = bounded(1);
        let (answer, answers) = bounded(1);
        std::thread::Builder::new().name("enn-sample".into()).spawn(move || measure(&asked, &answer, &mut wake))?;
        Ok(Self { ask, answers, ready })
    }

    /// Asks for a measurement of these workers; while one is under way, nothing happens.
    pub(super) fn ask(&self, pids: BTreeSet<u32>) {
        // A full queue: the last one is not done yet.
        let _busy = self.ask.try_send(pids);
    }

    /// The measurement that is done, if any.
    pub(super) fn take(&mut self) -> Option<Samples> {
        let samples = self.answers.try_recv().ok()?;
        // One byte came with it.
        let _gone = self.ready.read(&mut [0]);
        Some(samples)
    }

    /// Readable when a measurement is done.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

fn measure(asked: &Receiver<BTreeSet<u32>>, answer: &Sender<Samples>, wake: &mut PipeWriter) {
    let nvml = NVML.iter().find_map(|name| Nvml::builder().lib_path(OsStr::new(name)).init().ok());
    let mut before = PreviousSample::default();
    while let Ok(pids) = asked.recv() {
        let processes = processes();
        let mut samples = before.loads(&pids, &processes, Instant::now());
        samples.gpus = nvml.as_ref().map(gpus).unwrap_or_default();
        assign(&mut samples, &processes);
        if answer.send(samples).is_err() || wake.write_all(&[0]).is_err() {
            return;
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ProcessSample {
    pid: u32,
    group: u32,
    /// User and system time, clock ticks.
    ticks: u64,
    rss_pages: u64,
}

/// The previous measurement, from which CPU use is computed.
#[derive(Debug, Default)]
struct PreviousSample {
    when: Option<Instant>,
    ticks: HashMap<u32, u64>,
}

impl PreviousSample {
    /// Sums over the groups that `pids` lead.
    fn loads(&mut self, pids: &BTreeSet<u32>, processes: &[ProcessSample], now: Instant) -> Samples {
        let ticks_per_s = sysconf(nix::unistd::SysconfVar::CLK_TCK, 100);
        let page = sysconf(nix::unistd::SysconfVar::PAGE_SIZE, 4096);
        let passed = self.when.map(|when| now.duration_since(when).as_secs_f64()).filter(|seconds| *seconds > 0.0);
        let mut loads: BTreeMap<u32, (u64, ProcessLoad)> = BTreeMap::new();
        for process in processes.iter().filter(|process| pids.contains(&process.group)) {
            let (ticks, load) = loads.entry(process.group).or_default();
            // A process that was not there before did all its work since.
            *ticks += process.ticks.saturating_sub(self.ticks.get(&process.pid).copied().unwrap_or(0));
            load.rss_bytes += process.rss_pages * page;
        }
        let known: BTreeSet<u32> = pids.iter().copied().filter(|pid| self.ticks.contains_key(pid)).collect();
        for (pid, (ticks, load)) in &mut loads {
            let passed = passed.filter(|_| known.contains(pid));
            load.cpu_percent = passed.map(|seconds| *ticks as f64 / ticks_per_s as f64 / seconds * 100.0);
        }
        self.when = Some(now);
        let groups = processes.iter().filter(|process| pids.contains(&process.group));
        self.ticks = groups.map(|process| (process.pid, process.ticks)).collect();
        Samples { loads: loads.into_iter().map(|(pid, (_, load))| (pid, load)).collect(), gpus: Vec::new() }
    }
}

fn sysconf(which: nix::unistd::SysconfVar, otherwise: u64) -> u64 {
    nix::unistd::sysconf(which).ok().flatten().and_then(|value| u64::try_from(value).ok()).unwrap_or(otherwise)
}

/// All processes of this host that may be read.
fn processes() -> Vec<ProcessSample> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid: u32| stat(pid, &fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)).collect()
}

/// Reads a line of /proc/<pid>/stat. The name, in brackets, may hold anything.
fn stat(pid: u32, text: &str) -> Option<ProcessSample> {
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    let group = u32::try_from(number(2)?).ok()?;
    Some(ProcessSample { pid, group, ticks: number(11)? + number(12)?, rss_pages: number(21)? })
}

fn gpus(nvml: &Nvml) -> Vec<Gpu> {
    let count = nvml.device_count().unwrap_or(0);
    (0..count)
        .filter_map(|index| {
            let device = nvml.device_by_index(index).ok()?;
            let memory = device.memory_info().ok()?;
            let used = |memory: UsedGpuMemory| match memory {
                UsedGpuMemory::Used(bytes) => Some(bytes),
                UsedGpuMemory::Unavailable => None,
            };
            let processes = device.running_compute_processes().unwrap_or_default();
            Some(Gpu {
                index,
                percent: device.utilization_rates().map_or(0, |rates| rates.gpu),
                used_bytes: memory.used,
                total_bytes: memory.total,
                processes: processes.into_iter().map(|process| (process.pid, used(process.used_gpu_memory))).collect(),
            })
        })
        .collect()
}

/// Gives each worker the GPU that a process of its group uses.
fn assign(samples: &mut Samples, processes: &[ProcessSample]) {
    let groups: HashMap<u32, u32> = processes.iter().map(|process| (process.pid, process.group)).collect();
    for gpu in &samples.gpus {
        for (pid, used_bytes) in &gpu.processes {
            let Some(load) = groups.get(pid).and_then(|group| samples.loads.get_mut(group)) else { continue };
            load.gpu = Some(GpuUse { index: gpu.index, percent: gpu.percent, used_bytes: *used_bytes });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_line_of_proc_is_read() {
        let line =
            "42 (a) b (c) S 1 40 42 0 -1 4194560 1 0 0 0 120 30 0 0 20 0 1 0 99 1000000 250 18446744073709551615";
        assert_eq!(stat(42, line), Some(ProcessSample { pid: 42, group: 40, ticks: 150, rss_pages: 250 }));
        assert_eq!(stat(42, "42 (x"), None);
    }

    #[test]
    fn load_is_that_of_the_group_since_the_last_look() {
        let process = |pid, group, ticks| ProcessSample { pid, group, ticks, rss_pages: 10 };
        let mut before = PreviousSample::default();
        let start = Instant::now();
        let pids = BTreeSet::from([10]);
        let first = before.loads(&pids, &[process(10, 10, 500), process(11, 10, 70), process(99, 99, 1)], start);
        assert_eq!(first.of(10).unwrap().cpu_percent, None);
        assert_eq!(first.of(99), None);
        let page = sysconf(nix::unistd::SysconfVar::PAGE_SIZE, 4096);
        assert_eq!(first.of(10).unwrap().rss_bytes, 20 * page);
        // 100 ticks of the leader and 50 of a new process in two seconds; the process that ended counts no more.
        let second = [process(10, 10, 600), process(12, 10, 50)];
        let percent = before.loads(&pids, &second, start + Duration::from_secs(2)).of(10).unwrap().cpu_percent.unwrap();
        let expected = 150.0 / sysconf(nix::unistd::SysconfVar::CLK_TCK, 100) as f64 / 2.0 * 100.0;
        assert!((percent - expected).abs() < 1e-9, "{percent}");
    }

    #[test]
    fn a_gpu_belongs_to_the_group_that_uses_it() {
        let process = ProcessSample { pid: 11, group: 10, ticks: 0, rss_pages: 0 };
        let gpu =
            Gpu { index: 1, percent: 93, used_bytes: 7, total_bytes: 9, processes: vec![(11, Some(5)), (70, None)] };
        let mut samples = Samples { loads: BTreeMap::from([(10, ProcessLoad::default())]), gpus: vec![gpu] };
        assign(&mut samples, &[process]);
        assert_eq!(samples.of(10).unwrap().gpu, Some(GpuUse { index: 1, percent: 93, used_bytes: Some(5) }));
    }

    #[test]
    fn this_very_process_is_measured() {
        let own = std::process::id();
        let group = u32::try_from(nix::unistd::getpgrp().as_raw()).unwrap();
        let found = processes().into_iter().find(|process| process.pid == own).unwrap();
        assert_eq!(found.group, group);
        assert!(found.rss_pages > 0);
        let mut sampler = Sampler::start().unwrap();
        sampler.ask(BTreeSet::from([group]));
        let mut poll = [nix::poll::PollFd::new(sampler.fd(), nix::poll::PollFlags::POLLIN)];
        assert_eq!(nix::poll::poll(&mut poll, 10_000u16).unwrap(), 1);
        assert!(sampler.take().unwrap().of(group).unwrap().rss_bytes > 0);
    }
}
