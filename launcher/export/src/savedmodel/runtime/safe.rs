//! Execution of a SavedModel in TensorFlow.

use super::{
    super::{
        TAG,
        signature::{ServingSignature, TensorPort},
    },
    WHAT, WHEEL, result,
    sys::{Functions, TfGraph, TfOutput, TfSession, TfTensor},
};
use crate::{ExportError, Runner, Tensor, foreign};
use std::path::{Path, PathBuf};

/// Numbers of `DataType` in types.proto.
const FLOAT: u32 = 1;
const INT32: u32 = 3;
const INT64: u32 = 9;
const BOOL: u32 = 10;

#[derive(Debug, Clone, Copy)]
pub struct TensorFlow {
    api: &'static Functions,
}

impl TensorFlow {
    /// Loads `libtensorflow_cc.so.2`, for as long as this process lives.
    ///
    /// # Errors
    /// The library is not TensorFlow's.
    pub fn load(library: &Path) -> Result<Self, ExportError> {
        let api = Functions::load(library).map_err(|error| WHEEL.unusable(library, &error))?;
        Ok(Self { api })
    }

    pub fn version(&self) -> String {
        result::version(self.api)
    }

    /// Loads a SavedModel.
    ///
    /// # Errors
    /// Any error of TensorFlow.
    pub fn open(&self, dir: &Path) -> Result<Session, ExportError> {
        let refused = |why: String| ExportError::refused(WHAT, dir, why);
        let signature = ServingSignature::read(dir)?;
        let place = dir.to_str().ok_or_else(|| refused("its path is no UTF-8".to_owned()))?;
        let graph = result::new_graph(self.api);
        // From here on dropping the session ends both.
        let mut session = Session {
            runtime: *self,
            dir: dir.to_owned(),
            graph,
            session: std::ptr::null_mut(),
            inputs: Vec::new(),
            outputs: Vec::new(),
        };
        session.session = result::load(self.api, place, TAG, graph).map_err(refused)?;
        let found = |ports: Vec<TensorPort>| -> Result<Vec<(TensorPort, TfOutput)>, String> {
            ports.into_iter().map(|port| result::output(self.api, graph, &port.tensor).map(|at| (port, at))).collect()
        };
        session.inputs = found(signature.inputs).map_err(refused)?;
        session.outputs = found(signature.outputs).map_err(refused)?;
        Ok(session)
    }
}

/// A loaded SavedModel.
#[derive(Debug)]
pub struct Session {
    runtime: TensorFlow,
    dir: PathBuf,
    graph: *mut TfGraph,
    session: *mut TfSession,
    inputs: Vec<(TensorPort, TfOutput)>,
    outputs: Vec<(TensorPort, TfOutput)>,
}

impl Drop for Session {
    fn drop(&mut self) {
        result::end(self.runtime.api, self.session, self.graph);
    }
}

/// A tensor that is deleted with its owner.
struct OwnedTensor(&'static Functions, *mut TfTensor);

impl Drop for OwnedTensor {
    fn drop(&mut self) {
        result::delete_tensor(self.0, self.1);
    }
}

impl Session {
    fn input_tensor(&self, port: &TensorPort, inputs: &[Tensor]) -> result::TfResult<OwnedTensor> {
        let input = Tensor::named(inputs, &port.name)?;
        foreign::agrees(input)?;
        let bytes: Vec<u8> = match port.kind {
            FLOAT => input.values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            INT64 => input.values.iter().flat_map(|v| (*v as i64).to_le_bytes()).collect(),
            kind => return Err(format!("input {} is of type {kind}, expected float or int64", port.name)),
        };
        let shape: Vec<i64> = input.shape.iter().map(|size| *size as i64).collect();
        let api = self.runtime.api;
        Ok(OwnedTensor(api, result::tensor(api, port.kind, &shape, &bytes)?))
    }

    fn output_tensor(&self, port: &TensorPort, tensor: &OwnedTensor) -> result::TfResult<Tensor> {
        let (kind, shape, bytes) = result::read(self.runtime.api, tensor.1);
        let values = match kind {
            FLOAT => foreign::numbers(&bytes, f32::from_le_bytes),
            INT32 => foreign::numbers(&bytes, |b| i32::from_le_bytes(b) as f32),
            INT64 => foreign::numbers(&bytes, |b| i64::from_le_bytes(b) as f32),
            BOOL => foreign::numbers(&bytes, |[b]: [u8; 1]| f32::from(b)),
            kind => return Err(format!("output {} is of type {kind}, expected numbers", port.name)),
        };
        Ok(Tensor { name: port.name.clone(), shape, values })
    }

    fn call(&self, inputs: &[Tensor]) -> result::TfResult<Vec<Tensor>> {
        let given = self
            .inputs
            .iter()
            .map(|(port, _)| self.input_tensor(port, inputs))
            .collect::<result::TfResult<Vec<OwnedTensor>>>()?;
        let pointers: Vec<*mut TfTensor> = given.iter().map(|tensor| tensor.1).collect();
        let at = |ports: &[(TensorPort, TfOutput)]| ports.iter().map(|(_, at)| *at).collect::<Vec<_>>();
        let api = self.runtime.api;
        let made = result::run(api, self.session, &at(&self.inputs), &pointers, &at(&self.outputs))?;
        let made: Vec<OwnedTensor> = made.into_iter().map(|tensor| OwnedTensor(api, tensor)).collect();
        self.outputs.iter().zip(&made).map(|((port, _), tensor)| self.output_tensor(port, tensor)).collect()
    }
}

impl Runner for Session {
    fn version(&self) -> String {
        format!("tensorflow {}", self.runtime.version())
    }

    fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, ExportError> {
        self.call(inputs).map_err(|why| ExportError::refused(WHAT, &self.dir, why))
    }
}
