//! Our own CUDA kernels, compiled at run time by NVRTC for the present device and launched on libtorch's current stream.
//!
//! One Rust file per family, beside one file of CUDA C++ in `src/`. A function here takes tensors and returns tensors; it
//! fails where its kernel is not written for the operands, or cannot be launched. The choice between kernels is made elsewhere.
//!
//! **Invariant:** no launch waits for the device or allocates but through libtorch, so that every launch can be captured
//! in a graph once its module is loaded; results do not depend on the order in which blocks run.

pub mod adamw;
pub mod attention;
pub mod cache;
mod call;
mod check;
pub mod cross_entropy;
pub mod dropout;
mod engine;
mod error;
pub mod gated;
pub mod gated_norm;
pub(in crate::backend) mod graph_stream;
pub mod norm;
pub mod quantize;
mod result;
pub mod retention;
pub mod retention_decay;
pub(in crate::backend) mod safe;
mod source;
pub(in crate::backend) mod sum;

pub use engine::{compile, is_present};
pub use error::{BuildError, CudaError};
pub(in crate::backend) use safe as driver;
pub use source::{Element, Source, Variant};

/// Returns variants of every source for every element type that cover all of its loops, for a test that compiles them.
pub fn examples() -> Vec<Variant> {
    let numbers: [(&'static Source, &'static [&'static [u32]]); 10] = [
        (&adamw::SOURCE, &[&[1, 0], &[4, 1]]),
        (&attention::SOURCE, &[&[20, 1, 0, 0], &[32, 4, 1, 1]]),
        (&cross_entropy::SOURCE, &[&[32, 1], &[1024, 4]]),
        (&dropout::SOURCE, &[&[0], &[1]]),
        (&gated::SOURCE, &[&[1], &[4]]),
        (
            &norm::SOURCE,
            &[&[33, 32, 1, 0, 1, 0], &[512, 32, 4, 1, 2, 1], &[16384, 1024, 4, 1, 0, 0], &[33, 32, 1, 0, 0, 1]],
        ),
        (&quantize::SOURCE, &[&[1, 0], &[4, 1]]),
        (&retention::SOURCE, &[&[]]),
        (&retention_decay::SOURCE, &[&[]]),
        (&sum::SOURCE, &[&[4, 0, 0], &[1, 1, 1], &[1, 2, 2], &[1, 5, 0], &[1, 6, 0], &[1, 7, 2]]),
    ];
    let elements = [Element::F32, Element::Bf16, Element::F16];
    let of = |(source, all): (&'static Source, &'static [&'static [u32]])| {
        all.iter().flat_map(move |numbers| elements.map(|element| Variant::new(source, element, numbers)))
    };
    numbers.into_iter().flat_map(of).collect()
}
