//! The trace in the format of Chrome and Perfetto: slices with a begin and a length, on named tracks.

use super::timing::{Span, Spans, wall_nanoseconds};
use crate::autograd::{Phase, Program, Rec};
use crate::op::Op;
use serde_json::{Value, json};

/// Track of the host, with nested slices for steps, phases and launches.
const HOST: u32 = 0;
/// Track of collectives: from the begin of a collective to the end of the operation that waits for it, by the host's clock.
const COLLECTIVES: u32 = 1;
const STREAM: u32 = 2;

/// The slices of one rank.
pub(super) struct Trace {
    rank: u32,
    base: u64,
    events: Vec<Value>,
}

impl Trace {
    pub(super) fn new(rank: u32) -> Self {
        let mut trace = Self { rank, base: wall_nanoseconds(), events: Vec::new() };
        trace.name("process_name", HOST, &format!("rank {rank}"));
        for (track, name) in [(HOST, "host"), (COLLECTIVES, "collectives in flight"), (STREAM, "stream")] {
            trace.name("thread_name", track, name);
        }
        trace
    }

    fn name(&mut self, what: &str, track: u32, name: &str) {
        let args = json!({ "name": name });
        self.events.push(json!({ "ph": "M", "name": what, "pid": self.rank, "tid": track, "args": args }));
    }

    fn slice(&mut self, track: u32, category: &str, name: &str, span: Span, args: &Value) {
        let begin = span.begin as f64 / 1e3;
        let length = span.nanoseconds() as f64 / 1e3;
        self.events.push(json!({
            "ph": "X", "name": name, "cat": category, "pid": self.rank, "tid": track, "ts": begin, "dur": length, "args": args,
        }));
    }

    pub(super) fn add(&mut self, step: u64, program: &Program, spans: &[Spans]) {
        let recs = program.recs();
        let Some(first) = spans.first() else { return };
        let last = spans.last().unwrap_or(first);
        let whole = Span { begin: first.host.begin, end: last.host.end };
        self.slice(HOST, "step", &format!("step {step}"), whole, &json!({ "step": step, "operations": recs.len() }));
        let mut begun = 0;
        for end in 1..=recs.len() {
            if end == recs.len() || recs[end].phase != recs[begun].phase {
                let span = Span { begin: spans[begun].host.begin, end: spans[end - 1].host.end };
                self.slice(HOST, "phase", phase_name(recs[begun].phase), span, &json!({ "operations": end - begun }));
                begun = end;
            }
        }
        for (rec, spans_of) in recs.iter().zip(spans) {
            let args = args(program, rec);
            let name = rec.op.row().name;
            self.slice(HOST, "op", name, spans_of.host, &args);
            if let Some(span) = spans_of.device {
                self.slice(STREAM, "op", name, span, &args);
            }
        }
        self.add_collectives(program, spans);
    }

    /// Adds the collectives in flight, each up to the order or wait that ends it.
    fn add_collectives(&mut self, program: &Program, spans: &[Spans]) {
        let recs = program.recs();
        let mut flying: Vec<usize> = Vec::new();
        for (at, (rec, spans_of)) in recs.iter().zip(spans).enumerate() {
            let ended = match rec.op {
                Op::AllReduceWait(_) => std::mem::take(&mut flying),
                Op::Order(_) => {
                    // Sums over replicas are completed by a wait only.
                    let (across, ended) =
                        flying.into_iter().partition(|begun| matches!(recs[*begun].op, Op::AllReduceCopies(_)));
                    flying = across;
                    ended
                }
                _ => {
                    flying.extend(rec.op.is_collective().then_some(at));
                    continue;
                }
            };
            for begun in ended {
                let span = Span { begin: spans[begun].host.begin, end: spans_of.host.end };
                let args = args(program, &recs[begun]);
                self.slice(COLLECTIVES, "collective", recs[begun].op.row().name, span, &args);
            }
        }
    }

    pub(super) fn json(&self) -> Value {
        json!({ "displayTimeUnit": "ns", "baseTimeNanoseconds": self.base, "traceEvents": self.events })
    }
}

pub(super) fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Forward => "forward",
        Phase::Backward => "backward",
        Phase::Comm => "communication",
        Phase::Optim => "optimizer",
        Phase::Recompute => "recomputation",
    }
}

fn args(program: &Program, rec: &Rec) -> Value {
    let shape = |val| {
        let meta = &program.val(val).meta;
        format!("{:?}{:?}", meta.kind, meta.shape.as_slice())
    };
    json!({
        "place": program.place(rec.scope),
        "phase": phase_name(rec.phase),
        "kernel": rec.kernel,
        "operands": rec.ins.iter().map(|val| shape(*val)).collect::<Vec<_>>(),
        "results": rec.outs().map(shape).collect::<Vec<_>>(),
    })
}
