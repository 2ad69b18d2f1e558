//! Which operations on the CPU are over before another thread has woken. libtorch wakes them from 32,768 elements on, each time.

use crate::backend::torch::safe::Alone;
use crate::op::Op;
use crate::op::row::Launch;
use tch::Device;

/// Elements of the operands from which threads are worth waking.
const ELEMENTS: usize = 1 << 18;

/// Keeps a small operation on this thread, while the result lives. It depends on nothing but the operation and its operands, so that
/// sums have the same bits whoever launches.
pub(crate) fn alone(op: &Op, l: &Launch<'_>) -> Option<Alone> {
    let is_product = matches!(
        op,
        Op::MatMul { .. } | Op::Linear { .. } | Op::LinearBackward { .. } | Op::Sdpa { .. } | Op::SdpaBackward { .. }
    );
    let is_ours = !is_product && l.ins.first()?.device() == Device::Cpu;
    (is_ours && l.ins.iter().map(|x| x.numel()).sum::<usize>() < ELEMENTS).then(Alone::begin)
}
