//! The command line.

use crate::{error::GptError, model::GptSize};
use clap::Parser;
use enn_worker::session::{steps::WantedPrecision, torchrun::DeviceChoice};
use std::path::PathBuf;

/// Trains a GPT on the bytes of a text file, then writes some text of its own.
#[derive(Debug, Clone, Parser)]
#[command(name = "gpt")]
pub(crate) struct Settings {
    /// Text file to learn from.
    #[arg(long)]
    pub(crate) data: PathBuf,
    /// tiny (0.8 M parameters), small (10.8 M) or gpt124m.
    #[arg(long, default_value = "tiny")]
    pub(crate) preset: String,
    /// Optimizer steps.
    #[arg(long, default_value_t = 500)]
    pub(crate) steps: u64,
    /// Windows per step, over all ranks and micro-batches.
    #[arg(long, default_value_t = 32)]
    pub(crate) batch: u64,
    /// Micro-batches per step and rank.
    #[arg(long, default_value_t = 1)]
    pub(crate) accumulation: u64,
    /// Largest learning rate.
    #[arg(long, default_value_t = 1e-3)]
    pub(crate) lr: f64,
    /// Tokens of a window, instead of the preset's.
    #[arg(long)]
    pub(crate) context: Option<i64>,
    /// Rate of dropout.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) dropout: f64,
    /// Seed of weights, order and dropout.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// auto, cpu or cuda.
    #[arg(long, default_value = "auto")]
    pub(crate) device: String,
    /// auto, fp32, tf32, bf16, fp16 or fp8.
    #[arg(long, default_value = "auto", value_parser = precision)]
    pub(crate) precision: WantedPrecision,
    /// Folder for a profile of a few steps: a trace and a table.
    #[arg(long)]
    pub(crate) profile: Option<PathBuf>,
    /// Folder of checkpoints; training goes on from the newest in it.
    #[arg(long)]
    pub(crate) checkpoints: Option<PathBuf>,
    /// Steps between two checkpoints.
    #[arg(long, default_value_t = 100)]
    pub(crate) save_every: u64,
    /// Steps between two printed losses.
    #[arg(long, default_value_t = 20)]
    pub(crate) log_every: u64,
    /// Bytes of text to write at the end.
    #[arg(long, default_value_t = 200)]
    pub(crate) sample: u64,
}

impl Settings {
    /// Returns the sizes of the model.
    pub(crate) fn size(&self) -> Result<GptSize, GptError> {
        let preset = match self.preset.as_str() {
            "tiny" => GptSize::TINY,
            "small" => GptSize::SMALL,
            "gpt124m" => GptSize::GPT124M,
            _ => {
                let found = self.preset.clone();
                let expected = "tiny, small or gpt124m";
                return Err(GptError::Setting { what: "--preset", found, expected });
            }
        };
        let context = self.context.unwrap_or(preset.context);
        if !(1..=preset.context).contains(&context) {
            let found = context.to_string();
            let expected = "1 up to the preset's context";
            return Err(GptError::Setting { what: "--context", found, expected });
        }
        Ok(GptSize { context, dropout: self.dropout, ..preset })
    }

    /// Returns the device to compute on.
    pub(crate) fn device(&self) -> Result<DeviceChoice, GptError> {
        match self.device.as_str() {
            "auto" => Ok(DeviceChoice::Auto),
            "cpu" => Ok(DeviceChoice::Cpu),
            "cuda" => Ok(DeviceChoice::Cuda),
            _ => {
                let found = self.device.clone();
                let expected = "auto, cpu or cuda";
                Err(GptError::Setting { what: "--device", found, expected })
            }
        }
    }
}

fn precision(name: &str) -> Result<WantedPrecision, serde_json::Error> {
    serde_json::from_value(name.into())
}
