//! The server over real sockets: scrapers, liars, sluggards, crowds.

use super::*;
use crate::model::tests::{events, gang_events};
use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Instant,
};

fn ask(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    reply
}

fn server() -> MetricsServer {
    MetricsServer::start(address("0").unwrap()).unwrap()
}

#[test]
fn a_scraper_sees_the_run_as_it_goes() {
    let server = server();
    assert!(server.address().ip().is_loopback());
    let scrape = || ask(server.address(), b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(scrape().ends_with("# EOF\n"));
    for event in &gang_events()[..3] {
        server.event(event);
    }
    let text = scrape();
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.contains(openmetrics::CONTENT_TYPE), "{text}");
    assert!(text.contains("enn_run_state{enn_run_state=\"waiting\"} 1"), "{text}");
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{head}");
}

#[test]
fn a_resumed_run_keeps_its_past() {
    let server = server();
    let mut view = RunView::default();
    events().iter().for_each(|event| view.apply(event));
    server.set(&view);
    assert!(ask(server.address(), b"GET /metrics HTTP/1.1\r\n\r\n").contains("enn_step 24\n"));
}

#[test]
fn what_is_no_scrape_is_refused() {
    let server = server();
    assert!(ask(server.address(), b"GET /etc/passwd HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
    assert!(ask(server.address(), b"PUT /metrics HTTP/1.1\r\n\r\n").contains("allow: GET, HEAD\r\n"));
    let no_http = ask(server.address(), b"hello\r\n\r\n");
    assert!(
        no_http.starts_with("HTTP/1.1 400 ") && no_http.ends_with("\r\n\r\nthis is no HTTP/1.1 request\n"),
        "{no_http}"
    );
    let long = [b"GET /metrics HTTP/1.1\r\nX: ".as_slice(), &vec![b'a'; REQUEST_BYTES_MAX + 1]].concat();
    let long = ask(server.address(), &long);
    assert!(long.starts_with("HTTP/1.1 431 ") && long.ends_with("\r\n\r\nthe request is too long\n"), "{long}");
    let head = ask(server.address(), b"HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"), "{head}");
}

#[test]
fn a_crowd_that_says_nothing_is_sent_away_and_others_are_served() {
    let server = server();
    let mut crowd: Vec<TcpStream> =
        (0..CONNECTIONS_MAX + 8).map(|_| TcpStream::connect(server.address()).unwrap()).collect();
    let began = Instant::now();
    // All places are taken: this one waits until one of the crowd has had its time to ask.
    assert!(ask(server.address(), b"GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 "));
    let waited = began.elapsed();
    assert!(waited < CONNECTION_MAX / 2, "{waited:?}");
    assert_eq!(crowd[0].read(&mut [0]).unwrap(), 0, "the first was closed");
}

#[test]
fn requests_are_told_apart() {
    let of = |request: &str| {
        let reply = ask(server().address(), format!("{request}\r\nHost: x\r\n\r\n").as_bytes());
        reply.split(' ').nth(1).unwrap().to_owned()
    };
    for (request, status) in [
        ("GET /metrics HTTP/1.1", "200"),
        ("GET /metrics?x=1 HTTP/1.0", "200"),
        ("HEAD /metrics HTTP/1.1", "200"),
        ("GET / HTTP/1.1", "404"),
        ("POST /metrics HTTP/1.1", "405"),
        ("GET /metrics", "400"),
    ] {
        assert_eq!(of(request), status, "{request}");
    }
}

#[test]
fn a_taken_port_is_named() {
    let server = server();
    let error = MetricsServer::start(server.address()).unwrap_err().to_string();
    assert!(error.contains(&server.address().to_string()) && error.contains("hint"), "{error}");
    let taken = server.address();
    drop(server);
    assert!(MetricsServer::start(taken).is_ok(), "a dropped server frees its port");
}

#[test]
fn addresses_are_loopback_unless_said() {
    let of = |text: &str| address(text).map(|address| address.to_string());
    assert_eq!(of("9400").unwrap(), "127.0.0.1:9400");
    assert_eq!(of(":9400").unwrap(), "127.0.0.1:9400");
    assert_eq!(of("localhost:9400").unwrap(), "127.0.0.1:9400");
    assert_eq!(of("0.0.0.0:9400").unwrap(), "0.0.0.0:9400");
    assert_eq!(of("[::]:9400").unwrap(), "[::]:9400");
    for wrong in ["", "x", "70000", "example.org:80", "127.0.0.1"] {
        assert!(of(wrong).unwrap_err().to_string().contains("hint"), "{wrong}");
    }
}

#[test]
fn a_reader_that_reads_nothing_keeps_nobody_waiting() {
    let server = server();
    let mut deaf: Vec<TcpStream> = (0..8).map(|_| TcpStream::connect(server.address()).unwrap()).collect();
    deaf.iter_mut().for_each(|stream| stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap());
    assert!(ask(server.address(), b"GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 "));
}

/// The limit is this process's: run each test in a process of its own.
#[test]
fn a_server_without_descriptors_answers_whoever_asks() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 96, hard).unwrap();
    let server = server();
    let mut crowd = Vec::new();
    while let Ok(stream) = TcpStream::connect(server.address()) {
        crowd.push(stream);
    }
    assert!(crowd.len() > 30, "{}", crowd.len());
    // Test and server share one table of descriptors: what the test gives back, the server may take for connections that still wait. One
    // that is closed before it has asked may ask again.
    let began = Instant::now();
    loop {
        let mut reply = String::new();
        if let Ok(mut stream) = TcpStream::connect(server.address()) {
            let asked = stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n");
            if asked.is_ok() && stream.read_to_string(&mut reply).is_ok() && reply.starts_with("HTTP/1.1 200 ") {
                break;
            }
        }
        assert!(began.elapsed() < 4 * CONNECTION_MAX, "{reply}");
        // All of them may be on the crowd's side by now: it gives one back.
        drop(crowd.pop().expect("room before the last of the crowd has gone"));
        std::thread::park_timeout(Duration::from_millis(20));
    }
    assert!(!crowd.is_empty());
}
