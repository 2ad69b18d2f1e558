//! The binary under a launcher in miniature: a socket that speaks the protocol, a control page, and the store of the broker.

use crate::session::data::{config, stage};
use enn_broker::tcpstore::{Limits, StoreHandle, serve};
use enn_common::{
    config::{RunConfig, train::Collectives},
    fs::mmap::SharedMap,
    wire::{
        control::{MAGIC, PAGE_BYTES, Phase},
        frame::{self, FrameBuffer},
        message::{Assignment, FromWorker, PROTOCOL, Standby, ToWorker, WorkerTask},
    },
};
use nix::{
    sys::{
        memfd::{MFdFlags, memfd_create},
        signal::{Signal, kill},
    },
    unistd::Pid,
};
use std::{
    fs::File,
    io::{Read, Write},
    net::Ipv4Addr,
    os::{
        fd::AsRawFd,
        unix::net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

const PATIENCE: Duration = Duration::from_secs(120);

/// A worker process and our ends of its socket and page. Killed when dropped.
pub(crate) struct Worker {
    child: Child,
    socket: UnixStream,
    buffer: FrameBuffer,
    pub(crate) page: SharedMap,
}

impl Worker {
    /// Starts worker number `name`, which has said hello.
    pub(crate) fn fork(dir: &Path, name: u32) -> Self {
        let path = dir.join(format!("broker-{name}.sock"));
        let listener = UnixListener::bind(&path).unwrap();
        // Without close-on-exec: the child inherits it.
        let page = File::from(memfd_create(c"control", MFdFlags::empty()).unwrap());
        page.set_len(PAGE_BYTES as u64).unwrap();
        let shared = SharedMap::of(&page, PAGE_BYTES).unwrap();
        shared.word64(0).unwrap().store(MAGIC, Ordering::Release);
        let child = Command::new(env!("CARGO_BIN_EXE_enn-worker"))
            .env("ENN_BROKER", &path)
            .env("ENN_WORKER_ID", name.to_string())
            .env("ENN_CONTROL_FD", page.as_raw_fd().to_string())
            .env("OMP_NUM_THREADS", "1")
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (socket, _) = listener.accept().unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut worker = Self { child, socket, buffer: FrameBuffer::new(), page: shared };
        let pid = worker.child.id();
        assert_eq!(worker.next(), Some(FromWorker::Hello { protocol: PROTOCOL, worker: name, pid }));
        worker
    }

    /// Starts a worker with a seat.
    pub(crate) fn start(dir: &Path, assignment: &Assignment) -> Self {
        let mut worker = Self::fork(dir, assignment.rank);
        worker.seat(assignment);
        worker
    }

    /// Gives a seat, which is taken.
    pub(crate) fn seat(&mut self, assignment: &Assignment) {
        self.send(&ToWorker::Assign(Box::new(assignment.clone())));
        assert_eq!(self.next(), Some(FromWorker::Entered { round: assignment.round }));
    }

    /// Ends the round; the step after which the worker stands.
    pub(crate) fn end_round(&mut self, round: u64) -> u64 {
        self.announce_end(round);
        self.halted(round)
    }

    pub(crate) fn announce_end(&mut self, round: u64) {
        self.send(&ToWorker::RoundEnded { round, reason: "a test".to_owned() });
    }

    pub(crate) fn halted(&mut self, of: u64) -> u64 {
        let told = self.until(|m| matches!(m, FromWorker::Halted { round, .. } if *round == of));
        let FromWorker::Halted { step, .. } = told else { unreachable!() };
        step
    }

    /// Asks to leave the round, or no more.
    pub(crate) fn ask_to_leave(&self, wanted: bool) {
        let wishes = self.page.word32(8).unwrap();
        wishes.store(if wanted { 2 } else { 0 }, Ordering::Relaxed);
    }

    pub(crate) fn send(&mut self, message: &ToWorker) {
        let mut bytes = Vec::new();
        frame::encode(message, &mut bytes).unwrap();
        self.socket.write_all(&bytes).unwrap();
    }

    /// The next message; `None` when the worker closed the socket.
    pub(crate) fn next(&mut self) -> Option<FromWorker> {
        let mut chunk = [0; 4096];
        loop {
            if let Some(message) = self.buffer.decode().unwrap() {
                return Some(message);
            }
            match self.socket.read(&mut chunk) {
                Ok(0) => return None,
                Ok(read) => self.buffer.extend(&chunk[..read]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// The next message, if it comes within `patience`.
    pub(crate) fn next_within(&mut self, patience: Duration) -> Option<FromWorker> {
        if let Some(message) = self.buffer.decode().unwrap() {
            return Some(message);
        }
        self.socket.set_read_timeout(Some(patience.max(Duration::from_millis(1)))).unwrap();
        let mut chunk = [0; 4096];
        let read = self.socket.read(&mut chunk);
        self.socket.set_read_timeout(Some(PATIENCE)).unwrap();
        self.buffer.extend(&chunk[..read.unwrap_or(0)]);
        self.buffer.decode().unwrap()
    }

    pub(crate) fn rest(&mut self) -> Vec<FromWorker> {
        std::iter::from_fn(|| self.next()).collect()
    }

    pub(crate) fn until(&mut self, wanted: impl Fn(&FromWorker) -> bool) -> FromWorker {
        loop {
            let message = self.next().unwrap();
            if wanted(&message) {
                return message;
            }
        }
    }

    pub(crate) fn status(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) struct Run {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) staged: PathBuf,
    pub(crate) store: StoreHandle,
}

impl Run {
    pub(crate) fn of(config: &RunConfig) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("run.json"), serde_json::to_vec(config).unwrap()).unwrap();
        let staged = stage(dir.path());
        let store = serve((Ipv4Addr::LOCALHOST, 0).into(), Limits::default()).unwrap();
        Self { dir, staged, store }
    }

    pub(crate) fn assignment(&self, rank: u32, world_size: u32) -> Assignment {
        Assignment {
            round: 0,
            rank,
            world_size,
            local_rank: rank,
            local_world_size: world_size,
            store_host: "127.0.0.1".to_owned(),
            store_port: self.store.addr().port(),
            device: "cpu".to_owned(),
            threads: 1,
            run_dir: self.dir.path().to_owned(),
            kernels: enn_common::kernels::Quarantined::default(),
            split: 1,
            task: WorkerTask::Train { staged: self.staged.clone(), resume: None, attempt: "x".to_owned() },
        }
    }

    pub(crate) fn start(&self, assignment: &Assignment) -> Worker {
        Worker::start(self.dir.path(), assignment)
    }
}

#[test]
fn two_workers_train_and_say_so() {
    let run = Run::of(&config(3));
    let mut workers: Vec<Worker> = (0..2).map(|rank| run.start(&run.assignment(rank, 2))).collect();
    let told: Vec<Vec<FromWorker>> = workers.iter_mut().map(Worker::rest).collect();
    for (rank, messages) in told.iter().enumerate() {
        assert!(
            matches!(&messages[0], FromWorker::Ready { device, backend, libtorch }
                if device == "cpu" && backend == "shm" && libtorch.starts_with("2.")),
            "{:?}",
            messages[0]
        );
        assert_eq!(messages.last(), Some(&FromWorker::Done { stopped: false }));
        assert!(messages.iter().any(|m| matches!(m, FromWorker::ShardWritten { step: 18, .. })));
        let reports = messages.iter().filter(|m| matches!(m, FromWorker::EpochEnded(_))).count();
        assert_eq!(reports, if rank == 0 { 3 } else { 0 });
    }
    for worker in &mut workers {
        assert!(worker.status().success());
        assert_eq!(worker.page.word64(16).unwrap().load(Ordering::Relaxed), 18, "steps on the control page");
        assert_eq!(worker.page.word32(12).unwrap().load(Ordering::Relaxed), Phase::Done as u32);
    }
}

#[test]
fn signals_are_the_launchers_and_its_stop_flag_is_obeyed() {
    let run = Run::of(&config(1_000_000));
    let mut workers: Vec<Worker> = (0..2).map(|rank| run.start(&run.assignment(rank, 2))).collect();
    workers[0].until(|m| matches!(m, FromWorker::Stepped { .. }));
    for worker in &workers {
        worker.signal(Signal::SIGTERM);
        worker.signal(Signal::SIGINT);
    }
    workers[0].until(|m| matches!(m, FromWorker::EpochEnded(report) if report.epoch > 1));
    // Told to one rank only: all stop at the same step.
    workers[1].page.word32(8).unwrap().store(1, Ordering::Relaxed);
    let told: Vec<Vec<FromWorker>> = workers.iter_mut().map(Worker::rest).collect();
    let steps: Vec<u64> = told
        .iter()
        .map(|messages| {
            assert_eq!(messages.last(), Some(&FromWorker::Done { stopped: true }));
            let FromWorker::ShardWritten { step, .. } = messages[messages.len() - 2] else {
                panic!("{:?}", messages[messages.len() - 2])
            };
            step
        })
        .collect();
    assert_eq!(steps[0], steps[1]);
    assert!(workers.iter_mut().all(|worker| worker.status().success()));
}

#[test]
fn a_dead_launcher_ends_a_worker_at_once() {
    let run = Run::of(&config(1_000_000));
    let mut workers: Vec<Worker> = (0..2).map(|rank| run.start(&run.assignment(rank, 2))).collect();
    workers[0].until(|m| matches!(m, FromWorker::Stepped { .. }));
    let began = Instant::now();
    workers[1].socket.shutdown(std::net::Shutdown::Both).unwrap();
    assert_eq!(workers[1].status().code(), Some(1));
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
}

/// Without the launcher's word that the round is over, a lost peer is this worker's failure in the end.
#[test]
fn a_lost_peer_and_a_silent_launcher_end_a_worker() {
    let run = Run::of(&config(1_000_000));
    let mut workers: Vec<Worker> = (0..2).map(|rank| run.start(&run.assignment(rank, 2))).collect();
    workers[0].until(|m| matches!(m, FromWorker::Stepped { .. }));
    workers[1].signal(Signal::SIGKILL);
    let told = workers[0].until(|m| matches!(m, FromWorker::Failed { .. }));
    assert!(matches!(&told, FromWorker::Failed { error } if error.contains("its peer, rank 1,")), "{told:?}");
    assert_eq!(workers[0].status().code(), Some(1));
}

/// A rank whose step fails leaves the others in the middle of a collective: they are free at once.
#[test]
fn a_rank_whose_step_fails_does_not_leave_the_others_waiting() {
    for collectives in [Collectives::Auto, Collectives::Gloo] {
        let mut config = config(1_000_000);
        config.train.clip = 0.0;
        config.train.warmup_ratio = 0.0;
        config.cluster.collectives = collectives;
        let run = Run::of(&config);
        // Rank 1 alone learns so fast that its weights are lost with the first step.
        config.train.lr = 1e38;
        let own = run.dir.path().join("own");
        std::fs::create_dir(&own).unwrap();
        std::fs::write(own.join("run.json"), serde_json::to_vec(&config).unwrap()).unwrap();
        let mut sound = run.start(&run.assignment(0, 2));
        let mut failing = run.start(&Assignment { run_dir: own, ..run.assignment(1, 2) });
        let told = failing.until(|m| matches!(m, FromWorker::Failed { .. }));
        assert!(
            matches!(&told, FromWorker::Failed { error } if error.contains("is not finite before step")),
            "{told:?}"
        );
        let began = Instant::now();
        sound.end_round(0);
        assert!(began.elapsed() < Duration::from_secs(5), "{collectives:?}: {:?}", began.elapsed());
        assert_eq!(failing.status().code(), Some(1));
    }
}

/// What rank 0 tells of training that must not depend on faults: validation of each epoch, and the end.
pub(crate) fn story(told: &[FromWorker]) -> Vec<String> {
    let line = |message: &FromWorker| match message {
        FromWorker::EpochEnded(report) => Some(format!(
            "epoch {} step {} loss {:?} val {:?}",
            report.epoch, report.step, report.train_loss, report.val
        )),
        FromWorker::Trained { step, split, .. } => Some(format!("step {step}: {split:?}")),
        _ => None,
    };
    told.iter().filter_map(line).collect()
}

/// A worker dies in the middle of a step, and a spare takes its seat: the survivors keep their process, the spare gets its
/// state from them, and every number is that of an undisturbed training.
#[test]
fn a_spare_takes_the_seat_of_a_dead_worker_and_no_bit_changes() {
    for collectives in [Collectives::Auto, Collectives::Gloo] {
        let mut config = config(40);
        config.cluster.collectives = collectives;
        let undisturbed = Run::of(&config);
        let mut workers: Vec<Worker> = (0..2).map(|rank| undisturbed.start(&undisturbed.assignment(rank, 2))).collect();
        let expected = story(&workers[0].rest());
        assert_eq!(expected.len(), 41);

        let run = Run::of(&config);
        let mut first = run.start(&run.assignment(0, 2));
        let second = run.start(&run.assignment(1, 2));
        let mut spare = Worker::fork(run.dir.path(), 2);
        let run_dir = run.dir.path().to_owned();
        let staged = run.staged.clone();
        spare.send(&ToWorker::Stand(Box::new(Standby {
            device: "cpu".into(),
            local_rank: 1,
            world_size: 2,
            store_host: "127.0.0.1".into(),
            store_port: run.store.addr().port(),
            threads: 1,
            run_dir,
            staged,
        })));
        assert_eq!(spare.next(), Some(FromWorker::Warm));
        let mut told = Vec::new();
        while !matches!(told.last(), Some(FromWorker::EpochEnded(report)) if report.epoch == 3) {
            told.push(first.next().unwrap());
        }
        second.signal(Signal::SIGKILL);
        first.send(&ToWorker::RoundEnded { round: 0, reason: "rank 1 died".to_owned() });
        while !matches!(told.last(), Some(FromWorker::Halted { round: 0, .. })) {
            told.push(first.next().unwrap());
        }
        let Some(FromWorker::Halted { step, .. }) = told.pop() else { unreachable!() };
        first.seat(&Assignment { round: 1, ..run.assignment(0, 2) });
        spare.seat(&Assignment { round: 1, ..run.assignment(1, 2) });
        let received = spare.until(|m| matches!(m, FromWorker::StateReceived { .. }));
        assert!(
            matches!(received, FromWorker::StateReceived { step: at, from: 0, bytes, .. } if at == step && bytes > 1000),
            "{received:?}, {step}"
        );
        told.extend(first.rest());
        assert_eq!(story(&told), expected, "{collectives:?}");
        assert_eq!(spare.rest().last(), Some(&FromWorker::Done { stopped: false }));
        assert!(first.status().success() && spare.status().success());
    }
}

/// The world shrinks and grows, and rank 0 dies, too: whoever is left knows all that is to be known.
#[test]
fn the_world_shrinks_and_grows_and_loses_its_first_rank() {
    let run = Run::of(&config(1_000_000));
    let mut workers: Vec<Worker> = (0..3).map(|rank| run.start(&run.assignment(rank, 3))).collect();
    workers[0].until(|m| matches!(m, FromWorker::EpochEnded(report) if report.epoch == 2));
    workers[0].signal(Signal::SIGKILL);
    let mut left = workers.split_off(1);
    let stood: Vec<u64> = left.iter_mut().map(|worker| worker.end_round(0)).collect();
    assert!(stood[0].abs_diff(stood[1]) <= 1 && stood[0] > 0, "{stood:?}");
    for (rank, worker) in (0..).zip(&mut left) {
        worker.seat(&Assignment { round: 1, ..run.assignment(rank, 2) });
    }
    let told = left[0].until(|m| matches!(m, FromWorker::Stepped { .. }));
    let most = stood[0].max(stood[1]);
    assert!(matches!(told, FromWorker::Stepped { step, .. } if step == most + 1), "{told:?} after {stood:?}");
    // A newcomer: asked of one rank only, both leave after the same step.
    left[1].ask_to_leave(true);
    let stood: Vec<u64> = left.iter_mut().map(|worker| worker.halted(1)).collect();
    assert_eq!(stood[0], stood[1]);
    left[1].ask_to_leave(false);
    left.push(Worker::fork(run.dir.path(), 7));
    for (rank, worker) in (0..).zip(&mut left) {
        worker.seat(&Assignment { round: 2, ..run.assignment(rank, 3) });
    }
    left[2].until(|m| matches!(m, FromWorker::StateReceived { step, .. } if *step == stood[0]));
    left[0].until(|m| matches!(m, FromWorker::EpochEnded(_)));
    left[2].page.word32(8).unwrap().store(1, Ordering::Relaxed);
    for worker in &mut left {
        assert_eq!(worker.rest().last(), Some(&FromWorker::Done { stopped: true }));
        assert!(worker.status().success());
    }
}

#[test]
fn mistakes_are_told_in_a_sentence() {
    let run = Run::of(&config(1));
    let fails = |assignment: &Assignment| {
        let mut worker = run.start(assignment);
        let told = worker.rest();
        assert_eq!(worker.status().code(), Some(1));
        std::fs::remove_file(run.dir.path().join(format!("broker-{}.sock", assignment.rank))).unwrap();
        match told.last() {
            Some(FromWorker::Failed { error }) => error.clone(),
            other => panic!("{other:?}"),
        }
    };
    let good = run.assignment(0, 1);
    let error = fails(&Assignment { device: "tpu".to_owned(), ..good.clone() });
    assert_eq!(error, "assigned device \"tpu\", expected cpu or cuda");
    let nowhere = PathBuf::from("/nowhere");
    let error = fails(&Assignment { run_dir: nowhere.clone(), ..good.clone() });
    assert!(error.contains("/nowhere/run.json") && error.contains("No such file"), "{error}");
    let task = WorkerTask::Train { staged: nowhere.clone(), resume: None, attempt: "x".to_owned() };
    let error = fails(&Assignment { task, ..good.clone() });
    assert!(error.contains("/nowhere is not a staged directory"), "{error}");
    let task = WorkerTask::Train { staged: run.staged.clone(), resume: Some(nowhere), attempt: "x".to_owned() };
    let error = fails(&Assignment { task, ..good });
    assert!(error.contains("/nowhere is not a complete checkpoint"), "{error}");
}

#[test]
fn initial_weights_become_a_shard() {
    let run = Run::of(&config(1));
    let task = WorkerTask::Init { meta: run.staged.join("meta.json"), attempt: "x".to_owned() };
    let mut worker = run.start(&Assignment { task, ..run.assignment(0, 1) });
    let told = worker.rest();
    assert!(matches!(&told[1], FromWorker::ShardWritten { step: 0, epoch: 0, dir, .. }
        if dir.ends_with("checkpoints/.step-00000000.tmp-x")));
    assert_eq!(told.last(), Some(&FromWorker::Done { stopped: false }));
    assert!(worker.status().success());
}

#[test]
fn started_by_hand_it_says_how_it_is_meant() {
    let output = Command::new(env!("CARGO_BIN_EXE_enn-worker")).env_remove("ENN_BROKER").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("enn-worker is started by `enn`"), "{text}");
}
