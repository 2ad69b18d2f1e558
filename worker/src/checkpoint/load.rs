//! Loads tensors of a checkpoint, strictly: what is wanted must be there, of the same shape and kind.

use super::{CheckpointError, dtype};
use enn_common::checkpoint::Checkpoint;
use std::{collections::BTreeMap, path::Path};
use tch::{Kind, Tensor};

/// Differences told by name; the rest is counted.
const DIFFERENCES_TOLD: usize = 4;

/// Name, shape and kind of a tensor.
pub type Wanted = (String, Vec<i64>, Kind);

/// Reads all of `wanted` onto the host. The checkpoint must hold exactly these tensors.
///
/// # Errors
/// [`CheckpointError::OtherModel`] listing what is missing, different or unexpected; damage that the reader finds.
pub fn load(path: &Path, wanted: &[Wanted]) -> Result<BTreeMap<String, Tensor>, CheckpointError> {
    load_with(path, wanted, &[])
}

/// `load`, and with it every tensor whose name begins with one of `prefixes`, of whatever shape and kind: some or none.
///
/// # Errors
/// As `load`.
pub fn load_with(
    path: &Path,
    wanted: &[Wanted],
    prefixes: &[&str],
) -> Result<BTreeMap<String, Tensor>, CheckpointError> {
    read(path, wanted, (prefixes, true))
}

/// `load_with`, of a checkpoint that may hold more.
///
/// # Errors
/// As `load`.
pub fn load_part(
    path: &Path,
    wanted: &[Wanted],
    prefixes: &[&str],
) -> Result<BTreeMap<String, Tensor>, CheckpointError> {
    read(path, wanted, (prefixes, false))
}

/// Tensors with one of the prefixes come too; `exactly`: others there must be none.
fn read(
    path: &Path,
    wanted: &[Wanted],
    (prefixes, exactly): (&[&str], bool),
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
    let mut wanted = wanted.to_vec();
    let taken = held.iter().filter(|(fqn, _)| prefixes.iter().any(|prefix| fqn.starts_with(prefix)));
    wanted.extend(taken.filter_map(|(fqn, (shape, kind))| Some((fqn.clone(), shape.clone(), (*kind)?))));
    let differences = differences(&held, &wanted, exactly);
    if !differences.is_empty() {
        return Err(CheckpointError::OtherModel { path: path.to_owned(), differences: told(&differences) });
    }
    let mut tensors = BTreeMap::new();
    for (fqn, shape, kind) in wanted {
        let data = checkpoint.tensor(&fqn)?;
        let tensor = Tensor::f_from_data_size(&data.bytes, &shape, kind)
            .map_err(|source| CheckpointError::Copy { fqn: fqn.clone(), source })?;
        tensors.insert(fqn, tensor);
    }
    Ok(tensors)
}

fn differences(held: &BTreeMap<String, (Vec<i64>, Option<Kind>)>, wanted: &[Wanted], exactly: bool) -> Vec<String> {
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
        let names: std::collections::BTreeSet<&str> = wanted.iter().map(|(fqn, ..)| fqn.as_str()).collect();
        found.extend(held.keys().filter(|fqn| !names.contains(fqn.as_str())).map(|fqn| format!("{fqn} is unexpected")));
    }
    found
}

fn told(differences: &[String]) -> String {
    let mut text = differences.iter().take(DIFFERENCES_TOLD).cloned().collect::<Vec<_>>().join("; ");
    if differences.len() > DIFFERENCES_TOLD {
        text.push_str(&format!("; and {} more", differences.len() - DIFFERENCES_TOLD));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{Named, write_share};
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

    fn wanted(items: &[Named]) -> Vec<Wanted> {
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
