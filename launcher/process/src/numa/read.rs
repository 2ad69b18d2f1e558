//! Reads the topology and the positions of the GPUs from /sys.
//!
//! `root` stands for `/`, so that a test can describe its own machine.

use super::{Cpu, GpuLocation, NumaError, Topology, topology::cpu_list};
use nix::{
    sched::{CpuSet, sched_getaffinity},
    unistd::Pid,
};
use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

const CPUS: &str = "sys/devices/system/cpu";
const NODES: &str = "sys/devices/system/node";
const PCI: &str = "sys/bus/pci/devices";
/// Directory in which NVIDIA's driver lists the UUIDs of GPUs.
const NVIDIA: &str = "proc/driver/nvidia/gpus";

/// PCI vendors whose display controllers are counted as GPUs: NVIDIA and AMD.
const VENDORS: [&str; 2] = ["0x10de", "0x1002"];
/// PCI base class of display controllers.
const DISPLAY: &str = "0x03";

/// Returns the CPUs that this process may run on.
pub fn allowed_cpus() -> Result<BTreeSet<usize>, NumaError> {
    let set = sched_getaffinity(Pid::from_raw(0))
        .map_err(|errno| NumaError::Read { path: "sched_getaffinity".into(), source: errno.into() })?;
    Ok((0..CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap_or(false)).collect())
}

/// Reads the allowed part of the machine. A kernel without NUMA has one node.
pub fn read_topology(root: &Path, allowed: &BTreeSet<usize>) -> Result<Topology, NumaError> {
    let mut topology = Topology::default();
    for &cpu in allowed {
        topology.cpus.insert(cpu, read_cpu(&root.join(CPUS).join(format!("cpu{cpu}")), cpu)?);
    }
    for node in numbered(&root.join(NODES), "node") {
        let cpus = list(&root.join(NODES).join(format!("node{node}/cpulist")))?.unwrap_or_default();
        topology.nodes.insert(node, cpus.intersection(allowed).copied().collect());
    }
    if topology.nodes.is_empty() {
        topology.nodes.insert(0, allowed.clone());
    }
    Ok(topology)
}

/// Returns the GPUs in the order of their PCI addresses, or those of `visible` (`CUDA_VISIBLE_DEVICES`: indices or UUIDs) in its order.
pub fn read_gpus(root: &Path, visible: Option<&[String]>) -> Result<Vec<GpuLocation>, NumaError> {
    let devices = root.join(PCI);
    let mut addresses: Vec<String> = fs::read_dir(&devices)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| is_gpu(&entry.path()))
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    addresses.sort_unstable();
    let places = addresses.iter().map(|address| place(&devices.join(address))).collect::<Result<Vec<_>, _>>()?;
    let Some(visible) = visible else { return Ok(places) };
    let unknown = |name: &String| NumaError::Visible { name: name.clone(), gpus: places.len() };
    let by_name = |name: &String| {
        let index = name.parse().ok().or_else(|| {
            let uuid = |address: &String| uuid_of(&root.join(NVIDIA).join(address));
            addresses.iter().position(|address| uuid(address).is_some_and(|uuid| uuid.starts_with(name)))
        });
        index.and_then(|index: usize| places.get(index).copied()).ok_or_else(|| unknown(name))
    };
    visible.iter().map(by_name).collect()
}

fn read_cpu(dir: &Path, cpu: usize) -> Result<Cpu, NumaError> {
    let siblings = list(&dir.join("topology/thread_siblings_list"))?;
    let socket = dir.join("topology/physical_package_id");
    // The file holds -1 where the machine does not tell.
    let socket = number(&socket)?.and_then(|number| usize::try_from(number).ok()).unwrap_or(0);
    let core = siblings.and_then(|siblings| siblings.first().copied()).unwrap_or(cpu);
    Ok(Cpu { core, cache: largest_cache(&dir.join("cache"))?, socket })
}

/// Returns the smallest CPU that shares the cache of the highest level; instruction caches do not count.
fn largest_cache(dir: &Path) -> Result<Option<usize>, NumaError> {
    let mut largest = None;
    for index in numbered(dir, "index") {
        let cache = dir.join(format!("index{index}"));
        let kind = text(&cache.join("type"))?.unwrap_or_default();
        let level = number(&cache.join("level"))?;
        if matches!(kind.trim(), "Unified" | "Data")
            && level > largest.map(|(level, _)| level)
            && let Some(level) = level
            && let Some(cpus) = list(&cache.join("shared_cpu_list"))?
        {
            largest = cpus.first().map(|first| (level, *first));
        }
    }
    Ok(largest.map(|(_, first)| first))
}

fn is_gpu(device: &Path) -> bool {
    let read = |name: &str| fs::read_to_string(device.join(name)).unwrap_or_default();
    VENDORS.contains(&read("vendor").trim()) && read("class").starts_with(DISPLAY)
}

/// Reads a device's NUMA node; a machine with one node often reports -1, which becomes 0.
fn place(device: &Path) -> Result<GpuLocation, NumaError> {
    let node = number(&device.join("numa_node"))?.and_then(|node| usize::try_from(node).ok());
    Ok(GpuLocation { node: node.unwrap_or(0) })
}

fn uuid_of(gpu: &Path) -> Option<String> {
    let text = fs::read_to_string(gpu.join("information")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("GPU UUID:"))?;
    Some(line.trim().to_owned())
}

/// Returns the numbers of the entries `<prefix><number>` of a directory; none when the directory does not exist.
fn numbered(dir: &Path, prefix: &str) -> BTreeSet<usize> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.strip_prefix(prefix)?.parse().ok()).collect()
}

fn text(path: &Path) -> Result<Option<String>, NumaError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(NumaError::Read { path: path.to_owned(), source }),
    }
}

fn list(path: &Path) -> Result<Option<BTreeSet<usize>>, NumaError> {
    text(path)?.map(|text| cpu_list(&text).ok_or_else(|| wrong(path, text, "CPUs as in 0-3,8"))).transpose()
}

fn number(path: &Path) -> Result<Option<i64>, NumaError> {
    text(path)?.map(|text| text.trim().parse().map_err(|_| wrong(path, text, "a number"))).transpose()
}

fn wrong(path: &Path, found: String, expected: &'static str) -> NumaError {
    NumaError::Contents { path: PathBuf::from(path), found, expected }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn a_machine_on_paper() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        for cpu in 0..4 {
            let at = |rest: &str| format!("{CPUS}/cpu{cpu}/{rest}");
            write(root, &at("topology/thread_siblings_list"), if cpu % 2 == 0 { "0,2\n" } else { "1,3\n" });
            write(root, &at("topology/physical_package_id"), "0\n");
            for (index, kind, level, shared) in
                [(0, "Data", 1, "0"), (1, "Instruction", 9, "0"), (2, "Unified", 3, "0-3"), (10, "Unified", 2, "1")]
            {
                write(root, &at(&format!("cache/index{index}/type")), &format!("{kind}\n"));
                write(root, &at(&format!("cache/index{index}/level")), &format!("{level}\n"));
                write(root, &at(&format!("cache/index{index}/shared_cpu_list")), &format!("{shared}\n"));
            }
        }
        write(root, &format!("{NODES}/node0/cpulist"), "0-1\n");
        write(root, &format!("{NODES}/node1/cpulist"), "2-3\n");
        write(root, &format!("{NODES}/node2/cpulist"), "\n");
        let topology = read_topology(root, &[0, 1, 3].into()).unwrap();
        assert_eq!(topology.nodes[&0], [0, 1].into());
        assert_eq!(topology.nodes[&1], [3].into());
        assert_eq!(topology.nodes[&2], BTreeSet::new());
        assert_eq!(topology.cpus[&3], Cpu { core: 1, cache: Some(0), socket: 0 });
        write(root, &format!("{NODES}/node1/cpulist"), "two\n");
        let error = read_topology(root, &[0].into()).unwrap_err().to_string();
        assert!(error.contains("node1/cpulist") && error.contains("two"), "{error}");
    }

    #[test]
    fn gpus_in_the_order_they_are_seen() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        for (address, vendor, class, node) in [
            ("0000:dc:00.0", "0x10de", "0x030200", "1"),
            ("0000:07:00.0", "0x10de", "0x030000", "-1"),
            ("0000:01:00.0", "0x10de", "0x040300", "0"),
            ("0000:02:00.0", "0x8086", "0x030000", "0"),
        ] {
            write(root, &format!("{PCI}/{address}/vendor"), &format!("{vendor}\n"));
            write(root, &format!("{PCI}/{address}/class"), &format!("{class}\n"));
            write(root, &format!("{PCI}/{address}/numa_node"), &format!("{node}\n"));
        }
        write(root, &format!("{NVIDIA}/0000:dc:00.0/information"), "Model: X\nGPU UUID: \t GPU-12ab-34\n");
        let nodes = |visible: Option<&[String]>| -> Vec<usize> {
            read_gpus(root, visible).unwrap().iter().map(|place| place.node).collect()
        };
        assert_eq!(nodes(None), [0, 1]);
        assert_eq!(nodes(Some(&["1".into(), "0".into()])), [1, 0]);
        assert_eq!(nodes(Some(&["GPU-12ab".into()])), [1]);
        assert!(read_gpus(root, Some(&["7".into()])).unwrap_err().to_string().contains("\"7\""));
    }

    #[test]
    fn this_machine() {
        let allowed = allowed_cpus().unwrap();
        let topology = read_topology(Path::new("/"), &allowed).unwrap();
        assert!(!allowed.is_empty());
        let bound = super::super::bind(super::super::Mode::Node, 1, None, &topology).unwrap();
        assert!(bound[0].iter().all(|cpu| allowed.contains(cpu)) && !bound[0].is_empty());
    }
}
