//! Losses that predict distributions: what is trained is saved, resumed bit for bit, and predicts quantiles that hold what they
//! should; rows without inputs, flat models, and rows beside others.

use crate::session::{alone, data, data::config, resumed_as_whole};
use enn_common::{
    artifact::chunk::{Chunk, RowStatus},
    config::{
        RunConfig,
        train::{CellWeights, Loss, Precision},
    },
    metrics::Metrics,
    staged::Staged,
    wire::{
        message::{FromWorker, PROTOCOL},
        serve::{self, ServeQuestion, ServeReply, ServeSetup},
    },
};
use enn_worker::{
    block::SubModels,
    session::{KernelTask, Own, PredictTask, Recorder, predict},
};
use std::path::{Path, PathBuf};
use tch::Device;

const DISTRIBUTIONS: [Loss; 4] = [Loss::Quantile, Loss::StudentT, Loss::Gaussian, Loss::Crps];
/// Difference of an answer to a row alone and among others, in spreads of the target (about 4.5): sums of f32 in another order.
const COMPANY_TOLERANCE: f32 = 1e-5;

pub(crate) fn with_loss(loss: Loss, epochs: u64) -> RunConfig {
    let mut config = config(epochs);
    config.train.loss = loss;
    config
}

pub(crate) struct Trained {
    dir: tempfile::TempDir,
    pub(crate) staged: PathBuf,
    pub(crate) checkpoint: PathBuf,
    metrics: Metrics,
    first: f64,
}

pub(crate) fn trained(config: &RunConfig) -> Trained {
    let dir = tempfile::tempdir().unwrap();
    let staged = data::stage(dir.path());
    let (outcome, messages) = alone(config, dir.path(), &staged, None, &Recorder::default()).unwrap();
    let first = messages.iter().find_map(|message| match message {
        FromWorker::EpochEnded(report) => Some(report.val.loss),
        _ => None,
    });
    let checkpoint = data::commit_last(&messages, config, &staged);
    Trained { metrics: outcome.split["val"], first: first.unwrap(), dir, staged, checkpoint }
}

impl Trained {
    /// Values (rows, numbers per row) and status of all rows, and what the user is told.
    pub(crate) fn predict(
        &self,
        staged: &Path,
        chunk_rows: u64,
        precision: Precision,
    ) -> (Vec<Vec<f32>>, Vec<u8>, Vec<String>) {
        self.answer(&self.checkpoint, (staged, chunk_rows, precision))
    }

    /// Values by another checkpoint.
    pub(crate) fn predict_with(&self, checkpoint: &Path, staged: &Path) -> Vec<Vec<f32>> {
        self.answer(checkpoint, (staged, 90, Precision::Fp32)).0
    }

    fn answer(
        &self,
        checkpoint: &Path,
        (staged, chunk_rows, precision): (&Path, u64, Precision),
    ) -> (Vec<Vec<f32>>, Vec<u8>, Vec<String>) {
        let out = tempfile::tempdir_in(self.dir.path()).unwrap();
        let task = PredictTask {
            staged: staged.to_owned(),
            checkpoint: checkpoint.to_owned(),
            out: out.path().to_owned(),
            chunk_rows,
            done: vec![],
            place: (0, 1),
            local: 1,
            device: Device::Cpu,
            precision,
            kernels: KernelTask::default(),
            models: SubModels::new(),
        };
        let recorder = Recorder::default();
        predict(&task, &recorder).unwrap();
        let mut values = Vec::new();
        let mut status = Vec::new();
        let mut told = Vec::new();
        for message in recorder.take() {
            match message {
                FromWorker::ChunkWritten { path, blake3, .. } => {
                    let chunk = Chunk::open(&path, Some(&blake3)).unwrap();
                    let numbers = chunk.shape()[1..].iter().product::<u64>() as usize;
                    values.extend(chunk.predictions().unwrap().chunks(numbers).map(<[f32]>::to_vec));
                    status.extend_from_slice(chunk.status());
                }
                FromWorker::Warned { message } => told.push(message),
                _ => {}
            }
        }
        (values, status, told)
    }
}

#[test]
fn distributions_are_learnt_and_predicted() {
    for loss in DISTRIBUTIONS {
        let run = trained(&with_loss(loss, 60));
        let val = run.metrics;
        let interval = run.metrics.interval.unwrap();
        assert!(val.rmse < 2.0 && val.r2 > 0.8 && val.loss < run.first, "{loss:?}: {val:?} after {}", run.first);
        // 17 rows of 6 cells; the spread of the targets is about 4.5, an interval of 80 % of that 11.5 wide.
        assert!(interval.coverage > 0.55 && interval.width < 6.0, "{loss:?}: {interval:?}");
        assert!((interval.nominal - 0.8).abs() < 1e-12);

        let (values, status, told) = run.predict(&run.staged, 40, Precision::Fp32);
        assert_eq!((values.len(), status.iter().all(|status| *status == 0), told.len()), (data::ROWS, true, 0));
        let staged = Staged::open(&run.staged).unwrap();
        let mut held = 0.0;
        let mut error = 0.0;
        let mut n = 0.0;
        for (row, numbers) in values.iter().enumerate() {
            let (low, rest) = numbers.split_at(data::CELLS);
            let (middle, high) = rest.split_at(data::CELLS);
            for cell in 0..data::CELLS {
                assert!(low[cell] <= middle[cell] && middle[cell] <= high[cell], "{loss:?} row {row} cell {cell}");
                let y = staged.y_row(row)[cell];
                if staged.split()[row] == 1 && y.is_finite() {
                    held += if low[cell] <= y && y <= high[cell] { 1.0 } else { 0.0 };
                    error += f64::from((middle[cell] - y).abs());
                    n += 1.0;
                }
            }
        }
        // What training measured is what prediction gives.
        assert!((held / n - interval.coverage).abs() < 1e-9, "{loss:?}: {} {}", held / n, interval.coverage);
        assert!((error / n - val.mae).abs() < 1e-5, "{loss:?}: {} {}", error / n, val.mae);
    }
}

#[test]
fn a_distribution_with_weights_resumes_bit_for_bit() {
    let dir = tempfile::tempdir().unwrap();
    let staged = data::stage(dir.path());
    let mut config = with_loss(Loss::StudentT, 2);
    config.train.cell_weights = CellWeights::Axes(vec![vec![1.0, 2.0], vec![1.0, 0.5, 0.0]]);
    resumed_as_whole(&config, dir.path(), &staged, &[5]);
}

#[test]
fn cells_without_weight_are_not_measured() {
    let mut config = with_loss(Loss::Huber, 3);
    let all = trained(&config).metrics;
    config.train.cell_weights = CellWeights::Axes(vec![vec![], vec![1.0, 1.0, 1.0]]);
    let equal = trained(&config).metrics;
    assert!((all.mae - equal.mae).abs() < 1e-3 * all.mae && all.n == equal.n, "{all:?} {equal:?}");
    config.train.cell_weights = CellWeights::Cells(vec![1.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    let one = trained(&config).metrics;
    assert!(one.mae != all.mae && one.n == all.n);
    config.train.cell_weights = CellWeights::Cells(vec![1.0; 5]);
    let dir = tempfile::tempdir().unwrap();
    let staged = data::stage(dir.path());
    let refused = alone(&config, dir.path(), &staged, None, &Recorder::default()).unwrap_err().to_string();
    assert!(refused.contains("train.cell_weights: found 5 weights, expected 6"), "{refused}");
}

#[test]
fn rows_count_by_their_weight() {
    let config = with_loss(Loss::Huber, 3);
    let at = |change: &dyn Fn(&Path)| {
        let dir = tempfile::tempdir().unwrap();
        let staged = data::stage(dir.path());
        change(&staged);
        let (outcome, _) = alone(&config, dir.path(), &staged, None, &Recorder::default()).unwrap();
        (outcome.split["val"], outcome.split["train"])
    };
    let near = |a: Metrics, b: Metrics| (a.mae - b.mae).abs() < 1e-3 * b.mae && (a.loss - b.loss).abs() < 1e-3 * b.loss;
    let equal = at(&|_| {});
    let halves = at(&|staged| data::weigh(staged, &[0.5; data::ROWS]));
    assert!(near(halves.0, equal.0) && near(halves.1, equal.1), "{halves:?} {equal:?}");
    assert_eq!(halves.0.n, equal.0.n);
    // Rows of weight 0, in training and in validation, are as rows whose targets are not there.
    let without = at(&|staged| {
        let weight: Vec<f32> = (0..data::ROWS).map(|row| if row % 3 == 0 { 0.0 } else { 1.0 }).collect();
        data::weigh(staged, &weight);
    });
    let blank = at(&|staged| (0..data::ROWS).step_by(3).for_each(|row| data::hide_targets(staged, row)));
    assert!(near(without.0, blank.0) && near(without.1, blank.1), "{without:?} {blank:?}");
    assert!(!near(without.0, equal.0));

    let dir = tempfile::tempdir().unwrap();
    let staged = data::stage(dir.path());
    data::weigh(&staged, &[0.0; data::ROWS]);
    let refused = alone(&config, dir.path(), &staged, None, &Recorder::default()).unwrap_err().to_string();
    assert!(refused.contains("training rows that count"), "{refused}");
}

#[test]
fn a_row_without_inputs_has_no_prediction_and_says_so() {
    let run = trained(&with_loss(Loss::Gaussian, 2));
    data::blank_row(&run.staged, 7);
    let (values, status, _) = run.predict(&run.staged, 40, Precision::Fp32);
    assert!(values[7].iter().all(|value| value.is_nan()));
    let expected: Vec<u8> = (0..data::ROWS)
        .map(|row| if row == 7 { RowStatus::NoInput as u8 } else { RowStatus::Predicted as u8 })
        .collect();
    assert_eq!(status, expected);
}

#[test]
fn a_row_is_predicted_alike_alone_and_in_any_company() {
    for loss in [Loss::Huber, Loss::Quantile] {
        let run = trained(&with_loss(loss, 3));
        for precision in [Precision::Fp32, Precision::Bf16] {
            let all = run.predict(&run.staged, 90, precision).0;
            assert!(all == run.predict(&run.staged, 90, precision).0, "the same bits each time");
            // In bf16 a sum in another order may round to a neighbour, 1/128 of the numbers within.
            let tolerance = if precision == Precision::Fp32 { COMPANY_TOLERANCE } else { 3e-2 } * 4.5;
            for chunk_rows in [1, 7] {
                let other = run.predict(&run.staged, chunk_rows, precision).0;
                let most =
                    all.iter().flatten().zip(other.iter().flatten()).fold(0f32, |most, (a, b)| most.max((a - b).abs()));
                assert!(most <= tolerance, "{loss:?} {precision:?} chunks of {chunk_rows}: {most}");
            }
        }
    }
}

#[test]
fn answers_that_a_low_precision_cannot_tell_apart_are_computed_in_f32() {
    let run = trained(&with_loss(Loss::Huber, 3));
    let (fine, _, told) = run.predict(&run.staged, 90, Precision::Bf16);
    assert!(told.is_empty(), "{told:?}");
    let exact = run.predict(&run.staged, 90, Precision::Fp32).0;
    assert!(fine != exact, "bf16 is another computation");

    // Rows that differ less than bf16 can say.
    let near = tempfile::tempdir().unwrap();
    let near = data::stage(near.path());
    data::squeeze_inputs(&near, 1e-4);
    let (values, _, told) = run.predict(&near, 90, Precision::Bf16);
    assert_eq!(told.len(), 1);
    assert!(told[0].contains("in bf16 the answers to 90 rows from all over the data do not differ"), "{told:?}");
    let (expected, _, none) = run.predict(&near, 90, Precision::Fp32);
    assert!(none.is_empty() && values == expected);
}

#[test]
fn a_model_that_says_the_same_of_all_rows_is_called_flat() {
    let dir = tempfile::tempdir().unwrap();
    let staged = data::stage(dir.path());
    data::level_targets(&staged, 80.0);
    // Ridge regression of a constant, and steps that change nothing.
    let mut config = with_loss(Loss::Huber, 1);
    config.model.linear_branch = true;
    config.train.lr = 1e-12;
    let (outcome, messages) = alone(&config, dir.path(), &staged, None, &Recorder::default()).unwrap();
    let checkpoint = data::commit_last(&messages, &config, &staged);
    let run = Trained { metrics: outcome.split["val"], first: 0.0, dir, staged: staged.clone(), checkpoint };
    for precision in [Precision::Fp32, Precision::Bf16] {
        let (values, status, told) = run.predict(&staged, 90, precision);
        assert_eq!(told, ["the model is flat: it says the same of 90 rows from all over the data, which differ"]);
        assert!(values.iter().flatten().all(|value| (value - 80.0).abs() < 0.1), "told as it is");
        assert!(status.iter().all(|status| *status == 0));
    }
}

#[test]
fn questions_whose_rows_are_equal_settle_no_precision() {
    let run = trained(&with_loss(Loss::Huber, 3));
    let near = tempfile::tempdir().unwrap();
    let near = data::stage(near.path());
    data::squeeze_inputs(&near, 1e-4);
    let near = Staged::open(&near).unwrap();
    let rows: Vec<f32> = (0..data::ROWS).flat_map(|row| near.x_row(row).to_vec()).collect();
    let equal = near.x_row(0).repeat(3);
    let mut input = Vec::new();
    let checkpoint = run.checkpoint.clone();
    let device = "cpu".to_owned();
    let protocol = PROTOCOL;
    let precision = Precision::Bf16;
    let begin = ServeSetup { protocol, checkpoint, device, threads: 1, precision, scratch: None, stream: false };
    serve::put(&mut input, &begin).unwrap();
    for x in [&equal, &rows, &rows] {
        serve::put(&mut input, &ServeQuestion::Rows { rows: (x.len() / data::FEATURES) as u64 }).unwrap();
        serve::put_numbers(&mut input, x, &[]).unwrap();
    }
    let mut output = Vec::new();
    enn_worker::session::serve::serve(&input[..], &mut output, &Own::default()).unwrap();
    let mut told = &output[..];
    let mut replies = Vec::new();
    while let Some(reply) = serve::get::<ServeReply>(&mut told).unwrap() {
        if let ServeReply::Predicted { rows, numbers } = reply {
            serve::get_numbers(&mut told, rows * numbers).unwrap();
            serve::get_bytes(&mut told, rows).unwrap();
        }
        replies.push(reply);
    }
    let [
        ServeReply::Ready,
        ServeReply::Predicted { rows: 3, .. },
        ServeReply::Warned { message },
        ServeReply::Predicted { .. },
        ServeReply::Predicted { .. },
    ] = &replies[..]
    else {
        panic!("{replies:?}")
    };
    assert!(message.contains("in fp32 they do: fp32 is used"), "{message}");
}
