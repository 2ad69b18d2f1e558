//! Another model's weights as the start of a training.

use super::Learner;
use crate::checkpoint;
use crate::session::{SessionError, checkpointing::saved_model::SavedModel};
use enn_common::{config::Parent, config::parent::ScalerChoice, staged::StagedMeta};
use enn_model::model::{PretrainedModel, PretrainedReport};
use std::collections::BTreeMap;
use tch::Tensor;

/// Most entries of each kind that are named in the message.
const TOLD_MAX: usize = 8;
/// Beginnings of names in the parent's checkpoint: its best weights, and its buffers.
const WEIGHTS: &str = "best.";
const BUFFERS: &str = "model.scaler.";

/// Takes the parent's weights, the same on every rank, and says what was taken.
///
/// # Errors
/// [`SessionError::OtherParent`] when something does not fit and `parent.partial` is not set; damage of its checkpoint.
pub(crate) fn begin_from(learner: &mut Learner, parent: &Parent, own: &StagedMeta) -> Result<String, SessionError> {
    let saved = SavedModel::open(&parent.checkpoint)?;
    let tensors = checkpoint::load_part(&parent.checkpoint, &[], &[WEIGHTS, BUFFERS])?;
    let part = |prefix: &str, kept: &str| -> BTreeMap<String, Tensor> {
        let named = tensors.iter().filter(|(name, _)| name.starts_with(prefix));
        named.filter_map(|(name, tensor)| Some((name.strip_prefix(kept)?.to_owned(), tensor.shallow_clone()))).collect()
    };
    let weights = part(WEIGHTS, WEIGHTS);
    let buffers = part(BUFFERS, "model.");
    let pretrained = PretrainedModel { inputs: &saved.meta.features, weights: &weights, buffers: &buffers };
    let PretrainedReport { taken, mut problems, notes } =
        learner.load_pretrained(&own.features, &pretrained, parent.scaler)?;
    if saved.meta.out_shape != own.out_shape {
        let found = &saved.meta.out_shape;
        let expected = &own.out_shape;
        problems.insert(0, format!("the output is {found:?}, expected {expected:?}"));
    } else if saved.meta.out_labels != own.out_labels {
        problems.insert(0, "the output has the same shape and other names".to_owned());
    }
    if !(problems.is_empty() || parent.partial) {
        return Err(SessionError::OtherParent { path: parent.checkpoint.clone(), problems: listed(&problems) });
    }
    let scaler = match parent.scaler {
        ScalerChoice::Keep => "its scaler is kept",
        ScalerChoice::Refit => "the scaler is that of the new rows, and the weights are rewritten for it",
    };
    let mut decision = format!("begins with {taken} parameters of {}; {scaler}", parent.checkpoint.display());
    for (what, all) in [("left", &problems), ("note", &notes)] {
        if !all.is_empty() {
            decision.push_str(&format!("; {what}: {}", listed(all)));
        }
    }
    Ok(decision)
}

fn listed(all: &[String]) -> String {
    let more = all.len().saturating_sub(TOLD_MAX);
    let mut text = all.iter().take(TOLD_MAX).cloned().collect::<Vec<_>>().join("; ");
    if more > 0 {
        text.push_str(&format!("; and {more} more"));
    }
    text
}
