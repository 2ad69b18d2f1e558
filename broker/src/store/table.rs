//! The store's state, pure: values, queues, and who waits for what. A request goes in, replies come out through a sink.
//!
//! A waiter is told once, when the last key it waits for has appeared; a key that appeared and was deleted again counts as
//! having appeared. A push onto a queue wakes one waiter, in the order they came; everything else wakes all.

use super::{
    Limits,
    error::Violation,
    protocol::{Keys, Request},
    reply::Reply,
};
use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    io::Write,
};

/// Name of a value, as the client sent it.
pub type Key = Box<[u8]>;

/// A value.
pub type Value = Vec<u8>;

/// A connection, as the server names it.
pub type ClientId = u64;

/// Bytes of the longest number in decimal text.
const NUMBER_TEXT_BYTES: usize = 20;
/// A value that gets this many times shorter gives its room back.
const SHRINK_FACTOR: usize = 4;
/// Bytes an entry is taken to cost besides its key and value.
const ENTRY_BYTES: usize = 64;

/// One WAIT of one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Ticket {
    client: ClientId,
    serial: u64,
}

/// Values, queues and waiters.
#[derive(Debug)]
pub struct Table {
    limits: Limits,
    values: HashMap<Key, Value>,
    queues: HashMap<Key, VecDeque<Value>>,
    /// Key → those that wait for it, oldest first, by their serials: whoever leaves is found at once, also among thousands.
    waiting: HashMap<Key, BTreeMap<u64, Ticket>>,
    /// Ticket → keys that have not appeared yet. Ordered, so that a client's tickets lie together.
    awaited: BTreeMap<Ticket, HashSet<Key>>,
    serial: u64,
    bytes: usize,
}

/// Where replies go: the client, and what it is told.
pub type Sink<'a> = dyn FnMut(ClientId, &Reply<'_>) + 'a;

impl Table {
    /// An empty table.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            values: HashMap::new(),
            queues: HashMap::new(),
            waiting: HashMap::new(),
            awaited: BTreeMap::new(),
            serial: 0,
            bytes: 0,
        }
    }

    /// Bytes of all keys and values, waited-for keys included, with a fixed cost for each entry.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Does what `client` asks. After an error the client must be closed; of a multi-set, pairs before the one at fault
    /// are set.
    pub fn apply(&mut self, client: ClientId, request: Request<'_>, sink: &mut Sink<'_>) -> Result<(), Violation> {
        match request {
            Request::Set(key, value) => {
                self.put(key, value)?;
                self.wake_all(key, sink);
            }
            Request::MultiSet(pairs) => {
                for (key, value) in pairs.iter() {
                    self.put(key, value)?;
                    self.wake_all(key, sink);
                }
            }
            Request::CompareSet { key, expected, wanted } => {
                self.compare_set(client, (key, expected, wanted), sink)?;
            }
            Request::Add(key, amount) => self.add(client, key, amount, sink)?,
            Request::Append(key, value) => self.append(key, value, sink)?,
            Request::Get(key) => sink(client, &Reply::Value(self.get(key))),
            Request::MultiGet(keys) => self.multi_get(client, keys, sink)?,
            Request::Check(keys) => sink(client, &Reply::Ready(keys.iter().all(|key| self.exists(key)))),
            Request::Wait(keys) => self.wait(client, keys, sink)?,
            Request::CancelWait => {
                self.forget(client);
                sink(client, &Reply::WaitCancelled);
            }
            Request::NumKeys => sink(client, &Reply::Number(self.values.len() as i64)),
            Request::ListKeys => self.list_keys(client, sink)?,
            Request::Delete(key) => self.delete(client, key, sink),
            Request::Ping(nonce) => sink(client, &Reply::Nonce(nonce)),
            Request::QueuePush(key, value) => self.push(key, value, sink)?,
            Request::QueuePop(key) => self.pop(client, key, sink),
            Request::QueueLen(key) => {
                sink(client, &Reply::Number(self.queues.get(key).map_or(0, VecDeque::len) as i64));
            }
        }
        Ok(())
    }

    /// Forgets what `client` waits for: it cancelled, or its connection is gone.
    pub fn forget(&mut self, client: ClientId) {
        let tickets = Ticket { client, serial: 0 }..=Ticket { client, serial: u64::MAX };
        let gone: Vec<Ticket> = self.awaited.range(tickets).map(|(ticket, _)| *ticket).collect();
        for ticket in gone {
            for key in self.awaited.remove(&ticket).unwrap_or_default() {
                self.bytes -= entry_bytes(&key, 0);
                self.unlist(&key, ticket);
            }
        }
    }

    fn get(&self, key: &[u8]) -> &[u8] {
        self.values.get(key).map_or(&[], Vec::as_slice)
    }

    fn exists(&self, key: &[u8]) -> bool {
        // A queue is removed when it becomes empty.
        self.values.contains_key(key) || self.queues.contains_key(key)
    }

    fn room(&self, wanted: usize) -> Result<(), Violation> {
        let (held, max) = (self.bytes, self.limits.store_bytes_max);
        if held.saturating_add(wanted) <= max { Ok(()) } else { Err(Violation::Full { held, max, wanted }) }
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Violation> {
        if let Some(held) = self.values.get_mut(key) {
            let (old, new) = (held.len(), value.len());
            if new > old && self.bytes - old + new > self.limits.store_bytes_max {
                let max = self.limits.store_bytes_max;
                return Err(Violation::Full { held: self.bytes, max, wanted: new - old });
            }
            self.bytes = self.bytes - old + new;
            held.clear();
            held.extend_from_slice(value);
            if held.capacity() / SHRINK_FACTOR > new {
                held.shrink_to_fit();
            }
            return Ok(());
        }
        let cost = entry_bytes(key, value.len());
        self.room(cost)?;
        self.bytes += cost;
        self.values.insert(key.into(), value.to_vec());
        Ok(())
    }

    fn compare_set(
        &mut self,
        client: ClientId,
        (key, expected, wanted): (&[u8], &[u8], &[u8]),
        sink: &mut Sink<'_>,
    ) -> Result<(), Violation> {
        match self.values.get(key) {
            Some(held) if held == expected => self.put(key, wanted)?,
            Some(_) => {}
            None if expected.is_empty() => self.put(key, wanted)?,
            None => {
                // As the reference server answers: the caller is told what it expected although there is no value.
                sink(client, &Reply::Value(expected));
                return Ok(());
            }
        }
        sink(client, &Reply::Value(self.get(key)));
        self.wake_all(key, sink);
        Ok(())
    }

    fn add(&mut self, client: ClientId, key: &[u8], amount: i64, sink: &mut Sink<'_>) -> Result<(), Violation> {
        let sum = match self.values.get(key) {
            None => Some(amount),
            Some(held) => std::str::from_utf8(held)
                .ok()
                .and_then(|text| text.parse::<i64>().ok())
                .and_then(|held| held.checked_add(amount)),
        };
        let Some(sum) = sum else {
            return Err(Violation::Add { key: String::from_utf8_lossy(key).into_owned(), amount });
        };
        let mut text = [0; NUMBER_TEXT_BYTES];
        let mut rest = text.as_mut_slice();
        // The longest number fits.
        let _ = write!(rest, "{sum}");
        let unused = rest.len();
        self.put(key, &text[..NUMBER_TEXT_BYTES - unused])?;
        sink(client, &Reply::Number(sum));
        self.wake_all(key, sink);
        Ok(())
    }

    fn append(&mut self, key: &[u8], value: &[u8], sink: &mut Sink<'_>) -> Result<(), Violation> {
        let held = self.values.get(key).map_or(0, Vec::len);
        let grown = held + value.len();
        // Appended values may outgrow a single request, but must fit into a reply.
        self.fits_reply("value", grown)?;
        match self.values.get_mut(key) {
            Some(held) => {
                let wanted = value.len();
                if self.bytes + wanted > self.limits.store_bytes_max {
                    return Err(Violation::Full { held: self.bytes, max: self.limits.store_bytes_max, wanted });
                }
                self.bytes += wanted;
                held.extend_from_slice(value);
            }
            None => self.put(key, value)?,
        }
        self.wake_all(key, sink);
        Ok(())
    }

    fn multi_get(&self, client: ClientId, keys: Keys<'_>, sink: &mut Sink<'_>) -> Result<(), Violation> {
        let values: Vec<&[u8]> = keys.iter().map(|key| self.get(key)).collect();
        // A short request may ask for the same large value many times.
        self.fits_reply("reply", values.iter().map(|value| value.len() + 8).sum())?;
        sink(client, &Reply::Values(&values));
        Ok(())
    }

    fn list_keys(&self, client: ClientId, sink: &mut Sink<'_>) -> Result<(), Violation> {
        self.fits_reply("reply", self.values.keys().map(|key| key.len() + 8).sum())?;
        sink(client, &Reply::Keys(self.values.keys().collect()));
        Ok(())
    }

    fn fits_reply(&self, what: &'static str, bytes: usize) -> Result<(), Violation> {
        let max = self.limits.reply_bytes_max;
        if bytes <= max { Ok(()) } else { Err(Violation::TooMuch { what, found: bytes as u64, max: max as u64 }) }
    }

    fn delete(&mut self, client: ClientId, key: &[u8], sink: &mut Sink<'_>) {
        let gone = self.values.remove(key);
        if let Some(value) = &gone {
            self.bytes -= entry_bytes(key, value.len());
        }
        sink(client, &Reply::Number(i64::from(gone.is_some())));
    }

    fn push(&mut self, key: &[u8], value: &[u8], sink: &mut Sink<'_>) -> Result<(), Violation> {
        let cost = entry_bytes(key, value.len());
        self.room(cost)?;
        self.bytes += cost;
        match self.queues.get_mut(key) {
            Some(queue) => queue.push_back(value.to_vec()),
            None => {
                self.queues.insert(key.into(), VecDeque::from([value.to_vec()]));
            }
        }
        if let Some(ticket) = self.waiting.get(key).and_then(|line| line.values().next().copied()) {
            self.unlist(key, ticket);
            self.appeared(key, ticket, sink);
        }
        Ok(())
    }

    fn pop(&mut self, client: ClientId, key: &[u8], sink: &mut Sink<'_>) {
        let Some(queue) = self.queues.get_mut(key) else {
            sink(client, &Reply::Popped(&VecDeque::new()));
            return;
        };
        sink(client, &Reply::Popped(queue));
        if let Some(value) = queue.pop_front() {
            self.bytes -= entry_bytes(key, value.len());
        }
        if queue.is_empty() {
            self.queues.remove(key);
        }
    }

    fn wait(&mut self, client: ClientId, keys: Keys<'_>, sink: &mut Sink<'_>) -> Result<(), Violation> {
        let missing: HashSet<Key> = keys.iter().filter(|key| !self.exists(key)).map(Into::into).collect();
        if missing.is_empty() {
            sink(client, &Reply::StopWaiting);
            return Ok(());
        }
        let cost = missing.iter().map(|key| entry_bytes(key, 0)).sum();
        self.room(cost)?;
        self.bytes += cost;
        self.serial += 1;
        let ticket = Ticket { client, serial: self.serial };
        for key in &missing {
            self.waiting.entry(key.clone()).or_default().insert(ticket.serial, ticket);
        }
        self.awaited.insert(ticket, missing);
        Ok(())
    }

    fn wake_all(&mut self, key: &[u8], sink: &mut Sink<'_>) {
        for ticket in self.waiting.remove(key).unwrap_or_default().into_values() {
            self.appeared(key, ticket, sink);
        }
    }

    /// `key` has appeared for `ticket`, which is no longer listed under it.
    fn appeared(&mut self, key: &[u8], ticket: Ticket, sink: &mut Sink<'_>) {
        let Some(missing) = self.awaited.get_mut(&ticket) else { return };
        if missing.remove(key) {
            self.bytes -= entry_bytes(key, 0);
        }
        if missing.is_empty() {
            self.awaited.remove(&ticket);
            sink(ticket.client, &Reply::StopWaiting);
        }
    }

    fn unlist(&mut self, key: &[u8], ticket: Ticket) {
        if let Some(line) = self.waiting.get_mut(key) {
            line.remove(&ticket.serial);
            if line.is_empty() {
                self.waiting.remove(key);
            }
        }
    }
}

fn entry_bytes(key: &[u8], value: usize) -> usize {
    key.len() + value + ENTRY_BYTES
}

#[cfg(test)]
mod tests;
