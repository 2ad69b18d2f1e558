//! `enn serve` as a user has it: what it answers is what `enn predict` does, and a worker that is killed under load costs only what it
//! held.
//!
//! Needs `enn` and `enn-worker`, which `make build` makes, and libtorch on the library path, as `make test` sets it.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test's helpers fail the test by panicking and look again until a deadline"
)]

use enn_common::staged::reader::NpyMap;
use enn_tests::{
    artifact::{gone, played, until},
    data::{self, mix},
    launch,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};
use std::{
    fmt::Write as _,
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    time::{Duration, Instant},
};

/// Longest wait for what is expected.
const WAIT: Duration = Duration::from_secs(120);
/// Clients at the same time.
const CLIENTS: u64 = 8;
/// Answers before a worker is killed, and after.
const ANSWERS: u64 = 200;

fn enn() -> Command {
    Command::new(launch::enn())
}

/// A trained run in `dir`.
fn trained(dir: &Path) -> PathBuf {
    data::trained(enn(), dir, &[])
}

/// A server; it is killed with its test.
struct Server {
    child: Child,
    address: SocketAddr,
    curl: String,
}

impl Server {
    fn start(run: &Path, workers: u32) -> Self {
        Self::with(run, &["--workers", &workers.to_string()])
    }

    fn with(run: &Path, more: &[&str]) -> Self {
        Self::by(enn(), run, more)
    }

    fn by(mut command: Command, run: &Path, more: &[&str]) -> Self {
        command.arg("serve").arg(run).args(["--addr", "0", "--json", "--set", "train.threads=1"]).args(more);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut text = String::new();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let told = loop {
            text += &lines.next().expect("it says where it listens").unwrap();
            if let Ok(told) = serde_json::from_str::<Value>(&text) {
                break told;
            }
        };
        let address = told["address"].as_str().unwrap();
        let curl = told["curl"].as_str().unwrap();
        Self { child, address: address.parse().unwrap(), curl: curl.to_owned() }
    }

    fn ask(&self, request: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(WAIT)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        let (head, body) = reply.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    fn post(&self, body: &Value) -> (u16, Value) {
        self.on("POST", "/predict", body)
    }

    fn on(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let body = body.to_string();
        let length = body.len();
        let head = "HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json";
        let (status, text) = self.ask(&format!("{method} {path} {head}\r\nContent-Length: {length}\r\n\r\n{body}"));
        (status, serde_json::from_str(&text).unwrap())
    }

    /// Waits until a figure of the metrics is this.
    fn until(&self, name: &str, value: u64) {
        let began = Instant::now();
        while self.figure(name) != value {
            assert!(began.elapsed() < WAIT, "{name} is {}, expected {value}", self.figure(name));
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }

    /// A figure of the metrics.
    fn figure(&self, name: &str) -> u64 {
        let (_, page) = self.ask("GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).unwrap();
        line.parse().unwrap()
    }

    fn workers(&self) -> Vec<i32> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        // A thread may end while they are looked at.
        let children = |task: fs::DirEntry| fs::read_to_string(task.path().join("children")).unwrap_or_default();
        let all: String = tasks.map(|task| children(task.unwrap())).collect();
        all.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
    }

    /// Ends it as the system does; its exit code and last words.
    fn stop(mut self) -> Option<i32> {
        kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM).unwrap();
        self.child.wait().unwrap().code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _ended = self.child.wait();
    }
}

/// A run's model as PT2, beside the run's own files.
fn exported(run: &Path, more: &[&str]) -> PathBuf {
    let out = run.join("served");
    let mut export = enn();
    export.arg("export").arg(run).args(["--to", "pt2", "--name", "model", "--out"]).arg(&out).args(more);
    let done = export.output().unwrap();
    let said = [done.stdout, done.stderr].concat();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&said));
    out.join("model.pt2")
}

fn value(row: u64, column: u64) -> f64 {
    (mix(row * 4 + column) % 2_000) as f64 / 1_000.0 - 1.0
}

#[test]
fn what_is_served_is_what_is_predicted() {
    let dir = tempfile::tempdir().unwrap();
    let run = trained(dir.path());
    let server = Server::start(&run, 1);
    // Row 3 has nothing.
    let cell = |row: u64, column: u64| if row == 3 { Value::Null } else { json!(value(row, column)) };
    let rows: Vec<Value> = (0..300).map(|row| json!([cell(row, 0), cell(row, 1), cell(row, 2)])).collect();
    let (status, told) = server.post(&json!({ "rows": rows }));
    assert_eq!((status, &told["columns"]), (200, &json!(["y", "failed"])), "{told}");
    assert_eq!(told["rows"][3], json!([null, "no input is valid"]));

    let csv = dir.path().join("same.csv");
    let out = dir.path().join("same");
    let mut text = "id,a,b,c\n".to_owned();
    for row in 0..300 {
        let cells = [0, 1, 2].map(|column| if row == 3 { String::new() } else { value(row, column).to_string() });
        writeln!(text, "{row},{}", cells.join(",")).unwrap();
    }
    fs::write(&csv, text).unwrap();
    let mut predict = enn();
    predict.arg("predict").arg(&run).args(["--quiet", "--nproc-per-node", "1", "--data"]).arg(&csv);
    assert!(predict.arg("--out").arg(&out).status().unwrap().success());
    let expected = NpyMap::open(&out.join("pred.npy")).unwrap();
    let expected: &[f32] = expected.numbers().unwrap();
    for (row, expected) in expected.iter().enumerate().filter(|(row, _)| *row != 3) {
        let found = told["rows"][row][0].as_f64().unwrap() as f32;
        assert!((found - expected).abs() < 1e-5, "row {row}: {found} {expected}");
    }

    // The line that the server prints does what it says.
    let tried = Command::new("sh").args(["-c", &format!("{} --silent --fail", server.curl)]).output();
    if let Ok(tried) = tried.as_ref().map(|tried| &tried.stdout).map(|out| serde_json::from_slice::<Value>(out)) {
        assert!(tried.unwrap()["rows"][0]["y"].is_number());
    }
    assert_eq!(server.stop(), Some(143));
    let left = fs::read_dir(run.join("predictions")).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(!left.into_iter().any(|name| name.to_string_lossy().starts_with(".stream")));
}

#[test]
fn an_exported_model_is_served_as_the_run_is() {
    let dir = tempfile::tempdir().unwrap();
    let run = trained(dir.path());
    let artifact = exported(&run, &[]);
    let rows: Vec<Value> =
        (0..20).map(|row| json!({"a": value(row, 0), "c": value(row, 2), "b": value(row, 1)})).collect();
    let asked = json!({ "rows": rows });
    let one = Server::start(&run, 1);
    let two = Server::start(&artifact, 1);
    let (status, expected) = one.post(&asked);
    let (other, found) = two.post(&asked);
    assert_eq!((status, other), (200, 200), "{expected} {found}");
    for row in 0..20 {
        let [expected, found] = [&expected, &found].map(|told| told["rows"][row]["y"].as_f64().unwrap());
        assert!((expected - found).abs() < 1e-4, "row {row}: {found} {expected}");
    }
    let (status, told) = two.post(&json!({"rows": [{"a": 1, "b": 1, "d": 1}]}));
    assert!(status == 400 && told["error"].as_str().unwrap().contains("no column \"d\""), "{told}");
    // One that is not what is described beside it is refused.
    let mut bytes = fs::read(&artifact).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&artifact, bytes).unwrap();
    let done = enn().arg("serve").arg(&artifact).args(["--addr", "0"]).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success() && said.contains("is not what is described beside it: its file"), "{said}");
}

#[test]
fn a_worker_that_hangs_is_replaced_and_its_requests_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let run = trained(dir.path());
    let artifact = exported(&run, &[]);
    for model in [run, artifact] {
        let server = Server::with(&model, &["--timeout", "2"]);
        let [worker] = server.workers()[..] else { panic!("one worker") };
        kill(Pid::from_raw(worker), Signal::SIGSTOP).unwrap();
        let began = Instant::now();
        // More than a pipe holds: it does not even take the question.
        let rows: Vec<Value> = (0..8_000).map(|row| json!([value(row, 0), value(row, 1), value(row, 2)])).collect();
        let (status, told) = server.post(&json!({ "rows": rows }));
        let error = told["error"].as_str().unwrap();
        assert!(status == 504 && error.contains("no answer within 2 s"), "{status} {error}");
        assert!(began.elapsed() < Duration::from_secs(20));
        server.until("enn_serve_restarts_total", 1);
        server.until("enn_serve_workers_up", 1);
        assert_eq!(server.post(&json!({ "rows": [[0.1, 0.2, 0.3]] })).0, 200);
        let (_, health) = server.on("GET", "/health", &Value::Null);
        assert_eq!((&health["ready"], &health["workers"]["replaced"]), (&json!(true), &json!(1)), "{health}");
        assert!(health["workers"]["last"].as_str().unwrap().contains("no answer within 2 s"), "{health}");
        assert!(!server.workers().contains(&worker), "the stopped one is gone");
        assert_eq!(server.stop(), Some(143));
    }
}

#[test]
fn a_runtime_that_ends_between_requests_is_replaced_before_the_next_and_one_that_loads_holds_up_no_signal() {
    let dir = tempfile::tempdir().unwrap();
    let run = trained(dir.path());
    let artifact = exported(&run, &[]);
    let serving = |lines: &str| {
        let (artifact, python) = played(&artifact, dir.path(), lines);
        let mut command = enn();
        command.env("PYTHON_EXEC", python).env("XDG_CACHE_HOME", dir.path());
        (command, artifact)
    };
    // It answers once, and ends.
    let (command, artifact) = serving("say({'ready': '1'})\ndouble(next(questions))\n");
    let server = Server::by(command, &artifact, &[]);
    for answered in 1..4_u32 {
        let (status, told) = server.post(&json!({ "rows": [[0.25 * f64::from(answered), 0.0, 0.0]] }));
        assert_eq!((status, &told["rows"][0][0]), (200, &json!(0.5 * f64::from(answered))), "{told}");
        server.until("enn_serve_restarts_total", answered.into());
        server.until("enn_serve_workers_up", 1);
    }
    assert_eq!(server.stop(), Some(143));
    // It never comes up.
    let (mut command, artifact) = serving("mark('process-' + str(os.getpid()))\nmark('loads')\ntime.sleep(1000)\n");
    let mut child = command.arg("serve").arg(artifact).args(["--addr", "0"]).spawn().unwrap();
    until("it loads", || dir.path().join("loads").exists());
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(143));
    let names = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let pid = names.into_iter().find_map(|name| name.strip_prefix("process-")?.parse().ok()).unwrap();
    gone(pid);
}

#[test]
fn what_nohup_starts_outlives_its_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let run = trained(dir.path());
    let mut command = Command::new("nohup");
    command.arg(launch::enn());
    let server = Server::by(command, &run, &[]);
    let pid = server.child.id();
    kill(Pid::from_raw(pid.cast_signed()), Signal::SIGHUP).unwrap();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap().trim();
    assert_eq!(u64::from_str_radix(ignored, 16).unwrap() & 1, 1, "the first signal is SIGHUP");
    assert_eq!(server.post(&json!({ "rows": [[0.25, 0.0, 0.0]] })).0, 200);
    assert_eq!(server.stop(), Some(143));
}

#[test]
fn streams_go_on_from_row_to_row_by_workers_and_by_artifacts_alike() {
    let dir = tempfile::tempdir().unwrap();
    let run = data::trained(enn(), dir.path(), &["--set", "model.preset=temporal"]);
    let artifact = exported(&run, &["--stream"]);
    let servers = [Server::with(&run, &["--stream", "--streams", "2"]), Server::with(&artifact, &["--streams", "2"])];
    let rows: Vec<Value> = (0..6).map(|row| json!([value(row, 0), value(row, 1), value(row, 2)])).collect();
    let numbers = |told: &Value| -> Vec<f64> {
        told["rows"].as_array().unwrap_or_else(|| panic!("{told}")).iter().map(|row| row[0].as_f64().unwrap()).collect()
    };
    let near = |a: &[f64], b: &[f64]| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-4);
    let mut found: Vec<Vec<f64>> = Vec::new();
    for server in &servers {
        let (_, alone) = server.post(&json!({ "rows": rows }));
        let begin = || server.on("POST", "/streams", &Value::Null).1["stream"].as_str().unwrap().to_owned();
        let one = format!("/streams/{}", begin());
        let two = format!("/streams/{}", begin());
        assert_eq!(server.on("POST", "/streams", &Value::Null).0, 429);
        let (_, whole) = server.on("POST", &one, &json!({ "rows": rows }));
        let (_, first) = server.on("POST", &two, &json!({ "rows": rows[..2] }));
        // A worker that dies takes no stream with it.
        let [worker] = server.workers()[..] else { panic!("one worker") };
        kill(Pid::from_raw(worker), Signal::SIGKILL).unwrap();
        while server.workers().contains(&worker) && server.post(&json!({ "rows": rows[..1] })).0 == 200 {}
        server.until("enn_serve_restarts_total", 1);
        server.until("enn_serve_workers_up", 1);
        let (_, second) = server.on("POST", &two, &json!({ "rows": rows[2..] }));
        let parts = [numbers(&first), numbers(&second)].concat();
        assert!(near(&numbers(&whole), &parts), "{whole} {parts:?}");
        assert!(near(&numbers(&whole)[..1], &numbers(&alone)[..1]), "the first row of a stream stands alone");
        assert!(!near(&numbers(&whole)[1..], &numbers(&alone)[1..]), "the others do not");
        found.push(parts);
    }
    assert!(near(&found[0], &found[1]), "{found:?}");
    // A model that carries nothing is refused with a sentence.
    let other = tempfile::tempdir().unwrap();
    let run = data::trained(enn(), other.path(), &[]);
    let done = enn().arg("serve").arg(&run).args(["--addr", "0", "--stream"]).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success() && said.contains("carries nothing from call to call"), "{said}");
}

#[test]
fn a_worker_that_is_killed_under_load_costs_only_what_it_held() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&trained(dir.path()), 2);
    let began = Instant::now();
    while server.figure("enn_serve_workers_up") < 2 {
        assert!(began.elapsed() < WAIT, "the second worker does not start");
        std::thread::park_timeout(Duration::from_millis(5));
    }
    let done = AtomicBool::new(false);
    let answered = AtomicU64::new(0);
    let lost = AtomicU64::new(0);
    let until = |count: u64| {
        let began = Instant::now();
        while answered.load(SeqCst) < count {
            assert!(began.elapsed() < WAIT, "{} answers", answered.load(SeqCst));
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let server = &server;
            let done = &done;
            let answered = &answered;
            let lost = &lost;
            scope.spawn(move || {
                for row in (0..).map(|row| row * CLIENTS + client) {
                    if done.load(SeqCst) {
                        return;
                    }
                    let (status, told) = server.post(&json!({"rows": [[value(row, 0), value(row, 1), value(row, 2)]]}));
                    if status == 200 {
                        assert!(told["rows"][0][0].is_number(), "{told}");
                        answered.fetch_add(1, SeqCst);
                    } else {
                        let error = told["error"].as_str().unwrap();
                        assert!(status == 503 && error.contains("signal: 9"), "{status} {error}");
                        lost.fetch_add(1, SeqCst);
                    }
                }
            });
        }
        until(ANSWERS);
        let workers = server.workers();
        assert_eq!(workers.len(), 2);
        kill(Pid::from_raw(workers[0]), Signal::SIGKILL).unwrap();
        let before = answered.load(SeqCst);
        until(before + ANSWERS);
        done.store(true, SeqCst);
    });
    // A client asks one thing at a time.
    assert!(lost.load(SeqCst) <= CLIENTS, "{} requests were lost", lost.load(SeqCst));
    let began = Instant::now();
    while server.figure("enn_serve_workers_up") < 2 {
        assert!(began.elapsed() < WAIT, "the worker is not replaced");
        std::thread::park_timeout(Duration::from_millis(5));
    }
    assert_eq!(server.figure("enn_serve_restarts_total"), 1);
    assert_eq!(server.stop(), Some(143));
}

/// Rows of windows in which series b has no history; those of a are as many as two windows have steps.
fn lacking() -> Vec<(u32, f64)> {
    (0..8).map(|step| (step * 3600, f64::from(step % 5) / 5.0)).collect()
}

/// A series without history has no numbers, whoever is asked, and is named; the other one has its own.
#[test]
fn a_series_without_history_is_named_by_predict_and_by_servers() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let run = data::trained_on(enn(), &data::write_windows(dir.path(), "waves"), &[]);
    let lines = lacking().into_iter().map(|(when, v)| format!("a,{when},{v}\n")).collect::<String>();
    fs::write(at("new.csv"), format!("who,when,v\n{lines}")).unwrap();
    let mut command = enn();
    command.arg("predict").arg(&run).args(["--quiet", "--data"]).arg(at("new.csv")).arg("--out").arg(at("told.csv"));
    let done = command.output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let expected = "no history, and so no numbers, of b";
    let text = fs::read_to_string(at("told.csv")).unwrap();
    let (head, row) = text.trim_end().split_once('\n').unwrap();
    assert!(row.ends_with(&format!(",\"{expected}\"")) && !row.contains('\n'), "{text}");
    let cells = || head.split(',').zip(row.split(','));
    let own =
        |series: &str| cells().filter(|(name, _)| name.starts_with(series)).map(|(_, cell)| cell).collect::<Vec<_>>();
    assert!(own("b.").len() == 4 && own("b.").iter().all(|cell| cell.is_empty()), "{text}");
    let predicted: Vec<f64> = own("a.").iter().map(|cell| cell.parse().unwrap()).collect();
    assert_eq!(predicted.len(), 4);
    let mut command = enn();
    command.arg("export").arg(&run).args(["--to", "pt2", "--name", "model", "--out"]).arg(at("out"));
    let done = command.output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
    let rows = lacking().into_iter().map(|(when, v)| json!({"who": "a", "when": when, "v": v})).collect::<Vec<_>>();
    for model in [&run, &at("out").join("model.pt2")] {
        let server = Server::start(model, 1);
        let (status, told) = server.post(&json!({ "rows": rows }));
        assert_eq!((status, &told["rows"][0]["failed"]), (200, &json!(expected)), "{told}");
        let row = told["rows"][0].as_object().unwrap();
        let numbers = |series: &str| row.iter().filter(|(name, _)| name.starts_with(series)).collect::<Vec<_>>();
        assert!(numbers("b.").len() == 4 && numbers("b.").iter().all(|(_, value)| value.is_null()), "{told}");
        let near =
            |((_, found), expected): (&(&String, &Value), &f64)| (found.as_f64().unwrap() - expected).abs() < 1e-4;
        assert!(numbers("a.").iter().zip(&predicted).all(near), "{told}, expected {predicted:?}");
        assert_eq!(server.stop(), Some(143));
    }
}
