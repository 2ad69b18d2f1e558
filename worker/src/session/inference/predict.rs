//! Prediction: every row of a staged set, in chunks. The ranks share nothing: chunk c is done by rank c mod world, so that no
//! process group is needed and a lost worker costs its unfinished chunk only.

use super::guard;
use crate::checkpoint::{self, ExpectedTensor as Entry};
use crate::data::{Batch, View};
use crate::session::dataset::{self, Dataset};
use crate::session::kernels::{KernelTask, Kernels};
use crate::session::learner::{OPTIONAL_OF_MODEL, restore_buffers, saved_calibration};
use crate::session::memory::{autobatch, host_memory};
use crate::session::precision::{Demand, Precision};
use crate::session::report::{self, Reporter};
use crate::session::{
    SessionError, checkpointing::saved_model::SavedModel, memory::portion::Portion, memory::room::Room,
};
use enn_comm::Solo;
use enn_common::{
    artifact::chunk::{self, RowStatus},
    config::train::Precision as Wanted,
    staged::{Histories, StagedMeta, meta::Stats},
    wire::{control::Phase, message::FromWorker},
};
use enn_core::{
    autograd::{Cx, Program},
    params::{ParamBuilder, Params},
    precision::{Format, allow_tf32},
};
use enn_model::{
    block::{StreamState, SubModels},
    model::{Answer, Model, ModelSpec, Output},
};
use std::path::{Path, PathBuf};
use tch::{Device, Tensor};

/// Rows of one forward pass on a CPU, whose caches hold no more, and on a GPU, which has more to do at once.
const FORWARD_ROWS: u64 = 256;
const FORWARD_ROWS_CUDA: u64 = 4096;
/// Values of one forward pass at most, inputs and outputs together: 64 MiB.
const FORWARD_VALUES_MAX: u64 = 16 << 20;
const NAMES_TOLD: usize = 3;

/// A prediction to make, and where things are.
#[derive(Debug, Clone)]
pub struct PredictTask {
    /// Staged directory; all its rows are predicted.
    pub staged: PathBuf,
    /// Committed checkpoint; its best weights are used.
    pub checkpoint: PathBuf,
    pub out: PathBuf,
    /// Rows per chunk, at least 1.
    pub chunk_rows: u64,
    /// Chunks [start, end) that are complete already.
    pub done: Vec<(u64, u64)>,
    /// This rank and the number of ranks.
    pub place: (u32, u32),
    /// Ranks on this host, which have its memory together.
    pub local: u32,
    pub device: Device,
    pub precision: Wanted,
    pub kernels: KernelTask,
    pub models: SubModels,
}

/// Predicts this rank's chunks; whether it was stopped on request. Messages: `Ready`, `Decided` about the rows at once, then `ChunkWritten`
/// for each.
///
/// # Errors
/// A checkpoint that cannot be used, data that do not fit its model, or a disk that refuses a chunk.
pub fn predict(task: &PredictTask, reporter: &dyn Reporter) -> Result<bool, SessionError> {
    reporter.mark(Phase::Load, 0);
    let saved = SavedModel::open(&task.checkpoint)?;
    let data = Dataset::open(&task.staged)?;
    fits(&task.staged, data.staged.0.meta(), &saved.meta)?;
    let kernels = Kernels::new(&saved.config, &task.kernels, reporter)?;
    let mut predictor = Predictor::new(&saved, &task.models, &kernels, task.device, task.precision)?;
    report::ready(reporter, task.device, "none")?;
    let inputs = data.staged.inputs()?;
    if let Some(decision) = predictor.make_room(&inputs, task)? {
        reporter.send(FromWorker::Decided { decision })?;
    }
    let guarded = predictor.guard(&inputs, reporter)?;
    if let Some(message) = guarded.warning.filter(|_| task.place.0 == 0) {
        reporter.send(FromWorker::Warned { message })?;
    }
    let rows = data.staged.0.rows() as u64;
    let chunk_rows = task.chunk_rows.max(1);
    let rank = u64::from(task.place.0);
    let world = u64::from(task.place.1);
    for index in (0..rows.div_ceil(chunk_rows)).filter(|index| index % world == rank) {
        let start = index * chunk_rows;
        let end = ((index + 1) * chunk_rows).min(rows);
        if task.done.contains(&(start, end)) {
            continue;
        }
        if reporter.stop_requested() {
            return Ok(true);
        }
        let written = predictor.chunk(&data, start..end, &task.out, reporter)?;
        kernels.tell_news()?;
        reporter.send(FromWorker::ChunkWritten { start, end, path: written.path, blake3: written.blake3 })?;
    }
    kernels.tell_calls()?;
    Ok(false)
}

/// Shape of what is said of one row: quantiles before the output grid, where there are any.
fn answer_shape(saved: &SavedModel) -> Vec<usize> {
    let levels = saved.config.train.quantile_levels().len();
    (levels > 0).then_some(levels).into_iter().chain(saved.meta.out_shape.iter().copied()).collect()
}

/// Rows of one forward pass of a model.
fn forward_rows(meta: &StagedMeta, device: Device) -> u64 {
    let values = (meta.features.len() + meta.out_shape.iter().product::<usize>()).max(1) as u64;
    (FORWARD_VALUES_MAX / values).clamp(1, if device.is_cuda() { FORWARD_ROWS_CUDA } else { FORWARD_ROWS })
}

#[derive(Default)]
pub(crate) struct Answers {
    /// Row-major, the user's units; NaN for a row without inputs.
    pub(crate) values: Vec<f32>,
    pub(crate) status: Vec<u8>,
}

impl Answers {
    /// Adds the answer to a batch. A row without any input has none, whatever the model says of it, and none has a `blind` cell
    /// (O), of which training has seen nothing.
    fn add(&mut self, answer: &Answer, batch: &Batch, blind: Option<&Tensor>) -> Result<(), SessionError> {
        let quantiles: Vec<Tensor> = answer.quantiles.iter().map(|one| one.raw().shallow_clone()).collect();
        let values =
            if quantiles.is_empty() { answer.point.raw().shallow_clone() } else { Tensor::f_stack(&quantiles, 1)? };
        let finite = values.f_isfinite()?;
        let (values, finite) = match blind {
            None => (values, finite),
            Some(blind) => (values.f_masked_fill(blind, f64::NAN)?, finite.f_logical_or(blind)?),
        };
        let values = values.f_flatten(1, -1)?;
        let finite = finite.f_flatten(1, -1)?;
        let known = batch.x_mask.f_logical_and(&batch.x.f_isfinite()?)?.f_any_dim(1, true)?;
        let finite = finite.f_all_dim(1, false)?;
        let values = values.f_where_scalarother(&known, f64::NAN)?;
        let values = Vec::<f32>::try_from(values.f_to_device(Device::Cpu)?.f_contiguous()?.f_view([-1])?)?;
        let flags = |t: &Tensor| Vec::<bool>::try_from(t.f_to_device(Device::Cpu)?.f_contiguous()?.f_view([-1])?);
        let known = flags(&known)?;
        let finite = flags(&finite)?;
        // All of the batch or nothing.
        self.values.extend(values);
        self.status.extend(known.into_iter().zip(finite).map(|row| match row {
            (false, _) => RowStatus::NoInput as u8,
            (true, false) => RowStatus::NotFinite as u8,
            (true, true) => RowStatus::Predicted as u8,
        }));
        Ok(())
    }

    /// Takes the numbers of series without history out of the last rows, which are those of a batch, and says so in their status.
    fn hold(&mut self, histories: &Histories, batch: &Batch, targets: &[Stats]) -> Result<(), SessionError> {
        let x = batch.x.f_where_scalarother(&batch.x_mask, f64::NAN)?;
        let rows = x.size()[0] as usize;
        let x = Vec::<f32>::try_from(x.f_to_device(Device::Cpu)?.f_contiguous()?.f_view([-1])?)?;
        let blind: Vec<bool> = targets.iter().map(|one| one.n == 0).collect();
        let first = self.status.len() - rows;
        let width = x.len() / rows.max(1);
        let each = self.values.len() / self.status.len().max(1);
        let values = self.values[first * each..].chunks_mut(each.max(1));
        for ((x, values), status) in x.chunks(width.max(1)).zip(values).zip(&mut self.status[first..]) {
            if *status != RowStatus::NoInput as u8 {
                *status = histories.judged(x, values, &blind) as u8;
            }
        }
        Ok(())
    }
}

/// The result of looking at some answers before any is given.
pub(crate) struct Guarded {
    /// The precision is the right one for all rows to come.
    pub(crate) settled: bool,
    pub(crate) warning: Option<String>,
}

pub(crate) struct Predictor<'a> {
    model: Model,
    params: Params,
    precision: Precision,
    kernels: &'a Kernels<'a>,
    device: Device,
    portion: Portion,
    /// Shape of what is said of one row.
    shape: Vec<usize>,
    /// Target cells over the training rows.
    targets: Vec<Stats>,
    /// The inputs that are the history of each series, where samples have series.
    histories: Option<Histories>,
}

impl<'a> Predictor<'a> {
    /// The best weights of a checkpoint on `device`.
    pub(crate) fn new(
        saved: &SavedModel,
        models: &SubModels,
        kernels: &'a Kernels<'a>,
        device: Device,
        wanted: Wanted,
    ) -> Result<Self, SessionError> {
        let (model, mut params) = load(saved, models, device)?;
        let rows = forward_rows(&saved.meta, device);
        let demand = Demand::of(&ModelSpec::new(&saved.meta, &saved.config.train), rows);
        let precision = Precision::decide(wanted, demand, device, &Solo)?;
        if let Some(kind) = precision.copies() {
            params.keep_shadows(kind)?;
        }
        let shape = answer_shape(saved);
        let targets = saved.meta.y_stats.clone();
        let portion = Portion::of(rows);
        let histories = Histories::of(&saved.meta);
        Ok(Self { model, params, precision, kernels, device, portion, shape, targets, histories })
    }

    /// Takes no more rows at once than a host has memory for, by what a few of the data take; what to tell of it. A device says in
    /// time that its memory is short.
    fn make_room(&mut self, data: &View<'_>, task: &PredictTask) -> Result<Option<String>, SessionError> {
        let most = self.portion.rows().min(data.rows() as u64);
        if self.device.is_cuda() || most == 0 {
            return Ok(None);
        }
        let held = host_memory::held().unwrap_or(0);
        let compute = |rows: u64| {
            let batch = self.gather(data, 0..rows)?;
            let cx = self.context(&self.precision)?;
            let output = self.output(&cx, &batch)?;
            Answers::default().add(&self.model.answer(&cx, &output)?, &batch, None)?;
            Ok(cx.with_program(Program::peak_bytes))
        };
        let fit = autobatch::fit(&mut Room::new(self.device, task.local, None, compute), most)?;
        self.portion = Portion::fitting(&fit, held);
        let of = if task.local > 1 { "a worker's part of the free memory" } else { "the free memory" };
        let news = task.place.0 == 0 || fit.rows < most;
        Ok(news.then(|| format!("{} rows are predicted at once: {}", fit.rows, fit.explanation(of))))
    }

    /// Settles on a precision by rows evenly spread over the data; what the user should know of it. Where these do not differ,
    /// nothing is settled.
    pub(crate) fn guard(&mut self, data: &View<'_>, reporter: &dyn Reporter) -> Result<Guarded, SessionError> {
        let all = data.rows() as u64;
        // Two at least: what is looked at is whether they differ.
        let rows = all.min(self.portion.rows().clamp(2, FORWARD_ROWS));
        if rows < 2 {
            return Ok(Guarded { settled: false, warning: None });
        }
        let batch = self.gather(data, (0..rows).map(|i| dataset::spread(i, all, rows)))?;
        let is_flat = |precision: &Precision| -> Result<Option<bool>, SessionError> {
            let cx = self.context(precision)?;
            let mut parts = Vec::new();
            self.portion.each(0..rows, reporter, |part| {
                let part = batch.narrow(part.start.cast_signed(), (part.end - part.start).cast_signed())?;
                parts.push(self.output(&cx, &part)?.z.raw().shallow_clone());
                Ok(())
            })?;
            guard::is_flat(&batch, &Tensor::f_cat(&parts, 0)?, &self.targets, guard::unit(precision.choice().format))
        };
        match is_flat(&self.precision)? {
            None => return Ok(Guarded { settled: false, warning: None }),
            Some(false) => return Ok(Guarded { settled: true, warning: None }),
            Some(true) => {}
        }
        let warn = |warning: String| Ok(Guarded { settled: true, warning: Some(warning) });
        let flat = format!("the model is flat: it says the same of {rows} rows from all over the data, which differ");
        let format = self.precision.choice().format;
        if format == Format::Fp32 {
            return warn(flat);
        }
        allow_tf32(false)?;
        if is_flat(&Precision::full())? == Some(true) {
            allow_tf32(format == Format::Tf32)?;
            return warn(flat);
        }
        let name = format.name();
        self.precision = Precision::full();
        warn(format!(
            "in {name} the answers to {rows} rows from all over the data do not differ, in fp32 they do: fp32 is used"
        ))
    }

    /// Cells (O) of which training has seen no target; `None`: it has seen all.
    fn blind(&self) -> Result<Option<Tensor>, SessionError> {
        let blind: Vec<bool> = self.targets.iter().map(|one| one.n == 0).collect();
        blind.contains(&true).then(|| Ok(Tensor::f_from_slice(&blind)?.f_to_device(self.device)?)).transpose()
    }

    fn context(&self, precision: &Precision) -> Result<Cx<'_>, SessionError> {
        let mut cx = Cx::eval(&self.params);
        cx.set_launcher(&self.kernels.manager);
        precision.enter(&cx)?;
        Ok(cx)
    }

    fn output(&self, cx: &Cx<'_>, batch: &Batch) -> Result<Output, SessionError> {
        let input = |raw: &Tensor| cx.input(raw.shallow_clone());
        Ok(self.model.forward(cx, &input(&batch.x), &input(&batch.x_mask))?)
    }

    fn gather(&self, data: &View<'_>, rows: impl Iterator<Item = u64>) -> Result<Batch, SessionError> {
        let rows: Vec<u64> = rows.collect();
        Ok(data.gather(&rows, rows.len(), self.device)?.to_device(self.device)?)
    }

    pub(crate) fn answers(
        &self,
        data: &View<'_>,
        rows: std::ops::Range<u64>,
        reporter: &dyn Reporter,
    ) -> Result<Answers, SessionError> {
        let mut answers = Answers::default();
        let blind = self.blind()?;
        self.portion.each(rows, reporter, |rows| {
            reporter.mark(Phase::Predict, rows.start);
            let batch = self.gather(data, rows)?;
            let cx = self.context(&self.precision)?;
            let output = self.output(&cx, &batch)?;
            answers.add(&self.model.answer(&cx, &output)?, &batch, blind.as_ref())?;
            self.hold(&mut answers, &batch)
        })?;
        Ok(answers)
    }

    /// Answers all rows as the next call of a stream each, and returns the state after it. Empty is the state before the first.
    pub(crate) fn streamed(
        &self,
        data: &View<'_>,
        before: &StreamState,
    ) -> Result<(Answers, StreamState), SessionError> {
        let batch = self.gather(data, 0..data.rows() as u64)?;
        let cx = self.context(&self.precision)?;
        let input = |raw: &Tensor| cx.input(raw.shallow_clone());
        let (output, after) = self.model.forward_stream(&cx, &input(&batch.x), &input(&batch.x_mask), before)?;
        let mut answers = Answers::default();
        answers.add(&self.model.answer(&cx, &output)?, &batch, self.blind()?.as_ref())?;
        self.hold(&mut answers, &batch)?;
        Ok((answers, after))
    }

    /// Takes back the answers to series without history.
    fn hold(&self, answers: &mut Answers, batch: &Batch) -> Result<(), SessionError> {
        match &self.histories {
            Some(histories) => answers.hold(histories, batch, &self.targets),
            None => Ok(()),
        }
    }

    /// Writes the answers to staged rows below `out`.
    pub(crate) fn chunk(
        &self,
        data: &Dataset,
        rows: std::ops::Range<u64>,
        out: &Path,
        reporter: &dyn Reporter,
    ) -> Result<chunk::WrittenChunk, SessionError> {
        let answers = self.answers(&data.staged.inputs()?, rows.clone(), reporter)?;
        let ids = &data.staged.0.row_id()[rows.start as usize..rows.end as usize];
        let content = chunk::ChunkRows { values: &answers.values, ids, status: &answers.status };
        let extent = chunk::ChunkExtent { start: rows.start, end: rows.end, out_shape: &self.shape };
        Ok(chunk::write(out, extent, content)?)
    }
}

/// The model of a checkpoint with its best weights.
pub(crate) fn load(saved: &SavedModel, models: &SubModels, device: Device) -> Result<(Model, Params), SessionError> {
    let spec = ModelSpec::new(&saved.meta, &saved.config.train);
    let mut builder = ParamBuilder::new();
    let mut model = Model::build_with(&saved.config.model, &spec, models, &mut builder)?;
    let mut params = builder.build(saved.config.seed, device)?;
    let mut wanted: Vec<Entry> = params.named().map(|(name, t)| (format!("best.{name}"), t.size(), t.kind())).collect();
    wanted.extend(model.buffers().into_iter().map(|(name, t)| (format!("model.{name}"), t.size(), t.kind())));
    let tensors = checkpoint::load_part(&saved.path, &wanted, &OPTIONAL_OF_MODEL)?;
    let best = params.named().filter_map(|(name, _)| Some((name.to_owned(), tensors.get(&format!("best.{name}"))?)));
    let best: Vec<(String, &Tensor)> = best.collect();
    params.load(best.iter().map(|(name, tensor)| (name.as_str(), *tensor)))?;
    restore_buffers(&mut model, &tensors)?;
    let calibration = saved_calibration(&model, &tensors)?;
    model.calibrate(calibration);
    model.to_device(device);
    Ok((model, params))
}

/// Refuses data whose columns or grid are not those of training.
pub(crate) fn fits(path: &Path, data: &StagedMeta, model: &StagedMeta) -> Result<(), SessionError> {
    let other = |what, found: String, expected: String| {
        Err(SessionError::OtherData { path: path.to_owned(), what, found, expected })
    };
    let names = |meta: &StagedMeta| -> Vec<String> { meta.features.iter().map(|f| f.name.clone()).collect() };
    let found = names(data);
    let expected = names(model);
    if found.len() != expected.len() {
        return other("the number of features", found.len().to_string(), expected.len().to_string());
    }
    let differing: Vec<usize> = (0..found.len()).filter(|&i| found[i] != expected[i]).collect();
    if !differing.is_empty() {
        let named =
            |all: &[String]| differing.iter().take(NAMES_TOLD).map(|&i| all[i].clone()).collect::<Vec<_>>().join(", ");
        return other("the order or name of features", named(&found), named(&expected));
    }
    if data.has_classes != model.has_classes || (data.has_classes && data.out_labels != model.out_labels) {
        let named = |meta: &StagedMeta| format!("{:?}", meta.out_labels.first().filter(|_| meta.has_classes));
        return other("the target's classes", named(data), named(model));
    }
    if data.out_shape != model.out_shape {
        return other("the target's shape", format!("{:?}", data.out_shape), format!("{:?}", model.out_shape));
    }
    for (one, two) in data.features.iter().zip(&model.features) {
        if one.categories != two.categories {
            return other(
                "the categories of a feature",
                one.name.clone(),
                "the same categories in the same order".to_owned(),
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use enn_common::staged::meta::{CleaningReport, FeatureMeta};
    use tch::Kind;

    fn meta(features: &[&str], out_shape: &[usize]) -> StagedMeta {
        let feature = |name: &&str| FeatureMeta { name: (*name).to_owned(), ..FeatureMeta::default() };
        StagedMeta {
            version: 1,
            digest: String::new(),
            rows: 1,
            features: features.iter().map(feature).collect(),
            out_shape: out_shape.to_vec(),
            out_labels: vec![],
            units: String::new(),
            persistence: None,
            has_targets: false,
            has_classes: false,
            class_form: None,
            has_weights: false,
            split_rows: [0, 0, 1],
            sources: vec![],
            row_names: vec![],
            x_stats: vec![],
            y_stats: vec![],
            report: CleaningReport::default(),
        }
    }

    #[test]
    fn a_gpu_is_given_more_rows_at_once_as_far_as_they_are_small() {
        let small = meta(&["a"], &[3, 24]);
        let large = meta(&["a"], &[1 << 12, 1 << 10]);
        assert_eq!(forward_rows(&small, Device::Cpu), FORWARD_ROWS);
        assert_eq!(forward_rows(&small, Device::Cuda(0)), FORWARD_ROWS_CUDA);
        assert_eq!([Device::Cpu, Device::Cuda(0)].map(|device| forward_rows(&large, device)), [3; 2]);
        assert_eq!(forward_rows(&meta(&["a"], &[1 << 30]), Device::Cpu), 1);
    }

    #[test]
    fn every_row_has_a_status() {
        let params = ParamBuilder::new().build(0, Device::Cpu).unwrap();
        let cx = Cx::eval(&params);
        let numbers = |v: &[f32]| Tensor::from_slice(v).view([3, 2]);
        let point = cx.input(numbers(&[1.0, 2.0, f32::INFINITY, 4.0, 5.0, 6.0]));
        let x = numbers(&[1.0, f32::NAN, 1.0, 1.0, f32::NAN, 3.0]);
        let none = Tensor::zeros([3, 0], (Kind::Float, Device::Cpu));
        // A number that is not valid is no input.
        let x_mask = Tensor::from_slice(&[true, true, true, true, true, false]).view([3, 2]);
        let batch =
            Batch { x, x_mask, y: none.shallow_clone(), y_mask: none, whole: None, rows: [0, 1, 2].into(), real: 3 };
        let mut answers = Answers::default();
        answers.add(&Answer { point: point.clone(), quantiles: vec![] }, &batch, None).unwrap();
        assert_eq!(answers.status, [RowStatus::Predicted, RowStatus::NotFinite, RowStatus::NoInput].map(|s| s as u8));
        assert_eq!(answers.values[..2], [1.0, 2.0]);
        assert_eq!((answers.values[2], answers.values[3]), (f32::INFINITY, 4.0));
        assert!(answers.values[4..].iter().all(|value| value.is_nan()));

        // The first cell is blind, of the point as of two quantiles.
        let mut blind = Answers::default();
        let mask = Tensor::from_slice(&[true, false]);
        blind.add(&Answer { point: point.clone(), quantiles: vec![] }, &batch, Some(&mask)).unwrap();
        assert_eq!(blind.status, [RowStatus::Predicted, RowStatus::Predicted, RowStatus::NoInput].map(|s| s as u8));
        assert!(blind.values[0].is_nan() && blind.values[2].is_nan() && blind.values[3] == 4.0);
        let mut levels = Answers::default();
        let quantiles = vec![point.clone(), point.clone()];
        levels.add(&Answer { point, quantiles }, &batch, Some(&mask)).unwrap();
        assert!(levels.values[0].is_nan() && levels.values[1] == 2.0 && levels.values[2].is_nan());
    }

    #[test]
    fn a_series_without_history_has_no_numbers_whoever_asks() {
        let mut meta = meta(&["v[a,-1d,0s]", "v[b,-1d,0s]", "weekday.sin"], &[2, 1]);
        meta.persistence = Some(vec![0, 1]);
        meta.out_labels = vec![vec!["a".to_owned(), "b".to_owned()], vec!["0s".to_owned()]];
        let params = ParamBuilder::new().build(0, Device::Cpu).unwrap();
        let cx = Cx::eval(&params);
        let point = cx.input(Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, f32::NAN, 7.0, 8.0]).view([4, 2]));
        let nan = f32::NAN;
        let x = Tensor::from_slice(&[1.0, 1.0, 0.0, 1.0, nan, 0.0, 1.0, nan, 0.0, 1.0, 9.0, 0.0]).view([4, 3]);
        let x_mask = Tensor::from_slice(&[true, true, true, true, false, true, true, false, true, true, false, true]);
        let none = Tensor::zeros([4, 0], (Kind::Float, Device::Cpu));
        let y = none.shallow_clone();
        let x_mask = x_mask.view([4, 3]);
        let batch = Batch { x, x_mask, y, y_mask: none, whole: None, rows: [0, 1, 2, 3].into(), real: 4 };
        let mut answers = Answers::default();
        answers.add(&Answer { point, quantiles: vec![] }, &batch, None).unwrap();
        answers.hold(&Histories::of(&meta).unwrap(), &batch, &[]).unwrap();
        let expected = [RowStatus::Predicted, RowStatus::NoHistory, RowStatus::NoHistory, RowStatus::NoHistory];
        assert_eq!(answers.status, expected.map(|status| status as u8));
        let missing: Vec<usize> = (0..8).filter(|cell| answers.values[*cell].is_nan()).collect();
        assert_eq!(missing, [3, 5, 7]);
    }

    #[test]
    fn other_data_are_refused_in_one_sentence() {
        let model = meta(&["a", "b"], &[3, 24]);
        let refuse = |data: &StagedMeta| fits(Path::new("d"), data, &model).unwrap_err().to_string();
        assert!(fits(Path::new("d"), &meta(&["a", "b"], &[3, 24]), &model).is_ok());
        assert_eq!(refuse(&meta(&["a"], &[3, 24])), "d: the number of features is 1, expected 2 as in training");
        assert!(refuse(&meta(&["b", "a"], &[3, 24])).contains("is b, a, expected a, b"));
        assert!(refuse(&meta(&["a", "b"], &[3, 12])).contains("[3, 12], expected [3, 24]"));
        let mut other = meta(&["a", "b"], &[3, 24]);
        other.features[1].categories = vec!["x".to_owned()];
        assert!(refuse(&other).contains("categories of a feature is b"));
    }
}
