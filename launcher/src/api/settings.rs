//! From a file and flags to a resolved configuration.

use crate::{Error, facts::Facts};
use enn_common::config::{RawConfig, RunConfig, raw::Value, resolve};
use std::path::Path;

/// A setting given by a flag of its own.
#[derive(Debug, Clone, PartialEq)]
pub enum Override {
    /// `--set section.key=value`.
    Set(String),
    /// A named flag: key path, value, the flag as typed.
    Flag(&'static str, Value, String),
}

/// Reads and resolves a configuration; overrides come last. Every mistake is reported.
///
/// # Errors
/// [`Error::Read`] when the file cannot be read, [`Error::Config`] with all mistakes.
pub fn load_config(path: &Path, overrides: &[Override], facts: &Facts) -> Result<RunConfig, Error> {
    let path = facts.cwd.join(path);
    let text = std::fs::read_to_string(&path).map_err(|source| Error::Read { path: path.clone(), source })?;
    // People read places; a path as short as possible reads best.
    let shown = path.strip_prefix(&facts.cwd).unwrap_or(&path);
    let mut raw = RawConfig::parse(&text, shown).map_err(Error::Config)?;
    let mut errors = Vec::new();
    for one in overrides {
        match one {
            Override::Set(assignment) => errors.extend(raw.set(assignment).err().map(|error| *error)),
            Override::Flag(key, value, flag) => raw.set_value(key, value.clone(), flag),
        }
    }
    match resolve(&raw, &facts.for_config()) {
        Ok(config) if errors.is_empty() => Ok(config),
        Ok(_) => Err(Error::Config(errors)),
        Err(more) => {
            errors.extend(more);
            Err(Error::Config(errors))
        }
    }
}
