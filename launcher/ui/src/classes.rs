//! Metrics of predicted classes as text: one line, a table of classes, and the confusion matrix.

use super::format::{self, aligned};
use enn_common::artifact::classes::ClassFigures;

/// Classes that are listed; of more, those with most rows.
const LISTED_MAX: usize = 24;
const CONFUSION_MAX: usize = 12;
/// Characters of a class's name.
const NAME_MAX: usize = 16;

/// Formats all metrics of classes in a line.
pub fn line(of: &ClassFigures) -> String {
    let auc = of.auc.map_or_else(String::new, |auc| format!(", AUC {auc:.3}"));
    format!(
        "accuracy {}, log-loss {}{auc}, calibration error {}",
        share(Some(of.accuracy)),
        format::measure(of.log_loss),
        share(Some(of.calibration_error))
    )
}

/// Formats the tables of `enn metrics`, `enn status` and `enn evaluate`; `rows` names the rows.
pub fn tables(of: &ClassFigures, rows: &str) -> String {
    let mut text = format!("{rows}: {}\n", line(of));
    text.push_str(&by_class(of));
    text.push_str(&confusion(of));
    text.push_str(&calibration(of));
    text
}

fn by_class(of: &ClassFigures) -> String {
    let order = listed(of, LISTED_MAX);
    let mut title = "by class".to_owned();
    if order.len() < of.classes.len() {
        title = format!("{title}, {LISTED_MAX} of {}", format::count(of.classes.len() as u64));
    }
    let mut rows = vec![[title.as_str(), "rows", "recall", "precision", "AUC"].map(str::to_owned).to_vec()];
    for class in order {
        rows.push([vec![format!("  {}", name(of, class))], metrics_of(of, class).to_vec()].concat());
    }
    aligned(&rows)
}

/// Returns the classes in their order; of more than `most`, those with most rows.
pub(super) fn listed(of: &ClassFigures, most: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..of.classes.len()).collect();
    if order.len() > most {
        order.sort_by_key(|class| std::cmp::Reverse(of.classes[*class].rows));
        order.truncate(most);
    }
    order
}

/// Formats rows, recall, precision and AUC of a class.
pub(super) fn metrics_of(of: &ClassFigures, class: usize) -> [String; 4] {
    let part = &of.classes[class];
    let auc = part.auc.map_or_else(|| "–".to_owned(), |auc| format!("{auc:.3}"));
    [format::count(part.rows), share(part.recall()), share(part.precision()), auc]
}

/// Formats the confusion matrix; empty where there are too many classes.
pub fn confusion(of: &ClassFigures) -> String {
    if of.confusion.is_empty() || of.confusion.len() > CONFUSION_MAX {
        return String::new();
    }
    let names = (0..of.confusion.len()).map(|class| name(of, class));
    let mut rows = vec![std::iter::once("true ↓  predicted →".to_owned()).chain(names).collect::<Vec<_>>()];
    for (class, counts) in of.confusion.iter().enumerate() {
        let counts = counts.iter().map(|count| format::count(*count));
        rows.push(std::iter::once(format!("  {}", name(of, class))).chain(counts).collect());
    }
    aligned(&rows)
}

fn calibration(of: &ClassFigures) -> String {
    let mut rows = vec![["likeliest class", "rows", "probability", "is right"].map(str::to_owned).to_vec()];
    for part in &of.calibration {
        let between = format!("  {:.0} to {:.0} %", 100.0 * part.low, 100.0 * part.high);
        let count = format::count(part.rows);
        rows.push(vec![between, count, share(Some(part.probability)), share(Some(part.right))]);
    }
    aligned(&rows)
}

/// Formats a share in percent.
pub(super) fn share(share: Option<f64>) -> String {
    share.filter(|share| share.is_finite()).map_or_else(|| "–".to_owned(), format::percent)
}

/// Returns a class's name, shortened.
pub(super) fn name(of: &ClassFigures, class: usize) -> String {
    let name = of.names.get(class).map_or("", String::as_str);
    let cut: String = name.chars().take(NAME_MAX).collect();
    if cut.len() < name.len() { cut + "…" } else { cut }
}

#[cfg(test)]
mod tests {
    use super::*;
    use enn_common::artifact::classes::{CalibrationPart, ClassPart};

    /// Two classes.
    fn example() -> ClassFigures {
        let part = |rows, predicted, right| ClassPart { rows, predicted, right, auc: Some(0.875) };
        ClassFigures {
            names: vec!["no".to_owned(), "yes".to_owned()],
            rows: 100,
            log_loss: 0.31,
            accuracy: 0.9,
            auc: Some(0.875),
            calibration_error: 0.021,
            classes: vec![part(60, 62, 56), part(40, 38, 34)],
            confusion: vec![vec![56, 4], vec![6, 34]],
            calibration: vec![CalibrationPart { low: 0.9, high: 1.0, rows: 100, probability: 0.92, right: 0.9 }],
        }
    }

    #[test]
    fn figures_of_classes_are_tables() {
        let expected = "\
test rows: accuracy 90.0 %, log-loss 0.310, AUC 0.875, calibration error 2.1 %
by class  rows  recall  precision    AUC
  no        60  93.3 %     90.3 %  0.875
  yes       40  85.0 %     89.5 %  0.875
true ↓  predicted →  no  yes
  no                 56    4
  yes                 6   34
likeliest class  rows  probability  is right
  90 to 100 %     100       92.0 %    90.0 %
";
        assert_eq!(tables(&example(), "test rows"), expected);
    }
}
