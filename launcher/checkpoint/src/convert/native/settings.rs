//! Maps settings of ENN for PyTorch to settings of ENN, with the reasons for those without a counterpart.

use super::super::python;
use enn_common::{checkpoint::Value, config::model::ModelConfig};
use serde_json::{Map, Value as Json};
use std::collections::BTreeMap;

/// Settings under `config.` with the same meaning, and ENN's names below `model.`.
const SAME: [(&str, &str); 14] = [
    ("d_model", "d_model"),
    ("heads", "heads"),
    ("spatial_depth", "spatial_depth"),
    ("temporal_depth", "temporal_depth"),
    ("spatial_latents", "spatial_latents"),
    ("temporal_latents", "temporal_latents"),
    ("mlp_ratio", "mlp_ratio"),
    ("dropout", "dropout"),
    ("drop_path", "drop_path"),
    ("normalization_method", "norm"),
    ("preset", "preset"),
    ("fuser_depth", "fuser_rounds"),
    ("fuser_self_attn_layers", "fuser_self_layers"),
    ("use_linear_branch", "linear_branch"),
];

/// Prefixes of settings that ENN does not have, and why.
const OTHERS: [(&str, &str); 11] = [
    ("config.delta_gate_", "ENN's gate has no such setting"),
    ("config.unsup_", "a loss that ENN does not have"),
    ("config.p_prior_", "a loss that ENN does not have"),
    ("config.patch", "stored there and never read; ENN's [model] patch is of the output grid"),
    ("config.device", "chosen where the program runs: --device"),
    ("config.compile_mode", "ENN does not compile the model"),
    ("config.safety_margin_pow2", "fixed in ENN"),
    ("config.", "ENN has no such setting"),
    ("tasks.", "tasks beside the preset's are declared under [model.tasks]"),
    ("extra.", "notes of the person who saved it"),
    ("optimizer_state_dict.", "the optimizer starts fresh"),
];

const OWN: [&str; 4] = ["version", "in_dim", "out_shape", "pytorch_version"];

/// The name in the file, the setting of ENN, and the value.
type MappedSettings = Vec<(String, String, Value)>;
type Unmapped = Vec<(String, String)>;

pub(super) fn of(values: &BTreeMap<String, Value>) -> (MappedSettings, Unmapped) {
    let mut mapped = Vec::new();
    let mut left = Vec::new();
    for (name, value) in values {
        let is_own =
            OWN.iter().any(|own| name == own || name.strip_prefix(own).is_some_and(|rest| rest.starts_with('.')));
        if is_own {
            continue;
        }
        let same = SAME.iter().find(|(theirs, _)| name.strip_prefix("config.") == Some(theirs));
        match same.map(|(_, ours)| (*ours, value_of(ours, value, values))) {
            Some((ours, Ok(value))) => mapped.push((name.clone(), format!("model.{ours}"), value)),
            Some((_, Err(why))) => left.push((name.clone(), why)),
            None => {
                let why =
                    OTHERS.iter().find(|(begin, _)| name.starts_with(begin) || name == begin.trim_end_matches('.'));
                left.push((name.clone(), why.map_or("ENN has no such entry", |(_, why)| *why).to_owned()));
            }
        }
    }
    let int = |name: &str| if let Some(Value::Int(found)) = values.get(&format!("config.{name}")) { *found } else { 0 };
    let latents = int("spatial_latents").saturating_add(int("temporal_latents"));
    if latents > 0 {
        let theirs = "config.spatial_latents + config.temporal_latents".to_owned();
        mapped.push((theirs, "model.fuser_latents".to_owned(), Value::Int(latents)));
    }
    (mapped, left)
}

fn value_of(ours: &str, value: &Value, all: &BTreeMap<String, Value>) -> Result<Value, String> {
    let text = if let Value::Str(text) = value { text.trim().to_lowercase() } else { String::new() };
    let of = |known: &[(&str, &str)]| {
        let found = known.iter().find(|(theirs, _)| *theirs == text).map(|(_, ours)| Value::Str((*ours).to_owned()));
        found.ok_or_else(|| format!("is {}, which ENN does not have", python::plain(value)))
    };
    match (ours, value) {
        ("norm", _) => {
            of(&[("layernorm", "layernorm"), ("ln", "layernorm"), ("rmsnorm", "rmsnorm"), ("rms", "rmsnorm")])
        }
        ("preset", Value::None) => Ok(Value::Str("none".into())),
        ("preset", _) => of(&[("spatial", "spatial"), ("temporal", "temporal"), ("spatiotemporal", "spatiotemporal")]),
        // By default there are as many rounds as the deeper template has blocks.
        ("fuser_rounds", Value::None) => {
            let depth = |name: &str| all.get(&format!("config.{name}")).cloned();
            let depths = [depth("spatial_depth"), depth("temporal_depth")].into_iter().flatten();
            let most = depths.filter_map(|depth| if let Value::Int(depth) = depth { Some(depth) } else { None }).max();
            most.map(Value::Int).ok_or_else(|| "follows the depths, which are not said".to_owned())
        }
        (_, Value::Int(_) | Value::Float(_) | Value::Bool(_)) => Ok(value.clone()),
        _ => Err(format!("is {}, expected a number", python::plain(value))),
    }
}

pub(super) fn model(settings: &MappedSettings, base: &ModelConfig) -> Result<ModelConfig, serde_json::Error> {
    let mut all: Map<String, Json> = serde_json::from_value(serde_json::to_value(base)?)?;
    all.insert("by_rows".to_owned(), Json::Bool(false));
    for (_, ours, value) in settings {
        let json = match value {
            Value::Int(int) => Json::from(*int),
            Value::Float(float) => Json::from(*float),
            Value::Bool(truth) => Json::Bool(*truth),
            Value::Str(text) => Json::String(text.clone()),
            _ => continue,
        };
        all.insert(ours.trim_start_matches("model.").to_owned(), json);
    }
    serde_json::from_value(Json::Object(all))
}

#[cfg(test)]
mod tests {
    use super::*;
    use enn_common::config::model::{Norm, Preset};

    fn values() -> BTreeMap<String, Value> {
        let mut values: BTreeMap<String, Value> = BTreeMap::new();
        for (name, value) in [
            ("d_model", 64),
            ("heads", 2),
            ("spatial_depth", 3),
            ("temporal_depth", 5),
            ("spatial_latents", 7),
            ("temporal_latents", 9),
        ] {
            values.insert(format!("config.{name}"), Value::Int(value));
        }
        values.insert("config.fuser_depth".into(), Value::None);
        values.insert("config.normalization_method".into(), Value::Str("RMSNorm".into()));
        values.insert("config.preset".into(), Value::Str("temporal".into()));
        values.insert("config.delta_gate_eps".into(), Value::Float(1e-6));
        values.insert("config.dropout".into(), Value::Float(0.25));
        values.insert("config.mlp_ratio".into(), Value::Str("four".into()));
        values.insert("in_dim".into(), Value::Int(3));
        values
    }

    #[test]
    fn what_means_the_same_makes_the_model_and_the_rest_has_a_reason() {
        let (mapped, left) = of(&values());
        let model = model(&mapped, &ModelConfig { mlp_ratio: 2.0, ..ModelConfig::default() }).unwrap();
        assert_eq!((model.d_model, model.heads, model.fuser_rounds, model.fuser_latents), (64, 2, 5, 16));
        assert_eq!((model.norm, model.preset, model.dropout), (Norm::RmsNorm, Preset::Temporal, 0.25));
        assert!(!model.by_rows && model.mlp_ratio == 2.0, "what cannot be read is as it was");
        let names: Vec<&str> = left.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["config.delta_gate_eps", "config.mlp_ratio"]);
        assert!(left[1].1.contains("\"four\", expected a number"), "{left:?}");
    }
}
