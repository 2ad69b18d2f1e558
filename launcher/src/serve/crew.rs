//! Engines at work, a thread each: they take what waits, compute it together, and are replaced when they end.
//!
//! **Invariant:** a job that was taken is answered, also when its engine ends; one that nobody waits for any more is passed over.

use super::{
    ServeError, Settings,
    budget::Share,
    engine::{Answers, Engine, Failure, Lost, Start},
    figures::Figures,
    policy,
    problem::Problem,
    streams::Turn,
};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, bounded, never, select};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Longest wait for engines to end.
const END_WAIT_MAX: Duration = Duration::from_secs(5);

/// Who waits for an answer.
pub(super) trait Reply: Send {
    /// Whether somebody still does.
    fn is_wanted(&self) -> bool;
    /// Tells it, and hands over the bytes that are held for it.
    fn tell(self: Box<Self>, answer: Result<(Answers, Share), Problem>);
}

/// Rows to be computed for somebody.
pub(super) struct Job {
    /// Inputs (rows, F).
    pub(super) x: Vec<f32>,
    pub(super) rows: usize,
    pub(super) reply: Box<dyn Reply>,
    /// The bytes that it holds, those of its answers among them.
    pub(super) share: Share,
    /// The stream whose next rows these are; without one each row stands alone.
    pub(super) turn: Option<Turn>,
}

impl Job {
    /// Inputs of a row.
    fn row(&self, row: usize) -> &[f32] {
        let width = self.x.len() / self.rows.max(1);
        &self.x[row * width..(row + 1) * width]
    }

    /// Tells the answers of its stream's rows, which goes on from the state after them if they are all there and somebody hears them.
    fn went_on(self, (answers, state): (Answers, Vec<f32>)) {
        let is_whole = answers.status.len() == self.rows && self.reply.is_wanted();
        match self.turn.filter(|_| is_whole) {
            Some(turn) => {
                turn.done(state, self.rows as u64, Instant::now());
                self.reply.tell(Ok((answers, self.share)));
            }
            None => self.reply.tell(Err(Problem::Closing)),
        }
    }
}

/// The threads.
pub(super) struct Crew {
    /// `None` once no more jobs are taken.
    jobs: Option<Sender<Job>>,
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
        let (jobs, taken) = bounded(settings.limits.queue_max.max(1));
        let (stop, stopped) = bounded(0);
        let (told, first) = bounded(settings.workers.max(1));
        let (alive, ended) = bounded::<()>(0);
        for number in 0..settings.workers.max(1) {
            let hand = Hand {
                start: Arc::clone(&start),
                jobs: taken.clone(),
                stopped: stopped.clone(),
                figures: Arc::clone(&figures),
                rows_max: settings.limits.batch_rows_max.max(1),
                wait: settings.limits.batch_wait,
                failures: 0,
            };
            let (told, alive) = (told.clone(), alive.clone());
            let run = move || {
                let _alive = alive;
                hand.run(&told);
            };
            let thread = std::thread::Builder::new().name(format!("enn-engine-{number}"));
            thread.spawn(run).map_err(|error| ServeError::Engine(error.into()))?;
        }
        drop(alive);
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
    pub(super) fn jobs(&self) -> Sender<Job> {
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
    jobs: Receiver<Job>,
    stopped: Receiver<()>,
    figures: Arc<Figures>,
    rows_max: usize,
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
                let Some(engine) = self.again(None) else { return };
                engine
            }
        };
        let mut held = None;
        loop {
            let ended = engine.ended();
            match self.next(&mut held, &ended) {
                Next::Closed => return,
                Next::Ended => self.figures.engine_down("it ended while it waited"),
                Next::Batch(batch) => {
                    if self.compute(engine.as_mut(), batch).is_ok() {
                        continue;
                    }
                }
            }
            drop(engine);
            let Some(next) = self.again(held.as_ref()) else { return };
            engine = next;
        }
    }

    /// What is to be done next.
    fn next(&self, held: &mut Option<Job>, ended: &Receiver<()>) -> Next {
        // It may have ended since; then what waits is another one's.
        if matches!(ended.try_recv(), Err(TryRecvError::Disconnected)) {
            return Next::Ended;
        }
        let first = match held.take() {
            Some(job) => job,
            None => select! {
                recv(self.jobs) -> job => match job {
                    Ok(job) => job,
                    Err(_) => return Next::Closed,
                },
                recv(ended) -> _ => return Next::Ended,
            },
        };
        let until = Instant::now() + self.wait;
        let mut batch = vec![first];
        let mut rows = batch[0].rows;
        while rows < self.rows_max {
            let job = match self.jobs.try_recv() {
                Ok(job) => job,
                Err(TryRecvError::Disconnected) => break,
                Err(TryRecvError::Empty) => match self.jobs.recv_deadline(until) {
                    Ok(job) => job,
                    Err(_) => break,
                },
            };
            if rows + job.rows > self.rows_max {
                *held = Some(job);
                break;
            }
            rows += job.rows;
            batch.push(job);
        }
        Next::Batch(batch)
    }

    /// Computes jobs together and tells each; an engine that cannot go on is counted.
    fn compute(&mut self, engine: &mut dyn Engine, mut batch: Vec<Job>) -> Result<(), Gone> {
        batch.retain(|job| job.reply.is_wanted());
        let (streams, alone): (Vec<Job>, Vec<Job>) = batch.into_iter().partition(|job| job.turn.is_some());
        let (lost, jobs) = match self.alone(engine, &alone) {
            Err(lost) => (lost, alone.into_iter().chain(streams).collect()),
            Ok(mut answers) => {
                for Job { rows, reply, share, .. } in alone {
                    reply.tell(Ok((answers.split(rows), share)));
                }
                match self.streams(engine, &streams) {
                    Err(lost) => (lost, streams),
                    Ok(told) => {
                        streams.into_iter().zip(told).for_each(|(job, told)| job.went_on(told));
                        return Ok(());
                    }
                }
            }
        };
        // Whoever is told of it finds it in the figures.
        self.figures.engine_down(&match &lost {
            Lost::Late(time) => format!("it gave no answer within {} s", time.as_secs()),
            Lost::Ended(failure) => failure.to_string(),
        });
        jobs.into_iter().for_each(|job: Job| job.reply.tell(Err(Problem::of(&lost))));
        Err(Gone)
    }

    /// The answers to rows that have nothing to do with each other.
    fn alone(&mut self, engine: &mut dyn Engine, jobs: &[Job]) -> Result<Answers, Lost> {
        let rows: usize = jobs.iter().map(|job| job.rows).sum();
        if rows == 0 {
            return Ok(Answers::default());
        }
        let joined;
        let x = if let [only] = jobs {
            &only.x
        } else {
            joined = jobs.iter().flat_map(|job| job.x.iter().copied()).collect::<Vec<f32>>();
            &joined
        };
        let began = Instant::now();
        let answers = engine.answer(x, rows)?;
        self.computed(&answers, rows, began)?;
        Ok(answers)
    }

    /// The answers to the rows of streams, one row of each at a time, and the state of each after its last.
    fn streams(&mut self, engine: &mut dyn Engine, jobs: &[Job]) -> Result<Vec<(Answers, Vec<f32>)>, Lost> {
        let before = |job: &Job| job.turn.as_ref().map_or_else(Vec::new, |turn| turn.state().to_vec());
        let mut told: Vec<(Answers, Vec<f32>)> = jobs.iter().map(|job| (Answers::default(), before(job))).collect();
        for row in 0..jobs.iter().map(|job| job.rows).max().unwrap_or(0) {
            let here = jobs.iter().zip(&mut told).filter(|(job, _)| row < job.rows && job.reply.is_wanted());
            let here: Vec<(&Job, &mut (Answers, Vec<f32>))> = here.collect();
            if here.is_empty() {
                break;
            }
            let x: Vec<f32> = here.iter().flat_map(|(job, _)| job.row(row)).copied().collect();
            let states: Vec<f32> = here.iter().flat_map(|(_, (_, state))| state).copied().collect();
            let began = Instant::now();
            let (mut answers, after) = engine.go_on(&x, &states, here.len())?;
            self.computed(&answers, here.len(), began)?;
            for ((_, (all, state)), next) in here.into_iter().zip(after.chunks(engine.state().max(1))) {
                all.append(answers.split(1));
                // After a row of which nothing can be said, it goes on from the one before.
                if next.iter().all(|value| value.is_finite()) {
                    next.clone_into(state);
                }
            }
        }
        Ok(told)
    }

    fn computed(&mut self, answers: &Answers, rows: usize, began: Instant) -> Result<(), Lost> {
        let found = answers.status.len();
        if found != rows {
            return Err(Lost::Ended(format!("it answered {found} rows of {rows}").into()));
        }
        self.failures = 0;
        self.figures.computed(rows, began.elapsed());
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
    fn again(&mut self, held: Option<&Job>) -> Option<Box<dyn Engine>> {
        loop {
            self.failures = self.failures.saturating_add(1);
            let forever = never();
            // With a job in hand it goes on until that is answered or given up.
            let stopped = if held.is_some_and(|job| job.reply.is_wanted()) { &forever } else { &self.stopped };
            match stopped.recv_timeout(policy::pause(self.failures)) {
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
    Batch(Vec<Job>),
    /// Nothing: the engine has ended.
    Ended,
    /// Nothing ever.
    Closed,
}
