//! The optimizer's kernels: the table's entries against the plain reference, which writes in place.

use crate::cuda::operands::{KINDS, Layout, between, device, lay, near, normal, same};
use enn_worker::backend::cuda::adamw::{self, FlatArray};
use enn_worker::op::row::Launch;
use enn_worker::op::{self, Op};
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
        let op = Op::StepScalars(op::StepScalars {
            beta1: 0.9.into(),
            beta2: 0.95.into(),
            decay: 0.1.into(),
            clip: clip.into(),
        });
        for norm in [4.0, 400.0, f64::NAN, f64::INFINITY] {
            let numbers = [norm, 8.0, 1e-3, 2.0, 5.0];
            let cpu = numbers.map(|x| scalar(x, Device::Cpu));
            let gpu = numbers.map(|x| scalar(x, device));
            let expected = launch(&op, &cpu, false);
            let found = launch(&op, &gpu, true);
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
            let op = Op::AdamW(op::AdamW { eps: 1e-8.into(), decays, shadows: false, average: Some(0.99.into()) });
            let on = |device| vec![numbers.to_device(device), scalar(6.0, device), scalar(1.0, device)];
            let mut cpu = on(Device::Cpu);
            let mut gpu = on(device);
            let mut again = on(device);
            for length in lengths {
                let f32s = |scale: f64| normal(&[length], Kind::Float) * scale;
                let arrays = [
                    f32s(1.0),
                    normal(&[length], kind) * 4.0,
                    f32s(0.1).to_kind(Kind::Float),
                    between(&[length], 0.0, 1.0, Kind::Float),
                    f32s(1.0),
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
            same("updates", &gpu[1], &cpu[1]);
            for (i, (found, expected)) in gpu.iter().zip(&cpu).enumerate().skip(3) {
                near(&format!("operand {i}"), found, expected, if i % 5 == 4 { kind } else { Kind::Float });
                same("repeat", found, &again[i]);
            }
        }
    }
}

#[test]
fn adamw_writes_the_copies_as_the_plain_reference_does() {
    let Some(device) = device() else { return };
    let numbers = Tensor::from_slice(&[0.125f32, 0.1, 0.05, 0.999, -1e-2, 1.4]);
    let op =
        Op::AdamW(op::AdamW { eps: 1e-8.into(), decays: [1, 0].into_iter().collect(), shadows: true, average: None });
    for low in [Kind::BFloat16, Kind::Half] {
        let arrays: Vec<Tensor> = [1003, 4096]
            .into_iter()
            .flat_map(|n| {
                let f32s = |scale: f64| (normal(&[n], Kind::Float) * scale).to_kind(Kind::Float);
                let second = between(&[n], 0.0, 1.0, Kind::Float);
                [f32s(1.0), f32s(4.0), f32s(0.1), second, Tensor::full([n], 9.0, (low, Device::Cpu))]
            })
            .collect();
        let on = |device: Device| -> Vec<Tensor> {
            std::iter::once(&numbers).chain(&arrays).map(|x| lay(x, Layout::Dense, device)).collect()
        };
        let plain = on(device);
        let own = on(device);
        launch(&op, &plain, false);
        launch(&op, &own, true);
        for at in [1, 6] {
            near("weights", &own[at], &plain[at].to_device(Device::Cpu), Kind::Float);
            for arrays in [&plain, &own] {
                same("the copy is the rounded weight", &arrays[at + 4], &arrays[at].to_kind(low));
            }
        }
    }
}

#[test]
fn averages_and_zeros() {
    let Some(device) = device() else { return };
    let op = Op::Average(op::Average { decay: 0.99.into() });
    for (layout, taken) in [(Layout::Dense, 1.0), (Layout::Misaligned, 1.0), (Layout::Dense, 0.0)] {
        let mut cpu = vec![scalar(6.0, Device::Cpu), scalar(taken, Device::Cpu)];
        for length in [7, 5000, 0, 16, 8192].into_iter().cycle().take(130) {
            cpu.extend([normal(&[length], Kind::Float), normal(&[length], Kind::Float)]);
        }
        let lie = |x: &Tensor| lay(x, layout, device);
        let (gpu, again): (Vec<_>, Vec<_>) = cpu.iter().map(|x| (lie(x), lie(x))).unzip();
        launch(&op, &cpu, false);
        launch(&op, &gpu, true);
        launch(&op, &again, true);
        same("updates", &gpu[0], &cpu[0]);
        for (i, (found, expected)) in gpu.iter().zip(&cpu).enumerate() {
            near(&format!("operand {i}"), found, expected, Kind::Float);
            same("repeat", found, &again[i]);
        }
        for kind in KINDS {
            let arrays: Vec<Tensor> = [7, 5000, 0, 4096].iter().map(|&n| lie(&normal(&[n], kind))).collect();
            launch(&Op::Zero(op::Zero), &arrays, true);
            assert!(arrays.iter().all(|x| x.count_nonzero(None::<i64>).int64_value(&[]) == 0), "{kind:?} {layout:?}");
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
        let array = FlatArray { p: &p, m: &m, v: &v, grad: &grad, shadow: Some(&shadow), average: None, decays: true };
        adamw::adamw(&[array], &numbers, None, 1e-8).unwrap();
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
        let found = launch(&Op::GlobalNorm(op::GlobalNorm), &laid, true);
        let expected = launch(&Op::GlobalNorm(op::GlobalNorm), &wide, false);
        near("norm", &found[0], &expected[0], Kind::Float);
        same("repeat", &found[0], &launch(&Op::GlobalNorm(op::GlobalNorm), &laid, true)[0]);
        let behind = |norm: &[Tensor], arrays: &[Tensor]| [norm[0].shallow_clone(), arrays[1].shallow_clone()];
        let laid_behind = behind(&found, &laid);
        let wide_behind = behind(&expected, &wide);
        let found = launch(&Op::GlobalNorm(op::GlobalNorm), &laid_behind, true);
        let expected = launch(&Op::GlobalNorm(op::GlobalNorm), &wide_behind, false);
        near("norm and another", &found[0], &expected[0], Kind::Float);
        let _ = laid[3].narrow(0, 99_999, 1).fill_(f64::NAN);
        assert!(launch(&Op::GlobalNorm(op::GlobalNorm), &laid, true)[0].double_value(&[]).is_nan());
    }
}
