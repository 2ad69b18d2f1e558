//! A pool of engines, one thread each: they take waiting jobs, compute them together, and are replaced when they end.
//!
//! A job with more rows than one batch is computed in parts, with other jobs between them.
//!
//! **Invariant:** a job that was taken is answered, also when its engine ends; a job whose client is gone is skipped.

use super::{
    engine::{Answers, Engine, EngineError, Failure, Start},
    error::ServeError,
    job::EngineJob,
    metrics::ServeMetrics,
    policy::{self, Order, Pace},
    problem::Problem,
    queue::{Jobs, Work, queue},
    settings::Settings,
};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, bounded, select};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Maximum wait for engines to end.
const END_WAIT_MAX: Duration = Duration::from_secs(5);

/// The threads with their engines.
pub(super) struct EnginePool {
    pub(super) jobs: Jobs,
    /// Dropping it asks all threads to end.
    stop: Sender<()>,
    /// The channel is disconnected when all threads have ended.
    ended: Receiver<()>,
    /// Numbers in the state of a stream; 0 without streams.
    pub(super) state: usize,
}

impl EnginePool {
    /// Starts all engines concurrently, and waits until the first is ready.
    pub(super) fn start(
        start: Arc<Start>,
        settings: &Settings,
        metrics: Arc<ServeMetrics>,
    ) -> Result<Self, ServeError> {
        let (jobs, work) = queue(settings.limits.queue_max, settings.workers);
        let (stop, stopped) = bounded(0);
        let (started, first) = bounded(settings.workers.max(1));
        let (alive, ended) = bounded::<()>(0);
        for number in 0..settings.workers.max(1) {
            let engine_thread = EngineThread {
                start: Arc::clone(&start),
                work: work.clone(),
                stopped: stopped.clone(),
                metrics: Arc::clone(&metrics),
                rows_max: settings.limits.batch_rows_max.max(1),
                pace: Pace::new(settings.limits.batch_rows_max),
                order: Order::Shortest,
                wait: settings.limits.batch_wait,
                failures: 0,
            };
            let started = started.clone();
            let alive = alive.clone();
            let run = move || {
                let _alive = alive;
                engine_thread.run(&started);
            };
            let thread = std::thread::Builder::new().name(format!("enn-engine-{number}"));
            thread.spawn(run).map_err(|error| ServeError::Engine(error.into()))?;
        }
        drop((alive, work));
        let mut pool = Self { jobs, stop, ended, state: 0 };
        match first.recv() {
            Ok(Ok(state)) => pool.state = state,
            Ok(Err(failure)) => {
                pool.stop();
                return Err(ServeError::Engine(failure));
            }
            Err(_) => {}
        }
        Ok(pool)
    }

    /// Ends all engines after the waiting jobs. An engine that computes for too long ends with the process.
    pub(super) fn stop(self) {
        drop((self.jobs, self.stop));
        let _late = self.ended.recv_timeout(END_WAIT_MAX);
    }
}

struct EngineThread {
    start: Arc<Start>,
    work: Work,
    stopped: Receiver<()>,
    metrics: Arc<ServeMetrics>,
    rows_max: usize,
    /// Chooses the number of rows of one job that are computed at once.
    pace: Pace,
    /// The order in which waiting jobs are computed.
    order: Order,
    wait: Duration,
    /// The number of ends and failed starts since the last answer.
    failures: u32,
}

impl EngineThread {
    /// Runs the engine until the pool stops; `started` receives the result of the first start.
    fn run(mut self, started: &Sender<Result<usize, Failure>>) {
        let mut engine = match self.start_engine() {
            Ok(engine) => {
                let _gone = started.send(Ok(engine.state()));
                engine
            }
            Err(failure) => {
                let _gone = started.send(Err(failure));
                let Some(engine) = self.restart() else { return };
                engine
            }
        };
        loop {
            let ended = engine.ended();
            match self.next(&ended) {
                NextAction::Closed => return,
                NextAction::Ended => self.metrics.engine_down("it ended while it waited"),
                NextAction::Batch(batch) => {
                    if self.compute(engine.as_mut(), batch) {
                        continue;
                    }
                }
            }
            drop(engine);
            let Some(next) = self.restart() else { return };
            engine = next;
        }
    }

    /// Waits for the next batch.
    fn next(&mut self, ended: &Receiver<()>) -> NextAction {
        // The engine may have ended meanwhile; then another engine takes the waiting jobs.
        if matches!(ended.try_recv(), Err(TryRecvError::Disconnected)) {
            return NextAction::Ended;
        }
        while self.work.rows() == 0 {
            select! {
                recv(self.work.woken()) -> _ => {}
                recv(ended) -> _ => return NextAction::Ended,
                recv(self.stopped) -> _ => {
                    if self.work.rows() == 0 {
                        return NextAction::Closed;
                    }
                }
            }
        }
        let until = Instant::now() + self.wait;
        while self.work.rows() < self.rows_max && self.work.woken().recv_deadline(until).is_ok() {}
        let batch = self.work.take(self.pace.rows(), self.rows_max, self.order);
        self.order = self.order.other();
        NextAction::Batch(batch)
    }

    /// Computes jobs together and answers the finished ones; returns whether the engine can be used again.
    fn compute(&mut self, engine: &mut dyn Engine, batch: Vec<EngineJob>) -> bool {
        let (mut streams, mut alone): (Vec<EngineJob>, Vec<EngineJob>) =
            batch.into_iter().partition(EngineJob::is_stream);
        if let Err(lost) = self.compute_rows(engine, &mut alone) {
            alone.append(&mut streams);
            self.fail_jobs(&lost, alone);
            return false;
        }
        self.work.settle(alone);
        if let Err(lost) = self.compute_streams(engine, &mut streams) {
            self.fail_jobs(&lost, streams);
            return false;
        }
        self.work.settle(streams);
        true
    }

    fn fail_jobs(&self, lost: &EngineError, jobs: Vec<EngineJob>) {
        // The metrics are updated before the clients get the error.
        self.metrics.engine_down(&match lost {
            EngineError::Late(time) => format!("it gave no answer within {} s", time.as_secs()),
            EngineError::Ended(failure) => failure.to_string(),
        });
        jobs.into_iter().for_each(|job| job.refuse(Problem::of(lost)));
    }

    /// Computes the parts of jobs with independent rows.
    fn compute_rows(&mut self, engine: &mut dyn Engine, jobs: &mut [EngineJob]) -> Result<(), EngineError> {
        let rows: usize = jobs.iter().map(|job| job.part).sum();
        if rows == 0 {
            return Ok(());
        }
        let joined;
        let x = if let [only] = &*jobs {
            only.inputs(only.part)
        } else {
            joined = jobs.iter().flat_map(|job| job.inputs(job.part).iter().copied()).collect::<Vec<f32>>();
            &joined
        };
        let began = Instant::now();
        let mut answers = engine.answer(x, rows)?;
        self.computed(&answers, rows, began)?;
        for job in jobs {
            job.done.append(answers.split(job.part));
        }
        Ok(())
    }

    /// Computes rows of streams, one row of each stream at a time, until all are done or the time of a part is over.
    fn compute_streams(&mut self, engine: &mut dyn Engine, jobs: &mut [EngineJob]) -> Result<(), EngineError> {
        let until = Instant::now() + policy::PART_TIME;
        loop {
            let mut here: Vec<&mut EngineJob> =
                jobs.iter_mut().filter(|job| job.left() > 0 && job.reply.is_waiting()).collect();
            if here.is_empty() {
                return Ok(());
            }
            let x: Vec<f32> = here.iter().flat_map(|job| job.inputs(1)).copied().collect();
            let states: Vec<f32> = here.iter().flat_map(|job| &job.state).copied().collect();
            let began = Instant::now();
            let (mut answers, after) = engine.answer_next(&x, &states, here.len())?;
            self.computed(&answers, here.len(), began)?;
            for (job, next) in here.iter_mut().zip(after.chunks(engine.state().max(1))) {
                job.done.append(answers.split(1));
                // After a row without a prediction the stream continues from the previous state.
                if next.iter().all(|value| value.is_finite()) {
                    next.clone_into(&mut job.state);
                }
            }
            if Instant::now() >= until {
                return Ok(());
            }
        }
    }

    fn computed(&mut self, answers: &Answers, rows: usize, began: Instant) -> Result<(), EngineError> {
        let found = answers.status.len();
        if found != rows {
            return Err(EngineError::Ended(format!("it answered {found} rows of {rows}").into()));
        }
        self.failures = 0;
        let took = began.elapsed();
        self.pace.took(rows, took);
        self.metrics.computed(rows, took);
        Ok(())
    }

    /// Starts an engine; the metrics are updated before requests can follow.
    fn start_engine(&self) -> Result<Box<dyn Engine>, Failure> {
        let begun = (self.start)();
        match &begun {
            Ok(_) => self.metrics.engine_up(),
            Err(failure) => self.metrics.engine_failed(&failure.to_string()),
        }
        begun
    }

    /// Starts another engine, with repeated attempts; `None` when the pool stops.
    fn restart(&mut self) -> Option<Box<dyn Engine>> {
        loop {
            self.failures = self.failures.saturating_add(1);
            match self.stopped.recv_timeout(policy::pause(self.failures)) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return None,
            }
            match self.start_engine() {
                Ok(engine) => return Some(engine),
                Err(failure) => tracing::warn!("a worker does not start: {failure}"),
            }
        }
    }
}

/// The next action of an engine thread.
enum NextAction {
    /// Compute these jobs together.
    Batch(Vec<EngineJob>),
    /// Replace the engine, which has ended.
    Ended,
    /// End the thread, because the pool has stopped.
    Closed,
}
