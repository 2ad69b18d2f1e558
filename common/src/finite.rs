//! Numbers that may be NaN in a text that has no word for it: JSON writes null, and null is read as NaN.
//!
//! **Invariant:** binary formats keep the eight bytes of the number; only human-readable ones know null.

use serde::{Deserialize, Deserializer, Serializer};

/// Writes the number as it is; JSON makes null of NaN and the infinities.
pub fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(*value)
}

/// Reads the number, or NaN where a human-readable format holds null.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    if deserializer.is_human_readable() {
        Ok(Option::<f64>::deserialize(deserializer)?.unwrap_or(f64::NAN))
    } else {
        f64::deserialize(deserializer)
    }
}

/// Default for a number that an older file does not have.
pub fn nan() -> f64 {
    f64::NAN
}

#[cfg(test)]
mod tests {
    use crate::{
        event::{EpochReport, Event, EventKind, StepTimes},
        metrics::Metrics,
    };

    fn report() -> EpochReport {
        EpochReport {
            epoch: 1,
            step: 2,
            train_loss: f64::NAN,
            val: Metrics { mae: 1.0, rmse: f64::INFINITY, r2: f64::NAN, n: 3, ..Metrics::default() },
            best: false,
            lr: 0.1,
            grad_norm: f64::NAN,
            gate_mean: 0.5,
            reactivity: 0.0,
            step_ms: StepTimes::default(),
            samples_per_s: 1.0,
            skipped: 2,
            part: 1.0,
        }
    }

    #[test]
    fn a_line_with_nan_can_be_read_again() {
        let line =
            serde_json::to_string(&Event { time: 1.5, what: EventKind::EpochEnded(Box::new(report())) }).unwrap();
        let back: Event = serde_json::from_str(&line).unwrap();
        let EventKind::EpochEnded(back) = back.what else { panic!("another event came back: {line}") };
        assert!(back.train_loss.is_nan() && back.val.rmse.is_nan() && back.val.r2.is_nan());
        assert_eq!((back.val.mae, back.val.n, back.skipped), (1.0, 3, 2));
    }

    #[test]
    fn binary_keeps_infinity() {
        let bytes = bincode::serde::encode_to_vec(report(), bincode::config::standard()).unwrap();
        let (back, _): (EpochReport, usize) =
            bincode::serde::decode_from_slice(&bytes, bincode::config::standard()).unwrap();
        assert!(back.val.rmse.is_infinite() && back.train_loss.is_nan());
        assert_eq!(back.val.n, 3);
    }
}
