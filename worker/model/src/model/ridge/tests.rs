//! Tests of the regression: its equations, and that what it chooses is right for rows it has not seen.

use super::*;
use tch::Device;

fn random(seed: i64, shape: [i64; 2]) -> Raw {
    tch::manual_seed(seed);
    Raw::randn(shape, (Kind::Double, Device::Cpu))
}

/// Mean squared error of the truth (n, O) for predictions.
fn error(found: &Raw, truth: &Raw) -> f64 {
    (found - truth).square().mean(Kind::Double).double_value(&[])
}

/// (X'ᵀX' + λI)⁻¹X'ᵀY of centred data with scaled columns, by a solver.
fn direct(x: &Raw, y: &Raw, scales: &Raw, lambda: f64) -> Raw {
    let x = (x - column_mean(x).unwrap()) * scales;
    let eye = Raw::eye(x.size()[1], (Kind::Double, Device::Cpu));
    let solved = Raw::linalg_solve(&(x.tr().matmul(&x) + eye * lambda), &x.tr().matmul(y), true);
    solved * scales.unsqueeze(1)
}

#[test]
fn every_component_solves_its_normal_equations() {
    // More rows than columns, fewer rows than columns, and fewer rows than cells.
    for (n, f, o, crosses) in [(40, 7, 4, 0), (12, 40, 4, 9), (8, 3, 10, 1)] {
        let x = random(1, [n, f]) + 3.0;
        let y = random(2, [n, o]) - 5.0;
        let ridge = Ridge::fit(&x, &y, crosses).unwrap();
        let choice = StrengthChoice::by_cross_validation(&x, &y, crosses).unwrap();
        let yc = &y - column_mean(&y).unwrap();
        let (found, _) = directions(&yc, choice.components()).unwrap();
        for (k, (pick, (lambda, freedom))) in (0..).zip(choice.picks.iter().zip(&ridge.strengths)) {
            let centred = Centred::of(&x, &column_mean(&x).unwrap(), &yc).unwrap();
            let scales = pick.candidate.scales(&centred, crosses).unwrap();
            let rest = || Raw::eye(o, (Kind::Double, Device::Cpu)) - found.matmul(&found.tr());
            let towards = if k < choice.components() { found.narrow(1, k, 1) } else { rest() };
            let expected = direct(&x, &yc.matmul(&towards), &scales, *lambda);
            let got = ridge.weight.tr().matmul(&towards);
            assert!((got - expected).abs().max().double_value(&[]) < 1e-8, "{n} {f} {o}: part {k}");
            assert!(*freedom >= 0.0 && *freedom <= (n - 1).min(f) as f64 + 1e-9);
        }
        // The intercept makes the residuals sum to zero.
        let residual = column_mean(&(&y - ridge.predict(&x).unwrap())).unwrap();
        assert!(residual.abs().max().double_value(&[]) < 1e-10);
    }
}

#[test]
fn few_rows_of_many_cells_are_fitted_as_each_cell_by_itself() {
    for (n, f, o, crosses) in [(9, 3, 40, 1), (6, 20, 7, 0)] {
        let x = random(4, [n, f]);
        let y = random(5, [n, o]) * 3.0 + 2.0;
        // A cell that does not vary.
        let _ = y.narrow(1, 0, 1).fill_(7.0);
        let turned = Ridge::fit(&x, &y, crosses).unwrap();
        let plain = Ridge::fit_cells(&x, &y, crosses).unwrap();
        assert!((&turned.weight - &plain.weight).abs().max().double_value(&[]) < 1e-9, "{n} {f} {o}");
        assert!((&turned.bias - &plain.bias).abs().max().double_value(&[]) < 1e-9);
        assert!(turned.strengths.iter().zip(&plain.strengths).all(|(a, b)| (a.0 - b.0).abs() < 1e-6 * b.0.max(1.0)));
    }
    let constant = Raw::ones([4, 9], (Kind::Double, Device::Cpu));
    let ridge = Ridge::fit(&random(6, [4, 2]), &constant, 0).unwrap();
    assert_eq!(ridge.weight.abs().max().double_value(&[]), 0.0);
    assert!((ridge.bias - 1.0).abs().max().double_value(&[]) < 1e-12);
}

#[test]
fn leading_directions_are_orthonormal_and_sorted() {
    for (n, o) in [(20, 5), (5, 20)] {
        let y = random(3, [n, o]);
        let y = &y - column_mean(&y).unwrap();
        let (v, _) = directions(&y, 100).unwrap();
        assert_eq!(v.size(), [o, o.min(n - 1)]);
        let eye = Raw::eye(v.size()[1], (Kind::Double, Device::Cpu));
        assert!((v.tr().matmul(&v) - eye).abs().max().double_value(&[]) < 1e-9);
        assert!((y.matmul(&v).matmul(&v.tr()) - &y).abs().max().double_value(&[]) < 1e-9);
        let spread = y.matmul(&v).square().sum_dim_intlist([0].as_slice(), false, Kind::Double);
        assert!(Vec::<f64>::try_from(spread).unwrap().windows(2).all(|w| w[0] >= w[1] - 1e-9));
    }
}

/// Three columns of three hundred say something: plain ridge spreads its weight over all of them.
#[test]
fn columns_that_say_nothing_are_given_little() {
    let x = random(5, [80, 300]);
    let fresh = random(6, [200, 300]);
    let truth = |x: &Raw| x.narrow(1, 0, 3).matmul(&random(7, [3, 6])) * 2.0;
    let y = truth(&x) + random(8, [80, 6]);
    let ridge = Ridge::fit(&x, &y, 0).unwrap();
    let picks = StrengthChoice::by_cross_validation(&x, &y, 0).unwrap().picks;
    let plain = direct(&x, &(&y - column_mean(&y).unwrap()), &Raw::ones([300], (Kind::Double, Device::Cpu)), 50.0);
    let ours = error(&ridge.predict(&fresh).unwrap(), &truth(&fresh));
    let theirs = error(&fresh.matmul(&plain), &truth(&fresh));
    assert!(ours < theirs / 3.0, "{ours} against {theirs}; {picks:?}");
}

/// Pairs matter along one direction of the targets and are noise along another: each gets what it needs.
#[test]
fn crosses_are_used_where_they_matter() {
    let n = 160;
    let first = Raw::arange(n, (Kind::Int64, Device::Cpu)).remainder(8);
    let second = Raw::arange(n, (Kind::Int64, Device::Cpu)).floor_divide_scalar(8).remainder(4);
    let main = Raw::cat(&[first.one_hot(8), second.one_hot(4)], 1).to_kind(Kind::Double);
    let pairs = (&first * 4 + &second).one_hot(32).to_kind(Kind::Double);
    let x = Raw::cat(&[&main, &pairs], 1);
    let truth = Raw::cat(&[pairs.matmul(&random(1, [32, 1])) * 3.0, main.matmul(&random(2, [12, 1]))], 1);
    let y = &truth + random(3, [n, 2]);
    let with = error(&Ridge::fit(&x, &y, 32).unwrap().predict(&x).unwrap(), &truth);
    let without = error(&Ridge::fit(&main, &y, 0).unwrap().predict(&main).unwrap(), &truth);
    assert!(with < without / 5.0, "{with} against {without}");
}

#[test]
fn noise_is_shrunk_to_the_mean_and_signal_is_kept() {
    let x = random(5, [200, 20]);
    let noise = Ridge::fit(&x, &random(9, [200, 4]), 0).unwrap();
    assert!(noise.strengths.iter().all(|(_, freedom)| *freedom < 6.0), "{:?}", noise.strengths);
    let signal = x.matmul(&random(6, [20, 1])).matmul(&Raw::full([1, 4], 3.0, (Kind::Double, Device::Cpu)));
    let signal = Ridge::fit(&x, &(signal + random(7, [200, 4])), 0).unwrap();
    assert!(signal.strengths[0].1 > 12.0, "{:?}", signal.strengths);
}

#[test]
fn constant_inputs_and_constant_targets_give_the_mean() {
    let ones = Raw::ones([10, 3], (Kind::Double, Device::Cpu));
    let y = random(8, [10, 2]);
    let ridge = Ridge::fit(&ones, &y, 1).unwrap();
    assert_eq!(ridge.weight.abs().max().double_value(&[]), 0.0);
    assert!((ridge.bias - column_mean(&y).unwrap()).abs().max().double_value(&[]) < 1e-12);
    let flat = Ridge::fit(&random(1, [3, 4]), &ones.narrow(0, 0, 3), 0).unwrap();
    assert!(
        flat.weight.abs().max().double_value(&[]) < 1e-12 && (flat.bias - 1.0).abs().max().double_value(&[]) < 1e-12
    );
}
