//! libtorch's attention kernels that keep no (Nq,Nk) in memory: flash on the CPU; cuDNN's, flash and memory-efficient on CUDA.
//!
//! All of them give the same log Σ exp as the plain reference, so that any forward goes with any backward.

use super::{AttentionCall, cpu, cuda, scale};
use crate::backend::torch::safe::{self, Arg, AtenOp};
use crate::error::OpErrorKind;
use crate::op::row::{Fit, Kernel, Launch, Launched};
use crate::op::{Sdpa, SdpaBackward};
use smallvec::{SmallVec, smallvec};
use tch::{Device, Kind, Tensor};

/// Widest head flash attention takes.
const FLASH_WIDTH_MAX: i64 = 256;
/// Elements a row of operands must be a multiple of on CUDA: 16 bytes of half precision.
const ALIGN: i64 = 8;
/// Widest head cuDNN's kernels take in both directions.
const CUDNN_WIDTH_MAX: i64 = 128;
/// Fewer queries or keys than this gain nothing from cuDNN, whose calls cost more.
const CUDNN_TOKENS_MIN: i64 = 256;
/// The memory-efficient kernels keep log Σ exp in rows of a multiple of this length.
const LSE_ALIGN: i64 = 32;

/// Kernels of Sdpa. On CUDA our own is the last: libtorch's are faster where they fit.
pub(super) const FORWARD: [Kernel<Sdpa>; 6] = [
    cpu::FORWARD,
    Kernel::new("aten.flash_cpu", |op, l| fits_cpu(op.call(), l), |op, l| flash_cpu(op.call(), l)),
    Kernel::new("aten.cudnn", |op, l| fits_cudnn(op.call(), l), |op, l| cudnn(op.call(), l)),
    Kernel::new("aten.flash", |op, l| fits_flash(op.call(), l), |op, l| flash(op.call(), l)),
    Kernel::new("aten.efficient", |op, l| fits_efficient(op.call(), l), |op, l| efficient(op.call(), l)),
    cuda::FORWARD,
];

/// Kernels of SdpaBackward. libtorch's on CUDA sum in no fixed order.
pub(super) const BACKWARD: [Kernel<SdpaBackward>; 6] = [
    cpu::BACKWARD,
    Kernel::new("aten.flash_cpu", |op, l| fits_cpu(op.call(), l), |op, l| flash_cpu_backward(op.call(), l)),
    Kernel::<SdpaBackward>::new("aten.cudnn", |op, l| fits_cudnn(op.call(), l), |op, l| cudnn_backward(op.call(), l))
        .unordered(),
    Kernel::<SdpaBackward>::new("aten.flash", |op, l| fits_flash(op.call(), l), |op, l| flash_backward(op.call(), l))
        .unordered(),
    Kernel::<SdpaBackward>::new(
        "aten.efficient",
        |op, l| fits_efficient(op.call(), l),
        |op, l| efficient_backward(op.call(), l),
    )
    .unordered(),
    cuda::BACKWARD,
];

fn fits_cpu(call: AttentionCall, l: &Launch<'_>) -> Fit {
    call.fits_library(l)?;
    let q = l.at(call.first);
    match (q.device(), q.kind()) {
        (Device::Cpu, Kind::Float | Kind::Double) => Ok(()),
        (Device::Cpu, _) => Err("adds up half precision too coarsely"),
        _ => Err("runs on the CPU"),
    }
}

fn on_cuda(q: &Tensor) -> Fit {
    if matches!(q.device(), Device::Cuda(_)) { Ok(()) } else { Err("runs on CUDA") }
}

fn fits_flash(call: AttentionCall, l: &Launch<'_>) -> Fit {
    call.fits_library(l)?;
    let q = l.at(call.first);
    on_cuda(q)?;
    if call.bias {
        return Err("takes no bias");
    }
    if !matches!(q.kind(), Kind::BFloat16 | Kind::Half) {
        return Err("takes bf16 and f16 only");
    }
    let width = q.size()[3];
    if width % ALIGN != 0 || width > FLASH_WIDTH_MAX {
        return Err("takes heads of a width that is a multiple of 8, up to 256");
    }
    Ok(())
}

fn fits_cudnn(call: AttentionCall, l: &Launch<'_>) -> Fit {
    fits_flash(call, l)?;
    let q = l.at(call.first);
    let k = l.at(call.first + 1);
    if q.size()[3] > CUDNN_WIDTH_MAX {
        return Err("takes heads of a width up to 128");
    }
    if q.size()[2].min(k.size()[2]) < CUDNN_TOKENS_MIN {
        return Err("gains nothing with fewer than 256 tokens");
    }
    let Device::Cuda(index) = q.device() else { return Err("runs on CUDA") };
    match safe::compute_capability(index) {
        Ok((9.., _)) => Ok(()),
        _ => Err("is faster than flash from compute capability 9.0 on"),
    }
}

fn fits_efficient(call: AttentionCall, l: &Launch<'_>) -> Fit {
    call.fits_library(l)?;
    let q = l.at(call.first);
    let k = l.at(call.first + 1);
    on_cuda(q)?;
    if !matches!(q.kind(), Kind::Float | Kind::BFloat16 | Kind::Half) {
        return Err("takes f32, bf16 and f16 only");
    }
    if q.size()[3] % ALIGN != 0 {
        return Err("takes heads of a width that is a multiple of 8");
    }
    if call.bias && k.size()[2] % ALIGN != 0 {
        return Err("takes a bias of a multiple of 8 keys");
    }
    Ok(())
}

/// The bias, operand `at` if there is one, as (B or 1,1,1,Nk).
fn bias4(l: &Launch<'_>, at: usize) -> Result<Option<Tensor>, OpErrorKind> {
    let Some(bias) = l.ins.get(at) else { return Ok(None) };
    Ok(Some(bias.f_view([if bias.dim() == 2 { bias.size()[0] } else { 1 }, 1, 1, -1])?))
}

/// The bias as (B,H,Nq,Nk) without a copy: CUDA's kernels do not broadcast.
fn bias_expanded(l: &Launch<'_>, at: usize, q: &Tensor, k: &Tensor) -> Result<Option<Tensor>, OpErrorKind> {
    let Some(bias) = bias4(l, at)? else { return Ok(None) };
    let rows = q.size();
    let keys = k.size()[2];
    Ok(Some(bias.f_contiguous()?.f_expand([rows[0], rows[1], rows[2], keys], false)?))
}

fn arg(tensor: &Option<Tensor>) -> Arg<'_> {
    tensor.as_ref().map_or(Arg::None, Arg::Tensor)
}

fn dense_last(t: &Tensor) -> Result<Tensor, OpErrorKind> {
    Ok(if t.stride().last() == Some(&1) { t.shallow_clone() } else { t.f_contiguous()? })
}

static FLASH_CPU: AtenOp = AtenOp::new(c"aten::_scaled_dot_product_flash_attention_for_cpu", c"");
static FLASH_CPU_BACKWARD: AtenOp = AtenOp::new(c"aten::_scaled_dot_product_flash_attention_for_cpu_backward", c"");
static FLASH: AtenOp = AtenOp::new(c"aten::_scaled_dot_product_flash_attention", c"");
static FLASH_BACKWARD: AtenOp = AtenOp::new(c"aten::_scaled_dot_product_flash_attention_backward", c"");
static CUDNN: AtenOp = AtenOp::new(c"aten::_scaled_dot_product_cudnn_attention", c"");
static CUDNN_BACKWARD: AtenOp = AtenOp::new(c"aten::_scaled_dot_product_cudnn_attention_backward", c"");
static EFFICIENT: AtenOp = AtenOp::new(c"aten::_scaled_dot_product_efficient_attention", c"");
static EFFICIENT_BACKWARD: AtenOp = AtenOp::new(c"aten::_scaled_dot_product_efficient_attention_backward", c"");

fn flash_cpu(call: AttentionCall, l: &Launch<'_>) -> Launched {
    let q = l.at(0);
    let k = l.at(1);
    let v = l.at(2);
    let bias = bias4(l, 3)?;
    let q = Arg::Tensor(q);
    let k = Arg::Tensor(k);
    let v = Arg::Tensor(v);
    let none = Arg::Real(0.0);
    Ok(FLASH_CPU.call(&[q, k, v, none, Arg::Bool(call.causal()), arg(&bias), Arg::Real(scale(l.at(0)))])?)
}

fn flash_cpu_backward(call: AttentionCall, l: &Launch<'_>) -> Launched {
    let g = dense_last(l.at(0))?;
    let bias = bias4(l, 6)?;
    let saved = (1..6).map(|i| Arg::Tensor(l.at(i)));
    let mut args: SmallVec<[Arg<'_>; 10]> = smallvec![Arg::Tensor(&g)];
    args.extend(saved);
    args.extend([Arg::Real(0.0), Arg::Bool(call.causal()), arg(&bias), Arg::Real(scale(l.at(1)))]);
    Ok(FLASH_CPU_BACKWARD.call(&args)?)
}

fn flash(call: AttentionCall, l: &Launch<'_>) -> Launched {
    let q = Arg::Tensor(l.at(0));
    let k = Arg::Tensor(l.at(1));
    let v = Arg::Tensor(l.at(2));
    let drop = Arg::Real(0.0);
    let debug = Arg::Bool(false);
    let mut outs = FLASH.call(&[q, k, v, drop, Arg::Bool(call.causal()), debug, Arg::Real(scale(l.at(0)))])?;
    outs.truncate(2);
    Ok(outs)
}

fn flash_backward(call: AttentionCall, l: &Launch<'_>) -> Launched {
    let g = dense_last(l.at(0))?;
    let q = l.at(1);
    let k = l.at(2);
    // Undefined: the batch is not a packed one. The random state of a dropout that is not there is never read.
    let packed = Tensor::new();
    let random = Tensor::f_empty([2], (Kind::Int64, q.device()))?;
    let mut args: SmallVec<[Arg<'_>; 15]> = smallvec![Arg::Tensor(&g)];
    args.extend((1..6).map(|i| Arg::Tensor(l.at(i))));
    args.extend([Arg::Tensor(&packed), Arg::Tensor(&packed), Arg::Int(q.size()[2]), Arg::Int(k.size()[2])]);
    args.extend([Arg::Real(0.0), Arg::Bool(call.causal()), Arg::Tensor(&random), Arg::Tensor(&random)]);
    args.push(Arg::Real(scale(q)));
    Ok(FLASH_BACKWARD.call(&args)?)
}

fn cudnn(call: AttentionCall, l: &Launch<'_>) -> Launched {
    let q = l.at(0);
    let operands = [Arg::Tensor(q), Arg::Tensor(l.at(1)), Arg::Tensor(l.at(2)), Arg::None];
    let how = [Arg::Bool(true), Arg::Real(0.0), Arg::Bool(call.causal()), Arg::Bool(false), Arg::Real(scale(q))];
    let outs = CUDNN.call(&[&operands[..], &how[..]].concat())?;
    Ok(smallvec![outs[0].shallow_clone(), outs[1].f_reshape(&q.size()[..3])?])
}

fn cudnn_backward(call: AttentionCall, l: &Launch<'_>) -> Launched {
    let g = dense_last(l.at(0))?;
    let q = l.at(1);
    let k = l.at(2);
    let lse = l.at(5).f_unsqueeze(-1)?;
    // As with flash: neither packed nor with dropout, nor a bias.
    let absent = Tensor::new();
    let random = Tensor::f_zeros([0i64; 0], (Kind::Int64, q.device()))?;
    let tensors = [&g, q, k, l.at(3), l.at(4), &lse, &random, &random, &absent, &absent, &absent].map(Arg::Tensor);
    let lengths = [Arg::Int(q.size()[2]), Arg::Int(k.size()[2])];
    let how = [Arg::Real(0.0), Arg::Bool(call.causal()), Arg::Real(scale(q))];
    Ok(CUDNN_BACKWARD.call(&[&tensors[..], &lengths[..], &how[..]].concat())?)
}

fn efficient(call: AttentionCall, l: &Launch<'_>) -> Launched {
    let q = l.at(0);
    let k = l.at(1);
    let v = l.at(2);
    let bias = bias_expanded(l, 3, q, k)?;
    let operands = [Arg::Tensor(q), Arg::Tensor(k), Arg::Tensor(v), arg(&bias)];
    let how = [Arg::Bool(true), Arg::Real(0.0), Arg::Bool(call.causal()), Arg::Real(scale(q))];
    let outs = EFFICIENT.call(&[operands, how].concat())?;
    // Other kernels, and libtorch's own flash, read it densely.
    let lse = outs[1].f_narrow(2, 0, q.size()[2])?.f_contiguous()?;
    Ok(smallvec![outs[0].shallow_clone(), lse])
}

fn efficient_backward(call: AttentionCall, l: &Launch<'_>) -> Launched {
    let g = dense_last(l.at(0))?;
    let q = l.at(1);
    let k = l.at(2);
    let lse = l.at(5);
    let bias = bias_expanded(l, 6, q, k)?.unwrap_or_else(Tensor::new);
    let missing = (-q.size()[2]).rem_euclid(LSE_ALIGN);
    let lse = lse.f_pad([0, missing], "constant", f64::INFINITY)?;
    let random = Tensor::f_zeros([0i64; 0], (Kind::Int64, q.device()))?;
    let tensors = [&g, q, k, l.at(3), &bias, l.at(4), &lse, &random, &random].map(Arg::Tensor);
    let wanted = [true, true, true, false];
    let how = [Arg::Real(0.0), Arg::Bools(&wanted), Arg::Bool(call.causal()), Arg::Real(scale(q))];
    let mut args: SmallVec<[Arg<'_>; 13]> = SmallVec::from_iter(tensors);
    args.extend(how);
    let mut outs = EFFICIENT_BACKWARD.call(&args)?;
    outs.truncate(3);
    Ok(outs)
}
