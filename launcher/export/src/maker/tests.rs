//! The contract with tools, by scripts that need nothing but Python; what the tools themselves make is tested by
//! tests/tests/pytorch/makers.rs.

use super::{
    Limits, Pin, log_of,
    prepare::{Backend, Installers, prepare, prepared},
    tool::Tool,
    working::Reply,
};
use crate::ExportError;
use nix::{sys::signal::kill, unistd::Pid};
use serde_json::json;
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

const LIMITS: Limits = Limits { time: Duration::from_secs(120), memory_bytes: 8 << 30 };

const fn tool(script: &'static str, pins: &'static [Pin]) -> Tool {
    Tool { what: "the tool", script, pins, backend: Backend::Aoti, other: "pt2" }
}

fn python() -> &'static Path {
    Path::new("python3")
}

fn make(script: &'static str, limits: Limits) -> (Result<super::Made, ExportError>, Vec<PathBuf>) {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    let path = dir.path().join("made");
    fs::write(&source, "contents").unwrap();
    let made = tool(script, &[]).make(python(), &source, &path, json!({ "device": "cpu" }), limits);
    fs::remove_file(&source).unwrap();
    let mut left: Vec<PathBuf> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    if left == [path.clone()] {
        assert_eq!(fs::read_to_string(&path).unwrap(), "contents of cpu");
        left.clear();
    }
    (made, left)
}

#[test]
fn a_tool_makes_a_file_and_what_libraries_print_is_no_answer() {
    let script = r#"
print("noise")
os.system("echo more noise")
assert sys.stdin.read() == "" and os.environ["PATH"].startswith(os.path.dirname(sys.executable))
with open(job["out"], "w") as file:
    file.write(open(job["source"]).read() + " of " + job["device"])
say({"made": {"versions": versions, "about": {"isa": "none"}}})
"#;
    let (made, left) = make(script, LIMITS);
    let made = made.unwrap();
    assert_eq!(made.about["isa"], "none");
    assert!(made.versions["python"].starts_with("3."));
    assert_eq!(left, Vec::<PathBuf>::new());
}

/// What a tool of this script is said to have failed for, and its log.
fn failed(script: &'static str, limits: Limits) -> (String, String) {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    let path = dir.path().join("made");
    let error = tool(script, &[]).make(python(), &source, &path, json!({}), limits).unwrap_err().to_string();
    let log = log_of(&path);
    let said = fs::read_to_string(&log).unwrap_or_default();
    assert_eq!(error.contains(&format!("; its output is in {}\nhint: ", log.display())), log.exists(), "{error}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), usize::from(log.exists()), "nothing else is left");
    (error, said)
}

#[test]
fn a_tool_that_fails_tells_why_and_leaves_its_words() {
    let script = r#"
open(job["out"], "w").write("half")
for number in range(100):
    print("line", number)
raise RuntimeError("no way to frobnicate")
"#;
    let (error, said) = failed(script, LIMITS);
    assert!(error.starts_with("the tool failed on ") && error.lines().count() == 2, "{error}");
    assert!(error.contains("it ended with exit status: 1: RuntimeError: no way to frobnicate; its output"), "{error}");
    assert!(said.starts_with("line 0\nline 1\n") && said.ends_with("RuntimeError: no way to frobnicate\n"), "{said}");
}

/// What makers do when they cannot go on, as far as it can be played, and what is said of it.
const FAILURES: [(&str, &str, &str); 9] = [
    (
        "class InvalidCxxCompiler(RuntimeError): pass\nraise InvalidCxxCompiler('No working C++ compiler found')",
        "there is no C++ compiler that works",
        "install g++, or let CXX",
    ),
    (
        "import subprocess\nsubprocess.run(['g++-of-enn'], shell=True, check=False)\nsubprocess.run(['g++-of-enn'])",
        "it finds no g++-of-enn",
        "--prepare aoti",
    ),
    ("import no_such_package", "its Python has no package no_such_package", "`enn export --prepare aoti` makes"),
    ("open('/dev/full', 'w').write('x' * 65536)", "the disk is full", "make room where /"),
    ("data = bytearray(1 << 40)", "it needs more memory than the 8192 MiB", "--batch"),
    ("print('terminate called after std::bad_alloc', flush=True)\nos.abort()", "it needs more memory", "--batch"),
    ("os.kill(os.getpid(), 9)", "it was killed, as the system does where memory is short", "--batch"),
    ("os.kill(os.getpid(), 11)", "it crashed (SIGSEGV)", "another release"),
    (
        "raise RuntimeError('missing lowering\\n  target: aten.frac.default\\n  args[0]: x')",
        "it has no operation aten.frac.default",
        "export it in pt2",
    ),
];

#[test]
fn each_way_to_fail_is_told_in_a_sentence_of_ours_with_what_helps() {
    for (script, why, hint) in FAILURES {
        let (error, said) = failed(script, LIMITS);
        assert!(error.contains(&format!(": {why}")), "{script}: {error}\n{said}");
        let told = error.split_once("\nhint: ").unwrap().1;
        assert!(told.contains(hint), "{script}: {error}");
    }
    // What a maker gives up with itself, and a limit of time.
    let script = "print('[TRT] error'); say({'gave_up': 'No importer registered for op: NonZero'})";
    let (error, said) = failed(script, LIMITS);
    assert!(error.contains(": it has no operation NonZero; its output") && said.contains("[TRT] error"), "{error}");
    let (error, _) = failed("say({'gave_up': 'tactics are out'})", LIMITS);
    assert!(error.contains(": it gave up: tactics are out\nhint: another release"), "{error}");
    let script = "print('at work', flush=True)\nimport time\ntime.sleep(1000)";
    let (error, said) = failed(script, Limits { time: Duration::from_secs(5), ..LIMITS });
    assert!(error.contains(": it was not done within 5 s; its output") && said == "at work\n", "{error}: {said}");
}

#[test]
fn a_tool_that_takes_too_long_ends_with_everything_it_started() {
    let script = r#"
import subprocess
child = subprocess.Popen(["sleep", "1000"])
open(job["source"] + ".pid", "w").write(str(child.pid))
say({"ready": "1"})
child.wait()
"#;
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    let tool = tool(script, &[]);
    let limits = Limits { time: LIMITS.time, ..LIMITS };
    let mut working = tool.start(python(), &source, None, json!({ "source": source }), limits).unwrap();
    assert!(matches!(working.receive(), Ok(Reply::Ready(_))));
    let pid: i32 = fs::read_to_string(dir.path().join("source.pid")).unwrap().parse().unwrap();
    kill(Pid::from_raw(pid), None).unwrap();
    working.task.limits.time = Duration::from_millis(100);
    let error = working.receive().unwrap_err().to_string();
    assert!(error.contains("no answer within 0 s\nhint: "), "{error}");
    drop(working);
    gone(pid);
}

/// Waits until a process is gone or a zombie that waits for init.
fn gone(pid: i32) {
    let stat = format!("/proc/{pid}/stat");
    while fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z")) {
        std::thread::yield_now();
    }
}

#[test]
fn a_tool_ends_when_nobody_listens() {
    let script = r#"
open(job["source"] + ".pid", "w").write(str(os.getpid()))
say({"ready": "1"})
import time
while True: time.sleep(1)
"#;
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    let tool = tool(script, &[]);
    let mut working = tool.start(python(), &source, None, json!({ "source": source }), LIMITS).unwrap();
    assert!(matches!(working.receive(), Ok(Reply::Ready(_))));
    let pid = fs::read_to_string(dir.path().join("source.pid")).unwrap().parse().unwrap();
    // As when its owner was killed: the pipe closes, and nobody ends it.
    working.child.hang_up();
    gone(pid);
}

#[test]
fn a_python_without_the_packages_is_unavailable_and_says_how_to_get_them() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    let start = |tool: &Tool, python: &Path| {
        let mut working = tool.start(python, &source, None, json!({}), LIMITS)?;
        working.receive()
    };
    let lacking = tool("say({'ready': '1'})", &[("no-such-package-of-enn", "1.0")]);
    let error = start(&lacking, python()).unwrap_err().to_string();
    assert!(
        error.starts_with("the tool is not available: ") && error.contains("has no no-such-package-of-enn 1.0"),
        "{error}"
    );
    assert!(error.contains("hint: `enn export --prepare aoti` makes"), "{error}");
    let error = start(&lacking, Path::new("/nowhere/python")).unwrap_err().to_string();
    assert!(error.contains("/nowhere/python: No such file"), "{error}");
}

/// An installer that makes what is asked, fails where a file `fail` lies beside it, and counts its calls.
fn installer(dir: &Path) -> PathBuf {
    let path = dir.join("uv");
    let text = "#!/bin/sh\necho \"$@\" >> \"$0.calls\"\necho installing\n[ -e \"$0.fail\" ] && [ \"$1\" = pip ] && exit 3\n\
                [ \"$1\" = venv ] && mkdir -p \"$5/bin\" && touch \"$5/bin/python\"\nexit 0\n";
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    path
}

#[test]
fn an_environment_is_whole_or_absent_and_made_once() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("envs");
    let uv = installer(dir.path());
    let installers = Installers { uv: Some(&uv), python: Path::new("python3") };
    let calls = || fs::read_to_string(dir.path().join("uv.calls")).unwrap().lines().count();
    fs::write(dir.path().join("uv.fail"), "").unwrap();
    let error = prepare(Backend::ExecuTorch, &root, installers, &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("ended with exit status: 3:\n  installing"), "{error}");
    assert_eq!(prepared(Backend::ExecuTorch, &root), None);
    assert!(!root.join("executorch-1.2.0").exists());
    fs::remove_file(dir.path().join("uv.fail")).unwrap();
    let mut said = Vec::new();
    let made = prepare(Backend::ExecuTorch, &root, installers, &mut |line| said.push(line.to_owned())).unwrap();
    assert_eq!(made, root.join("executorch-1.2.0/bin/python"));
    assert_eq!(said, ["installing", "installing"]);
    assert_eq!(calls(), 4);
    assert_eq!(prepare(Backend::ExecuTorch, &root, installers, &mut |_| {}).unwrap(), made);
    assert_eq!((prepared(Backend::ExecuTorch, &root), calls()), (Some(made), 4));
    let asked = fs::read_to_string(dir.path().join("uv.calls")).unwrap();
    let pinned = root.join("executorch-1.2.0/pinned.txt");
    let wanted = format!("--require-hashes --requirement {} --only-binary :all:", pinned.display());
    assert!(asked.lines().last().unwrap().ends_with(&wanted), "{asked}");
    assert!(fs::read_to_string(pinned).unwrap().contains("executorch==1.2.0 \\\n    --hash=sha256:"));
    assert_eq!(fs::metadata(&root).unwrap().permissions().mode() & 0o777, 0o700);
}
