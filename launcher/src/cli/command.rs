//! The command line of `enn`: its subcommands and what they have in common.

use super::{
    chaos, ckpt, compare, completions, cv, data, doctor, evaluate, export, gc, help, init, kernels, logs, ls, man,
    metrics, mlflow, model, new, predict, profile, rm, run, runtime, schema, serve, slurm, stage, status, target_run,
    top, train, warm,
};
use clap::{Parser, Subcommand};
use enn_common::exit::ExitCode;

/// Elastic training and prediction for libtorch.
#[derive(Debug, Parser)]
#[command(
    name = "enn",
    version,
    about = "Elastic training and prediction for libtorch",
    long_about = "Stages data, starts elastic workers, keeps them alive, and gathers what they write.",
    after_help = exit_codes(),
    max_term_width = 110,
    disable_help_subcommand = true,
    mut_subcommands = with_version,
)]
pub(super) struct Cli {
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    #[command(infer_long_args = true, args_override_self = true)]
    Run(Box<run::Args>),
    Warm(warm::Args),
    New(new::Args),
    Train(Box<train::Args>),
    Predict(Box<predict::Args>),
    Serve(serve::Args),
    Evaluate(evaluate::Args),
    Export(Box<export::Args>),
    Cv(Box<cv::Args>),
    Stage(stage::Args),
    Init(init::Args),
    Metrics(metrics::Args),
    Profile(profile::Args),
    Status(status::Args),
    Ls(ls::Args),
    Compare(compare::Args),
    Mlflow(mlflow::Args),
    Rm(rm::Args),
    Gc(gc::Args),
    Top(top::Args),
    #[command(flatten)]
    Request(target_run::RequestCommand),
    Logs(logs::Args),
    Kernels(kernels::Args),
    Chaos(chaos::Args),
    Ckpt(ckpt::Args),
    Data(data::Args),
    Model(model::Args),
    Slurm(slurm::Args),
    Doctor(doctor::Args),
    Help(help::Args),
    Completions(completions::Args),
    Man(man::Args),
    Schema(schema::Args),
    #[command(hide = true)]
    Runtime(runtime::Args),
}

/// Adds `--version` to a command and its subcommands, which prints the version of the program.
fn with_version(command: clap::Command) -> clap::Command {
    command.version(env!("CARGO_PKG_VERSION")).display_name("enn").mut_subcommands(with_version)
}

fn exit_codes() -> String {
    let lines = ExitCode::ALL.iter().map(|(code, text)| format!("  {:>3}  {text}", *code as u8));
    format!("Exit codes:\n{}", lines.collect::<Vec<_>>().join("\n"))
}
