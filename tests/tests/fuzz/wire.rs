//! Readers of what comes over sockets and pipes: frames of workers and nodes, the store's protocol, requests to a served model.

use crate::{readers::in_place, tables};
use arrow_array::{Float64Array, RecordBatch};
use arrow_ipc::writer::StreamWriter;
use crossbeam_channel::{Receiver, never};
use enn_broker::tcpstore::{
    Limits as StoreLimits,
    protocol::{MAGIC, Parser, VALIDATE},
    table::Table,
};
use enn_common::{
    artifact::chunk::RowStatus,
    checkpoint::{
        TensorDType,
        layout::{BoxOf, ShardLayout},
        metadata::Metadata,
        table::{ItemKind, ShardItem, ShardTable},
    },
    config::data::Layout,
    id::WorkerId,
    wire::{
        command,
        control::{ControlPage, Intent, PAGE_BYTES},
        engine, export,
        frame::{FrameBuffer, encode},
        message::{FromWorker, StagedShard, ToWorker},
        node::{FromLeader, Members, ToLeader},
        node_agent::{NodeCommand, NodeEvent},
        script::{self, FromScript, ScriptSeat, ToScript},
        serve,
    },
};
use enn_serve::{Answers, Engine, EngineError, Failure, Limits, Server, Settings, Subject};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    cell::RefCell,
    io::{BufReader, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    path::Path,
    sync::atomic::AtomicU64,
    time::Duration,
};

fn frame<T: Serialize>(message: &T) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(message, &mut bytes).unwrap();
    bytes
}

pub(crate) fn frame_seeds() -> Vec<Vec<u8>> {
    let part = BoxOf {
        fqn: "model.β".into(),
        dtype: TensorDType::F32,
        global: vec![4, 300],
        offsets: vec![0, 0],
        sizes: vec![4, 300],
    };
    let BoxOf { fqn, dtype, global, offsets, sizes } = part.clone();
    let kind = ItemKind::Tensor { dtype, global, offsets, sizes, crc32: 7 };
    let table = ShardTable {
        file: "__0_0.distcp".into(),
        bytes: 9000,
        blake3: "ab".into(),
        crc32: Some(7),
        items: vec![ShardItem { fqn, offset: 0, length: 4864, kind }],
    };
    let written =
        FromWorker::ShardWritten { step: 7, epoch: 1, dir: "/run/x".into(), metric: Some(2.5), table, blocked: 0.5 };
    let staged = StagedShard {
        step: 7,
        epoch: 1,
        dir: "/run/x".into(),
        metric: None,
        ticket: 3,
        at: 4096,
        boxes: vec![part],
        blake3: true,
        blocked: 0.1,
        must: false,
    };
    let members = Members::pack([("gpu1", 8, "worker"), ("gpu2", 8, "worker"), ("cpu", 1, "head")].into_iter());
    vec![
        [frame(&FromWorker::Hello { protocol: 7, worker: 3, pid: 4 }), frame(&written)].concat(),
        frame(&FromWorker::ShardStaged(Box::new(staged))),
        frame(&ToWorker::Committed { step: 5, path: "/c".into() }),
        frame(&NodeCommand::Start { worker: WorkerId(1), seat: None, standby: None, logs: "/l".into() }),
        frame(&NodeEvent::Unfit { reason: "no GPU".into() }),
        [frame(&ToLeader::Hello { protocol: 3, nonce: [7; 32] }), frame(&ToLeader::Message(vec![1; 40]))].concat(),
        frame(&FromLeader::Challenge { nonce: [7; 32], token: true }),
        frame(&members),
    ]
}

/// Every message of a kind in the bytes.
fn messages<T: DeserializeOwned>(bytes: &[u8]) -> Vec<T> {
    let mut buffer = FrameBuffer::new();
    let mut found = Vec::new();
    for part in bytes.chunks(50) {
        buffer.extend(part);
        while let Ok(Some(message)) = buffer.decode() {
            found.push(message);
        }
    }
    found
}

pub(crate) fn frames(bytes: &[u8]) {
    for message in messages::<FromWorker>(bytes) {
        match message {
            FromWorker::ShardWritten { table, .. } => {
                if let Ok(whole) = Metadata::merge(&[table]) {
                    let _ = (whole.tensor_bytes(), whole.to_bytes("x"));
                    whole.tensors.values().for_each(|tensor| drop(tensor.check_coverage()));
                }
            }
            FromWorker::ShardStaged(shard) => drop(ShardLayout::of(shard.boxes).map(|layout| layout.payload())),
            _ => {}
        }
    }
    drop((messages::<ToWorker>(bytes), messages::<NodeCommand>(bytes), messages::<NodeEvent>(bytes)));
    drop((messages::<ToLeader>(bytes), messages::<FromLeader>(bytes)));
    messages::<Members>(bytes).into_iter().for_each(|members| drop(members.unpack()));
}

pub(crate) fn script_seeds() -> Vec<Vec<u8>> {
    fn all<T: Serialize>(messages: &[T]) -> Vec<u8> {
        let mut bytes = Vec::new();
        messages.iter().for_each(|message| script::encode(message, &mut bytes).unwrap());
        bytes
    }
    let attach = FromScript::Attach { protocol: 1, worker: 3, pid: 70_000 };
    let halted = FromScript::Halted { round: 3, step: 41, whole: true };
    let failed = FromScript::Failed { error: "no \"space\" é".into() };
    let seat = ScriptSeat {
        round: 3,
        rank: 1,
        world: 4,
        local_rank: 1,
        local_world: 2,
        master_addr: "10.0.0.1".into(),
        master_port: 29500,
        store_prefix: "enn/3-1f/".into(),
        source_rank: None,
        step: 0,
    };
    vec![
        all(&[
            attach,
            FromScript::Ready { round: 3, step: 40 },
            FromScript::Progress { round: 3, step: 41 },
            FromScript::Parts { parts: 8.try_into().unwrap() },
            halted,
            failed,
        ]),
        all(&[ToScript::Assigned(seat), ToScript::Broken { round: 3, reason: "x".into() }, ToScript::Stop {}]),
    ]
}

/// Messages of scripts, as a slow one sends them.
pub(crate) fn scripts(bytes: &[u8]) {
    fn all<T: DeserializeOwned>(bytes: &[u8]) {
        let mut buffer = FrameBuffer::new();
        for part in bytes.chunks(50) {
            buffer.extend(part);
            while let Ok(Some(message)) = script::decode::<T>(&mut buffer) {
                drop(message);
            }
        }
    }
    all::<FromScript>(bytes);
    all::<ToScript>(bytes);
}

fn store_limits() -> StoreLimits {
    StoreLimits { store_bytes_max: 1 << 20, ..StoreLimits::default() }
}

pub(crate) fn store_seeds() -> Vec<Vec<u8>> {
    let field = |bytes: &[u8]| [&(bytes.len() as u64).to_le_bytes(), bytes].concat();
    let hello = [&[VALIDATE], &MAGIC.to_le_bytes()[..]].concat();
    let set = [&[1], &field(b"key")[..], &field(b"value")].concat();
    let add = [&[4], &field(b"count")[..], &5_i64.to_le_bytes()].concat();
    let many = |code: u8, fields: &[&[u8]]| {
        let each: Vec<u8> = fields.iter().flat_map(|bytes| field(bytes)).collect();
        [&[code], &(fields.len() as u64).to_le_bytes()[..], &each].concat()
    };
    let swap = [&[2], &field(b"key")[..], &field(b"value"), &field(b"other")].concat();
    let pairs = [&[11], &2_u64.to_le_bytes()[..], &field(b"a"), &field(b"1"), &field(b"b"), &field(b"2")].concat();
    let queue = [&[14], &field(b"q")[..], &field(b"one"), &[15], &field(b"q"), &[16], &field(b"q")].concat();
    let single = [&[3], &field(b"key")[..], &[7, 8], &field(b"key"), &[17, 12, 13, 1, 2, 3, 4]].concat();
    let several = [many(5, &[b"key", b"x"]), many(6, &[b"key", b"later"]), many(10, &[b"key", b"count"])].concat();
    vec![[hello.clone(), set.clone(), add, swap, single].concat(), [hello, set, several, pairs, queue].concat()]
}

/// In crumbs, as a slow client sends it.
pub(crate) fn store(bytes: &[u8]) {
    let mut parser = Parser::new(store_limits());
    let mut table = Table::new(store_limits());
    let mut held: Vec<u8> = Vec::new();
    let mut told = Vec::new();
    for part in bytes.chunks(13) {
        held.extend_from_slice(part);
        let mut rest = held.as_slice();
        loop {
            let Ok(request) = parser.next_request(&mut rest) else { return };
            let Some(request) = request else { break };
            told.clear();
            if table.apply(1, request, &mut |_, reply| reply.encode(&mut told)).is_err() {
                return;
            }
            assert!(table.bytes() <= store_limits().store_bytes_max);
        }
        held = rest.to_vec();
    }
    table.forget(1);
}

pub(crate) fn line_seeds() -> Vec<Vec<u8>> {
    let lines = [
        r#"{"command":"resize","workers":3}"#,
        r#"{"command":"drain","node":"a"}"#,
        r#"{"answer":"refused","reason":"it is over"}"#,
        r#"{"rows":{"rows":2}}"#,
        r#"{"staged":{"staged":"/s","out":"/o"}}"#,
        r#""ready""#,
        r#"{"failed":{"error":"no memory"}}"#,
        r#"{"ready":{"version":"2.11","about":{"isa":"avx2"}}}"#,
        r#"{"exported":{"rows":"test"}}"#,
    ];
    let numbers: Vec<u8> = (0..4).flat_map(|at| (at as f32).to_le_bytes()).collect();
    lines.into_iter().map(|line| [line.as_bytes(), b"\n", &numbers].concat()).collect()
}

/// What a person asks of a run, and what processes of one node tell each other over pipes: lines, numbers behind them, words of a page.
pub(crate) fn lines(bytes: &[u8]) {
    fn all<T: DeserializeOwned>(bytes: &[u8]) {
        let mut from = BufReader::new(bytes);
        while let Ok(Some(_)) = serve::get::<T>(&mut from) {
            let _ = serve::get_numbers(&mut from, 4);
        }
    }
    all::<command::Request>(bytes);
    all::<command::Answer>(bytes);
    all::<serve::ServeQuestion>(bytes);
    all::<serve::ServeReply>(bytes);
    all::<engine::EngineQuestion>(bytes);
    all::<engine::EngineReply>(bytes);
    all::<export::ExportReply>(bytes);
    let words: Vec<AtomicU64> = (0..PAGE_BYTES / 8).map(|_| AtomicU64::new(0)).collect();
    let page = ControlPage::create(&words).unwrap();
    page.open_intent(&Intent { op: "a".into(), kernel: "b".into(), sig: 1, operands: "c".into() });
    for (word, chunk) in words.iter().skip(1).zip(bytes.as_chunks().0) {
        word.store(u64::from_le_bytes(*chunk), std::sync::atomic::Ordering::Relaxed);
    }
    let _ = (page.intent(), page.phase(), page.step(), page.heartbeat_ns());
    page.give_back(page.step());
}

/// An engine that says 1 of every row.
struct One;

impl Engine for One {
    fn answer(&mut self, _: &[f32], rows: usize) -> Result<Answers, EngineError> {
        Ok(Answers { values: vec![1.0; rows], status: vec![RowStatus::judged(&[1.0], &[1.0], &[]) as u8; rows] })
    }

    fn ended(&self) -> Receiver<()> {
        never()
    }
}

fn subject(scratch: &Path) -> Subject {
    let parts = ["day_of_year.sin", "day_of_year.cos", "hour.sin", "hour.cos"].map(|part| format!("t.{part}"));
    let mut columns: Vec<(&str, &[&str])> = vec![("a", &[]), ("c", &["red", "b"])];
    columns.extend(parts.iter().map(|part| (part.as_str(), &[][..])));
    let mut data = tables::config(vec!["t.csv".into()], false);
    if let Layout::Rows(rows) = &mut data.layout {
        rows.row_id = None;
    }
    Subject {
        run: "test-1".into(),
        step: 7,
        data,
        meta: tables::meta(&columns),
        levels: vec![],
        scratch: scratch.into(),
    }
}

thread_local! {
    /// A server of this thread.
    static SERVER: RefCell<Option<(Server, SocketAddr)>> = const { RefCell::new(None) };
}

fn server() -> SocketAddr {
    SERVER.with(|server| {
        let mut server = server.borrow_mut();
        let (_, address) = server.get_or_insert_with(|| {
            let limits = Limits {
                unpacked_bytes_max: 16 << 20,
                head_wait: Duration::from_secs(2),
                body_wait: Duration::from_secs(2),
                ..Limits::default()
            };
            let address = SocketAddr::from(([127, 0, 0, 1], 0));
            let start = || -> Result<Box<dyn Engine>, Failure> { Ok(Box::new(One)) };
            let settings = Settings { address, token: None, limits, workers: 1 };
            let mut made = None;
            in_place(|dir| made = Some(Server::start(subject(dir), Box::new(start), settings).unwrap()));
            let made = made.unwrap();
            let address = made.address();
            (made, address)
        });
        *address
    })
}

/// How long a server that has not answered is believed to wait for more.
const PATIENCE: Duration = Duration::from_millis(20);

/// What the server says to these bytes; a panic of its own is none that a client may cause.
fn told(request: &[u8], whole: bool) -> String {
    let mut stream = TcpStream::connect(server()).unwrap();
    // It may have heard enough before all is sent.
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    if !whole {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let _ = stream.read_to_end(&mut answer);
        let _ = stream.shutdown(Shutdown::Write);
    }
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer).into_owned();
    assert!(!answer.contains("a bug of enn's"), "{answer}");
    answer
}

fn post(kind: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

const JSON: &str = "application/json";
const ARROW: &str = "application/vnd.apache.arrow.stream";

fn rows() -> Vec<u8> {
    br#"{"rows": [{"a": 3.5, "c": "red", "t": "2024-05-01T06:00"}, {"t": 7, "a": null, "c": "b"}]}"#.to_vec()
}

pub(crate) fn request_seeds() -> Vec<Vec<u8>> {
    let seeds =
        vec![post(JSON, &rows()), b"GET /example HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".to_vec()];
    for seed in &seeds {
        let answer = told(seed, true);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    seeds
}

pub(crate) fn requests(bytes: &[u8]) {
    told(bytes, false);
}

pub(crate) fn body_seeds() -> Vec<Vec<u8>> {
    let column = |values: [f64; 2]| std::sync::Arc::new(Float64Array::from(values.to_vec())) as arrow_array::ArrayRef;
    let text = std::sync::Arc::new(arrow_array::StringArray::from(vec!["red", "b"])) as arrow_array::ArrayRef;
    let batch =
        RecordBatch::try_from_iter([("a", column([1.0, 2.0])), ("c", text), ("t", column([0.0, 7.0]))]).unwrap();
    let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    writer.write(&batch).unwrap();
    let stream = writer.into_inner().unwrap();
    let arrays = br#"{"rows": [[3.5, "red", 7], [null, 1, null]]}"#.to_vec();
    for (kind, seed) in [(JSON, rows()), (JSON, arrays.clone()), (ARROW, stream.clone())] {
        let answer = told(&post(kind, &seed), true);
        assert!(answer.starts_with("HTTP/1.1 200"), "{kind}: {answer}");
    }
    vec![rows(), arrays, stream]
}

/// A whole request with this body, as either kind.
pub(crate) fn bodies(bytes: &[u8]) {
    let kind = if bytes.first() == Some(&b'{') { JSON } else { ARROW };
    assert!(told(&post(kind, bytes), true).starts_with("HTTP/1.1 "), "no answer");
}
