//! Text generation by the model, byte by byte.

use crate::{error::GptError, model::Gpt};
use enn_worker::{
    autograd::Cx,
    functional as f,
    params::Params,
    tch::{self, Tensor},
};

/// Sampling temperature; below 1 likely bytes become likelier.
const TEMPERATURE: f64 = 0.8;
/// Number of byte ids, the first of every vocabulary here.
const BYTES: i64 = 256;

/// Generates `count` bytes after `prompt` (at least one byte); returns them without the prompt.
pub(crate) fn text(model: &Gpt, params: &Params, prompt: &[u8], count: u64, seed: u64) -> Result<Vec<u8>, GptError> {
    tch::manual_seed(seed as i64);
    let mut ids: Vec<i64> = prompt.iter().map(|&byte| i64::from(byte)).collect();
    for _ in 0..count {
        let seen = &ids[ids.len().saturating_sub(model.size().context as usize)..];
        let cx = Cx::eval(params);
        let window = cx.input(Tensor::f_from_slice(seen)?.f_view([1, -1])?.f_to_device(cx.device())?);
        let logits = model.forward(&cx, &window)?;
        let last = f::narrow(&cx, &logits, 1, seen.len() as i64 - 1, 1)?;
        let last = f::narrow(&cx, &last, 2, 0, BYTES.min(model.size().vocabulary))?;
        let chances = f::softmax(&cx, &f::scale(&cx, &last, 1.0 / TEMPERATURE)?, -1)?;
        ids.push(chances.raw().f_view([-1])?.f_multinomial(1, true)?.f_int64_value(&[0])?);
    }
    Ok(ids[prompt.len()..].iter().map(|&id| id as u8).collect())
}
