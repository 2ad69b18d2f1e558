//! Execution of a LiteRT model.

use super::{
    WHAT, WHEEL,
    result::{self, ApiResult, Side},
    sys::{Destroy, Functions, Handle, Layout, TensorType},
};
use crate::{ExportError, Runner, Tensor, foreign};
use std::path::{Path, PathBuf};

/// Numbers of `LiteRtElementType`.
const FLOAT32: i32 = 1;
const INT32: i32 = 2;
const BOOL: i32 = 6;

#[derive(Debug, Clone)]
pub struct LiteRt {
    api: &'static Functions,
    /// Environment, which lives as long as the library.
    environment: Handle,
    version: String,
}

impl LiteRt {
    /// Loads `libLiteRt.so`, for as long as this process lives. The library does not report its version; the wheel around it does.
    ///
    /// # Errors
    /// The library is not LiteRT's, or too old.
    pub fn load(library: &Path) -> Result<Self, ExportError> {
        let unavailable = |error: String| WHEEL.unusable(library, &error);
        let api = Functions::load(library).map_err(unavailable)?;
        let environment = result::environment(api).map_err(unavailable)?;
        let version = WHEEL.version(library).unwrap_or_else(|| "of unknown version".to_owned());
        Ok(Self { api, environment, version })
    }

    /// Loads a `.tflite` file.
    ///
    /// # Errors
    /// Any error of LiteRT.
    pub fn open(&self, path: &Path) -> Result<CompiledModel, ExportError> {
        let refused = |why: String| ExportError::refused(WHAT, path, why);
        let place = path.to_str().ok_or_else(|| refused("its path is no UTF-8".to_owned()))?;
        let api = self.api;
        let own = |handle: ApiResult<Handle>, destroy| {
            handle.map(|handle| OwnedHandle { api, handle, destroy }).map_err(refused)
        };
        let model = own(result::model(api, self.environment, place), api.destroy_model)?;
        let inputs = result::ports(api, model.handle, Side::Input).map_err(refused)?;
        let outputs = result::ports(api, model.handle, Side::Output).map_err(refused)?;
        let compiled = result::compiled(api, self.environment, model.handle);
        let compiled = own(compiled, api.destroy_compiled)?;
        Ok(CompiledModel { runtime: self.clone(), path: path.to_owned(), inputs, outputs, compiled, _model: model })
    }
}

/// A handle that is destroyed with its owner.
#[derive(Debug)]
struct OwnedHandle {
    api: &'static Functions,
    handle: Handle,
    destroy: Destroy,
}

impl Drop for OwnedHandle {
    fn drop(&mut self) {
        result::destroy(self.destroy, self.handle);
    }
}

/// A loaded model. Its fields are dropped in their order: the compiled model before the model.
#[derive(Debug)]
pub struct CompiledModel {
    runtime: LiteRt,
    path: PathBuf,
    inputs: Vec<(String, TensorType)>,
    outputs: Vec<(String, TensorType)>,
    compiled: OwnedHandle,
    _model: OwnedHandle,
}

impl CompiledModel {
    fn buffer(&self, side: Side, port: usize, kind: &TensorType) -> ApiResult<OwnedHandle> {
        let api = self.compiled.api;
        let handle = result::buffer(api, self.runtime.environment, self.compiled.handle, side, port, kind)?;
        Ok(OwnedHandle { api, handle, destroy: api.destroy_buffer })
    }

    /// Finds an input and resizes the model's input to its shape.
    fn sized<'t>(&self, port: usize, inputs: &'t [Tensor]) -> ApiResult<(&'t Tensor, TensorType)> {
        let (name, TensorType { kind, .. }) = &self.inputs[port];
        let input = Tensor::named(inputs, name)?;
        foreign::agrees(input)?;
        let sizes =
            input.shape.iter().map(|size| i32::try_from(*size).map_err(|_| format!("input {name} has {size} rows")));
        let sizes = sizes.collect::<ApiResult<Vec<i32>>>()?;
        result::resize(self.compiled.api, self.compiled.handle, port, &sizes)?;
        Ok((input, TensorType { kind: *kind, layout: Layout::of(&sizes)? }))
    }

    fn input_buffer(&self, port: usize, input: &Tensor, kind: &TensorType) -> ApiResult<OwnedHandle> {
        let bytes: Vec<u8> = match kind.kind {
            FLOAT32 => input.values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            INT32 => input.values.iter().flat_map(|v| (*v as i32).to_le_bytes()).collect(),
            kind => return Err(format!("input {} is of type {kind}, expected float32 or int32", input.name)),
        };
        let buffer = self.buffer(Side::Input, port, kind)?;
        result::fill(buffer.api, buffer.handle, &bytes)?;
        Ok(buffer)
    }

    fn output_tensor(&self, name: &str, kind: i32, layout: &Layout, buffer: &OwnedHandle) -> ApiResult<Tensor> {
        let shape = layout.shape()?;
        let elements: usize = shape.iter().product();
        let read = |size| result::read(buffer.api, buffer.handle, elements * size);
        let values = match kind {
            FLOAT32 => foreign::numbers(&read(4)?, f32::from_le_bytes),
            INT32 => foreign::numbers(&read(4)?, |b| i32::from_le_bytes(b) as f32),
            BOOL => foreign::numbers(&read(1)?, |[b]: [u8; 1]| f32::from(b)),
            kind => return Err(format!("output {name} is of type {kind}, expected numbers")),
        };
        Ok(Tensor { name: name.to_owned(), shape, values })
    }

    fn call(&self, inputs: &[Tensor]) -> ApiResult<Vec<Tensor>> {
        let api = self.compiled.api;
        let sized = (0..self.inputs.len()).map(|port| self.sized(port, inputs)).collect::<ApiResult<Vec<_>>>()?;
        let layouts = result::outputs(api, self.compiled.handle, self.outputs.len())?;
        let given = sized
            .iter()
            .enumerate()
            .map(|(port, (input, kind))| self.input_buffer(port, input, kind))
            .collect::<ApiResult<Vec<_>>>()?;
        let types =
            self.outputs.iter().zip(&layouts).map(|((_, of), layout)| TensorType { kind: of.kind, layout: *layout });
        let room =
            types.enumerate().map(|(port, of)| self.buffer(Side::Output, port, &of)).collect::<ApiResult<Vec<_>>>()?;
        let handles = |of: &[OwnedHandle]| of.iter().map(|buffer| buffer.handle).collect::<Vec<_>>();
        result::run(api, self.compiled.handle, &handles(&given), &handles(&room))?;
        let outputs = self.outputs.iter().zip(layouts.iter().zip(&room));
        outputs.map(|((name, of), (layout, buffer))| self.output_tensor(name, of.kind, layout, buffer)).collect()
    }
}

impl Runner for CompiledModel {
    fn version(&self) -> String {
        format!("litert {}", self.runtime.version)
    }

    fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, ExportError> {
        self.call(inputs).map_err(|why| ExportError::refused(WHAT, &self.path, why))
    }
}
