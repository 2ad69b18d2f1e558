//! The connections, found by an index: a lookup for each event must cost nothing.

use super::{connection::Connection, table::ClientId};

/// Bits of a [`ClientId`] that are the index; those above count who had the place before.
const INDEX_BITS: u32 = 32;

/// A place for a connection.
#[derive(Debug, Default)]
struct Seat {
    /// How many had this place before.
    generation: u32,
    taken: bool,
    /// Empty also while the connection is being served.
    connection: Option<Box<Connection>>,
}

/// All connections.
#[derive(Debug, Default)]
pub(super) struct Clients {
    seats: Vec<Seat>,
    free: Vec<u32>,
}

impl Clients {
    /// How many there are, the one being served included.
    pub(super) fn len(&self) -> usize {
        self.seats.len() - self.free.len()
    }

    /// The name the next connection gets.
    pub(super) fn reserve(&mut self) -> Option<ClientId> {
        if let Some(index) = self.free.pop() {
            let seat = &mut self.seats[index as usize];
            seat.taken = true;
            return Some(id(seat.generation, index));
        }
        let index = u32::try_from(self.seats.len()).ok()?;
        self.seats.push(Seat { taken: true, ..Seat::default() });
        Some(id(0, index))
    }

    /// Puts the connection of `client` in its place.
    pub(super) fn put(&mut self, client: ClientId, connection: Box<Connection>) {
        if let Some(seat) = self.seat(client) {
            seat.connection = Some(connection);
        }
    }

    /// Takes it out, to be put back or [`Clients::release`]d.
    pub(super) fn take(&mut self, client: ClientId) -> Option<Box<Connection>> {
        self.seat(client)?.connection.take()
    }

    pub(super) fn get_mut(&mut self, client: ClientId) -> Option<&mut Connection> {
        self.seat(client)?.connection.as_deref_mut()
    }

    /// Gives the place of `client` to another one; its name is not used again for as long as matters.
    pub(super) fn release(&mut self, client: ClientId) {
        let Some(seat) = self.seat(client) else { return };
        seat.taken = false;
        seat.generation = seat.generation.wrapping_add(1);
        seat.connection = None;
        self.free.push(index(client) as u32);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (ClientId, &Connection)> {
        let seated = self.seats.iter().zip(0u32..);
        seated.filter_map(|(seat, index)| Some((id(seat.generation, index), seat.connection.as_deref()?)))
    }

    fn seat(&mut self, client: ClientId) -> Option<&mut Seat> {
        let seat = self.seats.get_mut(index(client))?;
        (seat.taken && u64::from(seat.generation) == client >> INDEX_BITS).then_some(seat)
    }
}

fn id(generation: u32, index: u32) -> ClientId {
    u64::from(generation) << INDEX_BITS | u64::from(index)
}

fn index(client: ClientId) -> usize {
    (client & u64::from(u32::MAX)) as usize
}
