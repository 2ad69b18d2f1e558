//! Warnings of the log for the program that reads the events of this process.

use enn_ui::event_channel;
use std::fmt::{Debug, Write};
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::layer::{Context, Layer};

/// Writes warnings and errors of the log as events `warned`.
pub(super) struct EventLog;

impl<S: Subscriber> Layer<S> for EventLog {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        if *event.metadata().level() <= Level::WARN && event_channel::is_open() {
            let mut message = Message::default();
            event.record(&mut message);
            event_channel::logged(message.0);
        }
    }
}

/// The sentence of an entry of the log; other fields follow it.
#[derive(Default)]
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // A text takes everything.
        let _never = match (field.name(), self.0.is_empty()) {
            ("message", _) => write!(self.0, "{value:?}"),
            (name, true) => write!(self.0, "{name}={value:?}"),
            (name, false) => write!(self.0, " {name}={value:?}"),
        };
    }
}
