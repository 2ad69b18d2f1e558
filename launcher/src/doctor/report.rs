//! The report of `enn doctor`, as text and as JSON.

use super::variables::{FOR_WORKERS, OF_TORCHRUN, VARIABLES, Variable};
use enn_common::exit::ExitCode;
use serde_json::{Value, json};
use std::fmt::{self, Display};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckState {
    /// The thing is present and sufficient.
    Ok,
    /// Something optional is missing; a feature is slower or unavailable.
    Note,
    Missing,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    pub name: &'static str,
    pub state: CheckState,
    pub found: String,
    /// How to fix it: a command, or what to do.
    pub fix: Option<String>,
}

/// All checks, and the environment variables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The checks in the order in which they are printed.
    pub items: Vec<Check>,
    /// Variables of ENN's table that are set.
    pub set: Vec<(String, String)>,
}

impl CheckState {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Missing => "missing",
        }
    }
}

impl Report {
    /// Returns [`ExitCode::Machine`] when something required is missing.
    pub fn exit_code(&self) -> ExitCode {
        if self.items.iter().any(|item| item.state == CheckState::Missing) {
            ExitCode::Machine
        } else {
            ExitCode::Success
        }
    }

    /// Returns the report as JSON: {ok, items: [{name, state, found, mend}], variables: [{name, reader, effect,
    /// value}]}.
    pub fn json(&self) -> Value {
        let items: Vec<Value> = self
            .items
            .iter()
            .map(|item| json!({"name": item.name, "state": item.state.word(), "found": item.found, "mend": item.fix}))
            .collect();
        let variables: Vec<Value> = VARIABLES
            .iter()
            .chain(OF_TORCHRUN)
            .map(|variable| {
                let value = self.set.iter().find(|(name, _)| name == variable.name).map(|(_, value)| value);
                json!({"name": variable.name, "reader": variable.reader, "effect": variable.effect, "value": value})
            })
            .collect();
        json!({"ok": self.exit_code() == ExitCode::Success, "items": items, "variables": variables})
    }

    fn list(&self, f: &mut fmt::Formatter<'_>, variables: &[Variable]) -> fmt::Result {
        let width = variables.iter().map(|variable| variable.name.len()).max().unwrap_or(0);
        for variable in variables {
            write!(f, "  {:width$}  {}", variable.name, variable.effect)?;
            match self.set.iter().find(|(name, _)| name == variable.name) {
                Some((_, value)) => writeln!(f, "  = {value}")?,
                None => writeln!(f)?,
            }
        }
        Ok(())
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.items.iter().map(|item| item.name.len()).max().unwrap_or(0);
        for item in &self.items {
            writeln!(f, "{:7}  {:width$}  {}", item.state.word(), item.name, item.found)?;
            if let Some(fix) = &item.fix {
                writeln!(f, "{:7}  {:width$}  -> {fix}", "", "")?;
            }
        }
        writeln!(f, "\nenvironment variables (value, when set)")?;
        self.list(f, VARIABLES)?;
        writeln!(f, "\ntorchrun's own variables, read by enn run")?;
        self.list(f, OF_TORCHRUN)?;
        let names: Vec<&str> = FOR_WORKERS.iter().map(|variable| variable.name).collect();
        writeln!(f, "\nset by enn for its workers: {}", names.join(", "))
    }
}
