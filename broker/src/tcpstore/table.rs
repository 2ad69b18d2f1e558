//! The store's state, pure: values, queues and waiters. A request goes in, replies come out through a sink.
//!
//! A waiter is notified once, when the last key it waits for has appeared; a key that appeared and was deleted again counts
//! as having appeared. A push onto a queue wakes one waiter, in the order they came; everything else wakes all.

pub use super::protocol::{Key, Value};

use super::{
    Limits,
    error::Violation,
    protocol::{Keys, Request},
    reply::Reply,
};
use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    io::Write,
    sync::Arc,
};

pub type ClientId = u64;

/// Bytes of the longest number in decimal text.
const NUMBER_TEXT_BYTES: usize = 20;
/// A value that shrinks by this factor releases its memory.
const SHRINK_FACTOR: usize = 2;
/// Memory overheads in bytes besides keys and values, with the slack of hash tables and of the allocator:
/// a value, a queue, a value of a queue, a wait, and a key of a wait.
const VALUE_BYTES: usize = 176;
const QUEUE_BYTES: usize = 320;
const QUEUED_BYTES: usize = 96;
const WAIT_BYTES: usize = 320;
const AWAITED_BYTES: usize = 288;

/// A key that is waited for, stored once.
type AwaitedKey = Arc<[u8]>;

/// The waiters of a key by serial number, oldest first, so that a leaving one is found fast among thousands. Most keys have one.
#[derive(Debug)]
enum Waiters {
    One(Ticket),
    Many(BTreeMap<u64, Ticket>),
}

impl Waiters {
    fn first(&self) -> Option<Ticket> {
        match self {
            Self::One(ticket) => Some(*ticket),
            Self::Many(tickets) => tickets.values().next().copied(),
        }
    }

    fn insert(&mut self, ticket: Ticket) {
        match self {
            Self::One(first) => {
                *self = Self::Many(BTreeMap::from([(first.serial, *first), (ticket.serial, ticket)]));
            }
            Self::Many(tickets) => {
                tickets.insert(ticket.serial, ticket);
            }
        }
    }

    /// Removes a ticket; returns whether no waiter is left.
    fn remove(&mut self, ticket: Ticket) -> bool {
        match self {
            Self::One(first) => *first == ticket,
            Self::Many(tickets) => {
                tickets.remove(&ticket.serial);
                tickets.is_empty()
            }
        }
    }

    fn into_tickets(self) -> Vec<Ticket> {
        match self {
            Self::One(ticket) => vec![ticket],
            Self::Many(tickets) => tickets.into_values().collect(),
        }
    }
}

/// One WAIT of one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Ticket {
    client: ClientId,
    serial: u64,
}

#[derive(Debug)]
pub struct Table {
    limits: Limits,
    values: HashMap<Key, Value>,
    queues: HashMap<Key, VecDeque<Value>>,
    waiting: HashMap<AwaitedKey, Waiters>,
    /// Keys of each ticket that have not appeared yet, ordered, so that a client's tickets are adjacent.
    awaited: BTreeMap<Ticket, HashSet<AwaitedKey>>,
    /// Number of keys that each client waits for, over all its waits.
    awaited_keys: HashMap<ClientId, usize>,
    serial: u64,
    bytes: usize,
}

/// Receiver of replies, with the client to which each goes.
pub type Sink<'a> = dyn FnMut(ClientId, &Reply<'_>) + 'a;

impl Table {
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            values: HashMap::new(),
            queues: HashMap::new(),
            waiting: HashMap::new(),
            awaited: BTreeMap::new(),
            awaited_keys: HashMap::new(),
            serial: 0,
            bytes: 0,
        }
    }

    /// Returns the memory of all keys and values in bytes, waited-for keys included.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Carries out a request of `client`. After an error the client must be closed; of a multi-set, pairs before the one at
    /// fault are set.
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
                self.compare_set(client, key, expected, wanted, sink)?;
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

    /// Returns the bytes of the reply that `request` would get now, as far as they depend on the table's contents.
    pub(super) fn reply_bytes(&self, request: &Request<'_>) -> usize {
        match request {
            Request::Get(key) => self.get(key).len(),
            Request::CompareSet { key, .. } => self.get(key).len(),
            Request::MultiGet(keys) => keys.iter().map(|key| self.get(key).len() + 8).sum(),
            Request::ListKeys => self.values.keys().map(|key| key.len() + 8).sum(),
            Request::QueuePop(key) => self.queues.get(*key).and_then(VecDeque::front).map_or(0, Vec::len),
            _ => 0,
        }
    }

    /// Forgets the waits of `client`: it cancelled, or its connection is gone.
    pub fn forget(&mut self, client: ClientId) {
        let tickets = Ticket { client, serial: 0 }..=Ticket { client, serial: u64::MAX };
        let gone: Vec<Ticket> = self.awaited.range(tickets).map(|(ticket, _)| *ticket).collect();
        for ticket in gone {
            self.bytes -= WAIT_BYTES;
            for key in self.awaited.remove(&ticket).unwrap_or_default() {
                self.bytes -= key.len() + AWAITED_BYTES;
                self.unlist(&key, ticket);
            }
        }
        self.awaited_keys.remove(&client);
    }

    fn get(&self, key: &[u8]) -> &[u8] {
        self.values.get(key).map_or(&[], Vec::as_slice)
    }

    fn exists(&self, key: &[u8]) -> bool {
        // A queue is removed when it becomes empty.
        self.values.contains_key(key) || self.queues.contains_key(key)
    }

    fn room(&self, wanted: usize) -> Result<(), Violation> {
        let held = self.bytes;
        let max = self.limits.store_bytes_max;
        if held.saturating_add(wanted) <= max { Ok(()) } else { Err(Violation::Full { held, max, wanted }) }
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Violation> {
        let max = self.limits.store_bytes_max;
        if let Some(held) = self.values.get_mut(key) {
            let old = held.capacity();
            let new = value.len();
            if new > old && self.bytes - old + new > max {
                return Err(Violation::Full { held: self.bytes, max, wanted: new - old });
            }
            held.clear();
            if new > old || old / SHRINK_FACTOR > new {
                // The old buffer is released before the new one is allocated.
                *held = Vec::new();
                held.reserve_exact(new);
            }
            held.extend_from_slice(value);
            self.bytes = self.bytes - old + held.capacity();
            return Ok(());
        }
        let cost = key.len() + value.len() + VALUE_BYTES;
        self.room(cost)?;
        self.bytes += cost;
        self.values.insert(key.into(), value.to_vec());
        Ok(())
    }

    fn compare_set(
        &mut self,
        client: ClientId,
        key: &[u8],
        expected: &[u8],
        wanted: &[u8],
        sink: &mut Sink<'_>,
    ) -> Result<(), Violation> {
        match self.values.get(key) {
            Some(held) if held == expected => self.put(key, wanted)?,
            Some(_) => {}
            None if expected.is_empty() => self.put(key, wanted)?,
            None => {
                // The reference server answers with the expected value although there is no value.
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
        // The buffer holds the longest number.
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
        // Appended values may exceed a single request, but must fit into a reply.
        self.fits_reply("value", grown)?;
        match self.values.get_mut(key) {
            Some(held) => {
                let old = held.capacity();
                if grown > old {
                    // The buffer grows by half, so that many short appends do not copy a long value each time.
                    let room = grown.max(old + old / 2);
                    let max = self.limits.store_bytes_max;
                    if self.bytes - old + room > max {
                        return Err(Violation::Full { held: self.bytes, max, wanted: room - old });
                    }
                    held.reserve_exact(room - held.len());
                    self.bytes = self.bytes - old + held.capacity();
                }
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
            self.bytes -= key.len() + value.capacity() + VALUE_BYTES;
        }
        sink(client, &Reply::Number(i64::from(gone.is_some())));
    }

    fn push(&mut self, key: &[u8], value: &[u8], sink: &mut Sink<'_>) -> Result<(), Violation> {
        let queue = if self.queues.contains_key(key) { 0 } else { key.len() + QUEUE_BYTES };
        let cost = queue + value.len() + QUEUED_BYTES;
        self.room(cost)?;
        self.bytes += cost;
        match self.queues.get_mut(key) {
            Some(queue) => queue.push_back(value.to_vec()),
            None => {
                self.queues.insert(key.into(), VecDeque::from([value.to_vec()]));
            }
        }
        if let Some(ticket) = self.waiting.get(key).and_then(Waiters::first) {
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
            self.bytes -= value.len() + QUEUED_BYTES;
        }
        if queue.len() < queue.capacity() / (2 * SHRINK_FACTOR) {
            queue.shrink_to(SHRINK_FACTOR * queue.len());
        }
        if queue.is_empty() {
            self.queues.remove(key);
            self.bytes -= key.len() + QUEUE_BYTES;
        }
    }

    fn wait(&mut self, client: ClientId, keys: Keys<'_>, sink: &mut Sink<'_>) -> Result<(), Violation> {
        let missing: HashSet<&[u8]> = keys.iter().filter(|key| !self.exists(key)).collect();
        if missing.is_empty() {
            sink(client, &Reply::StopWaiting);
            return Ok(());
        }
        let max = self.limits.keys_per_request_max;
        let found = self.awaited_keys.get(&client).copied().unwrap_or(0) + missing.len();
        if found > max {
            return Err(Violation::TooMuch { what: "number of keys waited for", found: found as u64, max: max as u64 });
        }
        let cost = missing.iter().map(|key| key.len() + AWAITED_BYTES).sum::<usize>() + WAIT_BYTES;
        self.room(cost)?;
        self.bytes += cost;
        self.awaited_keys.insert(client, found);
        self.serial += 1;
        let ticket = Ticket { client, serial: self.serial };
        let mut awaited = HashSet::with_capacity(missing.len());
        for key in missing {
            let key = match self.waiting.get_key_value(key) {
                Some((key, _)) => Arc::clone(key),
                None => AwaitedKey::from(key),
            };
            self.waiting
                .entry(Arc::clone(&key))
                .and_modify(|waiters| waiters.insert(ticket))
                .or_insert(Waiters::One(ticket));
            awaited.insert(key);
        }
        self.awaited.insert(ticket, awaited);
        Ok(())
    }

    fn wake_all(&mut self, key: &[u8], sink: &mut Sink<'_>) {
        for ticket in self.waiting.remove(key).map(Waiters::into_tickets).unwrap_or_default() {
            self.appeared(key, ticket, sink);
        }
    }

    /// Handles that `key` has appeared for `ticket`, which is no longer listed under it.
    fn appeared(&mut self, key: &[u8], ticket: Ticket, sink: &mut Sink<'_>) {
        let Some(missing) = self.awaited.get_mut(&ticket) else { return };
        if missing.remove(key) {
            self.bytes -= key.len() + AWAITED_BYTES;
            if let Some(keys) = self.awaited_keys.get_mut(&ticket.client) {
                *keys -= 1;
                if *keys == 0 {
                    self.awaited_keys.remove(&ticket.client);
                }
            }
        }
        if missing.is_empty() {
            self.awaited.remove(&ticket);
            self.bytes -= WAIT_BYTES;
            sink(ticket.client, &Reply::StopWaiting);
        }
    }

    fn unlist(&mut self, key: &[u8], ticket: Ticket) {
        if self.waiting.get_mut(key).is_some_and(|waiters| waiters.remove(ticket)) {
            self.waiting.remove(key);
        }
    }
}

#[cfg(test)]
mod tests;
