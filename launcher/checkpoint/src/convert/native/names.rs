//! Maps tensors of ENN for PyTorch to tensors of ENN, with the reasons for those without a counterpart.
//!
//! Both have the same templates (tokeniser, retention blocks, norm) and the same attention in the Perceiver. ENN's tokeniser reads its
//! inputs divided by √F; it has one matrix for query, value and gate, and one for key and value.

use std::ops::Range;

/// ENN for PyTorch adds this to every standard deviation before dividing.
const SCALER_EPS: f64 = 1e-6;

const HEAD: &str = "one read-out of pooled tokens serves base and refinement there; ENN has a base head of its own and refines by grid";
const COLLECTOR: &str = "the collector there reads latents in their order; ENN's reads the output grid";
const GATE: &str = "the gate there reads other features and is bounded by the targets' extremes";
const FEED: &str = "the feed-forward there is GeGLU, ENN's is SwiGLU";
const NO_BIAS: &str = "ENN's feed-forward has no bias";
const CALIBRATION: &str = "a part of its calibration of outputs; ENN fits its own after training";
const EMBEDDING: &str = "categories there are found by column numbers; ENN's by their names in the data";
const WEIGHT: &str = "a task's share of attention; set it under [model.tasks]";
const NONE: &str = "ENN has no such part";

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum ValueChange {
    /// Single-precision numbers that are not changed.
    None,
    /// Doubles that are not changed.
    Double,
    /// Doubles to which the number is added.
    Plus(f64),
    /// Single-precision numbers that are multiplied by the factor.
    Times(f64),
}

impl ValueChange {
    pub(super) fn is_double(self) -> bool {
        matches!(self, Self::Double | Self::Plus(_))
    }

    /// Changes row-major elements in place; `is_double` gives their type.
    pub(super) fn apply(self, bytes: &mut [u8]) {
        match self {
            Self::None | Self::Double => {}
            Self::Plus(term) => bytes.as_chunks_mut().0.iter_mut().for_each(|cell: &mut [u8; 8]| {
                *cell = (f64::from_le_bytes(*cell) + term).to_le_bytes();
            }),
            Self::Times(factor) => bytes.as_chunks_mut().0.iter_mut().for_each(|cell: &mut [u8; 4]| {
                *cell = ((f64::from(f32::from_le_bytes(*cell)) * factor) as f32).to_le_bytes();
            }),
        }
    }
}

/// The tensor of ENN, or a part of it, that a tensor of the file becomes.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Destination {
    pub name: String,
    /// The index of the part among `slots` parts that are stacked.
    pub slot: usize,
    pub slots: usize,
    /// The rows of the file's tensor that are used; `None`: all.
    pub rows: Option<Range<u64>>,
    pub change: ValueChange,
}

impl Destination {
    fn whole(name: String) -> Vec<Self> {
        Self::part(name, 0, 1)
    }

    fn part(name: String, slot: usize, slots: usize) -> Vec<Self> {
        vec![Self { name, slot, slots, rows: None, change: ValueChange::None }]
    }

    fn changed(name: String, change: ValueChange) -> Vec<Self> {
        vec![Self { name, slot: 0, slots: 1, rows: None, change }]
    }
}

/// Returns the name in the form of newer files.
pub(super) fn current_name(name: &str) -> String {
    let wrapped = ["module", "_orig_mod", "_enn_inner"];
    let parts = name.split('.').filter(|part| !wrapped.contains(part));
    let parts = parts.map(|part| match part {
        "processor" => "fuser",
        "controller" => "temporal_token_collector",
        "embedder" => "embedding",
        other => other,
    });
    parts.collect::<Vec<_>>().join(".")
}

pub(super) fn reason_outside_state(name: &str) -> &'static str {
    if name.starts_with("optimizer_state_dict") { "the optimizer starts fresh" } else { NONE }
}

/// Returns the destinations of a tensor of this name and shape, or why it is not used. `self_layers` is the number of self-attention layers
/// of a round.
pub(super) fn destinations(name: &str, shape: &[u64], self_layers: usize) -> Result<Vec<Destination>, &'static str> {
    let name = current_name(name);
    let parts: Vec<&str> = name.split('.').collect();
    match parts.as_slice() {
        ["scaler", part @ ("x_mean" | "y_mean" | "y_min" | "y_max")] => {
            Ok(Destination::changed(format!("scaler.{part}"), ValueChange::Double))
        }
        ["scaler", part @ ("x_std" | "y_std")] => {
            Ok(Destination::changed(format!("scaler.{part}"), ValueChange::Plus(SCALER_EPS)))
        }
        ["scaler", ..] => Err(CALIBRATION),
        ["fuser", "tasks", task, rest @ ..] => template(task.trim_start_matches("template_"), rest, shape),
        ["fuser", "perceiver", rest @ ..] => perceiver(rest, shape, self_layers),
        ["fuser", "head", ..] => Err(HEAD),
        ["temporal_token_collector", ..] => Err(COLLECTOR),
        ["delta_gate", ..] => Err(GATE),
        ["embedding", ..] => Err(EMBEDDING),
        ["logger", ..] => Err("the record of its runs"),
        _ => Err(NONE),
    }
}

fn template(task: &str, rest: &[&str], shape: &[u64]) -> Result<Vec<Destination>, &'static str> {
    let own = |part: String| Ok(Destination::whole(format!("fuser.{task}.{part}")));
    match rest {
        ["tokenizer", "weight"] => {
            let inputs = shape.get(1).copied().unwrap_or(1) as f64;
            Ok(Destination::changed(format!("fuser.{task}.tokeniser.weight"), ValueChange::Times(inputs.sqrt())))
        }
        ["tokenizer", "bias"] => own("tokeniser.bias".into()),
        ["norm", part] => own(format!("norm.{part}")),
        ["blocks", block, "norm1", part] => own(format!("block_{block}.norm_retention.{part}")),
        ["blocks", block, "norm2", part] => own(format!("block_{block}.norm_feed.{part}")),
        ["blocks", block, "retention", "msr", inner @ ..] => {
            let base = format!("fuser.{task}.block_{block}.retention");
            let third = |slot| Ok(Destination::part(format!("{base}.qvg.weight"), slot, 3));
            match inner {
                ["q_proj", "weight"] => third(0),
                ["v_proj", "weight"] => third(1),
                ["g_proj", "weight"] => third(2),
                ["o_proj", "weight"] => Ok(Destination::whole(format!("{base}.out.weight"))),
                ["_beta"] => Ok(Destination::whole(format!("{base}.beta"))),
                ["norm", part] => Ok(Destination::whole(format!("{base}.norm.{part}"))),
                _ => Err(NONE),
            }
        }
        ["blocks", block, "ffn", "in_proj", "weight"] => own(format!("block_{block}.feed.in.weight")),
        ["blocks", block, "ffn", "out_proj", "weight"] => own(format!("block_{block}.feed.out.weight")),
        ["blocks", _, "ffn", "in_proj" | "out_proj", "bias"] => Err(NO_BIAS),
        ["weight" | "eps"] => Err(WEIGHT),
        _ => Err("a module of the user's own, or of a sub-fuser"),
    }
}

fn perceiver(rest: &[&str], shape: &[u64], self_layers: usize) -> Result<Vec<Destination>, &'static str> {
    let whole = |part: String| Ok(Destination::whole(format!("fuser.perceiver.{part}")));
    match rest {
        ["latents"] => whole("latents".into()),
        ["norm", part] => whole(format!("norm.{part}")),
        ["cross", round, "norm_ffn", part] => whole(format!("round_{round}.cross.norm_feed.{part}")),
        ["cross", _, "ffn", ..] | ["self_blocks", _, "ff", ..] => Err(FEED),
        // Older files have the parts of the attention directly in the block.
        ["cross", round, "cross_attn", inner @ ..] | ["cross", round, inner @ ..] => {
            let base = format!("fuser.perceiver.round_{round}.cross");
            match inner {
                ["norm_q", part] => Ok(Destination::whole(format!("{base}.norm_query.{part}"))),
                ["norm_kv", part] => Ok(Destination::whole(format!("{base}.norm_key.{part}"))),
                ["q_proj", part] => Ok(Destination::whole(format!("{base}.attention.q.{part}"))),
                ["k_proj", part] => Ok(Destination::part(format!("{base}.attention.kv.{part}"), 0, 2)),
                ["v_proj", part] => Ok(Destination::part(format!("{base}.attention.kv.{part}"), 1, 2)),
                ["out_proj", part] => Ok(Destination::whole(format!("{base}.attention.out.{part}"))),
                _ => Err(NONE),
            }
        }
        ["self_blocks", block, inner @ ..] => {
            let block: usize = block.parse().map_err(|_| NONE)?;
            let round = block / self_layers.max(1);
            let layer = block % self_layers.max(1);
            let base = format!("fuser.perceiver.round_{round}.self_{layer}");
            match inner {
                ["norm2", part] => Ok(Destination::whole(format!("{base}.norm_feed.{part}"))),
                ["attn", "norm1", part] | ["norm1", part] => Ok(Destination::whole(format!("{base}.norm.{part}"))),
                ["attn", "out_proj", part] | ["out_proj", part] => {
                    Ok(Destination::whole(format!("{base}.attention.out.{part}")))
                }
                ["attn", "qkv", part] | ["qkv", part] => {
                    let rows =
                        shape.first().copied().filter(|rows| rows % 3 == 0).ok_or("its rows are not three parts")?;
                    let third = rows / 3;
                    let [mut q, mut kv] = [("q", 0..third), ("kv", third..rows)].map(|(name, rows)| {
                        let mut place = Destination::whole(format!("{base}.attention.{name}.{part}"));
                        place.iter_mut().for_each(|place| place.rows = Some(rows.clone()));
                        place
                    });
                    q.append(&mut kv);
                    Ok(q)
                }
                _ => Err(NONE),
            }
        }
        _ => Err(NONE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ours(name: &str, shape: &[u64]) -> Vec<(String, usize, usize, Option<Range<u64>>)> {
        let places = destinations(name, shape, 2).unwrap();
        places.into_iter().map(|place| (place.name, place.slot, place.slots, place.rows)).collect()
    }

    #[test]
    fn the_same_layer_has_one_name_in_old_and_new_files() {
        let kv = "fuser.perceiver.round_1.cross.attention.kv.weight";
        for name in
            ["fuser.perceiver.cross.1.cross_attn.v_proj.weight", "module.processor.perceiver.cross.1.v_proj.weight"]
        {
            assert_eq!(ours(name, &[8, 8]), [(kv.to_owned(), 1, 2, None)]);
        }
        let [q, kv] = ["q", "kv"].map(|part| format!("fuser.perceiver.round_1.self_1.attention.{part}.bias"));
        for name in ["fuser.perceiver.self_blocks.3.attn.qkv.bias", "fuser.perceiver.self_blocks.3.qkv.bias"] {
            assert_eq!(ours(name, &[24]), [(q.clone(), 0, 1, Some(0..8)), (kv.clone(), 0, 1, Some(8..24))]);
        }
    }

    #[test]
    fn numbers_are_changed_where_the_two_calculate_differently() {
        let place = &destinations("fuser.tasks.template_spatial.tokenizer.weight", &[64, 9], 1).unwrap()[0];
        assert_eq!((place.name.as_str(), place.change), ("fuser.spatial.tokeniser.weight", ValueChange::Times(3.0)));
        let mut bytes = 2.0f32.to_le_bytes().to_vec();
        place.change.apply(&mut bytes);
        assert_eq!(bytes, 6.0f32.to_le_bytes());
        let place = &destinations("scaler.y_std", &[4], 1).unwrap()[0];
        let mut bytes = 1.0f64.to_le_bytes().to_vec();
        place.change.apply(&mut bytes);
        assert_eq!(bytes, (1.0f64 + 1e-6).to_le_bytes());
    }

    #[test]
    fn what_does_something_else_has_a_reason() {
        for (name, why) in [
            ("fuser.head.1.weight", HEAD),
            ("fuser.perceiver.cross.0.ffn.in_proj.weight", FEED),
            ("fuser.tasks.spatial.blocks.0.ffn.in_proj.bias", NO_BIAS),
            ("delta_gate.net.0.weight", GATE),
            ("scaler.pw_x", CALIBRATION),
            ("controller.backbone.norm.weight", COLLECTOR),
            ("something.else", NONE),
        ] {
            assert_eq!(destinations(name, &[4, 4], 1), Err(why), "{name}");
        }
    }
}
