//! Resolves a configuration from a file and flags.

use super::table_config;
use crate::{Error, error::Usage, facts::Facts};
use enn_common::{
    config::{
        Place, RawConfig, RunConfig,
        model::SIZE_KEYS,
        raw::{RawEntry, RawNode, RawValue},
        resolve,
    },
    fs::regular,
};
use enn_data::stage;
use std::path::Path;

/// Maximum size of a configuration file, bytes.
const CONFIG_BYTES_MAX: u64 = 16 << 20;

/// A setting given on the command line.
#[derive(Debug, Clone, PartialEq)]
pub enum Override {
    /// An argument `section.key=value` of `--set`.
    Set(String),
    /// A flag for one key: key path, value, and the flag as typed.
    Flag(&'static str, RawValue, String),
}

impl Override {
    fn is_of(&self, key: &str) -> bool {
        match self {
            Self::Set(assignment) => assignment.split('=').next().is_some_and(|set| set.trim() == key),
            Self::Flag(set, ..) => *set == key,
        }
    }

    /// Returns the text that `--set` gives to a key.
    #[must_use]
    pub fn text_of(&self, key: &str) -> Option<String> {
        let Self::Set(assignment) = self else { return None };
        let mut raw = RawConfig::empty("--set");
        raw.set(assignment).ok()?;
        match &raw.get(key)?.value {
            RawValue::Text(text) => Some(text.clone()),
            _ => None,
        }
    }
}

/// A configuration, and what a person should hear about it.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadedConfig {
    pub config: RunConfig,
    /// The columns that `features = "*"` means.
    pub columns: Option<String>,
}

/// Reads and resolves a configuration; overrides are applied last. All mistakes are reported. With `features = "*"` the table is read for
/// its columns.
///
/// # Errors
/// [`Error::Read`] when the file cannot be read, [`Error::Config`] with all mistakes; those of a table that cannot be read.
pub fn load_config(path: &Path, overrides: &[Override], facts: &Facts) -> Result<RunConfig, Error> {
    Ok(read_config(path, overrides, facts)?.config)
}

/// Reads and resolves a configuration like [`load_config`], and says what it found.
///
/// # Errors
/// Those of [`load_config`].
pub fn read_config(path: &Path, overrides: &[Override], facts: &Facts) -> Result<LoadedConfig, Error> {
    let path = facts.cwd.join(path);
    if stage::is_data(&path) {
        return Err(Error::Usage(Usage::DataForConfig { path }));
    }
    let text = read_text(&path)?;
    // Error messages show the path in its shortest form.
    let shown = path.strip_prefix(&facts.cwd).unwrap_or(&path);
    parse_config(&text, shown, overrides, facts)
}

/// Resolves the text of a configuration that is, or would be, at `path`.
///
/// # Errors
/// Those of [`load_config`].
pub fn parse_config(text: &str, path: &Path, overrides: &[Override], facts: &Facts) -> Result<LoadedConfig, Error> {
    let mut raw = RawConfig::parse(text, path).map_err(Error::Config)?;
    let config = resolve_with(&mut raw, overrides, facts)?;
    if !table_config::takes_all(&raw) {
        return Ok(LoadedConfig { config, columns: None });
    }
    let columns = table_config::expand(&mut raw, &config)?;
    let config = resolve(&raw, &facts.for_config()).map_err(Error::Config)?;
    Ok(LoadedConfig { config, columns })
}

/// Reads the text of a configuration file.
pub(super) fn read_text(path: &Path) -> Result<String, Error> {
    regular::read_text(path, CONFIG_BYTES_MAX)
        .map_err(|error| Error::Read { path: path.to_owned(), source: error.source })
}

/// Changes a resolved configuration, for a run that is resumed without its file. The data section is not changed.
///
/// # Errors
/// [`Error::Config`] with all mistakes.
pub fn change_config(config: &RunConfig, overrides: &[Override], facts: &Facts) -> Result<RunConfig, Error> {
    if overrides.is_empty() {
        return Ok(config.clone());
    }
    if config.model.by_rows
        && let Some(key) =
            SIZE_KEYS.into_iter().find(|key| overrides.iter().any(|one| one.is_of(&format!("model.{key}"))))
    {
        return Err(Error::Usage(Usage::Sized { key }));
    }
    let mut raw = RawConfig::empty("run.json");
    let json = |source| Error::Json { path: "run.json".into(), source };
    let text = |text: &str| RawValue::Text(text.to_owned());
    raw.set_value("name", text(&config.name), "run.json");
    raw.set_value("seed", RawValue::Integer(config.seed.cast_signed()), "run.json");
    let sections = [
        ("model", serde_json::to_value(&config.model).map_err(json)?),
        ("train", serde_json::to_value(&config.train).map_err(json)?),
        ("cluster", serde_json::to_value(&config.cluster).map_err(json)?),
    ];
    for (section, value) in sections {
        for (key, value) in value.as_object().into_iter().flatten() {
            if let Some(value) = from_json(value) {
                raw.set_value(&format!("{section}.{key}"), value, "run.json");
            }
        }
    }
    let changed = resolve_with(&mut raw, overrides, facts)?;
    Ok(RunConfig { data: config.data.clone(), ..changed })
}

fn resolve_with(raw: &mut RawConfig, overrides: &[Override], facts: &Facts) -> Result<RunConfig, Error> {
    let mut errors = Vec::new();
    for one in overrides {
        match one {
            Override::Set(assignment) => errors.extend(raw.set(assignment).err().map(|error| *error)),
            Override::Flag(key, value, flag) => raw.set_value(key, value.clone(), flag),
        }
    }
    match resolve(raw, &facts.for_config()) {
        Ok(config) if errors.is_empty() => Ok(config),
        Ok(_) => Err(Error::Config(errors)),
        Err(more) => {
            errors.extend(more);
            Err(Error::Config(errors))
        }
    }
}

/// Converts a JSON value; `None` for null, which stands for an absent key.
fn from_json(value: &serde_json::Value) -> Option<RawValue> {
    match value {
        serde_json::Value::Null => None,
        serde_json::Value::Bool(truth) => Some(RawValue::Bool(*truth)),
        serde_json::Value::Number(number) => Some(
            number.as_i64().map_or_else(|| RawValue::Float(number.as_f64().unwrap_or(f64::NAN)), RawValue::Integer),
        ),
        serde_json::Value::String(text) => Some(RawValue::Text(text.clone())),
        serde_json::Value::Array(items) => {
            let place = Place::Flag("run.json".into());
            let node = |value| Some(RawNode { place: place.clone(), value: from_json(value)? });
            Some(RawValue::Array(items.iter().filter_map(node).collect()))
        }
        serde_json::Value::Object(fields) => {
            let place = Place::Flag("run.json".into());
            let entry = |(key, value): (&String, &serde_json::Value)| {
                let node = RawNode { place: place.clone(), value: from_json(value)? };
                Some(RawEntry { key: key.clone(), place: place.clone(), node })
            };
            Some(RawValue::Table(fields.iter().filter_map(entry).collect()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(dir: &Path) -> Facts {
        let mut facts = Facts::gather();
        facts.cwd = dir.to_owned();
        facts.gpus = 0;
        facts.cores = 4;
        facts
    }

    #[test]
    fn a_file_and_flags_and_a_change_later() {
        let dir = tempfile::tempdir().unwrap();
        let facts = facts(dir.path());
        std::fs::write(
            dir.path().join("a.toml"),
            "name = \"a\"\nseed = 5\n[model]\noutput_range = [0, 1]\n\
             [train]\nlr = 0.5\nloss = \"student_t\"\nlevels = [0.5, 0.7]\ncell_weights = [[1, 2], []]\n",
        )
        .unwrap();
        let flag = Override::Flag("cluster.nproc_per_node", RawValue::Integer(3), "--nproc-per-node 3".into());
        let config = load_config(Path::new("a.toml"), &[flag], &facts).unwrap();
        assert_eq!((config.train.lr, config.model.output_range), (0.5, Some((0.0, 1.0))));
        let changed = change_config(&config, &[Override::Set("train.epochs=7".into())], &facts).unwrap();
        assert_eq!(changed.train.epochs, 7);
        let train = enn_common::config::train::TrainConfig { epochs: config.train.epochs, ..changed.train.clone() };
        assert_eq!(RunConfig { train, ..changed }, config);
        let size = [Override::Set("model.d_model = 64".into())];
        assert_eq!(change_config(&config, &size, &facts).map(|changed| changed.model.d_model).ok(), None);
        let sized = RunConfig {
            model: enn_common::config::model::ModelConfig { by_rows: false, ..config.model.clone() },
            ..config.clone()
        };
        assert_eq!(change_config(&sized, &size, &facts).unwrap().model.d_model, 64);
        let wrong = change_config(&config, &[Override::Set("train.epoch=7".into())], &facts).unwrap_err();
        assert!(wrong.to_string().contains("did you mean `epochs`?"), "{wrong}");
    }

    #[test]
    fn mistakes_name_the_file_as_the_user_did() {
        let dir = tempfile::tempdir().unwrap();
        let facts = facts(dir.path());
        let missing = load_config(Path::new("b.toml"), &[], &facts).unwrap_err().to_string();
        assert!(missing.contains("b.toml") && missing.starts_with("cannot read"), "{missing}");
        let table = "a,b\n".repeat(1000);
        std::fs::write(dir.path().join("b.csv"), &table).unwrap();
        let data = load_config(Path::new("b.csv"), &[], &facts).unwrap_err().to_string();
        assert!(data.contains("b.csv is data") && data.contains("data.files"), "{data}");
        std::fs::write(dir.path().join("b.toml"), &table).unwrap();
        let none = load_config(Path::new("b.toml"), &[], &facts).unwrap_err().to_string();
        assert!((1..20).contains(&none.lines().count()), "{none}");
        std::fs::write(dir.path().join("b.toml"), "seed = \"x\"\n").unwrap();
        let wrong = load_config(Path::new("b.toml"), &[Override::Set("oops".into())], &facts).unwrap_err().to_string();
        assert_eq!(
            wrong,
            "--set oops: \"oops\" is not of the form section.key=value, e.g. train.epochs=3\n\
             b.toml:1:8: seed: found the text \"x\", expected a whole number from 0 to 9223372036854775807"
        );
    }
}
