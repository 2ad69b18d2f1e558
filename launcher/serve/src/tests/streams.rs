//! Streams over real sockets, and engines that hang.

use super::*;

/// A server whose engines add to a row's answer what they have said of its stream before.
fn carrying(limits: Limits) -> Bench {
    Bench::of(subject(), (sums, 1), settings(limits))
}

impl Bench {
    fn stream_request(method: &str, path: &str, body: &str) -> Vec<u8> {
        let length = body.len();
        format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: \
             close\r\n\r\n{body}"
        )
        .into_bytes()
    }

    fn on(&self, method: &str, path: &str, body: &str) -> HttpReply {
        self.ask(&Self::stream_request(method, path, body))
    }

    fn begin(&self) -> String {
        let reply = self.on("POST", "/streams", "");
        assert_eq!(reply.status, 201, "{}", reply.text);
        let reply: Value = serde_json::from_str(&reply.text).unwrap();
        format!("/streams/{}", reply["stream"].as_str().unwrap())
    }
}

/// Rows (a, 0): each is answered a and all before it.
fn rows(all: &[f64]) -> String {
    let rows: Vec<String> = all.iter().map(|a| format!("[{a}, 0]")).collect();
    format!("{{\"rows\": [{}]}}", rows.join(", "))
}

fn answers(reply: &HttpReply) -> Vec<f64> {
    assert_eq!(reply.status, 200, "{}", reply.text);
    let reply: Value = serde_json::from_str(&reply.text).unwrap();
    reply["rows"].as_array().unwrap().iter().map(|row| row[0].as_f64().unwrap()).collect()
}

#[test]
fn the_rows_of_a_stream_go_on_from_each_other_and_from_no_others() {
    let bench = carrying(Limits::default()).answering(5);
    let one = bench.begin();
    let two = bench.begin();
    assert_eq!(answers(&bench.on("POST", &one, &rows(&[1.0, 2.0]))), [1.0, 3.0]);
    assert_eq!(answers(&bench.on("POST", &two, &rows(&[5.0]))), [5.0]);
    assert_eq!(answers(&bench.on("POST", &one, &rows(&[4.0]))), [7.0]);
    assert_eq!(answers(&bench.post(&rows(&[4.0]))), [4.0], "what is no stream's begins anew");
    let reply: Value = serde_json::from_str(&bench.get(&one).text).unwrap();
    assert_eq!((&reply["rows"], &reply["idle_max_s"]), (&3.into(), &3600.into()));
    let described: Value = serde_json::from_str(&bench.get("/").text).unwrap();
    assert_eq!((&described["streams"]["most"], &described["streams"]["bytes"]), (&1024.into(), &4.into()));
    assert!(bench.get("/metrics").text.contains("enn_serve_streams 2"));
    let ended = bench.on("DELETE", &one, "");
    assert!(ended.status == 200 && ended.text.contains("\"rows\":3"), "{}", ended.text);
    let gone = bench.on("POST", &one, &rows(&[4.0]));
    assert!(gone.status == 404 && gone.error().contains("is not open"), "{}", gone.text);
}

#[test]
fn rows_of_several_streams_are_computed_together() {
    let bench = carrying(Limits::default());
    let streams: Vec<String> = (0..3).map(|_| bench.begin()).collect();
    let held = bench.send(&post(&rows(&[1.0])));
    assert_eq!(bench.rows(), 1);
    let bodies = [rows(&[1.0, 10.0]), rows(&[2.0]), rows(&[3.0, 30.0])];
    let asked: Vec<TcpStream> = streams
        .iter()
        .zip(&bodies)
        .map(|(path, body)| bench.send(&Bench::stream_request("POST", path, body)))
        .collect();
    bench.until("enn_serve_queue 3");
    let bench = bench.answering(3);
    assert_eq!(receive(held).status, 200);
    let found: Vec<Vec<f64>> = asked.into_iter().map(|stream| answers(&receive(stream))).collect();
    assert_eq!(found, [vec![1.0, 11.0], vec![2.0], vec![3.0, 33.0]]);
    assert_eq!((bench.rows(), bench.rows()), (3, 2), "the first row of each, then the second of those that have one");
}

#[test]
fn a_stream_whose_engine_was_lost_is_as_it_was() {
    let bench = carrying(Limits::default()).answering(1);
    let stream = bench.begin();
    assert_eq!(answers(&bench.on("POST", &stream, &rows(&[1.0]))), [1.0]);
    let lost = bench.send(&Bench::stream_request("POST", &stream, &rows(&[2.0, 4.0])));
    bench.rows();
    bench.rows();
    let busy = bench.on("POST", &stream, &rows(&[8.0]));
    assert!(busy.status == 409 && busy.error().contains("one after the other"), "{}", busy.text);
    bench.acts.send(Act::Answer).unwrap();
    bench.acts.send(Act::Fail("killed by signal 9")).unwrap();
    assert_eq!(receive(lost).status, 503);
    bench.until("enn_serve_workers_up 1");
    let bench = bench.answering(2);
    assert_eq!(answers(&bench.on("POST", &stream, &rows(&[2.0, 4.0]))), [3.0, 7.0]);
}

#[test]
fn streams_are_bounded_in_number_age_and_rows() {
    let idle = Duration::from_millis(300);
    let limits = Limits { streams_max: 2, stream_idle_max: idle, stream_rows_max: 3, ..Limits::default() };
    let bench = carrying(limits);
    let one = bench.begin();
    let _ = bench.begin();
    let full = bench.on("POST", "/streams", "");
    assert!(full.status == 429 && full.error().starts_with("2 streams are open"), "{}", full.text);
    let many = bench.on("POST", &one, &rows(&[1.0; 4]));
    assert!(many.status == 413 && many.error().contains("4 rows, expected at most 3"), "{}", many.text);
    bench.until("enn_serve_streams 0");
    assert_eq!(bench.on("POST", &one, &rows(&[1.0])).status, 404);
    bench.begin();
    // A model that carries nothing has none.
    let none = Bench::new(Limits::default()).on("POST", "/streams", "");
    assert!(none.status == 404 && none.error().contains("has no streams"), "{}", none.text);
    let method = bench.on("PUT", "/streams/x", "");
    assert!(method.status == 405 && method.error().contains("POST, GET, HEAD, DELETE"), "{}", method.text);
}

#[test]
fn an_engine_that_hangs_is_replaced_and_waiting_requests_fail() {
    let bench = Bench::new(Limits::default());
    let hung = bench.send(&post(&row(1.0)));
    bench.rows();
    bench.acts.send(Act::Hang(Duration::from_secs(30))).unwrap();
    let hung = receive(hung);
    assert_eq!(
        (hung.status, hung.error().as_str()),
        (504, "the worker gave no answer within 30 s and is replaced: send it again")
    );
    let bench = bench.answering(1);
    bench.until("enn_serve_workers_up 1");
    assert_eq!(bench.post(&row(1.0)).status, 200);
    let health: Value = serde_json::from_str(&bench.get("/health").text).unwrap();
    assert_eq!(health["workers"]["replaced"], 1);
    assert!(health["workers"]["last"].as_str().unwrap().contains("no answer within 30 s"), "{health}");
}
