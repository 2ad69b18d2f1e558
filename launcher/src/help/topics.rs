//! The topics of `enn help`: each is made of sections of the pages.

use crate::pages::{CHECKPOINTS, DATA, EXPORT, EmbeddedPage, FAULTS, JUDGING, LAUNCH, PREDICTING, RUN, TRAINING};

/// The source of a topic's text.
#[derive(Debug, Clone, Copy)]
pub(crate) enum TopicText {
    /// Sections of pages, by their headings.
    Sections(&'static [(EmbeddedPage, &'static str)]),
    /// The keys of the configuration.
    Keys,
    /// The environment variables that ENN reads.
    Environment,
    ExitCodes,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Topic {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) text: TopicText,
}

const fn topic(name: &'static str, about: &'static str, sections: &'static [(EmbeddedPage, &'static str)]) -> Topic {
    Topic { name, about, text: TopicText::Sections(sections) }
}

/// All topics, in the order in which they are listed. No topic has the name of a command.
pub(crate) const TOPICS: &[Topic] = &[
    topic(
        "quickstart",
        "from a table to predictions",
        &[
            (DATA, "The smallest configuration"),
            (JUDGING, "Three commands"),
            (PREDICTING, "Predicting a file"),
            (TRAINING, "Runs beside each other"),
        ],
    ),
    topic(
        "datasets",
        "files, and how their rows become samples",
        &[(DATA, "Files, and what all layouts share"), (DATA, "Three layouts")],
    ),
    topic(
        "columns",
        "categories, times, missing and strange values",
        &[(DATA, "Columns that are not just numbers"), (DATA, "Units"), (DATA, "Strange values")],
    ),
    topic("splits", "training, validation and test rows", &[(DATA, "Training, validation, test")]),
    Topic { name: "configuration", about: "all keys; `enn help train.epochs` describes one", text: TopicText::Keys },
    topic("losses", "losses, intervals and classes", &[(TRAINING, "Losses, intervals, classes")]),
    topic(
        "schedules",
        "learning rate, batches, memory, validation",
        &[(TRAINING, "Optimizer and schedule"), (TRAINING, "Batches, memory and validation")],
    ),
    topic("sizes", "sizes and switches of the model", &[(TRAINING, "Sizes and switches")]),
    topic("strategies", "state that is divided among workers", &[(TRAINING, "Strategies")]),
    topic("fine-tuning", "beginning with the weights of another run", &[(TRAINING, "Fine-tuning")]),
    topic(
        "runs",
        "listing, comparing, resuming and removing runs",
        &[
            (TRAINING, "Runs beside each other"),
            (JUDGING, "Runs beside each other: `enn compare`"),
            (TRAINING, "Resuming a run"),
        ],
    ),
    topic(
        "judging",
        "whether a model is any good: baselines, cross-validation",
        &[(JUDGING, "Three commands"), (JUDGING, "The baselines"), (JUDGING, "Cross-validation: `enn cv`")],
    ),
    topic(
        "recovery",
        "what happens when a worker, a node or a disk fails",
        &[(FAULTS, "On one page"), (FAULTS, "A worker"), (FAULTS, "Several nodes"), (FAULTS, "Flags and keys")],
    ),
    topic(
        "checkpoints",
        "when they are written, and tools for them",
        &[(TRAINING, "Checkpoints while training"), (CHECKPOINTS, "Commands"), (CHECKPOINTS, "Forms")],
    ),
    topic("formats", "models for other runtimes", &[(EXPORT, "Commands"), (EXPORT, "What is in a file")]),
    topic("serving", "forecasts over HTTP", &[(PREDICTING, "Serving"), (PREDICTING, "Requests")]),
    topic(
        "torchrun",
        "moving a script from torchrun to `enn run`",
        &[
            (LAUNCH, "Commands"),
            (RUN, "What gets better"),
            (RUN, "Other differences from torchrun"),
            (RUN, "How to go back"),
        ],
    ),
    topic("preemption", "jobs in Slurm that are interrupted and go on", &[(RUN, "Preemption under Slurm")]),
    topic("logs-of-runs", "where the output of workers is", &[(LAUNCH, "Logs and run directories")]),
    Topic { name: "environment", about: "environment variables", text: TopicText::Environment },
    Topic { name: "exit-codes", about: "what the exit codes mean", text: TopicText::ExitCodes },
];
