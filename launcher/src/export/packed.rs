//! An exported model as it lies: the artifact, and what is said beside it. That is all that is needed to predict with it.

use super::{Ports, files};
use crate::{Error, error::Usage};
use enn_common::{
    artifact::export::{Port, Sidecar, VERSION},
    config::{data::DataConfig, train::Precision},
    fs::regular,
};
use enn_export::{ExportError, Target};
use std::path::{Path, PathBuf};

/// Largest file that is read beside an artifact, bytes.
const SAID_BYTES_MAX: u64 = 256 << 20;
/// Beginning of the file, of any version.
#[derive(serde::Deserialize)]
struct Versioned {
    version: u32,
}

/// An artifact that is what is described beside it.
#[derive(Debug, Clone)]
pub struct Packed {
    /// Where it lies.
    pub path: PathBuf,
    /// What is said beside it.
    pub said: Sidecar,
    pub target: Target,
    /// How rows are read; the files are not those to read.
    pub data: DataConfig,
}

/// Whether something is said beside a path, as `enn export` does of what it leaves.
pub fn is_packed(path: &Path) -> bool {
    path.exists() && beside(path).is_file()
}

fn beside(artifact: &Path) -> PathBuf {
    let mut path = artifact.as_os_str().to_owned();
    path.push(".json");
    path.into()
}

impl Packed {
    /// Reads what is said beside an artifact, and compares the artifact with it.
    ///
    /// # Errors
    /// A file that cannot be read, is of another version, or describes something else.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let said = read(&beside(path))?;
        let target: Target = said.format.parse().map_err(|why| refused(path, why))?;
        if let Some(why) = files::difference(path, (&said.artifact, &said.files))? {
            let hint = "copy it anew with all its files, or export the run again";
            return Err(refused(path, format!("it is not what is described beside it: {why}\nhint: {hint}")));
        }
        let data = serde_json::from_value(said.data.clone());
        let data = data.map_err(|source| Error::Json { path: beside(path), source })?;
        Ok(Self { path: path.to_owned(), said, target, data })
    }

    /// An artifact computes in the precision it was exported in.
    ///
    /// # Errors
    /// Another one is asked for.
    pub fn takes(&self, precision: Precision) -> Result<(), Error> {
        if precision == Precision::Fp32 {
            return Ok(());
        }
        let engine = self.target.name();
        let precision = precision.name();
        Err(Error::Usage(Usage::EnginePrecision { engine, precision }))
    }

    /// Names of what goes in and comes out.
    pub fn ports(&self) -> Ports {
        let names = |ports: &[Port]| ports.iter().map(|port| port.name.clone()).collect();
        Ports { inputs: names(&self.said.inputs), outputs: names(&self.said.outputs) }
    }

    /// Levels that are told: none where only the point is asked for.
    ///
    /// # Errors
    /// When the model predicts quantiles that do not come out here, and they were not waived.
    pub fn levels(&self, is_point: bool) -> Result<Vec<f64>, Error> {
        let said = &self.said;
        if is_point || said.levels == said.model_levels {
            return Ok(if is_point { Vec::new() } else { said.levels.clone() });
        }
        Err(refused(
            &self.path,
            format!(
                "the quantiles {:?} that its model predicts do not come out of it\nhint: export it with --quantiles, or ask for the \
                 predictions alone with --point",
                said.model_levels
            ),
        ))
    }
}

fn read(path: &Path) -> Result<Sidecar, Error> {
    let failed = |source| Error::Read { path: path.to_owned(), source };
    if path.metadata().map_err(failed)?.len() > SAID_BYTES_MAX {
        return Err(failed(std::io::ErrorKind::FileTooLarge.into()));
    }
    let text = regular::read(path, SAID_BYTES_MAX).map_err(|error| failed(error.source))?;
    let json = |source| Error::Json { path: path.to_owned(), source };
    let Versioned { version } = serde_json::from_slice(&text).map_err(json)?;
    if version != VERSION {
        let found = format!("version {version}, expected {VERSION}\nhint: export the run again with this enn");
        return Err(refused(path, found));
    }
    serde_json::from_slice(&text).map_err(json)
}

fn refused(path: &Path, why: String) -> Error {
    ExportError::Refused { what: "enn", path: path.to_owned(), why }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_beside_a_file_says_whether_it_is_an_artifact() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.onnx");
        assert!(!is_packed(&path));
        std::fs::write(&path, "").unwrap();
        assert!(!is_packed(&path));
        let said = |text: &str| {
            std::fs::write(dir.path().join("m.onnx.json"), text).unwrap();
            Packed::open(&path).unwrap_err().to_string()
        };
        assert!(said("{}").contains("m.onnx.json") && is_packed(&path));
        let old = said("{\"version\": 1, \"format\": \"onnx\"}");
        assert!(old.contains("version 1, expected 3") && old.contains("export the run again"), "{old}");
    }
}
