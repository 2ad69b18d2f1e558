//! Attention kernels against the plain reference, on every device there is, and that each forward goes with each backward.

use crate::operands::distance;
use enn_worker::op::Op;
use enn_worker::op::attr::Structural;
use enn_worker::op::row::{Kernel, Launch};
use tch::{Device, Kind, Tensor};

/// (batch, heads, queries, keys, width), bias rows (0 for none), mask.
const CASES: [(i64, i64, i64, i64, i64, i64, Structural); 7] = [
    (2, 3, 7, 7, 8, 0, Structural::Causal),
    (1, 2, 130, 130, 64, 0, Structural::Causal),
    (2, 1, 5, 16, 16, 1, Structural::None),
    (2, 2, 33, 48, 32, 2, Structural::None),
    (1, 4, 1, 9, 24, 0, Structural::None),
    (2, 2, 8, 8, 8, 1, Structural::Causal),
    (2, 2, 6, 6, 8, 0, Structural::Window(2)),
];

fn devices() -> Vec<(Device, Kind, f64)> {
    let mut all = vec![(Device::Cpu, Kind::Float, 1e-5), (Device::Cpu, Kind::Double, 1e-11)];
    if tch::Cuda::is_available() {
        all.extend([(Device::Cuda(0), Kind::Float, 1e-4), (Device::Cuda(0), Kind::BFloat16, 4e-2)]);
        all.push((Device::Cuda(0), Kind::Half, 6e-3));
    } else {
        eprintln!("no CUDA device: attention kernels were checked on the CPU only");
    }
    all
}

fn fitting<'k>(kernels: &'k [Kernel], op: &Op, ins: &[&Tensor]) -> Vec<&'k Kernel> {
    kernels.iter().filter(|k| (k.fits)(op, &Launch { ins }).is_ok()).collect()
}

#[test]
fn attention_kernels_equal_the_reference_and_share_what_they_save() {
    tch::manual_seed(12);
    let mut pairs = 0;
    for (device, kind, tolerance) in devices() {
        for (b, h, m, n, d, bias_rows, mask) in CASES {
            // Heads as the model has them: views whose rows are interleaved.
            let heads = |len: i64| Tensor::randn([b, len, h, d], (Kind::Double, device)).to_kind(kind).transpose(1, 2);
            let (q, k, v, g) = (heads(m), heads(n), heads(n), heads(m));
            let bias = match bias_rows {
                1 => Some(Tensor::randn([n], (Kind::Double, device)).to_kind(kind)),
                2 => Some(Tensor::randn([b, n], (Kind::Double, device)).to_kind(kind)),
                _ => None,
            };
            let forward = Op::Sdpa { mask, bias: bias.is_some() };
            let backward = Op::SdpaBackward { mask, bias: bias.is_some(), dbias: false };
            let ins: Vec<&Tensor> = [&q, &k, &v].into_iter().chain(&bias).collect();
            let plain = (forward.row().launch)(&forward, &Launch { ins: &ins }).unwrap();
            let saved = |out: &Tensor, lse: &Tensor| {
                let all = [&g, &q, &k, &v, out, lse].into_iter().chain(&bias);
                all.map(Tensor::shallow_clone).collect::<Vec<_>>()
            };
            let first = saved(&plain[0], &plain[1]);
            let refs: Vec<&Tensor> = first.iter().collect();
            let expected = (backward.row().launch)(&backward, &Launch { ins: &refs }).unwrap();
            for kernel in fitting(forward.row().kernels, &forward, &ins) {
                let made = (kernel.launch)(&forward, &Launch { ins: &ins }).unwrap();
                let case = format!("{} on {device:?} {kind:?} {:?}", kernel.id, (b, h, m, n, d, bias_rows, mask));
                for (a, b) in made.iter().zip(&plain) {
                    assert_eq!(a.kind(), b.kind(), "{case}");
                    assert!(distance(a, b) < tolerance, "{case}: off by {}", distance(a, b));
                }
                let second = saved(&made[0], &made[1]);
                let refs: Vec<&Tensor> = second.iter().collect();
                for reverse in fitting(backward.row().kernels, &backward, &refs) {
                    let grads = (reverse.launch)(&backward, &Launch { ins: &refs }).unwrap();
                    assert_eq!(grads.len(), expected.len());
                    for (i, (a, b)) in grads.iter().zip(&expected).enumerate() {
                        let off = distance(a, b);
                        assert!(off < 3.0 * tolerance, "{case}, back by {}: gradient {i} off by {off}", reverse.id);
                    }
                    pairs += 1;
                }
            }
        }
    }
    assert!(pairs >= 10, "{pairs} pairs of kernels were compared");
}
