//! When operations began and ended, on the host and on the device's stream.

use crate::backend::event::Event;
use std::time::{Instant, SystemTime};
use tch::Device;

/// An interval in nanoseconds since the profile began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) begin: u64,
    pub(super) end: u64,
}

impl Span {
    pub(super) fn nanoseconds(self) -> u64 {
        self.end.saturating_sub(self.begin)
    }
}

/// The intervals of one operation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spans {
    /// Interval of the launch on the host.
    pub(super) host: Span,
    /// Interval on the device's stream.
    pub(super) device: Option<Span>,
}

impl Spans {
    pub(super) fn cost(&self) -> u64 {
        self.device.unwrap_or(self.host).nanoseconds()
    }
}

struct OpenSpan {
    host: Span,
    events: Option<(Event, Option<Event>)>,
}

/// Records when operations begin and end.
pub(super) struct Timing {
    origin: Instant,
    on_stream: bool,
    marks: Vec<OpenSpan>,
}

impl Timing {
    pub(super) fn new(device: Device) -> Self {
        Self { origin: Instant::now(), on_stream: device.is_cuda(), marks: Vec::new() }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    pub(super) fn begin(&mut self) {
        let events = if self.on_stream { Event::record().ok().map(|event| (event, None)) } else { None };
        let now = self.now();
        self.marks.push(OpenSpan { host: Span { begin: now, end: now }, events });
    }

    pub(super) fn end(&mut self) {
        let now = self.now();
        let Some(mark) = self.marks.last_mut() else { return };
        mark.host.end = now;
        if let Some((_, end)) = &mut mark.events {
            *end = Event::record().ok();
        }
    }

    /// Returns the intervals of the operations since the last call. Waits for the device.
    pub(super) fn take(&mut self) -> Vec<Spans> {
        let marks = std::mem::take(&mut self.marks);
        // The stream's clock differs from the host's: its first event is placed at the host time of its launch.
        let first = marks.iter().find_map(|mark| Some((mark.events.as_ref()?, mark.host.begin)));
        let device = |mark: &OpenSpan| {
            let ((first, _), origin) = first?;
            let (begin, end) = mark.events.as_ref()?;
            let begun = first.nanoseconds_to(begin).ok()?;
            let took = begin.nanoseconds_to(end.as_ref()?).ok()?;
            Some(Span { begin: origin + begun, end: origin + begun + took })
        };
        marks.iter().map(|mark| Spans { host: mark.host, device: device(mark) }).collect()
    }
}

/// Returns the wall-clock time in nanoseconds, which aligns the traces of several ranks.
pub(super) fn wall_nanoseconds() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
