//! The pump's thread: waits for all pipes at once and passes on what comes.
//!
//! It owns every stream, file and console; commands come through a channel and an eventfd. **Invariant:** it never waits for
//! one worker, and it reads no more than it can hold.

use super::{
    LogError,
    console::{Console, Consoles},
    files::LogFiles,
    pump_link::{Backlog, PumpCommand, PumpShared},
    screen::StreamId,
    stream::Stream,
    stream_name::StreamName,
};
use crossbeam_channel::{Receiver, Sender};
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, fcntl},
    sys::{
        epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
        eventfd::EventFd,
    },
};
use std::{
    collections::{BTreeMap, VecDeque},
    io,
    os::fd::AsFd,
    sync::{Arc, PoisonError, atomic::Ordering},
    time::{Duration, Instant},
};

/// Silence after which a partial line is shown.
const SILENCE: Duration = Duration::from_millis(100);
const READ_BYTES_MAX: usize = 64 << 10;
/// Assumed capacity of a pipe or terminal when the system does not report it, bytes.
const SOURCE_BYTES: usize = 128 << 10;
/// Descriptors handled after one wait.
const EVENTS_MAX: usize = 64;

/// The launcher's own id among the streams of a console.
const LAUNCHER: StreamId = u64::MAX;

/// Epoll keys of descriptors that are not streams.
const WAKE: u64 = u64::MAX;
const CONSOLE: u64 = u64::MAX - 1;

#[derive(Debug)]
pub(super) struct Reader {
    epoll: Epoll,
    commands: Receiver<PumpCommand>,
    wake: Arc<EventFd>,
    shared: Arc<PumpShared>,
    streams: BTreeMap<StreamId, Box<Stream>>,
    next: StreamId,
    consoles: Consoles,
    files: LogFiles,
    scratch: Vec<u8>,
    /// Streams with a partial line, by the time at which it is shown.
    silent: VecDeque<(Instant, StreamId)>,
    catching_up: Vec<Sender<()>>,
    settling: Vec<Sender<()>>,
    ending: bool,
    /// Which consoles were full when streams were last paused or resumed.
    full: [bool; 2],
}

impl Reader {
    pub(super) fn new(
        commands: Receiver<PumpCommand>,
        wake: Arc<EventFd>,
        shared: Arc<PumpShared>,
        consoles: Consoles,
        files: LogFiles,
    ) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(&*wake, EpollEvent::new(EpollFlags::EPOLLIN, WAKE))?;
        Ok(Self {
            epoll,
            commands,
            wake,
            shared,
            streams: BTreeMap::new(),
            next: 0,
            consoles,
            files,
            scratch: vec![0; READ_BYTES_MAX],
            silent: VecDeque::new(),
            catching_up: Vec::new(),
            settling: Vec::new(),
            ending: false,
            full: [false; 2],
        })
    }

    /// Runs until the command to end.
    pub(super) fn run(mut self) {
        let mut events = [EpollEvent::empty(); EVENTS_MAX];
        loop {
            let count = match self.epoll.wait(&mut events, self.timeout()) {
                Ok(count) => count,
                Err(Errno::EINTR) => 0,
                Err(errno) => {
                    return self.error(LogError::System { what: "wait for output", source: errno.into() });
                }
            };
            for event in &events[..count] {
                match event.data() {
                    WAKE => self.take_commands(),
                    CONSOLE => {}
                    id => self.read(id),
                }
            }
            self.read_owed();
            self.show_silent();
            self.write();
            self.answer();
            if self.may_end() {
                return;
            }
        }
    }

    fn timeout(&self) -> EpollTimeout {
        if self.asked() && self.streams.values().any(|stream| stream.owed > 0 && !stream.paused) {
            return EpollTimeout::ZERO;
        }
        self.silent.front().map_or(EpollTimeout::NONE, |(at, _)| {
            // Rounded up, or the last millisecond would be spent spinning.
            let wait = at.saturating_duration_since(Instant::now()) + Duration::from_micros(999);
            EpollTimeout::try_from(wait).unwrap_or(EpollTimeout::MAX)
        })
    }

    fn take_commands(&mut self) {
        let _empty = self.wake.read();
        while let Ok(command) = self.commands.try_recv() {
            match command {
                PumpCommand::Add(stream) => self.add(stream),
                PumpCommand::Say(mut line) => {
                    line.push('\n');
                    self.consoles.of(StreamName::Err).show(LAUNCHER, &[], line.as_bytes());
                }
                PumpCommand::CatchUp(done) => {
                    self.owe();
                    self.catching_up.push(done);
                }
                PumpCommand::Settle(done) => {
                    self.owe();
                    self.settling.push(done);
                }
                PumpCommand::Resize => self.resize(),
                PumpCommand::End => {
                    self.owe();
                    self.ending = true;
                }
                PumpCommand::GiveUp => {
                    self.consoles.each().for_each(Console::give_up);
                    self.pause();
                }
            }
        }
    }

    fn add(&mut self, mut stream: Box<Stream>) {
        let id = self.next;
        self.next += 1;
        stream.paused = stream.shown && self.full[stream.name().index()];
        let event = EpollEvent::new(EpollFlags::EPOLLIN, id);
        let added = if stream.paused { Ok(()) } else { self.epoll.add(&stream.source, event) };
        match added {
            Ok(()) => {
                self.streams.insert(id, stream);
            }
            Err(errno) => self.error(LogError::System { what: "watch a pipe", source: errno.into() }),
        }
    }

    /// Marks every pipe to be read until it is empty once, or until as much was read as it can have held.
    fn owe(&mut self) {
        for stream in self.streams.values_mut() {
            let holds = fcntl(&stream.source, FcntlArg::F_GETPIPE_SZ).ok().and_then(|size| usize::try_from(size).ok());
            stream.owed = holds.unwrap_or(SOURCE_BYTES);
        }
    }

    /// Returns whether a caller waits for the output so far.
    fn asked(&self) -> bool {
        !self.settling.is_empty() || !self.catching_up.is_empty() || self.ending
    }

    fn read_owed(&mut self) {
        if !self.asked() {
            return;
        }
        let owed = self.streams.iter().filter(|(_, stream)| stream.owed > 0 && !stream.paused);
        let ids: Vec<StreamId> = owed.map(|(id, _)| *id).collect();
        for id in ids {
            self.read(id);
        }
    }

    fn read(&mut self, id: StreamId) {
        // Its console may have become full since the kernel said that there is something.
        let Some(stream) = self.streams.get_mut(&id).filter(|stream| !stream.paused) else { return };
        match nix::unistd::read(&stream.source, &mut self.scratch) {
            Ok(0) => self.end_of(id),
            Ok(count) => {
                stream.owed = stream.owed.saturating_sub(count);
                let bytes = std::mem::take(&mut self.scratch);
                self.pass_on(id, &bytes[..count], Instant::now());
                self.scratch = bytes;
            }
            Err(Errno::EAGAIN) => stream.owed = 0,
            Err(Errno::EINTR) => {}
            Err(_broken) => self.end_of(id),
        }
    }

    fn pass_on(&mut self, id: StreamId, bytes: &[u8], now: Instant) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        self.shared.last.set(now);
        stream.tail.note(stream.contents, bytes);
        let mut errors = Vec::new();
        if let Some(file) = &stream.file {
            let added = if stream.copy { self.files.append_copy(file, bytes) } else { self.files.append(file, bytes) };
            errors.extend(added.err());
        }
        if let Some((filter, file)) = &mut stream.filter {
            let mut matches = Vec::new();
            filter.push(bytes, &stream.prefix, &mut matches);
            errors.extend(self.files.append(file, &matches).err());
        }
        if stream.shown {
            let console = self.consoles.of(stream.name());
            let prefix = &stream.prefix;
            stream.lines.push(bytes, |ready| console.show(id, prefix, ready));
            if stream.terminal {
                stream.lines.flush(|part| console.show(id, prefix, part));
            } else if stream.lines.waiting() {
                stream.show_part_at = Some(now + SILENCE);
                if !std::mem::replace(&mut stream.queued, true) {
                    self.silent.push_back((now + SILENCE, id));
                }
            }
        }
        errors.into_iter().for_each(|error| self.error(error));
        if self.consoles.each().any(|console| console.full()) {
            self.write();
        }
    }

    fn end_of(&mut self, id: StreamId) {
        self.show_part(id);
        let Some(mut stream) = self.streams.remove(&id) else { return };
        if !stream.paused {
            let _gone = self.epoll.delete(&stream.source);
        }
        if let Some((mut filter, file)) = stream.filter.take() {
            let mut matches = Vec::new();
            filter.finish(&stream.prefix, &mut matches);
            if let Err(error) = self.files.append(&file, &matches) {
                self.error(error);
            }
        }
        if let Some(file) = &stream.file {
            self.files.close(file);
        }
    }

    fn show_part(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.show_part_at = None;
        let console = self.consoles.of(stream.name());
        let prefix = &stream.prefix;
        stream.lines.flush(|part| console.show(id, prefix, part));
    }

    fn show_silent(&mut self) {
        if self.silent.is_empty() {
            return;
        }
        let now = Instant::now();
        while let Some((_, id)) = self.silent.pop_front_if(|(at, _)| *at <= now) {
            let Some(stream) = self.streams.get_mut(&id) else { continue };
            stream.queued = false;
            match stream.show_part_at.filter(|_| stream.lines.waiting()) {
                Some(at) if at > now => {
                    stream.queued = true;
                    self.silent.push_back((at, id));
                }
                Some(_) => self.show_part(id),
                None => {}
            }
        }
    }

    /// Writes to the consoles, and polls those that do not accept everything.
    fn write(&mut self) {
        let mut errors = Vec::new();
        for console in self.consoles.each() {
            let watched = console.watched;
            errors.extend(console.write().err());
            if console.waiting() != watched {
                // What cannot be waited for is always ready, so it never waits.
                let changed = if watched {
                    self.epoll.delete(console.fd())
                } else {
                    self.epoll.add(console.fd(), EpollEvent::new(EpollFlags::EPOLLOUT, CONSOLE))
                };
                console.watched = if changed.is_ok() { !watched } else { watched };
            }
        }
        errors.into_iter().for_each(|error| self.error(error));
        self.pause();
    }

    /// Pauses the streams whose console is full and resumes the others.
    fn pause(&mut self) {
        let full = [self.consoles.of(StreamName::Out).full(), self.consoles.of(StreamName::Err).full()];
        if std::mem::replace(&mut self.full, full) == full {
            return;
        }
        for (id, stream) in &mut self.streams {
            let pause = stream.shown && full[stream.name().index()];
            if stream.paused == pause {
                continue;
            }
            let changed = if pause {
                self.epoll.delete(&stream.source)
            } else {
                self.epoll.add(&stream.source, EpollEvent::new(EpollFlags::EPOLLIN, *id))
            };
            stream.paused = if changed.is_ok() { pause } else { stream.paused };
        }
    }

    /// Answers waiting callers once no output is pending.
    fn answer(&mut self) {
        if self.streams.values().all(|stream| stream.owed == 0 || stream.paused) {
            tell(&mut self.catching_up);
        }
        if self.settling.is_empty() || !self.drained() {
            return;
        }
        self.show_parts();
        self.consoles.of(StreamName::Err).finish_line();
        self.write();
        if !self.consoles.each().any(|console| console.waiting()) {
            tell(&mut self.settling);
        }
    }

    fn may_end(&mut self) -> bool {
        if !self.ending {
            return false;
        }
        if self.drained() {
            self.show_parts();
            self.consoles.each().for_each(Console::finish_line_for_people);
            self.write();
        }
        self.note_backlog();
        self.drained() && self.consoles.behind().next().is_none()
    }

    /// Updates the backlog: bytes queued for the consoles, and those in the pipes that are paused.
    fn note_backlog(&self) {
        let unread = self.streams.values().filter(|stream| stream.paused);
        let unread: u64 = unread.map(|stream| crate::unread_bytes(stream.source.as_fd())).sum();
        let behind: Vec<&Console> = self.consoles.behind().collect();
        let backlog = behind.first().map(|first| Backlog {
            console: if behind.len() > 1 { "standard output and error" } else { first.name },
            bytes: behind.iter().map(|console| console.backlog()).sum::<u64>() + unread,
        });
        *self.shared.backlog.lock().unwrap_or_else(PoisonError::into_inner) = backlog;
        self.shared.lost.store(self.consoles.lost(), Ordering::Relaxed);
    }

    fn resize(&self) {
        for stream in self.streams.values().filter(|stream| stream.terminal) {
            if let Some(console) = self.consoles.get(stream.name()) {
                crate::copy_window_size(console.fd(), stream.source.as_fd());
            }
        }
    }

    fn drained(&self) -> bool {
        self.streams.values().all(|stream| stream.owed == 0)
    }

    fn show_parts(&mut self) {
        let waiting = self.streams.iter().filter(|(_, stream)| stream.lines.waiting());
        let ids: Vec<StreamId> = waiting.map(|(id, _)| *id).collect();
        ids.into_iter().for_each(|id| self.show_part(id));
    }

    fn error(&self, error: LogError) {
        self.shared.errors.lock().unwrap_or_else(PoisonError::into_inner).push(error);
    }
}

fn tell(waiting: &mut Vec<Sender<()>>) {
    for done in waiting.drain(..) {
        // Whoever asked may have stopped waiting.
        let _late = done.send(());
    }
}
