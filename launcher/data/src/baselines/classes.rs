//! Metrics of predicted class probabilities. Pure.

use enn_common::{
    artifact::classes::{CalibrationPart, ClassFigures, ClassPart},
    staged::Staged,
};

/// Bins of equal width in [0, 1] for the calibration error.
const PARTS: usize = 10;
const CONFUSION_MAX: usize = 100;
/// Maximum probabilities that are sorted to compute areas under ROC curves.
const ORDERED_MAX: usize = 20_000_000;
/// Lower bound of probabilities in the log-loss: about the epsilon of f32.
const PROBABILITY_MIN: f64 = 1.2e-7;

struct ClassPrediction<'a> {
    class: usize,
    likeliest: usize,
    weight: f64,
    probabilities: &'a [f32],
}

/// Computes the metrics of rows of `staged`, each with its probabilities; `None` where the target is not a class, or no row has weight.
pub fn classes<'a>(staged: &Staged, rows: impl Iterator<Item = (usize, &'a [f32])>) -> Option<ClassFigures> {
    let meta = staged.meta();
    if !meta.has_classes || !meta.has_targets {
        return None;
    }
    let names = meta.out_labels.first().cloned().unwrap_or_default();
    let predictions: Vec<ClassPrediction<'_>> =
        rows.filter_map(|(row, probabilities)| prediction(staged, row, probabilities)).collect();
    let all: f64 = predictions.iter().map(|row| row.weight).sum();
    if predictions.is_empty() || all <= 0.0 {
        return None;
    }
    let mean = |of: &dyn Fn(&ClassPrediction<'_>) -> f64| {
        predictions.iter().map(|row| row.weight * of(row)).sum::<f64>() / all
    };
    let probability = |row: &ClassPrediction<'_>| f64::from(row.probabilities[row.class]).max(PROBABILITY_MIN);
    let mut parts: Vec<ClassPart> = (0..names.len()).map(|class| part(&predictions, class)).collect();
    if predictions.len().saturating_mul(names.len()) <= ORDERED_MAX {
        parts.iter_mut().enumerate().for_each(|(class, part)| part.auc = auc(&predictions, class));
    }
    let known: Vec<f64> = parts.iter().filter_map(|part| part.auc).collect();
    let auc = match parts.as_slice() {
        [_, second] => second.auc,
        _ if known.is_empty() => None,
        _ => Some(known.iter().sum::<f64>() / known.len() as f64),
    };
    let calibration = calibration(&predictions);
    let off = |part: &(f64, CalibrationPart)| part.0 * (part.1.probability - part.1.right).abs();
    Some(ClassFigures {
        rows: predictions.len() as u64,
        log_loss: mean(&|row| -probability(row).ln()),
        accuracy: mean(&|row| f64::from(u8::from(row.likeliest == row.class))),
        auc,
        calibration_error: calibration.iter().map(off).sum::<f64>() / all,
        confusion: confusion(&predictions, names.len()),
        classes: parts,
        calibration: calibration.into_iter().map(|part| part.1).collect(),
        names,
    })
}

/// Returns the prediction of a row; `None` where the row has no class or no finite probabilities.
fn prediction<'a>(staged: &Staged, row: usize, probabilities: &'a [f32]) -> Option<ClassPrediction<'a>> {
    let y = staged.y_row(row);
    let mask = staged.y_mask_row(row);
    let class = y.iter().zip(mask).position(|(y, valid)| *valid != 0 && *y > 0.5)?;
    let is_complete = probabilities.len() == y.len() && probabilities.iter().all(|one| one.is_finite());
    // The first of equal probabilities, as in written predictions.
    let likeliest = |best: usize, at: usize| if probabilities[at] > probabilities[best] { at } else { best };
    let weight = staged.weight().get(row).map_or(1.0, |weight| f64::from(*weight));
    is_complete.then(|| ClassPrediction {
        class,
        likeliest: (0..probabilities.len()).fold(0, likeliest),
        weight,
        probabilities,
    })
}

fn part(predictions: &[ClassPrediction<'_>], class: usize) -> ClassPart {
    let count = |is: &dyn Fn(&ClassPrediction<'_>) -> bool| predictions.iter().filter(|row| is(row)).count() as u64;
    ClassPart {
        rows: count(&|row| row.class == class),
        predicted: count(&|row| row.likeliest == class),
        right: count(&|row| row.class == class && row.likeliest == class),
        auc: None,
    }
}

/// Computes the area under the ROC curve of a class: the probability that a row of the class has a higher score than another row,
/// where ties count half.
fn auc(predictions: &[ClassPrediction<'_>], class: usize) -> Option<f64> {
    let mut order: Vec<(f32, bool, f64)> =
        predictions.iter().map(|row| (row.probabilities[class], row.class == class, row.weight)).collect();
    order.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let mut below = 0.0;
    let mut pairs = 0.0;
    let mut own = 0.0;
    for equals in order.chunk_by(|a, b| a.0 == b.0) {
        let weight = |is: bool| equals.iter().filter(|row| row.1 == is).map(|row| row.2).sum::<f64>();
        let is = weight(true);
        let others = weight(false);
        pairs += is * (below + others / 2.0);
        below += others;
        own += is;
    }
    (own > 0.0 && below > 0.0).then(|| pairs / (own * below))
}

fn confusion(predictions: &[ClassPrediction<'_>], classes: usize) -> Vec<Vec<u64>> {
    if classes > CONFUSION_MAX {
        return Vec::new();
    }
    let mut table = vec![vec![0; classes]; classes];
    predictions.iter().for_each(|row| table[row.class][row.likeliest] += 1);
    table
}

/// Bins rows by the probability of their likeliest class; returns the weight and the statistics of each bin.
fn calibration(predictions: &[ClassPrediction<'_>]) -> Vec<(f64, CalibrationPart)> {
    let mut parts = vec![(0.0, 0, 0.0, 0.0); PARTS];
    for row in predictions {
        let probability = f64::from(row.probabilities[row.likeliest]);
        let at = ((probability * PARTS as f64) as usize).min(PARTS - 1);
        let (weight, rows, sum, right) = &mut parts[at];
        *weight += row.weight;
        *rows += 1;
        *sum += row.weight * probability;
        *right += row.weight * f64::from(u8::from(row.likeliest == row.class));
    }
    let edge = |at: usize| at as f64 / PARTS as f64;
    let found = parts.into_iter().enumerate().filter(|(_, part)| part.0 > 0.0);
    let of = |(at, (weight, rows, sum, right)): (usize, (f64, u64, f64, f64))| {
        let part = CalibrationPart {
            low: edge(at),
            high: edge(at + 1),
            rows,
            probability: sum / weight,
            right: right / weight,
        };
        (weight, part)
    };
    found.map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(class: usize, probabilities: &[f32]) -> ClassPrediction<'_> {
        let likeliest = (0..probabilities.len())
            .fold(0, |best, at| if probabilities[at] > probabilities[best] { at } else { best });
        ClassPrediction { class, likeliest, weight: 1.0, probabilities }
    }

    #[test]
    fn areas_are_shares_of_pairs_in_order() {
        let predictions = [row(0, &[0.9, 0.1]), row(1, &[0.4, 0.6]), row(0, &[0.3, 0.7]), row(1, &[0.2, 0.8])];
        // Of four pairs of a row of each class, three are in order.
        assert_eq!((auc(&predictions, 1), auc(&predictions, 0)), (Some(0.75), Some(0.75)));
        assert_eq!(auc(&[row(0, &[0.5, 0.5]), row(1, &[0.5, 0.5])], 1), Some(0.5), "equal ones tell nothing");
        assert_eq!(auc(&predictions[..1], 1), None);
        let heavy = [ClassPrediction { weight: 3.0, ..row(1, &[0.4, 0.6]) }, row(0, &[0.3, 0.7]), row(1, &[0.2, 0.8])];
        assert_eq!(auc(&heavy, 1), Some(0.25));
    }

    #[test]
    fn rows_are_counted_by_class_and_by_probability() {
        let predictions = [row(0, &[0.92, 0.08]), row(1, &[0.45, 0.55]), row(0, &[0.27, 0.73]), row(1, &[0.05, 0.95])];
        assert_eq!(confusion(&predictions, 2), [[1, 1], [0, 2]]);
        assert!(confusion(&predictions, CONFUSION_MAX + 1).is_empty());
        let second = part(&predictions, 1);
        assert_eq!((second.rows, second.predicted, second.right), (2, 3, 2));
        assert_eq!((second.recall(), second.precision()), (Some(1.0), Some(2.0 / 3.0)));
        let parts = calibration(&predictions);
        assert_eq!(
            parts.iter().map(|part| (part.1.low, part.1.rows)).collect::<Vec<_>>(),
            [(0.5, 1), (0.7, 1), (0.9, 2)]
        );
        assert!((parts[2].1.probability - 0.935).abs() < 1e-6 && parts[2].1.right == 1.0 && parts[1].1.right == 0.0);
    }
}
