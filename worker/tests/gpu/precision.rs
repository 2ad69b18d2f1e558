//! What only a GPU has: products of 10-bit mantissas, 8-bit products, products added to f32 storage. Every test says that it
//! skips where there is no CUDA device.

#![expect(clippy::unwrap_used, reason = "a test that cannot build its operands has failed")]
#![expect(clippy::print_stdout, reason = "a test says that it is skipped")]

use enn_worker::autograd::{Cx, Tensor as Traced};
use enn_worker::functional as f;
use enn_worker::op::attr::GradDest;
use enn_worker::op::row::Launch;
use enn_worker::op::{self, Op};
use enn_worker::params::{GradBuckets, Group, Init, ParamBuilder, ParamId, Params};
use enn_worker::precision::{Autocast, Fp8, Support, allow_tf32, fp8, support};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tch::{Cuda, Device, Kind, Tensor};

const GPU: Device = Device::Cuda(0);

/// tf32 is a switch of the whole process: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn gpu(test: &str) -> Option<MutexGuard<'static, ()>> {
    if Cuda::is_available() {
        return Some(ALONE.lock().unwrap_or_else(PoisonError::into_inner));
    }
    println!("{test}: skipped, no CUDA device");
    None
}

fn capability() -> (u32, u32) {
    match support(GPU).unwrap() {
        Support::Cuda(major, minor) => (major, minor),
        Support::Cpu => (0, 0),
    }
}

fn relative(a: &Tensor, b: &Tensor) -> f64 {
    let wide = |t: &Tensor| t.to_kind(Kind::Double);
    ((wide(a) - wide(b)).norm() / wide(b).norm()).double_value(&[])
}

fn normal(shape: &[i64]) -> Tensor {
    Tensor::randn(shape, (Kind::Float, GPU))
}

#[test]
fn tf32_changes_products_when_it_is_on_and_only_then() {
    let Some(_alone) = gpu("tf32") else { return };
    if capability() < (8, 0) {
        println!("tf32: skipped, compute capability below 8.0");
        return;
    }
    let a = normal(&[512, 512]);
    let b = normal(&[512, 512]);
    let exact = a.to_kind(Kind::Double).matmul(&b.to_kind(Kind::Double));
    allow_tf32(false).unwrap();
    let single = relative(&a.matmul(&b), &exact);
    allow_tf32(true).unwrap();
    let tensor_float = relative(&a.matmul(&b), &exact);
    allow_tf32(false).unwrap();
    assert!(single < 1e-5, "{single}");
    assert!(tensor_float > 1e-5 && tensor_float < 2e-3, "{tensor_float}");
}

#[test]
fn weight_gradients_are_put_into_f32_storage_inside_the_product() {
    let Some(_alone) = gpu("main_grad") else { return };
    for (kind, into) in [
        (Kind::BFloat16, GradDest::Add),
        (Kind::BFloat16, GradDest::Write),
        (Kind::Half, GradDest::Add),
        (Kind::Half, GradDest::Write),
    ] {
        let g = normal(&[4, 96, 64]);
        let x = normal(&[4, 96, 80]);
        let w = normal(&[64, 80]);
        let [g, x, w] = [g, x, w].map(|t| t.to_kind(kind));
        // What is written over may be anything.
        let held = if into == GradDest::Add { 1.0 } else { f64::NAN };
        let start = normal(&[64, 80]) * held;
        let bias = normal(&[64]) * held;
        let dw = start.copy();
        let db = bias.copy();
        let op = Op::LinearBackward(op::LinearBackward { dx: true, dw: into, db: into });
        let ins = [&g, &x, &w, &dw, &db];
        let launch = Launch { ins: &ins };
        let kernel = op.row().kernels.iter().find(|kernel| kernel.id == "cublas.main_grad").unwrap();
        (kernel.fits)(&op, &launch).unwrap();
        let outs = tch::no_grad(|| (kernel.launch)(&op, &launch)).unwrap();
        let rows = |t: &Tensor, width: i64| t.to_kind(Kind::Double).reshape([-1, width]);
        let begun = |t: &Tensor| t.to_kind(Kind::Double).nan_to_num(0.0, None, None);
        let expected = begun(&start) + rows(&g, 64).transpose(0, 1).matmul(&rows(&x, 80));
        // Rounding the product to bf16 before adding would be off by 1e-3.
        assert!(relative(&dw, &expected) < 1e-5, "{kind:?}: {}", relative(&dw, &expected));
        let sum = begun(&bias) + rows(&g, 64).sum_dim_intlist(0, false, None);
        assert!(relative(&db, &sum) < 1e-5, "{kind:?}: {}", relative(&db, &sum));
        assert_eq!((outs.len(), outs[0].kind()), (1, kind));
    }
}

/// Sizes that are no multiples of 8: widths and, here, the rows.
#[test]
fn products_of_odd_sizes_are_those_of_the_plain_reference() {
    let Some(_alone) = gpu("aligned") else { return };
    let kernel = |op: &Op| op.row().kernels.iter().find(|kernel| kernel.id == "cublas.aligned").unwrap();
    for (kind, inputs, outputs) in [
        (Kind::BFloat16, 1024, 2730),
        (Kind::BFloat16, 2730, 1024),
        (Kind::Half, 1023, 4099),
        (Kind::BFloat16, 4099, 1021),
    ] {
        let what = format!("{kind:?} {inputs} to {outputs}");
        let low = |shape: &[i64]| normal(shape).to_kind(kind);
        let x = low(&[4, 401, inputs]);
        let w = low(&[outputs, inputs]);
        let b = low(&[outputs]);
        let g = low(&[4, 401, outputs]);
        // As the layer before may leave them.
        let x = x.constant_pad_nd([0, 6]).narrow(-1, 0, inputs);
        let g = g.transpose(0, 1).contiguous().transpose(0, 1);
        for bias in [false, true] {
            let op = Op::Linear(op::Linear { bias });
            let all = [&x, &w, &b];
            let launch = Launch { ins: &all[..if bias { 3 } else { 2 }] };
            (kernel(&op).fits)(&op, &launch).unwrap();
            let found = tch::no_grad(|| (kernel(&op).launch)(&op, &launch)).unwrap();
            let expected = tch::no_grad(|| (op.row().launch)(&op, &launch)).unwrap();
            assert_eq!(found[0].size(), expected[0].size(), "{what}");
            let off = relative(&found[0], &expected[0]);
            assert!(off < 5e-3, "{what}, bias {bias}: {off}");
        }
        for into in [GradDest::Add, GradDest::Write, GradDest::New] {
            let dw = normal(&[outputs, inputs]);
            let db = normal(&[outputs]);
            let rows = |t: &Tensor, width: i64| t.to_kind(Kind::Double).reshape([-1, width]);
            let weight = rows(&g, outputs).tr().matmul(&rows(&x, inputs));
            let sum = rows(&g, outputs).sum_dim_intlist(0, false, None);
            let begun = f64::from(u8::from(into == GradDest::Add));
            let expected = [weight + dw.to_kind(Kind::Double) * begun, sum + db.to_kind(Kind::Double) * begun];
            let op = Op::LinearBackward(op::LinearBackward { dx: true, dw: into, db: into });
            let all = [&g, &x, &w, &dw, &db];
            let launch = Launch { ins: &all[..if into == GradDest::New { 3 } else { 5 }] };
            (kernel(&op).fits)(&op, &launch).unwrap();
            let outs = tch::no_grad(|| (kernel(&op).launch)(&op, &launch)).unwrap();
            let dx = g.to_kind(Kind::Double).matmul(&w.to_kind(Kind::Double));
            assert!(relative(&outs[0], &dx) < 5e-3 && outs[0].size() == x.size(), "{what}");
            let (found, most) = match into {
                GradDest::New => ([&outs[1], &outs[2]], 5e-3),
                _ => ([&dw, &db], 1e-5),
            };
            for (found, expected) in found.into_iter().zip(&expected) {
                let off = relative(found, expected);
                assert!(off < most, "{what}, {into:?}: {off}");
            }
        }
    }
}

/// What they are for: SwiGLU's products of a model of 1,024.
#[test]
fn products_of_odd_sizes_are_faster() {
    let Some(_alone) = gpu("aligned") else { return };
    let low = |shape: &[i64]| normal(shape).to_kind(Kind::BFloat16);
    for (inputs, outputs) in [(1024, 5460), (2730, 1024)] {
        let x = low(&[16_384, inputs]);
        let w = low(&[outputs, inputs]);
        let g = low(&[16_384, outputs]);
        let storage = normal(&[outputs, inputs]);
        let back = Op::LinearBackward(op::LinearBackward { dx: true, dw: GradDest::Add, db: GradDest::Skip });
        for (op, ins) in [(Op::Linear(op::Linear { bias: false }), vec![&x, &w]), (back, vec![&g, &x, &w, &storage])] {
            let launch = Launch { ins: &ins };
            let mut times = Vec::new();
            let names = ["cublas.aligned", "cublas.main_grad", "plain"];
            for name in names {
                let own = op.row().kernels.iter().find(|kernel| kernel.id == name).map(|kernel| kernel.launch);
                let Some(run) = own.or((name == "plain").then_some(op.row().launch)) else { continue };
                let once = |count: u32| {
                    let begun = Instant::now();
                    (0..count).for_each(|_| drop(tch::no_grad(|| run(&op, &launch)).unwrap()));
                    Cuda::synchronize(0);
                    begun.elapsed().as_secs_f64() / f64::from(count)
                };
                once(5);
                times.push((name, 1e6 * once(50)));
            }
            println!("{} {inputs} to {outputs}: {times:.0?} us", op.name());
            assert!(times[0].1 * 1.3 < times[1].1, "{}: {times:?}", op.name());
        }
    }
}

#[test]
fn eight_bit_products_pass_their_test_and_equal_the_reference() {
    let Some(_alone) = gpu("fp8") else { return };
    if capability() < (8, 9) {
        println!("fp8: skipped, compute capability below 8.9");
        return;
    }
    let off = fp8::self_test(GPU).unwrap();
    assert!(off > 1e-3 && off < fp8::ERROR_MAX, "{off}");
    let a = normal(&[64, 128]);
    let b = normal(&[96, 128]);
    let quantise = |x: &Tensor, to: Kind| {
        let op = Op::Quantize(op::Quantize { to });
        (op.row().launch)(&op, &Launch { ins: &[x] }).unwrap()
    };
    for (kind, out) in [
        (Kind::Float8e4m3fn, Kind::BFloat16),
        (Kind::Float8e5m2, Kind::BFloat16),
        (Kind::Float8e5m2, Kind::Float),
        (Kind::Float8e4m3fn, Kind::Half),
    ] {
        let a = quantise(&a, kind);
        let b = quantise(&b, Kind::Float8e4m3fn);
        for fast in [false, true] {
            let op = Op::ScaledMm(op::ScaledMm { out, bias: false, fast });
            let ins = [&a[0], &b[0], &a[2], &b[2]];
            let launch = Launch { ins: &ins };
            let kernel = op.row().kernels.iter().find(|kernel| kernel.id == "cublas.scaled_mm").unwrap();
            let found = (kernel.launch)(&op, &launch).unwrap();
            let expected = (op.row().launch)(&op, &launch).unwrap();
            assert_eq!(found[0].kind(), out);
            let off = relative(&found[0], &expected[0]);
            assert!(off < 1e-2, "{kind:?} to {out:?}, fast {fast}: {off}");
        }
    }
}

struct Net {
    params: Params,
    grads: GradBuckets,
    ids: [ParamId; 4],
}

/// Two linear layers of width `width` with biases.
fn net(width: i64) -> Net {
    let mut pb = ParamBuilder::new();
    let init = || Init::Linear { fan_in: width };
    let ids = [
        pb.param("a.weight", &[4 * width, width], init(), Group::Decay),
        pb.param("a.bias", &[4 * width], init(), Group::NoDecay),
        pb.param("b.weight", &[width, 4 * width], init(), Group::Decay),
        pb.param("b.bias", &[width], init(), Group::NoDecay),
    ];
    let mut params = pb.build(5, GPU).unwrap();
    params.keep_shadows(Kind::BFloat16).unwrap();
    let grads = GradBuckets::new(&params).unwrap();
    Net { params, grads, ids }
}

impl Net {
    fn loss(&self, cx: &Cx<'_>, x: &Tensor) -> Traced {
        let [aw, ab, bw, bb] = self.ids.map(|id| cx.param(id));
        let x = cx.input(x.shallow_clone());
        let h = f::gelu(cx, &f::linear(cx, &x, &aw, Some(&ab)).unwrap(), true).unwrap();
        let y = f::linear(cx, &h, &bw, Some(&bb)).unwrap();
        let off = f::sub(cx, &y, &x).unwrap();
        f::sum_all(cx, &f::square(cx, &off).unwrap()).unwrap()
    }

    fn step(&mut self, autocast: Option<Autocast>, x: &Tensor) -> f64 {
        self.grads.zero().unwrap();
        let cx = Cx::train(&self.params, 1, 1);
        cx.set_autocast(autocast).unwrap();
        let loss = self.loss(&cx, x);
        cx.backward(&loss, &self.grads, &mut |_, _| Ok(())).unwrap();
        loss.raw().double_value(&[])
    }

    fn gradients(&self) -> Vec<Tensor> {
        self.ids.iter().map(|id| self.grads.view(*id).copy()).collect()
    }
}

#[test]
fn low_precision_gradients_are_near_f32_on_the_device() {
    let Some(_alone) = gpu("gradients") else { return };
    let (major, minor) = capability();
    let mut net = net(64);
    let x = normal(&[4, 48, 64]);
    let loss = net.step(None, &x);
    let expected = net.gradients();
    let mut formats = vec![("bf16", Autocast::bf16(), 0.03)];
    if (major, minor) >= (8, 9) {
        formats.push(("fp8", Autocast { fp8: Some(Fp8 { side_min: 16 }), ..Autocast::bf16() }, 0.15));
    }
    for (name, autocast, limit) in formats {
        let low = net.step(Some(autocast), &x);
        assert!((low / loss - 1.0).abs() < limit, "{name}: loss {low} against {loss}");
        for (i, (a, b)) in net.gradients().iter().zip(&expected).enumerate() {
            assert!(relative(a, b) < limit, "{name}, gradient {i}: {}", relative(a, b));
        }
    }
}

/// A measurement, not a test: `cargo test --release --features cuda --test gpu -- --ignored --nocapture`.
#[test]
#[ignore = "measures; run it alone on an idle GPU"]
fn fp8_vs_bf16() {
    let Some(_alone) = gpu("fp8_vs_bf16") else { return };
    for (width, rows) in [(1024, 8192), (2048, 8192), (4096, 8192), (4096, 16384)] {
        let mut net = net(width);
        let x = normal(&[rows, width]);
        let mut time = |autocast: &Autocast| {
            let mut step = || net.step(Some(autocast.clone()), &x);
            (0..5).for_each(|_| assert!(step().is_finite()));
            Cuda::synchronize(0);
            let start = Instant::now();
            let runs = 20;
            (0..runs).for_each(|_| assert!(step().is_finite()));
            Cuda::synchronize(0);
            start.elapsed().as_secs_f64() * 1e3 / f64::from(runs)
        };
        let bf16 = time(&Autocast::bf16());
        let fp8 = time(&Autocast::fp8());
        println!("fp8_vs_bf16 width {width} rows {rows}: bf16 {bf16:.3} ms, fp8 {fp8:.3} ms, {:.2}x", bf16 / fp8);
        assert!(bf16.is_finite() && fp8.is_finite());
    }
}
