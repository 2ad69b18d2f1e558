//! Loads tensors of a checkpoint and checks them: every expected tensor must exist with the same shape and dtype.

use super::{CheckpointError, Named, Placed, dtype, host_bytes, host_bytes_mut};
use enn_common::checkpoint::{Checkpoint, Region, bulk::Target};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};
use tch::{Device, Kind, Tensor};

/// Maximum number of differences in a message; further ones are counted.
const DIFFERENCES_LISTED: usize = 4;

/// Name, shape and kind of a tensor.
pub type ExpectedTensor = (String, Vec<i64>, Kind);

#[derive(Debug, Default)]
pub struct ShardedTensors {
    /// Whole tensors that the checkpoint must hold.
    pub tensors: Vec<ExpectedTensor>,
    /// Boxes that this rank keeps, with the memory to read them into.
    pub boxes: Vec<Placed>,
}

/// Reads all of `wanted` to the host. The checkpoint must hold exactly these tensors.
///
/// # Errors
/// [`CheckpointError::OtherModel`] with the missing, different and unexpected tensors; damage that the reader finds.
pub fn load(path: &Path, wanted: &[ExpectedTensor]) -> Result<BTreeMap<String, Tensor>, CheckpointError> {
    load_with(path, wanted, &[])
}

/// Runs [`load`] and also reads every tensor whose name begins with one of `prefixes`, of any shape and dtype. These
/// tensors are optional.
pub fn load_with(
    path: &Path,
    wanted: &[ExpectedTensor],
    prefixes: &[&str],
) -> Result<BTreeMap<String, Tensor>, CheckpointError> {
    read(path, wanted, prefixes, true, Vec::new(), &ShardedTensors::default())
}

/// Runs [`load_with`] and reuses the memory of `own` for tensors of the same name, shape and dtype. Of `shared` only
/// this rank's boxes are read, into their own memory; tensors of it whose names begin with a prefix may be missing.
/// After an error the contents are undefined.
pub fn load_over(
    path: &Path,
    wanted: &[ExpectedTensor],
    prefixes: &[&str],
    own: Vec<Named>,
    shared: &ShardedTensors,
) -> Result<BTreeMap<String, Tensor>, CheckpointError> {
    read(path, wanted, prefixes, true, own, shared)
}

/// Runs [`load_with`] on a checkpoint that may hold other tensors too.
pub fn load_part(
    path: &Path,
    wanted: &[ExpectedTensor],
    prefixes: &[&str],
) -> Result<BTreeMap<String, Tensor>, CheckpointError> {
    read(path, wanted, prefixes, false, Vec::new(), &ShardedTensors::default())
}

/// Reads whole tensors into the memory of the given ones, which are contiguous, on the host, and of the same shape and
/// dtype. After an error the contents are undefined.
///
/// # Errors
/// Damage that the reader finds; a tensor of another size, or one that is not contiguous on the host.
pub fn load_into<'a>(
    checkpoint: &Checkpoint,
    tensors: impl Iterator<Item = (&'a str, &'a mut Tensor)>,
) -> Result<(), CheckpointError> {
    read_all(checkpoint, tensors.map(|(fqn, tensor)| (fqn, None, tensor)))
}

fn read_all<'a>(
    checkpoint: &Checkpoint,
    tensors: impl Iterator<Item = (&'a str, Option<Region>, &'a mut Tensor)>,
) -> Result<(), CheckpointError> {
    // Without memory, the reader reports a wrong size.
    let target = |(fqn, region, tensor)| Target { fqn, region, out: host_bytes_mut(tensor).unwrap_or_default() };
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Ok(checkpoint.read_all(&mut tensors.map(target).collect::<Vec<_>>(), threads)?)
}

/// Also reads tensors with one of the prefixes. With `exactly`, the checkpoint must not hold others.
fn read(
    path: &Path,
    wanted: &[ExpectedTensor],
    prefixes: &[&str],
    exactly: bool,
    own: Vec<Named>,
    shared: &ShardedTensors,
) -> Result<BTreeMap<String, Tensor>, CheckpointError> {
    let checkpoint = Checkpoint::open(path)?;
    let held: BTreeMap<String, (Vec<i64>, Option<Kind>)> = checkpoint
        .tensor_names()
        .filter_map(|name| {
            let entry = checkpoint.entry(name).ok()?;
            let shape = entry.shape.iter().map(|&n| n.cast_signed()).collect();
            Some((name.to_owned(), (shape, entry.dtype().map(dtype::to_kind))))
        })
        .collect();
    let optional = |fqn: &str| prefixes.iter().any(|prefix| fqn.starts_with(prefix));
    let boxes: Vec<&Placed> = shared.boxes.iter().filter(|part| held.contains_key(&part.fqn)).collect();
    let in_boxes: BTreeSet<&str> = shared.tensors.iter().map(|(fqn, ..)| fqn.as_str()).collect();
    let mut wanted = wanted.to_vec();
    let taken = held.iter().filter(|(fqn, _)| optional(fqn) && !in_boxes.contains(fqn.as_str()));
    wanted.extend(taken.filter_map(|(fqn, (shape, kind))| Some((fqn.clone(), shape.clone(), (*kind)?))));
    let of_boxes = shared.tensors.iter().filter(|(fqn, ..)| held.contains_key(fqn) || !optional(fqn));
    let all: Vec<ExpectedTensor> = wanted.iter().chain(of_boxes).cloned().collect();
    let differences = differences(&held, &all, exactly);
    if !differences.is_empty() {
        return Err(CheckpointError::OtherModel { path: path.to_owned(), differences: summary(&differences) });
    }
    let empty = |fqn: &str, shape: &[i64], kind| {
        let made = Tensor::f_empty(shape, (kind, Device::Cpu));
        made.map_err(|source| CheckpointError::Copy { fqn: fqn.to_owned(), source })
    };
    let mut tensors = BTreeMap::new();
    let mut own: BTreeMap<String, Tensor> = own.into_iter().map(|item| (item.fqn, item.tensor)).collect();
    for (fqn, shape, kind) in wanted {
        let fits = |own: &Tensor| own.size() == shape && own.kind() == kind && host_bytes(own).is_some();
        let tensor = own.remove(&fqn).filter(fits).map_or_else(|| empty(&fqn, &shape, kind), Ok)?;
        tensors.insert(fqn, tensor);
    }
    let mut parts = Vec::with_capacity(boxes.len());
    for Placed { fqn, tensor, .. } in &boxes {
        let there = host_bytes(tensor).map(|_| tensor.shallow_clone());
        parts.push(there.map_or_else(|| empty(fqn, &tensor.size(), tensor.kind()), Ok)?);
    }
    let whole = tensors.iter_mut().map(|(fqn, tensor)| (fqn.as_str(), None, tensor));
    let cut = boxes.iter().zip(&mut parts).map(|(part, tensor)| (part.fqn.as_str(), Some(region(part)), tensor));
    read_all(&checkpoint, whole.chain(cut))?;
    for (Placed { fqn, tensor, .. }, read) in boxes.into_iter().zip(parts) {
        if read.data_ptr() != tensor.data_ptr() {
            let copied = tch::no_grad(|| tensor.shallow_clone().f_copy_(&read));
            copied.map_err(|source| CheckpointError::Copy { fqn: fqn.clone(), source })?;
        }
    }
    Ok(tensors)
}

fn region(part: &Placed) -> Region {
    let words = |numbers: &[i64]| numbers.iter().map(|&n| n.cast_unsigned()).collect();
    Region { offsets: words(&part.offsets), sizes: words(&part.tensor.size()) }
}

fn differences(
    held: &BTreeMap<String, (Vec<i64>, Option<Kind>)>,
    wanted: &[ExpectedTensor],
    exactly: bool,
) -> Vec<String> {
    let mut found = Vec::new();
    for (fqn, shape, kind) in wanted {
        match held.get(fqn) {
            None => found.push(format!("{fqn} is missing")),
            Some((other, _)) if other != shape => found.push(format!("{fqn} is {other:?}, expected {shape:?}")),
            Some((_, other)) if *other != Some(*kind) => {
                let other = other.map_or_else(|| "of an unknown kind".to_owned(), |kind| format!("{kind:?}"));
                found.push(format!("{fqn} is {other}, expected {kind:?}"));
            }
            Some(_) => {}
        }
    }
    if exactly {
        let names: BTreeSet<&str> = wanted.iter().map(|(fqn, ..)| fqn.as_str()).collect();
        found.extend(held.keys().filter(|fqn| !names.contains(fqn.as_str())).map(|fqn| format!("{fqn} is unexpected")));
    }
    found
}

fn summary(differences: &[String]) -> String {
    let mut text = differences.iter().take(DIFFERENCES_LISTED).cloned().collect::<Vec<_>>().join("; ");
    if differences.len() > DIFFERENCES_LISTED {
        text.push_str(&format!("; and {} more", differences.len() - DIFFERENCES_LISTED));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::write_share;
    use enn_common::checkpoint::{Draft, commit, name};

    fn state() -> Vec<Named> {
        vec![
            Named::of("model.a", &Tensor::randn([700, 500], (Kind::Float, tch::Device::Cpu))),
            Named::of("model.t", &Tensor::randn([4, 3], (Kind::Float, tch::Device::Cpu)).transpose(0, 1)),
            Named::of("optim.step", &Tensor::from(3.0f32)),
            Named::of("progress.counts", &Tensor::from_slice(&[1i64, -2])),
            Named::of("empty", &Tensor::zeros([0, 5], (Kind::Double, tch::Device::Cpu))),
        ]
    }

    fn saved_by(world: u32, items: &[Named], dir: &Path) -> std::path::PathBuf {
        let temporary = dir.join(name::temporary(7, "x"));
        let tables: Vec<_> = (0..world).map(|rank| write_share(&temporary, rank, world, items).unwrap()).collect();
        let committed = dir.join(name::committed(7));
        commit(&temporary, &committed, &tables, Draft { step: 7, ..Draft::default() }).unwrap();
        committed
    }

    fn wanted(items: &[Named]) -> Vec<ExpectedTensor> {
        items.iter().map(|n| (n.fqn.clone(), n.tensor.size(), n.tensor.kind())).collect()
    }

    #[test]
    fn what_any_world_saved_comes_back_exactly() {
        let items = state();
        for world in [1, 2, 5] {
            let dir = tempfile::tempdir().unwrap();
            let path = saved_by(world, &items, dir.path());
            let back = load(&path, &wanted(&items)).unwrap();
            for item in &items {
                assert!(back[&item.fqn].equal(&item.tensor), "{} saved by {world}", item.fqn);
            }
        }
    }

    #[test]
    fn tensors_that_fit_are_read_over() {
        let items = state();
        let dir = tempfile::tempdir().unwrap();
        let path = saved_by(2, &items, dir.path());
        let own = vec![
            Named::of("model.a", &Tensor::zeros([700, 500], (Kind::Float, tch::Device::Cpu))),
            Named::of("model.t", &Tensor::zeros([4, 3], (Kind::Float, tch::Device::Cpu)).transpose(0, 1)),
            Named::of("optim.step", &Tensor::from(0.0f64)),
        ];
        let views: Vec<Tensor> = own.iter().map(|item| item.tensor.shallow_clone()).collect();
        let back = load_over(&path, &wanted(&items), &[], own, &ShardedTensors::default()).unwrap();
        for item in &items {
            assert!(back[&item.fqn].equal(&item.tensor), "{}", item.fqn);
        }
        let is_over = |index: usize, fqn: &str| back[fqn].data_ptr() == views[index].data_ptr();
        // The second tensor has other strides, the third another kind.
        assert!(is_over(0, "model.a") && !is_over(1, "model.t") && !is_over(2, "optim.step"));
    }

    #[test]
    fn of_what_is_shared_only_boxes_are_read_and_all_of_it_must_be_there() {
        let items = state();
        let dir = tempfile::tempdir().unwrap();
        let path = saved_by(3, &items, dir.path());
        let mut wanted = wanted(&items);
        let mut shared = ShardedTensors { tensors: vec![wanted.remove(0)], boxes: Vec::new() };
        let kept = Tensor::zeros([300 * 500 + 7], (Kind::Float, Device::Cpu));
        let part = |fqn: &str, from: i64, rows: i64, at: i64| Placed {
            fqn: fqn.to_owned(),
            global: vec![700, 500],
            offsets: vec![from, 0],
            tensor: kept.narrow(0, at, rows * 500).view([rows, 500]),
        };
        // The boxes are rows that two ranks wrote, and part of a tensor that may be missing, and is.
        shared.boxes = vec![part("model.a", 100, 290, 7), part("tail.a", 0, 10, 7 + 290 * 500)];
        shared.tensors.push(("tail.a".to_owned(), vec![700, 500], Kind::Float));
        let back = load_over(&path, &wanted, &["tail."], Vec::new(), &shared).unwrap();
        assert!(!back.contains_key("model.a") && back.len() == wanted.len());
        assert!(shared.boxes[0].tensor.equal(&items[0].tensor.narrow(0, 100, 290)));
        let rest = [kept.narrow(0, 0, 7), kept.narrow(0, 7 + 290 * 500, 10 * 500)];
        assert!(rest.iter().all(|rest| rest.abs().max().double_value(&[]) == 0.0));
        // This rank keeps no box.
        shared.boxes.clear();
        shared.tensors[0].1 = vec![500, 700];
        let error = load_over(&path, &wanted, &["tail."], Vec::new(), &shared).unwrap_err().to_string();
        assert!(error.contains("model.a is [700, 500], expected [500, 700]"), "{error}");
    }

    #[test]
    fn another_model_is_refused_with_a_list() {
        let items = state();
        let dir = tempfile::tempdir().unwrap();
        let path = saved_by(2, &items, dir.path());
        let mut other = wanted(&items);
        other[0].1 = vec![500, 700];
        other[3].2 = Kind::Int;
        other.pop();
        other.push(("model.new".to_owned(), vec![1], Kind::Float));
        let error = load(&path, &other).unwrap_err().to_string();
        for part in [
            "model.a is [700, 500], expected [500, 700]",
            "progress.counts is Int64, expected Int",
            "model.new is missing",
            "empty is unexpected",
        ] {
            assert!(error.contains(part), "{error}");
        }
        assert!(load_part(&path, &wanted(&items[..1]), &[]).is_ok());
        assert!(load(&path, &wanted(&items[..1])).is_err());
    }

    #[test]
    fn what_may_be_there_comes_too_and_only_that() {
        let items = state();
        let dir = tempfile::tempdir().unwrap();
        let path = saved_by(2, &items, dir.path());
        let model = wanted(&items[..2]);
        let rest = [model.clone(), wanted(&items[3..])].concat();
        let back = load_with(&path, &rest, &["optim."]).unwrap();
        assert_eq!((back.len(), back["optim.step"].double_value(&[])), (items.len(), 3.0));
        assert_eq!(load_with(&path, &wanted(&items), &["precision."]).unwrap().len(), items.len());
        let error = load_with(&path, &model, &["optim."]).unwrap_err().to_string();
        assert!(error.contains("progress.counts is unexpected") && !error.contains("optim.step"), "{error}");
    }
}
