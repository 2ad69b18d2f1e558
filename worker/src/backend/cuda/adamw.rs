//! AdamW over many flat arrays, and the norm of many gradients with a look for what is not finite. Nothing is read back.

use super::call::{Call, grid};
use super::check::{Check, PACK_BYTES};
use super::error::CudaError;
use super::source::{Element, Source, Variant};
use tch::{Device, Kind, Tensor};

static SOURCE: Source =
    Source { name: "adamw", text: include_str!("src/adamw.cu"), numbers: &["VEC"], shared_bytes_max: 0 };

const THREADS: u32 = 256;
/// Elements a block takes; the source's PER_BLOCK.
const PER_BLOCK: i64 = 4096;
/// Arrays of one launch; the source's ARRAYS_MAX.
const ARRAYS_MAX: usize = 56;
/// 64-bit words of an array's entry in the table.
const ARRAY_WORDS: usize = 8;
/// Elements of a pack.
const PACK: i64 = 4;
/// Floats `step_numbers` makes.
const NUMBERS: i64 = 8;

/// One flat array of weights with its gradient and moments.
#[derive(Debug, Clone, Copy)]
pub struct Array<'a> {
    /// Master weights, f32; written.
    pub p: &'a Tensor,
    /// First moment, f32; written.
    pub m: &'a Tensor,
    /// Second moment, f32; written.
    pub v: &'a Tensor,
    /// Gradient: f32, bf16 or f16, the same for all arrays.
    pub grad: &'a Tensor,
    /// Receives the weights in bf16.
    pub shadow: Option<&'a Tensor>,
    /// Whether the weights decay.
    pub decays: bool,
}

/// Numbers of the step: 0-dimensional f32 or f64 on the device.
#[derive(Debug, Clone, Copy)]
pub struct Scalars<'a> {
    /// Steps, this one counted.
    pub step: &'a Tensor,
    /// Learning rate.
    pub lr: &'a Tensor,
    /// Multiplies the gradient.
    pub factor: Option<&'a Tensor>,
    /// Not 0: nothing is written.
    pub skip: Option<&'a Tensor>,
}

/// Constants of the optimizer.
#[derive(Debug, Clone, Copy)]
pub struct Constants {
    /// β₁, β₂.
    pub betas: (f64, f64),
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decay of the arrays that decay.
    pub decay: f64,
}

/// One launch's table in the making.
struct Table {
    words: Vec<u64>,
    arrays: usize,
    blocks: i64,
}

impl Table {
    fn new() -> Self {
        Self { words: vec![0; 2], arrays: 0, blocks: 0 }
    }

    fn add(&mut self, pointers: [Option<&Tensor>; 5], count: i64, decays: bool) {
        self.words.extend(pointers.map(|tensor| tensor.map_or(0, |tensor| tensor.data_ptr() as u64)));
        self.words.extend([count.cast_unsigned(), u64::from(decays), self.blocks.cast_unsigned()]);
        self.arrays += 1;
        self.blocks += count.div_ceil(PER_BLOCK);
    }

    /// The bytes of the kernel's parameter: always the whole table.
    fn finish(&self) -> Vec<u64> {
        let mut words = self.words.clone();
        (words[0], words[1]) = (self.arrays as u64, self.blocks.cast_unsigned());
        words.resize(2 + ARRAYS_MAX * ARRAY_WORDS, 0);
        words
    }
}

/// Whether all of `tensors`, of `count` elements, can be taken four elements at a time.
fn packs(tensors: [Option<&Tensor>; 5], count: i64) -> bool {
    let fits = |tensor: &Tensor| {
        let bytes = PACK * Element::of(tensor.kind()).map_or(PACK_BYTES, Element::bytes);
        tensor.data_ptr() as i64 % bytes.min(PACK_BYTES) == 0
    };
    count % PACK == 0 && tensors.into_iter().flatten().all(fits)
}

/// Tables for arrays of one kind of gradient: those that can be packed, then the others, in order.
fn tables(arrays: &[([Option<&Tensor>; 5], i64, bool)]) -> Vec<(u32, Table)> {
    let mut tables: Vec<(u32, Table)> = Vec::new();
    for packed in [true, false] {
        let vec = if packed { PACK as u32 } else { 1 };
        for (pointers, count, decays) in arrays.iter().filter(|(p, n, _)| *n > 0 && packs(*p, *n) == packed) {
            if tables.last().is_none_or(|(v, table)| *v != vec || table.arrays == ARRAYS_MAX) {
                tables.push((vec, Table::new()));
            }
            if let Some((_, table)) = tables.last_mut() {
                table.add(*pointers, *count, *decays);
            }
        }
    }
    tables
}

/// f32 as 0, f64 as 1; anything else is refused.
fn is_wide(check: Check, operand: &'static str, scalar: &Tensor, like: &Tensor) -> Result<u32, CudaError> {
    let wide = scalar.kind() == Kind::Double;
    check.numbers(operand, scalar, if wide { Kind::Double } else { Kind::Float }, 1, like)?;
    Ok(wide.into())
}

fn numbers(check: Check, like: &Tensor, s: &Scalars<'_>, constants: &Constants) -> Result<Tensor, CudaError> {
    let mut kinds = is_wide(check, "step", s.step, like)? | is_wide(check, "lr", s.lr, like)? << 1;
    if let Some(factor) = s.factor {
        kinds |= is_wide(check, "factor", factor, like)? << 2;
    }
    if let Some(skip) = s.skip {
        kinds |= is_wide(check, "skip", skip, like)? << 3;
    }
    let out = Tensor::f_empty([NUMBERS], (Kind::Float, like.device()))?;
    let (b1, b2) = constants.betas;
    let settings = [b1, b2, constants.eps, constants.decay].map(f64::to_bits);
    let variant = Variant::new(&SOURCE, Element::F32, &[1]);
    let call = Call::new(&variant, "step_numbers").tensor(s.step).tensor(s.lr).maybe(s.factor).maybe(s.skip);
    call.tensor(&out).structure(&settings).word(kinds).launch(like, grid(1, 1))?;
    Ok(out)
}

/// One step over all arrays. With `keep_gradient`, gradients come back multiplied by the factor.
///
/// # Errors
/// When the kernel is not written for the operands, or is not launched.
pub fn adamw(
    arrays: &[Array<'_>],
    scalars: &Scalars<'_>,
    constants: &Constants,
    keep_gradient: bool,
) -> Result<(), CudaError> {
    let check = Check { kernel: "adamw" };
    let Some(first) = arrays.first() else { return Ok(()) };
    let element = check.element("grad", first.grad)?;
    check.device("p", first.p)?;
    let mut entries = Vec::with_capacity(arrays.len());
    for array in arrays {
        let count = array.p.numel() as i64;
        for (name, tensor) in [("p", array.p), ("m", array.m), ("v", array.v)] {
            check.numbers(name, tensor, Kind::Float, count, first.p)?;
        }
        check.numbers("grad", array.grad, first.grad.kind(), count, first.p)?;
        if let Some(shadow) = array.shadow {
            check.numbers("shadow", shadow, Kind::BFloat16, count, first.p)?;
        }
        let pointers = [Some(array.p), Some(array.m), Some(array.v), Some(array.grad), array.shadow];
        entries.push((pointers, count, array.decays));
    }
    let numbers = numbers(check, first.p, scalars, constants)?;
    for (vec, table) in tables(&entries) {
        let variant = Variant::new(&SOURCE, element, &[vec]);
        let blocks = u32::try_from(table.blocks).unwrap_or(u32::MAX);
        let call = Call::new(&variant, "adamw").structure(&table.finish()).tensor(&numbers);
        call.word(u32::from(keep_gradient)).launch(first.p, grid(blocks, THREADS))?;
    }
    Ok(())
}

/// Norm of all gradients together (0-dimensional f64) and whether it is not finite (0-dimensional f32: 1 if so).
///
/// # Errors
/// As [`adamw`].
pub fn norm(grads: &[&Tensor]) -> Result<(Tensor, Tensor), CudaError> {
    let check = Check { kernel: "grad_norm" };
    let device = grads.first().map_or(Device::Cpu, |grad| grad.device());
    let Some(first) = grads.first() else {
        let zero = |kind| Tensor::f_zeros([0_i64; 0], (kind, device));
        return Ok((zero(Kind::Double)?, zero(Kind::Float)?));
    };
    let element = check.element("grad", first)?;
    check.device("grad", first)?;
    let mut entries = Vec::with_capacity(grads.len());
    for grad in grads {
        let count = grad.numel() as i64;
        check.numbers("grad", grad, first.kind(), count, first)?;
        entries.push(([None, None, None, Some(*grad), None], count, false));
    }
    let tables = tables(&entries);
    let total: i64 = tables.iter().map(|(_, table)| table.blocks).sum();
    let partial = Tensor::f_empty([total], (Kind::Double, device))?;
    let mut done = 0;
    for (vec, table) in &tables {
        let variant = Variant::new(&SOURCE, element, &[*vec]);
        let part = partial.f_narrow(0, done, table.blocks)?;
        let blocks = u32::try_from(table.blocks).unwrap_or(u32::MAX);
        Call::new(&variant, "squares").structure(&table.finish()).tensor(&part).launch(first, grid(blocks, THREADS))?;
        done += table.blocks;
    }
    let empty = |kind| Tensor::f_empty([0_i64; 0], (kind, device));
    let (norm, found) = (empty(Kind::Double)?, empty(Kind::Float)?);
    let variant = Variant::new(&SOURCE, element, &[1]);
    let call = Call::new(&variant, "norm_of").tensor(&partial).int(total).tensor(&norm).tensor(&found);
    call.launch(first, grid(1, THREADS))?;
    Ok((norm, found))
}
