//! Keeps small CPU operations on one thread. libtorch wakes its threads from 32,768 elements on, which takes longer than the operation.

use crate::backend::torch::safe::SingleThread;
use crate::op::Op;
use crate::op::row::Launch;
use tch::Device;

/// Number of operand elements from which several threads pay off.
const ELEMENTS: usize = 1 << 18;

/// Keeps a small operation on this thread while the returned guard lives. The choice depends only on the operation and its operands, so
/// that sums have the same bits for every caller.
pub(crate) fn keep_single_threaded(op: &Op, l: &Launch<'_>) -> Option<SingleThread> {
    let is_ours = !op.row().is_product && l.ins.first()?.device() == Device::Cpu;
    (is_ours && l.ins.iter().map(|x| x.numel()).sum::<usize>() < ELEMENTS).then(SingleThread::begin)
}
