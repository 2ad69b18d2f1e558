//! Collects the findings of a run for the model card in the manifest of every checkpoint.

use enn_cluster::supervise::Known;
use enn_common::{artifact::model_card::Findings, event::EventKind, metrics::Metrics};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

/// Maximum number of recorded decisions; later ones are dropped.
const DECISIONS_MAX: usize = 100;

/// The findings so far, shared by the threads that record them.
#[derive(Debug, Clone, Default)]
pub(super) struct ModelCard(Arc<Mutex<(BTreeMap<String, Metrics>, Findings)>>);

impl ModelCard {
    pub(super) fn note(&self, what: &EventKind) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (metrics, findings) = &mut *known;
        let decision = match what {
            EventKind::EpochEnded(report) => {
                metrics.insert("val".to_owned(), report.val);
                return;
            }
            EventKind::BaselinesComputed { split, notes } => {
                findings.baselines.clone_from(split);
                notes.iter().for_each(|note| add_decision(findings, format!("baselines: {note}")));
                return;
            }
            EventKind::ModelBuilt { parameters, program_hash, batch, .. } => {
                format!("model of {parameters} parameters, program {program_hash}, batch {batch}")
            }
            EventKind::PrecisionChosen { format, reason } => format!("precision {format}: {reason}"),
            EventKind::Decided { decision } => decision.clone(),
            EventKind::BatchChosen { micro, accumulation, recompute, reason, .. } => {
                let again = if *recompute { ", activations computed again" } else { "" };
                format!("micro-batches of {micro} rows, {accumulation} a step{again}: {reason}")
            }
            EventKind::KernelQuarantined { entry, .. } => {
                format!("kernel {} of {} is not used on {}", entry.kernel, entry.op, entry.operands)
            }
            EventKind::MicroBatchesSplit { split, error, .. } => format!("micro-batches are cut into {split}: {error}"),
            EventKind::Resized { before, workers } => format!("{workers} workers instead of {before}"),
            _ => return,
        };
        add_decision(findings, decision);
    }

    /// Returns a function that reads the findings for a manifest.
    pub(super) fn reader(&self) -> Known {
        let card = self.clone();
        Box::new(move || card.0.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

/// Adds a decision unless it is recorded already.
fn add_decision(findings: &mut Findings, decision: String) {
    if findings.decisions.len() < DECISIONS_MAX && !findings.decisions.contains(&decision) {
        findings.decisions.push(decision);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_are_told_once_and_baselines_with_their_notes() {
        let card = ModelCard::default();
        for _ in 0..2 {
            card.note(&EventKind::PrecisionChosen { format: "fp32".into(), reason: "the best for the CPU".into() });
        }
        let split = BTreeMap::from([("val".to_owned(), BTreeMap::new())]);
        card.note(&EventKind::BaselinesComputed { split, notes: vec!["ridge: λ = 1".into()] });
        let (metrics, findings) = card.reader()();
        assert!(metrics.is_empty() && findings.baselines.contains_key("val"));
        assert_eq!(findings.decisions, ["precision fp32: the best for the CPU", "baselines: ridge: λ = 1"]);
    }
}
