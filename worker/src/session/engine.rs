//! An exported artifact at work: a worker without a run or a model, asked on its standard input and answering on its standard output
//! (`enn_common::wire::engine`). It ends when its input does; what brings libtorch down brings down this process only.

use super::{SessionError, boot, serve::Scratch};
use crate::{
    backend::{artifact::Artifact, torch::ShimError},
    probe::libtorch_version,
};
use enn_common::wire::{
    engine::{Begin, Engine, Question, Reply},
    message::PROTOCOL,
    serve::{get, put},
};
use std::{
    collections::BTreeMap,
    io::{BufRead, Write},
    path::Path,
};
use tch::{Device, Tensor};

/// Answers until `input` ends.
///
/// # Errors
/// What ended it early; whoever asks has been told.
pub fn answer(mut input: impl BufRead, mut output: impl Write) -> Result<(), SessionError> {
    let done = answer_all(&mut input, &mut output);
    if let Err(error) = &done {
        let error = error.sentence();
        put(&mut output, &Reply::Failed { error }).map_err(SessionError::Pipe)?;
    }
    done
}

fn answer_all(input: &mut impl BufRead, output: &mut impl Write) -> Result<(), SessionError> {
    let Some(begin) = get::<Begin>(input).map_err(SessionError::Pipe)? else { return Ok(()) };
    if begin.protocol != PROTOCOL {
        let error = format!("enn speaks protocol {}, this worker {PROTOCOL}", begin.protocol);
        return Err(SessionError::Refused { error });
    }
    let _scratch = Scratch(Some(begin.scratch));
    tch::set_num_threads(begin.threads.max(1).cast_signed());
    let device = boot::named_device(&begin.device, 0)?;
    let path = begin.artifact.as_path();
    let refused = |error: ShimError| failed(path, error.message);
    let loaded = match begin.engine {
        Engine::Pt2 if device != Device::Cpu => {
            return Err(failed(path, "libtorch runs a PT2 archive on the CPU only".to_owned()));
        }
        Engine::Pt2 => Artifact::archive(path),
        Engine::Aoti => Artifact::package(path, device),
    };
    let mut artifact = loaded.map_err(refused)?;
    let ready = Reply::Ready { version: libtorch_version(), about: artifact.about() };
    put(output, &ready).map_err(SessionError::Pipe)?;
    while let Some(question) = get::<Question>(input).map_err(SessionError::Pipe)? {
        let inputs = read(&question.inputs, device)?;
        let inputs: Vec<&Tensor> = inputs.iter().collect();
        write(&artifact.run(&inputs).map_err(refused)?, &question.outputs)?;
        put(output, &Reply::Answered).map_err(SessionError::Pipe)?;
    }
    Ok(())
}

fn failed(path: &Path, message: String) -> SessionError {
    SessionError::Artifact { path: path.to_owned(), message }
}

/// Tensors by number.
fn read(path: &Path, device: Device) -> Result<Vec<Tensor>, SessionError> {
    let wrong = |message: String| failed(path, message);
    let found = Tensor::read_safetensors(path).map_err(|error| wrong(error.to_string()))?;
    let mut by_number = BTreeMap::new();
    for (name, tensor) in found {
        let number: usize =
            name.parse().map_err(|_| wrong(format!("a tensor {name}, expected the number of a port")))?;
        by_number.insert(number, tensor.to_device(device));
    }
    if !by_number.keys().copied().eq(0..by_number.len()) {
        return Err(wrong("ports that are not numbered from 0 on".to_owned()));
    }
    Ok(by_number.into_values().collect())
}

fn write(outputs: &[Tensor], path: &Path) -> Result<(), SessionError> {
    let named: Vec<(String, Tensor)> = outputs
        .iter()
        .enumerate()
        .map(|(number, tensor)| (number.to_string(), tensor.to_device(Device::Cpu)))
        .collect();
    Tensor::write_safetensors(&named, path).map_err(|error| failed(path, error.to_string()))
}
