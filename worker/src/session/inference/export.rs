//! A checkpoint's model as a graph, with rows and its own answers to them: a worker without a run, asked once on its standard input
//! (`enn_common::wire::export`).

use super::predict::{fits, load};
use crate::export::{self, ExportedModel, Extras, Screen};
use crate::session::{Own, SessionError, checkpointing::saved_model::SavedModel, dataset::Dataset};
use enn_common::{
    artifact::bounds::Bounds,
    graph::file,
    staged::{Histories, Split, meta::Stats},
    wire::{
        export::{ANSWERED, CASES, CENTRE, ExportJob, ExportReply, GIVEN, SPREAD},
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
const NO_CATEGORY: f64 = 1e6;
/// Rows in which the same is wrong with a part of the columns each; of a narrow table with one column.
const SPOILED_ROWS_MAX: usize = 16;

/// Does the job on `input`, with modules of the program's own.
pub(crate) fn answer(mut input: impl BufRead, mut output: impl Write, own: &Own) -> Result<(), SessionError> {
    let Some(job) = get::<ExportJob>(&mut input).map_err(SessionError::Pipe)? else { return Ok(()) };
    let done = exported(&job, own);
    let reply = match &done {
        Ok(rows) => ExportReply::Exported { rows: rows.clone() },
        Err(error) => ExportReply::Failed { error: error.sentence() },
    };
    put(&mut output, &reply).map_err(SessionError::Pipe)?;
    done.map(|_| ())
}

fn exported(job: &ExportJob, own: &Own) -> Result<String, SessionError> {
    if job.protocol != PROTOCOL {
        let error = format!("enn speaks protocol {}, this worker {PROTOCOL}", job.protocol);
        return Err(SessionError::Refused { error });
    }
    tch::set_num_threads(job.threads.max(1).cast_signed());
    let saved = SavedModel::open(&job.checkpoint)?;
    let (model, params) = load(&saved, &own.models, Device::Cpu)?;
    let columns = saved.meta.features.len();
    if !job.bounds.is_empty() && job.bounds.len() != columns {
        let error = format!("enn has rules for {} inputs, the model has {columns}", job.bounds.len());
        return Err(SessionError::Refused { error });
    }
    let blind: Vec<bool> = saved.meta.y_stats.iter().map(|one| one.n == 0).collect();
    let blind = blind.contains(&true).then(|| Tensor::f_from_slice(&blind)).transpose()?;
    let extras = Extras { quantiles: job.quantiles, stream: job.stream };
    let histories = Histories::of(&saved.meta);
    let of = |blind, screen, histories| {
        let model = &model;
        let params = &params;
        let out_shape = &saved.meta.out_shape[..];
        ExportedModel { model, params, out_shape, blind, extras, screen, histories }
    };
    let screen = Screen::of(&job.bounds)?;
    let whole = of(blind.as_ref().map(Tensor::shallow_clone), Some(screen), histories.as_ref());
    let graph = export::graph(&whole)?;
    file::write(&graph, &job.out).map_err(SessionError::Graph)?;
    let (rows, from) = match &job.staged {
        Some(staged) => held_out(staged, &saved, job.rows)?,
        None => (drawn(&saved.meta.x_stats, &saved, job.rows)?, "drawn"),
    };
    let rows = Tensor::f_cat(&[&rows, &spoiled(&rows, &saved, &job.bounds)?], 0)?;
    // The answers are those of the model without the rules, to rows that were held to them one number after the other, as prediction
    // does it: a graph that lacks a rule is found out.
    let plain = of(blind, None, None);
    let held = held(&rows, &job.bounds)?;
    let given = plain.inputs(&held)?;
    let mut given = if job.stream { second_call(&plain, given)? } else { given };
    let mut said = plain.run(&given)?;
    if let Some(histories) = &histories {
        blank(histories, &held, &mut said)?;
    }
    given.insert(export::X.to_owned(), rows);
    write_cases(&given, &said, &saved, &job.out.join(CASES))?;
    Ok(from.to_owned())
}

/// Rows as prediction takes them by the rules of each column: NaN where a number counts as missing.
fn held(rows: &Tensor, bounds: &[Bounds]) -> Result<Tensor, SessionError> {
    if bounds.is_empty() {
        return Ok(rows.shallow_clone());
    }
    let mut values = Vec::<f32>::try_from(rows.f_contiguous()?.f_view([-1])?)?;
    values.iter_mut().zip(bounds.iter().cycle()).for_each(|(value, bounds)| *value = bounds.held(*value));
    Ok(Tensor::f_from_slice(&values)?.f_view(rows.size().as_slice())?)
}

/// Takes what is said of series without history in some rows out of the answers.
fn blank(histories: &Histories, rows: &Tensor, said: &mut BTreeMap<String, Tensor>) -> Result<(), SessionError> {
    let count = rows.size()[0] as usize;
    let x = Vec::<f32>::try_from(rows.f_contiguous()?.f_view([-1])?)?;
    let width = x.len() / count.max(1);
    for (_, answer) in said.iter_mut().filter(|(name, _)| export::ANSWERS.contains(&name.as_str())) {
        let mut values = Vec::<f32>::try_from(answer.f_contiguous()?.f_view([-1])?)?;
        let each = (values.len() / count.max(1)).max(1);
        for (row, values) in values.chunks_mut(each).enumerate() {
            histories.blank(|column| x[row * width + column].is_finite(), values);
        }
        *answer = Tensor::f_from_slice(&values)?.f_view(answer.size().as_slice())?;
    }
    Ok(())
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

/// The first row with something wrong: nothing known, categories that are none, numbers at the very bounds of what is believed and far
/// from all others; and in each column a number that is missing, infinite, below and above its bounds, and one that means "missing".
fn spoiled(rows: &Tensor, saved: &SavedModel, bounds: &[Bounds]) -> Result<Tensor, SessionError> {
    let first = Vec::<f32>::try_from(rows.f_narrow(0, 0, 1)?.f_contiguous()?.f_view([-1])?)?;
    let columns = saved.meta.features.len();
    let is_number = |column: &usize| saved.meta.features[*column].categories.is_empty();
    let open = Bounds::default();
    let bounds_of = |column: usize| bounds.get(column).unwrap_or(&open);
    let last = (0..columns).rev().find(is_number);
    let is_last = |column: usize| last == Some(column);
    let stats = |column: usize| &saved.meta.x_stats[column];
    let far = |column: usize| (stats(column).mean + FAR * stats(column).std) as f32;
    let low = |column: usize| bounds_of(column).low.map(|low| beyond(low, -1.0, stats(column)));
    let high = |column: usize| bounds_of(column).high.map(|high| beyond(high, 1.0, stats(column)));
    let mut made: Vec<f32> = Vec::new();
    let mut row = |value: &dyn Fn(usize) -> Option<f32>| {
        made.extend(first.iter().enumerate().map(|(column, old)| value(column).unwrap_or(*old)));
    };
    row(&|_| Some(f32::NAN));
    row(&|column| Some(low(column).unwrap_or(f32::NAN)));
    row(&|column| Some(high(column).unwrap_or(f32::NAN)));
    row(&|column| is_last(column).then(|| bounds_of(column).low.unwrap_or(far(column))));
    row(&|column| is_last(column).then(|| bounds_of(column).high.unwrap_or(far(column))));
    row(&|column| (!is_number(&column)).then_some(NO_CATEGORY as f32));
    row(&|column| (!is_number(&column)).then_some(-1.0));
    let groups = columns.min(SPOILED_ROWS_MAX);
    for group in 0..groups {
        let in_group = |column: usize| column % groups == group;
        row(&|column| in_group(column).then_some(f32::NAN));
        row(&|column| in_group(column).then_some(f32::INFINITY));
        row(&|column| in_group(column).then_some(f32::NEG_INFINITY));
        row(&|column| low(column).filter(|_| in_group(column)));
        row(&|column| high(column).filter(|_| in_group(column)));
        row(&|column| bounds_of(column).missing.first().copied().filter(|_| in_group(column)));
    }
    let count = (made.len() / columns.max(1)) as i64;
    Ok(Tensor::f_from_slice(&made)?.f_view([count, columns as i64])?)
}

/// A number that is not at the edge of what is outside a bound.
fn beyond(bound: f32, side: f32, stats: &Stats) -> f32 {
    let step = (10.0 * stats.std as f32).max(bound.abs()).max(1.0);
    bound + side * step
}

/// Turns the rows into the second call of a stream, whose first they were: a state that is not zero.
fn second_call(
    answered: &ExportedModel<'_>,
    given: BTreeMap<String, Tensor>,
) -> Result<BTreeMap<String, Tensor>, SessionError> {
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
