//! Routes requests, independently of sockets and the HTTP library, which are in `http`.

use super::{
    Answers,
    budget::Share,
    inputs::{Inputs, sheet_rows},
    job::{EngineJob, Reply},
    media_type::{ARROW, JSON},
    metrics::ServeMetrics,
    problem::Problem,
    queue::{Jobs, NotTaken},
    rows::Columns,
    rows_error::RowsError,
    settings::Limits,
    streams::Streams,
    token::Token,
};
use arrow_array::RecordBatch;
use arrow_schema::{ArrowError, Schema};
use enn_data::stage::{Batches, text_bytes};
use enn_ui::http_server::{HttpAnswer, is_loopback};
use serde_json::{Value, json};
use std::{
    cell::{Cell, RefCell},
    io,
    net::SocketAddr,
    sync::Arc,
    time::Instant,
};

#[derive(Debug, Clone, Copy)]
pub(super) struct Head<'a> {
    pub(super) method: &'a str,
    pub(super) path: &'a str,
    pub(super) host: Option<&'a [u8]>,
    pub(super) authorization: Option<&'a [u8]>,
    pub(super) content_type: Option<&'a [u8]>,
}

impl Head<'_> {
    /// Returns an error for a method that a path does not support.
    fn method(&self, path: &'static str, allowed: &'static str) -> Result<(), Problem> {
        let fits = allowed.split(", ").any(|one| one == self.method);
        let found = self.method.chars().take(20).collect();
        if fits { Ok(()) } else { Err(Problem::Method { path, allowed, found }) }
    }
}

/// The next step for a request.
#[derive(Debug)]
pub(super) enum Step {
    Done(HttpAnswer),
    /// The body must be read and given to [`Router::submit`].
    Predict(PredictRequest),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PredictRequest {
    form: Form,
    /// The stream that the rows continue.
    stream: Option<String>,
}

/// The format of rows and answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Json,
    Arrow,
}

fn ok(kind: &'static str, body: Vec<u8>) -> HttpAnswer {
    HttpAnswer { status: 200, kind, header: None, body }
}

fn json(status: u16, value: &Value) -> HttpAnswer {
    HttpAnswer { status, kind: JSON, header: None, body: format!("{value}\n").into_bytes() }
}

impl From<&Problem> for HttpAnswer {
    fn from(problem: &Problem) -> Self {
        Self { status: problem.status(), kind: JSON, header: problem.header(), body: problem.body() }
    }
}

/// The properties of a request that determine the form of its response.
#[derive(Debug)]
pub(super) struct ResponseContext {
    form: Form,
    objects: bool,
    names: Vec<String>,
}

pub(super) struct Router {
    pub(super) inputs: Inputs,
    pub(super) metrics: Arc<ServeMetrics>,
    pub(super) jobs: Jobs,
    /// The streams; `None` where the model has no state.
    pub(super) streams: Option<Arc<Streams>>,
    pub(super) token: Option<Token>,
    pub(super) address: SocketAddr,
    pub(super) limits: Limits,
}

impl Router {
    /// Decides by the head alone.
    pub(super) fn head(&self, head: &Head<'_>) -> Step {
        self.route(head).unwrap_or_else(|problem| Step::Done((&problem).into()))
    }

    fn route(&self, head: &Head<'_>) -> Result<Step, Problem> {
        let method = |path, allowed| head.method(path, allowed);
        let read = "GET, HEAD";
        // Health checks need no token.
        match head.path {
            "/health" | "/health/ready" => {
                return method("/health", read).map(|()| Step::Done(self.health(true, head)));
            }
            "/health/live" => return method("/health/live", read).map(|()| Step::Done(self.health(false, head))),
            _ => {}
        }
        if let Some(token) = &self.token {
            if !token.is_in(head.authorization) {
                return Err(Problem::Token);
            }
        } else if let Some(host) = head.host.filter(|host| !is_loopback(host)) {
            // A web page from another site must not read what only this host's user may.
            return Err(Problem::Host { found: String::from_utf8_lossy(host).chars().take(80).collect() });
        }
        match head.path {
            "/predict" => {
                method("/predict", "POST")?;
                self.ready()?;
                Ok(Step::Predict(PredictRequest { form: form(head.content_type)?, stream: None }))
            }
            "/streams" => {
                method("/streams", "POST")?;
                self.ready()?;
                let name = self.streams()?.begin(Instant::now())?;
                Ok(Step::Done(json(201, &json!({ "stream": name }))))
            }
            "/" => {
                method("/", read)?;
                let streams = self.streams.as_ref().map(|streams| streams.description());
                Ok(Step::Done(ok(JSON, self.inputs.schema.body(self.address, self.token.is_some(), streams))))
            }
            "/example" => {
                method("/example", read)?;
                Ok(Step::Done(json(200, &self.inputs.schema.example())))
            }
            "/metrics" => {
                method("/metrics", read)?;
                let streams = self.streams.as_ref().map(|streams| streams.count(Instant::now()));
                let page = self.metrics.page(self.jobs.len(), streams);
                Ok(Step::Done(ok(enn_ui::openmetrics::CONTENT_TYPE, page.into_bytes())))
            }
            path => match path.strip_prefix("/streams/") {
                Some(name) => self.stream(head, name),
                None => Err(Problem::NotFound { path: path.chars().take(80).collect() }),
            },
        }
    }

    /// Answers a health check on an excess connection, without the details that need a token.
    pub(super) fn health_unauthenticated(&self, asked: &[u8]) -> Option<HttpAnswer> {
        let line = asked.split(|byte| *byte == b'\r').next().and_then(|line| std::str::from_utf8(line).ok())?;
        let mut words = line.split(' ');
        let method = words.next()?;
        let path = words.next()?;
        let head = Head { method, path, host: Some(b""), authorization: None, content_type: None };
        let asks_ready = match path {
            "/health" | "/health/ready" => true,
            "/health/live" => false,
            _ => return None,
        };
        matches!(method, "GET" | "HEAD").then(|| self.health(asks_ready, &head))
    }

    fn streams(&self) -> Result<&Arc<Streams>, Problem> {
        self.streams.as_ref().ok_or(Problem::NoStreams)
    }

    fn stream(&self, head: &Head<'_>, name: &str) -> Result<Step, Problem> {
        let streams = self.streams()?;
        let now = Instant::now();
        head.method("/streams/NAME", "POST, GET, HEAD, DELETE")?;
        let known = streams.describe(name, now)?;
        match head.method {
            "POST" => {
                self.ready()?;
                Ok(Step::Predict(PredictRequest { form: form(head.content_type)?, stream: Some(name.to_owned()) }))
            }
            "DELETE" => {
                streams.end(name, now)?;
                Ok(Step::Done(json(200, &json!({ "ended": name, "rows": known["rows"] }))))
            }
            _ => Ok(Step::Done(json(200, &known))),
        }
    }

    /// Returns an error if a request would not be computed.
    fn ready(&self) -> Result<(), Problem> {
        let (up, _, cause) = self.metrics.engines();
        if self.metrics.is_draining() {
            Err(Problem::Closing)
        } else if up == 0 {
            Err(Problem::NoWorker { cause })
        } else {
            Ok(())
        }
    }

    /// The message of a failed worker may contain file names, and is shown to authorised clients only.
    fn health(&self, asks_ready: bool, head: &Head<'_>) -> HttpAnswer {
        let is_known = match &self.token {
            Some(token) => token.is_in(head.authorization),
            None => head.host.is_none_or(is_loopback),
        };
        let (up, of, _) = self.metrics.engines();
        let ready = self.ready();
        let why = ready.as_ref().err().map(|problem| match problem {
            Problem::NoWorker { .. } if !is_known => "no worker is up".to_owned(),
            problem => problem.to_string(),
        });
        let (replaced, last) = self.metrics.replaced();
        let last = last.filter(|_| is_known);
        let workers = json!({"up": up, "of": of, "replaced": replaced, "last": last});
        let status = if ready.is_err() && asks_ready { 503 } else { 200 };
        json(status, &json!({"live": true, "ready": ready.is_ok(), "why": why, "workers": workers}))
    }

    /// Parses a body and queues its rows. `share` holds the body's bytes.
    pub(super) fn submit(
        &self,
        request: PredictRequest,
        body: Vec<u8>,
        mut share: Share,
        reply: Box<dyn Reply>,
    ) -> Result<ResponseContext, Problem> {
        let PredictRequest { form, stream } = request;
        let columns = &self.inputs.schema.columns;
        let numbers = self.inputs.numbers();
        let most = if stream.is_some() { self.limits.stream_rows_max } else { self.limits.rows_max };
        let rows_max = most.min(self.limits.numbers_max / numbers).max(1);
        let (batch, objects) = match form {
            Form::Json => columns.read(&body, rows_max)?,
            Form::Arrow => {
                let bytes_max = self.limits.unpacked_bytes_max;
                (arrow(&body, columns, rows_max, bytes_max, &mut share)?, false)
            }
        };
        drop(body);
        let encoded = self.inputs.encode(batch, rows_max)?;
        let bytes = (encoded.x.len() + encoded.rows * numbers) * size_of::<f32>();
        if !share.grow(bytes) {
            return Err(Problem::Busy);
        }
        share.shrink(bytes);
        let context = ResponseContext { form, objects, names: encoded.names };
        let lease = stream.map(|name| self.streams()?.lease(&name, Instant::now())).transpose()?;
        match self.jobs.push(EngineJob::new(encoded.x, encoded.rows, reply, share, lease)) {
            Ok(()) => Ok(context),
            Err(NotTaken::Full) => Err(Problem::Busy),
            Err(NotTaken::Closed) => Err(Problem::NoWorker { cause: self.metrics.engines().2 }),
        }
    }

    /// Formats the answers in the form of the request.
    pub(super) fn respond(&self, context: &ResponseContext, answers: &Answers) -> HttpAnswer {
        let rows = sheet_rows(&context.names, answers);
        match context.form {
            Form::Json => ok(JSON, self.inputs.sheet.json(&rows, context.objects)),
            Form::Arrow => match self.inputs.sheet.arrow(&rows) {
                Ok(body) => ok(ARROW, body),
                Err(error) => (&Problem::Lost { cause: error.to_string() }).into(),
            },
        }
    }
}

fn form(content_type: Option<&[u8]>) -> Result<Form, Problem> {
    let found = String::from_utf8_lossy(content_type.unwrap_or_default());
    match found.split(';').next().unwrap_or_default().trim().to_ascii_lowercase().as_str() {
        JSON => Ok(Form::Json),
        ARROW => Ok(Form::Arrow),
        _ => Err(Problem::Kind { found: found.chars().take(80).collect() }),
    }
}

/// Reads the columns of an Arrow stream as one batch. `share` holds the body's bytes, and grows with the unpacked data.
fn arrow(
    body: &[u8],
    columns: &Columns,
    rows_max: usize,
    bytes_max: usize,
    share: &mut Share,
) -> Result<RecordBatch, Problem> {
    let held = Cell::new(0_usize);
    let share = RefCell::new(share);
    let room = |bytes: u64| {
        held.set(usize::try_from(bytes).map_or(usize::MAX, |bytes| held.get().saturating_add(bytes)));
        if held.get() > bytes_max {
            Err(Problem::Unpacked { limit: bytes_max })
        } else if share.borrow_mut().grow(body.len() + held.get()) {
            Ok(())
        } else {
            Err(Problem::Busy)
        }
    };
    let wrong = |error| match error {
        // The problem that `room` returned comes back from the reader.
        ArrowError::IoError(text, source) => source
            .downcast::<Problem>()
            .unwrap_or_else(|source| Problem::Body(RowsError::Arrow(ArrowError::IoError(text, source)))),
        error => Problem::Body(RowsError::Arrow(error)),
    };
    let mut batches = Vec::new();
    let mut rows = 0_usize;
    let chosen =
        |schema: &Schema| columns.choose(schema).map(Some).map_err(|why| io::Error::other(Problem::from(why)).into());
    let read = Batches::open_some(body, chosen, |bytes| room(bytes).map_err(io::Error::other)).map_err(wrong)?;
    for batch in read.alone() {
        let batch = batch.map_err(wrong)?;
        rows = rows.saturating_add(batch.num_rows());
        if rows > rows_max {
            return Err(Problem::Rows { found: rows, limit: rows_max });
        }
        room(text_bytes(&batch))?;
        batches.push(batch);
    }
    match batches.as_slice() {
        [] => Err(RowsError::None.into()),
        [_] => Ok(batches.remove(0)),
        [first, ..] => arrow_select::concat::concat_batches(&first.schema(), &batches).map_err(wrong),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_told_by_their_media_types() {
        assert_eq!(form(Some(b"application/json; charset=utf-8")).unwrap(), Form::Json);
        assert_eq!(form(Some(b"Application/Vnd.Apache.Arrow.Stream")).unwrap(), Form::Arrow);
        assert!(form(Some(b"text/csv")).unwrap_err().to_string().contains("\"text/csv\""));
        assert_eq!(form(None).unwrap_err().status(), 415);
    }
}
