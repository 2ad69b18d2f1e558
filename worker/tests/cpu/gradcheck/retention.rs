//! The scan against its definition at length, splitting with a carried state, and lengths of zero.

use crate::gradcheck::operands::distance;
use crate::gradcheck::oracle::retention_rows;
use enn_worker::autograd::Cx;
use enn_worker::functional::{Dir, retention_scan};
use enn_worker::params::ParamBuilder;
use tch::{Device, Kind, Tensor};

fn lambda(heads: i64, kind: Kind) -> Tensor {
    // The model's own start: 1 − 2^−(5 + h/H), and the ends of β's range.
    let beta: Vec<f64> = (0..heads).map(|h| [1.0, 5.0, 5.5, 16.0][(h % 4) as usize]).collect();
    (-(Tensor::from_slice(&beta) * -(2f64.ln())).exp() + 1.0).to_kind(kind)
}

/// Rows on both sides of every 16th chunk border, and the last.
fn long_rows(n: i64) -> Tensor {
    let rows: Vec<i64> = (0..n).filter(|t| matches!(t % 1024, 0 | 1 | 63 | 64 | 512 | 1023)).collect();
    Tensor::from_slice(&rows)
}

#[test]
fn scan_equals_its_definition_up_to_16k_positions() {
    tch::manual_seed(1);
    let params = ParamBuilder::new().build(0, Device::Cpu).unwrap();
    for (n, heads, width) in [(1, 4, 3), (63, 4, 3), (64, 4, 3), (65, 4, 3), (200, 4, 3), (4097, 2, 2), (16384, 1, 1)] {
        let v = Tensor::randn([1, n, heads, width], (Kind::Float, Device::Cpu));
        let state = Tensor::randn([1, heads, width], (Kind::Float, Device::Cpu));
        let lambda = lambda(heads, Kind::Float);
        let cx = Cx::eval(&params);
        let vt = cx.input(v.shallow_clone());
        let lt = cx.input(lambda.shallow_clone());
        let st = cx.input(state.shallow_clone());
        for (dir, with_state) in [(Dir::Causal, true), (Dir::Causal, false), (Dir::Bidirectional, false)] {
            let (y, out) = retention_scan(&cx, &vt, &lt, dir, with_state.then_some(&st)).unwrap();
            // The definition in f64 from the f32 λ: all rows, or at great lengths enough of them.
            let double = |t: &Tensor| t.to_kind(Kind::Double);
            let rows = if n <= 4097 { Tensor::arange(n, (Kind::Int64, Device::Cpu)) } else { long_rows(n) };
            let ins = [double(&v), double(&lambda), double(&state)];
            let expected = retention_rows(dir, &ins, with_state, &rows);
            let off = |a: &Tensor, b: &Tensor| {
                (double(a) - b).abs().max().double_value(&[]) / (1.0 + expected.abs().max().double_value(&[]))
            };
            let found = off(&y.raw().index_select(1, &rows), &expected);
            assert!(found < 1e-5, "{dir:?} n = {n}: off by {found}");
            if let Some(out) = out {
                let found = off(out.raw(), &expected.select(1, -1));
                assert!(found < 1e-5, "{dir:?} state at n = {n}: off by {found}");
            }
        }
    }
}

#[test]
fn one_call_equals_two_with_a_carried_state() {
    tch::manual_seed(2);
    let params = ParamBuilder::new().build(0, Device::Cpu).unwrap();
    let cx = Cx::eval(&params);
    let n = 301;
    let cut = 113;
    let v = Tensor::randn([2, n, 4, 3], (Kind::Double, Device::Cpu));
    let lambda = cx.input(lambda(4, Kind::Double));
    let part = |from: i64, len: i64| cx.input(v.narrow(1, from, len));
    let (whole, end) = retention_scan(&cx, &part(0, n), &lambda, Dir::Causal, None).unwrap();
    let (first, state) = retention_scan(&cx, &part(0, cut), &lambda, Dir::Causal, None).unwrap();
    let (second, end_two) = retention_scan(&cx, &part(cut, n - cut), &lambda, Dir::Causal, state.as_ref()).unwrap();
    let joined = Tensor::cat(&[first.raw(), second.raw()], 1);
    assert!(distance(&joined, whole.raw()) < 1e-13);
    assert!(distance(end_two.unwrap().raw(), end.unwrap().raw()) < 1e-13);
}

#[test]
fn zero_positions_pass_the_state_through() {
    let params = ParamBuilder::new().build(0, Device::Cpu).unwrap();
    let cx = Cx::eval(&params);
    let v = cx.input(Tensor::zeros([2, 0, 4, 3], (Kind::Float, Device::Cpu)));
    let state = cx.input(Tensor::randn([2, 4, 3], (Kind::Float, Device::Cpu)));
    let lambda = cx.input(lambda(4, Kind::Float));
    let (y, out) = retention_scan(&cx, &v, &lambda, Dir::Causal, Some(&state)).unwrap();
    assert_eq!(y.shape(), [2, 0, 4, 3]);
    assert_eq!(distance(out.unwrap().raw(), state.raw()), 0.0);
}

#[test]
fn the_cpu_kernel_equals_the_reference_on_every_device() {
    use enn_worker::backend::torch::safe::{self, RetentionBackward};
    use enn_worker::op::retention::scan::{reference, reference_backward};
    tch::manual_seed(4);
    for (kind, tolerance) in [(Kind::Float, 2e-5), (Kind::Double, 1e-12)] {
        for n in [1, 64, 150] {
            let rand = |shape: &[i64]| Tensor::randn(shape, (kind, Device::Cpu));
            // A view whose positions are not contiguous with each other, as a split of one wide projection is.
            let v = rand(&[2, n, 8, 3]).narrow(2, 2, 4);
            let g = rand(&[2, n, 4, 3]).transpose(0, 0);
            let lambda = lambda(4, kind);
            let state = rand(&[2, 4, 3]);
            let gstate = rand(&[2, 4, 3]);
            for dir in [Dir::Causal, Dir::Bidirectional] {
                let both = dir == Dir::Bidirectional;
                let state = (!both).then_some(&state);
                let y = reference(&v, &lambda, state, dir).unwrap();
                assert!(distance(&safe::retention(&v, &lambda, state, both).unwrap(), &y) < tolerance);
                let gstate = (!both).then_some(&gstate);
                let reverse = RetentionBackward { v: &v, lambda: &lambda, y: &y, g: &g, state, gstate, both };
                let ours = safe::retention_backward(&reverse).unwrap();
                let theirs = reference_backward(&reverse).unwrap();
                for (i, (a, b)) in ours.iter().zip(&theirs).enumerate().take(if both { 2 } else { 3 }) {
                    assert!(distance(a, b) < tolerance * 10.0, "{dir:?} {n} gradient {i}: {}", distance(a, b));
                }
            }
        }
    }
}
