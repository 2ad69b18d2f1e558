//! The state of a server's streams from call to call, as rows of numbers that the server keeps: names, shapes and types stay here.

use crate::session::SessionError;
use enn_model::block::StreamState;
use tch::{Device, Kind, Tensor};

/// How the numbers of a row become a state.
pub(crate) struct StreamLayout {
    /// Name, sizes behind the row, and type of each tensor, in the order of their numbers.
    parts: Vec<(String, Vec<i64>, Kind)>,
    device: Device,
}

impl StreamLayout {
    /// By the state after some call.
    pub(crate) fn of(after: &StreamState, device: Device) -> Self {
        let part = |(name, raw): (String, Tensor)| (name, raw.size()[1..].to_vec(), raw.kind());
        Self { parts: after.named().into_iter().map(part).collect(), device }
    }

    /// Numbers of a row; 0 where the streams have no state.
    pub(crate) fn numbers(&self) -> usize {
        self.parts.iter().map(|(_, sizes, _)| sizes.iter().product::<i64>() as usize).sum()
    }

    /// The state of `rows` streams, whose numbers stand one behind the other.
    pub(crate) fn state(&self, numbers: &[f32], rows: usize) -> Result<StreamState, SessionError> {
        let all = Tensor::f_from_slice(numbers)?.f_view([rows as i64, -1])?;
        let mut at = 0;
        let mut named = std::collections::BTreeMap::new();
        for (name, sizes, kind) in &self.parts {
            let own = sizes.iter().product::<i64>();
            let shape = [&[rows as i64], sizes.as_slice()].concat();
            let part = all.f_narrow(1, at, own)?.f_reshape(shape.as_slice())?;
            named.insert(name.clone(), part.f_to_kind(*kind)?.f_to_device(self.device)?);
            at += own;
        }
        Ok(StreamState::restore(&named).expect("names that a state gave itself"))
    }

    /// The numbers of a state, stream by stream.
    pub(crate) fn numbers_of(&self, after: &StreamState) -> Result<Vec<f32>, SessionError> {
        let flat = |(_, raw): &(String, Tensor)| raw.f_flatten(1, -1)?.f_to_kind(Kind::Float)?.f_to_device(Device::Cpu);
        let parts = after.named().iter().map(flat).collect::<Result<Vec<Tensor>, _>>()?;
        Ok(Vec::<f32>::try_from(Tensor::f_cat(&parts, 1)?.f_contiguous()?.f_view([-1])?)?)
    }
}
