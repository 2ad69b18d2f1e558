//! A LiteRT model at work.

use super::{
    WHAT, WHEEL,
    result::{self, Said, Side},
    sys::{Functions, Handle, Layout, TensorType},
};
use crate::{ExportError, Runner, Tensor, foreign};
use std::{
    fmt,
    path::{Path, PathBuf},
};

/// `LiteRtElementType`.
const FLOAT32: i32 = 1;
const INT32: i32 = 2;
const BOOL: i32 = 6;

/// LiteRT's library.
#[derive(Clone)]
pub struct LiteRt {
    api: &'static Functions,
    /// Lives as long as the library.
    environment: Handle,
    version: String,
}

impl fmt::Debug for LiteRt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LiteRt").field(&self.version).finish()
    }
}

impl LiteRt {
    /// Loads `libLiteRt.so`, for as long as this process lives. It does not tell its version; the wheel around it does.
    ///
    /// # Errors
    /// When it is not LiteRT's library, or an older one.
    pub fn load(library: &Path) -> Result<Self, ExportError> {
        let unavailable = |error: String| ExportError::Unavailable {
            what: WHAT,
            why: format!("{}: {error}", library.display()),
            hint: WHEEL.hint(),
        };
        let api = Functions::load(library).map_err(unavailable)?;
        let environment = result::environment(api).map_err(unavailable)?;
        let version = WHEEL.version(library).unwrap_or_else(|| "of unknown version".to_owned());
        Ok(Self { api, environment, version })
    }

    /// Loads a `.tflite` file.
    ///
    /// # Errors
    /// What LiteRT says of it.
    pub fn open(&self, path: &Path) -> Result<Compiled, ExportError> {
        let refused = |why| ExportError::Refused { what: WHAT, path: path.to_owned(), why };
        let place = path.to_str().ok_or_else(|| refused("its path is no UTF-8".to_owned()))?;
        let api = self.api;
        let own = |handle: Said<Handle>, destroy| handle.map(|handle| Owned { api, handle, destroy }).map_err(refused);
        let model = own(result::model(api, self.environment, place), result::destroy_model)?;
        let inputs = result::ports(api, model.handle, Side::Input).map_err(refused)?;
        let outputs = result::ports(api, model.handle, Side::Output).map_err(refused)?;
        let compiled = result::compiled(api, self.environment, model.handle);
        let compiled = own(compiled, result::destroy_compiled)?;
        Ok(Compiled { runtime: self.clone(), path: path.to_owned(), inputs, outputs, compiled, _model: model })
    }
}

/// A handle that is destroyed with its owner.
struct Owned {
    api: &'static Functions,
    handle: Handle,
    destroy: fn(&Functions, Handle),
}

impl Drop for Owned {
    fn drop(&mut self) {
        (self.destroy)(self.api, self.handle);
    }
}

/// A loaded model. Its fields go in their order: what was compiled before the model.
pub struct Compiled {
    runtime: LiteRt,
    path: PathBuf,
    inputs: Vec<(String, TensorType)>,
    outputs: Vec<(String, TensorType)>,
    compiled: Owned,
    _model: Owned,
}

impl fmt::Debug for Compiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compiled").field("runtime", &self.runtime).field("path", &self.path).finish_non_exhaustive()
    }
}

impl Compiled {
    fn buffer(&self, side: Side, port: usize, kind: &TensorType) -> Said<Owned> {
        let api = self.compiled.api;
        let handle = result::buffer(api, (self.runtime.environment, self.compiled.handle), (side, port), kind)?;
        Ok(Owned { api, handle, destroy: result::destroy_buffer })
    }

    /// Bytes of an input, whose sizes the model takes over.
    fn sized<'t>(&self, port: usize, inputs: &'t [Tensor]) -> Said<(&'t Tensor, TensorType)> {
        let (name, TensorType { kind, .. }) = &self.inputs[port];
        let input = inputs.iter().find(|input| input.name == *name);
        let input = input.ok_or_else(|| format!("input {name} was not given"))?;
        foreign::agrees(input)?;
        let sizes =
            input.shape.iter().map(|size| i32::try_from(*size).map_err(|_| format!("input {name} has {size} rows")));
        let sizes = sizes.collect::<Said<Vec<i32>>>()?;
        result::resize(self.compiled.api, self.compiled.handle, port, &sizes)?;
        Ok((input, TensorType { kind: *kind, layout: Layout::of(&sizes)? }))
    }

    fn given(&self, port: usize, (input, kind): &(&Tensor, TensorType)) -> Said<Owned> {
        let bytes: Vec<u8> = match kind.kind {
            FLOAT32 => input.values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            INT32 => input.values.iter().flat_map(|v| (*v as i32).to_le_bytes()).collect(),
            kind => return Err(format!("input {} is of type {kind}, expected float32 or int32", input.name)),
        };
        let buffer = self.buffer(Side::Input, port, kind)?;
        result::fill(buffer.api, buffer.handle, &bytes)?;
        Ok(buffer)
    }

    fn answered(&self, name: &str, kind: i32, (layout, buffer): (&Layout, &Owned)) -> Said<Tensor> {
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

    fn called(&self, inputs: &[Tensor]) -> Said<Vec<Tensor>> {
        let api = self.compiled.api;
        let sized = (0..self.inputs.len()).map(|port| self.sized(port, inputs)).collect::<Said<Vec<_>>>()?;
        let layouts = result::outputs(api, self.compiled.handle, self.outputs.len())?;
        let given = sized.iter().enumerate().map(|(port, of)| self.given(port, of)).collect::<Said<Vec<_>>>()?;
        let types =
            self.outputs.iter().zip(&layouts).map(|((_, of), layout)| TensorType { kind: of.kind, layout: *layout });
        let room =
            types.enumerate().map(|(port, of)| self.buffer(Side::Output, port, &of)).collect::<Said<Vec<_>>>()?;
        let handles = |of: &[Owned]| of.iter().map(|buffer| buffer.handle).collect::<Vec<_>>();
        result::run(api, self.compiled.handle, &handles(&given), &handles(&room))?;
        let outputs = self.outputs.iter().zip(layouts.iter().zip(&room));
        outputs.map(|((name, of), (layout, buffer))| self.answered(name, of.kind, (layout, buffer))).collect()
    }
}

impl Runner for Compiled {
    fn version(&self) -> String {
        format!("litert {}", self.runtime.version)
    }

    fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, ExportError> {
        self.called(inputs).map_err(|why| ExportError::Refused { what: WHAT, path: self.path.clone(), why })
    }
}
