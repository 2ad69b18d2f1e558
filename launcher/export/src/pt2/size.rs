//! Sizes in a program: numbers, and expressions of the one symbol that stands for the batch.

use crate::{ExportError, Model, model::open_axes, spelling::numbers};
use enn_common::graph::{Dim, GraphValue as Tensor, Id};
use serde_json::{Value, json};
use std::collections::HashSet;

const SYMBOL: &str = "s0";
/// Spelling of the symbol in expressions.
const SPELT: &str = "Symbol('s0', positive=True, integer=True)";
/// Size that traces use for the batch, unless another axis has it: not 0 or 1, which they would take for fixed.
const HINT: u64 = 7;

/// The range and source of the batch.
pub(super) struct Sizes {
    range: (u64, u64),
    /// Batch of samples.
    pub(super) hint: u64,
    /// Input and axis from which the batch is read, and its smallest multiple there.
    pub(super) source: (Id, usize, u64),
}

impl Sizes {
    /// Determines the batch of a model.
    ///
    /// # Errors
    /// No input has the batch in an axis.
    pub(super) fn of(model: &Model<'_>) -> Result<Self, ExportError> {
        let graph = model.graph;
        let source = open_axes(graph).min_by_key(|(.., times)| *times);
        let source = source.ok_or_else(|| {
            let hint = "give one input a shape like [batch, width]";
            ExportError::unsupported("pt2", "a batch", "the inputs", "none of them has it in an axis", hint)
        })?;
        let taken: HashSet<u64> =
            graph.values().flat_map(|(_, value)| &value.shape).filter_map(|dim| dim.fixed()).collect();
        let range = (model.batch.min, model.batch.max);
        let mut fitting = (HINT.max(range.0)..=range.1).filter(|size| !taken.contains(size));
        Ok(Self { range, hint: fitting.next().unwrap_or(range.1), source })
    }

    /// Returns whether a dimension is dynamic, and the batch may vary.
    pub(super) const fn is_open(&self, dim: Dim) -> bool {
        dim.is_open() && self.range.0 < self.range.1
    }

    /// Returns the symbols with their bounds.
    pub(super) fn ranges(&self) -> Value {
        let (min, max) = self.range;
        if min < max { json!({ SYMBOL: { "min_val": min, "max_val": max } }) } else { json!({}) }
    }

    pub(super) fn size(&self, dim: Dim) -> Value {
        match dim {
            Dim::Batch(times) => self.product(times, 1),
            Dim::Fixed(size) => json!({ "as_int": size }),
        }
    }

    /// Returns `times` a power of the batch.
    fn product(&self, times: u64, power: u32) -> Value {
        if power == 0 || !self.is_open(Dim::BATCH) {
            return json!({ "as_int": times * self.range.1.pow(power) });
        }
        let raised = if power == 1 { SPELT.to_owned() } else { format!("Pow({SPELT}, Integer({power}))") };
        let spelt = if times == 1 { raised } else { format!("Mul(Integer({times}), {raised})") };
        json!({ "as_expr": { "expr_str": spelt, "hint": { "as_int": times * self.hint.pow(power) } } })
    }

    /// Returns the metadata of a tensor. Strides are row-major, also those of views: compilers and `unflatten` trace anew.
    pub(super) fn meta(&self, value: &Tensor, gradient: bool) -> Value {
        let mut times = 1;
        let mut power = 0;
        let mut strides = Vec::with_capacity(value.shape.len());
        for dim in value.shape.iter().rev() {
            strides.push(self.product(times, power));
            times *= dim.of(1).max(1);
            power += u32::from(dim.is_open());
        }
        strides.reverse();
        json!({
            "dtype": numbers(value.dtype).torch,
            "sizes": value.shape.iter().map(|dim| self.size(*dim)).collect::<Vec<_>>(),
            "requires_grad": gradient,
            "device": { "type": "cpu", "index": null },
            "strides": strides,
            "storage_offset": { "as_int": 0 },
            // Layout 7 is strided.
            "layout": 7,
        })
    }
}
