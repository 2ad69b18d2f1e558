//! The Rust API: the commands of `enn` as functions, a thin layer over stage, agent, gather and convert.
//!
//! ```no_run
//! use enn_launcher::{api, facts::Facts};
//! # fn f() -> Result<(), enn_launcher::Error> {
//! let facts = Facts::gather();
//! let config = api::load_config("weather.toml".as_ref(), &[], &facts)?;
//! let run = api::train(&config, &facts, &api::TrainOptions::default())?;
//! println!("{:?} in {}", run.metrics, run.dir.display());
//! # Ok(()) }
//! ```
//! Times are seconds, sizes bytes, predictions and errors in the target's own unit.

mod address;
mod allocated;
mod announce;
mod checkpoints;
mod cv;
mod cv_options;
mod doubts;
mod evaluate;
mod evaluation_file;
mod export;
mod finished;
mod folds;
mod forecast;
mod groups;
mod importance;
mod launch;
mod lead;
mod loaded_model;
mod mirror;
mod model;
mod model_card;
mod predict;
mod predict_client;
mod pretrained;
mod requests;
mod run;
mod serve;
mod settings;
mod sizes;
mod staging;
mod stamp;
mod stream;
mod table_config;
mod train;
mod train_options;
mod trained_run;
mod work_dir;

pub use crate::export::{Exported, is_packed as is_artifact};
pub use address::{Outlined, at_address, find_run, newest_run, outline_at, verify_at};
pub use allocated::{allocation, meeting, requeued, run_allocated, take_part};
pub use cv::{CrossValidated, OUT_OF_FOLD, cross_validate};
pub use cv_options::CvOptions;
pub use enn_checkpoint::gather::Arrays;
pub use evaluate::{EvaluateOptions, Evaluated, evaluate};
pub(crate) use export::export_support;
pub use export::{ExportOptions, export, prepare_export};
pub use finished::{FinishedRun, finished};
pub use model::{edit_tasks, load_model, new_model, save_model, tasks_of};
pub use predict::{Engine, PredictOptions, Predictions, predict, predict_arrays};
pub use pretrained::FinetuneOptions;
pub use requests::{PredictAnswer, PredictRequest, RequestLimits, answer_requests};
pub use run::{RunOptions, run};
pub use serve::{ServeOptions, Served, serve};
pub use settings::{LoadedConfig, Override, change_config, load_config, parse_config, read_config};
pub use staging::{STAGED_DIR, stage};
pub use stream::predict_stream;
pub use table_config::{TableConfig, TableOptions, config_of_table};
pub use train::train;
pub use train_options::TrainOptions;
pub use trained_run::{TrainedRun, exit_code};
