//! The choice of CPUs for each worker. Pure.
//!
//! The modes are those of torch 2.11. Where a machine has GPUs, a worker is placed by the GPU of its local rank, and a
//! node's cores are divided among all its GPUs, used or not; without GPUs, workers are spread evenly over the nodes.

use super::{NumaError, Topology};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

/// Mode of binding workers to CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Each worker is bound to the CPUs of its NUMA node.
    Node,
    /// Each worker is bound to the CPUs of all NUMA nodes of its socket.
    Socket,
    /// Each worker is bound to cores of its NUMA node that no other worker has.
    Exclusive,
    /// Each worker is bound to the cores that share one cache, a different cache for each worker while there are any.
    CoreComplex,
}

impl Mode {
    /// Returns the mode of this name.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "node" => Some(Self::Node),
            "socket" => Some(Self::Socket),
            "exclusive" => Some(Self::Exclusive),
            "core-complex" => Some(Self::CoreComplex),
            _ => None,
        }
    }
}

/// Position of a GPU in the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuLocation {
    pub node: usize,
}

/// Returns the CPUs of each worker by local rank, ascending. `gpus`: the GPUs that the workers see, in their order; `None`: the
/// workers use none.
pub fn bind(
    mode: Mode,
    local_world: usize,
    gpus: Option<&[GpuLocation]>,
    topology: &Topology,
) -> Result<Vec<Vec<usize>>, NumaError> {
    let spread;
    let places = match gpus {
        Some(gpus) => gpus,
        None => {
            spread = spread_evenly(local_world, topology);
            &spread
        }
    };
    (0..local_world)
        .map(|local_rank| {
            let place = places.get(local_rank).ok_or(NumaError::NoGpu { local_rank, gpus: places.len() })?;
            let node = place.node;
            if topology.nodes.get(&node).is_none_or(BTreeSet::is_empty) {
                return Err(NumaError::NoCpus { local_rank, node });
            }
            // Position among the GPUs of the node, and their number.
            let before = places[..local_rank].iter().filter(|other| other.node == node).count();
            let all = places.iter().filter(|other| other.node == node).count();
            match mode {
                Mode::Node => Ok(of_node(node, topology).collect()),
                Mode::Socket => Ok(of_socket(node, topology)),
                Mode::Exclusive => exclusive(node, before, all, topology),
                Mode::CoreComplex => Ok(core_complex(node, before, topology)),
            }
        })
        .collect()
}

/// Spreads the workers evenly over the nodes, neighbours together.
fn spread_evenly(local_world: usize, topology: &Topology) -> Vec<GpuLocation> {
    let usable = topology.nodes.iter().filter(|(_, cpus)| !cpus.is_empty());
    let usable: Vec<usize> = usable.map(|(node, _)| *node).collect();
    // Without any node, the first worker's error reports it.
    let node = |worker: usize| usable.get(worker * usable.len() / local_world).copied().unwrap_or(0);
    (0..local_world).map(|worker| GpuLocation { node: node(worker) }).collect()
}

fn of_node(node: usize, topology: &Topology) -> impl Iterator<Item = usize> {
    topology.nodes.get(&node).into_iter().flatten().copied()
}

fn of_socket(node: usize, topology: &Topology) -> Vec<usize> {
    let socket = |node: usize| Some(topology.cpus.get(&of_node(node, topology).next()?)?.socket);
    let mine = socket(node);
    let nodes = topology.nodes.keys().filter(|other| socket(**other) == mine && mine.is_some());
    let cpus: BTreeSet<usize> = nodes.flat_map(|other| of_node(*other, topology)).collect();
    cpus.into_iter().collect()
}

fn exclusive(node: usize, before: usize, all: usize, topology: &Topology) -> Result<Vec<usize>, NumaError> {
    let cores = grouped(node, topology, |cpu| topology.cpus.get(&cpu).map_or(cpu, |found| found.core));
    let cores: Vec<Vec<usize>> = cores.into_values().collect();
    let each = cores.len() / all;
    let over = cores.len() % all;
    if each == 0 {
        return Err(NumaError::Cores { node, cores: cores.len(), workers: all });
    }
    // The first ones get one core more when the cores cannot be divided evenly.
    let from = before * each + before.min(over);
    let to = from + each + usize::from(before < over);
    let mut cpus = cores[from..to].concat();
    cpus.sort_unstable();
    Ok(cpus)
}

fn core_complex(node: usize, before: usize, topology: &Topology) -> Vec<usize> {
    let caches = grouped(node, topology, |cpu| topology.cpus.get(&cpu).and_then(|found| found.cache));
    let mut caches: Vec<(Option<usize>, Vec<usize>)> = caches.into_iter().collect();
    caches.sort_by_key(|(cache, cpus)| (Reverse(cpus.len()), *cache));
    let at = before % caches.len().max(1);
    caches.into_iter().nth(at).map(|(_, cpus)| cpus).unwrap_or_default()
}

fn grouped<K: Ord>(node: usize, topology: &Topology, key: impl Fn(usize) -> K) -> BTreeMap<K, Vec<usize>> {
    let mut groups: BTreeMap<K, Vec<usize>> = BTreeMap::new();
    for cpu in of_node(node, topology) {
        groups.entry(key(cpu)).or_default().push(cpu);
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::{super::Cpu, *};

    /// Two sockets of two nodes each; a node has three cores of two threads and two caches, of two cores and of one.
    fn machine() -> Topology {
        let mut topology = Topology::default();
        for node in 0..4 {
            for core in 0..3 {
                for thread in 0..2 {
                    let first = node * 3 + core;
                    let cpu = node * 3 + core + thread * 12;
                    let cache = Some(node * 3 + if core == 2 { 2 } else { 0 });
                    topology.cpus.insert(cpu, Cpu { core: first, cache, socket: node / 2 });
                    topology.nodes.entry(node).or_default().insert(cpu);
                }
            }
        }
        topology
    }

    fn on(nodes: &[usize]) -> Vec<GpuLocation> {
        nodes.iter().map(|node| GpuLocation { node: *node }).collect()
    }

    #[test]
    fn workers_follow_their_gpus() {
        let machine = machine();
        let gpus = on(&[1, 0, 1]);
        let bind = |mode| bind(mode, 3, Some(&gpus), &machine).unwrap();
        let node = |node: usize| machine.nodes[&node].iter().copied().collect::<Vec<_>>();
        assert_eq!(bind(Mode::Node), [node(1), node(0), node(1)]);
        let socket = vec![0, 1, 2, 3, 4, 5, 12, 13, 14, 15, 16, 17];
        assert_eq!(bind(Mode::Socket), [socket.clone(), socket.clone(), socket]);
        assert_eq!(bind(Mode::Exclusive), [vec![3, 4, 15, 16], node(0), vec![5, 17]]);
        assert_eq!(bind(Mode::CoreComplex), [vec![3, 4, 15, 16], vec![0, 1, 12, 13], vec![5, 17]]);
    }

    #[test]
    fn without_gpus_workers_are_spread() {
        let machine = machine();
        let bound = bind(Mode::Exclusive, 8, None, &machine).unwrap();
        assert_eq!(bound[0], [0, 1, 12, 13]);
        assert_eq!(bound[1], [2, 14]);
        let all: BTreeSet<usize> = bound.concat().into_iter().collect();
        assert_eq!((all.len(), bound.concat().len()), (24, 24));
        let two = bind(Mode::Node, 2, None, &machine).unwrap();
        assert_eq!((two[0][0], two[1][0]), (0, 6));
    }

    #[test]
    fn what_cannot_be_bound_is_told() {
        let mut machine = machine();
        let told = |result: Result<Vec<Vec<usize>>, NumaError>| result.unwrap_err().to_string();
        assert!(told(bind(Mode::Node, 2, Some(&on(&[0])), &machine)).starts_with("worker 1 has no GPU"));
        assert!(told(bind(Mode::Node, 1, Some(&on(&[9])), &machine)).contains("NUMA node 9"));
        let error = told(bind(Mode::Exclusive, 1, Some(&on(&[0; 4])), &machine));
        assert!(error.contains("4 workers") && error.contains("3 cores"), "{error}");
        machine.nodes.insert(0, BTreeSet::new());
        assert!(told(bind(Mode::Socket, 1, Some(&on(&[0])), &machine)).contains("none of its CPUs"));
        assert!(told(bind(Mode::Node, 1, None, &Topology::default())).contains("none of its CPUs"));
        assert_eq!(Mode::named("nodes"), None);
    }
}
