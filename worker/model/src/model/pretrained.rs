//! Initialises a model with the weights of another one, matched by the names of parameters, inputs and categories.
//!
//! With the scaler of the pretrained model the predictions are the same at first. With a scaler of its own they are so
//! too: parameters that read inputs are rewritten for the other standardisation, and the buffers `scaler.z_scale` and
//! `scaler.z_shift` convert the outputs of the heads from the pretrained standard deviations. One thing cannot be
//! rewritten: a missing number counts as the mean, which differs, unless its input has a missing flag.
//!
//! **Invariant:** a parameter is taken as a whole or not changed, and the report lists all that are not taken.

use super::{
    Head, Model, ModelError,
    columns::{Column, InputMatch, columns},
};
use crate::layer::scaler::Rebase;
use enn_common::{config::parent::ScalerChoice, staged::meta::FeatureMeta};
use enn_core::params::Params;
use std::collections::BTreeMap;
use tch::{Device, Kind, TchError, Tensor as Raw};

pub struct PretrainedModel<'a> {
    pub inputs: &'a [FeatureMeta],
    pub weights: &'a BTreeMap<String, Raw>,
    pub buffers: &'a BTreeMap<String, Raw>,
}

#[derive(Debug, Default)]
pub struct PretrainedReport {
    /// Number of parameters that were taken.
    pub taken: usize,
    pub problems: Vec<String>,
    pub notes: Vec<String>,
}

/// Maps the columns of this model to those of the pretrained one.
struct ColumnMap {
    kept: Vec<SharedColumn>,
    /// For each own flag: its column, the pretrained column of its number, and the offset of the number. The pretrained
    /// model had no flag there.
    flags: Vec<(i64, i64, f64)>,
    /// Feature widths F' of this model and of the pretrained one.
    widths: [f64; 2],
}

/// A column that both models have: pretrained number = factor · own number + offset.
#[derive(Debug, Clone, Copy)]
struct SharedColumn {
    own: i64,
    pretrained: i64,
    factor: f64,
    offset: f64,
}

impl Model {
    /// Takes the matching parameters of `pretrained`. `inputs` are those of this model.
    pub fn load_pretrained(
        &mut self,
        params: &mut Params,
        inputs: &[FeatureMeta],
        pretrained: &PretrainedModel<'_>,
        choice: ScalerChoice,
    ) -> Result<PretrainedReport, ModelError> {
        let matched = InputMatch::new(inputs, pretrained.inputs);
        let (problems, notes) = matched.differences();
        let mut report = PretrainedReport { problems, notes, ..PretrainedReport::default() };
        let column_map = self.column_map(inputs, &matched, pretrained, choice)?;
        self.load_target_scaler(pretrained, choice, &mut report)?;
        let mut left: Vec<&String> = pretrained.weights.keys().collect();
        let names: Vec<String> = params.named().map(|(name, _)| name.to_owned()).collect();
        for name in names {
            let source = source_of(&name, inputs, &matched, pretrained.inputs);
            left.retain(|other| Some(*other) != source.as_ref());
            let Some(saved) = source.and_then(|source| pretrained.weights.get(&source)) else {
                report.problems.push(format!("{name} is missing there"));
                continue;
            };
            let own = by_name(params, &name);
            let saved = saved.f_to_kind(Kind::Double)?.f_to_device(Device::Cpu)?;
            let value = match category_of(&name) {
                Some(input) => Some(table(&own.size(), &saved, &matched, input)?),
                None => column_map.value(&name, &own.size(), &saved, pretrained)?,
            };
            match value {
                Some(value) => {
                    tch::no_grad(|| own.shallow_clone().f_copy_(&value))?;
                    report.taken += 1;
                }
                None => {
                    let found = saved.size();
                    let expected = own.size();
                    report.problems.push(format!("{name} is {found:?}, expected {expected:?}"));
                }
            }
        }
        report.problems.extend(left.into_iter().map(|name| format!("{name} is unexpected")));
        Ok(report)
    }

    /// Sets the input scaler and returns the map of the columns.
    fn column_map(
        &mut self,
        inputs: &[FeatureMeta],
        matched: &InputMatch<'_>,
        pretrained: &PretrainedModel<'_>,
        choice: ScalerChoice,
    ) -> Result<ColumnMap, ModelError> {
        let buffer = |name: &str| -> Result<Vec<f64>, TchError> {
            pretrained.buffers.get(name).map_or_else(|| Ok(Vec::new()), Vec::<f64>::try_from)
        };
        let mut mean = self.buffer("scaler.x_mean")?;
        let mut std = self.buffer("scaler.x_std")?;
        let saved_mean = buffer("scaler.x_mean")?;
        let saved_std = buffer("scaler.x_std")?;
        let mut factor = vec![1.0; inputs.len()];
        let mut offset = vec![0.0; inputs.len()];
        for own in 0..inputs.len() {
            let Some((m, s)) =
                matched.input(own).and_then(|at| saved_mean.get(at).copied().zip(saved_std.get(at).copied()))
            else {
                continue;
            };
            match choice {
                ScalerChoice::Keep => {
                    mean[own] = m;
                    std[own] = s;
                }
                ScalerChoice::Refit => {
                    factor[own] = std[own] / s;
                    offset[own] = (mean[own] - m) / s;
                }
            }
        }
        if choice == ScalerChoice::Keep {
            self.load_buffer("scaler.x_mean", &Raw::f_from_slice(&mean)?)?;
            self.load_buffer("scaler.x_std", &Raw::f_from_slice(&std)?)?;
        }
        let all = columns(inputs);
        let places = matched.places();
        let kept = all.iter().zip(&places).zip(0..).filter_map(|((column, place), own)| {
            let (factor, offset) = if let Column::Number(i) = column { (factor[*i], offset[*i]) } else { (1.0, 0.0) };
            Some(SharedColumn { own, pretrained: (*place)? as i64, factor, offset })
        });
        let kept = kept.collect();
        let flag = |(own, column): (usize, &Column)| {
            let Column::Flag(i) = column else { return None };
            let at = all.iter().position(|other| *other == Column::Number(*i))?;
            Some((own as i64, places[at]? as i64, offset[*i]))
        };
        let flags = all.iter().enumerate().filter_map(flag).collect();
        let width = |columns: &[Column]| columns.iter().filter(|c| !matches!(c, Column::Cross(..))).count() as f64;
        Ok(ColumnMap { kept, flags, widths: [width(&all), width(&columns(pretrained.inputs))] })
    }

    /// Sets the target scaler, and the buffers that convert the head outputs to it.
    fn load_target_scaler(
        &mut self,
        pretrained: &PretrainedModel<'_>,
        choice: ScalerChoice,
        report: &mut PretrainedReport,
    ) -> Result<(), ModelError> {
        let cells = self.grid.cells();
        let find = |name: &str| pretrained.buffers.get(&format!("scaler.{name}")).filter(|raw| raw.size() == [cells]);
        let (Some(mean), Some(std)) = (find("y_mean"), find("y_std")) else {
            report.problems.push(format!("scaler.y_mean is missing there for {cells} cells"));
            return Ok(());
        };
        let before = find("z_scale").zip(find("z_shift"));
        if choice == ScalerChoice::Keep {
            for name in ["y_mean", "y_std", "y_min", "y_max"] {
                if let Some(found) = find(name) {
                    self.load_buffer(&format!("scaler.{name}"), found)?;
                }
            }
            if let Some((scale, shift)) = before {
                self.scaler.rebase(Rebase::Scale, scale)?;
                self.scaler.rebase(Rebase::Shift, shift)?;
            }
            return Ok(());
        }
        if self.head == Head::Classes {
            return Ok(());
        }
        let own = |name: &str| self.buffer(name).and_then(|buffer| Raw::f_from_slice(&buffer));
        let own_mean = own("scaler.y_mean")?;
        let own_std = own("scaler.y_std")?;
        // Converts z · std + mean of the pretrained model to own standard deviations from the own mean.
        let (scale, shift) = match before {
            Some((scale, shift)) => (scale.f_mul(std)?, shift.f_mul(std)?.f_add(mean)?),
            None => (std.shallow_clone(), mean.shallow_clone()),
        };
        self.scaler.rebase(Rebase::Scale, &scale.f_div(&own_std)?)?;
        Ok(self.scaler.rebase(Rebase::Shift, &shift.f_sub(&own_mean)?.f_div(&own_std)?)?)
    }

    fn buffer(&self, name: &str) -> Result<Vec<f64>, TchError> {
        let found = self.buffers().into_iter().find(|(own, _)| own == name);
        found.map_or_else(|| Ok(Vec::new()), |(_, raw)| Vec::<f64>::try_from(raw.f_to_device(Device::Cpu)?))
    }
}

impl ColumnMap {
    /// Converts a pretrained parameter to the shape `own` of this model; `None` where it does not fit.
    fn value(
        &self,
        name: &str,
        own: &[i64],
        saved: &Raw,
        pretrained: &PretrainedModel<'_>,
    ) -> Result<Option<Raw>, TchError> {
        if let Some(power) = reads(name) {
            let norms = self.widths.map(|width| width.powf(power));
            return self.columns(own, saved, norms[0] / norms[1]);
        }
        if own != saved.size() {
            return Ok(None);
        }
        // The weight that reads inputs contributes the difference of their means to this parameter.
        let reader = match name {
            "base.bias" => Some(("base.linear".to_owned(), 1.0)),
            _ => name.strip_suffix("tokeniser.bias").map(|task| (format!("{task}tokeniser.weight"), 0.5)),
        };
        let Some((weight, power)) = reader.and_then(|(name, power)| Some((pretrained.weights.get(&name)?, power)))
        else {
            return Ok(Some(saved.shallow_clone()));
        };
        let weight = weight.f_to_kind(Kind::Double)?.f_to_device(Device::Cpu)?;
        let (places, offset) = self.within(i64::MAX, &weight, |kept| (kept.pretrained, kept.offset))?;
        let off = weight.f_index_select(1, &places)?.f_mv(&offset)?;
        Ok(Some(saved.f_add(&off.f_div_scalar(self.widths[1].powf(power))?)?))
    }

    /// Converts a matrix over the columns and multiplies it by `norm`.
    fn columns(&self, own: &[i64], saved: &Raw, norm: f64) -> Result<Option<Raw>, TchError> {
        let (Some(&rows), Some(&width)) = (own.first(), own.get(1)) else { return Ok(None) };
        if saved.size().first() != Some(&rows) {
            return Ok(None);
        }
        let mut value = Raw::f_zeros([rows, width], (Kind::Double, saved.device()))?;
        let (from, factor) = self.within(width, saved, |kept| (kept.pretrained, kept.factor))?;
        let (to, _) = self.within(width, saved, |kept| (kept.own, kept.factor))?;
        let _ = value.f_index_copy_(1, &to, &saved.f_index_select(1, &from)?.f_mul(&factor)?)?;
        for (flag, number, offset) in &self.flags {
            let column = saved.f_narrow(1, *number, 1)?.f_mul_scalar(-offset)?;
            let _ = value.f_narrow(1, *flag, 1)?.f_add_(&column)?;
        }
        Ok(Some(value.f_mul_scalar(norm)?))
    }

    /// Returns a position and a number for each shared column below an own width, as far as the pretrained matrix has
    /// it.
    fn within(&self, width: i64, saved: &Raw, of: fn(&SharedColumn) -> (i64, f64)) -> Result<(Raw, Raw), TchError> {
        let reach = saved.size().get(1).copied().unwrap_or(0);
        let there = self.kept.iter().filter(|kept| kept.own < width && kept.pretrained < reach);
        let (places, numbers): (Vec<i64>, Vec<f64>) = there.map(of).unzip();
        Ok((Raw::f_from_slice(&places)?, Raw::f_from_slice(&numbers)?))
    }
}

/// Returns the power of F' by which the columns that a parameter reads are divided; `None` for a parameter that reads
/// no columns.
fn reads(name: &str) -> Option<f64> {
    match name {
        "base.linear" => Some(1.0),
        _ => name.ends_with(".tokeniser.weight").then_some(0.5),
    }
}

/// Returns the input whose category table a parameter is.
fn category_of(name: &str) -> Option<usize> {
    name.strip_prefix("embedding.category_")?.strip_suffix(".weight")?.parse().ok()
}

/// Returns the name of a parameter in the pretrained model.
fn source_of(
    name: &str,
    inputs: &[FeatureMeta],
    matched: &InputMatch<'_>,
    pretrained: &[FeatureMeta],
) -> Option<String> {
    let Some(own) = category_of(name).filter(|own| *own < inputs.len()) else { return Some(name.to_owned()) };
    let found = matched.input(own).filter(|at| *at < pretrained.len())?;
    Some(format!("embedding.category_{found}.weight"))
}

/// Converts a table of categories by their names. A new category begins as the unknown one, with a dimension of its own
/// where there is one.
fn table(own: &[i64], saved: &Raw, matched: &InputMatch<'_>, input: usize) -> Result<Raw, TchError> {
    let rows = own[0] as usize;
    let width = own[1] as usize;
    let known = saved.size()[0] as usize - 1;
    let dimensions: Vec<Option<usize>> = (0..width).map(|d| matched.dimension(input, d)).collect();
    let mut values = Vec::with_capacity(rows * width);
    let mut fresh = dimensions.iter().enumerate().filter(|(_, found)| found.is_none()).map(|(d, _)| d);
    for row in 0..rows {
        let source = if row + 1 == rows { Some(known) } else { matched.category(input, row) };
        let new = if source.is_none() { fresh.next() } else { None };
        for (d, dimension) in dimensions.iter().enumerate() {
            let at = |dimension: usize| saved.f_double_value(&[source.unwrap_or(known) as i64, dimension as i64]);
            let value = dimension.map_or(Ok(0.0), at)?;
            values.push(if new == Some(d) { 1.0 } else { value });
        }
    }
    Raw::f_from_slice(&values)?.f_view([rows as i64, width as i64])
}

fn by_name(params: &Params, name: &str) -> Raw {
    let Some(id) = params.by_name(name) else { unreachable!("it was just listed") };
    params.get(id).shallow_clone()
}
