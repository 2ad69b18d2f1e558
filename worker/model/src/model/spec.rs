//! Sizes and statistics that a model is built for. They are checked here once, so that layers need no checks.

use super::{Head, ModelError};
use enn_common::{
    config::{model::ModelConfig, train::TrainConfig},
    staged::meta::{FeatureMeta, StagedMeta, Stats},
};

/// Properties of the data that determine a model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelSpec {
    /// Input columns F, in order.
    pub features: Vec<FeatureMeta>,
    /// Output grid (S[, T[, U]]) whose product is O.
    pub out_shape: Vec<usize>,
    /// Number of training rows, which determines the rank of the base head where the configuration does not.
    pub train_rows: u64,
    /// Statistics of the F inputs over training rows.
    pub x_stats: Vec<Stats>,
    /// Statistics of the O cells over training rows.
    pub y_stats: Vec<Stats>,
    /// Numbers that are predicted for each cell.
    pub head: Head,
}

/// Maximum rank for `head_rank = 0`.
const RANK_MAX: u64 = 32;
/// Training rows per factor for `head_rank = 0`.
const ROWS_PER_FACTOR: u64 = 4;

impl ModelSpec {
    /// Reads the staged metadata, for the loss of `train`.
    pub fn new(meta: &StagedMeta, train: &TrainConfig) -> Self {
        Self { head: Head::new(train), ..Self::from_meta(meta) }
    }

    /// Reads the staged metadata, for a loss of points.
    pub fn from_meta(meta: &StagedMeta) -> Self {
        Self {
            features: meta.features.clone(),
            out_shape: meta.out_shape.clone(),
            train_rows: meta.split_rows[0],
            x_stats: meta.x_stats.clone(),
            y_stats: meta.y_stats.clone(),
            head: Head::Point,
        }
    }

    /// Returns O, the number of output cells.
    pub fn cells(&self) -> usize {
        self.out_shape.iter().product()
    }

    /// Returns the rank R of the base head: the configured one, or min(32, O, training rows / 4); at least 1.
    pub fn head_rank(&self, config: &ModelConfig) -> usize {
        if config.head_rank > 0 {
            return config.head_rank;
        }
        let by_rows = (self.train_rows / ROWS_PER_FACTOR).min(RANK_MAX) as usize;
        by_rows.min(self.cells()).max(1)
    }

    /// Rejects a configuration or data that no model can be built for.
    ///
    /// # Errors
    /// The first invalid value, with its configuration key.
    pub fn check(&self, config: &ModelConfig) -> Result<(), ModelError> {
        check_sizes(config)?;
        for (what, empty) in [("inputs", self.features.is_empty()), ("output cells", self.cells() == 0)] {
            if empty || self.out_shape.is_empty() {
                return Err(ModelError::Empty { what });
            }
        }
        for (what, found, expected) in
            [("inputs", self.x_stats.len(), self.features.len()), ("output cells", self.y_stats.len(), self.cells())]
        {
            if found != expected {
                return Err(ModelError::Statistics { what, found, expected });
            }
        }
        Ok(())
    }
}

fn check_sizes(config: &ModelConfig) -> Result<(), ModelError> {
    for (key, size) in [
        ("d_model", config.d_model),
        ("heads", config.heads),
        ("spatial_latents", config.spatial_latents),
        ("temporal_latents", config.temporal_latents),
        ("fuser_rounds", config.fuser_rounds),
        ("fuser_latents", config.fuser_latents),
        ("patch", config.patch.iter().copied().min().unwrap_or(1)),
    ] {
        if size == 0 {
            return Err(ModelError::Zero { key });
        }
    }
    if !config.d_model.is_multiple_of(config.heads) {
        return Err(ModelError::Heads { d_model: config.d_model, heads: config.heads });
    }
    for (key, found) in [("dropout", config.dropout), ("drop_path", config.drop_path)] {
        if !(0.0..1.0).contains(&found) {
            return Err(ModelError::Rate { key, found });
        }
    }
    if !(config.mlp_ratio > 0.0 && config.mlp_ratio.is_finite()) {
        return Err(ModelError::NotPositive { key: "mlp_ratio", found: config.mlp_ratio });
    }
    let segments = &config.segments;
    let dilations = &config.dilations;
    let fit =
        |(segment, dilation): (&usize, &usize)| *segment > 0 && *dilation > 0 && segment.is_multiple_of(*dilation);
    if segments.len() != dilations.len() || dilations.first() != Some(&1) || !segments.iter().zip(dilations).all(fit) {
        return Err(ModelError::Patterns { segments: segments.clone(), dilations: dilations.clone() });
    }
    match config.output_range {
        Some((low, high)) if low.is_nan() || high.is_nan() || low >= high => Err(ModelError::OutputRange { low, high }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(train_rows: u64, out_shape: &[usize]) -> ModelSpec {
        let stats = Stats { n: train_rows, mean: 0.0, std: 1.0, min: -1.0, max: 1.0 };
        let out_shape = out_shape.to_vec();
        let cells = out_shape.iter().product();
        ModelSpec {
            features: vec![FeatureMeta { name: "a".to_owned(), ..FeatureMeta::default() }],
            out_shape,
            train_rows,
            x_stats: vec![stats],
            y_stats: vec![stats; cells],
            head: Head::Point,
        }
    }

    #[test]
    fn rank_follows_the_smallest_of_cells_and_rows() {
        let config = ModelConfig::default();
        assert_eq!(spec(10_000, &[39, 24]).head_rank(&config), 32);
        assert_eq!(spec(100, &[39, 24]).head_rank(&config), 25);
        assert_eq!(spec(10_000, &[3, 4]).head_rank(&config), 12);
        assert_eq!(spec(0, &[3, 4]).head_rank(&config), 1);
        assert_eq!(spec(0, &[3, 4]).head_rank(&ModelConfig { head_rank: 7, ..config }), 7);
    }

    #[test]
    fn refusals_name_the_key() {
        let refuse = |config: ModelConfig| spec(10, &[2, 2]).check(&config).unwrap_err().to_string();
        let base = ModelConfig::default;
        assert!(refuse(ModelConfig { heads: 3, ..base() }).contains("model.d_model is 128"));
        assert!(refuse(ModelConfig { heads: 3, ..base() }).contains("129 would do"));
        assert!(refuse(ModelConfig { heads: 0, ..base() }).contains("model.heads is 0"));
        assert!(refuse(ModelConfig { patch: vec![1, 0], ..base() }).contains("model.patch is 0"));
        assert!(refuse(ModelConfig { dropout: 1.0, ..base() }).contains("model.dropout is 1"));
        assert!(refuse(ModelConfig { mlp_ratio: f64::NAN, ..base() }).contains("model.mlp_ratio"));
        assert!(refuse(ModelConfig { output_range: Some((1.0, 1.0)), ..base() }).contains("output_range"));
        assert!(spec(10, &[2, 2]).check(&base()).is_ok());
    }

    #[test]
    fn refuses_data_without_shape() {
        assert!(spec(10, &[]).check(&ModelConfig::default()).is_err());
        assert!(spec(10, &[3, 0]).check(&ModelConfig::default()).is_err());
        let short = ModelSpec { y_stats: vec![], ..spec(10, &[2]) };
        assert!(short.check(&ModelConfig::default()).unwrap_err().to_string().contains("0 statistics of output cells"));
    }
}
