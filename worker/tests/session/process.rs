//! The binary under a launcher in miniature: a socket that speaks the protocol, a control page, and the store of the broker.

use crate::data::{config, stage};
use enn_broker::store::{Limits, StoreHandle, serve};
use enn_common::{
    config::{RunConfig, train::Collectives},
    fs::mmap::SharedMap,
    wire::{
        control::{MAGIC, PAGE_BYTES, Phase},
        frame::{self, FrameBuffer},
        message::{Assignment, FromWorker, PROTOCOL, Task, ToWorker},
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
struct Worker {
    child: Child,
    socket: UnixStream,
    buffer: FrameBuffer,
    page: SharedMap,
}

impl Worker {
    fn start(dir: &Path, assignment: &Assignment) -> Self {
        let path = dir.join(format!("broker-{}.sock", assignment.rank));
        let listener = UnixListener::bind(&path).unwrap();
        // Without close-on-exec: the child inherits it.
        let page = File::from(memfd_create(c"control", MFdFlags::empty()).unwrap());
        page.set_len(PAGE_BYTES as u64).unwrap();
        let shared = SharedMap::of(&page, PAGE_BYTES).unwrap();
        shared.word64(0).unwrap().store(MAGIC, Ordering::Release);
        let child = Command::new(env!("CARGO_BIN_EXE_enn-worker"))
            .env("ENN_BROKER", &path)
            .env("ENN_ROUND", "0")
            .env("LOCAL_RANK", assignment.local_rank.to_string())
            .env("ENN_CONTROL_FD", page.as_raw_fd().to_string())
            .env("OMP_NUM_THREADS", "1")
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (socket, _) = listener.accept().unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut worker = Self { child, socket, buffer: FrameBuffer::new(), page: shared };
        let pid = worker.child.id();
        let hello = FromWorker::Hello { protocol: PROTOCOL, round: 0, local_rank: assignment.local_rank, pid };
        assert_eq!(worker.next(), Some(hello));
        worker.send(&ToWorker::Assign(Box::new(assignment.clone())));
        worker
    }

    fn send(&mut self, message: &ToWorker) {
        let mut bytes = Vec::new();
        frame::encode(message, &mut bytes).unwrap();
        self.socket.write_all(&bytes).unwrap();
    }

    /// The next message; `None` when the worker closed the socket.
    fn next(&mut self) -> Option<FromWorker> {
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

    fn rest(&mut self) -> Vec<FromWorker> {
        std::iter::from_fn(|| self.next()).collect()
    }

    fn until(&mut self, wanted: impl Fn(&FromWorker) -> bool) -> FromWorker {
        loop {
            let message = self.next().unwrap();
            if wanted(&message) {
                return message;
            }
        }
    }

    fn status(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Run {
    dir: tempfile::TempDir,
    staged: PathBuf,
    store: StoreHandle,
}

impl Run {
    fn of(config: &RunConfig) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("run.json"), serde_json::to_vec(config).unwrap()).unwrap();
        let staged = stage(dir.path());
        let store = serve((Ipv4Addr::LOCALHOST, 0).into(), Limits::default()).unwrap();
        Self { dir, staged, store }
    }

    fn assignment(&self, rank: u32, world_size: u32) -> Assignment {
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
            task: Task::Train { staged: self.staged.clone(), resume: None, attempt: "x".to_owned() },
        }
    }

    fn start(&self, assignment: &Assignment) -> Worker {
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
fn a_dead_peer_and_a_dead_launcher_end_a_worker_soon() {
    let run = Run::of(&config(1_000_000));
    let mut workers: Vec<Worker> = (0..3).map(|rank| run.start(&run.assignment(rank, 3))).collect();
    workers[0].until(|m| matches!(m, FromWorker::Stepped { .. }));
    let began = Instant::now();
    // The launcher of rank 2 goes; with it rank 2; then the others lose a peer in the middle of a collective.
    workers[2].socket.shutdown(std::net::Shutdown::Both).unwrap();
    assert_eq!(workers[2].status().code(), Some(1));
    let rest = workers[0].rest();
    assert!(
        matches!(rest.last(), Some(FromWorker::Failed { error }) if error.contains("its peer, rank 2,")),
        "{:?}",
        rest.last()
    );
    assert_eq!(workers[0].status().code(), Some(1));
    workers[1].rest();
    assert_eq!(workers[1].status().code(), Some(1));
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

/// A rank whose step fails leaves the others in the middle of a collective: they hear of it at once.
#[test]
fn a_rank_whose_step_fails_does_not_leave_the_others_waiting() {
    for collectives in [Collectives::Auto, Collectives::Gloo] {
        let mut config = config(1_000_000);
        (config.train.clip, config.train.warmup_ratio, config.cluster.collectives) = (0.0, 0.0, collectives);
        let run = Run::of(&config);
        // Rank 1 alone learns so fast that its weights are lost with the first step.
        config.train.lr = 1e38;
        let own = run.dir.path().join("own");
        std::fs::create_dir(&own).unwrap();
        std::fs::write(own.join("run.json"), serde_json::to_vec(&config).unwrap()).unwrap();
        let mut sound = run.start(&run.assignment(0, 2));
        let mut failing = run.start(&Assignment { run_dir: own, ..run.assignment(1, 2) });
        let told = failing.until(|m| matches!(m, FromWorker::Failed { .. }));
        let began = Instant::now();
        assert!(
            matches!(&told, FromWorker::Failed { error } if error.contains("is not finite before step")),
            "{told:?}"
        );
        let missed = sound.until(|m| matches!(m, FromWorker::Failed { .. }));
        let hung = began.elapsed();
        assert!(matches!(&missed, FromWorker::Failed { error } if error.contains("all_reduce")), "{missed:?}");
        assert!(hung < Duration::from_secs(1), "{collectives:?}: {hung:?}");
        assert_eq!((failing.status().code(), sound.status().code()), (Some(1), Some(1)));
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
    let task = Task::Train { staged: nowhere.clone(), resume: None, attempt: "x".to_owned() };
    let error = fails(&Assignment { task, ..good.clone() });
    assert!(error.contains("/nowhere is not a staged directory"), "{error}");
    let task = Task::Train { staged: run.staged.clone(), resume: Some(nowhere), attempt: "x".to_owned() };
    let error = fails(&Assignment { task, ..good });
    assert!(error.contains("/nowhere is not a complete checkpoint"), "{error}");
}

#[test]
fn initial_weights_become_a_shard() {
    let run = Run::of(&config(1));
    let task = Task::Init { meta: run.staged.join("meta.json"), attempt: "x".to_owned() };
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
