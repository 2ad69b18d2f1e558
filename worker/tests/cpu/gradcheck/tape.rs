//! Properties of the tape and the parameters.

use crate::gradcheck::operands::distance;
use enn_worker::autograd::{BucketId, Cx, GradLeaves, Tensor as Traced};
use enn_worker::error::{OpError, OpErrorKind};
use enn_worker::functional as f;
use enn_worker::op::{self, Op, aten::AtenArg, attr::GradDest};
use enn_worker::params::{GradBuckets, Group, Init, ParamBuilder, ParamId, Params};
use tch::{Device, Kind, Tensor};

struct Net {
    params: Params,
    w: ParamId,
    tied: ParamId,
    bias: ParamId,
    unused: ParamId,
}

fn net() -> Net {
    let mut b = ParamBuilder::new();
    let (w, tied, bias, unused) = b.scoped("net", |b| {
        let w = b.param("w", &[5, 4], Init::Linear { fan_in: 4 }, Group::Decay);
        let tied = b.param("tied", &[4, 5], Init::Normal { std: 0.3 }, Group::Decay);
        let bias = b.param("bias", &[5], Init::Linear { fan_in: 4 }, Group::NoDecay);
        let unused = b.param("unused", &[600_000], Init::Ones, Group::Decay);
        (w, tied, bias, unused)
    });
    Net { params: b.build_kind(9, Device::Cpu, Kind::Double).unwrap(), w, tied, bias, unused }
}

/// A residual, a value used three times, a weight used as linear weight twice and once as a matrix.
fn loss(cx: &Cx<'_>, net: &Net, x: &Tensor) -> Result<Traced, OpError> {
    let _scope = cx.scope("net");
    let w = cx.param(net.w);
    let tied = cx.param(net.tied);
    let bias = cx.param(net.bias);
    let x = cx.input(x.shallow_clone());
    let h = f::linear(cx, &x, &w, Some(&bias))?;
    let a = f::linear(cx, &f::gelu(cx, &h, false)?, &tied, None)?;
    let b = f::linear(cx, &f::add(cx, &h, &f::tanh(cx, &h)?)?, &tied, None)?;
    let c = f::matmul(cx, &f::mul(cx, &f::sigmoid(cx, &a)?, &b)?, &tied)?;
    let joined = f::add(cx, &f::dropout(cx, &c, 0.3)?, &h)?;
    f::sum_all(cx, &f::square(cx, &joined)?)
}

fn data() -> Tensor {
    tch::manual_seed(3);
    Tensor::randn([7, 4], (Kind::Double, Device::Cpu))
}

fn value(net: &Net, x: &Tensor) -> f64 {
    let cx = Cx::train(&net.params, 1, 2);
    loss(&cx, net, x).unwrap().raw().double_value(&[])
}

#[test]
fn fan_out_and_tied_weights_sum_to_finite_differences() {
    let net = net();
    let x = data();
    let mut grads = GradBuckets::new(&net.params).unwrap();
    let cx = Cx::train(&net.params, 1, 2);
    let l = loss(&cx, &net, &x).unwrap();
    cx.backward(&l, &grads, &mut |_, _| Ok(())).unwrap();
    drop(cx);
    for id in [net.w, net.tied, net.bias] {
        let direction = net.params.get(id).randn_like();
        let at = |by: f64| {
            let _ = net.params.get(id).shallow_clone().g_add_(&(&direction * by));
            let v = value(&net, &x);
            let _ = net.params.get(id).shallow_clone().g_add_(&(&direction * -by));
            v
        };
        let difference = (at(1e-6) - at(-1e-6)) / 2e-6;
        let expected = (grads.view(id) * &direction).sum(Kind::Double).double_value(&[]);
        assert!((difference - expected).abs() < 1e-5 * (1.0 + expected.abs()), "{difference} {expected}");
    }
    assert_eq!(grads.view(net.unused).abs().max().double_value(&[]), 0.0);
    // A second micro-batch adds to the first.
    let once = grads.view(net.tied).copy();
    let cx = Cx::train(&net.params, 1, 2);
    let l = loss(&cx, &net, &x).unwrap();
    cx.backward(&l, &grads, &mut |_, _| Ok(())).unwrap();
    assert!(distance(grads.view(net.tied), &(once * 2.0)) < 1e-12);
    grads.zero().unwrap();
    assert_eq!(grads.view(net.tied).abs().max().double_value(&[]), 0.0);
}

#[test]
fn a_table_that_is_embedding_and_output_head_gets_both_gradients_before_its_bucket_fires() {
    let mut b = ParamBuilder::new();
    let table = b.param("table", &[6, 4], Init::Normal { std: 0.5 }, Group::Decay);
    let params = b.build_kind(4, Device::Cpu, Kind::Double).unwrap();
    let grads = GradBuckets::new(&params).unwrap();
    let ids = Tensor::from_slice(&[0i64, 5, 2, 5, 1]);
    let next = Tensor::from_slice(&[5i64, 2, -1, 1, 3]);
    let cx = Cx::train(&params, 1, 2);
    let t = cx.param(table);
    let hidden = f::tanh(&cx, &f::embedding(&cx, &t, &cx.input(ids.shallow_clone())).unwrap()).unwrap();
    let logits = f::linear(&cx, &hidden, &t, None).unwrap();
    let loss = f::cross_entropy(&cx, &logits, &cx.input(next), -1).unwrap();
    let mut seen = Vec::new();
    cx.backward(&loss, &grads, &mut |bucket, flat| {
        seen.push((bucket, flat.copy()));
        Ok(())
    })
    .unwrap();

    let leaf = params.get(table).copy().set_requires_grad(true);
    let rows = Tensor::from_slice(&[0i64, 1, 3, 4]);
    let target = Tensor::from_slice(&[5i64, 2, 1, 3]);
    let (theirs, gradient) = tch::with_grad(|| {
        let logits = leaf.index_select(0, &ids).tanh().matmul(&leaf.transpose(0, 1)).index_select(0, &rows);
        let loss = -logits.log_softmax(1, None).gather(1, &target.unsqueeze(1), false).sum(None);
        let gradient = Tensor::run_backward(&[&loss], &[&leaf], false, false).remove(0);
        (loss, gradient)
    });
    assert!(distance(loss.raw(), &theirs.detach()) < 1e-12);
    assert!(distance(grads.view(table), &gradient) < 1e-12);
    assert_eq!(seen.len(), 1, "the bucket fires once");
    assert_eq!(distance(&seen[0].1, grads.bucket(seen[0].0)), 0.0, "after the second contribution");
}

#[test]
fn gradients_are_cleared_or_written_whatever_they_held() {
    let mut b = ParamBuilder::new();
    // Weights of 2^18 numbers: one with one product, one with two, one with one that is detached, one with none.
    let size: &[i64] = &[512, 512];
    let mut large = |name: &str| b.param(name, size, Init::Linear { fan_in: 512 }, Group::Decay);
    let once = large("once");
    let twice = large("twice");
    let cut = large("cut");
    let unused = large("unused");
    let bias = b.param("bias", &[512], Init::Linear { fan_in: 512 }, Group::NoDecay);
    let params = b.build(4, Device::Cpu).unwrap();
    let x = Tensor::randn([3, 512], (Kind::Float, Device::Cpu));
    let passes = |held: f64, passes: u32| {
        let grads = GradBuckets::new(&params).unwrap();
        // Padding stays 0.
        for id in [once, twice, cut, unused, bias] {
            let _ = tch::no_grad(|| grads.view(id).shallow_clone().fill_(held));
        }
        let cx = Cx::train(&params, 1, 2);
        if held != 0.0 {
            cx.clear_gradients();
        }
        if passes == 0 {
            cx.clear_stale_gradients(&grads).unwrap();
        }
        for _ in 0..passes {
            let x = cx.input(x.shallow_clone());
            let h = f::linear(&cx, &x, &cx.param(once), Some(&cx.param(bias))).unwrap();
            let h =
                f::linear(&cx, &f::linear(&cx, &h, &cx.param(twice), None).unwrap(), &cx.param(twice), None).unwrap();
            let none = f::detach(&cx, &f::linear(&cx, &x, &cx.param(cut), None).unwrap()).unwrap();
            let loss = f::sum_all(&cx, &f::square(&cx, &f::add(&cx, &h, &none).unwrap()).unwrap()).unwrap();
            let mut fired = Vec::new();
            cx.backward(&loss, &grads, &mut |bucket, flat| {
                fired.push((bucket, flat.copy()));
                Ok(())
            })
            .unwrap();
            assert!(fired.iter().all(|(bucket, flat)| *flat == *grads.bucket(*bucket)), "nothing comes after the hook");
        }
        let written = cx.with_program(|program| {
            let all = program.recs().iter().map(|rec| &rec.op);
            all.filter(|op| matches!(op, Op::LinearBackward(op::LinearBackward { dw: GradDest::Write, .. }))).count()
        });
        let flats: Vec<Tensor> = GradLeaves::without(&grads, &[]).unwrap();
        (flats, written)
    };
    for count in [0, 1, 2] {
        let (plain, none) = passes(0.0, count);
        let (found, written) = passes(f64::NAN, count);
        assert_eq!((none, written), (0, count.min(1) as usize), "one weight has one product");
        assert_eq!(plain, found, "{count} micro-batches");
    }
}

#[test]
fn every_bucket_fires_once_and_after_its_last_gradient() {
    let net = net();
    let x = data();
    let grads = GradBuckets::new(&net.params).unwrap();
    assert!(net.params.layout().buckets() >= 2, "the large unused parameter has a bucket of its own");
    let cx = Cx::train(&net.params, 1, 2);
    let l = loss(&cx, &net, &x).unwrap();
    let mut fired: Vec<(BucketId, Tensor)> = Vec::new();
    cx.backward(&l, &grads, &mut |bucket, flat| {
        fired.push((bucket, flat.copy()));
        Ok(())
    })
    .unwrap();
    let mut order: Vec<usize> = fired.iter().map(|(b, _)| b.index()).collect();
    assert_eq!(order[0], net.params.layout().place(net.unused).0.index(), "nothing reaches it, so it is ready first");
    order.sort_unstable();
    assert_eq!(order, (0..net.params.layout().buckets()).collect::<Vec<_>>());
    for (bucket, seen) in fired {
        assert_eq!(distance(&seen, grads.bucket(bucket)), 0.0, "nothing is added after the hook");
    }
    drop(l);
}

#[test]
fn small_gradients_of_a_bucket_are_added_at_once_but_for_those_of_one_parameter() {
    let mut b = ParamBuilder::new();
    let [a, twice, c] = ["a", "twice", "c"]
        .map(|name| b.param(name, &[8], Init::Value((1..9).map(|i| i as f32).collect()), Group::NoDecay));
    let params = b.build(4, Device::Cpu).unwrap();
    let x = Tensor::randn([3, 8], (Kind::Float, Device::Cpu));
    let grads = GradBuckets::new(&params).unwrap();
    let cx = Cx::train(&params, 1, 2);
    let mut h = cx.input(x.shallow_clone());
    for id in [a, twice, twice, c] {
        h = f::mul(&cx, &h, &cx.param(id)).unwrap();
    }
    let loss = f::sum_all(&cx, &h).unwrap();
    cx.backward(&loss, &grads, &mut |_, _| Ok(())).unwrap();
    let additions: Vec<usize> = cx.with_program(|program| {
        let all = program.recs().iter().filter(|rec| rec.op == Op::GradAdd(op::GradAdd));
        all.map(|rec| rec.ins.len() / 2).collect()
    });
    assert_eq!(additions, [2, 2], "c and twice; twice once more and a");
    let w = Tensor::from_slice(&(1..9).map(|i| i as f32).collect::<Vec<_>>());
    let expected = |power: f64, times: f64| x.sum_dim_intlist(0, false, None) * w.pow_tensor_scalar(power) * times;
    for (id, times) in [(a, 1.0), (twice, 2.0), (c, 1.0)] {
        assert!(distance(grads.view(id), &expected(3.0, times)) < 1e-3);
    }
}

#[test]
fn a_hook_that_fails_stops_the_walk_with_its_words() {
    let net = net();
    let x = data();
    let grads = GradBuckets::new(&net.params).unwrap();
    let cx = Cx::train(&net.params, 1, 2);
    let l = loss(&cx, &net, &x).unwrap();
    let error = cx.backward(&l, &grads, &mut |_, _| Err("peer is gone".into())).unwrap_err();
    assert!(error.to_string().contains("peer is gone"), "{error}");
}

#[test]
fn a_saved_tensor_written_before_backward_is_an_error() {
    let net = net();
    let x = data();
    let grads = GradBuckets::new(&net.params).unwrap();
    let cx = Cx::train(&net.params, 1, 2);
    let l = loss(&cx, &net, &x).unwrap();
    let _ = net.params.get(net.tied).shallow_clone().g_add_(&Tensor::from(1.0));
    let error = cx.backward(&l, &grads, &mut |_, _| Ok(())).unwrap_err();
    assert!(matches!(*error.kind, OpErrorKind::Version { .. }), "{error}");
    assert!(error.to_string().contains("something outside the step"), "{error}");
    assert_eq!(error.place, "net");
}

/// Adds one to `x` where it lies.
fn add_in_place(cx: &Cx<'_>, x: &Traced) -> Result<(), OpError> {
    let args = vec![AtenArg::Operand, AtenArg::Int(1), AtenArg::Int(1)];
    f::aten(cx, "aten::add_", "Scalar", args, &[x]).map(drop)
}

#[test]
fn what_wrote_a_saved_tensor_is_named() {
    let net = net();
    let x = data();
    let grads = GradBuckets::new(&net.params).unwrap();
    let cx = Cx::train(&net.params, 1, 2);
    let x = cx.input(x);
    let h = f::linear(&cx, &x, &cx.param(net.w), None).unwrap();
    {
        let _scope = cx.scope("careless");
        add_in_place(&cx, &x).unwrap();
    }
    let l = f::sum_all(&cx, &h).unwrap();
    let error = cx.backward(&l, &grads, &mut |_, _| Ok(())).unwrap_err().to_string();
    for part in ["linear", "operand 0", "aten::add_", "in \"careless\""] {
        assert!(error.contains(part), "{part} in: {error}");
    }
}

#[test]
fn a_part_that_writes_in_place_is_an_error_where_it_is_computed_again() {
    let net = net();
    let x = data();
    for again in [false, true] {
        let cx = Cx::train(&net.params, 1, 2);
        cx.set_recompute(again);
        let x = cx.input(x.shallow_clone());
        let part = cx.part(|cx| add_in_place(cx, &x));
        match part {
            Ok(()) => assert!(!again),
            Err(error) => assert!(again && matches!(*error.kind, OpErrorKind::Impure), "{error}"),
        }
    }
}

#[test]
fn backward_runs_once_and_only_on_a_scalar_of_a_training_step() {
    let net = net();
    let x = data();
    let grads = GradBuckets::new(&net.params).unwrap();
    let kind = |e: OpError| *e.kind;
    let cx = Cx::train(&net.params, 1, 2);
    let l = loss(&cx, &net, &x).unwrap();
    cx.backward(&l, &grads, &mut |_, _| Ok(())).unwrap();
    assert!(matches!(kind(cx.backward(&l, &grads, &mut |_, _| Ok(())).unwrap_err()), OpErrorKind::NoTape));
    let cx = Cx::eval(&net.params);
    let l = loss(&cx, &net, &x).unwrap();
    assert!(matches!(kind(cx.backward(&l, &grads, &mut |_, _| Ok(())).unwrap_err()), OpErrorKind::NoTape));
    let cx = Cx::train(&net.params, 1, 2);
    let wide = f::square(&cx, &cx.param(net.bias)).unwrap();
    assert!(matches!(kind(cx.backward(&wide, &grads, &mut |_, _| Ok(())).unwrap_err()), OpErrorKind::Loss { .. }));
}

#[test]
fn the_hash_names_the_program() {
    let net = net();
    let x = data();
    let hash = |x: &Tensor, p: f64, scope: &str| {
        let grads = GradBuckets::new(&net.params).unwrap();
        let cx = Cx::train(&net.params, 5, 6);
        let l = loss(&cx, &net, x).unwrap();
        let scope = cx.scope(scope);
        let l = f::scale(&cx, &l, p).unwrap();
        drop(scope);
        cx.backward(&l, &grads, &mut |_, _| Ok(())).unwrap();
        cx.program_hash()
    };
    let base = hash(&x, 0.5, "tail");
    assert_eq!(base, hash(&(&x + 1.0), 0.5, "tail"), "data is not part of the program");
    assert_ne!(base, hash(&x, 0.25, "tail"), "an attribute is");
    assert_ne!(base, hash(&x, 0.5, "head"), "a place is");
    assert_ne!(base, hash(&x.narrow(0, 0, 3), 0.5, "tail"), "a shape is");
}

#[test]
fn dropout_depends_on_seed_step_and_global_row_only() {
    let params = ParamBuilder::new().build(0, Device::Cpu).unwrap();
    let x = Tensor::ones([6, 5, 4], (Kind::Float, Device::Cpu));
    let run = |seed, step, first: i64, rows: i64, path: bool| {
        let cx = Cx::train(&params, seed, step);
        cx.set_rows(first as u64, rows as u64);
        let part = cx.input(x.narrow(0, first, rows));
        let first = f::dropout(&cx, &part, 0.4).unwrap();
        let y = if path { f::drop_path(&cx, &first, 0.4) } else { f::dropout(&cx, &first, 0.4) };
        y.unwrap().raw().copy()
    };
    for path in [false, true] {
        let whole = run(1, 2, 0, 6, path);
        assert!(whole.equal(&run(1, 2, 0, 6, path)));
        assert!(!whole.equal(&run(1, 3, 0, 6, path)));
        assert!(!whole.equal(&run(2, 2, 0, 6, path)));
        let split = Tensor::cat(&[run(1, 2, 0, 4, path), run(1, 2, 4, 2, path)], 0);
        assert!(whole.equal(&split), "two ranks drop what one rank drops");
    }
    let big = Tensor::ones([200_000], (Kind::Float, Device::Cpu));
    let cx = Cx::train(&params, 1, 1);
    let kept =
        f::dropout(&cx, &cx.input(big), 0.1).unwrap().raw().gt(0.0).to_kind(Kind::Double).mean(None).double_value(&[]);
    assert!((kept - 0.9).abs() < 0.003, "{kept} kept");
    let cx = Cx::eval(&params);
    let t = cx.input(x.shallow_clone());
    assert!(f::dropout(&cx, &t, 0.4).unwrap().raw().equal(&x));
}

#[test]
fn initial_values_depend_on_seed_and_path_only() {
    let build = |seed, extra: bool| {
        let mut b = ParamBuilder::new();
        if extra {
            b.param("before", &[3], Init::Zeros, Group::Decay);
        }
        let id = b.scoped("a", |b| b.param("w", &[40, 50], Init::Linear { fan_in: 50 }, Group::Decay));
        let p = b.build(seed, Device::Cpu).unwrap();
        p.get(id).copy()
    };
    assert!(build(1, false).equal(&build(1, true)));
    assert!(!build(1, false).equal(&build(2, false)));
    let bound = build(1, false).abs().max().double_value(&[]);
    assert!(bound <= 50f64.sqrt().recip() && bound > 0.98 * 50f64.sqrt().recip());
    let mut b = ParamBuilder::new();
    let id = b.param("n", &[100_000], Init::Normal { std: 0.5 }, Group::Decay);
    let p = b.build(3, Device::Cpu).unwrap();
    assert!((p.get(id).std(true).double_value(&[]) - 0.5).abs() < 0.005);
    assert!(p.get(id).mean(None).double_value(&[]).abs() < 0.005);
}

#[test]
fn loading_is_strict_and_in_place() {
    let mut net = net();
    let before = net.params.get(net.w).data_ptr();
    let fresh: Vec<(String, Tensor)> = net.params.named().map(|(n, t)| (n.to_owned(), t.zeros_like())).collect();
    net.params.load(fresh.iter().map(|(n, t)| (n.as_str(), t))).unwrap();
    assert_eq!(net.params.get(net.w).data_ptr(), before);
    assert_eq!(net.params.get(net.tied).abs().max().double_value(&[]), 0.0);
    let wrong = Tensor::ones([2, 2], (Kind::Double, Device::Cpu));
    let error = net.params.load([("net.w", &wrong), ("net.other", &wrong)]).unwrap_err().to_string();
    for word in ["net.tied", "net.other", "net.w [2, 2] instead of [5, 4]"] {
        assert!(error.contains(word), "{error}");
    }
    assert_eq!(net.params.get(net.w).abs().max().double_value(&[]), 0.0, "nothing was written");
}

#[test]
fn the_random_words_of_every_device_are_the_same() {
    use enn_worker::op::random::philox::philox_words;
    let seed = 0xdead_beef_0123_4567_u64;
    let step = (1 << 40) + 5_u64;
    for first in [0_i64, 1, 6, (1 << 35) + 3] {
        // One row holds ten words: the words of this rank begin at ten times its first row.
        let key = Tensor::from_slice(&[seed.cast_signed(), step.cast_signed(), first, 1]);
        let words = Vec::<i64>::try_from(philox_words(&key, 9, 10).unwrap()).unwrap();
        for (i, word) in words.into_iter().enumerate() {
            let element = 10 * first as u64 + i as u64;
            let counter = [(element / 4) as u32, ((element / 4) >> 32) as u32, 9, step as u32];
            let halves = [seed as u32, (seed >> 32) as u32 ^ (step >> 32) as u32];
            assert_eq!(
                word,
                i64::from(crate::gradcheck::oracle::philox(counter, halves)[(element % 4) as usize]),
                "word {element}"
            );
        }
    }
}
