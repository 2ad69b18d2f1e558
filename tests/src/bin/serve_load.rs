//! Load for servers that answer `POST /predict`, ours and a peer's, for tests/bench/serve_rps.py:
//!
//! ```text
//! serve_load ADDRESS CONNECTIONS SECONDS BODY      BODY: a file, posted again and again on each connection, which is kept
//! ```
//! It prints {"rps", "p50_ms", "p99_ms", "errors"} of the seconds after a short warm-up.

use serde_json::json;
use std::{
    error::Error,
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    process::ExitCode,
    time::{Duration, Instant},
};

type Failure = Box<dyn Error + Send + Sync>;

/// A server that answers nothing for so long has failed.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time in which nothing is measured yet.
const WARM_UP: Duration = Duration::from_millis(500);

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _gone = writeln!(std::io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [address, connections, seconds, body] = args.as_slice() else {
        return Err("usage: serve_load ADDRESS CONNECTIONS SECONDS BODY".into());
    };
    let (address, connections): (SocketAddr, usize) = (address.parse()?, connections.parse()?);
    let measured = Duration::from_secs_f64(seconds.parse()?);
    let body = fs::read(body)?;
    let head = format!(
        "POST /predict HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let request = [head.as_bytes(), &body].concat();
    let begin = Instant::now() + WARM_UP;
    let client = || client(address, &request, (begin, begin + measured));
    let done: Vec<Result<(Vec<f64>, u64), Failure>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..connections).map(|_| scope.spawn(client)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err("a client panicked".into()))).collect()
    });
    let mut times = Vec::new();
    let mut errors = 0;
    for one in done {
        let (own, wrong) = one?;
        times.extend(own);
        errors += wrong;
    }
    times.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| times.get((share * times.len() as f64) as usize).map(|seconds| seconds * 1e3);
    let rps = times.len() as f64 / measured.as_secs_f64();
    let told = json!({"rps": rps, "p50_ms": at(0.5), "p99_ms": at(0.99), "errors": errors});
    Ok(writeln!(std::io::stdout(), "{told}")?)
}

/// Seconds of each request that ended within the time, and how many were answered with an error.
fn client(address: SocketAddr, request: &[u8], (begin, end): (Instant, Instant)) -> Result<(Vec<f64>, u64), Failure> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut answers = BufReader::new(stream.try_clone()?);
    let mut times = Vec::new();
    let mut errors = 0;
    let mut body = Vec::new();
    loop {
        let asked = Instant::now();
        if asked >= end {
            return Ok((times, errors));
        }
        stream.write_all(request)?;
        let mut line = String::new();
        let mut length = 0;
        let mut is_ok = false;
        loop {
            line.clear();
            answers.read_line(&mut line)?;
            if let Some(status) = line.strip_prefix("HTTP/1.1 ") {
                is_ok = status.starts_with("200");
            } else if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse()?;
            }
            if line.trim().is_empty() {
                break;
            }
        }
        body.resize(length, 0);
        answers.read_exact(&mut body)?;
        let told = Instant::now();
        errors += u64::from(!is_ok);
        if is_ok && begin <= told && told <= end {
            times.push((told - asked).as_secs_f64());
        }
    }
}
