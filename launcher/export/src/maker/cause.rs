//! The reason why a tool or a runtime failed, derived from its output and its exit.
//!
//! **Invariant:** pure. The last known line counts: earlier ones may be warnings.

use super::limits::Limits;
use crate::ExportError;
use nix::sys::signal::Signal;
use std::{os::unix::process::ExitStatusExt, path::PathBuf, process::ExitStatus};

/// Limit on the last lines that are shown of a tool without a log.
const TOLD_LINES: usize = 12;

/// Hint for a lack of memory.
const LESS: &str = "end what else takes memory, or export it for fewer rows of a call with --batch";

/// A tool or runtime at work on a file.
#[derive(Debug, Clone)]
pub struct Task {
    /// Name of the tool or runtime.
    pub what: &'static str,
    /// File on which it works.
    pub path: PathBuf,
    pub limits: Limits,
    /// Hint for a missing dependency.
    pub lacks: String,
    /// Another format, which has every operation.
    pub other: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    Disk,
    GpuMemory,
    Memory,
    Compiler,
    Code,
    Package,
    Missing,
    Operation,
}

/// Messages of each cause, from the system, compilers, Python, PyTorch, ExecuTorch, TensorRT, onnxruntime, LiteRT and TensorFlow.
const WORDS: [(Cause, &[&str]); 8] = [
    (Cause::Disk, &["No space left on device", "Disk quota exceeded"]),
    (
        Cause::GpuMemory,
        &["CUDA out of memory", "CUDA_ERROR_OUT_OF_MEMORY", "GPU memory", "cuMemAlloc_v2 of the NVIDIA driver gave 2"],
    ),
    (
        Cause::Memory,
        &[
            "MemoryError",
            "bad_alloc",
            "bad allocation",
            "annot allocate memory",
            "can't allocate memory",
            "memory allocation of",
            "out of memory",
            "Out of memory",
            "OutOfMemory",
            "virtual memory exhausted",
            "Killed signal terminated program",
        ],
    ),
    (
        Cause::Compiler,
        &[
            "InvalidCxxCompiler",
            "No working C++ compiler",
            "g++: not found",
            "g++: command not found",
            "directory: 'g++'",
            "exec 'cc1plus'",
            "cannot find 'ld'",
        ],
    ),
    (Cause::Code, &["C++ compile error", "CppCompileError"]),
    (Cause::Package, &["No module named '"]),
    (Cause::Missing, &["No such file or directory: '", ": cannot open shared object file", ": command not found"]),
    (
        Cause::Operation,
        &[
            "missing lowering",
            "missing decomposition",
            "is not in Core ATen",
            "is not Aten Canonical",
            "Missing out variants",
            "Missing operator",
            "No importer registered",
            "UNSUPPORTED_NODE",
            "Could not find an implementation for",
            "find op for builtin opcode",
            "Op type not registered",
        ],
    ),
];

/// Texts that precede the name of an operation.
const BEFORE_OPERATIONS: [&str; 6] =
    ["operator: ", "registered for op: ", "implementation for ", "opcode '", "registered '", "aten"];

impl Task {
    /// Builds the error for a refusal, in our words where the cause is known, else with `why` unchanged.
    pub fn refused(&self, why: String) -> ExportError {
        match self.known(&[why.as_str()]) {
            Some((why, hint)) => self.failed(why, hint),
            None => ExportError::refused(self.what, &self.path, why),
        }
    }

    /// Builds the error for a tool that gave up with a message of its own.
    pub(super) fn gave_up(&self, words: String) -> ExportError {
        let (why, hint) =
            self.known(&[words.as_str()]).unwrap_or_else(|| (format!("it gave up: {words}"), self.elsewhere()));
        self.failed(why, hint)
    }

    /// Builds the error for a process that ended, from its exit and its last lines.
    pub(super) fn ended(&self, status: Option<ExitStatus>, last: &[String], is_logged: bool) -> ExportError {
        let lines: Vec<&str> = last.iter().map(String::as_str).collect();
        if let Some((why, hint)) = self.known(&lines) {
            return self.failed(why, hint);
        }
        let signal = status.and_then(|status| Signal::try_from(status.signal()?).ok());
        let (ended, hint) = match signal {
            Some(Signal::SIGKILL) => {
                ("it was killed, as the system does where memory is short".to_owned(), LESS.to_owned())
            }
            Some(signal) => (format!("it crashed ({signal})"), self.elsewhere()),
            None => {
                (status.map_or("it ended".to_owned(), |status| format!("it ended with {status}")), self.elsewhere())
            }
        };
        let words = match lines.as_slice() {
            [] => " without any output".to_owned(),
            [.., last] if is_logged => format!(": {}", last.trim()),
            lines => {
                let last = &lines[lines.len().saturating_sub(TOLD_LINES)..];
                format!("; its last lines:\n  {}", last.join("\n  "))
            }
        };
        self.failed(ended + &words, hint)
    }

    pub(super) fn late(&self) -> ExportError {
        let why = format!("it was not done within {} s", self.limits.time.as_secs());
        self.failed(why, "try again when the machine has less to do, or export a smaller model".to_owned())
    }

    fn failed(&self, why: String, hint: String) -> ExportError {
        ExportError::Failed { what: self.what, path: self.path.clone(), why, hint, log: None }
    }

    /// Returns reason and hint for the last line with a known cause.
    fn known(&self, lines: &[&str]) -> Option<(String, String)> {
        let cause_of = |line: &str| WORDS.iter().find(|(_, all)| all.iter().any(|words| line.contains(words)));
        let found = lines.iter().enumerate().rev();
        let (at, cause) = found.filter_map(|(at, line)| Some((at, cause_of(line)?.0))).next()?;
        let text = lines[at..].join("\n");
        let dir = self.path.parent().unwrap_or(&self.path).display();
        Some(match cause {
            Cause::Disk => ("the disk is full".to_owned(), format!("make room where {dir} lies")),
            Cause::GpuMemory => ("the memory of the GPU is full".to_owned(), LESS.to_owned()),
            Cause::Memory => {
                let most = self.limits.memory_bytes >> 20;
                (format!("it needs more memory than the {most} MiB that it may have"), LESS.to_owned())
            }
            Cause::Compiler => (
                "there is no C++ compiler that works".to_owned(),
                "install g++, or let CXX name a compiler of C++17".to_owned(),
            ),
            Cause::Code => (
                "the C++ compiler did not take its code".to_owned(),
                "let CXX name a newer compiler, e.g. g++ 11".to_owned(),
            ),
            Cause::Package => {
                let name = quoted(&text).unwrap_or("that it needs");
                (format!("its Python has no package {name}"), self.lacks.clone())
            }
            Cause::Missing => (format!("it finds no {}", missing(&text)?), self.lacks.clone()),
            Cause::Operation => {
                let why = operation(&text).map_or("it lacks an operation of the model".to_owned(), |name| {
                    format!("it has no operation {name}")
                });
                (why, format!("export it in {}, which has every operation of a model", self.other))
            }
        })
    }

    fn elsewhere(&self) -> String {
        format!("another release of it may do, or another format, e.g. {}", self.other)
    }
}

/// Returns the first text between single quotes.
fn quoted(text: &str) -> Option<&str> {
    text.split('\'').nth(1)
}

/// Returns the program or library that was not found; `None` for a file of another kind.
fn missing(text: &str) -> Option<&str> {
    let line = text.lines().next()?;
    let name = match line.split_once("No such file or directory: ") {
        Some((_, name)) => quoted(name)?,
        None => {
            let before = line.split_once(": cannot open").or_else(|| line.split_once(": command not"))?.0;
            before.rsplit([' ', '\'']).next()?
        }
    };
    (!name.is_empty() && !name.contains('/')).then_some(name)
}

/// Returns the name of an operation, as its tool spells it.
fn operation(text: &str) -> Option<&str> {
    let from = BEFORE_OPERATIONS.iter().find_map(|before| {
        let at = text.find(before)?;
        Some(if *before == "aten" { at } else { at + before.len() })
    })?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || "_.:".contains(c);
    let name = text[from..].split(|c| !is_name(c)).next()?;
    let name = name.trim_end_matches([':', '.']);
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn task() -> Task {
        Task {
            what: "AOTInductor",
            path: "/out/m.pt2".into(),
            limits: Limits { time: Duration::from_secs(60), memory_bytes: 3 << 30 },
            lacks: "`enn export --prepare aoti` makes a Python for it".to_owned(),
            other: "pt2",
        }
    }

    fn told(words: &str, status: i32) -> String {
        let lines: Vec<String> = words.lines().map(str::to_owned).collect();
        task().ended(Some(ExitStatus::from_raw(status)), &lines, true).to_string()
    }

    #[test]
    fn what_is_known_of_a_failure_is_said_with_what_helps() {
        let lacks = "hint: `enn export --prepare aoti`";
        let less = "hint: end what else takes memory";
        let other = "hint: export it in pt2, which has every operation";
        for (words, why, hint) in [
            (
                "OSError: [Errno 28] No space left on device: '/out/x'",
                "the disk is full",
                "hint: make room where /out lies",
            ),
            ("C++ compile error\nOutput:\n/tmp/ccX.s: No space left on device", "the disk is full", "make room"),
            (
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
                "the memory of the GPU is full",
                less,
            ),
            ("MemoryError", "it needs more memory than the 3072 MiB that it may have", less),
            ("what():  std::bad_alloc", "it needs more memory", less),
            ("g++: fatal error: Killed signal terminated program cc1plus", "it needs more memory", less),
            (
                "torch._inductor.exc.InvalidCxxCompiler: No working C++ compiler found in torch._inductor.config.cpp.cxx: (None, 'g++')\n\nSet TORCHDYNAMO_VERBOSE=1 for the internal stack trace",
                "there is no C++ compiler that works",
                "hint: install g++, or let CXX name",
            ),
            (
                "C++ compile error\n\nOutput:\nx.cpp:3:10: error: expected",
                "the C++ compiler did not take",
                "hint: let CXX name a newer",
            ),
            (
                "ModuleNotFoundError: No module named 'torchao.quantization'",
                "its Python has no package torchao.quantization",
                lacks,
            ),
            ("FileNotFoundError: [Errno 2] No such file or directory: 'flatc'", "it finds no flatc", lacks),
            (
                "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory",
                "it finds no libcudart.so.12",
                lacks,
            ),
            (
                "torch._inductor.exc.LoweringException: missing lowering\n  target: aten.cumprod.default\n  args[0]: TensorBox(",
                "it has no operation aten.cumprod.default",
                other,
            ),
            (
                "SpecViolationError: Operator torch._ops.aten.frac.default is not Aten Canonical.",
                "it has no operation aten.frac.default",
                other,
            ),
            ("RuntimeError: Missing out variants: {'aten::frac'}", "it has no operation aten::frac", other),
            (
                "In node 3 with name: n and operator: NonZero (parse): UNSUPPORTED_NODE: assertion",
                "it has no operation NonZero",
                other,
            ),
            (
                "NOT_IMPLEMENTED : Could not find an implementation for Erf(13) node with name 'e'",
                "it has no operation Erf",
                other,
            ),
            ("Didn't find op for builtin opcode 'GELU' version '2'", "it has no operation GELU", other),
        ] {
            let said = told(words, 0x100);
            assert!(said.starts_with(&format!("AOTInductor failed on /out/m.pt2: {why}")), "{words}: {said}");
            assert!(said.contains(hint) && said.lines().count() == 2, "{words}: {said}");
            let refused = task().refused(words.to_owned()).to_string();
            assert!(refused.contains("failed on") && refused.contains(hint), "{words}: {refused}");
        }
    }

    #[test]
    fn what_is_not_known_is_told_by_how_it_ended_and_its_last_line() {
        let killed = told("", 9);
        assert!(
            killed.contains("it was killed, as the system does where memory is short without any output"),
            "{killed}"
        );
        let crashed = told("Fatal Python error: Segmentation fault", 11);
        assert!(crashed.contains("it crashed (SIGSEGV): Fatal Python error"), "{crashed}");
        let ended = told("first\nRuntimeError: no idea", 0x300);
        assert!(
            ended.contains("it ended with exit status: 3: RuntimeError: no idea\nhint: another release"),
            "{ended}"
        );
        // A file that is not there is neither a program nor a library.
        let file = told("FileNotFoundError: [Errno 2] No such file or directory: '/out/m.pt2'", 0x100);
        assert!(file.contains("it ended with exit status: 1: FileNotFoundError"), "{file}");
        // A warning before the last words is no cause.
        let warned = told("UserWarning: out of memory soon?\nModuleNotFoundError: No module named 'x'", 0x100);
        assert!(warned.contains("its Python has no package x"), "{warned}");
        let own = task().refused("old.aoti.pt2 is the code of another program".to_owned()).to_string();
        assert_eq!(own, "AOTInductor refused /out/m.pt2: old.aoti.pt2 is the code of another program");
    }
}
