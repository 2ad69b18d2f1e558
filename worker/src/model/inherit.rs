//! The weights of another model as the start of this one: by the names of parameters, inputs and categories.
//!
//! With the parent's scaler the model says at first what the parent says. With a scaler of its own it does so too: what reads inputs is
//! rewritten for the other standardisation, and what the heads say is brought from the parent's standard deviations to its own by
//! the buffers `scaler.z_scale` and `scaler.z_shift`. One thing cannot be rewritten: a missing number counts as the mean, which is
//! another one then, unless its input has a flag that says so.
//!
//! **Invariant:** a weight is taken whole or left as it was, and everything that is left is told.

use super::{
    Head, Model, ModelError,
    columns::{Column, Kinship, columns},
};
use crate::{layer::scaler::Rebase, params::Params};
use enn_common::{config::parent::ScalerChoice, staged::meta::FeatureMeta};
use std::collections::BTreeMap;
use tch::{Device, Kind, TchError, Tensor as Raw};

/// Another model.
pub struct Heritage<'a> {
    pub inputs: &'a [FeatureMeta],
    /// Its weights by name.
    pub weights: &'a BTreeMap<String, Raw>,
    /// Its buffers by name.
    pub buffers: &'a BTreeMap<String, Raw>,
}

/// What became of it.
#[derive(Debug, Default)]
pub struct Inherited {
    /// Parameters taken.
    pub taken: usize,
    /// What does not fit, one sentence each.
    pub problems: Vec<String>,
    /// What fits otherwise than by being the same.
    pub notes: Vec<String>,
}

/// How own columns follow from the parent's.
struct Reading {
    kept: Vec<Kept>,
    /// Own flag and the parent's place of its number, with the number's offset: where it is missing there was none.
    flags: Vec<(i64, i64, f64)>,
    /// Own width F', and the parent's.
    widths: [f64; 2],
}

/// A column that both have: the parent's number = factor · own number + offset.
#[derive(Debug, Clone, Copy)]
struct Kept {
    own: i64,
    parent: i64,
    factor: f64,
    offset: f64,
}

impl Model {
    /// Takes what fits of `heritage`. `inputs` are the model's own.
    ///
    /// # Errors
    /// What libtorch says.
    pub fn inherit(
        &mut self,
        params: &mut Params,
        inputs: &[FeatureMeta],
        heritage: &Heritage<'_>,
        choice: ScalerChoice,
    ) -> Result<Inherited, ModelError> {
        let kinship = Kinship::new(inputs, heritage.inputs);
        let (problems, notes) = kinship.differences();
        let mut inherited = Inherited { problems, notes, ..Inherited::default() };
        let reading = self.reading(inputs, &kinship, heritage, choice)?;
        self.inherit_targets(heritage, choice, &mut inherited)?;
        let mut left: Vec<&String> = heritage.weights.keys().collect();
        let names: Vec<String> = params.named().map(|(name, _)| name.to_owned()).collect();
        for name in names {
            let source = source_of(&name, inputs, &kinship, heritage.inputs);
            left.retain(|other| Some(*other) != source.as_ref());
            let Some(parent) = source.and_then(|source| heritage.weights.get(&source)) else {
                inherited.problems.push(format!("{name} is missing there"));
                continue;
            };
            let own = by_name(params, &name);
            let parent = parent.f_to_kind(Kind::Double)?.f_to_device(Device::Cpu)?;
            let value = match category_of(&name) {
                Some(input) => Some(table(&own.size(), &parent, &kinship, input)?),
                None => reading.value(&name, &own.size(), &parent, heritage)?,
            };
            match value {
                Some(value) => {
                    tch::no_grad(|| own.shallow_clone().f_copy_(&value))?;
                    inherited.taken += 1;
                }
                None => {
                    let found = parent.size();
                    let expected = own.size();
                    inherited.problems.push(format!("{name} is {found:?}, expected {expected:?}"));
                }
            }
        }
        inherited.problems.extend(left.into_iter().map(|name| format!("{name} is unexpected")));
        Ok(inherited)
    }

    /// The scaler of the inputs, and what follows from it for what reads them.
    fn reading(
        &mut self,
        inputs: &[FeatureMeta],
        kinship: &Kinship<'_>,
        heritage: &Heritage<'_>,
        choice: ScalerChoice,
    ) -> Result<Reading, ModelError> {
        let buffer = |name: &str| -> Result<Vec<f64>, TchError> {
            heritage.buffers.get(name).map_or_else(|| Ok(Vec::new()), Vec::<f64>::try_from)
        };
        let mut mean = self.buffer("scaler.x_mean")?;
        let mut std = self.buffer("scaler.x_std")?;
        let parent_mean = buffer("scaler.x_mean")?;
        let parent_std = buffer("scaler.x_std")?;
        let mut factor = vec![1.0; inputs.len()];
        let mut offset = vec![0.0; inputs.len()];
        for own in 0..inputs.len() {
            let Some((m, s)) =
                kinship.input(own).and_then(|at| parent_mean.get(at).copied().zip(parent_std.get(at).copied()))
            else {
                continue;
            };
            match choice {
                ScalerChoice::Keep => (mean[own], std[own]) = (m, s),
                ScalerChoice::Refit => (factor[own], offset[own]) = (std[own] / s, (mean[own] - m) / s),
            }
        }
        if choice == ScalerChoice::Keep {
            self.load_buffer("scaler.x_mean", &Raw::f_from_slice(&mean)?)?;
            self.load_buffer("scaler.x_std", &Raw::f_from_slice(&std)?)?;
        }
        let all = columns(inputs);
        let places = kinship.places();
        let kept = all.iter().zip(&places).zip(0..).filter_map(|((column, place), own)| {
            let (factor, offset) = if let Column::Number(i) = column { (factor[*i], offset[*i]) } else { (1.0, 0.0) };
            Some(Kept { own, parent: (*place)? as i64, factor, offset })
        });
        let kept = kept.collect();
        let flag = |(own, column): (usize, &Column)| {
            let Column::Flag(i) = column else { return None };
            let at = all.iter().position(|other| *other == Column::Number(*i))?;
            Some((own as i64, places[at]? as i64, offset[*i]))
        };
        let flags = all.iter().enumerate().filter_map(flag).collect();
        let width = |columns: &[Column]| columns.iter().filter(|c| !matches!(c, Column::Cross(..))).count() as f64;
        Ok(Reading { kept, flags, widths: [width(&all), width(&columns(heritage.inputs))] })
    }

    /// The scaler of the targets, and the way from the parent's to it.
    fn inherit_targets(
        &mut self,
        heritage: &Heritage<'_>,
        choice: ScalerChoice,
        inherited: &mut Inherited,
    ) -> Result<(), ModelError> {
        let cells = self.grid.cells();
        let find = |name: &str| heritage.buffers.get(&format!("scaler.{name}")).filter(|raw| raw.size() == [cells]);
        let (Some(mean), Some(std)) = (find("y_mean"), find("y_std")) else {
            inherited.problems.push(format!("scaler.y_mean is missing there for {cells} cells"));
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
        // z of the parent · std + mean, in own standard deviations from the own mean.
        let (scale, shift) = match before {
            Some((scale, shift)) => (scale.f_mul(std)?, shift.f_mul(std)?.f_add(mean)?),
            None => (std.shallow_clone(), mean.shallow_clone()),
        };
        self.scaler.rebase(Rebase::Scale, &scale.f_div(&own_std)?)?;
        Ok(self.scaler.rebase(Rebase::Shift, &shift.f_sub(&own_mean)?.f_div(&own_std)?)?)
    }

    /// A buffer's numbers.
    fn buffer(&self, name: &str) -> Result<Vec<f64>, TchError> {
        let found = self.buffers().into_iter().find(|(own, _)| own == name);
        found.map_or_else(|| Ok(Vec::new()), |(_, raw)| Vec::<f64>::try_from(raw.f_to_device(Device::Cpu)?))
    }
}

impl Reading {
    /// A parent's parameter as this model's of shape `own`; `None` where it does not fit.
    fn value(&self, name: &str, own: &[i64], parent: &Raw, heritage: &Heritage<'_>) -> Result<Option<Raw>, TchError> {
        if let Some(power) = reads(name) {
            let norms = self.widths.map(|width| width.powf(power));
            return self.columns(own, parent, norms[0] / norms[1]);
        }
        if own != parent.size() {
            return Ok(None);
        }
        // What reads inputs adds to this parameter what their means were off.
        let reader = match name {
            "base.bias" => Some(("base.linear".to_owned(), 1.0)),
            _ => name.strip_suffix("tokeniser.bias").map(|task| (format!("{task}tokeniser.weight"), 0.5)),
        };
        let Some((weight, power)) = reader.and_then(|(name, power)| Some((heritage.weights.get(&name)?, power))) else {
            return Ok(Some(parent.shallow_clone()));
        };
        let weight = weight.f_to_kind(Kind::Double)?.f_to_device(Device::Cpu)?;
        let (places, offset) = self.within(i64::MAX, &weight, |kept| (kept.parent, kept.offset))?;
        let off = weight.f_index_select(1, &places)?.f_mv(&offset)?;
        Ok(Some(parent.f_add(&off.f_div_scalar(self.widths[1].powf(power))?)?))
    }

    /// A matrix over the columns, times `norm`.
    fn columns(&self, own: &[i64], parent: &Raw, norm: f64) -> Result<Option<Raw>, TchError> {
        let (Some(&rows), Some(&width)) = (own.first(), own.get(1)) else { return Ok(None) };
        if parent.size().first() != Some(&rows) {
            return Ok(None);
        }
        let mut value = Raw::f_zeros([rows, width], (Kind::Double, parent.device()))?;
        let (from, factor) = self.within(width, parent, |kept| (kept.parent, kept.factor))?;
        let (to, _) = self.within(width, parent, |kept| (kept.own, kept.factor))?;
        let _ = value.f_index_copy_(1, &to, &parent.f_index_select(1, &from)?.f_mul(&factor)?)?;
        for (flag, number, offset) in &self.flags {
            let column = parent.f_narrow(1, *number, 1)?.f_mul_scalar(-offset)?;
            let _ = value.f_narrow(1, *flag, 1)?.f_add_(&column)?;
        }
        Ok(Some(value.f_mul_scalar(norm)?))
    }

    /// A place and a number of each column below an own width, as far as the parent's matrix reaches.
    fn within(&self, width: i64, parent: &Raw, of: fn(&Kept) -> (i64, f64)) -> Result<(Raw, Raw), TchError> {
        let reach = parent.size().get(1).copied().unwrap_or(0);
        let there = self.kept.iter().filter(|kept| kept.own < width && kept.parent < reach);
        let (places, numbers): (Vec<i64>, Vec<f64>) = there.map(of).unzip();
        Ok((Raw::f_from_slice(&places)?, Raw::f_from_slice(&numbers)?))
    }
}

/// What power of F' the columns that a parameter reads are divided by; `None` for one that reads none.
fn reads(name: &str) -> Option<f64> {
    match name {
        "base.linear" => Some(1.0),
        _ => name.ends_with(".tokeniser.weight").then_some(0.5),
    }
}

/// The input whose categories a parameter is the table of.
fn category_of(name: &str) -> Option<usize> {
    name.strip_prefix("embedding.category_")?.strip_suffix(".weight")?.parse().ok()
}

/// The parent's name of a parameter.
fn source_of(name: &str, inputs: &[FeatureMeta], kinship: &Kinship<'_>, parent: &[FeatureMeta]) -> Option<String> {
    let Some(own) = category_of(name).filter(|own| *own < inputs.len()) else { return Some(name.to_owned()) };
    let found = kinship.input(own).filter(|at| *at < parent.len())?;
    Some(format!("embedding.category_{found}.weight"))
}

/// A table of categories by their names; one that is new begins as an unknown one, with a dimension of its own where there is one.
fn table(own: &[i64], parent: &Raw, kinship: &Kinship<'_>, input: usize) -> Result<Raw, TchError> {
    let rows = own[0] as usize;
    let width = own[1] as usize;
    let known = parent.size()[0] as usize - 1;
    let dimensions: Vec<Option<usize>> = (0..width).map(|d| kinship.dimension(input, d)).collect();
    let mut values = Vec::with_capacity(rows * width);
    let mut fresh = dimensions.iter().enumerate().filter(|(_, found)| found.is_none()).map(|(d, _)| d);
    for row in 0..rows {
        let source = if row + 1 == rows { Some(known) } else { kinship.category(input, row) };
        let new = if source.is_none() { fresh.next() } else { None };
        for (d, dimension) in dimensions.iter().enumerate() {
            let at = |dimension: usize| parent.f_double_value(&[source.unwrap_or(known) as i64, dimension as i64]);
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
