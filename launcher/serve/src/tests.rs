//! Servers over real sockets, with engines that do as they are told.

use super::*;
use arrow_array::{Float64Array, RecordBatch, StringArray, cast::AsArray, types::Float32Type};
use arrow_ipc::{reader::StreamReader, writer::StreamWriter};
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use enn_common::{
    artifact::chunk::RowStatus,
    config::data::{
        DataConfig, DuplicatePolicy, Feature, FeatureKind, Layout, RowsLayout, SplitConfig, SplitKind, TargetMask,
        WindowsLayout,
    },
    staged::{
        StagedMeta,
        meta::{CleaningReport, FeatureMeta, Stats},
    },
};
use enn_data::stage::{StageOptions, stage};
use serde_json::Value;
use std::{
    io::{Read, Write},
    net::TcpStream,
    sync::Mutex,
    time::Instant,
};

mod crowds;
mod streams;

/// Longest wait for what a test expects.
const WAIT: Duration = Duration::from_secs(60);

/// What an engine does when it is asked.
enum Act {
    Answer,
    Fail(&'static str),
    Hang(Duration),
}

/// What an engine says of rows.
type Say = fn(&[f32]) -> Vec<f32>;

/// An engine that answers a + 10·b, one question for each act that it is given.
struct Fake {
    asked: Sender<usize>,
    acts: Receiver<Act>,
    ended: Receiver<()>,
    say: Say,
    carries: usize,
}

/// a + 10·b of every row.
fn sums(x: &[f32]) -> Vec<f32> {
    x.chunks(2).map(|row| row[0] + 10.0 * row[1]).collect()
}

/// As a runtime judges what it says.
fn judged(x: &[f32], values: Vec<f32>, rows: usize) -> Answers {
    let inputs = x.len() / rows;
    let outputs = values.len() / rows;
    let pairs = x.chunks(inputs).zip(values.chunks(outputs));
    let status = pairs.map(|(x, values)| RowStatus::judged(x, values, &[]) as u8).collect();
    Answers { values, status }
}

impl Engine for Fake {
    fn answer(&mut self, x: &[f32], rows: usize) -> Result<Answers, EngineError> {
        self.asked.send(rows).unwrap();
        match self.acts.recv_timeout(WAIT) {
            Ok(Act::Answer) => Ok(judged(x, (self.say)(x), rows)),
            Ok(Act::Fail(cause)) => Err(EngineError::Ended(cause.into())),
            Ok(Act::Hang(time)) => Err(EngineError::Late(time)),
            Err(error) => Err(EngineError::Ended(error.into())),
        }
    }

    fn state(&self) -> usize {
        self.carries
    }

    /// Adds up what it has said before, which it carries.
    fn answer_next(&mut self, x: &[f32], states: &[f32], rows: usize) -> Result<(Answers, Vec<f32>), EngineError> {
        let mut answers = self.answer(x, rows)?;
        answers.values.iter_mut().zip(states).for_each(|(value, before)| *value += before);
        let after = answers.values.clone();
        Ok((answers, after))
    }

    fn ended(&self) -> Receiver<()> {
        self.ended.clone()
    }
}

/// A server with one fake engine after the other.
struct Bench {
    server: Option<Server>,
    address: SocketAddr,
    asked: Receiver<usize>,
    acts: Sender<Act>,
    /// Lets the engine that is up end by itself.
    kill: Arc<Mutex<Option<Sender<()>>>>,
    /// Starts fail while this is said.
    broken: Arc<Mutex<Option<&'static str>>>,
}

fn subject() -> Subject {
    let feature = |name: &str| Feature::new(name, FeatureKind::Number);
    let layout = RowsLayout {
        features: vec![feature("a"), feature("b")],
        targets: vec!["y".into()],
        classes: false,
        out_shape: vec![1],
        row_id: Some("id".into()),
    };
    let data = DataConfig {
        files: vec!["t.csv".into()],
        sources: vec![],
        format: None,
        sheet: None,
        missing: vec!["NA".into()],
        duplicates: DuplicatePolicy::First,
        layout: Layout::Rows(layout),
        split: SplitConfig { kind: SplitKind::Random, val: 0.0, test: 0.0, seed: 1, column: None },
        units: "°F".into(),
        input_units: [("a".to_owned(), "m/s".to_owned())].into(),
        ranges: vec![],
        weight: None,
        mask: TargetMask::Finite,
    };
    let named = |name: &str| FeatureMeta { name: name.into(), has_missing: true, ..FeatureMeta::default() };
    let stats = Stats { n: 10, mean: 1.5, std: 1.0, min: 0.0, max: 1000.0 };
    let meta = StagedMeta {
        version: 1,
        digest: String::new(),
        rows: 10,
        features: vec![named("a"), named("b")],
        out_shape: vec![1],
        out_labels: vec![vec!["y".into()]],
        units: "°F".into(),
        persistence: None,
        has_targets: true,
        has_classes: false,
        class_form: None,
        has_weights: false,
        split_rows: [10, 0, 0],
        sources: vec![],
        row_names: vec![],
        x_stats: vec![stats; 2],
        y_stats: vec![stats],
        report: CleaningReport::default(),
    };
    Subject { run: "test-1".into(), step: 7, data, meta, levels: vec![], scratch: "/nonexistent".into() }
}

fn settings(limits: Limits) -> Settings {
    Settings { address: SocketAddr::from(([127, 0, 0, 1], 0)), token: None, limits, workers: 1 }
}

impl Bench {
    fn new(limits: Limits) -> Self {
        Self::with(settings(limits))
    }

    fn with(settings: Settings) -> Self {
        Self::of(subject(), (sums, 0), settings)
    }

    /// With engines that say this, and carry so many numbers.
    fn of(subject: Subject, (say, carries): (Say, usize), settings: Settings) -> Self {
        let (asking, asked) = unbounded();
        let (acts, acting) = unbounded();
        let kill = Arc::new(Mutex::new(None));
        let broken = Arc::new(Mutex::new(None));
        let keep = Arc::clone(&kill);
        let fails = Arc::clone(&broken);
        let start = move || -> Result<Box<dyn Engine>, Failure> {
            if let Some(why) = *fails.lock().unwrap() {
                return Err(Failure::from(why));
            }
            let (alive, ended) = bounded(0);
            *keep.lock().unwrap() = Some(alive);
            Ok(Box::new(Fake { asked: asking.clone(), acts: acting.clone(), ended, say, carries }))
        };
        let server = Server::start(subject, Box::new(start), settings).unwrap();
        Self { address: server.address(), server: Some(server), asked, acts, kill, broken }
    }

    /// So many answers without being asked for each.
    fn answering(self, count: usize) -> Self {
        (0..count).for_each(|_| self.acts.send(Act::Answer).unwrap());
        self
    }

    fn send(&self, request: &[u8]) -> TcpStream {
        self.try_send(request).unwrap()
    }

    fn try_send(&self, request: &[u8]) -> std::io::Result<TcpStream> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(WAIT))?;
        stream.write_all(request)?;
        Ok(stream)
    }

    fn ask(&self, request: &[u8]) -> HttpReply {
        receive(self.send(request))
    }

    fn post(&self, body: &str) -> HttpReply {
        self.ask(&post(body))
    }

    fn get(&self, path: &str) -> HttpReply {
        self.ask(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").as_bytes())
    }

    /// Waits until the engine is asked; how many rows.
    fn rows(&self) -> usize {
        self.asked.recv_timeout(WAIT).unwrap()
    }

    /// Waits until a line of the metrics is there.
    fn until(&self, line: &str) {
        let began = Instant::now();
        while !self.get("/metrics").text.lines().any(|found| found == line) {
            assert!(began.elapsed() < WAIT, "{line}: {}", self.get("/metrics").text);
            std::thread::yield_now();
        }
    }
}

struct HttpReply {
    status: u16,
    head: String,
    text: String,
    bytes: Vec<u8>,
}

impl HttpReply {
    fn error(&self) -> String {
        serde_json::from_str::<Value>(&self.text).unwrap_or_else(|_| panic!("{}{}", self.head, self.text))["error"]
            .as_str()
            .unwrap()
            .to_owned()
    }
}

/// The rest of what a connection says.
fn receive(stream: TcpStream) -> HttpReply {
    try_receive(stream).unwrap()
}

fn try_receive(mut stream: TcpStream) -> std::io::Result<HttpReply> {
    let mut all = Vec::new();
    // One that is reset behind its answer has answered.
    let _reset = stream.read_to_end(&mut all);
    let split = memchr::memmem::find(&all, b"\r\n\r\n").ok_or(std::io::ErrorKind::UnexpectedEof)?;
    let head = String::from_utf8(all[..split].to_vec()).unwrap();
    let bytes = all[split + 4..].to_vec();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Ok(HttpReply { status, head, text: String::from_utf8_lossy(&bytes).into_owned(), bytes })
}

fn request(kind: &str, body: &[u8], more: &str) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{more}Connection: close\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}

fn post(body: &str) -> Vec<u8> {
    request("application/json", body.as_bytes(), "")
}

fn row(a: f64) -> String {
    format!("{{\"rows\": [[{a}, 1]]}}")
}

#[test]
fn rows_are_answered_in_the_form_they_came_in() {
    let bench = Bench::new(Limits::default()).answering(3);
    let objects = bench.post(r#"{"rows": [{"b": 2, "a": 1, "id": 9}, {"a": null, "b": "NA"}]}"#);
    assert_eq!(objects.status, 200, "{}", objects.text);
    assert_eq!(objects.text, "{\"rows\":[{\"y\":21.0},{\"y\":null,\"failed\":\"no input is valid\"}]}\n");
    let arrays = bench.post(r#"{"rows": [[1, 2]]}"#);
    assert_eq!(arrays.text, "{\"columns\":[\"y\",\"failed\"],\"rows\":[[21.0,null]]}\n");
    let column = |values: Vec<f64>| -> arrow_array::ArrayRef { Arc::new(Float64Array::from(values)) };
    let batch = RecordBatch::try_from_iter([("b", column(vec![2.0, 3.0])), ("a", column(vec![1.0, 4.0]))]).unwrap();
    let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    writer.write(&batch).unwrap();
    writer.write(&batch.slice(1, 1)).unwrap();
    let arrow = bench.ask(&request(media_type::ARROW, &writer.into_inner().unwrap(), ""));
    assert!(arrow.status == 200 && arrow.head.contains(media_type::ARROW), "{}", arrow.head);
    let answer = StreamReader::try_new(arrow.bytes.as_slice(), None).unwrap().next().unwrap().unwrap();
    assert_eq!(answer.column_by_name("y").unwrap().as_primitive::<Float32Type>().values(), &[21.0, 34.0, 34.0]);
}

#[test]
fn the_model_is_described_with_a_request_that_works() {
    let bench = Bench::new(Limits::default()).answering(1);
    let reply: Value = serde_json::from_str(&bench.get("/").text).unwrap();
    assert_eq!((&reply["run"], &reply["step"], &reply["units"]), (&"test-1".into(), &7.into(), &"°F".into()));
    assert_eq!(reply["inputs"][0]["name"], "a");
    assert_eq!(reply["inputs"][0]["seen"]["max"], 1000.0);
    assert_eq!(reply["inputs"][0]["units"], "m/s");
    assert!(reply["inputs"][1].get("units").is_none());
    assert_eq!(reply["outputs"], serde_json::json!(["y"]));
    let example = reply["example"].to_string();
    assert!(reply["curl"].as_str().unwrap().contains(&example));
    assert_eq!(bench.post(&example).text, "{\"rows\":[{\"y\":16.5}]}\n");
    let head = bench.ask(b"HEAD / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert!(head.status == 200 && head.bytes.is_empty() && !head.head.contains("content-length: 0"), "{}", head.head);
    assert_eq!(
        bench.get("/health").text,
        "{\"live\":true,\"ready\":true,\"why\":null,\"workers\":{\"last\":null,\"of\":1,\"replaced\":0,\"up\":1}}\n"
    );
    let page = bench.get("/metrics");
    assert!(page.head.contains("openmetrics-text") && page.text.ends_with("# EOF\n"));
    assert!(page.text.contains("enn_serve_rows_total 1\n") && page.text.contains("enn_serve_workers_up 1\n"));
}

/// A model of windows of `v` and `w` of two entities that is trained on these inputs, and what it predicts is `v`.
fn of_windows(dir: &std::path::Path, inputs: &[&str]) -> Subject {
    let file = dir.join("t.csv");
    let line = |step: i32, who: &str, v: i32| format!("{who},{},{v},{}\n", step * 60, -v);
    let text: String = (0..40).flat_map(|step| [line(step, "a", step), line(step, "b", 2 * step)]).collect();
    std::fs::write(&file, format!("who,when,v,w\n{text}")).unwrap();
    let layout = WindowsLayout {
        entity: "who".into(),
        time: "when".into(),
        time_offset_s: 0,
        step_s: 60,
        steps: 2,
        history: 1,
        inputs: inputs.iter().copied().map(str::to_owned).collect(),
        circular: vec![],
        target: "v".into(),
        calendar: vec![],
        target_valid_min: 0.5,
    };
    let data = DataConfig { files: vec![file], layout: Layout::Windows(layout), ..subject().data };
    let options = StageOptions { out: dir.join("staged"), threads: 1, for_prediction: None };
    let meta = stage(&data, &options, &mut |_| {}).unwrap().meta;
    let scratch = dir.join("scratch");
    std::fs::create_dir(&scratch).unwrap();
    Subject { data, meta, scratch, ..subject() }
}

#[test]
fn the_target_is_asked_for_where_the_history_holds_it() {
    let dir = tempfile::tempdir().unwrap();
    // Both columns go in; all of `w` is 0.
    let say: Say = |x| x.iter().copied().filter(|v| *v != 0.0).take(4).collect();
    let bench = Bench::of(of_windows(dir.path(), &["w"]), (say, 0), settings(Limits::default())).answering(2);
    let about: Value = serde_json::from_str(&bench.get("/").text).unwrap();
    let names: Vec<&str> =
        about["inputs"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["who", "when", "w", "v"]);
    let reply = bench.post(r#"{"rows": [["a", 4800, 0, 7], ["b", 4800, 0, 8], ["a", 4860, 0, 9], ["b", 4860, 0, 6]]}"#);
    assert_eq!(reply.status, 200, "{}", reply.text);
    let reply: Value = serde_json::from_str(&reply.text).unwrap();
    assert_eq!(reply["rows"], serde_json::json!([["1970-01-01 01:22", 7.0, 8.0, 9.0, 6.0, null]]));
    // A column that is none of theirs is refused, one of theirs is asked for.
    let texts = |values: [&str; 2]| -> arrow_array::ArrayRef { Arc::new(StringArray::from(values.to_vec())) };
    let numbers = |values: [f64; 2]| -> arrow_array::ArrayRef { Arc::new(Float64Array::from(values.to_vec())) };
    let columns = [("when", numbers([4800.0, 4860.0])), ("v", numbers([7.0, 9.0])), ("who", texts(["a", "a"]))];
    let reply = bench.ask(&request(media_type::ARROW, &packed(&columns), ""));
    assert!(reply.status == 400 && reply.error().contains("\"w\""), "{}", reply.text);
    let whole = [&columns[..], &[("w", numbers([0.0, 0.0]))]].concat();
    let reply = bench.ask(&request(media_type::ARROW, &packed(&whole), ""));
    assert_eq!(reply.status, 200, "{}", reply.text);
}

#[test]
fn a_request_of_windows_is_a_table_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let subject = of_windows(dir.path(), &["v"]);
    let scratch = subject.scratch.clone();
    // Yesterday again: as many numbers come out as go in.
    let bench = Bench::of(subject, (<[f32]>::to_vec, 0), settings(Limits::default())).answering(2);
    let body = r#"{"rows": [["a", 4800, 7], ["b", 4800, 8], ["a", "4860", 9], ["b", 4860, null]]}"#;
    let reply: Value = serde_json::from_str(&bench.post(body).text).unwrap();
    assert_eq!(
        reply["columns"],
        serde_json::json!(["row_name", "a.00:00", "a.00:01", "b.00:00", "b.00:01", "failed"]),
        "{reply}"
    );
    assert_eq!(
        reply["rows"],
        serde_json::json!([["1970-01-01 01:22", 7.0, 8.0, 9.0, null, "the prediction is not finite"]])
    );
    let wrong = bench.post(r#"{"rows": [["a", "noon", 7]]}"#);
    let reply = wrong.error();
    assert!(wrong.status == 400 && reply.starts_with("the request") && reply.contains("\"noon\""), "{reply}");
    assert_eq!(std::fs::read_dir(&scratch).unwrap().count(), 0, "requests leave nothing");
    let about: Value = serde_json::from_str(&bench.get("/").text).unwrap();
    assert!(about["rows"].as_str().unwrap().contains("1 windows of 2 steps of 60 s of every who"), "{about}");
    let example = bench.get("/example").text;
    assert_eq!(about["example"], serde_json::from_str::<Value>(&example).unwrap());
    assert!(about["curl"].as_str().unwrap().contains("/example | curl "), "{about}");
    let reply: Value = serde_json::from_str(&bench.post(&example).text).unwrap();
    assert_eq!(reply["rows"][0]["row_name"], "2024-01-01 00:02", "{reply}");
}

#[test]
fn what_is_wrong_is_told_in_a_sentence() {
    let limits = Limits { rows_max: 3, ..Limits::default() };
    let bench = Bench::new(limits);
    for (body, status, expected) in [
        ("{", 400, "the body is no JSON: EOF"),
        (r#"{"rows": [{"a": 1, "c": 2}]}"#, 400, "row 0: there is no column \"c\", expected a, b"),
        (r#"{"rows": [[1, "high"]]}"#, 400, "row 0, column \"b\": found \"high\", expected a number or null"),
        (r#"{"rows": []}"#, 400, "there are no rows"),
        (r#"{"rows": [[1, 2], [1, 2], [1, 2], [1, 2]]}"#, 413, "4 rows, expected at most 3"),
    ] {
        let reply = bench.post(body);
        assert!(reply.status == status && reply.error().starts_with(expected), "{body}: {}{}", reply.head, reply.text);
    }
    let few = Bench::new(Limits { numbers_max: 1, ..Limits::default() });
    assert_eq!(few.post(r#"{"rows": [[1, 2], [1, 2]]}"#).error(), "2 rows, expected at most 1: send them in parts");
    let arrow = bench.ask(&request(media_type::ARROW, b"no stream", ""));
    assert!(arrow.status == 400 && arrow.error().contains("Arrow IPC stream"), "{}", arrow.text);
    assert!(bench.ask(&request("text/csv", b"a,b\n", "")).error().contains("\"text/csv\""));
    assert_eq!(bench.get("/nothing").status, 404);
    let method = bench.get("/predict");
    assert!(method.status == 405 && method.head.contains("allow: POST"), "{}", method.head);
    let elsewhere = bench.ask(b"GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n");
    assert!(elsewhere.status == 403 && elsewhere.error().contains("evil.example"), "{}", elsewhere.text);
    assert!(bench.ask(b"GET / HTTP/9\r\n\r\n").head.starts_with("HTTP/1.1 400"));
    let both = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello";
    assert!(bench.ask(both).head.starts_with("HTTP/1.1 400"));
    let long = [b"GET / HTTP/1.1\r\nX: ".as_slice(), &vec![b'a'; 64 << 10], b"\r\n\r\n"].concat();
    assert_eq!(bench.ask(&long).status, 431);
    // What comes after the answer does not take it back.
    let mut late = bench.send(&long);
    std::thread::park_timeout(Duration::from_millis(100));
    late.write_all(b"more").unwrap();
    std::thread::park_timeout(Duration::from_millis(100));
    assert_eq!(receive(late).status, 431);
    assert!(bench.asked.is_empty(), "the engine heard of none of it");
}

/// A stream of zeros, or of a text that all rows share, compressed; beside it is a column that nobody reads.
fn zeros(rows: usize, text: Option<&str>, id: &str) -> Vec<u8> {
    let column: arrow_array::ArrayRef = Arc::new(Float64Array::from(vec![0.0; rows]));
    let texts: arrow_array::StringViewArray = std::iter::repeat_n(text, rows).collect();
    let other = if text.is_some() { Arc::new(texts) } else { Arc::clone(&column) };
    let ids: StringArray = std::iter::repeat_n(Some(id), rows).collect();
    packed(&[("a", column), ("id", Arc::new(ids)), ("b", other)])
}

fn packed(columns: &[(&str, arrow_array::ArrayRef)]) -> Vec<u8> {
    let batch = RecordBatch::try_from_iter(columns.iter().cloned()).unwrap();
    let options = arrow_ipc::writer::IpcWriteOptions::default();
    let options = options.try_with_compression(Some(arrow_ipc::CompressionType::ZSTD)).unwrap();
    let mut writer = StreamWriter::try_new_with_options(Vec::new(), &batch.schema(), options).unwrap();
    writer.write(&batch).unwrap();
    writer.into_inner().unwrap()
}

#[test]
fn a_small_body_that_becomes_a_large_one_is_refused_before_it_does() {
    // More than there are parts of a request.
    const ANSWERS: usize = 200;
    let arrow = |bench: &Bench, body: &[u8]| bench.ask(&request(media_type::ARROW, body, ""));
    let limits = Limits { unpacked_bytes_max: 1 << 20, ..Limits::default() };
    let bench = Bench::new(limits.clone()).answering(ANSWERS);
    let refused = "the body has more than 1048576 bytes once it is unpacked: send fewer rows at a time";
    let bomb = zeros(1 << 20, None, "");
    assert!(bomb.len() < 64 << 10, "{} bytes that become 32 MiB", bomb.len());
    let reply = arrow(&bench, &bomb);
    assert_eq!((reply.status, reply.error().as_str()), (413, refused));
    // A length that is only a number: nobody makes room for it.
    let mut absurd = zeros(100, None, "");
    let at = absurd.windows(8).position(|bytes| bytes == 800_i64.to_le_bytes()).unwrap();
    absurd[at..at + 8].copy_from_slice(&(1_i64 << 46).to_le_bytes());
    let reply = arrow(&bench, &absurd);
    assert_eq!((reply.status, reply.error().as_str()), (413, refused));
    let shared = arrow(&bench, &zeros(4096, Some(&"x".repeat(1000)), ""));
    assert_eq!((shared.status, shared.error().as_str()), (413, refused));
    // What all requests may hold is asked too, and given back.
    let few = Bench::new(Limits { bodies_bytes_max: 64 << 10, ..limits }).answering(ANSWERS);
    assert_eq!(arrow(&few, &zeros(8192, None, "")).status, 429);
    for _ in 0..4 {
        let reply = arrow(&few, &zeros(1024, None, ""));
        assert_eq!(reply.status, 200, "{}", reply.text);
    }
    // What nobody reads stays packed, and what it says of itself is no matter.
    let mut wide = zeros(1024, None, &"x".repeat(2000));
    assert_eq!(arrow(&bench, &wide).status, 200);
    let at = wide.windows(8).position(|bytes| bytes == 2_048_000_i64.to_le_bytes()).unwrap();
    wide[at..at + 8].copy_from_slice(&(1_i64 << 46).to_le_bytes());
    assert_eq!(arrow(&bench, &wide).status, 200);
    let strange: arrow_array::ArrayRef = Arc::new(Float64Array::from(vec![0.0; 1 << 20]));
    let reply = arrow(&bench, &packed(&[("a", Arc::clone(&strange)), ("c", strange)]));
    let unknown = "row 0: there is no column \"c\", expected a, b";
    assert_eq!((reply.status, reply.error().as_str()), (400, unknown));
}

#[test]
fn a_huge_body_is_refused_and_its_sender_hears_why() {
    let bench = Bench::new(Limits { body_bytes_max: 1000, ..Limits::default() });
    let reply = bench.post(&" ".repeat(2 << 20));
    assert!(reply.status == 413 && reply.error().contains("1000 bytes"), "{}", reply.text);
    let head = "POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n";
    let chunk = format!("{:x}\r\n{}\r\n", 900, " ".repeat(900));
    let chunked = bench.ask(format!("{head}{chunk}{chunk}0\r\n\r\n").as_bytes());
    assert_eq!(chunked.status, 413, "{}", chunked.text);
    let bench = Bench::new(Limits { bodies_bytes_max: 1000, ..Limits::default() });
    assert_eq!(bench.post(&" ".repeat(2000)).status, 429);
}

#[test]
fn a_token_is_asked_for_and_an_open_address_needs_one() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    std::fs::write(&path, "0123456789abcdef").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let token = Some(Token::read(&path).unwrap());
    let bench = Bench::with(Settings { token, ..settings(Limits::default()) }).answering(1);
    let refused = bench.post(&row(1.0));
    assert!(refused.status == 401 && refused.head.contains("www-authenticate: Bearer"), "{}", refused.head);
    assert_eq!((bench.get("/").status, bench.get("/metrics").status, bench.get("/health").status), (401, 401, 200));
    let more = "Authorization: Bearer 0123456789abcdef\r\n";
    assert_eq!(bench.ask(&request("application/json", row(1.0).as_bytes(), more)).status, 200);
    let open = Settings { address: SocketAddr::from(([0, 0, 0, 0], 0)), ..settings(Limits::default()) };
    let never = || -> Result<Box<dyn Engine>, Failure> { Err("it must not be started".into()) };
    let error = Server::start(subject(), Box::new(never), open).err().unwrap().to_string();
    assert!(error.contains("can be reached by others"), "{error}");
}

#[test]
fn why_a_worker_ended_is_for_those_who_may_ask() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    std::fs::write(&path, "0123456789abcdef").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let token = Some(Token::read(&path).unwrap());
    let bench = Bench::with(Settings { token, ..settings(Limits::default()) });
    bench.acts.send(Act::Fail("/home/me/model.onnx is gone")).unwrap();
    let more = "Authorization: Bearer 0123456789abcdef\r\n";
    assert_eq!(bench.ask(&request("application/json", row(1.0).as_bytes(), more)).status, 503);
    let health = |more: &str| {
        bench.ask(format!("GET /health HTTP/1.1\r\nHost: localhost\r\n{more}Connection: close\r\n\r\n").as_bytes()).text
    };
    assert!(health(more).contains("/home/me"), "{}", health(more));
    let reply = health("");
    assert!(!reply.contains("/home/me") && reply.contains("\"replaced\":1"), "{reply}");
}

#[test]
fn requests_that_wait_together_are_computed_together() {
    let bench = Bench::new(Limits { batch_rows_max: 8, queue_max: 9, ..Limits::default() });
    let first = bench.send(&post(&row(0.0)));
    assert_eq!(bench.rows(), 1);
    let waiting: Vec<TcpStream> = (1..=9).map(|a| bench.send(&post(&row(f64::from(a))))).collect();
    bench.until("enn_serve_queue 9");
    // Their places are taken.
    let busy = bench.post(&row(0.0));
    assert!(busy.status == 429 && busy.head.contains("retry-after"), "{}", busy.head);
    let bench = bench.answering(3);
    assert_eq!((bench.rows(), bench.rows()), (8, 1));
    assert!(receive(first).text.contains("10.0"));
    for (a, stream) in (1..=9).zip(waiting) {
        assert_eq!(
            receive(stream).text,
            format!("{{\"columns\":[\"y\",\"failed\"],\"rows\":[[{a}0.0,null]]}}\n")
                .replace(&format!("{a}0.0"), &format!("{}.0", a + 10))
        );
    }
}

#[test]
fn more_requests_are_waited_for_where_that_is_wished() {
    let bench = Bench::new(Limits { batch_rows_max: 2, batch_wait: WAIT, ..Limits::default() }).answering(1);
    let one = bench.send(&post(&row(1.0)));
    let two = bench.send(&post(&row(2.0)));
    assert_eq!(bench.rows(), 2);
    assert!(receive(one).text.contains("11.0") && receive(two).text.contains("12.0"));
}

#[test]
fn an_engine_that_fails_takes_only_what_it_held() {
    let bench = Bench::new(Limits { batch_rows_max: 1, ..Limits::default() });
    let lost = bench.send(&post(&row(1.0)));
    bench.rows();
    let kept = bench.send(&post(&row(2.0)));
    bench.until("enn_serve_queue 1");
    bench.acts.send(Act::Fail("killed by signal 9")).unwrap();
    let lost = receive(lost);
    assert_eq!(
        (lost.status, lost.error().as_str()),
        (503, "the worker that computed this ended (killed by signal 9): send it again")
    );
    let bench = bench.answering(1);
    assert_eq!(receive(kept).status, 200);
    bench.until("enn_serve_restarts_total 1");
}

#[test]
fn an_engine_that_ends_while_it_waits_is_replaced() {
    let bench = Bench::new(Limits::default()).answering(1);
    drop(bench.kill.lock().unwrap().take());
    bench.until("enn_serve_restarts_total 1");
    bench.until("enn_serve_workers_up 1");
    assert_eq!(bench.post(&row(1.0)).status, 200);
}

#[test]
fn without_engines_it_says_so_until_one_is_back() {
    let bench = Bench::new(Limits::default()).answering(1);
    *bench.broken.lock().unwrap() = Some("the checkpoint is gone");
    drop(bench.kill.lock().unwrap().take());
    bench.until("enn_serve_workers_up 0");
    let health = bench.get("/health");
    assert!(health.status == 503 && health.text.contains("\"ready\":false"), "{}", health.text);
    assert_eq!(bench.get("/health/live").status, 200);
    let refused = bench.post(&row(1.0));
    assert!(refused.status == 503 && refused.error().starts_with("no worker is up: "), "{}", refused.text);
    *bench.broken.lock().unwrap() = None;
    bench.until("enn_serve_workers_up 1");
    assert_eq!(bench.post(&row(1.0)).status, 200);
}

#[test]
fn a_server_whose_engine_does_not_start_does_not_either() {
    let fails = || -> Result<Box<dyn Engine>, Failure> { Err("no such checkpoint".into()) };
    let error = Server::start(subject(), Box::new(fails), settings(Limits::default())).err().unwrap();
    assert_eq!(error.to_string(), "no such checkpoint");
}

#[test]
fn who_is_slow_is_cut_off_and_others_are_served() {
    let second = Duration::from_secs(1);
    let bench = Bench::new(Limits { head_wait: second, body_wait: second, ..Limits::default() }).answering(1);
    let mut heads: Vec<TcpStream> = (0..8).map(|_| bench.send(b"GET / HTTP/1.1\r\nHost: loc")).collect();
    let body = bench.send(&post(&row(1.0))[..post(&row(1.0)).len() - 3]);
    assert_eq!(bench.post(&row(1.0)).status, 200);
    let body = receive(body);
    assert!(body.status == 408 && body.error().contains("within 1 s"), "{}", body.text);
    for head in &mut heads {
        let mut rest = Vec::new();
        // Closed, with a word or without.
        let _reset = head.read_to_end(&mut rest);
        assert!(!rest.starts_with(b"HTTP/1.1 200"));
    }
    // One that asks nothing more after its answer is closed, too.
    let mut idle = bench.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let mut rest = Vec::new();
    idle.read_to_end(&mut rest).unwrap();
    assert!(rest.starts_with(b"HTTP/1.1 200"));
}

#[test]
fn an_answer_that_takes_too_long_is_given_up() {
    let bench = Bench::new(Limits { answer_wait: Duration::from_secs(1), batch_rows_max: 1, ..Limits::default() });
    let late = bench.send(&post(&row(1.0)));
    bench.rows();
    let passed = bench.post(&row(2.0));
    assert!(passed.status == 504 && passed.error().contains("no answer within 1 s"), "{}", passed.text);
    assert_eq!(receive(late).status, 504);
    let bench = bench.answering(2);
    assert_eq!(bench.post(&row(3.0)).status, 200);
    // The second one was passed over: nobody waited for it.
    assert_eq!(bench.rows(), 1);
    assert!(bench.asked.is_empty());
}

#[test]
fn too_many_connections_are_turned_away_and_places_come_back() {
    let bench = Bench::new(Limits { connections_max: 2, ..Limits::default() }).answering(1);
    let held: Vec<TcpStream> = (0..2).map(|_| bench.send(b"")).collect();
    // They are counted when they are accepted, in their order.
    let away = receive(TcpStream::connect(bench.address).unwrap());
    assert!(away.status == 503 && away.error().contains("at most 2"), "{}", away.text);
    drop(held);
    let began = Instant::now();
    while bench.get("/").status == 503 {
        assert!(began.elapsed() < WAIT, "no place came back");
    }
    assert_eq!(bench.post(&row(1.0)).status, 200);
}

#[test]
fn what_was_asked_is_answered_before_the_end() {
    let mut bench = Bench::new(Limits::default());
    let idle = bench.send(b"");
    let asked = bench.send(&post(&row(1.0)));
    bench.rows();
    bench.until("enn_serve_in_flight 2");
    let server = bench.server.take().unwrap();
    let stopping = std::thread::spawn(move || server.stop(WAIT));
    let began = Instant::now();
    while TcpStream::connect(bench.address).is_ok() {
        assert!(began.elapsed() < WAIT, "it still takes connections");
    }
    bench.acts.send(Act::Answer).unwrap();
    assert_eq!(receive(asked).status, 200);
    drop(idle);
    let drained = stopping.join().unwrap();
    assert_eq!((drained.finished, drained.cut), (1, 0));
}

#[test]
fn the_end_does_not_wait_for_ever() {
    let mut bench = Bench::new(Limits::default());
    let asked = bench.send(&post(&row(1.0)));
    bench.rows();
    let drained = bench.server.take().unwrap().stop(Duration::from_millis(10));
    assert_eq!((drained.finished, drained.cut), (0, 1));
    drop(asked);
    // Hurried, it does not wait either.
    let mut bench = Bench::new(Limits::default());
    let asked = bench.send(&post(&row(1.0)));
    bench.rows();
    let mut server = bench.server.take().unwrap();
    let cancel_grace = server.cancel_grace().unwrap();
    let stopping = std::thread::spawn(move || server.stop(10 * WAIT));
    cancel_grace.cancel();
    assert_eq!(stopping.join().unwrap().cut, 1);
    drop(asked);
}
