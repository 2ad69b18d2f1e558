//! A model that began as another says what that one says: with its scaler or another, with categories and inputs in another order.

use super::{tests::config, *};
use enn_common::{
    config::{
        parent::ScalerChoice,
        train::{Loss, TrainConfig},
    },
    staged::meta::{FeatureMeta, IndexMeta, LabelMeta, Stats},
};
use enn_core::params::Params;
use std::collections::BTreeMap;

/// Of f32 numbers that are added up in another order, in target standard deviations.
const TOLERANCE: f64 = 2e-5;

fn number(name: &str, has_missing: bool) -> FeatureMeta {
    FeatureMeta { name: name.to_owned(), has_missing, ..FeatureMeta::default() }
}

fn category(name: &str, of: &[&str]) -> FeatureMeta {
    FeatureMeta {
        name: name.to_owned(),
        categories: of.iter().map(|c| (*c).to_owned()).collect(),
        ..FeatureMeta::default()
    }
}

fn stats(mean: f64, std: f64) -> Stats {
    Stats { n: 32, mean, std, min: mean - std, max: mean + std }
}

fn spec(features: Vec<FeatureMeta>, x_stats: Vec<Stats>, y: (f64, f64), loss: Loss) -> ModelSpec {
    let y_stats = (0..6).map(|cell| stats(y.0 + f64::from(cell), y.1 * (1.0 + 0.1 * f64::from(cell)))).collect();
    let head = Head::new(&TrainConfig { loss, ..TrainConfig::default() });
    ModelSpec { features, out_shape: vec![2, 3], train_rows: 32, x_stats, y_stats, head }
}

fn parent(loss: Loss) -> (ModelSpec, Model, Params) {
    let features =
        vec![number("u", true), category("c", &["x", "y"]), number("v", false), category("d", &["p", "q", "r"])];
    let x_stats = vec![stats(10.0, 2.0), stats(0.0, 1.0), stats(-5.0, 0.5), stats(0.0, 1.0)];
    grown(spec(features, x_stats, (50.0, 8.0), loss))
}

/// A model as after training.
fn grown(spec: ModelSpec) -> (ModelSpec, Model, Params) {
    let (model, params) = built(&spec, 7);
    // Nothing is zero or one.
    for (_, tensor) in params.named() {
        let noise = Raw::randn(tensor.size(), (Kind::Float, Device::Cpu)) * 0.2;
        let _ = tch::no_grad(|| tensor.shallow_clone().f_add_(&noise)).unwrap();
    }
    (spec, model, params)
}

fn built(spec: &ModelSpec, seed: u64) -> (Model, Params) {
    tch::set_num_threads(1);
    tch::manual_seed(seed.cast_signed());
    let mut pb = ParamBuilder::new();
    let config = ModelConfig { linear_branch: true, ..config() };
    let model = Model::build(&config, spec, &mut pb).unwrap();
    (model, pb.build(seed, Device::Cpu).unwrap())
}

fn load_pretrained(
    own: &ModelSpec,
    (theirs, model, params): &(ModelSpec, Model, Params),
    choice: ScalerChoice,
) -> (Model, Params, PretrainedReport) {
    let (mut target, mut weights) = built(own, 9);
    let named = params.named().map(|(name, raw)| (name.to_owned(), raw.copy())).collect();
    let buffers: BTreeMap<String, Raw> = model.buffers().into_iter().collect();
    let pretrained = PretrainedModel { inputs: &theirs.features, weights: &named, buffers: &buffers };
    let report = target.load_pretrained(&mut weights, &own.features, &pretrained, choice).unwrap();
    (target, weights, report)
}

/// Quantiles and points for rows in the user's units, all in one.
fn answer<const WIDTH: usize>(model: &Model, params: &Params, x: &[[f32; WIDTH]]) -> Raw {
    let cx = Cx::eval(params);
    let x = Raw::from_slice(&x.concat()).view([-1, WIDTH as i64]);
    let valid = x.isfinite();
    let output = model.forward(&cx, &cx.input(x), &cx.input(valid)).unwrap();
    let answer = model.answer(&cx, &output).unwrap();
    Raw::cat(&answer.quantiles.iter().chain([&answer.point]).map(|t| t.raw().shallow_clone()).collect::<Vec<_>>(), 1)
}

fn apart(one: &Raw, other: &Raw) -> f64 {
    ((one - other).abs().max() / 8.0).double_value(&[])
}

/// u, c, v, d of the parent.
const ROWS: [[f32; 4]; 5] = [
    [9.0, 0.0, -5.2, 2.0],
    [12.5, 1.0, -4.0, 0.0],
    [f32::NAN, 1.0, -5.5, 1.0],
    [10.0, 9.0, -5.0, 1.0],
    [7.0, 0.0, -6.0, 0.0],
];

#[test]
fn the_same_inputs_in_another_order_with_new_categories_say_the_same() {
    for loss in [Loss::Huber, Loss::Quantile, Loss::StudentT] {
        let theirs = parent(loss);
        let expected = answer(&theirs.1, &theirs.2, &ROWS);
        // d, u, c, v; c has one more in front, d is turned.
        let features = vec![
            category("d", &["r", "q", "p"]),
            number("u", true),
            category("c", &["w", "x", "y"]),
            number("v", true),
        ];
        let moved = ROWS.map(|[u, c, v, d]| [2.0 - d, u, c + 1.0, v]);
        for (choice, x, y) in [
            (ScalerChoice::Keep, [(10.0, 2.0), (-5.0, 0.5)], (50.0, 8.0)),
            (ScalerChoice::Keep, [(3.0, 5.0), (1.0, 0.1)], (-20.0, 1.0)),
            (ScalerChoice::Refit, [(13.0, 5.0), (-4.0, 0.7)], (20.0, 3.0)),
        ] {
            let x_stats = vec![stats(0.0, 1.0), stats(x[0].0, x[0].1), stats(0.0, 1.0), stats(x[1].0, x[1].1)];
            let own = spec(features.clone(), x_stats, y, loss);
            let (target, weights, report) = load_pretrained(&own, &theirs, choice);
            assert!(report.problems.is_empty(), "{:?}", report.problems);
            assert_eq!(report.notes, ["c initialises new categories like unknown ones: w"]);
            assert_eq!(report.taken, weights.named().count());
            let found = answer(&target, &weights, &moved);
            assert!(apart(&found, &expected) < TOLERANCE, "{loss:?} {choice:?}: {}", apart(&found, &expected));
            // What is new is an unknown one, and learns for itself.
            let new = [[2.0, 9.0, 0.0, -5.2]];
            let unknown = [[2.0, 9.0, f32::NAN, -5.2]];
            assert!(apart(&answer(&target, &weights, &new), &answer(&target, &weights, &unknown)) < TOLERANCE);
            // Once more, with the scaler brought along.
            let grandchild = load_pretrained(&own, &(own.clone(), target, weights), ScalerChoice::Keep);
            assert!(apart(&answer(&grandchild.0, &grandchild.1, &moved), &expected) < TOLERANCE);
        }
    }
}

fn label(name: &str, has_missing: bool) -> FeatureMeta {
    let label = Some(LabelMeta { column: "w".to_owned(), name: name.to_owned() });
    FeatureMeta { label, ..number(&format!("w[{name}]"), has_missing) }
}

#[test]
fn labels_one_hot_rows_and_an_index_in_another_order_say_the_same() {
    let one_hot = |of: &[&str]| FeatureMeta { one_hot: true, ..category("c", of) };
    let index =
        |of: &[&str], offset, unseen| FeatureMeta { index: Some(IndexMeta { offset, unseen }), ..category("i", of) };
    let features = vec![
        label("rain", true),
        label("wind", false),
        one_hot(&["x", "y"]),
        index(&["1", "2", "3"], 1, vec![1]),
        number("n", false),
    ];
    let theirs = grown(spec(features, vec![stats(0.0, 1.0); 5], (50.0, 8.0), Loss::Huber));
    let nan = f32::NAN;
    // rain, wind, c, i, n; of two rows the labels are missing, and one has strangers.
    let rows =
        [[1.0, 0.0, 0.0, 0.0, 0.5], [nan, nan, 1.0, 1.0, -1.0], [1.0, 1.0, 2.0, 3.0, 0.0], [nan, nan, 0.0, 2.0, 2.0]];
    let expected = answer(&theirs.1, &theirs.2, &rows);
    // n, i from 0 on, hail, wind, rain, c turned with one more: the flag of the labels is that of another label.
    let features = vec![
        number("n", false),
        index(&["0", "1", "2", "3"], 0, vec![0]),
        label("hail", true),
        label("wind", false),
        label("rain", false),
        one_hot(&["v", "y", "x"]),
    ];
    let own = spec(features, vec![stats(0.0, 1.0); 6], (50.0, 8.0), Loss::Huber);
    let moved = |hail: f32| rows.map(|[rain, wind, c, i, n]| [n, i + 1.0, hail + 0.0 * rain, wind, rain, 2.0 - c]);
    let (target, weights, report) = load_pretrained(&own, &theirs, ScalerChoice::Keep);
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    assert_eq!(
        report.notes,
        [
            "i initialises new categories like unknown ones: 0",
            "w[hail] is a new label and begins without effect",
            "c initialises new categories like unknown ones: v",
        ]
    );
    for hail in [0.0, 1.0] {
        let found = answer(&target, &weights, &moved(hail));
        assert!(apart(&found, &expected) < TOLERANCE, "{hail}: {}", apart(&found, &expected));
    }
}

#[test]
fn what_does_not_fit_is_listed_and_left() {
    let theirs = parent(Loss::Huber);
    let mut own = theirs.0.clone();
    own.features[2] = number("z", false);
    own.features[3] = category("d", &["p", "q"]);
    own.head = Head::new(&TrainConfig { loss: Loss::Gaussian, ..TrainConfig::default() });
    let (_, weights, report) = load_pretrained(&own, &theirs, ScalerChoice::Refit);
    let all = report.problems.join("; ");
    for part in [
        "the input z is missing there",
        "the input v is unexpected",
        "d has no r here",
        "base.channels.bias is missing there",
    ] {
        assert!(all.contains(part), "{all}");
    }
    let name = "refine.out.weight";
    let get = |params: &Params| params.get(params.by_name(name).unwrap()).shallow_clone();
    assert_eq!(get(&weights), get(&theirs.2), "what fits is taken");
}
