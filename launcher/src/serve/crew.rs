//! Engines at work, a thread each: they take what waits, compute it together, and are replaced when they end.
//!
//! **Invariant:** a job that was taken is answered, also when its engine ends; one that nobody waits for any more is passed over.

use super::{
    ServeError, Settings,
    budget::Share,
    engine::{Answers, Engine, Failure, Start},
    figures::Figures,
    policy,
    problem::Problem,
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
}

/// The threads.
pub(super) struct Crew {
    /// `None` once no more jobs are taken.
    jobs: Option<Sender<Job>>,
    /// Dropped when all are to end.
    stop: Option<Sender<()>>,
    /// Is disconnected when all have ended.
    ended: Receiver<()>,
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
        let crew = Self { jobs: Some(jobs), stop: Some(stop), ended };
        let failed = (0..settings.workers.max(1)).find_map(|_| match first.recv() {
            Ok(Ok(())) => Some(None),
            Ok(Err(failure)) => Some(Some(failure)),
            Err(_) => None,
        });
        match failed {
            Some(Some(failure)) => {
                crew.stop();
                Err(ServeError::Engine(failure))
            }
            _ => Ok(crew),
        }
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
    fn run(mut self, told: &Sender<Result<(), Failure>>) {
        let mut engine = match (self.start)() {
            Ok(engine) => {
                let _gone = told.send(Ok(()));
                engine
            }
            Err(failure) => {
                self.figures.engine_failed(&failure.to_string());
                let _gone = told.send(Err(failure));
                let Some(engine) = self.again(None) else { return };
                engine
            }
        };
        self.figures.engine_up();
        let mut held = None;
        loop {
            let ended = engine.ended();
            let cause = match self.next(&mut held, &ended) {
                Next::Closed => return,
                Next::Ended => "it ended while it waited".to_owned(),
                Next::Batch(batch) => match self.compute(engine.as_mut(), batch) {
                    Ok(()) => continue,
                    Err(cause) => cause,
                },
            };
            self.figures.engine_down(&cause);
            drop(engine);
            let Some(next) = self.again(held.as_ref()) else { return };
            engine = next;
            self.figures.engine_up();
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

    /// Computes jobs together and tells each; why the engine cannot go on.
    fn compute(&mut self, engine: &mut dyn Engine, mut batch: Vec<Job>) -> Result<(), String> {
        batch.retain(|job| job.reply.is_wanted());
        let rows: usize = batch.iter().map(|job| job.rows).sum();
        if rows == 0 {
            return Ok(());
        }
        let joined;
        let x = if let [only] = batch.as_slice() {
            &only.x
        } else {
            joined = batch.iter().flat_map(|job| job.x.iter().copied()).collect::<Vec<f32>>();
            &joined
        };
        let began = Instant::now();
        let answers = engine.answer(x, rows).and_then(|answers| match answers.status.len() == rows {
            true => Ok(answers),
            false => Err(format!("it answered {} rows of {rows}", answers.status.len()).into()),
        });
        match answers {
            Ok(mut answers) => {
                self.failures = 0;
                self.figures.computed(rows, began.elapsed());
                for Job { rows, reply, share, .. } in batch {
                    reply.tell(Ok((answers.split(rows), share)));
                }
                Ok(())
            }
            Err(failure) => {
                let cause = failure.to_string();
                batch.into_iter().for_each(|job| job.reply.tell(Err(Problem::Lost { cause: cause.clone() })));
                Err(cause)
            }
        }
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
            match (self.start)() {
                Ok(engine) => return Some(engine),
                Err(failure) => {
                    tracing::warn!("a worker does not start: {failure}");
                    self.figures.engine_failed(&failure.to_string());
                }
            }
        }
    }
}

/// What is to be done.
enum Next {
    /// These, together.
    Batch(Vec<Job>),
    /// Nothing: the engine has ended.
    Ended,
    /// Nothing ever.
    Closed,
}
