//! What a run finds out on its way, for the model card in every checkpoint's manifest.

use crate::agent::Known;
use enn_common::{artifact::card::Findings, event::What, metrics::Metrics};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

/// Decisions kept; a run that quarantines kernels for days says the first of them.
const DECISIONS_MAX: usize = 100;

/// The findings so far, shared by the threads that make them.
#[derive(Debug, Clone, Default)]
pub(super) struct Card(Arc<Mutex<(BTreeMap<String, Metrics>, Findings)>>);

impl Card {
    /// Takes one event in.
    pub(super) fn note(&self, what: &What) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (metrics, findings) = &mut *known;
        let decision = match what {
            What::EpochEnded(report) => {
                metrics.insert("val".to_owned(), report.val);
                return;
            }
            What::BaselinesComputed { split, notes } => {
                findings.baselines.clone_from(split);
                notes.iter().for_each(|note| decide(findings, format!("baselines: {note}")));
                return;
            }
            What::ModelBuilt { parameters, program_hash, batch, .. } => {
                format!("model of {parameters} parameters, program {program_hash}, batch {batch}")
            }
            What::PrecisionChosen { format, reason } => format!("precision {format}: {reason}"),
            What::Decided { decision } => decision.clone(),
            What::BatchChosen { micro, accumulation, recompute, reason, .. } => {
                let again = if *recompute { ", activations computed again" } else { "" };
                format!("micro-batches of {micro} rows, {accumulation} a step{again}: {reason}")
            }
            What::KernelQuarantined { entry, .. } => {
                format!("kernel {} of {} is not used on {}", entry.kernel, entry.op, entry.operands)
            }
            What::MicroBatchesSplit { split, error, .. } => format!("micro-batches are cut into {split}: {error}"),
            What::Resized { before, workers } => format!("{workers} workers instead of {before}"),
            _ => return,
        };
        decide(findings, decision);
    }

    /// For what writes manifests.
    pub(super) fn teller(&self) -> Known {
        let card = self.clone();
        Box::new(move || card.0.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

/// Adds a decision that has not been told.
fn decide(findings: &mut Findings, decision: String) {
    if findings.decisions.len() < DECISIONS_MAX && !findings.decisions.contains(&decision) {
        findings.decisions.push(decision);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_are_told_once_and_baselines_with_their_notes() {
        let card = Card::default();
        for _ in 0..2 {
            card.note(&What::PrecisionChosen { format: "fp32".into(), reason: "the best for the CPU".into() });
        }
        let split = BTreeMap::from([("val".to_owned(), BTreeMap::new())]);
        card.note(&What::BaselinesComputed { split, notes: vec!["ridge: λ = 1".into()] });
        let (metrics, findings) = card.teller()();
        assert!(metrics.is_empty() && findings.baselines.contains_key("val"));
        assert_eq!(findings.decisions, ["precision fp32: the best for the CPU", "baselines: ridge: λ = 1"]);
    }
}
