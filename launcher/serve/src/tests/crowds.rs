//! Many clients at once: long requests beside short ones, connections on which nothing is asked, readers that read nothing, and a
//! process without descriptors.

#![expect(clippy::disallowed_methods, reason = "some tests are about what time does to clients that do nothing")]

use super::*;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

const KEEP_ALIVE: &[u8] = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n";

fn rows_of(count: usize) -> String {
    let rows: Vec<String> = (0..count).map(|a| format!("[{a}, 0]")).collect();
    format!("{{\"rows\": [{}]}}", rows.join(", "))
}

/// A connection that has asked for something, was answered, and stays.
fn idle(bench: &Bench) -> TcpStream {
    let mut stream = bench.send(KEEP_ALIVE);
    let mut found = Vec::new();
    while memchr::memmem::find(&found, b"}}\n").is_none() {
        let mut block = [0; 512];
        let count = stream.read(&mut block).unwrap();
        assert!(count > 0, "it was closed: {}", String::from_utf8_lossy(&found));
        found.extend_from_slice(&block[..count]);
    }
    assert!(found.starts_with(b"HTTP/1.1 200"));
    stream
}

#[test]
fn a_short_request_is_computed_between_the_parts_of_a_long_one() {
    let bench = Bench::new(Limits { batch_rows_max: 4, ..Limits::default() });
    let long = bench.send(&post(&rows_of(22)));
    assert_eq!(bench.rows(), 4, "a part");
    let short: Vec<TcpStream> = (1..=2).map(|a| bench.send(&post(&row(f64::from(a))))).collect();
    bench.until("enn_serve_queue 2");
    let bench = bench.answering(7);
    assert_eq!((bench.rows(), bench.rows()), (2, 4), "those that are short, then the long one goes on");
    for (a, stream) in (1..=2).zip(short) {
        assert!(receive(stream).text.contains(&format!("[{}.0,", a + 10)));
    }
    let reply: Value = serde_json::from_str(&receive(long).text).unwrap();
    let found: Vec<f64> = reply["rows"].as_array().unwrap().iter().map(|row| row[0].as_f64().unwrap()).collect();
    assert_eq!(found, (0..22).map(f64::from).collect::<Vec<_>>(), "all of its rows, in their order");
}

#[test]
fn an_engine_that_ends_in_a_long_request_does_not_take_others_with_it() {
    let bench = Bench::new(Limits { batch_rows_max: 4, ..Limits::default() }).answering(1);
    let long = bench.send(&post(&rows_of(12)));
    assert_eq!((bench.rows(), bench.rows()), (4, 4));
    let short = bench.send(&post(&row(1.0)));
    bench.until("enn_serve_queue 1");
    bench.acts.send(Act::Fail("killed by signal 9")).unwrap();
    assert_eq!(receive(long).status, 503);
    let _bench = bench.answering(1);
    assert_eq!(receive(short).status, 200);
}

#[test]
fn a_long_request_that_nobody_waits_for_is_not_computed_to_its_end() {
    let bench = Bench::new(Limits { batch_rows_max: 4, answer_wait: Duration::from_secs(1), ..Limits::default() });
    let long = bench.post(&rows_of(4000));
    assert_eq!(long.status, 504);
    let bench = bench.answering(2);
    assert_eq!(bench.post(&row(1.0)).status, 200);
    assert_eq!((bench.rows(), bench.rows()), (4, 1));
}

#[test]
fn rows_of_a_long_stream_do_not_hold_up_others() {
    let bench = Bench::of(subject(), (sums, 1), settings(Limits::default()));
    let status_of: Value = serde_json::from_str(
        &bench.ask(b"POST /streams HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").text,
    )
    .unwrap();
    let name = status_of["stream"].as_str().unwrap();
    let body = rows_of(3);
    let long = bench.send(&Vec::from(format!(
        "POST /streams/{name} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: \
         close\r\n\r\n{body}",
        body.len()
    )));
    assert_eq!(bench.rows(), 1);
    let short = bench.send(&post("{\"rows\": [[5, 0], [6, 0]]}"));
    bench.until("enn_serve_queue 1");
    // The first row takes longer than a part may.
    std::thread::sleep(2 * policy::PART_TIME);
    let bench = bench.answering(4);
    assert_eq!(bench.rows(), 2, "the other request comes between two rows of the stream");
    assert_eq!(receive(short).status, 200);
    assert!(receive(long).text.contains("[[0.0,null],[1.0,null],[3.0,null]]"), "and the stream went on");
}

#[test]
fn idle_connections_make_room_for_those_who_ask() {
    let bench = Bench::new(Limits { connections_max: 8, ..Limits::default() }).answering(1);
    let mut crowd: Vec<TcpStream> = (0..8).map(|_| idle(&bench)).collect();
    // At once, only the health is told; nobody has been idle for long.
    assert_eq!(bench.get("/health/live").status, 200);
    assert_eq!(bench.get("/").status, 503);
    std::thread::sleep(http::IDLE_MIN);
    assert_eq!(bench.post(&row(1.0)).status, 200);
    assert_eq!(bench.get("/health").status, 200);
    let mut closed = 0;
    for stream in &mut crowd {
        stream.set_nonblocking(true).unwrap();
        closed += usize::from(matches!(stream.read(&mut [0]), Ok(0)));
    }
    assert!((1..=3).contains(&closed), "only as many as were needed: {closed}");
}

#[test]
fn those_whose_requests_are_computed_keep_their_places_and_health_is_answered() {
    let bench = Bench::new(Limits { connections_max: 2, ..Limits::default() });
    let busy: Vec<TcpStream> = (0..2).map(|a| bench.send(&post(&row(f64::from(a))))).collect();
    bench.rows();
    std::thread::sleep(http::IDLE_MIN);
    for path in ["/health/live", "/health", "/health/ready"] {
        let health = bench.get(path);
        assert!(health.status == 200 && health.text.contains("\"live\":true"), "{}", health.text);
    }
    let away = bench.post(&row(1.0));
    assert!(away.status == 503 && away.error().contains("at most 2"), "{}", away.text);
    let _bench = bench.answering(2);
    assert!(busy.into_iter().all(|stream| receive(stream).status == 200));
}

#[test]
fn a_reader_that_reads_nothing_keeps_its_place_until_its_time_is_over() {
    let second = Duration::from_secs(1);
    let bench = Bench::new(Limits { body_wait: 2 * second, ..Limits::default() });
    let head = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    // Answers that nobody takes, more than the kernel keeps.
    let mut slow = bench.send(b"");
    slow.set_write_timeout(Some(second)).unwrap();
    while slow.write_all(head.repeat(64).as_bytes()).is_ok() {}
    assert_eq!(bench.get("/health").status, 200, "others are served");
    bench.until("enn_serve_connections 1");
}

/// The limit is this process's: run each test in a process of its own.
#[test]
fn a_server_without_descriptors_serves_those_who_ask() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 128, hard).unwrap();
    let bench = Bench::new(Limits::default()).answering(64);
    // Clients are of this process as well: some of their connections find no descriptor on the other side.
    let mut crowd = Vec::new();
    while let Ok(stream) = TcpStream::connect(bench.address) {
        crowd.push(stream);
    }
    assert!(crowd.len() > 30, "{}", crowd.len());
    // Test and server share one table of descriptors: one that the test gives back may be taken for a client that waits to be accepted.
    let asked = || {
        let stream = bench.try_send(&post(&row(1.0)))?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        try_receive(stream)
    };
    let is_served = || asked().is_ok_and(|reply| reply.status == 200);
    let began = Instant::now();
    while !is_served() {
        drop(crowd.pop());
        assert!(began.elapsed() < WAIT, "it serves nobody any more");
    }
    drop(crowd);
    assert!(is_served());
}
