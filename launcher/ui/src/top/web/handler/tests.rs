//! The page over real sockets: the secret, hosts, limits, catching up, hostile text.

use super::{super::live::LiveRun, *};
use crate::{http_server::HttpServer, model::tests::events};
use enn_common::event::{Event, EventKind};
use serde_json::Value;
use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
};

const SECRET: &str = "0123456789abcdef";
/// Longer than any answer takes that does not wait.
const SOON: Duration = Duration::from_secs(10);

struct TestPage {
    handler: Arc<PageHandler>,
    address: SocketAddr,
    server: Option<HttpServer>,
}

impl TestPage {
    /// A page of the first `count` events of the story.
    fn of(all: &[Event]) -> Self {
        let handler = Arc::new(PageHandler::new(BearerSecret::of(SECRET), "node7"));
        let mut live = LiveRun::default();
        all.iter().for_each(|event| live.apply(event));
        *handler.shown() = ShownRun { number: 1, live, living: true, ..ShownRun::default() };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let server = HttpServer::start("test-page", listener, Arc::clone(&handler), LIMITS).unwrap();
        Self { handler, address, server: Some(server) }
    }

    fn send(&self, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream
    }

    fn ask(&self, request: &str) -> String {
        let mut reply = String::new();
        self.send(request).read_to_string(&mut reply).unwrap();
        reply
    }

    fn get(&self, path: &str) -> String {
        self.ask(&format!(
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {SECRET}\r\nConnection: close\r\n\r\n"
        ))
    }

    #[track_caller]
    fn run(&self, query: &str) -> Value {
        let reply = self.get(&format!("/run?{query}"));
        let (head, body) = reply.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("content-type: application/json"), "{head}");
        serde_json::from_str(body).unwrap()
    }

    fn apply(&self, event: &Event) {
        self.handler.shown().live.apply(event);
        self.handler.versions.advance();
    }
}

impl Drop for TestPage {
    fn drop(&mut self) {
        self.server.take().map(|server| server.stop(Duration::ZERO));
    }
}

fn status(reply: &str) -> u16 {
    reply.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn data_need_the_secret_and_the_files_of_the_page_hold_none() {
    let page = TestPage::of(&events());
    for (path, kind, _) in FILES {
        let reply = page.ask(&format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1:7\r\nConnection: close\r\n\r\n"));
        assert!(reply.starts_with("HTTP/1.1 200 ") && reply.contains(kind), "{path}: {reply}");
        assert!(!reply.contains("weather") && !reply.contains("access-control"), "{path}");
        for header in
            ["content-security-policy: default-src 'none'", "nosniff", "no-store", "referrer-policy: no-referrer"]
        {
            assert!(reply.contains(header), "{path}: {header}");
        }
    }
    let with = |header: &str| {
        let request = format!("GET /run HTTP/1.1\r\nHost: localhost\r\n{header}Connection: close\r\n\r\n");
        let reply = page.ask(&request);
        (status(&reply), reply.contains("weather"))
    };
    assert_eq!(with(&format!("Authorization: Bearer {SECRET}\r\n")), (200, true));
    for header in [
        String::new(),
        "Authorization: Bearer 0123456789abcdee\r\n".to_owned(),
        format!("Authorization: Basic {SECRET}\r\n"),
        format!("Cookie: token={SECRET}\r\n"),
    ] {
        assert_eq!(with(&header), (401, false), "{header}");
    }
    let in_query =
        page.ask(&format!("GET /run?token={SECRET} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"));
    assert_eq!(status(&in_query), 401);
    assert_eq!(status(&page.get("/events.jsonl")), 404);
    assert_eq!(status(&page.get("/run?loss=x")), 400);
}

#[test]
fn other_hosts_and_methods_are_refused() {
    let page = TestPage::of(&events());
    let of = |line: &str, host: &str| {
        let request = format!("{line} HTTP/1.1\r\n{host}Authorization: Bearer {SECRET}\r\nConnection: close\r\n\r\n");
        status(&page.ask(&request))
    };
    for host in ["Host: localhost:8080\r\n", "Host: 127.0.0.1\r\n", "Host: [::1]:7007\r\n"] {
        assert_eq!(of("GET /run", host), 200, "{host}");
    }
    // A name of another site that resolves to this host.
    for host in ["Host: example.org:7007\r\n", "Host: localhost.example.org\r\n", "Host: 10.0.0.1\r\n", ""] {
        assert_eq!((of("GET /run", host), of("GET /", host)), (403, 403), "{host}");
    }
    assert_eq!(of("GET http://example.org/run", "Host: localhost\r\n"), 403);
    for method in ["POST", "OPTIONS", "DELETE"] {
        assert_eq!(of(&format!("{method} /run"), "Host: localhost\r\n"), 405, "{method}");
    }
    let long = format!("Host: localhost\r\nX: {}\r\n", "a".repeat(HEAD_BYTES_MAX));
    assert_eq!(of("GET /run", &long), 431);
}

#[test]
fn a_client_gets_what_it_lacks_however_long_it_slept() {
    let all = events();
    let steps: Vec<usize> = (0..all.len()).filter(|at| matches!(all[*at].what, EventKind::Stepped { .. })).collect();
    // Four steps of the first round.
    let page = TestPage::of(&all[..=steps[3]]);
    let first = page.run("");
    assert_eq!((first["run"].as_u64(), first["state"].as_str()), (Some(1), Some("running")));
    assert_eq!(first["curves"]["loss"]["points"].as_array().unwrap().len(), 4);
    let seen = format!("run=1&loss=0.4&events={}&marks=0&version={}", first["events"]["count"], first["version"]);
    all[steps[3] + 1..=steps[5]].iter().for_each(|event| page.apply(event));
    let second = page.run(&seen);
    let loss = &second["curves"]["loss"];
    assert_eq!((loss["from"].as_u64(), loss["points"][0][0].as_u64()), (Some(4), Some(5)));
    assert_eq!((loss["points"].as_array().unwrap().len(), second["events"]["lines"].as_array().unwrap().len()), (2, 0));
    // A restart in its sleep: the curve is another one, and comes as a whole.
    all[steps[5] + 1..].iter().for_each(|event| page.apply(event));
    let third = page.run(&seen);
    let loss = &third["curves"]["loss"];
    assert_eq!((loss["from"].as_u64(), loss["points"].as_array().unwrap().len()), (Some(0), 24));
    assert_eq!(third["marks"]["all"][0]["class"], "failure");
    assert_eq!((third["state"].as_str(), third["progress"]["share"].as_f64()), (Some("finished"), Some(1.0)));
    assert_eq!(third["curves"]["best"]["value"].as_f64(), Some(4.4));
    assert_eq!(third["curves"]["error_name"], "mean absolute error, °F");
    assert!(third["events"]["lines"].as_array().unwrap().len() > 5);
    // Another run is shown: nothing that the client has is of it.
    page.handler.shown().number = 2;
    page.handler.versions.advance();
    assert_eq!(page.run(&seen)["curves"]["loss"]["from"].as_u64(), Some(0));
}

#[test]
fn a_request_waits_for_news_and_a_crowd_does_not_keep_others_out() {
    let all = events();
    let page = TestPage::of(&all[..12]);
    let version = page.run("")["version"].as_u64().unwrap();
    let waiting = format!(
        "GET /run?version={version} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {SECRET}\r\nConnection: close\r\n\r\n"
    );
    let mut crowd: Vec<TcpStream> = (0..WAITING_MAX).map(|_| page.send(&waiting)).collect();
    let began = Instant::now();
    // Once all of them wait, one more is sent away.
    let refused = loop {
        let mut stream = page.send(&waiting);
        stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let mut reply = String::new();
        if stream.read_to_string(&mut reply).is_ok() {
            break reply;
        }
        assert!(began.elapsed() < SOON);
    };
    assert_eq!(status(&refused), 503);
    assert_eq!(page.run("version=0")["version"].as_u64(), Some(version), "who has nothing waits for nothing");
    page.apply(&all[12]);
    for stream in &mut crowd {
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        assert_eq!(status(&reply), 200);
    }
    assert!(began.elapsed() < WAIT_MAX, "the news woke them");
}

#[test]
fn a_million_steps_and_a_flood_of_warnings_make_a_bounded_answer() {
    let all = events();
    let page = TestPage::of(&all[..12]);
    {
        let mut shown = page.handler.shown();
        for step in 1..=1_000_000u64 {
            let loss = if step == 654_321 { 50.0 } else { 1.0 };
            let what = EventKind::Stepped { epoch: 1, step, loss, lr: 1e-3, grad_norm: 1.0, samples_per_s: 9.0 };
            shown.live.apply(&Event { time: all[11].time + step as f64, what });
        }
        for count in 0..5_000 {
            let message = format!("warning {count} {}", "x".repeat(1_000));
            shown.live.apply(&Event { time: all[11].time + 2e6, what: EventKind::Warned { message } });
        }
    }
    page.handler.versions.advance();
    let reply = page.get("/run");
    assert!(reply.len() < 2_000_000, "{} bytes", reply.len());
    let run: Value = serde_json::from_str(reply.split_once("\r\n\r\n").unwrap().1).unwrap();
    let points = run["curves"]["loss"]["points"].as_array().unwrap();
    assert!((900..2_100).contains(&points.len()), "{} points", points.len());
    assert!(points.iter().any(|point| point[4].as_f64() == Some(50.0)), "the greatest loss is kept");
    let lines = run["events"]["lines"].as_array().unwrap();
    assert!(lines.len() <= 400 && lines.last().unwrap()["text"].as_str().unwrap().starts_with("warning: warning 4999"));
    let next = format!("run=1&events={}&version=0", run["events"]["count"]);
    assert!(page.run(&next)["events"]["lines"].as_array().unwrap().is_empty());
}

#[test]
fn text_of_others_stays_text() {
    let mut all = events();
    all.truncate(12);
    let EventKind::RunStarted { run, host, .. } = &mut all[0].what else { panic!("the first event") };
    *run = "<script>alert(1)</script>".into();
    *host = "</body>\u{1b}[31mred\u{202e}".into();
    let message = "<img src=x onerror=alert(2)> \u{1b}]0;title\u{7}".to_owned();
    let time = all[11].time;
    all.push(Event { time, what: EventKind::Warned { message } });
    let page = TestPage::of(&all);
    let run = page.run("");
    assert_eq!(run["name"], "<script>alert(1)</script>", "the page writes it as text");
    let said = run["events"]["lines"].as_array().unwrap().last().unwrap()["text"].as_str().unwrap().to_owned();
    assert!(said.contains("<img src=x") && !said.chars().any(enn_common::shown::is_obeyed), "{said:?}");
    let host = run["workers"][0]["host"].as_str().unwrap();
    assert!(!host.chars().any(enn_common::shown::is_obeyed), "{host:?}");
}

#[test]
fn before_the_first_run_the_page_waits() {
    let page = TestPage::of(&[]);
    page.handler.shown().number = 0;
    let run = page.run("");
    assert_eq!((run["run"].as_u64(), run["state"].as_str()), (Some(0), Some("waiting")));
}

#[test]
fn the_page_is_small_and_loads_nothing_from_elsewhere() {
    let bytes: usize = FILES.iter().map(|(.., content)| content.len()).sum();
    assert!(bytes < 60_000, "{bytes} bytes");
    for (path, _, content) in FILES {
        let content = content.replace("http://www.w3.org/", "");
        for forbidden in
            ["http://", "https://", "innerHTML", "insertAdjacentHTML", "document.write", "eval(", "style=\"", "onclick"]
        {
            assert!(!content.contains(forbidden), "{path}: {forbidden}");
        }
    }
}
