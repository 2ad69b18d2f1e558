//! The connections, found by an index, so that the lookup for an event takes constant time.

use super::{connection::ClientConnection, table::ClientId};

/// Bits of a [`ClientId`] that are the index; the bits above count the earlier uses of the slot.
const INDEX_BITS: u32 = 32;

#[derive(Debug, Default)]
struct Slot {
    /// Number of earlier uses of this slot.
    generation: u32,
    taken: bool,
    /// `None` also while the connection is being served.
    connection: Option<Box<ClientConnection>>,
}

#[derive(Debug, Default)]
pub(super) struct Clients {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Clients {
    /// Returns the number of connections, the one being served included.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn reserve(&mut self) -> Option<ClientId> {
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            slot.taken = true;
            return Some(id(slot.generation, index));
        }
        let index = u32::try_from(self.slots.len()).ok()?;
        self.slots.push(Slot { taken: true, ..Slot::default() });
        Some(id(0, index))
    }

    /// Puts the connection of `client` into its slot.
    pub(super) fn put(&mut self, client: ClientId, connection: Box<ClientConnection>) {
        if let Some(slot) = self.slot(client) {
            slot.connection = Some(connection);
        }
    }

    /// Takes the connection out of its slot, to be put back or [`Clients::release`]d.
    pub(super) fn take(&mut self, client: ClientId) -> Option<Box<ClientConnection>> {
        self.slot(client)?.connection.take()
    }

    pub(super) fn get_mut(&mut self, client: ClientId) -> Option<&mut ClientConnection> {
        self.slot(client)?.connection.as_deref_mut()
    }

    /// Frees the slot of `client`; its id is not used again for 2^32 uses of the slot.
    pub(super) fn release(&mut self, client: ClientId) {
        let Some(slot) = self.slot(client) else { return };
        slot.taken = false;
        slot.generation = slot.generation.wrapping_add(1);
        slot.connection = None;
        self.free.push(index(client) as u32);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (ClientId, &ClientConnection)> {
        let occupied = self.slots.iter().zip(0u32..);
        occupied.filter_map(|(slot, index)| Some((id(slot.generation, index), slot.connection.as_deref()?)))
    }

    fn slot(&mut self, client: ClientId) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(index(client))?;
        (slot.taken && u64::from(slot.generation) == client >> INDEX_BITS).then_some(slot)
    }
}

fn id(generation: u32, index: u32) -> ClientId {
    u64::from(generation) << INDEX_BITS | u64::from(index)
}

fn index(client: ClientId) -> usize {
    (client & u64::from(u32::MAX)) as usize
}
