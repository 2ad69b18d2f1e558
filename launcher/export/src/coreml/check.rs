//! The check of a written package without Apple's runtime: every file of the manifest, every blob, every name and every element type.

use super::{
    OPSET, RANK_MAX, SPECIFICATION, TARGET, WEIGHTS, is_name,
    mil::MilKind,
    package::{DATA, MANIFEST, ML_PROGRAM, PROGRAM, WEIGHTS_DIR, WEIGHTS_FILE},
    weights::{ALIGN, MARK, VERSION},
};
use crate::{
    ExportError,
    proto::{Part, varints},
};
use enn_common::{
    fs::RelPath,
    graph::{Dim, numel},
};
use serde_json::Value as Json;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::Path,
};

const MANIFEST_BYTES_MAX: u64 = 1 << 20;
/// Limit on the elements of a value.
const ELEMENTS_MAX: u64 = 1 << 48;
/// Limit on the bytes of a program, which is also that of protocol buffers.
const PROGRAM_BYTES_MAX: u64 = 2 << 30;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedPackage {
    /// Number of operations, constants included.
    pub operations: usize,
    /// Number of blobs in the file of weights.
    pub weights: usize,
    pub inputs: Vec<String>,
    pub outputs: Vec<String>,
    /// Metadata of the model.
    pub about: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Copy)]
enum ResultType {
    /// The element type is that of these parameters, which must agree.
    Like(ParameterNames),
    /// The element type is fixed.
    Is(MilKind),
    /// The element type is the value of the parameter `dtype`.
    FromDtype,
}

type ParameterNames = &'static [&'static str];

/// Supported operations: names, required parameters, optional parameters, and result type.
const OPERATIONS: &[(ParameterNames, ParameterNames, ParameterNames, ResultType)] = &[
    (&["exp", "sqrt", "abs", "sigmoid", "tanh", "identity"], &["x"], &[], ResultType::Like(&["x"])),
    (&["log"], &["x", "epsilon"], &[], ResultType::Like(&["x", "epsilon"])),
    (&["gelu"], &["x", "mode"], &[], ResultType::Like(&["x"])),
    (&["add", "sub", "mul", "real_div", "maximum", "minimum"], &["x", "y"], &[], ResultType::Like(&["x", "y"])),
    (&["less", "less_equal", "greater", "greater_equal"], &["x", "y"], &[], ResultType::Is(MilKind::Bool)),
    (&["logical_and", "logical_or"], &["x", "y"], &[], ResultType::Like(&["x", "y"])),
    (&["logical_not"], &["x"], &[], ResultType::Is(MilKind::Bool)),
    (&["select"], &["cond", "a", "b"], &[], ResultType::Like(&["a", "b"])),
    (&["cast"], &["x", "dtype"], &[], ResultType::FromDtype),
    (&["matmul"], &["x", "y", "transpose_x", "transpose_y"], &[], ResultType::Like(&["x", "y"])),
    (&["linear"], &["x", "weight"], &["bias"], ResultType::Like(&["x", "weight", "bias"])),
    (
        &["layer_norm"],
        &["x", "axes", "epsilon"],
        &["gamma", "beta"],
        ResultType::Like(&["x", "gamma", "beta", "epsilon"]),
    ),
    (&["softmax"], &["x", "axis"], &[], ResultType::Like(&["x"])),
    (&["reduce_sum", "reduce_mean", "reduce_max"], &["x", "axes", "keep_dims"], &[], ResultType::Like(&["x"])),
    (&["reshape"], &["x", "shape"], &[], ResultType::Like(&["x"])),
    (&["transpose"], &["x", "perm"], &[], ResultType::Like(&["x"])),
    (&["tile"], &["x", "reps"], &[], ResultType::Like(&["x"])),
    (&["slice_by_index"], &["x", "begin", "end"], &["begin_mask", "end_mask"], ResultType::Like(&["x"])),
    (&["concat"], &["values", "axis", "interleave"], &[], ResultType::Like(&["values"])),
    (&["gather"], &["x", "indices", "axis", "batch_dims", "validate_indices"], &[], ResultType::Like(&["x"])),
    (&["shape"], &["x"], &[], ResultType::Is(MilKind::I32)),
];

type CheckResult<T> = Result<T, String>;

/// Reads a package and returns its contents.
///
/// # Errors
/// The first contradiction to the format.
pub fn check(path: &Path) -> Result<CheckedPackage, ExportError> {
    look(path).map_err(|why| ExportError::refused(TARGET, path, why))
}

fn look(path: &Path) -> CheckResult<CheckedPackage> {
    let weights = manifest(path)?;
    let blobs = if weights { blobs(&path.join(DATA).join(WEIGHTS_DIR).join(WEIGHTS_FILE))? } else { BTreeMap::new() };
    let bytes = read(&path.join(DATA).join(PROGRAM), PROGRAM_BYTES_MAX)?;
    let model = Part::of(&bytes).ok_or("model.mlmodel: no protocol buffer")?;
    if model.number(1) != Some(SPECIFICATION) {
        return Err(format!("specification {:?}: expected {SPECIFICATION}", model.number(1)));
    }
    let mut program =
        ProgramCheck { blobs, used: BTreeSet::new(), values: BTreeMap::new(), texts: BTreeMap::new(), operations: 0 };
    let whole = "a program with one function main and one block";
    let (inputs, outputs) = program.read(&model, whole)?;
    if program.used.len() != program.blobs.len() {
        return Err(format!("{} blobs of weights, of which {} are used", program.blobs.len(), program.used.len()));
    }
    let described = model.part(2).ok_or("no description")?;
    program.ports(&described, 1, &inputs)?;
    program.ports(&described, 10, &outputs)?;
    let about = described.part(100).and_then(|about| {
        about
            .parts(100)?
            .into_iter()
            .map(|entry| Some((entry.text(1)?.to_owned(), entry.text(2)?.to_owned())))
            .collect()
    });
    let about = about.ok_or("no metadata")?;
    Ok(CheckedPackage { operations: program.operations, weights: program.blobs.len(), inputs, outputs, about })
}

fn read(path: &Path, bytes_max: u64) -> CheckResult<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
    file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(|error| format!("{}: {error}", path.display()))?;
    if bytes.len() as u64 > bytes_max {
        Err(format!("{}: more than {bytes_max} bytes", path.display()))
    } else {
        Ok(bytes)
    }
}

/// Returns whether there is a file of weights beside the program.
fn manifest(path: &Path) -> CheckResult<bool> {
    let json: Json = serde_json::from_slice(&read(&path.join(MANIFEST), MANIFEST_BYTES_MAX)?)
        .map_err(|error| format!("{MANIFEST}: {error}"))?;
    if json["fileFormatVersion"] != "1.0.0" {
        return Err(format!("{MANIFEST}: version {}: expected 1.0.0", json["fileFormatVersion"]));
    }
    let root = json["rootModelIdentifier"].as_str().unwrap_or_default();
    let items = json["itemInfoEntries"].as_object().ok_or(format!("{MANIFEST}: no items"))?;
    let mut paths = BTreeMap::new();
    for (id, item) in items {
        let below = item["path"].as_str().unwrap_or_default();
        let is_there = RelPath::parse(below).is_ok_and(|below| below.below(&path.join(DATA)).exists());
        if !is_there {
            return Err(format!("{MANIFEST}: no item at {below:?}"));
        }
        paths.insert(below, id.as_str());
    }
    if paths.get(PROGRAM) != Some(&root) {
        return Err(format!("{MANIFEST}: the root is {root:?}: expected that of {PROGRAM}"));
    }
    Ok(paths.contains_key(WEIGHTS_DIR))
}

/// Returns element type and bytes of every blob, by its offset. Blobs are adjacent.
fn blobs(path: &Path) -> CheckResult<BTreeMap<u64, (u32, u64)>> {
    let failed = |error: std::io::Error| format!("{WEIGHTS_FILE}: {error}");
    let mut file = File::open(path).map_err(failed)?;
    let end = file.metadata().map_err(failed)?.len();
    let mut head = |at: u64| {
        let mut head = [0_u8; ALIGN as usize];
        file.seek(SeekFrom::Start(at)).and_then(|_| file.read_exact(&mut head)).map(|()| head).map_err(failed)
    };
    let word = |head: &[u8; ALIGN as usize], at: usize| u32::from_le_bytes(std::array::from_fn(|i| head[at + i]));
    let long = |head: &[u8; ALIGN as usize], at: usize| u64::from_le_bytes(std::array::from_fn(|i| head[at + i]));
    let first = head(0)?;
    if word(&first, 4) != VERSION {
        return Err(format!("{WEIGHTS_FILE}: version {}: expected {VERSION}", word(&first, 4)));
    }
    let mut found = BTreeMap::new();
    let mut at = ALIGN;
    for _ in 0..word(&first, 0) {
        let before = head(at)?;
        let bytes = long(&before, 8);
        let begin = long(&before, 16);
        let fits = begin.checked_add(bytes).is_some_and(|past| past <= end);
        if word(&before, 0) != MARK || begin != at + ALIGN || !fits {
            return Err(format!("{WEIGHTS_FILE}: no blob at {at}"));
        }
        found.insert(at, (word(&before, 4), bytes));
        at = (begin + bytes).next_multiple_of(ALIGN);
    }
    if at != end.next_multiple_of(ALIGN) {
        return Err(format!("{WEIGHTS_FILE}: {end} bytes, of which the blobs are {at}"));
    }
    Ok(found)
}

/// A program while it is checked, operation by operation.
struct ProgramCheck {
    blobs: BTreeMap<u64, (u32, u64)>,
    used: BTreeSet<u64>,
    /// Element types and shapes of the values that exist so far.
    values: BTreeMap<String, (MilKind, Vec<Dim>)>,
    /// Constants that are texts.
    texts: BTreeMap<String, String>,
    operations: usize,
}

impl ProgramCheck {
    /// Checks the function; returns the names of its inputs and outputs.
    fn read(&mut self, model: &Part<'_>, whole: &str) -> CheckResult<(Vec<String>, Vec<String>)> {
        let program = model.part(ML_PROGRAM).filter(|program| program.number(1) == Some(1)).ok_or(whole)?;
        let functions = program.entries(2).ok_or(whole)?;
        let [("main", function)] = functions.as_slice() else { return Err(whole.to_owned()) };
        let blocks = function.entries(3).ok_or(whole)?;
        let [(OPSET, block)] = blocks.as_slice() else { return Err(whole.to_owned()) };
        if function.text(2) != Some(OPSET) {
            return Err(format!("opset {:?}: expected {OPSET}", function.text(2)));
        }
        let mut inputs = Vec::new();
        for input in function.parts(1).ok_or(whole)? {
            inputs.push(self.define(&input)?);
        }
        for operation in block.parts(3).ok_or(whole)? {
            self.operation(&operation)?;
            self.operations += 1;
        }
        let outputs = block.texts(2).ok_or(whole)?;
        if let Some(name) = outputs.iter().find(|name| !self.values.contains_key(**name)) {
            return Err(format!("output {name} is made nowhere"));
        }
        Ok((inputs, outputs.into_iter().map(str::to_owned).collect()))
    }

    /// Records a name with its type; returns the name.
    fn define(&mut self, named: &Part<'_>) -> CheckResult<String> {
        let name = named.text(1).filter(|name| is_name(name)).ok_or(format!("the name {:?}", named.text(1)))?;
        let ty =
            named.part(2).and_then(|ty| read_type(&ty)).ok_or(format!("{name}: no type of at most {RANK_MAX} axes"))?;
        if self.values.insert(name.to_owned(), ty).is_some() {
            return Err(format!("{name} is made twice"));
        }
        Ok(name.to_owned())
    }

    fn operation(&mut self, operation: &Part<'_>) -> CheckResult<()> {
        let op = operation.text(1).unwrap_or_default();
        let [out] =
            operation.parts(3).and_then(|outs| <[_; 1]>::try_from(outs).ok()).ok_or(format!("{op}: one result"))?;
        let attributes: BTreeMap<&str, Part<'_>> =
            operation.entries(5).ok_or(format!("{op}: attributes"))?.into_iter().collect();
        if op == "const" {
            let name = self.define(&out)?;
            let val = attributes.get("val").ok_or(format!("{name}: no value"))?;
            return self.value(&name, val).map_err(|why| format!("{name}: {why}"));
        }
        let (_, required, optional, made) =
            OPERATIONS.iter().find(|row| row.0.contains(&op)).ok_or(format!("an operation {op:?}"))?;
        let mut args = BTreeMap::new();
        for (parameter, argument) in operation.entries(2).ok_or(format!("{op}: arguments"))? {
            let names = argument.parts(1).and_then(|all| all.iter().map(|one| one.text(1)).collect::<Option<Vec<_>>>());
            let names = names.filter(|names| !names.is_empty()).ok_or(format!("{op}: {parameter}"))?;
            if let Some(name) = names.iter().find(|name| !self.values.contains_key(**name)) {
                return Err(format!("{op}: {name} is used before it is made"));
            }
            if !required.contains(&parameter) && !optional.contains(&parameter) {
                return Err(format!("{op}: takes no {parameter}"));
            }
            args.insert(parameter, names);
        }
        if let Some(missing) = required.iter().find(|parameter| !args.contains_key(**parameter)) {
            return Err(format!("{op}: without {missing}"));
        }
        let name = self.define(&out)?;
        let kind = self.values[&name].0;
        let fits = match made {
            ResultType::Is(expected) => kind == *expected,
            ResultType::FromDtype => self.texts.get(args["dtype"][0]).is_some_and(|dtype| dtype == kind.name()),
            ResultType::Like(parameters) => {
                let names = parameters.iter().filter_map(|parameter| args.get(parameter)).flatten();
                names.into_iter().all(|name| self.values[*name].0 == kind)
            }
        };
        if fits { Ok(()) } else { Err(format!("{op}: {name} is {}, which its arguments do not make", kind.name())) }
    }

    /// Checks a constant's value: its type and number of elements.
    fn value(&mut self, name: &str, val: &Part<'_>) -> CheckResult<()> {
        let (kind, shape) = self.values[name].clone();
        if val.part(2).and_then(|ty| read_type(&ty)) != Some((kind, shape.clone())) {
            return Err("the value has another type".to_owned());
        }
        let count = numel(&shape);
        if let Some(blob) = val.part(5) {
            let at = blob.number(2).unwrap_or_default();
            let expected = kind.stored().map(|element| (element, count * kind.bytes()));
            if blob.text(1) != Some(WEIGHTS) || self.blobs.get(&at).copied() != expected || expected.is_none() {
                return Err(format!("no blob of {} {} at {at}", count, kind.name()));
            }
            self.used.insert(at);
            return Ok(());
        }
        let tensor = val.part(3).and_then(|immediate| immediate.part(1)).ok_or("no value")?;
        let of = |field: u32| tensor.part(field).and_then(|values| values.bytes(1));
        let found = match kind {
            MilKind::F32 => of(1).map(|bytes| bytes.len() as u64 / 4),
            MilKind::I32 => of(2).and_then(varints).map(|all| all.len() as u64),
            MilKind::Bool => of(3).and_then(varints).map(|all| all.len() as u64),
            MilKind::F16 => of(7).map(|bytes| bytes.len() as u64 / 2),
            MilKind::Text => {
                let text = tensor.part(4).and_then(|texts| texts.text(1)).ok_or("no text")?;
                self.texts.insert(name.to_owned(), text.to_owned());
                Some(1)
            }
        };
        if found == Some(count) { Ok(()) } else { Err(format!("{found:?} elements: expected {count}")) }
    }

    /// Checks that the described ports are those of the program.
    fn ports(&self, described: &Part<'_>, field: u32, names: &[String]) -> CheckResult<()> {
        let ports = described.parts(field).ok_or("a description of ports")?;
        let described_names: Vec<&str> = ports.iter().filter_map(|port| port.text(1)).collect();
        if described_names != names {
            return Err(format!("ports {described_names:?} are described: expected {names:?}"));
        }
        for (port, name) in ports.iter().zip(names) {
            let (kind, shape) = &self.values[name];
            let array = port.part(3).and_then(|ty| ty.part(5)).ok_or(format!("{name}: no array is described"))?;
            if array.number(2) != Some(kind.of_port()) || *kind == MilKind::Bool {
                return Err(format!("{name}: another element type is described"));
            }
            let sizes = array.bytes(1).and_then(varints).unwrap_or_default();
            if field == 1 && !fits(&sizes, &array, shape) {
                return Err(format!("{name}: sizes {sizes:?} and their range do not describe {shape:?}"));
            }
        }
        Ok(())
    }
}

/// Returns whether an input's default sizes, and their range where a dimension is dynamic, match a shape.
fn fits(sizes: &[u64], array: &Part<'_>, shape: &[Dim]) -> bool {
    let ranges = array.part(31).and_then(|range| range.parts(1)).unwrap_or_default();
    let is_open = shape.iter().any(|dim| dim.is_open());
    if sizes.len() != shape.len() || ranges.len() != if is_open { shape.len() } else { 0 } {
        return false;
    }
    let within = |(range, size): (&Part<'_>, &u64)| {
        let low = range.number(1);
        let high = range.number(2);
        low.is_some_and(|low| 0 < low && low <= *size) && high.is_some_and(|high| *size <= high)
    };
    let fixed = sizes.iter().zip(shape).all(|(size, dim)| dim.fixed().is_none_or(|fixed| fixed == *size));
    fixed && ranges.iter().zip(sizes).all(within)
}

/// Reads element type and shape; an unknown size stands for the batch.
fn read_type(ty: &Part<'_>) -> Option<(MilKind, Vec<Dim>)> {
    let tensor = ty.part(1)?;
    let size = |dim: Part<'_>| match dim.part(1) {
        Some(constant) => constant.number(1).map(Dim::Fixed),
        None => dim.all(2).next().map(|_| Dim::BATCH),
    };
    let shape: Vec<Dim> = tensor.parts(3)?.into_iter().map(size).collect::<Option<_>>()?;
    let count =
        shape.iter().try_fold(1_u64, |count, dim| count.checked_mul(dim.of(1)).filter(|count| *count <= ELEMENTS_MAX));
    let is_rank = tensor.number(2)? == shape.len() as u64 && shape.len() <= RANK_MAX;
    (is_rank && count.is_some()).then_some((MilKind::numbered(tensor.number(1)?)?, shape))
}
