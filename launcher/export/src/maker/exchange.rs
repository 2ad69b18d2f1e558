//! A runtime in a process of its own: rows and answers are exchanged in two files, and a crash of the runtime is an error here.
//!
//! ```text
//! enn ─► the job          runtime ─► {"ready": VERSION} | {"made": …} | {"refused": WHY}
//!     ─► {"inputs": FILE, "outputs": FILE, "shapes": […]}
//!                                 ─► {"answered": SHAPES} | {"refused": WHY}      once for every call
//!     ─► end of input             ─► ends
//! ```
//! Numbers are f32, little-endian, tensors one after the other.

use super::working::{Made, Reply, Working};
use crate::{ExportError, Ports, Runner, Tensor};
use crossbeam_channel::Receiver;
use enn_common::fs::{atomic, memory};
use serde_json::{Value, json};
use std::{
    fs::DirBuilder,
    io::{self, BufRead, Write},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    time::Duration,
};

/// A runtime that has loaded its artifact.
#[derive(Debug)]
pub struct Exchange {
    working: Working,
    version: String,
    ports: Ports,
    /// Directory for exchanged files; its own, as other runtimes may share the scratch directory.
    dir: PathBuf,
}

impl Exchange {
    /// Makes an exchange with a runtime that is ready. Exchanged files lie below `scratch`.
    pub(super) fn new(working: Working, version: String, ports: Ports, scratch: &Path) -> Result<Self, ExportError> {
        let dir = atomic::temporary(&scratch.join("runtime"));
        DirBuilder::new().mode(0o700).create(&dir).map_err(ExportError::io(&dir))?;
        Ok(Self { working, version, ports, dir })
    }
}

impl Runner for Exchange {
    fn version(&self) -> String {
        self.version.clone()
    }

    fn set_time(&mut self, time: Duration) {
        self.working.task.limits.time = time;
    }

    fn ended(&self) -> Receiver<()> {
        self.working.child.ended().clone()
    }

    fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, ExportError> {
        let mut bytes = Vec::new();
        let mut shapes = Vec::new();
        for name in &self.ports.inputs {
            let input = Tensor::named(inputs, name).map_err(|why| self.working.task.refused(why))?;
            bytes.extend(input.values.iter().flat_map(|value| value.to_le_bytes()));
            shapes.push(&input.shape);
        }
        let given = self.dir.join("inputs");
        let answered = self.dir.join("outputs");
        std::fs::write(&given, bytes).map_err(ExportError::io(&given))?;
        self.working.send(&json!({ "inputs": given, "outputs": answered, "shapes": shapes }))?;
        let shapes = match self.working.receive()? {
            Reply::Answered(shapes) if shapes.len() == self.ports.outputs.len() => shapes,
            other => {
                let why = format!("it sent {other:?}, expected {} outputs", self.ports.outputs.len());
                return Err(self.working.task.refused(why));
            }
        };
        let bytes = std::fs::read(&answered).map_err(ExportError::io(&answered))?;
        split(&self.ports.outputs, shapes, &bytes)
            .ok_or_else(|| self.working.task.refused("its outputs are cut".to_owned()))
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        // The owner of the directory above removes any leftover.
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Splits numbers into tensors of these names and shapes; `None` where there are more or fewer numbers.
fn split(names: &[String], shapes: Vec<Vec<usize>>, bytes: &[u8]) -> Option<Vec<Tensor>> {
    let mut values = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
    let tensor = |(name, shape): (&String, Vec<usize>)| {
        let count = shape.iter().try_fold(1_usize, |all, size| all.checked_mul(*size))?;
        let values: Vec<f32> = values.by_ref().take(count).collect();
        (values.len() == count).then(|| Tensor { name: name.clone(), shape, values })
    };
    let tensors = names.iter().zip(shapes).map(tensor).collect();
    if values.next().is_some() { None } else { tensors }
}

/// Runs the runtime's side: `open` opens the job's artifact, which answers until the input ends; or `make` makes an artifact from the
/// job's source. The job's memory limit is applied before either is called.
///
/// # Errors
/// A pipe closes too early, or a line is malformed.
pub fn serve(
    open: impl FnOnce(&Path) -> Result<Box<dyn Runner>, ExportError>,
    make: impl FnOnce(&Path, &Path) -> Result<Made, ExportError>,
    from: impl BufRead,
    mut to: impl Write,
) -> io::Result<()> {
    let mut lines = from.lines();
    let mut receive = || -> io::Result<Option<Value>> {
        lines.next().map(|line| serde_json::from_str(&line?).map_err(io::Error::other)).transpose()
    };
    let mut send = |line: Value| writeln!(to, "{line}").and_then(|()| to.flush());
    let Some(job) = receive()? else { return Ok(()) };
    job["memory_bytes"].as_u64().map_or(Ok(()), memory::limit)?;
    if let (Some(source), Some(out)) = (job["source"].as_str(), job["out"].as_str()) {
        return send(match make(Path::new(source), Path::new(out)) {
            Ok(Made { versions, about }) => json!({ "made": { "versions": versions, "about": about } }),
            Err(error) => json!({ "refused": error_text(error) }),
        });
    }
    let artifact = job["artifact"].as_str().ok_or_else(|| io::Error::other("a job without an artifact"))?;
    let names = job["inputs"].as_array().into_iter().flatten();
    let names: Vec<String> = names.filter_map(|name| Some(name.as_str()?.to_owned())).collect();
    let mut runner = match open(Path::new(artifact)) {
        Ok(runner) => runner,
        Err(error) => return send(json!({ "refused": error_text(error) })),
    };
    send(json!({ "ready": runner.version() }))?;
    while let Some(question) = receive()? {
        match answer(runner.as_mut(), &names, &question) {
            Ok(shapes) => send(json!({ "answered": shapes }))?,
            Err(why) => send(json!({ "refused": why }))?,
        }
    }
    Ok(())
}

/// Returns the part of an error that the other side does not know.
fn error_text(error: ExportError) -> String {
    match error {
        ExportError::Refused { why, .. } => why,
        other => other.to_string(),
    }
}

fn answer(runner: &mut dyn Runner, names: &[String], question: &Value) -> Result<Vec<Vec<usize>>, String> {
    let path = |key: &str| question[key].as_str().map(Path::new).ok_or_else(|| format!("a question without {key}"));
    let given = path("inputs")?;
    let answers = path("outputs")?;
    let bytes = std::fs::read(given).map_err(|error| format!("{}: {error}", given.display()))?;
    let size = |size: &Value| size.as_u64().and_then(|size| usize::try_from(size).ok());
    let shape = |shape: &Value| shape.as_array()?.iter().map(size).collect::<Option<Vec<usize>>>();
    let shapes: Option<Vec<Vec<usize>>> =
        question["shapes"].as_array().and_then(|shapes| shapes.iter().map(shape).collect());
    let shapes = shapes.filter(|shapes| shapes.len() == names.len()).ok_or("a question without its shapes")?;
    let inputs = split(names, shapes, &bytes).ok_or("the inputs are cut")?;
    let outputs = runner.run(&inputs).map_err(error_text)?;
    let bytes: Vec<u8> = outputs.iter().flat_map(|output| &output.values).flat_map(|v| v.to_le_bytes()).collect();
    std::fs::write(answers, bytes).map_err(|error| format!("{}: {error}", answers.display()))?;
    Ok(outputs.into_iter().map(|output| output.shape).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Twice what it is given; refuses an odd number of rows.
    struct Double;

    impl Runner for Double {
        fn version(&self) -> String {
            "double 1".to_owned()
        }

        fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, ExportError> {
            if inputs[0].shape[0] % 2 == 1 {
                return Err(ExportError::Refused { what: "double", path: "m".into(), why: "odd rows".to_owned() });
            }
            let values = inputs[0].values.iter().map(|v| 2.0 * v).collect();
            Ok(vec![Tensor { name: inputs[0].name.clone(), shape: inputs[0].shape.clone(), values }])
        }
    }

    #[test]
    fn a_runner_is_served_by_lines_and_files() {
        let dir = tempfile::tempdir().unwrap();
        let given = dir.path().join("given");
        let answers = dir.path().join("answers");
        let bytes: Vec<u8> = [1_f32, 2.0, 3.0, 4.0].iter().flat_map(|v| v.to_le_bytes()).collect();
        std::fs::write(&given, bytes).unwrap();
        let question = |shape: [usize; 2]| json!({"inputs": given, "outputs": answers, "shapes": [shape]});
        let job = json!({"artifact": "m", "inputs": ["x"]});
        let lines = format!("{job}\n{}\n{}\n{}\n", question([2, 2]), question([1, 4]), question([2, 3]));
        let mut said = Vec::new();
        let nothing = |_: &Path, _: &Path| Ok(Made::nothing());
        serve(|_| Ok(Box::new(Double)), nothing, lines.as_bytes(), &mut said).unwrap();
        let said: Vec<Value> =
            String::from_utf8(said).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(said[..2], [json!({"ready": "double 1"}), json!({"answered": [[2, 2]]})]);
        assert!(said[2]["refused"].as_str().unwrap().contains("odd rows"), "{said:?}");
        assert_eq!(said[3], json!({"refused": "the inputs are cut"}));
        let answer = split(&["x".to_owned()], vec![vec![4]], &std::fs::read(&answers).unwrap()).unwrap();
        assert_eq!(answer[0].values, [2.0, 4.0, 6.0, 8.0]);
        assert!(serve(|_| Ok(Box::new(Double)), nothing, &b"no job\n"[..], Vec::new()).is_err());
        serve(|_| Ok(Box::new(Double)), nothing, &b""[..], Vec::new()).unwrap();
    }
}
