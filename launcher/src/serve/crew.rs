//! Engines at work, a thread each: they take what waits, compute it together, and are replaced when they end.
//!
//! A job with more rows than are computed at once is computed in parts, and what came meanwhile has its turn between them.
//!
//! **Invariant:** a job that was taken is answered, also when its engine ends; one that nobody waits for any more is passed over.

use super::{
    ServeError, Settings,
    engine::{Answers, Engine, Failure, Lost, Start},
    figures::Figures,
    job::EngineJob,
    policy::{self, Order, Pace},
    problem::Problem,
    queue::{Jobs, Work, queue},
};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, bounded, select};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Longest wait for engines to end.
const END_WAIT_MAX: Duration = Duration::from_secs(5);

/// The threads.
pub(super) struct Crew {
    /// `None` once no more jobs are taken.
    jobs: Option<Jobs>,
    /// Dropped when all are to end.
    stop: Option<Sender<()>>,
    /// Is disconnected when all have ended.
    ended: Receiver<()>,
    /// Numbers that a stream carries; 0 without streams.
    state: usize,
}

impl Crew {
    /// Starts all engines at the same time, and waits until the first is up.
    pub(super) fn start(start: Arc<Start>, settings: &Settings, figures: Arc<Figures>) -> Result<Self, ServeError> {
        let (jobs, work) = queue(settings.limits.queue_max, settings.workers);
        let (stop, stopped) = bounded(0);
        let (told, first) = bounded(settings.workers.max(1));
        let (alive, ended) = bounded::<()>(0);
        for number in 0..settings.workers.max(1) {
            let hand = Hand {
                start: Arc::clone(&start),
                work: work.clone(),
                stopped: stopped.clone(),
                figures: Arc::clone(&figures),
                rows_max: settings.limits.batch_rows_max.max(1),
                pace: Pace::new(settings.limits.batch_rows_max),
                order: Order::Shortest,
                wait: settings.limits.batch_wait,
                failures: 0,
            };
            let told = told.clone();
            let alive = alive.clone();
            let run = move || {
                let _alive = alive;
                hand.run(&told);
            };
            let thread = std::thread::Builder::new().name(format!("enn-engine-{number}"));
            thread.spawn(run).map_err(|error| ServeError::Engine(error.into()))?;
        }
        drop((alive, work));
        let mut crew = Self { jobs: Some(jobs), stop: Some(stop), ended, state: 0 };
        match first.recv() {
            Ok(Ok(state)) => crew.state = state,
            Ok(Err(failure)) => {
                crew.stop();
                return Err(ServeError::Engine(failure));
            }
            Err(_) => {}
        }
        Ok(crew)
    }

    /// Numbers that a stream carries; 0 without streams.
    pub(super) const fn state(&self) -> usize {
        self.state
    }

    /// Where jobs go.
    pub(super) fn jobs(&self) -> Jobs {
        self.jobs.clone().expect("the crew takes jobs until it is stopped")
    }

    /// Ends all engines; what waits still is answered before. One that computes for too long ends with the process.
    pub(super) fn stop(mut self) {
        self.jobs = None;
        self.stop = None;
        let _late = self.ended.recv_timeout(END_WAIT_MAX);
    }
}

/// One thread.
struct Hand {
    start: Arc<Start>,
    work: Work,
    stopped: Receiver<()>,
    figures: Arc<Figures>,
    rows_max: usize,
    /// How many rows of one job are computed at once.
    pace: Pace,
    /// Which of those that wait are computed next.
    order: Order,
    wait: Duration,
    /// Ends and failed starts since the last answer.
    failures: u32,
}

impl Hand {
    /// `told` hears how the first start went.
    fn run(mut self, told: &Sender<Result<usize, Failure>>) {
        let mut engine = match self.begin() {
            Ok(engine) => {
                let _gone = told.send(Ok(engine.state()));
                engine
            }
            Err(failure) => {
                let _gone = told.send(Err(failure));
                let Some(engine) = self.again() else { return };
                engine
            }
        };
        loop {
            let ended = engine.ended();
            match self.next(&ended) {
                Next::Closed => return,
                Next::Ended => self.figures.engine_down("it ended while it waited"),
                Next::Batch(batch) => {
                    if self.compute(engine.as_mut(), batch).is_ok() {
                        continue;
                    }
                }
            }
            drop(engine);
            let Some(next) = self.again() else { return };
            engine = next;
        }
    }

    /// What is to be done next.
    fn next(&mut self, ended: &Receiver<()>) -> Next {
        // It may have ended since; then what waits is another one's.
        if matches!(ended.try_recv(), Err(TryRecvError::Disconnected)) {
            return Next::Ended;
        }
        while self.work.rows() == 0 {
            select! {
                recv(self.work.woken()) -> _ => {}
                recv(ended) -> _ => return Next::Ended,
                recv(self.stopped) -> _ => {
                    if self.work.rows() == 0 {
                        return Next::Closed;
                    }
                }
            }
        }
        let until = Instant::now() + self.wait;
        while self.work.rows() < self.rows_max && self.work.woken().recv_deadline(until).is_ok() {}
        let batch = self.work.take(self.pace.rows(), self.rows_max, self.order);
        self.order = self.order.other();
        Next::Batch(batch)
    }

    /// Computes jobs together and tells each that is done; an engine that cannot go on is counted.
    fn compute(&mut self, engine: &mut dyn Engine, batch: Vec<EngineJob>) -> Result<(), Gone> {
        let (mut streams, mut alone): (Vec<EngineJob>, Vec<EngineJob>) =
            batch.into_iter().partition(EngineJob::is_stream);
        if let Err(lost) = self.alone(engine, &mut alone) {
            alone.append(&mut streams);
            return Err(self.lost(&lost, alone));
        }
        self.work.settle(alone);
        if let Err(lost) = self.streams(engine, &mut streams) {
            return Err(self.lost(&lost, streams));
        }
        self.work.settle(streams);
        Ok(())
    }

    fn lost(&self, lost: &Lost, jobs: Vec<EngineJob>) -> Gone {
        // Whoever is told of it finds it in the figures.
        self.figures.engine_down(&match lost {
            Lost::Late(time) => format!("it gave no answer within {} s", time.as_secs()),
            Lost::Ended(failure) => failure.to_string(),
        });
        jobs.into_iter().for_each(|job| job.refuse(Problem::of(lost)));
        Gone
    }

    /// Computes the parts of jobs whose rows have nothing to do with each other.
    fn alone(&mut self, engine: &mut dyn Engine, jobs: &mut [EngineJob]) -> Result<(), Lost> {
        let rows: usize = jobs.iter().map(|job| job.part).sum();
        if rows == 0 {
            return Ok(());
        }
        let joined;
        let x = if let [only] = &*jobs {
            only.part_inputs()
        } else {
            joined = jobs.iter().flat_map(|job| job.part_inputs().iter().copied()).collect::<Vec<f32>>();
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

    /// Computes the rows of streams, one row of each at a time, until all are done or the time of a part is over.
    fn streams(&mut self, engine: &mut dyn Engine, jobs: &mut [EngineJob]) -> Result<(), Lost> {
        let until = Instant::now() + policy::PART_TIME;
        loop {
            let mut here: Vec<&mut EngineJob> =
                jobs.iter_mut().filter(|job| job.left() > 0 && job.reply.is_wanted()).collect();
            if here.is_empty() {
                return Ok(());
            }
            let x: Vec<f32> = here.iter().flat_map(|job| job.next_row()).copied().collect();
            let states: Vec<f32> = here.iter().flat_map(|job| &job.state).copied().collect();
            let began = Instant::now();
            let (mut answers, after) = engine.go_on(&x, &states, here.len())?;
            self.computed(&answers, here.len(), began)?;
            for (job, next) in here.iter_mut().zip(after.chunks(engine.state().max(1))) {
                job.done.append(answers.split(1));
                // After a row of which nothing can be said, it goes on from the one before.
                if next.iter().all(|value| value.is_finite()) {
                    next.clone_into(&mut job.state);
                }
            }
            if Instant::now() >= until {
                return Ok(());
            }
        }
    }

    fn computed(&mut self, answers: &Answers, rows: usize, began: Instant) -> Result<(), Lost> {
        let found = answers.status.len();
        if found != rows {
            return Err(Lost::Ended(format!("it answered {found} rows of {rows}").into()));
        }
        self.failures = 0;
        let took = began.elapsed();
        self.pace.took(rows, took);
        self.figures.computed(rows, took);
        Ok(())
    }

    /// An engine; how it went is in the figures before anybody is told, as requests may follow at once.
    fn begin(&self) -> Result<Box<dyn Engine>, Failure> {
        let begun = (self.start)();
        match &begun {
            Ok(_) => self.figures.engine_up(),
            Err(failure) => self.figures.engine_failed(&failure.to_string()),
        }
        begun
    }

    /// Another engine, as often as it takes; `None` when all are to end.
    fn again(&mut self) -> Option<Box<dyn Engine>> {
        loop {
            self.failures = self.failures.saturating_add(1);
            match self.stopped.recv_timeout(policy::pause(self.failures)) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return None,
            }
            match self.begin() {
                Ok(engine) => return Some(engine),
                Err(failure) => tracing::warn!("a worker does not start: {failure}"),
            }
        }
    }
}

/// An engine that is not asked again.
struct Gone;

/// What is to be done.
enum Next {
    /// These, together.
    Batch(Vec<EngineJob>),
    /// Nothing: the engine has ended.
    Ended,
    /// Nothing ever.
    Closed,
}
