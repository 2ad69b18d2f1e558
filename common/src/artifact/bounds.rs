//! Which numbers of an input a model believes: what is outside, or stands for nothing, counts as missing. Prediction reads rows by these
//! rules, and an exported model has them inside.

use serde::{Deserialize, Serialize};

/// The rules of one input. What is no finite number is missing under any.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Bounds {
    /// The smallest number that is believed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub low: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub high: Option<f32>,
    /// Numbers that mean "missing".
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<f32>,
    /// Smallest and largest number of those that are believed; others count as the nearer of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nearest: Option<[f32; 2]>,
}

impl Bounds {
    /// Whether every finite number is believed as it is.
    pub fn is_open(&self) -> bool {
        *self == Self::default()
    }

    /// A number as the model takes it: NaN where it counts as missing.
    pub fn held(&self, value: f32) -> f32 {
        let is_outside = self.low.is_some_and(|low| value < low) || self.high.is_some_and(|high| value > high);
        if !value.is_finite() || is_outside || self.missing.contains(&value) {
            return f32::NAN;
        }
        self.nearest.map_or(value, |[low, high]| value.max(low).min(high))
    }

    /// Takes in the rules of another source: a number must be believed by both.
    pub fn narrow(&mut self, low: Option<f32>, high: Option<f32>) {
        let of_both = |one: Option<f32>, other: Option<f32>, pick: fn(f32, f32) -> f32| match (one, other) {
            (Some(one), Some(other)) => Some(pick(one, other)),
            (one, other) => one.or(other),
        };
        self.low = of_both(self.low, low, f32::max);
        self.high = of_both(self.high, high, f32::min);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_believed_missing_or_the_nearest() {
        let mut bounds = Bounds { low: Some(-1.0), missing: vec![3.0], nearest: Some([0.0, 5.0]), ..Bounds::default() };
        bounds.narrow(Some(-2.0), Some(9.0));
        assert_eq!((bounds.low, bounds.high), (Some(-1.0), Some(9.0)));
        assert_eq!([-1.0, 0.0, 9.0, 4.0].map(|value| bounds.held(value)), [0.0, 0.0, 5.0, 4.0]);
        let missing = [-1.5, 9.5, 3.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
        assert!(missing.into_iter().all(|value| bounds.held(value).is_nan()));
        assert!(Bounds::default().is_open() && Bounds::default().held(-f32::MAX) == -f32::MAX);
    }

    #[test]
    fn rules_are_the_same_after_they_were_written() {
        let bounds = Bounds { low: Some(0.1), high: Some(-1e-40), missing: vec![-999.9], nearest: None };
        let text = serde_json::to_string(&bounds).unwrap();
        assert_eq!(serde_json::from_str::<Bounds>(&text).unwrap(), bounds, "{text}");
        assert_eq!(serde_json::to_string(&Bounds::default()).unwrap(), "{}");
    }
}
