//! A program of a user that attaches to the broker of its node, as a Python script would: it sums over the ranks of a round, leaves the
//! round when that breaks, and goes on in the next one with the state of the rank that has it.
//!
//! `ENN_FAKE_SCRIPT` holds `steps=N,step_ms=N` and what a rank of round 0 does wrong, `*` for all: `detached=R` (never attaches),
//! `garbage=R` (sends no message at step 5), `mute=R` (does not answer `broken`), `empty=R` (its state is not whole), `late=R` (fails after its
//! last step, when the file `fail` is there). With `parts=N` the ranks
//! share N equal parts of a step, so that the sum does not depend on their number. With `sick=L` the device of local rank L fails in the first
//! rounds. A spare fails while there is `no-spares`. It leaves files in the run directory: `final-R` or `stopped-R` (step and sum), `steps-PID`
//! (the steps that it did), `seat-ROUND-R`, `refused-R`.

#![expect(
    clippy::disallowed_methods,
    reason = "a test program: reads its task from the environment, sleeps between steps"
)]
#![expect(clippy::print_stderr, reason = "a test program writes as a user's does")]
#![expect(clippy::unwrap_used, reason = "a test program fails by panicking")]

use enn_common::wire::{
    frame::FrameBuffer,
    script::{self, FromScript, SCRIPT_PROTOCOL, ScriptSeat, ToScript},
};
use std::{
    fs::{self, File},
    io::{self, Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    num::NonZeroU32,
    os::unix::net::UnixStream,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
        mpsc::{Receiver, channel},
    },
    thread::sleep,
    time::{Duration, Instant},
};

/// Time between two looks at the store or the listener.
const LOOK: Duration = Duration::from_millis(1);
/// Shortest time between two reports of progress.
const PROGRESS_PERIOD: Duration = Duration::from_millis(50);
/// Step at which a rank sends garbage.
const GARBAGE_STEP: u64 = 5;
/// A sick device fails so many steps after the beginning of a round, in so many rounds.
const SICK_STEPS: u64 = 10;
const SICK_ROUNDS: u64 = 3;
/// Step of which a mark tells the test.
const MARK_STEP: u64 = 20;

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn number<T: std::str::FromStr>(name: &str) -> Option<T> {
    variable(name)?.parse().ok()
}

/// Task of this process.
struct Task {
    options: String,
    run_dir: PathBuf,
}

impl Task {
    fn option(&self, name: &str) -> Option<&str> {
        self.options
            .split(',')
            .filter_map(|one| one.split_once('='))
            .find(|(key, _)| *key == name)
            .map(|(_, value)| value)
    }

    fn count(&self, name: &str) -> u64 {
        self.option(name).map_or(0, |text| text.parse().unwrap())
    }

    fn parts(&self) -> Option<NonZeroU32> {
        self.option("parts").map(|text| text.parse().unwrap())
    }

    /// Returns what a rank adds to the sum in a step, without that of the step.
    fn share(&self, seat: &ScriptSeat) -> u64 {
        let Some(parts) = self.parts() else { return u64::from(seat.rank) + 1 };
        assert!(parts.get().is_multiple_of(seat.world), "{parts} parts cannot be shared by {} ranks", seat.world);
        let count = parts.get() / seat.world;
        (seat.rank * count..(seat.rank + 1) * count).map(|part| u64::from(part) + 1).sum()
    }

    /// Whether this rank does this wrong in this round.
    fn misbehaves(&self, name: &str, round: u64, rank: u32) -> bool {
        let whom = self.option(name).filter(|_| round == 0);
        whom.is_some_and(|whom| whom == "*" || whom == rank.to_string())
    }

    fn leave(&self, name: &str, text: &str) {
        // Whole or not there: a test waits for it.
        let part = self.run_dir.join(format!(".{name}-{}", std::process::id()));
        fs::write(&part, text).unwrap();
        fs::rename(part, self.run_dir.join(name)).unwrap();
    }
}

/// State of the computation.
#[derive(Clone, Copy, Default)]
struct State {
    step: u64,
    sum: u64,
}

/// Sockets of the group, which the control thread cuts when the round is over.
#[derive(Default)]
struct Cutter {
    over: Option<u64>,
    sockets: Vec<TcpStream>,
}

/// The connection to the broker.
struct Control {
    socket: UnixStream,
    inbox: Receiver<ToScript>,
}

/// What both threads look at.
#[derive(Clone, Default)]
struct Shared {
    cutter: Arc<Mutex<Cutter>>,
    stop: Arc<AtomicBool>,
    refused: Arc<AtomicBool>,
}

impl Shared {
    fn is_over(&self, round: u64) -> bool {
        self.cutter.lock().unwrap().over.is_some_and(|over| over >= round)
    }

    /// Takes a socket of a round, which is cut with it.
    fn keep(&self, round: u64, socket: &TcpStream) -> io::Result<()> {
        let mut cutter = self.cutter.lock().unwrap();
        if cutter.over.is_some_and(|over| over >= round) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        cutter.sockets.push(socket.try_clone()?);
        Ok(())
    }

    fn on_message(&self, message: &ToScript) {
        match message {
            ToScript::Broken { round, .. } => {
                let mut cutter = self.cutter.lock().unwrap();
                cutter.over = Some(*round);
                for socket in cutter.sockets.drain(..) {
                    // The other side may have closed it already.
                    let _gone = socket.shutdown(std::net::Shutdown::Both);
                }
            }
            ToScript::Stop {} => self.stop.store(true, SeqCst),
            ToScript::Refused { .. } => self.refused.store(true, SeqCst),
            ToScript::Assigned(_) | ToScript::Parked {} => {}
        }
    }
}

impl Control {
    fn attach(shared: &Shared, parts: Option<NonZeroU32>) -> Self {
        let socket = UnixStream::connect(variable("ENN_SCRIPT_SOCKET").unwrap()).unwrap();
        let mut reader = socket.try_clone().unwrap();
        let (into, inbox) = channel();
        let shared = shared.clone();
        std::thread::spawn(move || {
            let mut buffer = FrameBuffer::new();
            let mut chunk = [0; 4096];
            loop {
                while let Some(message) = script::decode::<ToScript>(&mut buffer).unwrap() {
                    shared.on_message(&message);
                    if into.send(message).is_err() {
                        return;
                    }
                }
                match reader.read(&mut chunk) {
                    Ok(0) | Err(_) => return,
                    Ok(read) => buffer.extend(&chunk[..read]),
                }
            }
        });
        let control = Self { socket, inbox };
        let worker = number("ENN_WORKER_ID").unwrap();
        control.send(&FromScript::Attach { protocol: SCRIPT_PROTOCOL, worker, pid: std::process::id() });
        if let Some(parts) = parts {
            control.send(&FromScript::Parts { parts });
        }
        control
    }

    fn send(&self, message: &FromScript) {
        let mut bytes = Vec::new();
        script::encode(message, &mut bytes).unwrap();
        // A broker that closed the connection has said why.
        let _closed = (&self.socket).write_all(&bytes);
    }
}

/// A client of the c10d store.
struct Store(TcpStream);

impl Store {
    fn connect(seat: &ScriptSeat) -> io::Result<Self> {
        let mut stream = TcpStream::connect((seat.master_addr.as_str(), seat.master_port))?;
        stream.write_all(&[&[0][..], &0x3C85_F7CE_u32.to_le_bytes()].concat())?;
        Ok(Self(stream))
    }

    fn field(bytes: &[u8]) -> Vec<u8> {
        [&(bytes.len() as u64).to_le_bytes(), bytes].concat()
    }

    fn set(&mut self, key: &str, value: &str) -> io::Result<()> {
        self.0.write_all(&[vec![1], Self::field(key.as_bytes()), Self::field(value.as_bytes())].concat())
    }

    fn has(&mut self, key: &str) -> io::Result<bool> {
        self.0.write_all(&[vec![5], 1_u64.to_le_bytes().to_vec(), Self::field(key.as_bytes())].concat())?;
        let mut answer = [0];
        self.0.read_exact(&mut answer)?;
        Ok(answer == [0])
    }

    fn get(&mut self, key: &str) -> io::Result<String> {
        self.0.write_all(&[vec![3], Self::field(key.as_bytes())].concat())?;
        let mut length = [0; 8];
        self.0.read_exact(&mut length)?;
        let mut value = vec![0; u64::from_le_bytes(length) as usize];
        self.0.read_exact(&mut value)?;
        String::from_utf8(value).map_err(io::Error::other)
    }
}

fn write_numbers(mut to: &TcpStream, numbers: [u64; 2]) -> io::Result<()> {
    to.write_all(&[numbers[0].to_le_bytes(), numbers[1].to_le_bytes()].concat())
}

fn read_numbers(mut from: &TcpStream) -> io::Result<[u64; 2]> {
    let mut bytes = [0; 16];
    from.read_exact(&mut bytes)?;
    let (first, second) = bytes.split_at(8);
    Ok([first, second].map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap())))
}

/// The connections of a round: of rank 0 to each other rank in order, of the others to rank 0.
struct Group(Vec<TcpStream>);

impl Group {
    /// Meets the others under this key.
    fn join(seat: &ScriptSeat, key: &str, shared: &Shared) -> io::Result<Self> {
        let mut store = Store::connect(seat)?;
        let over = || io::Error::from(io::ErrorKind::ConnectionAborted);
        if seat.rank > 0 {
            while !store.has(key)? {
                if shared.is_over(seat.round) {
                    return Err(over());
                }
                sleep(LOOK);
            }
            let root = TcpStream::connect((Ipv4Addr::LOCALHOST, store.get(key)?.parse().map_err(io::Error::other)?))?;
            root.set_nodelay(true)?;
            shared.keep(seat.round, &root)?;
            write_numbers(&root, [seat.rank.into(), seat.round])?;
            return Ok(Self(vec![root]));
        }
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        store.set(key, &listener.local_addr()?.port().to_string())?;
        let mut others: Vec<(u64, TcpStream)> = Vec::new();
        while others.len() + 1 < seat.world as usize {
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false)?;
                    stream.set_nodelay(true)?;
                    shared.keep(seat.round, &stream)?;
                    let [rank, round] = read_numbers(&stream)?;
                    assert_eq!(round, seat.round, "rank {rank} meets in another round");
                    others.push((rank, stream));
                }
                Err(_) if shared.is_over(seat.round) => return Err(over()),
                Err(_) => sleep(LOOK),
            }
        }
        others.sort_by_key(|(rank, _)| *rank);
        Ok(Self(others.into_iter().map(|(_, stream)| stream).collect()))
    }

    /// Gives all ranks what `choose` makes of the numbers of all ranks.
    fn reduce(&self, rank: u32, own: [u64; 2], choose: impl Fn(&[[u64; 2]]) -> [u64; 2]) -> io::Result<[u64; 2]> {
        if rank > 0 {
            write_numbers(&self.0[0], own)?;
            return read_numbers(&self.0[0]);
        }
        let mut all = vec![own];
        for other in &self.0 {
            all.push(read_numbers(other)?);
        }
        let chosen = choose(&all);
        self.0.iter().try_for_each(|other| write_numbers(other, chosen))?;
        Ok(chosen)
    }
}

/// How the work in a round ended.
enum RoundEnd {
    Done,
    Stopped,
    Broken,
}

struct Program {
    task: Task,
    shared: Shared,
    control: Option<Control>,
    state: State,
    steps: File,
}

impl Program {
    fn tell(&self, message: &FromScript) {
        self.control.iter().for_each(|control| control.send(message));
    }

    /// The seat that the environment says, of a program that does not attach.
    fn seat_of_environment() -> ScriptSeat {
        let round = number("ENN_ROUND").unwrap();
        ScriptSeat {
            round,
            rank: number("RANK").unwrap(),
            world: number("WORLD_SIZE").unwrap(),
            local_rank: number("LOCAL_RANK").unwrap(),
            local_world: number("LOCAL_WORLD_SIZE").unwrap(),
            master_addr: variable("MASTER_ADDR").unwrap(),
            master_port: number("MASTER_PORT").unwrap(),
            store_prefix: String::new(),
            source_rank: None,
            step: 0,
        }
    }

    /// Waits for the next seat; `None`: it is to end instead.
    fn next_seat(&self) -> Option<ScriptSeat> {
        let Some(control) = &self.control else { return Some(Self::seat_of_environment()) };
        let mut is_parked = false;
        loop {
            match control.inbox.recv() {
                Ok(ToScript::Assigned(seat)) => return Some(seat),
                Ok(ToScript::Parked {}) => is_parked = true,
                Ok(ToScript::Stop {}) if is_parked => std::process::exit(0),
                Ok(ToScript::Stop {}) => return None,
                Ok(ToScript::Refused { error }) => panic!("{error}"),
                Ok(ToScript::Broken { round, .. }) => {
                    // It had left that round, or had not begun it.
                    self.tell(&FromScript::Halted { round, step: self.state.step, whole: self.state.step > 0 });
                }
                // The launcher is gone.
                Err(_) => std::process::exit(1),
            }
        }
    }

    /// Puts all ranks into the state of the one that has it, or at the beginning.
    fn share_state(&mut self, seat: &ScriptSeat, group: &Group) -> io::Result<()> {
        let State { step, sum } = self.state;
        let source = seat.source_rank.map(|rank| rank as usize);
        let chosen = group.reduce(seat.rank, [step, sum], |all| source.map_or([0, 0], |source| all[source]))?;
        assert_eq!(chosen[0], seat.step, "the source stands elsewhere");
        let [step, sum] = chosen;
        self.state = State { step, sum };
        Ok(())
    }

    fn round(&mut self, seat: &ScriptSeat) -> io::Result<RoundEnd> {
        // One that has not attached does not know the prefix.
        let mixed = self.task.option("detached").is_some();
        let prefix = if mixed { format!("{}/", seat.round) } else { seat.store_prefix.clone() };
        let group = Group::join(seat, &format!("{prefix}root"), &self.shared)?;
        self.share_state(seat, &group)?;
        let ScriptSeat { round, rank, .. } = *seat;
        self.tell(&FromScript::Ready { round, step: self.state.step });
        let mut told: Option<Instant> = None;
        while self.state.step < self.task.count("steps") {
            let step = self.state.step;
            if self.shared.is_over(round) {
                // A rank that is alone has no connection that breaks.
                return Ok(RoundEnd::Broken);
            }
            if step == seat.step + SICK_STEPS && round < SICK_ROUNDS && self.has_sick_device(seat) {
                eprintln!("CUDA error: hardware stack error");
                std::process::exit(1);
            }
            if step == GARBAGE_STEP && self.task.misbehaves("garbage", round, rank) {
                self.send_garbage(rank);
            }
            let own = [self.task.share(seat) * (step + 1), self.shared.stop.load(SeqCst).into()];
            let all = |all: &[[u64; 2]]| {
                all.iter().fold([0, 0], |sums, numbers| [sums[0] + numbers[0], sums[1] + numbers[1]])
            };
            let [sum, stops] = group.reduce(rank, own, all)?;
            if stops > 0 {
                return Ok(RoundEnd::Stopped);
            }
            self.state = State { step: step + 1, sum: self.state.sum + sum };
            writeln!(self.steps, "{}", step + 1)?;
            if told.is_none_or(|told| told.elapsed() >= PROGRESS_PERIOD) {
                self.tell(&FromScript::Progress { round, step: step + 1 });
                told = Some(Instant::now());
            }
            if step + 1 == MARK_STEP {
                self.task.leave(&format!("reached-{round}-{rank}"), "");
            }
            sleep(Duration::from_millis(self.task.count("step_ms")));
        }
        Ok(RoundEnd::Done)
    }

    fn has_sick_device(&self, seat: &ScriptSeat) -> bool {
        self.task.option("sick").is_some_and(|local_rank| local_rank == seat.local_rank.to_string())
    }

    fn send_garbage(&self, rank: u32) {
        let Some(control) = &self.control else { return };
        let _sent = (&control.socket).write_all(b"\x05\0\0\0hello");
        let deadline = Instant::now() + Duration::from_secs(10);
        while !self.shared.refused.load(SeqCst) {
            assert!(Instant::now() < deadline, "nothing was said about garbage");
            sleep(LOOK);
        }
        let refusal = std::iter::from_fn(|| control.inbox.try_recv().ok()).find_map(|message| match message {
            ToScript::Refused { error } => Some(error),
            ToScript::Assigned(_) | ToScript::Broken { .. } | ToScript::Stop {} | ToScript::Parked {} => None,
        });
        self.task.leave(&format!("refused-{rank}"), &refusal.unwrap());
    }

    /// The group broke: waits until the round is over and says where this rank stands.
    fn halt(&self, seat: &ScriptSeat) {
        let ScriptSeat { round, rank, .. } = *seat;
        let attached = self.control.is_some() && !self.shared.refused.load(SeqCst);
        if !attached || self.task.misbehaves("mute", round, rank) {
            sleep(Duration::from_secs(600));
        }
        while !self.shared.is_over(round) {
            sleep(LOOK);
        }
        // The message itself is still to be read.
        let control = self.control.as_ref().unwrap();
        while !matches!(control.inbox.recv(), Ok(ToScript::Broken { .. }) | Err(_)) {}
        let whole = self.state.step > 0 && !self.task.misbehaves("empty", round, rank);
        self.tell(&FromScript::Halted { round, step: self.state.step, whole });
    }

    /// Fails when the test says so, if it is to: the work itself is done.
    fn fail_late(&self, seat: &ScriptSeat) {
        if self.task.misbehaves("late", seat.round, seat.rank) {
            while !self.task.run_dir.join("fail").exists() {
                sleep(LOOK);
            }
            // The leader counts the others when all that they wrote is read.
            sleep(Duration::from_millis(300));
            std::process::exit(3);
        }
    }

    fn run(&mut self) {
        let mut rank = None;
        let name = loop {
            let Some(seat) = self.next_seat() else { break "stopped" };
            rank = Some(seat.rank);
            let text = serde_json::to_string(&seat).unwrap();
            self.task.leave(&format!("seat-{}-{}", seat.round, seat.rank), &text);
            match self.round(&seat).unwrap_or(RoundEnd::Broken) {
                RoundEnd::Done => {
                    self.fail_late(&seat);
                    break "final";
                }
                RoundEnd::Stopped => break "stopped",
                RoundEnd::Broken => self.halt(&seat),
            }
        };
        if let Some(rank) = rank {
            let State { step, sum } = self.state;
            self.task.leave(&format!("{name}-{rank}"), &format!("{step} {sum}"));
        }
    }
}

fn main() {
    let task = Task { options: variable("ENN_FAKE_SCRIPT").unwrap(), run_dir: variable("ENN_RUN_DIR").unwrap().into() };
    let shared = Shared::default();
    let detached = number("RANK").is_some_and(|rank| task.misbehaves("detached", number("ENN_ROUND").unwrap(), rank));
    if variable("RANK").is_none() && task.run_dir.join("no-spares").exists() {
        std::process::exit(3);
    }
    let control = (!detached).then(|| Control::attach(&shared, task.parts()));
    let steps = File::create(task.run_dir.join(format!("steps-{}", std::process::id()))).unwrap();
    Program { task, shared, control, state: State::default(), steps }.run();
}
