//! Compares two sets of tensors, one pair of tensors at a time.

use super::{ConvertError, cast::floats, safetensors::Tensor, source::Source};
use enn_common::checkpoint::{Checkpoint, metadata::StoredPlace};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Differences {
    pub only_first: Vec<String>,
    pub only_second: Vec<String>,
    /// Names with different shapes: the name, and both shapes.
    pub shapes: Vec<(String, Vec<u64>, Vec<u64>)>,
    /// Names with different element types: the name, and both types.
    pub types: Vec<(String, &'static str, &'static str)>,
    /// Tensors of equal shapes whose elements differ.
    pub values: Vec<ValueDifference>,
    pub plain: Vec<String>,
    pub equal: u64,
    pub suspicions: Vec<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ValueDifference {
    pub name: String,
    pub differing: u64,
    pub elements: u64,
    /// The largest absolute difference; `None` for types that are compared as bytes, and where only one of two elements is NaN.
    pub max_abs: Option<f64>,
}

impl Differences {
    pub fn is_empty(&self) -> bool {
        *self == Self { equal: self.equal, suspicions: self.suspicions.clone(), ..Self::default() }
    }
}

pub struct Pair {
    first: Source,
    second: Source,
    tensors: [BTreeMap<String, Tensor>; 2],
    suspicions: Vec<String>,
    /// Names of tensors and values that are known to be equal and are not read.
    alike: BTreeSet<String>,
}

impl Pair {
    pub fn open(first: &Path, second: &Path) -> Result<Self, ConvertError> {
        let first = Source::open(first)?;
        let second = Source::open(second)?;
        let by_name = |source: &Source| -> Result<BTreeMap<String, Tensor>, ConvertError> {
            Ok(source.tensors()?.into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect())
        };
        let of_source = |source: &Source| {
            let path = source.path().display().to_string();
            source.suspicions().into_iter().map(move |what| format!("{path}: {what}"))
        };
        let suspicions = of_source(&first).chain(of_source(&second)).collect();
        Ok(Self { tensors: [by_name(&first)?, by_name(&second)?], first, second, suspicions, alike: BTreeSet::new() })
    }

    /// Marks tensors as equal whose checksums in both manifests are equal; returns the byte ranges of each checkpoint that must be read.
    pub fn trust_checksums(&mut self) -> [Vec<StoredPlace>; 2] {
        let checkpoints = [&self.first, &self.second].map(Source::checkpoint);
        let [ours, theirs] = &self.tensors;
        let shaped = ours.values().filter(|one| theirs.get(&one.name).is_some_and(|other| other.shape == one.shape));
        let values = self.second.values();
        let values = self.first.values().into_iter().filter(|name| values.contains(name));
        let names: Vec<String> = shaped.map(|one| one.name.clone()).chain(values).collect();
        if let [Some(first), Some(second)] = checkpoints {
            self.alike = names.iter().filter(|name| first.is_alike(second, name)).cloned().collect();
        }
        let read = |checkpoint: &Checkpoint| {
            let names = names.iter().filter(|name| !self.alike.contains(*name));
            names.flat_map(|name| checkpoint.places(name)).cloned().collect()
        };
        checkpoints.map(|checkpoint| checkpoint.map(read).unwrap_or_default())
    }

    /// Compares the sources. Differences up to `tolerance` are ignored. `progress` gets the bytes done and the total.
    pub fn diff(&self, tolerance: f64, progress: &mut dyn FnMut(u64, u64)) -> Result<Differences, ConvertError> {
        let [ours, theirs] = &self.tensors;
        let mut found = Differences {
            only_first: ours.keys().filter(|name| !theirs.contains_key(*name)).cloned().collect(),
            only_second: theirs.keys().filter(|name| !ours.contains_key(*name)).cloned().collect(),
            suspicions: self.suspicions.clone(),
            ..Differences::default()
        };
        let pairs: Vec<(&Tensor, &Tensor)> =
            ours.values().filter_map(|one| Some((one, theirs.get(&one.name)?))).collect();
        let total = pairs.iter().map(|(one, _)| one.bytes()).fold(0, u64::saturating_add);
        let mut done = 0;
        for (one, other) in pairs {
            let name = one.name.clone();
            if one.element != other.element {
                found.types.push((name.clone(), one.element.torch(), other.element.torch()));
            }
            if one.shape != other.shape {
                found.shapes.push((name, one.shape.clone(), other.shape.clone()));
            } else if self.alike.contains(&name) {
                found.equal += 1;
            } else {
                match compare(&self.first, one, &self.second, other, tolerance)? {
                    Some(difference) => found.values.push(difference),
                    None => found.equal += u64::from(one.element == other.element),
                }
            }
            done += one.bytes();
            progress(done, total);
        }
        self.plain(&mut found);
        Ok(found)
    }

    /// Compares plain values; values that only one source has are listed by name.
    fn plain(&self, found: &mut Differences) {
        let ours = self.first.values();
        let theirs = self.second.values();
        for name in ours.iter().filter(|name| !self.alike.contains(*name)) {
            if !theirs.contains(name) {
                found.only_first.push(name.clone());
                continue;
            }
            match (self.first.value(name), self.second.value(name)) {
                (Ok(one), Ok(other)) if one == other => {}
                (Ok(_), Ok(_)) => found.plain.push(format!("{name} differs")),
                (Err(error), _) | (_, Err(error)) => found.plain.push(format!("{name} cannot be compared: {error}")),
            }
        }
        found.only_second.extend(theirs.into_iter().filter(|name| !ours.contains(name)));
    }
}

pub fn diff(
    first: &Path,
    second: &Path,
    tolerance: f64,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Differences, ConvertError> {
    Pair::open(first, second)?.diff(tolerance, progress)
}

fn compare(
    first: &Source,
    one: &Tensor,
    second: &Source,
    other: &Tensor,
    tolerance: f64,
) -> Result<Option<ValueDifference>, ConvertError> {
    let left = first.tensor(one)?;
    let right = second.tensor(other)?;
    if one.element == other.element && left == right {
        return Ok(None);
    }
    let elements = one.shape.iter().product();
    let mut differing = 0;
    let mut max_abs = Some(0.0f64);
    match (floats(&left, one.element), floats(&right, other.element)) {
        (Some(left), Some(right)) => {
            for (left, right) in left.zip(right) {
                let apart = (left - right).abs();
                // Two NaNs are equal, and so are two infinities of one sign.
                if left == right || (left.is_nan() && right.is_nan()) || apart <= tolerance {
                    continue;
                }
                differing += 1;
                max_abs = max_abs.filter(|_| !apart.is_nan()).map(|max| max.max(apart));
            }
        }
        _ if one.element == other.element => {
            let width = usize::try_from(one.element.bytes()).unwrap_or(1);
            let pairs = left.chunks_exact(width).zip(right.chunks_exact(width));
            differing = pairs.filter(|(left, right)| left != right).count() as u64;
            max_abs = None;
        }
        _ => (differing, max_abs) = (elements, None),
    }
    let name = one.name.clone();
    Ok((differing > 0).then_some(ValueDifference { name, differing, elements, max_abs }))
}
