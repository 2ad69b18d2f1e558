//! Inputs as the columns of a linear model: standardised numbers, categories as indicators, flags for what is missing.
//!
//! **Invariant:** the encoding depends on training rows alone; over these rows every column has mean zero.

use enn_common::staged::Staged;

/// Maximum columns: an input whose categories would exceed it is left out, with a note.
const COLUMNS_MAX: usize = 1_000;

/// Names of the inputs that staging derives from time stamps, alone or after the source column's name and a dot.
const CALENDAR: [&str; 4] = ["day_of_year", "weekday", "hour", "trend"];

#[derive(Debug, Clone, Copy, PartialEq)]
enum EncodedColumn {
    /// (value − mean) / std, or 0 where missing.
    Number { feature: usize, mean: f64, std: f64 },
    /// Indicator (0 or 1) of a missing value.
    Missing { feature: usize },
    /// Indicator (0 or 1) of one category.
    Category { feature: usize, index: usize },
}

/// Map from staged rows to rows of the linear model.
#[derive(Debug)]
pub(super) struct Encoding {
    sources: Vec<EncodedColumn>,
    /// Mean of each column over the training rows, subtracted from it.
    means: Vec<f64>,
}

impl Encoding {
    /// Learns the encoding from the rows `train`; adds a note for what is left out.
    pub(super) fn new(staged: &Staged, train: &[usize], notes: &mut Vec<String>) -> Self {
        Self::of(sources(staged, train, notes), staged, train)
    }

    /// Learns an encoding of the calendar inputs alone; `None` where there are none.
    pub(super) fn of_calendar(staged: &Staged, train: &[usize]) -> Option<Self> {
        let features = &staged.meta().features;
        let is_calendar = |feature: usize| {
            let name = features[feature].name.trim_end_matches(".sin").trim_end_matches(".cos");
            CALENDAR
                .iter()
                .any(|known| name == *known || name.strip_suffix(known).is_some_and(|stem| stem.ends_with('.')))
        };
        let of = |source: &EncodedColumn| match source {
            EncodedColumn::Number { feature, .. } => is_calendar(*feature),
            EncodedColumn::Missing { .. } | EncodedColumn::Category { .. } => false,
        };
        let sources: Vec<EncodedColumn> = sources(staged, train, &mut Vec::new()).into_iter().filter(of).collect();
        (!sources.is_empty()).then(|| Self::of(sources, staged, train))
    }

    fn of(sources: Vec<EncodedColumn>, staged: &Staged, train: &[usize]) -> Self {
        let mut encoding = Self { means: vec![0.0; sources.len()], sources };
        encoding.centre(staged, train);
        encoding
    }

    /// Subtracts from every column its mean over `rows`.
    pub(super) fn centre(&mut self, staged: &Staged, rows: &[usize]) {
        self.means.fill(0.0);
        let mut row_values = vec![0.0; self.columns()];
        let mut sums = vec![0.0; self.columns()];
        for row in rows {
            self.encode(staged, *row, &mut row_values);
            sums.iter_mut().zip(&row_values).for_each(|(sum, value)| *sum += value);
        }
        self.means = sums.iter().map(|sum| sum / rows.len() as f64).collect();
    }

    pub(super) fn columns(&self) -> usize {
        self.sources.len()
    }

    pub(super) fn encode(&self, staged: &Staged, row: usize, out: &mut [f64]) {
        let x = staged.x_row(row);
        let mask = staged.x_mask_row(row);
        for ((value, source), mean) in out.iter_mut().zip(&self.sources).zip(&self.means) {
            *value = source.of(x, mask) - mean;
        }
    }
}

impl EncodedColumn {
    fn of(self, x: &[f32], mask: &[u8]) -> f64 {
        let holds = |yes: bool| f64::from(u8::from(yes));
        match self {
            Self::Number { feature, mean, std } if mask[feature] != 0 => (f64::from(x[feature]) - mean) / std,
            Self::Number { .. } => 0.0,
            Self::Missing { feature } => holds(mask[feature] == 0),
            // An index is a small whole number, so the comparison is exact.
            Self::Category { feature, index } => holds(mask[feature] != 0 && x[feature] == index as f32),
        }
    }
}

fn sources(staged: &Staged, train: &[usize], notes: &mut Vec<String>) -> Vec<EncodedColumn> {
    let features = &staged.meta().features;
    let moments = moments(staged, train);
    let mut sources = Vec::new();
    for (feature, of) in features.iter().enumerate() {
        let (n, mean, std) = moments[feature];
        // Dividing by a deviation that is only rounding error would amplify noise.
        if of.categories.is_empty() && std > 1e-9 * mean.abs().max(1e-30) {
            sources.push(EncodedColumn::Number { feature, mean, std });
        }
        // Labels of one source column are missing together and share one flag.
        let has_flag = of.label.is_some() && !of.has_missing;
        if n > 0 && n < train.len() && !has_flag {
            sources.push(EncodedColumn::Missing { feature });
        }
    }
    for (feature, of) in features.iter().enumerate().filter(|(_, of)| !of.categories.is_empty()) {
        if sources.len() + of.categories.len() > COLUMNS_MAX {
            let name = &of.name;
            let count = of.categories.len();
            notes.push(format!("without {name}: its {count} categories exceed {COLUMNS_MAX} columns"));
            continue;
        }
        sources.extend((0..of.categories.len()).map(|index| EncodedColumn::Category { feature, index }));
    }
    sources
}

/// Returns the number of valid training cells, their mean and their standard deviation, for every feature.
fn moments(staged: &Staged, train: &[usize]) -> Vec<(usize, f64, f64)> {
    let mut moments = vec![enn_common::staged::Moments::default(); staged.features()];
    for row in train {
        let cells = staged.x_row(*row).iter().zip(staged.x_mask_row(*row));
        for (moments, (value, valid)) in moments.iter_mut().zip(cells) {
            if *valid != 0 {
                moments.push(f64::from(*value));
            }
        }
    }
    let of = |moments: &enn_common::staged::Moments| {
        let stats = moments.stats();
        (usize::try_from(stats.n).unwrap_or(usize::MAX), stats.mean, stats.std)
    };
    moments.iter().map(of).collect()
}
