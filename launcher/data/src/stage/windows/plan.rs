//! What is read for windows: the columns, the channels that they become, and the inputs of a sample.

use super::labels;
use crate::stage::{
    calendar,
    complete::Input,
    job::Job,
    source::block::{ColumnKind, ColumnSpec},
};
use enn_common::config::data::WindowsLayout;

/// A series of numbers, one per step and entity of the grid.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Channel {
    /// Name such as `wind_dir.sin`.
    pub(super) name: String,
    /// Index into the requested columns.
    pub(super) spec: usize,
    pub(super) transform: ChannelTransform,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChannelTransform {
    None,
    /// Sine of an angle in degrees.
    Sin,
    /// Cosine of an angle in degrees.
    Cos,
}

impl ChannelTransform {
    pub(super) fn of(self, value: f64) -> f32 {
        match self {
            Self::None => value as f32,
            Self::Sin => value.to_radians().sin() as f32,
            Self::Cos => value.to_radians().cos() as f32,
        }
    }
}

pub(super) struct WindowsPlan {
    pub(super) specs: Vec<ColumnSpec>,
    pub(super) channels: Vec<Channel>,
    pub(super) target: usize,
    pub(super) calendar: Vec<String>,
}

impl WindowsPlan {
    pub(super) fn new(job: &Job<'_>, layout: &WindowsLayout) -> Self {
        let mut specs =
            vec![ColumnSpec::new(&layout.entity, ColumnKind::Word), ColumnSpec::new(&layout.time, ColumnKind::Time)];
        let mut channels: Vec<Channel> = Vec::new();
        let mut add = |column: &String, transforms: &[(ChannelTransform, &str)]| {
            let known = specs.iter().position(|spec| spec.column == *column && spec.kind == ColumnKind::Number);
            let spec = known.unwrap_or_else(|| {
                let mut spec = ColumnSpec::new(column, ColumnKind::Number);
                if let Some(range) = job.config.ranges.iter().find(|range| range.column == *column) {
                    spec.range = (range.low, range.high);
                }
                if *column == layout.target {
                    spec.sentinel = job.config.mask.sentinel();
                }
                specs.push(spec);
                specs.len() - 1
            });
            for (transform, suffix) in transforms {
                let channel = Channel { name: format!("{column}{suffix}"), spec, transform: *transform };
                if !channels.contains(&channel) {
                    channels.push(channel);
                }
            }
        };
        for column in layout.inputs.iter().chain(&layout.circular) {
            match layout.circular.contains(column) {
                true => add(column, &[(ChannelTransform::Sin, ".sin"), (ChannelTransform::Cos, ".cos")]),
                false => add(column, &[(ChannelTransform::None, "")]),
            }
        }
        // The history always holds the target itself, whether it was named or not.
        add(&layout.target, &[(ChannelTransform::None, "")]);
        let is_target =
            |channel: &Channel| channel.transform == ChannelTransform::None && channel.name == layout.target;
        let target = channels.iter().position(is_target).unwrap_or(0);
        Self { specs, channels, target, calendar: calendar::names(&layout.calendar) }
    }

    pub(super) fn width(&self, layout: &WindowsLayout, entities: &[String]) -> usize {
        layout.history * layout.steps * entities.len() * self.channels.len() + self.calendar.len()
    }

    pub(super) fn inputs(&self, layout: &WindowsLayout, entities: &[String]) -> Vec<Input> {
        let mut inputs = Vec::with_capacity(self.width(layout, entities));
        let steps = labels::steps(layout);
        for back in (1..=layout.history).rev() {
            let window = labels::windows_back(layout, back);
            for step in &steps {
                for entity in entities {
                    inputs.extend(self.channels.iter().map(|channel| Input {
                        name: format!("{}[{entity},{window},{step}]", channel.name),
                        source: self.specs[channel.spec].column.clone(),
                        ..Input::default()
                    }));
                }
            }
        }
        // Both ends of a circle are one input.
        let stem = |name: &str| name.trim_end_matches(".sin").trim_end_matches(".cos").to_owned();
        let calendar = |name: &String| Input { name: name.clone(), source: stem(name), ..Input::default() };
        inputs.extend(self.calendar.iter().map(calendar));
        inputs
    }

    /// Returns for every target cell the input with the target's value one window earlier.
    pub(super) fn persistence(&self, layout: &WindowsLayout, entities: &[String]) -> Vec<u32> {
        let entities = entities.len();
        let channels = self.channels.len();
        let last = (layout.history - 1) * layout.steps;
        (0..entities)
            .flat_map(|entity| (0..layout.steps).map(move |step| (entity, step)))
            .map(|(entity, step)| (((last + step) * entities + entity) * channels + self.target) as u32)
            .collect()
    }
}
