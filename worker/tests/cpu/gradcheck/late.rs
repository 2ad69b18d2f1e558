//! What the sums of gradients over the ranks travel behind: products that are computed last, where no bit changes, and the norm.

use enn_worker::autograd::Cx;
use enn_worker::error::HookError;
use enn_worker::functional as f;
use enn_worker::op::collective::Collectives;
use enn_worker::optim::{AdamW, AdamWSettings, FlatParams};
use enn_worker::params::{GradBuckets, Group, Init, ParamBuilder, ParamId, Params};
use tch::{Device, Kind, Tensor};

/// Two ranks; a byte takes as long as so many operations.
struct Ranks(f64);

impl Collectives for Ranks {
    fn ranks(&self) -> u32 {
        2
    }

    fn flops_per_byte(&self) -> f64 {
        self.0
    }

    fn all_reduce(&self, _: &Tensor) -> Result<(), HookError> {
        Ok(())
    }

    fn reduce_scatter(&self, _: &Tensor) -> Result<(), HookError> {
        Ok(())
    }

    fn all_gather(&self, _: &Tensor) -> Result<(), HookError> {
        Ok(())
    }

    fn order(&self) -> Result<(), HookError> {
        Ok(())
    }

    fn wait(&self) -> Result<(), HookError> {
        Ok(())
    }
}

/// A first layer with half of the weights that sees one row of thirty-two, and four layers behind it that see all.
struct Net {
    params: Params,
    first: ParamId,
    layers: Vec<(ParamId, ParamId)>,
}

const WIDTH: i64 = 96;
const ROWS: i64 = 32;

fn net() -> Net {
    let mut b = ParamBuilder::new();
    b.limit_buckets(0.04);
    let first = b.param("first", &[WIDTH, 4 * WIDTH], Init::Linear { fan_in: 4 * WIDTH }, Group::Decay);
    let layers = (0..4).map(|i| {
        let weight = b.param(&format!("w{i}"), &[WIDTH, WIDTH], Init::Linear { fan_in: WIDTH }, Group::Decay);
        (weight, b.param(&format!("b{i}"), &[WIDTH], Init::Ones, Group::NoDecay))
    });
    let layers = layers.collect();
    Net { params: b.build(9, Device::Cpu).unwrap(), first, layers }
}

/// What a step made.
struct Walked {
    /// By bucket.
    grads: Vec<Tensor>,
    /// Buckets in the order in which they were ready.
    order: Vec<usize>,
    /// Operations recorded.
    names: Vec<&'static str>,
    /// Of all gradients.
    norm: f64,
}

fn walk(net: &Net, flops_per_byte: f64) -> Walked {
    let grads = GradBuckets::new(&net.params).unwrap();
    let ranks = Ranks(flops_per_byte);
    let mut cx = Cx::train(&net.params, 1, 2);
    cx.set_collectives(&ranks);
    let x = cx.input(Tensor::arange(4 * WIDTH, (Kind::Float, Device::Cpu)).sin().reshape([1, 4 * WIDTH]));
    let one = f::linear(&cx, &x, &cx.param(net.first), None).unwrap();
    let mut h = f::expand(&cx, &one, &[ROWS, WIDTH]).unwrap();
    for (weight, bias) in &net.layers {
        h = f::tanh(&cx, &f::linear(&cx, &h, &cx.param(*weight), Some(&cx.param(*bias))).unwrap()).unwrap();
    }
    let loss = f::sum_all(&cx, &f::square(&cx, &h).unwrap()).unwrap();
    let mut seen: Vec<Option<Tensor>> = (0..net.params.layout().buckets()).map(|_| None).collect();
    let mut order = Vec::new();
    cx.backward(&loss, &grads, &mut |bucket, flat| {
        order.push(bucket.index());
        assert!(seen[bucket.index()].replace(flat.copy()).is_none(), "a bucket is ready once");
        Ok(cx.all_reduce(flat)?)
    })
    .unwrap();
    let seen: Vec<Tensor> = seen.into_iter().map(Option::unwrap).collect();
    for (bucket, flat) in grads.buckets() {
        assert!(flat.equal(&seen[bucket.index()]), "nothing is added to a bucket that was ready");
    }
    let settings = AdamWSettings { betas: (0.9, 0.99), weight_decay: 0.1, clip: 1.0 };
    let optimizer = AdamW::new(&FlatParams::of(&net.params), settings).unwrap();
    let norm = optimizer.complete(&cx, &grads).unwrap();
    let names = cx.with_program(|program| program.recs().iter().map(|rec| rec.op.name()).collect());
    Walked { grads: seen, order, names, norm: norm.raw().double_value(&[]) }
}

#[test]
fn products_are_put_off_so_that_the_first_layers_sums_travel_and_no_bit_changes() {
    let net = net();
    let plain = walk(&net, 0.0);
    let first = net.params.layout().place(net.first).0.index();
    assert_eq!(plain.order.last(), Some(&first), "the walk reaches the first layer last");
    let late = walk(&net, 8.0);
    assert_ne!(late.order.last(), Some(&first), "{:?}", late.order);
    assert_eq!(plain.grads.len(), late.grads.len());
    assert!(plain.grads.iter().zip(&late.grads).all(|(a, b)| a.equal(b)));
    let products = |walked: &Walked| walked.names.iter().filter(|name| **name == "linear_backward").count();
    assert!(products(&late) > products(&plain), "what was put off is a record of its own");
    assert_eq!(walk(&net, 8.0).order, late.order, "every rank and every step puts off the same");
    // Sums that take no time are not worth it.
    assert_eq!(walk(&net, 1e-6).order, plain.order);
}

#[test]
fn the_norm_of_all_gradients_but_those_ready_last_is_measured_while_these_are_summed() {
    let net = net();
    let end = |walked: &Walked| -> Vec<&'static str> {
        let ends = ["order", "global_norm", "all_reduce_wait"];
        walked.names.iter().filter(|name| ends.contains(name)).copied().collect()
    };
    let plain = walk(&net, 0.0);
    let beside = walk(&net, 8.0);
    assert_eq!(end(&plain), ["all_reduce_wait", "global_norm"]);
    assert_eq!(end(&beside), ["order", "global_norm", "all_reduce_wait", "global_norm"]);
    assert!((plain.norm - beside.norm).abs() < 1e-12 * plain.norm, "{} and {}", plain.norm, beside.norm);
}
