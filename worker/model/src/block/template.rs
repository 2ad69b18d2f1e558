//! A template turns the feature vector into tokens of one task.

use super::{
    Regularise, RetNetBlock, SubModel,
    residual::Residual,
    stream::Stream,
    submodel::{SubModelSpec, SubModels},
};
use crate::layer::{Linear, Mixing, Normalise, Pattern, Width};
use enn_common::config::forest::{Mode, TemplateConfig};
use enn_core::{
    autograd::{Cx, Tensor},
    error::{OpError, OpErrorKind},
    functional::{self, Dir},
    params::ParamBuilder,
};
use std::fmt;

/// Applies in this order: tokeniser Linear (F' → N·D), `depth` RetNet blocks, the user's module if the task has one,
/// norm.
pub struct Template {
    name: String,
    tokeniser: Linear,
    blocks: Vec<RetNetBlock>,
    model: Option<Box<dyn SubModel>>,
    norm: Normalise,
    tokens: i64,
    width: i64,
}

/// Sizes and settings that all templates of a model share.
#[derive(Debug, Clone)]
pub struct TemplateSpec {
    pub features: i64,
    pub width: Width,
    /// Rates of the deepest block.
    pub regularise: Regularise,
    pub patterns: Vec<Pattern>,
    pub models: SubModels,
}

/// The task's configuration refers to a module that the worker does not have.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("model.tasks: task \"{task}\" asks for the model \"{found}\", which this worker does not have ({})", there_is(.known))]
pub struct NoSubModel {
    pub task: String,
    /// Name in the configuration.
    pub found: String,
    /// Names of the worker's modules.
    pub known: Vec<String>,
}

fn there_is(names: &[String]) -> String {
    match names {
        [] => "it has none\nhint: build a worker program that adds models, see examples/submodel".to_owned(),
        names => format!("it has: {}", names.join(", ")),
    }
}

impl Template {
    /// Creates the template of the task `name`.
    ///
    /// # Errors
    /// When the task refers to a module that the worker does not have.
    pub fn new(
        pb: &mut ParamBuilder,
        name: &str,
        config: &TemplateConfig,
        spec: &TemplateSpec,
    ) -> Result<Self, NoSubModel> {
        let width = spec.width;
        let tokens = config.tokens as i64;
        let direction = match config.mode {
            Mode::Spatial => Dir::Bidirectional,
            Mode::Temporal => Dir::Causal,
        };
        let mixing = Mixing { mixer: config.mixer, direction, patterns: spec.patterns.clone() };
        let model = |pb: &mut ParamBuilder, wanted: &str| {
            spec.models.build(pb, wanted, SubModelSpec { tokens, width }).ok_or_else(|| NoSubModel {
                task: name.to_owned(),
                found: wanted.to_owned(),
                known: spec.models.names(),
            })
        };
        pb.scoped(name, |pb| {
            Ok(Self {
                name: name.to_owned(),
                tokeniser: Linear::wide(pb, "tokeniser", spec.features, tokens * width.model),
                blocks: (0..config.depth)
                    .map(|i| {
                        let regularise = spec.regularise.at_depth(i, config.depth);
                        RetNetBlock::new(pb, &format!("block_{i}"), width, &mixing, regularise)
                    })
                    .collect(),
                model: config.model.as_deref().map(|wanted| model(pb, wanted)).transpose()?,
                norm: Normalise::new(pb, "norm", width.norm, width.model),
                tokens,
                width: width.model,
            })
        })
    }

    /// Maps features (B, F') divided by √F' to tokens (B, N, D). In a stream, causal blocks continue from their states.
    ///
    /// # Errors
    /// When `x` is not (B, F'), or the user's module changes the shape of its tokens.
    pub(crate) fn forward(&self, cx: &Cx, x: &Tensor, stream: Option<&mut Stream<'_>>) -> Result<Tensor, OpError> {
        let _scope = cx.scope(&self.name);
        let tokens = self.tokeniser.forward(cx, x)?;
        let tokens = functional::reshape(cx, &tokens, &[x.dim(0), self.tokens, self.width])?;
        self.mix(cx, tokens, stream)
    }

    /// Applies blocks, module and norm to tokens (B, any N, D).
    fn mix(&self, cx: &Cx, tokens: Tensor, mut stream: Option<&mut Stream<'_>>) -> Result<Tensor, OpError> {
        let mut tokens = Residual::from(tokens);
        for (i, block) in self.blocks.iter().enumerate() {
            let before = stream.as_ref().and_then(|stream| stream.state(&self.name, i)).map(|raw| cx.input(raw));
            let (mixed, after) = block.forward(cx, &tokens, before.as_ref())?;
            if let (Some(stream), Some(after)) = (&mut stream, &after) {
                stream.keep(&self.name, after);
            }
            tokens = mixed;
        }
        if let Some(model) = &self.model {
            let given = tokens.sum(cx)?;
            let made = {
                let _scope = cx.scope("model");
                model.forward(cx, &given)?
            };
            if made.shape() != given.shape() {
                let left = made.shape().to_vec();
                let right = given.shape().to_vec();
                let expected = "as many tokens of the same width as the model was given";
                return Err(cx.fail("model", OpErrorKind::Mismatch { left, right, expected }));
            }
            tokens = made.into();
        }
        tokens.last_norm(cx, &self.norm)
    }
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Template").field("name", &self.name).field("tokens", &self.tokens).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::StreamState;
    use enn_common::config::{forest::Mixer, model::Norm};
    use tch::{Device, Kind, Tensor as Raw};

    const MIXERS: [Mixer; 2] = [Mixer::GatedEma, Mixer::Retention];

    fn template(mixer: Mixer) -> (Template, enn_core::params::Params) {
        let spec = TemplateSpec {
            features: 4,
            width: Width { model: 8, heads: 2, hidden: 8, norm: Norm::LayerNorm },
            regularise: Regularise { dropout: 0.0, drop_path: 0.0 },
            patterns: Vec::new(),
            models: SubModels::new(),
        };
        let config = TemplateConfig { mode: Mode::Temporal, depth: 2, tokens: 5, mixer, model: None };
        let mut pb = ParamBuilder::new();
        let template = Template::new(&mut pb, "t", &config, &spec).unwrap();
        (template, pb.build(3, Device::Cpu).unwrap())
    }

    #[test]
    fn two_calls_of_a_stream_equal_one_on_the_tokens_of_both() {
        for mixer in MIXERS {
            let (template, params) = template(mixer);
            let cx = Cx::eval(&params);
            tch::manual_seed(5);
            let tokens = Raw::randn([3, 75, 8], (Kind::Float, Device::Cpu));
            let whole = template.mix(&cx, cx.input(tokens.shallow_clone()), None).unwrap();
            let start = StreamState::default();
            let mut first = Stream::after(&start);
            let one = template.mix(&cx, cx.input(tokens.narrow(1, 0, 66)), Some(&mut first)).unwrap();
            let (between, _) = first.finish();
            assert_eq!(between.iter().map(|(task, states)| (task, states.len())).collect::<Vec<_>>(), [("t", 2)]);
            let mut second = Stream::after(&between);
            let two = template.mix(&cx, cx.input(tokens.narrow(1, 66, 9)), Some(&mut second)).unwrap();
            let off = (Raw::cat(&[one.raw(), two.raw()], 1) - whole.raw()).abs().max().double_value(&[]);
            assert!(off < 1e-5, "{mixer:?}: off by {off}");
            // Without the state the output differs, so the test is sensitive to it.
            let mut fresh = Stream::after(&start);
            let alone = template.mix(&cx, cx.input(tokens.narrow(1, 66, 9)), Some(&mut fresh)).unwrap();
            assert!((alone.raw() - two.raw()).abs().max().double_value(&[]) > 1e-3);
        }
    }
}
