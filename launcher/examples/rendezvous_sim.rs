//! `rendezvous_sim AGENTS`: so many simulated agents meet in one real rendezvous over real sockets, are told of a round and
//! of each other, finish, and learn of the end. Prints JSON with the CPU seconds of the host with its store and of all
//! agents, which live in a process of their own. Used by tests/bench/rendezvous_sim.py.

#![expect(clippy::print_stdout, reason = "its output is its result")]

use enn_cluster::rendezvous::{Notification, Rendezvous, Settings, StoreLocation};
use enn_common::wire::{
    frame::{self, FrameBuffer},
    node::{FromLeader, NodeDescription, NodeId, PREFIX, PROOF_BYTES, PROTOCOL, RunEnd, Terms, ToLeader},
};
use mio::{Events, Interest, Poll, Token, net::TcpStream};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit},
};
use std::{
    error::Error,
    io::{ErrorKind, Read, Write},
    net::SocketAddr,
    process::Command,
    time::{Duration, Instant},
};

/// Descriptors of a process besides one for each agent.
const DESCRIPTORS_SPARE: u64 = 64;
/// Agents that connect at a time, as many as a listener's queue surely takes.
const CONNECTING_MAX: usize = 512;
/// The only round there is.
const ROUND: u64 = 0;
/// Bytes of a frame's length, and the number of `FromLeader::Roster` behind it.
const LENGTH_BYTES: usize = 4;
const ROSTER: u8 = 4;
/// Longest wait for anything.
const WAIT_MAX: Duration = Duration::from_secs(60);

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A simulated agent: its words in order, and what it has heard. It throws the list of members away unread: a real one has
/// a machine of its own to read it on.
struct Agent {
    stream: TcpStream,
    buffer: FrameBuffer,
    /// Bytes of the list that are still to come.
    skip: usize,
    id: u64,
    greeted: bool,
    rank: Option<u32>,
    over: bool,
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        [agents] => host(agents.parse()?),
        [agents, port] => crowd(agents.parse()?, port.parse()?),
        _ => Err("usage: rendezvous_sim AGENTS".into()),
    }
}

fn descriptors(agents: u32) -> Result<()> {
    let wanted = u64::from(agents) + DESCRIPTORS_SPARE;
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if hard < wanted {
        return Err(format!("{agents} agents need {wanted} descriptors, and {hard} are allowed (ulimit -Hn)").into());
    }
    Ok(setrlimit(Resource::RLIMIT_NOFILE, wanted, hard)?)
}

/// The host's own node is one of the agents; the others are another process's.
fn host(agents: u32) -> Result<()> {
    descriptors(agents)?;
    let began = Instant::now();
    let host = Rendezvous::start(settings(agents))?;
    host.join();
    let port = host.store().1.to_string();
    let mut crowd = Command::new(std::env::current_exe()?).args([agents.to_string(), port]).spawn()?;
    let plan = loop {
        match notification(&host)? {
            Notification::Round(plan) => break plan,
            Notification::RunEnded(end) => return Err(format!("the run ended: {end:?}").into()),
            _ => {}
        }
    };
    let met = began.elapsed();
    assert_eq!(plan.members.len(), agents as usize, "members");
    host.finished(plan.round);
    while !matches!(notification(&host)?, Notification::RunEnded(RunEnd::Finished)) {}
    drop(host);
    let ended = crowd.wait()?;
    assert!(ended.success(), "the agents: {ended}");
    let ours = cpu(UsageWho::RUSAGE_SELF)?;
    let theirs = cpu(UsageWho::RUSAGE_CHILDREN)?;
    println!(
        r#"{{"agents": {agents}, "met_s": {:.3}, "wall_s": {:.3}, "host_cpu_s": {:.3}, "agents_cpu_s": {:.3}, "cpu_s": {:.3}}}"#,
        met.as_secs_f64(),
        began.elapsed().as_secs_f64(),
        ours.as_secs_f64(),
        theirs.as_secs_f64(),
        (ours + theirs).as_secs_f64()
    );
    Ok(())
}

fn crowd(agents: u32, port: u16) -> Result<()> {
    descriptors(agents)?;
    let mut crowd = Crowd::new(port, terms(&settings(agents)))?;
    crowd.meet(agents as usize - 1)?;
    crowd.finish()
}

fn notification(host: &Rendezvous) -> Result<Notification> {
    loop {
        host.clear();
        if let Some(notification) = host.next_notification() {
            return Ok(notification);
        }
        let mut fds = [PollFd::new(host.fd(), PollFlags::POLLIN)];
        if poll(&mut fds, PollTimeout::try_from(WAIT_MAX)?)? == 0 {
            return Err("nothing happens any more".into());
        }
    }
}

fn cpu(who: UsageWho) -> Result<Duration> {
    let usage = getrusage(who)?;
    let time = |time: nix::sys::time::TimeVal| -> Result<Duration> {
        Ok(Duration::new(u64::try_from(time.tv_sec())?, u32::try_from(time.tv_usec() * 1000)?))
    };
    Ok(time(usage.user_time())? + time(usage.system_time())?)
}

fn settings(agents: u32) -> Settings {
    Settings {
        run_id: "sim".into(),
        nodes_min: agents,
        nodes_max: agents,
        location: StoreLocation::Endpoint { host: "127.0.0.1".into(), port: 0, is_host: Some(true) },
        node_rank: None,
        local_world: 8,
        role: "default".into(),
        local_addr: None,
        host: "node-00000".into(),
        restarts_max: 0,
        join_timeout: Duration::from_secs(600),
        last_call: Duration::from_secs(30),
        silence_max: Duration::from_secs(5),
        hang_timeout: None,
        token: None,
        store_kept: false,
        store_open: false,
        uneven: false,
    }
}

fn terms(settings: &Settings) -> Terms {
    Terms {
        run_id: settings.run_id.clone(),
        nodes_min: settings.nodes_min,
        nodes_max: settings.nodes_max,
        ranks_fixed: false,
        restarts_max: settings.restarts_max,
        silence_max: settings.silence_max,
        hang_timeout: None,
        replaces: false,
    }
}

/// All agents, on one thread.
struct Crowd {
    poll: Poll,
    at: SocketAddr,
    terms: Terms,
    agents: Vec<Agent>,
    greeted: usize,
    ranked: usize,
    over: usize,
    chunk: Vec<u8>,
}

impl Crowd {
    fn new(port: u16, terms: Terms) -> Result<Self> {
        let at = SocketAddr::from(([127, 0, 0, 1], port));
        let agents = Vec::new();
        let chunk = vec![0; 1 << 20];
        Ok(Self { poll: Poll::new()?, at, terms, agents, greeted: 0, ranked: 0, over: 0, chunk })
    }

    /// Connects `count` agents and runs until every one of them has its rank.
    fn meet(&mut self, count: usize) -> Result<()> {
        let mut events = Events::with_capacity(1024);
        let until = Instant::now() + WAIT_MAX;
        while self.ranked < count {
            while self.agents.len() < count && self.agents.len() - self.greeted < CONNECTING_MAX {
                self.connect()?;
            }
            self.turn(&mut events, until)?;
        }
        let mut ranks: Vec<u32> = self.agents.iter().filter_map(|agent| agent.rank).collect();
        ranks.sort_unstable();
        assert!(ranks.into_iter().eq(1..=u32::try_from(count)?), "every rank once");
        Ok(())
    }

    /// Every agent's workers are done; runs until all have learned of the end.
    fn finish(&mut self) -> Result<()> {
        for agent in &mut self.agents {
            agent.say(&[ToLeader::Finished { round: ROUND }])?;
        }
        let mut events = Events::with_capacity(1024);
        let until = Instant::now() + WAIT_MAX;
        while self.over < self.agents.len() {
            self.turn(&mut events, until)?;
        }
        Ok(())
    }

    fn connect(&mut self) -> Result<()> {
        let mut stream = TcpStream::connect(self.at)?;
        let token = Token(self.agents.len());
        self.poll.registry().register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)?;
        let id = self.agents.len() as u64 + 1;
        let buffer = FrameBuffer::new();
        self.agents.push(Agent { stream, buffer, skip: 0, id, greeted: false, rank: None, over: false });
        Ok(())
    }

    fn turn(&mut self, events: &mut Events, until: Instant) -> Result<()> {
        self.poll.poll(events, Some(until.saturating_duration_since(Instant::now())))?;
        if events.is_empty() {
            return Err(format!(
                "{} agents have a rank and {} heard the end; nothing more came",
                self.ranked, self.over
            )
            .into());
        }
        for event in &*events {
            let agent = &mut self.agents[event.token().0];
            if !agent.greeted {
                if agent.stream.peer_addr().is_err() {
                    continue;
                }
                agent.greeted = true;
                self.greeted += 1;
                agent.greet()?;
            }
            if event.is_readable() {
                let (ranked, over) = agent.read(&mut self.chunk, &self.terms)?;
                self.ranked += usize::from(ranked);
                self.over += usize::from(over);
            }
        }
        Ok(())
    }
}

impl Agent {
    fn greet(&mut self) -> Result<()> {
        let mut out = PREFIX.to_vec();
        frame::encode(&ToLeader::Hello { protocol: PROTOCOL, nonce: [1; PROOF_BYTES] }, &mut out)?;
        Ok(self.stream.write_all(&out)?)
    }

    fn say(&mut self, messages: &[ToLeader]) -> Result<()> {
        let mut out = Vec::new();
        for message in messages {
            frame::encode(message, &mut out)?;
        }
        Ok(self.stream.write_all(&out)?)
    }

    /// Keeps what it reads, but the list of members. Messages before it are small, and whole when it begins.
    fn take(&mut self, mut bytes: &[u8]) {
        loop {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            let Some((length, rest)) = bytes.split_first_chunk::<LENGTH_BYTES>() else { break };
            if self.buffer.pending() > 0 || rest.first() != Some(&ROSTER) {
                break;
            }
            self.skip = LENGTH_BYTES + u32::from_le_bytes(*length) as usize;
        }
        self.buffer.extend(bytes);
    }

    /// Whether it got its rank, and whether it learned of the end.
    fn read(&mut self, chunk: &mut [u8], terms: &Terms) -> Result<(bool, bool)> {
        let mut ranked = false;
        let mut over = false;
        loop {
            match self.stream.read(chunk) {
                Ok(0) if self.over => return Ok((ranked, over)),
                Ok(0) => return Err(format!("agent {} was left alone", self.id).into()),
                Ok(read) => self.take(&chunk[..read]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok((ranked, over)),
                Err(error) => return Err(error.into()),
            }
            while let Some(message) = self.buffer.decode::<FromLeader>()? {
                match message {
                    FromLeader::Challenge { .. } => self.say(&[ToLeader::Proof { proof: [0; PROOF_BYTES] }])?,
                    FromLeader::Welcome { .. } => {
                        let description = Box::new(self.description(terms));
                        self.say(&[ToLeader::Join(description), ToLeader::Ready])?;
                    }
                    FromLeader::Begin { node_rank } => {
                        self.rank = Some(node_rank);
                        ranked = true;
                        self.say(&[ToLeader::Alive { round: Some(ROUND) }])?;
                    }
                    FromLeader::RunEnded(RunEnd::Finished) => {
                        self.over = true;
                        over = true;
                        // As an agent does that knows of the end: the host waits for it.
                        self.stream.shutdown(std::net::Shutdown::Both)?;
                    }
                    FromLeader::Alive => {
                        let round = self.rank.map(|_| ROUND);
                        self.say(&[ToLeader::Alive { round }])?;
                    }
                    // The list is read after all when it came together with something else.
                    FromLeader::Waiting { .. } | FromLeader::Roster(_) => {}
                    other => return Err(format!("agent {} was told {other:?}", self.id).into()),
                }
            }
        }
    }

    fn description(&self, terms: &Terms) -> NodeDescription {
        NodeDescription {
            node: NodeId(self.id),
            host: format!("node-{:05}", self.id),
            local_world: 8,
            role: "default".into(),
            node_rank: None,
            standby: None,
            terms: terms.clone(),
            last: None,
        }
    }
}
