//! The trained model: the ENN model, the GPT of the example or a few large matrices, with one fixed random batch on the device.

use crate::gpt::model::{Gpt, GptSize};
use enn_common::{
    config::{model::ModelConfig, train::TrainConfig},
    staged::meta::{FeatureMeta, Stats},
};
use enn_worker::{
    autograd::{Cx, Tensor},
    error::OpError,
    functional as f,
    layer::Linear,
    loss::Objective,
    model::{Head, Model, ModelSpec},
    params::ParamBuilder,
    session::precision::Demand,
    tch::{Device, Kind, Tensor as Raw, manual_seed},
};
use serde_json::Value;
use std::error::Error;

/// Seed of the batch; the peer benchmark uses its own.
const SEED: i64 = 5;
/// Bound on the standard normal numbers of a batch.
const NORMAL_MAX: f64 = 8.0;

/// A model and its batch.
pub(crate) enum Subject {
    /// The ENN model with x, its mask, y and its mask.
    Enn(Box<Model>, Objective, [Raw; 4]),
    /// The GPT with ids and next ids.
    Gpt(Gpt, [Raw; 2]),
    /// Square linear layers in sequence, with x.
    Matrix(Vec<Linear>, Raw),
}

impl Subject {
    /// Declares the model that `sizes` describes and draws a batch.
    pub(crate) fn new(
        sizes: &Value,
        batch: i64,
        device: Device,
        pb: &mut ParamBuilder,
    ) -> Result<Self, Box<dyn Error>> {
        manual_seed(SEED);
        match sizes["kind"].as_str() {
            Some("enn") => enn(sizes, batch, device, pb),
            Some("gpt") => gpt(sizes, batch, device, pb),
            Some("matrix") => matrix(sizes, batch, device, pb),
            _ => Err("the sizes have no kind, expected \"enn\", \"gpt\" or \"matrix\"".into()),
        }
    }

    /// Returns the batch, which changes from step to step in a training.
    pub(crate) fn batch(&self) -> Vec<Raw> {
        match self {
            Self::Enn(_, _, batch) => batch.iter().map(Raw::shallow_clone).collect(),
            Self::Gpt(_, batch) => batch.iter().map(Raw::shallow_clone).collect(),
            Self::Matrix(_, x) => vec![x.shallow_clone()],
        }
    }

    /// Returns the summed loss of the batch, and its divisor.
    pub(crate) fn loss(&self, cx: &Cx<'_>, batch: &[Tensor]) -> Result<(Tensor, Tensor), OpError> {
        match (self, batch) {
            (Self::Enn(model, objective, _), [x, x_mask, y, y_mask]) => {
                let output = model.forward(cx, x, x_mask)?;
                let loss = objective.forward(cx, &output, &model.targets(cx, y, y_mask)?)?;
                Ok((loss.sum, loss.count))
            }
            (Self::Gpt(model, _), [ids, next]) => Ok((model.loss(cx, ids, next)?, count_of(cx, ids))),
            (Self::Matrix(layers, _), [x]) => {
                let y = layers.iter().try_fold(x.clone(), |x, layer| layer.forward(cx, &x))?;
                Ok((f::sum_all(cx, &f::square(cx, &y)?)?, count_of(cx, &y)))
            }
            _ => unreachable!("the batch is the subject's own"),
        }
    }

    /// Returns what the precision depends on: the largest value, and the number of cells in the loss.
    pub(crate) fn demand(&self) -> Demand {
        let (Self::Enn(_, _, [_, _, targets, _]) | Self::Gpt(_, [targets, _]) | Self::Matrix(_, targets)) = self;
        Demand { largest: NORMAL_MAX, cells: targets.numel() as u64 }
    }

    /// Returns whether training keeps an average of the weights.
    pub(crate) fn averages(&self) -> bool {
        matches!(self, Self::Enn(..))
    }
}

/// Returns the number of elements of a tensor, the divisor of a summed loss.
fn count_of(cx: &Cx<'_>, x: &Tensor) -> Tensor {
    cx.constant(Raw::full([0i64; 0], x.meta().numel() as f64, (Kind::Double, x.device())))
}

fn number(sizes: &Value, key: &str) -> Result<i64, Box<dyn Error>> {
    sizes[key].as_i64().ok_or_else(|| format!("the sizes have no whole number {key:?}").into())
}

fn enn(sizes: &Value, batch: i64, device: Device, pb: &mut ParamBuilder) -> Result<Subject, Box<dyn Error>> {
    let config: ModelConfig = serde_json::from_value(sizes["config"].clone())?;
    let out_shape: Vec<usize> = serde_json::from_value(sizes["out_shape"].clone())?;
    let features = number(sizes, "features")?;
    let cells = out_shape.iter().product::<usize>() as i64;
    let stats = Stats { n: 1000, mean: 0.0, std: 1.0, min: -4.0, max: 4.0 };
    let feature =
        |i| FeatureMeta { name: format!("f{i}"), categories: Vec::new(), has_missing: false, ..FeatureMeta::default() };
    let spec = ModelSpec {
        features: (0..features).map(feature).collect(),
        out_shape,
        train_rows: number(sizes, "train_rows")? as u64,
        x_stats: vec![stats; features as usize],
        y_stats: vec![stats; cells as usize],
        head: Head::Point,
    };
    let mut model = Model::build(&config, &spec, pb)?;
    model.to_device(device);
    let x = Raw::randn([batch, features], (Kind::Float, device));
    let y = Raw::randn([batch, cells], (Kind::Float, device));
    let x_mask = x.isfinite();
    let y_mask = y.isfinite();
    Ok(Subject::Enn(Box::new(model), Objective::new(&TrainConfig::default()), [x, x_mask, y, y_mask]))
}

fn gpt(sizes: &Value, batch: i64, device: Device, pb: &mut ParamBuilder) -> Result<Subject, Box<dyn Error>> {
    let size = GptSize {
        vocabulary: number(sizes, "vocabulary")?,
        context: number(sizes, "context")?,
        width: number(sizes, "width")?,
        depth: number(sizes, "depth")?,
        heads: number(sizes, "heads")?,
        dropout: sizes["dropout"].as_f64().unwrap_or(0.0),
    };
    let ids = || Raw::randint(size.vocabulary, [batch, size.context], (Kind::Int64, device));
    Ok(Subject::Gpt(Gpt::new(pb, size), [ids(), ids()]))
}

fn matrix(sizes: &Value, batch: i64, device: Device, pb: &mut ParamBuilder) -> Result<Subject, Box<dyn Error>> {
    let width = number(sizes, "width")?;
    let layer = |i| Linear::unbiased(pb, &format!("linear{i}"), width, width);
    let layers = (0..number(sizes, "depth")?).map(layer).collect();
    Ok(Subject::Matrix(layers, Raw::randn([batch, width], (Kind::Float, device))))
}
