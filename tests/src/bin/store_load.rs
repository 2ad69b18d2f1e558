//! Load for servers that speak c10d's TCPStore protocol, ours and PyTorch's, for tests/bench/store.py:
//!
//! ```text
//! store_load mix CLIENTS ROUNDS SECONDS PORT…   every client sets, gets and adds in turn, as torch's client does it
//! store_load barrier CLIENTS ROUNDS 1 PORT…     every client adds to a counter, and waits for the key the last one sets
//! ```
//! All clients are connected first; then each round loads the servers one after the other. It prints one JSON array with an
//! array for each server. One thread drives all clients, so that what it costs is the same for every server.

use mio::{Events, Interest, Poll, Token, net::TcpStream};
use std::{
    env,
    error::Error,
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, TcpStream as StdStream},
    time::{Duration, Instant},
};

const MAGIC: u32 = 0x3C85_F7CE;
const VALUE_BYTES: usize = 64;
/// A server that answers nothing for so long has failed.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time in which nothing is measured yet.
const WARM_UP: Duration = Duration::from_millis(200);

type Failure = Box<dyn Error>;

/// What a client does next, or waits for the reply of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    SetAndWait,
    Get,
    Add,
    Arrive,
    WaitForAll,
    Idle,
}

struct Client {
    stream: TcpStream,
    key: String,
    step: Step,
    reply: Vec<u8>,
    expected: usize,
    asked_at: Instant,
}

fn blob(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    out.extend_from_slice(bytes);
}

fn wait(out: &mut Vec<u8>, key: &str) {
    out.push(6);
    out.extend_from_slice(&1u64.to_le_bytes());
    blob(out, key.as_bytes());
}

fn add(out: &mut Vec<u8>, key: &str) {
    out.push(4);
    blob(out, key.as_bytes());
    out.extend_from_slice(&1i64.to_le_bytes());
}

impl Client {
    /// Sends what `step` says; `round` names the keys of a barrier.
    fn ask(&mut self, step: Step, round: &str, out: &mut Vec<u8>) -> Result<(), Failure> {
        out.clear();
        self.expected = match step {
            Step::SetAndWait => {
                out.push(1);
                blob(out, self.key.as_bytes());
                blob(out, &[b'v'; VALUE_BYTES]);
                wait(out, &self.key);
                1
            }
            Step::Get => {
                out.push(3);
                blob(out, self.key.as_bytes());
                8 + VALUE_BYTES
            }
            Step::Add => {
                add(out, "counter");
                8
            }
            Step::Arrive => {
                add(out, &format!("arrived-{round}"));
                8
            }
            Step::WaitForAll => {
                wait(out, &format!("go-{round}"));
                1
            }
            Step::Idle => 0,
        };
        self.step = step;
        self.reply.clear();
        self.asked_at = Instant::now();
        let sent = self.stream.write(out)?;
        if sent == out.len() { Ok(()) } else { Err("a request did not fit into the socket".into()) }
    }

    /// Reads once; whether the reply is whole.
    fn hear(&mut self) -> Result<bool, Failure> {
        let mut bytes = [0; 512];
        match self.stream.read(&mut bytes) {
            Ok(0) => Err("the server closed a connection".into()),
            Ok(read) => {
                self.reply.extend_from_slice(&bytes[..read]);
                Ok(self.expected > 0 && self.reply.len() >= self.expected)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// Connects and says the handshake and a ping.
fn connect(port: u16, number: usize) -> Result<StdStream, Failure> {
    let mut stream = StdStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut hello = vec![0];
    hello.extend_from_slice(&MAGIC.to_le_bytes());
    hello.push(13);
    hello.extend_from_slice(&(number as u32).to_le_bytes());
    stream.write_all(&hello)?;
    Ok(stream)
}

/// Hears the ping's answer.
fn welcome(mut stream: StdStream, number: usize, poll: &Poll) -> Result<Client, Failure> {
    let mut nonce = [0; 4];
    stream.read_exact(&mut nonce)?;
    if u32::from_le_bytes(nonce) != number as u32 {
        return Err("the ping came back changed".into());
    }
    stream.set_nonblocking(true)?;
    let mut stream = TcpStream::from_std(stream);
    poll.registry().register(&mut stream, Token(number), Interest::READABLE)?;
    let key = format!("key-of-client-{number}");
    Ok(Client { stream, key, step: Step::Idle, reply: Vec::new(), expected: 0, asked_at: Instant::now() })
}

fn percentile(sorted: &[u64], share: f64) -> f64 {
    let at = (sorted.len() as f64 * share) as usize;
    sorted.get(at.min(sorted.len().saturating_sub(1))).map_or(0.0, |nanoseconds| *nanoseconds as f64 / 1e3)
}

/// A server with its clients.
struct Target {
    poll: Poll,
    clients: Vec<Client>,
}

impl Target {
    fn connect(port: u16, count: usize) -> Result<Self, Failure> {
        let poll = Poll::new()?;
        // All knock before the first one is let in, as ranks do.
        let streams: Vec<StdStream> = (0..count).map(|number| connect(port, number)).collect::<Result<_, _>>()?;
        let welcomed = streams.into_iter().enumerate();
        let clients = welcomed.map(|(number, stream)| welcome(stream, number, &poll)).collect::<Result<_, _>>()?;
        Ok(Self { poll, clients })
    }

    /// Waits for something to read.
    fn wait(&mut self, events: &mut Events) -> Result<(), Failure> {
        self.poll.poll(events, Some(PATIENCE))?;
        if events.is_empty() { Err("the server does not answer".into()) } else { Ok(()) }
    }

    fn mix(&mut self, seconds: f64) -> Result<String, Failure> {
        let mut events = Events::with_capacity(1024);
        let mut out = Vec::new();
        for client in &mut self.clients {
            client.ask(Step::SetAndWait, "", &mut out)?;
        }
        let begin = Instant::now() + WARM_UP;
        let end = begin + Duration::from_secs_f64(seconds);
        let mut latencies = Vec::with_capacity(1 << 20);
        let mut asking = self.clients.len();
        while asking > 0 {
            self.wait(&mut events)?;
            for event in &events {
                let client = &mut self.clients[event.token().0];
                if !client.hear()? {
                    continue;
                }
                let now = Instant::now();
                if now > end {
                    asking -= 1;
                    continue;
                }
                if now > begin {
                    latencies.push((now - client.asked_at).as_nanos() as u64);
                }
                let next = match client.step {
                    Step::SetAndWait => Step::Get,
                    Step::Get => Step::Add,
                    _ => Step::SetAndWait,
                };
                client.ask(next, "", &mut out)?;
            }
        }
        latencies.sort_unstable();
        let operations = latencies.len() as f64 / seconds;
        let p50 = percentile(&latencies, 0.5);
        let p99 = percentile(&latencies, 0.99);
        Ok(format!(r#"{{"operations_per_s": {operations}, "p50_us": {p50}, "p99_us": {p99}}}"#))
    }

    fn barrier(&mut self, round: &str) -> Result<String, Failure> {
        let mut events = Events::with_capacity(1024);
        let mut out = Vec::new();
        let all = self.clients.len();
        let begin = Instant::now();
        for client in &mut self.clients {
            client.ask(Step::Arrive, round, &mut out)?;
        }
        let mut through = 0;
        while through < all {
            self.wait(&mut events)?;
            for event in &events {
                let client = &mut self.clients[event.token().0];
                if !client.hear()? {
                    continue;
                }
                if client.step == Step::WaitForAll {
                    through += 1;
                    continue;
                }
                let arrived = i64::from_le_bytes(client.reply.as_slice().try_into()?);
                client.ask(Step::WaitForAll, round, &mut out)?;
                if arrived == all as i64 {
                    out.clear();
                    out.push(1);
                    blob(&mut out, format!("go-{round}").as_bytes());
                    blob(&mut out, b"1");
                    client.stream.write_all(&out)?;
                }
            }
        }
        Ok(format!(r#"{{"seconds": {}}}"#, begin.elapsed().as_secs_f64()))
    }
}

fn main() -> Result<(), Failure> {
    let usage = "usage: store_load mix|barrier CLIENTS ROUNDS SECONDS PORT…";
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [what, clients, rounds, seconds, ports @ ..] = arguments.as_slice() else { return Err(usage.into()) };
    let (clients, rounds, seconds): (usize, usize, f64) = (clients.parse()?, rounds.parse()?, seconds.parse()?);
    let mut targets = Vec::new();
    for port in ports {
        targets.push((Target::connect(port.parse()?, clients)?, Vec::new()));
    }
    for round in 0..rounds {
        for (target, results) in &mut targets {
            results.push(match what.as_str() {
                "mix" => target.mix(seconds)?,
                "barrier" => target.barrier(&round.to_string())?,
                _ => return Err(usage.into()),
            });
        }
    }
    let servers: Vec<String> = targets.iter().map(|(_, results)| format!("[{}]", results.join(", "))).collect();
    #[expect(clippy::print_stdout, reason = "what this program is for")]
    {
        println!("[{}]", servers.join(", "));
    }
    Ok(())
}
