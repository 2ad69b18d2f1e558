//! A checkpoint's model as a graph, with rows and its own answers to them: a worker without a run, asked once on its standard input
//! (`enn_common::wire::export`).

use super::{
    Own, SessionError,
    dataset::Dataset,
    predict::{fits, load},
    saved::SavedModel,
};
use crate::export::{self, Answered, Extras};
use enn_common::{
    graph::file,
    staged::{Split, meta::Stats},
    wire::{
        export::{ANSWERED, CASES, CENTRE, GIVEN, Job, Reply, SPREAD},
        message::PROTOCOL,
        serve::{get, put},
    },
};
use std::{
    collections::BTreeMap,
    io::{BufRead, Write},
    path::Path,
};
use tch::{Device, Kind, Tensor};

/// Spreads from its mean of a number that no training row comes near.
const FAR: f64 = 1e9;
/// A number of no category.
const NO_CATEGORY: f64 = 1e6;

/// Does the job on `input`, with modules of the program's own.
///
/// # Errors
/// What ended it early; whoever asks has been told.
pub(super) fn answer(mut input: impl BufRead, mut output: impl Write, own: &Own) -> Result<(), SessionError> {
    let Some(job) = get::<Job>(&mut input).map_err(SessionError::Pipe)? else { return Ok(()) };
    let done = exported(&job, own);
    let reply = match &done {
        Ok(rows) => Reply::Exported { rows: rows.clone() },
        Err(error) => Reply::Failed { error: error.sentence() },
    };
    put(&mut output, &reply).map_err(SessionError::Pipe)?;
    done.map(|_| ())
}

fn exported(job: &Job, own: &Own) -> Result<String, SessionError> {
    if job.protocol != PROTOCOL {
        let error = format!("enn speaks protocol {}, this worker {PROTOCOL}", job.protocol);
        return Err(SessionError::Refused { error });
    }
    tch::set_num_threads(job.threads.max(1).cast_signed());
    let saved = SavedModel::open(&job.checkpoint)?;
    let (model, params) = load(&saved, &own.models, Device::Cpu)?;
    let blind: Vec<bool> = saved.meta.y_stats.iter().map(|one| one.n == 0).collect();
    let blind = blind.contains(&true).then(|| Tensor::f_from_slice(&blind)).transpose()?;
    let extras = Extras { quantiles: job.quantiles, stream: job.stream };
    let answered = Answered { model: &model, params: &params, out_shape: &saved.meta.out_shape, blind, extras };
    let graph = export::graph(&answered)?;
    file::write(&graph, &job.out).map_err(SessionError::Graph)?;
    let (rows, from) = match &job.staged {
        Some(staged) => held_out(staged, &saved, job.rows)?,
        None => (drawn(&saved.meta.x_stats, &saved, job.rows)?, "drawn"),
    };
    let rows = Tensor::f_cat(&[&rows, &spoiled(&rows, &saved)?], 0)?;
    let given = answered.inputs(&rows)?;
    let given = if job.stream { carried(&answered, given)? } else { given };
    let said = answered.run(&given)?;
    write_cases(&given, &said, &saved, &job.out.join(CASES))?;
    Ok(from.to_owned())
}

/// Rows that training has not seen, as far as there are any; NaN where a value is missing. And which split they are of.
fn held_out(staged: &Path, saved: &SavedModel, count: u64) -> Result<(Tensor, &'static str), SessionError> {
    let data = Dataset::open(staged)?;
    fits(staged, data.staged.0.meta(), &saved.meta)?;
    let order = [(Split::Test, "test"), (Split::Val, "val"), (Split::Train, "train")];
    let (split, name) = order.into_iter().find(|(split, _)| !data.rows(*split).is_empty()).unwrap_or(order[2]);
    let index = data.rows(split);
    let rows: Vec<u64> = data.spread(split, count.max(1)).map(|ordinal| index.at(ordinal)).collect();
    let batch = data.gather_rows(&rows, Device::Cpu)?;
    Ok((batch.x.f_where_scalarother(&batch.x_mask, f64::NAN)?, name))
}

/// Rows by the training data's means and spreads, the same every time; categories one after the other.
fn drawn(stats: &[Stats], saved: &SavedModel, count: u64) -> Result<Tensor, SessionError> {
    let value = |row: u64, column: usize| {
        let categories = saved.meta.features[column].categories.len() as u64;
        let step = (row * stats.len() as u64 + column as u64 + 1) as f64;
        let unit = (step * 0.618_033_988_749_895).fract() * 4.0 - 2.0;
        match categories {
            0 => (stats[column].mean + unit * stats[column].std) as f32,
            categories => (row % categories) as f32,
        }
    };
    let count = count.max(1);
    let values: Vec<f32> = (0..count)
        .flat_map(|row| (0..stats.len()).map(move |column| (row, column)))
        .map(|(row, column)| value(row, column))
        .collect();
    Ok(Tensor::f_from_slice(&values)?.f_view([count as i64, stats.len() as i64])?)
}

/// The first row with something wrong: nothing known, one value missing or infinite or huge, categories that are none.
fn spoiled(rows: &Tensor, saved: &SavedModel) -> Result<Tensor, SessionError> {
    let first = rows.f_narrow(0, 0, 1)?;
    let columns = saved.meta.features.len() as i64;
    let with = |value: f64, at: &[i64]| -> Result<Tensor, SessionError> {
        let row = first.f_add_scalar(0.0)?;
        for column in at {
            let _ = row.f_narrow(1, *column, 1)?.f_fill_(value)?;
        }
        Ok(row)
    };
    let is_category = |column: &i64| !saved.meta.features[*column as usize].categories.is_empty();
    let (categories, numbers): (Vec<i64>, Vec<i64>) = (0..columns).partition(is_category);
    let some: Vec<i64> = numbers.iter().copied().take(1).collect();
    let last: Vec<i64> = numbers.iter().copied().rev().take(1).collect();
    let all: Vec<i64> = (0..columns).collect();
    let far = last.first().map_or(FAR, |column| {
        let stats = &saved.meta.x_stats[*column as usize];
        stats.mean + FAR * stats.std
    });
    let made = [
        with(f64::NAN, &all)?,
        with(f64::NAN, &some)?,
        with(f64::INFINITY, &some)?,
        with(f64::NEG_INFINITY, &last)?,
        with(far, &last)?,
        with(NO_CATEGORY, &categories)?,
        with(-1.0, &categories)?,
    ];
    Ok(Tensor::f_cat(&made, 0)?)
}

/// The same rows as the second call of a stream, whose first they were: a state that is not zero.
fn carried(answered: &Answered<'_>, given: BTreeMap<String, Tensor>) -> Result<BTreeMap<String, Tensor>, SessionError> {
    let mut after = answered.run(&given)?;
    // A row that nothing can be said of leaves a state of which nothing can be said: it begins anew.
    let next = |(name, before): (String, Tensor)| {
        let Some(state) = after.remove(&export::next(&name)) else { return Ok((name, before)) };
        let finite = state.f_isfinite()?.f_flatten(1, -1)?.f_all_dim(1, false)?;
        let shape: Vec<i64> = (0..state.dim()).map(|axis| if axis == 0 { -1 } else { 1 }).collect();
        Ok((name, state.f_where_self(&finite.f_view(shape.as_slice())?, &before)?))
    };
    given.into_iter().map(next).collect()
}

fn write_cases(
    given: &BTreeMap<String, Tensor>,
    said: &BTreeMap<String, Tensor>,
    saved: &SavedModel,
    path: &Path,
) -> Result<(), SessionError> {
    let spread =
        |stats: &Stats| if stats.n > 0 && stats.std.is_finite() && stats.std > 0.0 { stats.std as f32 } else { 1.0 };
    let spreads: Vec<f32> = saved.meta.y_stats.iter().map(spread).collect();
    let shape: Vec<i64> = saved.meta.out_shape.iter().map(|size| *size as i64).collect();
    let centres: Vec<f32> =
        saved.meta.y_stats.iter().map(|stats| if stats.n > 0 { stats.mean as f32 } else { 0.0 }).collect();
    let cells = |values: &[f32]| Tensor::f_from_slice(values)?.f_view(shape.as_slice());
    let mut all = vec![(CENTRE.to_owned(), cells(&centres)?), (SPREAD.to_owned(), cells(&spreads)?)];
    for (prefix, tensors) in [(GIVEN, given), (ANSWERED, said)] {
        for (name, tensor) in tensors {
            all.push((format!("{prefix}{name}"), tensor.f_to_kind(Kind::Float)?.f_contiguous()?));
        }
    }
    Ok(Tensor::write_safetensors(&all, path)?)
}
