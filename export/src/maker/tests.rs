//! The contract with tools, by scripts that need nothing but Python; what the tools themselves make is tested by
//! tests/tests/makers.rs.

use super::{
    Limits, Pin, Reply, Tool,
    prepare::{Backend, Installers, prepare, prepared},
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
    Tool { what: "the tool", script, pins, backend: Backend::Aoti }
}

fn python() -> &'static Path {
    Path::new("python3")
}

fn make(script: &'static str, limits: Limits) -> (Result<super::Made, ExportError>, Vec<PathBuf>) {
    let dir = tempfile::tempdir().unwrap();
    let (source, path) = (dir.path().join("source"), dir.path().join("made"));
    fs::write(&source, "contents").unwrap();
    let made = tool(script, &[]).make(python(), (&source, &path), json!({ "device": "cpu" }), limits);
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

#[test]
fn a_tool_that_fails_tells_its_last_lines_and_leaves_nothing() {
    let script = r#"
open(job["out"], "w").write("half")
for number in range(100):
    print("line", number)
raise RuntimeError("no way to lower aten.frobnicate")
"#;
    let (made, left) = make(script, LIMITS);
    let error = made.unwrap_err().to_string();
    assert!(error.starts_with("the tool refused") && error.contains("no way to lower aten.frobnicate"), "{error}");
    assert!(!error.contains("line 50") && error.lines().count() < 16, "{error}");
    assert_eq!(left, Vec::<PathBuf>::new());
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
    let mut working = tool.start(python(), &source, json!({ "source": source }), limits).unwrap();
    assert!(matches!(tool.hear(&mut working), Ok(Reply::Ready(_))));
    let pid: i32 = fs::read_to_string(dir.path().join("source.pid")).unwrap().parse().unwrap();
    kill(Pid::from_raw(pid), None).unwrap();
    working.time = Duration::from_millis(100);
    let error = tool.hear(&mut working).unwrap_err().to_string();
    assert!(error.ends_with("no answer within 0 s"), "{error}");
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
    let mut working = tool.start(python(), &source, json!({ "source": source }), LIMITS).unwrap();
    assert!(matches!(tool.hear(&mut working), Ok(Reply::Ready(_))));
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
        let mut working = tool.start(python, &source, json!({}), LIMITS)?;
        tool.hear(&mut working)
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

#[test]
fn too_much_memory_is_the_end_of_the_tool_alone() {
    let script = "data = bytearray(512 << 20)\nsay({'ready': '1'})";
    let (made, left) = make(script, Limits { memory_bytes: 128 << 20, ..LIMITS });
    let error = made.unwrap_err().to_string();
    assert!(error.contains("MemoryError"), "{error}");
    assert_eq!(left, Vec::<PathBuf>::new());
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
    let (root, uv) = (dir.path().join("envs"), installer(dir.path()));
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
    assert!(asked.contains("executorch==1.2.0 torch==2.11.0 torchao==0.18.0"), "{asked}");
    assert_eq!(fs::metadata(&root).unwrap().permissions().mode() & 0o777, 0o700);
}
