//! The optimizer's kernels: the table's entries against the plain reference, which writes in place.

use crate::operands::{KINDS, Layout, between, device, lay, near, normal, same};
use enn_worker::backend::cuda::adamw::{self, Array};
use enn_worker::op::Op;
use enn_worker::op::row::Launch;
use tch::{Device, Kind, Tensor};

fn scalar(x: f64, device: Device) -> Tensor {
    Tensor::from(x).to_kind(Kind::Double).to_device(device)
}

fn launch(op: &Op, ins: &[Tensor], own: bool) -> Vec<Tensor> {
    let refs: Vec<&Tensor> = ins.iter().collect();
    let l = Launch { ins: &refs };
    if !own {
        return (op.row().launch)(op, &l).unwrap().into_vec();
    }
    let kernel = op.row().kernels.iter().find(|kernel| kernel.id.starts_with("cuda.")).unwrap();
    (kernel.fits)(op, &l).unwrap();
    (kernel.launch)(op, &l).unwrap().into_vec()
}

#[test]
fn numbers_of_a_step() {
    let Some(device) = device() else { return };
    for clip in [0.0, 1.0] {
        let op = Op::StepScalars { beta1: 0.9.into(), beta2: 0.95.into(), decay: 0.1.into(), clip: clip.into() };
        for norm in [4.0, 400.0, f64::NAN, f64::INFINITY] {
            let numbers = [norm, 8.0, 1e-3, 2.0, 5.0];
            let (cpu, gpu) = (numbers.map(|x| scalar(x, Device::Cpu)), numbers.map(|x| scalar(x, device)));
            let (expected, found) = (launch(&op, &cpu, false), launch(&op, &gpu, true));
            near("numbers", &found[0], &expected[0], Kind::Float);
            same("taken", &found[2], &expected[2]);
            same("steps", &gpu[3], &cpu[3]);
            same("skipped", &gpu[4], &cpu[4]);
            if norm.is_finite() {
                near("mean norm", &found[1], &expected[1], Kind::Float);
            }
        }
    }
}

#[test]
fn adamw_over_more_arrays_than_one_launch_takes() {
    let Some(device) = device() else { return };
    let numbers = Tensor::from_slice(&[0.125f32, 0.1, 0.05, 0.999, -1e-2, 1.4]);
    for kind in KINDS {
        for layout in [Layout::Dense, Layout::Misaligned] {
            let lengths: Vec<i64> = [7, 5000, 1, 4097, 0, 16, 8192].into_iter().cycle().take(130).collect();
            let decays = (0..130).map(|i| i % 2).collect();
            let op = Op::AdamW { eps: 1e-8.into(), decays };
            let (mut cpu, mut gpu, mut again) =
                (vec![numbers.shallow_clone()], vec![numbers.to_device(device)], vec![numbers.to_device(device)]);
            for length in lengths {
                let f32s = |scale: f64| normal(&[length], Kind::Float) * scale;
                let arrays = [
                    f32s(1.0),
                    normal(&[length], kind) * 4.0,
                    f32s(0.1).to_kind(Kind::Float),
                    between(&[length], 0.0, 1.0, Kind::Float),
                ];
                for array in arrays {
                    gpu.push(lay(&array, layout, device));
                    again.push(lay(&array, layout, device));
                    cpu.push(array.to_kind(Kind::Double));
                }
            }
            cpu[0] = cpu[0].to_kind(Kind::Double);
            launch(&op, &cpu, false);
            launch(&op, &gpu, true);
            launch(&op, &again, true);
            for (i, (found, expected)) in gpu.iter().zip(&cpu).enumerate().skip(1) {
                near(&format!("operand {i}"), found, expected, if i % 4 == 2 { kind } else { Kind::Float });
                same("repeat", found, &again[i]);
            }
        }
    }
}

#[test]
fn a_refused_step_writes_nothing_and_a_shadow_is_the_rounded_weight() {
    let Some(device) = device() else { return };
    let make = |length| [1.0, 0.1, 0.5, 2.0].map(|x| Tensor::full([length], x, (Kind::Float, device)));
    for refused in [true, false] {
        let first = if refused { 0.0 } else { 0.1 };
        let numbers = Tensor::from_slice(&[0.5f32, first, first, 0.99, -0.3, 1.0]).to_device(device);
        let [p, m, v, grad] = make(1003);
        let shadow = Tensor::full([1003], -1.0, (Kind::BFloat16, device));
        let array = Array { p: &p, m: &m, v: &v, grad: &grad, shadow: Some(&shadow), decays: true };
        adamw::adamw(&[array], &numbers, 1e-8, true).unwrap();
        if refused {
            for (before, after) in make(1003).iter().zip([&p, &m, &v, &grad]) {
                same("refused", before, after);
            }
            same("shadow", &shadow, &Tensor::full([1003], -1.0, (Kind::BFloat16, device)));
        } else {
            same("shadow", &shadow, &p.to_kind(Kind::BFloat16));
            assert!(p.double_value(&[1002]) < 0.99);
        }
    }
}

#[test]
fn norm_of_all_gradients() {
    let Some(device) = device() else { return };
    for kind in KINDS {
        let arrays: Vec<Tensor> = [7, 5000, 0, 100_003].iter().map(|&n| normal(&[n], kind) * 3.0).collect();
        let laid: Vec<Tensor> = arrays.iter().map(|x| lay(x, Layout::Misaligned, device)).collect();
        let wide: Vec<Tensor> = arrays.iter().map(|x| x.to_kind(Kind::Double)).collect();
        let (found, expected) = (launch(&Op::GlobalNorm, &laid, true), launch(&Op::GlobalNorm, &wide, false));
        near("norm", &found[0], &expected[0], Kind::Float);
        same("repeat", &found[0], &launch(&Op::GlobalNorm, &laid, true)[0]);
        let _ = laid[3].narrow(0, 99_999, 1).fill_(f64::NAN);
        assert!(launch(&Op::GlobalNorm, &laid, true)[0].double_value(&[]).is_nan());
    }
}
