//! An exported artifact at work: a worker without a run or a model, asked on its standard input and answering on its standard output
//! (`enn_common::wire::engine`). It ends when its input does; what brings libtorch down brings down this process only.

use super::serve::Scratch;
use crate::probe::libtorch_version;
use crate::session::{SessionError, boot};
use enn_common::{
    fs::memory,
    wire::{
        engine::{Engine, EngineQuestion, EngineReply, EngineSetup},
        message::PROTOCOL,
        serve::{get, put},
    },
};
use enn_core::backend::{
    artifact::{self, Artifact},
    torch::ShimError,
};
use std::{
    collections::{BTreeMap, HashSet},
    env::consts::ARCH,
    io::{BufRead, Write},
    path::Path,
};
use tch::{Device, Tensor};

/// A package says this of itself where its check of what it is given lets a single row pass; one that was compiled without refuses
/// that, though its code computes with it as with many: it is given the row twice.
const ONE_ROW: &str = "ENN_ONE_ROW";

/// Answers until `input` ends.
pub fn answer(mut input: impl BufRead, mut output: impl Write) -> Result<(), SessionError> {
    let done = answer_all(&mut input, &mut output);
    if let Err(error) = &done {
        let error = error.sentence();
        put(&mut output, &EngineReply::Failed { error }).map_err(SessionError::Pipe)?;
    }
    done
}

fn answer_all(input: &mut impl BufRead, output: &mut impl Write) -> Result<(), SessionError> {
    let Some(begin) = get::<EngineSetup>(input).map_err(SessionError::Pipe)? else { return Ok(()) };
    if begin.protocol != PROTOCOL {
        let error = format!("enn speaks protocol {}, this worker {PROTOCOL}", begin.protocol);
        return Err(SessionError::Refused { error });
    }
    let _scratch = Scratch(Some(begin.scratch));
    let unlimited = |error| failed(&begin.artifact, format!("the memory for it cannot be limited: {error}"));
    begin.memory_bytes.map_or(Ok(()), memory::limit).map_err(unlimited)?;
    tch::set_num_threads(begin.threads.max(1).cast_signed());
    let device = boot::named_device(&begin.device, 0)?;
    let path = begin.artifact.as_path();
    let refused = |error: ShimError| failed(path, error.message);
    let (artifact, about) = match begin.engine {
        Engine::Pt2 if device != Device::Cpu => {
            return Err(failed(path, "libtorch runs a PT2 archive on the CPU only".to_owned()));
        }
        Engine::Pt2 if !artifact::runs_archives() => {
            let why = format!("libtorch {} runs PT2 archives in Python only, expected 2.11", libtorch_version());
            return put(output, &EngineReply::Unavailable { why }).map_err(SessionError::Pipe);
        }
        Engine::Pt2 => (Artifact::archive(path), BTreeMap::new()),
        Engine::Aoti => {
            let about = artifact::about(path).map_err(refused)?;
            fits(&about, device, &processor()).map_err(|why| failed(path, why))?;
            (Artifact::package(path, device), about)
        }
    };
    let mut artifact = artifact.map_err(refused)?;
    let refuses_one = begin.engine == Engine::Aoti && !about.contains_key(ONE_ROW);
    put(output, &EngineReply::Ready { version: libtorch_version(), about }).map_err(SessionError::Pipe)?;
    while let Some(question) = get::<EngineQuestion>(input).map_err(SessionError::Pipe)? {
        let inputs = read(&question.inputs, device)?;
        let outputs = if refuses_one && inputs.iter().any(|input| input.size().first() == Some(&1)) {
            let twice = inputs.iter().map(|input| Tensor::f_cat(&[input, input], 0)).collect::<Result<Vec<_>, _>>()?;
            let outputs = artifact.run(&twice.iter().collect::<Vec<_>>()).map_err(refused)?;
            outputs.iter().map(half).collect::<Result<Vec<_>, _>>()?
        } else {
            artifact.run(&inputs.iter().collect::<Vec<_>>()).map_err(refused)?
        };
        write(&outputs, &question.outputs)?;
        put(output, &EngineReply::Answered).map_err(SessionError::Pipe)?;
    }
    Ok(())
}

fn failed(path: &Path, message: String) -> SessionError {
    SessionError::Artifact { path: path.to_owned(), message }
}

/// Linux's names for the abilities of the first processor; empty where it names none.
fn processor() -> HashSet<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = text.lines().find_map(|line| line.strip_prefix("flags")?.split_once(':'));
    flags.map_or_else(HashSet::new, |(_, flags)| flags.split_whitespace().map(str::to_owned).collect())
}

/// Whether code that a package holds can run: on another processor it would end in an illegal instruction, and on another device it
/// would take addresses of one for those of the other.
fn fits(about: &BTreeMap<String, String>, device: Device, abilities: &HashSet<String>) -> Result<(), String> {
    let wanted = about.get("AOTI_DEVICE_KEY").map_or("cpu", String::as_str);
    let found = kind(device);
    if wanted != found {
        return Err(format!(
            "it was compiled for {wanted} and was to run on {found}\nhint: export it with --device {found}"
        ));
    }
    let machine = about.get("AOTI_MACHINE").map_or(ARCH, String::as_str);
    if machine != ARCH {
        return Err(format!("it was compiled for {machine}, this machine is {ARCH}"));
    }
    let wanted = about.get("AOTI_CPU_ISA").map_or("", String::as_str);
    let has = |ability: &str| abilities.contains(ability);
    let lacking = wanted.split_whitespace().filter(|set| match *set {
        "AVX512" => !["avx512f", "avx512bw", "avx512dq", "avx512vl"].into_iter().all(has),
        "INVALID_VEC_ISA" => false,
        other => !has(&other.to_lowercase()),
    });
    let lacking: Vec<&str> = lacking.collect();
    if lacking.is_empty() || abilities.is_empty() {
        return Ok(());
    }
    let lacking = lacking.join(", ");
    Err(format!(
        "it was compiled for {wanted}, this processor lacks {lacking}\n  hint: compile it on a machine like this one"
    ))
}

const fn kind(device: Device) -> &'static str {
    match device {
        Device::Cuda(_) => "cuda",
        _ => "cpu",
    }
}

/// The first half of the rows of what is said of rows that were given twice.
fn half(output: &Tensor) -> Result<Tensor, tch::TchError> {
    match output.size().first() {
        Some(rows) => output.f_narrow(0, 0, rows / 2)?.f_contiguous(),
        None => Ok(output.shallow_clone()),
    }
}

/// Reads tensors whose names are the numbers of their ports.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_for_another_processor_is_refused_before_it_runs() {
        let abilities = |text: &str| text.split_whitespace().map(str::to_owned).collect::<HashSet<_>>();
        let about = |isa: &str| BTreeMap::from([("AOTI_CPU_ISA".to_owned(), isa.to_owned())]);
        let large = abilities("avx2 avx512f avx512bw avx512dq avx512vl avx512_vnni amx_tile");
        assert_eq!(fits(&about("AVX512 AVX512_VNNI AMX_TILE"), Device::Cpu, &large), Ok(()));
        let said = fits(&about("AVX512 AVX512_VNNI AMX_TILE"), Device::Cpu, &abilities("avx2 avx512f avx512_vnni"))
            .unwrap_err();
        assert!(said.contains("this processor lacks AVX512, AMX_TILE\n"), "{said}");
        assert_eq!(fits(&about("AVX2"), Device::Cpu, &abilities("avx2")), Ok(()));
        assert_eq!(fits(&BTreeMap::new(), Device::Cpu, &abilities("avx2")), Ok(()));
        let other = BTreeMap::from([("AOTI_MACHINE".to_owned(), "z80".to_owned())]);
        assert!(
            fits(&other, Device::Cpu, &large).unwrap_err().starts_with("it was compiled for z80, this machine is ")
        );
    }

    #[test]
    fn a_row_that_was_given_twice_is_answered_once() {
        let rows = Tensor::from_slice2(&[[1.0f32, 2.0], [1.0, 2.0]]);
        let state = Tensor::from_slice(&[3.0f32, 4.0, 3.0, 4.0]);
        assert_eq!(Vec::<f32>::try_from(half(&rows).unwrap().view([-1])).unwrap(), [1.0, 2.0]);
        assert_eq!(Vec::<f32>::try_from(half(&state).unwrap()).unwrap(), [3.0, 4.0]);
    }

    #[test]
    fn code_for_another_device_is_refused_before_it_runs() {
        let about = |device: &str| BTreeMap::from([("AOTI_DEVICE_KEY".to_owned(), device.to_owned())]);
        let none = HashSet::new();
        assert_eq!(fits(&about("cuda"), Device::Cuda(0), &none), Ok(()));
        assert_eq!(fits(&about("cpu"), Device::Cpu, &none), Ok(()));
        let said = fits(&about("cuda"), Device::Cpu, &none).unwrap_err();
        assert_eq!(said, "it was compiled for cuda and was to run on cpu\nhint: export it with --device cpu");
        assert!(fits(&about("cpu"), Device::Cuda(0), &none).unwrap_err().contains("for cpu and was to run on cuda"));
    }
}
