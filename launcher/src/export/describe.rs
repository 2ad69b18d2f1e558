//! The sidecar: the description beside an artifact.

use super::{Digest, Form, Ports, usage};
use enn_common::{
    artifact::{
        export::{BatchRows, Column, Origin, Port, Sidecar, Source, VERSION, Verified},
        prediction::ModelDigest,
    },
    config::{
        RunConfig,
        data::{DataConfig, Layout},
    },
    graph::{Graph, Id},
    staged::{
        StagedMeta,
        meta::{CleaningReport, FeatureMeta, Stats},
    },
};
use enn_data::stage::InputBounds;
use enn_export::{Batch, Precision, Reduction, Target, maker::Made, onnx};
use std::collections::BTreeMap;

/// Key of the note on rules that are not inside an artifact.
pub(super) const OUTSIDE: &str = "outside";

#[derive(Debug)]
pub struct Subject {
    /// Base name of the artifacts.
    pub name: String,
    /// Run and checkpoint of the model.
    pub digest: ModelDigest,
    pub config: RunConfig,
    /// Metadata of the run's data.
    pub meta: StagedMeta,
    pub graph: Graph,
    pub graph_digest: String,
    pub batch: Batch,
    /// Whether quantiles are predicted.
    pub quantiles: bool,
    /// Valid ranges of the inputs.
    pub believed: InputBounds,
    /// Versions of the software that exports.
    pub versions: BTreeMap<String, String>,
}

impl Subject {
    pub fn ports(&self) -> Ports {
        let names = |ids: &[Id]| ids.iter().map(|id| self.graph.value(*id).name.clone()).collect();
        Ports { inputs: names(self.graph.inputs()), outputs: names(self.graph.outputs()) }
    }

    fn ports_of(&self, ids: &[Id]) -> Vec<Port> {
        let port = |id: &Id| {
            let value = self.graph.value(*id);
            Port { name: value.name.clone(), dtype: value.dtype.name().to_owned(), shape: value.shape.clone() }
        };
        ids.iter().map(port).collect()
    }

    fn columns(&self) -> Vec<Column> {
        let bounds = |at: usize| self.believed.bounds.get(at).cloned().unwrap_or_default();
        let column = |(at, feature): (usize, &FeatureMeta)| Column {
            name: feature.name.clone(),
            units: feature.units.clone(),
            categories: feature.categories.clone(),
            offset: feature.index.as_ref().map(|index| index.offset),
            label: feature.label.clone(),
            how: how(feature, self.config.data.as_ref().map(|data| &data.layout)),
            may_be_missing: feature.has_missing,
            bounds: bounds(at),
        };
        self.meta.features.iter().enumerate().map(column).collect()
    }

    /// Returns the note on rules of prediction that are not inside an artifact.
    fn outside(&self) -> Option<(String, String)> {
        let columns = &self.believed.unseen;
        let note = || {
            let columns = columns.join(", ");
            format!(
                "data.ranges and numbers that mean \"missing\" of {columns} are rules of an angle, and its sine and cosine go in: give NaN \
                 for both where the angle counts as missing"
            )
        };
        (!columns.is_empty()).then(|| (OUTSIDE.to_owned(), note()))
    }

    /// Returns how rows are read, without anything that identifies the training rows or their place.
    fn data(&self) -> Option<DataConfig> {
        let data = self.config.data.clone()?;
        // The file's extension tells the format of files.
        let files = data.files.first().and_then(|file| file.file_name()).map(Into::into).into_iter().collect();
        Some(DataConfig { files, sources: Vec::new(), ..data })
    }

    /// Returns the metadata of the training data, without their rows.
    fn staged(&self) -> StagedMeta {
        StagedMeta {
            sources: Vec::new(),
            row_names: Vec::new(),
            report: CleaningReport::default(),
            ..self.meta.clone()
        }
    }

    /// Returns the metadata that a file holds about its model.
    pub fn about(&self) -> BTreeMap<String, String> {
        let mut about = BTreeMap::from([
            ("enn.run".to_owned(), self.digest.run.clone()),
            ("enn.step".to_owned(), self.digest.step.to_string()),
            ("enn.checkpoint".to_owned(), self.digest.blake3.clone()),
            ("enn.graph".to_owned(), self.graph_digest.clone()),
            ("enn.units".to_owned(), self.meta.units.clone()),
        ]);
        let columns = serde_json::to_string(&self.columns()).unwrap_or_default();
        let labels = serde_json::to_string(&self.meta.out_labels).unwrap_or_default();
        about.extend([("enn.columns".to_owned(), columns), ("enn.labels".to_owned(), labels)]);
        about.extend(self.versions.iter().map(|(name, version)| (format!("enn.version.{name}"), version.clone())));
        about
    }
}

/// Describes how a calendar input is computed from its time, for users who only have the artifact.
fn how(feature: &FeatureMeta, layout: Option<&Layout>) -> String {
    let moment = match layout {
        Some(Layout::Rows(_)) => format!("the time {:?}, UTC", feature.source()),
        Some(Layout::Windows(layout)) => {
            format!("the first step of the window to predict, UTC + {} s", layout.time_offset_s)
        }
        _ => return String::new(),
    };
    let own = format!("{}.", feature.source());
    let is_window = matches!(layout, Some(Layout::Windows(_)));
    let part = if is_window { Some(feature.name.as_str()) } else { feature.name.strip_prefix(&own) };
    let (part, turn) = part.map_or(("", None), |part| part.split_once('.').map_or((part, None), |(p, t)| (p, Some(t))));
    let what = match part {
        "day_of_year" => "the part of the year that has passed",
        "weekday" => "whole days since Monday, over 7",
        "hour" => "the part of the day that has passed",
        "trend" if turn.is_none() => "years since 2000, with the part of this one that has passed",
        _ => return String::new(),
    };
    match turn {
        None => format!("{what} at {moment}"),
        Some(turn @ ("sin" | "cos")) => format!("{turn}(2π · {what}) at {moment}"),
        Some(_) => String::new(),
    }
}

/// Builds the sidecar of an artifact of `subject`.
#[expect(clippy::too_many_arguments, reason = "the description of an artifact is made of eight independent values")]
pub fn sidecar(
    subject: &Subject,
    target: Target,
    precision: Precision,
    form: &Form,
    digest: Digest,
    made: Made,
    source: Option<Source>,
    verified: Verified,
) -> Sidecar {
    let Digest { bytes, blake3, files } = digest;
    let mut versions = subject.versions.clone();
    versions.extend(made.versions);
    if target == Target::Onnx || target.source() == Some(Target::Onnx) {
        versions.insert("opset".to_owned(), onnx::OPSET.to_string());
    }
    let scaled = |stats: &[Stats]| stats.iter().map(|one| [one.mean, one.std]).collect();
    let artifact = target.file(&subject.name);
    let model_levels = subject.config.train.quantile_levels().to_vec();
    let levels = if subject.quantiles { model_levels.clone() } else { Vec::new() };
    Sidecar {
        version: VERSION,
        format: target.name().to_owned(),
        usage: usage::names(target, &artifact),
        artifact,
        bytes,
        blake3,
        files,
        model: Origin {
            run: subject.digest.run.clone(),
            step: subject.digest.step,
            checkpoint: subject.digest.blake3.clone(),
        },
        inputs: subject.ports_of(subject.graph.inputs()),
        outputs: subject.ports_of(subject.graph.outputs()),
        columns: subject.columns(),
        labels: subject.meta.out_labels.clone(),
        units: subject.meta.units.clone(),
        levels,
        model_levels,
        batch: BatchRows { min: subject.batch.min, opt: subject.batch.opt, max: subject.batch.max },
        precision: precision.name().to_owned(),
        versions,
        graph: subject.graph_digest.clone(),
        source,
        notes: made
            .about
            .into_iter()
            .chain(reduced(target.reduction(precision), form))
            .chain(subject.outside())
            .collect(),
        verified,
        config: serde_json::to_value(&subject.config.model).unwrap_or_default(),
        scaler: [scaled(&subject.meta.x_stats), scaled(&subject.meta.y_stats)],
        data: serde_json::to_value(subject.data()).unwrap_or_default(),
        staged: subject.staged(),
    }
}

/// Returns the notes on a graph in another precision than the model's: its reduced parts, and how far its interpreter's answers lie
/// from the model's.
fn reduced(reduction: Reduction, form: &Form) -> Vec<(String, String)> {
    let Some(found) = &form.found else { return Vec::new() };
    let what = match reduction {
        Reduction::None => "nothing",
        Reduction::Computed(_) => "weights, and products from the first norm to the answer",
        Reduction::Stored(_) => "weights; computed in fp32",
    };
    let errors = [("largest", found.largest), ("mean", found.mean)];
    let errors = errors.map(|(name, error)| (format!("reference_{name}"), format!("{error:.3e}")));
    [("reduced".to_owned(), what.to_owned()), ("reference_rows".to_owned(), found.rows.to_string())]
        .into_iter()
        .chain(errors)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn inputs_of_a_calendar_say_how_they_are_computed_and_others_nothing() {
        let rows = json!({"kind": "rows", "features": [{"column": "day", "kind": "time"}, {"column": "x.hour.sin", "kind": "number"}],
            "out_shape": [1], "row_id": null, "targets": ["y"]});
        let rows: Layout = serde_json::from_value(rows).unwrap();
        let said = |layout: &Layout, name: &str, source: &str| {
            let feature = FeatureMeta { name: name.to_owned(), source: source.to_owned(), ..FeatureMeta::default() };
            how(&feature, Some(layout))
        };
        let hour = said(&rows, "day.hour.sin", "day");
        assert_eq!(hour, "sin(2π · the part of the day that has passed) at the time \"day\", UTC");
        assert!(said(&rows, "day.weekday.cos", "day").starts_with("cos(2π · whole days since Monday, over 7)"));
        for name in ["day", "x.hour.sin", "trend", "hour.sin"] {
            assert_eq!(said(&rows, name, ""), "", "{name}");
        }
        let windows = json!({"kind": "windows", "entity": "who", "time": "when", "target": "v", "inputs": ["v"], "circular": [],
            "calendar": ["trend"], "history": 2, "steps": 4, "step_s": 3600, "target_valid_min": 0.5, "time_offset_s": 0});
        let windows: Layout = serde_json::from_value(windows).unwrap();
        let trend = said(&windows, "trend", "trend");
        assert!(trend.starts_with("years since 2000") && trend.ends_with("to predict, UTC + 0 s"), "{trend}");
        assert_eq!(said(&windows, "v[a,-1d,01h]", "v"), "");
    }
}
