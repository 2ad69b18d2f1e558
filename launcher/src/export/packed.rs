//! An exported model on disk: the artifact and its sidecar, which are all that prediction needs.

use super::{Ports, files};
use crate::{Error, error::Usage};
use enn_common::{
    artifact::export::{Port, Sidecar, VERSION},
    config::{data::DataConfig, train::Precision},
    fs::regular,
};
use enn_export::{ExportError, Target};
use std::path::{Path, PathBuf};

const SAID_BYTES_MAX: u64 = 256 << 20;
/// The version field of a sidecar, of any version.
#[derive(serde::Deserialize)]
struct Versioned {
    version: u32,
}

/// An artifact that matches its sidecar.
#[derive(Debug, Clone)]
pub struct Packed {
    pub path: PathBuf,
    /// The description beside the artifact.
    pub sidecar: Sidecar,
    pub target: Target,
    /// How rows are read; the files are not those to read.
    pub data: DataConfig,
}

/// Returns whether a path has a sidecar, as an output of `enn export` does.
pub fn is_packed(path: &Path) -> bool {
    path.exists() && sidecar_path(path).is_file()
}

fn sidecar_path(artifact: &Path) -> PathBuf {
    let mut path = artifact.as_os_str().to_owned();
    path.push(".json");
    path.into()
}

impl Packed {
    /// Reads the sidecar of an artifact, and compares the artifact with it.
    ///
    /// # Errors
    /// A file cannot be read, is of another version, or describes something else.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let sidecar = read(&sidecar_path(path))?;
        let target: Target = sidecar.format.parse().map_err(|why| refused(path, why))?;
        if let Some(why) = files::difference(path, &sidecar.artifact, &sidecar.files)? {
            let hint = "copy it anew with all its files, or export the run again";
            return Err(refused(path, format!("it is not what is described beside it: {why}\nhint: {hint}")));
        }
        let data = serde_json::from_value(sidecar.data.clone());
        let data = data.map_err(|source| Error::Json { path: sidecar_path(path), source })?;
        Ok(Self { path: path.to_owned(), sidecar, target, data })
    }

    /// Checks the requested precision: an artifact computes in the precision in which it was exported.
    ///
    /// # Errors
    /// Another precision is requested.
    pub fn takes(&self, precision: Precision) -> Result<(), Error> {
        if precision == Precision::Fp32 {
            return Ok(());
        }
        Err(Error::Usage(Usage::EnginePrecision { engine: self.target.name(), precision: precision.name() }))
    }

    /// Returns the names of the inputs and outputs.
    pub fn ports(&self) -> Ports {
        let names = |ports: &[Port]| ports.iter().map(|port| port.name.clone()).collect();
        Ports { inputs: names(&self.sidecar.inputs), outputs: names(&self.sidecar.outputs) }
    }

    /// Returns the quantile levels of the predictions: none when only the point is requested.
    ///
    /// # Errors
    /// The model predicts quantiles that the artifact does not, and they were not waived.
    pub fn levels(&self, is_point: bool) -> Result<Vec<f64>, Error> {
        let sidecar = &self.sidecar;
        if is_point || sidecar.levels == sidecar.model_levels {
            return Ok(if is_point { Vec::new() } else { sidecar.levels.clone() });
        }
        Err(refused(
            &self.path,
            format!(
                "the quantiles {:?} that its model predicts do not come out of it\nhint: export it with --quantiles, or ask for the \
                 predictions alone with --point",
                sidecar.model_levels
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
    ExportError::refused("enn", path, why).into()
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
        let sidecar = |text: &str| {
            std::fs::write(dir.path().join("m.onnx.json"), text).unwrap();
            Packed::open(&path).unwrap_err().to_string()
        };
        assert!(sidecar("{}").contains("m.onnx.json") && is_packed(&path));
        let old = sidecar("{\"version\": 1, \"format\": \"onnx\"}");
        assert!(old.contains("version 1, expected 3") && old.contains("export the run again"), "{old}");
    }
}
