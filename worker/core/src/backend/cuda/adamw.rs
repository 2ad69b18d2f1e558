//! Optimizer kernels over many flat arrays at once: AdamW, the scalars of its step, the norm of all gradients, the
//! average of the weights, and clearing. No result is read back to the host.

use super::call::{KernelCall, grid};
use super::check::{Check, PACK_BYTES, ceil};
use super::error::CudaError;
use super::result::LaunchGrid;
use super::source::{Element, Source, Variant};
use tch::{Device, Kind, Tensor};

pub(super) static SOURCE: Source =
    Source { name: "adamw", text: include_str!("src/adamw.cu"), numbers: &["VEC", "HALF_SHADOW"], shared_bytes_max: 0 };

const THREADS: u32 = 256;
/// Elements per block; the source's PER_BLOCK.
const PER_BLOCK: i64 = 4096;
/// Most arrays of one launch; the source's ARRAYS_MAX.
const ARRAYS_MAX: usize = 56;
/// 64-bit words of an array's entry in the table.
const ARRAY_WORDS: usize = 9;
/// Pointers among the words of an entry: weights, two moments, gradient, low-precision copy, average.
const POINTERS: usize = 6;
/// Elements per vector load.
const PACK: i64 = 4;
/// Scalars of a step, see [`step_scalars`].
const NUMBERS: i64 = 6;

/// One flat array of weights with its gradient and moments.
#[derive(Debug, Clone, Copy)]
pub struct FlatArray<'a> {
    /// Master weights, f32; written.
    pub p: &'a Tensor,
    /// First moment, f32; written.
    pub m: &'a Tensor,
    /// Second moment, f32; written.
    pub v: &'a Tensor,
    /// Gradient: f32, bf16 or f16, the same for all arrays.
    pub grad: &'a Tensor,
    /// Low-precision copy of the weights, written: bf16 or f16, the same for all arrays.
    pub shadow: Option<&'a Tensor>,
    /// Moving average of the weights, f32; written.
    pub average: Option<&'a Tensor>,
    /// Whether weight decay applies.
    pub decays: bool,
}

#[derive(Debug, Clone, Copy)]
pub struct Constants {
    pub betas: (f64, f64),
    /// Weight decay of the arrays that decay.
    pub decay: f64,
    /// Global-norm clip; 0 switches it off.
    pub clip: f64,
}

struct LaunchTable {
    words: Vec<u64>,
    arrays: usize,
    blocks: i64,
}

impl LaunchTable {
    fn new() -> Self {
        Self { words: vec![0; 2], arrays: 0, blocks: 0 }
    }

    fn add(&mut self, pointers: [Option<&Tensor>; POINTERS], count: i64, decays: bool) {
        self.words.extend(pointers.map(|tensor| tensor.map_or(0, |tensor| tensor.data_ptr() as u64)));
        self.words.extend([count.cast_unsigned(), u64::from(decays), self.blocks.cast_unsigned()]);
        self.arrays += 1;
        self.blocks += ceil(count, PER_BLOCK);
    }

    fn grid(&self) -> LaunchGrid {
        grid(u32::try_from(self.blocks).unwrap_or(u32::MAX), THREADS)
    }

    /// Returns the words of the kernel's parameter, always of the full table's size.
    fn finish(&self) -> Vec<u64> {
        let mut words = self.words.clone();
        words[0] = self.arrays as u64;
        words[1] = self.blocks.cast_unsigned();
        words.resize(2 + ARRAYS_MAX * ARRAY_WORDS, 0);
        words
    }
}

/// Whether all of `tensors`, of `count` elements each, allow vector loads of four elements.
fn packs(tensors: [Option<&Tensor>; POINTERS], count: i64) -> bool {
    let fits = |tensor: &Tensor| {
        let bytes = PACK * Element::of(tensor.kind()).map_or(PACK_BYTES, Element::bytes);
        tensor.data_ptr() as i64 % bytes.min(PACK_BYTES) == 0
    };
    count % PACK == 0 && tensors.into_iter().flatten().all(fits)
}

/// Pointers, number of elements, and whether weight decay applies.
type TableEntry<'a> = ([Option<&'a Tensor>; POINTERS], i64, bool);

/// Returns an entry with only a gradient for each of `arrays`, which are all of the kind of `first`.
fn plain_entries<'a>(
    check: Check,
    name: &'static str,
    arrays: &[&'a Tensor],
    first: &Tensor,
) -> Result<Vec<TableEntry<'a>>, CudaError> {
    let entry = |array: &&'a Tensor| {
        let count = array.numel() as i64;
        check.numbers(name, array, first.kind(), count, first)?;
        Ok(([None, None, None, Some(*array), None, None], count, false))
    };
    arrays.iter().map(entry).collect()
}

/// Builds the tables for arrays of one gradient kind: first those with vector loads, then the others, in order.
fn tables(arrays: &[TableEntry<'_>]) -> Vec<(u32, LaunchTable)> {
    let mut tables: Vec<(u32, LaunchTable)> = Vec::new();
    for packed in [true, false] {
        let vec = if packed { PACK as u32 } else { 1 };
        for (pointers, count, decays) in arrays.iter().filter(|(p, n, _)| *n > 0 && packs(*p, *n) == packed) {
            if tables.last().is_none_or(|(v, table)| *v != vec || table.arrays == ARRAYS_MAX) {
                tables.push((vec, LaunchTable::new()));
            }
            if let Some((_, table)) = tables.last_mut() {
                table.add(*pointers, *count, *decays);
            }
        }
    }
    tables
}

/// Norm of the summed gradient, what to divide it by, learning rate, steps (written), refused steps (written), all f64 of
/// 0 axes → the six numbers of `op::optim`, the norm of the mean gradient, and 1 if the step is taken.
pub fn step_scalars(ins: [&Tensor; 5], constants: &Constants) -> Result<[Tensor; 3], CudaError> {
    let check = Check { kernel: "step_scalars" };
    check.device("norm", ins[0])?;
    for (name, scalar) in ["norm", "count", "rate", "steps", "skipped"].into_iter().zip(ins) {
        check.numbers(name, scalar, Kind::Double, 1, ins[0])?;
    }
    let device = ins[0].device();
    let scalar = || Tensor::f_empty([0_i64; 0], (Kind::Double, device));
    let numbers = Tensor::f_empty([NUMBERS], (Kind::Float, device))?;
    let mean = scalar()?;
    let taken = scalar()?;
    let (b1, b2) = constants.betas;
    let settings = [b1, b2, constants.decay, constants.clip].map(f64::to_bits);
    let variant = Variant::new(&SOURCE, Element::F32, &[1]);
    let call = ins.into_iter().fold(KernelCall::new(&variant, "step_scalars"), KernelCall::tensor);
    call.tensor(&numbers).tensor(&mean).tensor(&taken).structure(&settings).launch(ins[0], grid(1, 1))?;
    Ok([numbers, mean, taken])
}

/// Runs one step over all arrays with the six scalars of `op::optim`; averages move by `share`. A refused step writes nothing.
pub fn adamw(arrays: &[FlatArray<'_>], numbers: &Tensor, share: Option<&Tensor>, eps: f64) -> Result<(), CudaError> {
    let check = Check { kernel: "adamw" };
    let Some(first) = arrays.first() else { return Ok(()) };
    let element = check.element("grad", first.grad)?;
    check.device("p", first.p)?;
    let copies = arrays.iter().find_map(|array| array.shadow).map_or(Kind::BFloat16, Tensor::kind);
    let mut entries = Vec::with_capacity(arrays.len());
    for array in arrays {
        let count = array.p.numel() as i64;
        for (name, tensor) in [("p", array.p), ("m", array.m), ("v", array.v)] {
            check.numbers(name, tensor, Kind::Float, count, first.p)?;
        }
        check.numbers("grad", array.grad, first.grad.kind(), count, first.p)?;
        if let Some(shadow) = array.shadow {
            let low = matches!(copies, Kind::BFloat16 | Kind::Half);
            check.that(low, "shadow", shadow, "bf16 or f16")?;
            check.numbers("shadow", shadow, copies, count, first.p)?;
        }
        if let Some(average) = array.average {
            check.numbers("average", average, Kind::Float, count, first.p)?;
        }
        let pointers = [Some(array.p), Some(array.m), Some(array.v), Some(array.grad), array.shadow, array.average];
        entries.push((pointers, count, array.decays));
    }
    check.numbers("numbers", numbers, Kind::Float, NUMBERS, first.p)?;
    // The kernel does not read the share without averages.
    let share = share.unwrap_or(numbers);
    check.that(share.kind() == Kind::Float, "share", share, "f32")?;
    let tables = tables(&entries);
    let variant = |vec: u32| Variant::new(&SOURCE, element, &[vec, u32::from(copies == Kind::Half)]);
    for (vec, _) in &tables {
        KernelCall::new(&variant(*vec), "adamw").make_ready(first.p)?;
    }
    for (vec, table) in tables {
        let variant = variant(vec);
        let call = KernelCall::new(&variant, "adamw").structure(&table.finish()).tensor(numbers).tensor(share);
        call.float(eps).launch(first.p, table.grid())?;
    }
    Ok(())
}

/// Returns the joint norm of all gradients, combined with the known norm `before`; f64 of 0 axes; not finite if an element is not.
pub fn norm(before: Option<&Tensor>, grads: &[&Tensor]) -> Result<Tensor, CudaError> {
    let check = Check { kernel: "global_norm" };
    let Some(first) = grads.first() else {
        return Ok(Tensor::f_zeros([0_i64; 0], (Kind::Double, Device::Cpu))?);
    };
    let element = check.element("grad", first)?;
    let device = first.device();
    check.device("grad", first)?;
    if let Some(before) = before {
        check.numbers("before", before, Kind::Double, 1, first)?;
    }
    let tables = tables(&plain_entries(check, "grad", grads, first)?);
    let total: i64 = tables.iter().map(|(_, table)| table.blocks).sum();
    let partial = Tensor::f_empty([total], (Kind::Double, device))?;
    let mut done = 0;
    for (vec, table) in &tables {
        let variant = Variant::new(&SOURCE, element, &[*vec]);
        let part = partial.f_narrow(0, done, table.blocks)?;
        let call = KernelCall::new(&variant, "squares").structure(&table.finish()).tensor(&part);
        call.launch(first, table.grid())?;
        done += table.blocks;
    }
    let norm = Tensor::f_empty([0_i64; 0], (Kind::Double, device))?;
    let variant = Variant::new(&SOURCE, element, &[1]);
    let call = KernelCall::new(&variant, "norm_of").tensor(&partial).int(total).maybe(before).tensor(&norm);
    call.launch(first, grid(1, THREADS))?;
    Ok(norm)
}

/// Counts an update in `updates` (f64 of 0 axes, written). Returns the share by which averages move, f32: 0 where `taken` (f64 of 0
/// axes) is not 1.
pub fn average_share(updates: &Tensor, taken: &Tensor, decay: f64) -> Result<Tensor, CudaError> {
    let check = Check { kernel: "average_share" };
    check.device("updates", updates)?;
    check.numbers("updates", updates, Kind::Double, 1, updates)?;
    check.numbers("taken", taken, Kind::Double, 1, updates)?;
    let share = Tensor::f_empty([1], (Kind::Float, updates.device()))?;
    let variant = Variant::new(&SOURCE, Element::F32, &[1]);
    let call = KernelCall::new(&variant, "average_share").tensor(updates).tensor(taken).tensor(&share);
    call.structure(&[decay.to_bits()]).launch(updates, grid(1, 1))?;
    Ok(share)
}

/// Moves each average (written) towards its weights by a share; all f32.
pub fn average(pairs: &[[&Tensor; 2]], share: &Tensor) -> Result<(), CudaError> {
    let check = Check { kernel: "average" };
    check.device("share", share)?;
    let mut entries = Vec::with_capacity(pairs.len());
    for [average, weights] in pairs {
        let count = average.numel() as i64;
        check.numbers("average", average, Kind::Float, count, share)?;
        check.numbers("weights", weights, Kind::Float, count, share)?;
        entries.push(([Some(*average), Some(*weights), None, None, None, None], count, false));
    }
    let tables = tables(&entries);
    for (vec, _) in &tables {
        KernelCall::new(&Variant::new(&SOURCE, Element::F32, &[*vec]), "average").make_ready(share)?;
    }
    for (vec, table) in tables {
        let variant = Variant::new(&SOURCE, Element::F32, &[vec]);
        KernelCall::new(&variant, "average").structure(&table.finish()).tensor(share).launch(share, table.grid())?;
    }
    Ok(())
}

/// Sets every element of `arrays`, of one kind, to 0.
pub fn zero(arrays: &[&Tensor]) -> Result<(), CudaError> {
    let check = Check { kernel: "zero" };
    let Some(first) = arrays.first() else { return Ok(()) };
    let element = check.element("array", first)?;
    check.device("array", first)?;
    for (vec, table) in tables(&plain_entries(check, "array", arrays, first)?) {
        let variant = Variant::new(&SOURCE, element, &[vec]);
        KernelCall::new(&variant, "zero").structure(&table.finish()).launch(first, table.grid())?;
    }
    Ok(())
}
