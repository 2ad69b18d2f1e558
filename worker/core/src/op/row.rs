//! One row of the table of operations: everything the rest of the worker asks about an operation.
//!
//! An operation's file writes its row in terms of its own attributes, `OpRow<Softmax>`. The table holds the row in terms of [`Op`]:
//! [`any`] makes the one of the other, with one look at the variant before a rule is called.
//!
//! Tests loop over the rows, so that a new operation cannot forget its gradient check, shape rule or export answer.

use super::Op;
use super::collective::Collectives;
use super::infer::Inferred;
use super::lower::{Lower, LowerError, Lowered, Unsupported};
use super::sample::{Sample, SampleRng};
use super::value::Meta;
use super::vjp::{Grads, Vjp};
use crate::backend::Outs;
use crate::error::{OpError, OpErrorKind};
use std::fmt;

/// Operands of one launch.
pub struct Launch<'a> {
    /// Tensors in the operation's order.
    pub ins: &'a [&'a tch::Tensor],
}

impl Launch<'_> {
    /// Returns operand `i`.
    pub fn at(&self, i: usize) -> &tch::Tensor {
        self.ins[i]
    }
}

pub type Launched = Result<Outs, OpErrorKind>;

/// Whether a kernel takes the operands; if not, the reason.
pub type Fit = Result<(), &'static str>;

/// A function that emits the plain operations of an operation.
pub type Lowering<A = Op> = fn(&A, &mut Lower<'_>) -> Lowered;

/// How an operation is exported.
#[derive(Debug)]
pub enum Export<A = Op> {
    /// The operation is lowered to plain operations.
    As(Lowering<A>),
    /// The operation cannot be exported.
    No(Unsupported),
}

impl<A> Clone for Export<A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A> Copy for Export<A> {}

impl<A> Export<A> {
    /// Creates the answer for an operation that cannot be exported: the reason, and the nearest operation that can be.
    pub const fn no(why: &'static str, instead: &'static str) -> Self {
        Self::No(Unsupported { why, instead })
    }
}

/// Bit sets of operands and results the reverse rule reads.
#[derive(Debug, Clone, Copy, Default)]
pub struct Save {
    /// Bit i: operand i.
    pub ins: u16,
    /// Bit i: result i.
    pub outs: u16,
}

impl Save {
    /// Whether operand `i` is kept; none behind the sixteenth is.
    pub fn operand(self, i: usize) -> bool {
        i < u16::BITS as usize && self.ins >> i & 1 == 1
    }

    /// Whether result `i` is kept; none behind the sixteenth is.
    pub fn result(self, i: usize) -> bool {
        i < u16::BITS as usize && self.outs >> i & 1 == 1
    }
}

/// A reverse rule: emits the operations of the backward pass and returns one gradient per operand.
pub type VjpRule<A = Op> = fn(&A, &Vjp<'_>) -> Result<Grads, OpError>;

/// A function that begins a collective, or waits for those begun before.
pub type RunCollective<A = Op> = fn(&A, &Launch<'_>, &dyn Collectives) -> Result<(), OpErrorKind>;

/// Floating-point operations of one call: arithmetic, comparisons, choices and functions such as exp count one each, of a product its
/// multiplications and additions only; moving, casting and filling count nothing, nor does arithmetic of integers.
pub enum Flops<A = Op> {
    /// A number for each element of the first result.
    PerResult(u64),
    /// A number for each element of the first operand: for operations that fold numbers or have several results.
    PerOperand(u64),
    By(fn(&A, &[&Meta], &[Meta]) -> u64),
}

impl<A> Flops<A> {
    /// Returns the number for a call.
    pub fn of(&self, attributes: &A, ins: &[&Meta], outs: &[Meta]) -> u64 {
        match self {
            Self::PerResult(each) => outs.first().map_or(0, |meta| each * count(meta)),
            Self::PerOperand(each) => ins.first().map_or(0, |meta| each * count(meta)),
            Self::By(rule) => rule(attributes, ins, outs),
        }
    }
}

/// Number of elements of a tensor.
pub(super) fn count(meta: &Meta) -> u64 {
    meta.numel().max(0).cast_unsigned()
}

/// The least memory traffic of a call's operands; results are written once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traffic {
    /// Operands are read, and written where the operation writes them.
    Whole,
    /// Operands change their memory, but no number is read or written.
    Nothing,
    /// Written operands are not read before.
    Overwritten,
    /// Of the first operand no more is read than becomes results.
    Selected,
}

/// How autocast treats the floating-point operands of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Operands are cast to the low-precision kind: products, which accumulate in f32 internally.
    Low,
    /// Operands are not cast: the operation computes in f32 internally for every kind, and its sums are f32.
    Inside,
    /// The first operand and the weights are cast as with `Full`. Results of products (the added branch, the factors of a gate) and the
    /// norm stay in the low kind.
    Stream,
    /// Operands below f32 are cast to f32: statistics, long sums, exponentials and logarithms, losses, scans with decays near 1.
    Full,
    /// Operands are cast to the widest kind among them: arithmetic of two operands, concatenations.
    Widest,
    /// Operands are not cast: views, copies, selections, functions of one operand with results of similar magnitude. Operations that
    /// reverse rules, autocast or the optimizer emit are never cast.
    Pass,
}

/// How far a kernel's results may lie from the plain reference's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tolerance {
    /// Results are equal bit by bit.
    Exact,
    /// Rounding of the results' kind.
    Rounding,
    /// Results differ by the rounding of a long sum in their kind.
    Reduction,
    /// A long sum of products of 8-bit numbers, which the hardware keeps in about 14 bits whatever the results' kind.
    EightBits,
}

/// A faster way to run an operation than its row's plain reference.
pub struct Kernel<A: 'static = Op> {
    /// Stable name, e.g. `cuda.retention`; the reference is `plain`.
    pub id: &'static str,
    /// Whether it takes these operands, judged from what is known of them without looking at a device; if not, why.
    pub fits: fn(&A, &Launch<'_>) -> Fit,
    pub launch: fn(&A, &Launch<'_>) -> Launched,
    /// How exact it is.
    pub tolerance: Tolerance,
    /// Whether equal operands give equal bits.
    pub deterministic: bool,
}

impl<A> Kernel<A> {
    /// Creates a deterministic kernel that sums in its own order.
    pub const fn new(
        id: &'static str,
        fits: fn(&A, &Launch<'_>) -> Fit,
        launch: fn(&A, &Launch<'_>) -> Launched,
    ) -> Self {
        Self { id, fits, launch, tolerance: Tolerance::Reduction, deterministic: true }
    }

    /// Declares that equal operands may give results that differ in bits.
    pub const fn unordered(mut self) -> Self {
        self.deterministic = false;
        self
    }

    /// Declares that results are those of the plain reference, bit by bit.
    pub const fn exact(mut self) -> Self {
        self.tolerance = Tolerance::Exact;
        self
    }
}

/// Name of the row's own launch.
pub const PLAIN: &str = "plain";

/// Row of one operation in the table. Its functions take the operation's attributes.
pub struct OpRow<A: 'static = Op> {
    /// Stable name of the operation.
    pub name: &'static str,
    /// Metas of the results from those of the operands.
    pub shape: fn(&A, &[&Meta]) -> Inferred,
    /// Runs it through libtorch: the plain reference, which takes everything the shape rule takes.
    pub launch: fn(&A, &Launch<'_>) -> Launched,
    /// Faster ways, the preferred first.
    pub kernels: &'static [Kernel<A>],
    /// Operands and results that the reverse rule reads.
    pub save: Save,
    /// The reverse rule; `None` for operations of the backward pass and the optimizer.
    pub vjp: Option<VjpRule<A>>,
    /// Results a reverse rule may receive gradients for, as far as they are floating-point numbers; the rest are saved intermediates.
    pub differentiable: fn(&A) -> usize,
    /// Whether operand `i` is written in place.
    pub writes: fn(&A, usize) -> bool,
    /// Whether the results share the first operand's memory. A reshape counts as a view, although it may copy.
    pub is_view: bool,
    /// Whether it is a product, which is worth several threads however few numbers its operands have.
    pub is_product: bool,
    /// The function that runs a collective, in place of `launch`.
    pub collective: Option<RunCollective<A>>,
    /// How autocast treats the operands.
    pub class: Class,
    /// Number of floating-point operations of a call.
    pub flops: Flops<A>,
    pub traffic: Traffic,
    pub export: Export<A>,
    /// Example calls for the tests.
    pub samples: fn(&mut SampleRng) -> Vec<Sample>,
}

/// Makes methods of a row that set one field each.
macro_rules! setters {
    ($($(#[$doc:meta])* $field:ident: $type:ty;)+) => {
        $($(#[$doc])*
        pub const fn $field(self, $field: $type) -> Self {
            Self { $field, ..self }
        })+
    };
}

impl<A> OpRow<A> {
    /// A row without reverse rule or samples: an operation of the backward pass.
    pub const fn backward(
        name: &'static str,
        shape: fn(&A, &[&Meta]) -> Inferred,
        launch: fn(&A, &Launch<'_>) -> Launched,
    ) -> Self {
        Self {
            name,
            shape,
            launch,
            kernels: &[],
            save: Save { ins: 0, outs: 0 },
            vjp: None,
            differentiable: |_| 1,
            writes: |_, _| false,
            is_view: false,
            is_product: false,
            collective: None,
            class: Class::Pass,
            flops: Flops::PerResult(1),
            traffic: Traffic::Whole,
            export: Export::no(
                "part of training, not of the forward pass",
                "a forward pass is made of functions that read no gradients; those are the tape's",
            ),
            samples: |_| Vec::new(),
        }
    }

    /// Creates the row of a differentiable operation.
    pub const fn forward(
        name: &'static str,
        shape: fn(&A, &[&Meta]) -> Inferred,
        launch: fn(&A, &Launch<'_>) -> Launched,
        vjp: VjpRule<A>,
        samples: fn(&mut SampleRng) -> Vec<Sample>,
    ) -> Self {
        Self { vjp: Some(vjp), samples, ..Self::backward(name, shape, launch) }
    }

    setters! {
        samples: fn(&mut SampleRng) -> Vec<Sample>;
        differentiable: fn(&A) -> usize;
        writes: fn(&A, usize) -> bool;
        class: Class;
        kernels: &'static [Kernel<A>];
        traffic: Traffic;
        export: Export<A>;
    }

    /// Sets the operands and results that the reverse rule reads, as bit sets.
    pub const fn saves(self, ins: u16, outs: u16) -> Self {
        Self { save: Save { ins, outs }, ..self }
    }

    /// Declares that the results share the first operand's memory.
    pub const fn view(self) -> Self {
        Self { is_view: true, ..self }
    }

    /// Declares a product of matrices.
    pub const fn product(self) -> Self {
        Self { is_product: true, ..self }
    }

    /// Sets what the ranks do together.
    pub const fn collective(self, run: RunCollective<A>) -> Self {
        Self { collective: Some(run), ..self }
    }

    /// Sets the cost by a rule.
    pub const fn flops(self, rule: fn(&A, &[&Meta], &[Meta]) -> u64) -> Self {
        Self { flops: Flops::By(rule), ..self }
    }

    /// Sets the cost of each element of the first result.
    pub const fn per_result(self, flops: u64) -> Self {
        Self { flops: Flops::PerResult(flops), ..self }
    }

    /// Sets the cost of each element of the first operand.
    pub const fn per_operand(self, flops: u64) -> Self {
        Self { flops: Flops::PerOperand(flops), ..self }
    }

    /// Declares that it computes nothing: it moves numbers or fills tensors.
    pub const fn free(self) -> Self {
        self.per_result(0)
    }

    /// Sets the function that lowers the operation to plain operations.
    pub const fn lowers(self, lowering: Lowering<A>) -> Self {
        self.export(Export::As(lowering))
    }
}

/// The attributes of an operation, with its row.
pub trait Operation: fmt::Debug + Sized + 'static {
    /// The row; of functions that share an attribute type, the first one's.
    const ROW: OpRow<Self>;
    /// The rows of functions that share an attribute type.
    const ROWS: &'static [OpRow<Self>] = &[Self::ROW];

    /// Returns the position in [`Operation::ROWS`].
    fn row_index(&self) -> usize {
        0
    }

    /// Writes the operation as programs are printed.
    fn print(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// An operation of the table; `operations!` implements it.
pub trait Variant: Operation {
    /// Returns the attributes of an operation of this variant.
    ///
    /// # Panics
    /// When the operation is of another variant. Rows call this, and each has its own variant.
    fn of(op: &Op) -> &Self;

    /// Returns the variant's rows in the table.
    fn rows() -> &'static [OpRow];
}

/// Most kernels of a row.
const KERNELS_MAX: usize = 6;

/// The kernels of a row, in terms of [`Op`].
struct AnyKernels<A>(std::marker::PhantomData<A>);

impl<A: Variant> AnyKernels<A> {
    const COUNT: usize = A::ROW.kernels.len();
    const ALL: &'static [Kernel; KERNELS_MAX] = &[
        Self::kernel::<0>(),
        Self::kernel::<1>(),
        Self::kernel::<2>(),
        Self::kernel::<3>(),
        Self::kernel::<4>(),
        Self::kernel::<5>(),
    ];

    /// Kernel `I`; one behind the last is never read.
    const fn kernel<const I: usize>() -> Kernel {
        if I >= Self::COUNT {
            return Kernel::new(PLAIN, |_, _| Err("no kernel"), |op, l| (op.row().launch)(op, l));
        }
        let kernel = &A::ROW.kernels[I];
        Kernel {
            id: kernel.id,
            fits: |op, l| (A::ROW.kernels[I].fits)(A::of(op), l),
            launch: |op, l| (A::ROW.kernels[I].launch)(A::of(op), l),
            tolerance: kernel.tolerance,
            deterministic: kernel.deterministic,
        }
    }
}

/// Returns the rows of a variant in terms of [`Op`].
pub const fn any_rows<A: Variant, const N: usize>() -> [OpRow; N] {
    let mut rows = [const { any::<A>(0) }; N];
    let mut i = 1;
    while i < N {
        rows[i] = any::<A>(i);
        i += 1;
    }
    rows
}

/// Returns a row of a variant in terms of [`Op`].
const fn any<A: Variant>(i: usize) -> OpRow {
    let row = &A::ROWS[i];
    assert!(AnyKernels::<A>::COUNT <= KERNELS_MAX, "a row has more kernels than KERNELS_MAX");
    OpRow {
        name: row.name,
        shape: |op, ins| (typed(A::of(op)).shape)(A::of(op), ins),
        launch: |op, l| (typed(A::of(op)).launch)(A::of(op), l),
        kernels: AnyKernels::<A>::ALL.split_at(AnyKernels::<A>::COUNT).0,
        save: row.save,
        vjp: if row.vjp.is_some() { Some(reverse::<A>) } else { None },
        differentiable: |op| (typed(A::of(op)).differentiable)(A::of(op)),
        writes: |op, i| (typed(A::of(op)).writes)(A::of(op), i),
        is_view: row.is_view,
        is_product: row.is_product,
        collective: if row.collective.is_some() { Some(run_together::<A>) } else { None },
        class: row.class,
        flops: match row.flops {
            Flops::PerResult(each) => Flops::PerResult(each),
            Flops::PerOperand(each) => Flops::PerOperand(each),
            Flops::By(_) => Flops::By(|op, ins, outs| typed(A::of(op)).flops.of(A::of(op), ins, outs)),
        },
        traffic: row.traffic,
        export: match row.export {
            Export::As(_) => Export::As(lower::<A>),
            Export::No(no) => Export::No(no),
        },
        samples: row.samples,
    }
}

fn typed<A: Variant>(attributes: &A) -> &'static OpRow<A> {
    &A::ROWS[attributes.row_index()]
}

fn reverse<A: Variant>(op: &Op, v: &Vjp<'_>) -> Result<Grads, OpError> {
    let attributes = A::of(op);
    let rule = typed(attributes).vjp.ok_or_else(|| v.fail(OpErrorKind::NotDifferentiable))?;
    rule(attributes, v)
}

fn run_together<A: Variant>(op: &Op, l: &Launch<'_>, collectives: &dyn Collectives) -> Result<(), OpErrorKind> {
    let attributes = A::of(op);
    let run = typed(attributes).collective.ok_or(OpErrorKind::NoCollectives)?;
    run(attributes, l, collectives)
}

fn lower<A: Variant>(op: &Op, l: &mut Lower<'_>) -> Lowered {
    let attributes = A::of(op);
    match typed(attributes).export {
        Export::As(lowering) => lowering(attributes, l),
        Export::No(no) => Err(LowerError::No(no)),
    }
}
