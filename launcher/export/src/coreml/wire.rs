//! Decoding of protocol buffers, one level of messages at a time. `None` stands for bytes that are no valid message.

/// Value of a field.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum WireField<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// Returns the fields of a message in their order.
fn fields(mut bytes: &[u8]) -> Option<Vec<(u64, WireField<'_>)>> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        let field = match key & 7 {
            0 => WireField::Number(varint(&mut bytes)?),
            1 => WireField::Bytes(take(&mut bytes, 8)?),
            2 => {
                let len = varint(&mut bytes)?;
                WireField::Bytes(take(&mut bytes, len.try_into().ok()?)?)
            }
            5 => WireField::Bytes(take(&mut bytes, 4)?),
            _ => return None,
        };
        fields.push((key >> 3, field));
    }
    Some(fields)
}

/// Decodes a sequence of varints.
pub(super) fn varints(mut bytes: &[u8]) -> Option<Vec<u64>> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        all.push(varint(&mut bytes)?);
    }
    Some(all)
}

fn take<'a>(bytes: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(taken)
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let byte = take(bytes, 1)?[0];
        value |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// A decoded message.
#[derive(Debug, Clone)]
pub(super) struct Part<'a>(Vec<(u64, WireField<'a>)>);

impl<'a> Part<'a> {
    pub(super) fn of(bytes: &'a [u8]) -> Option<Self> {
        fields(bytes).map(Self)
    }

    /// Returns the values of a repeated field.
    pub(super) fn all(&self, field: u64) -> impl Iterator<Item = WireField<'a>> {
        self.0.iter().filter(move |(number, _)| *number == field).map(|(_, value)| *value)
    }

    /// Returns a number; an absent field is zero.
    pub(super) fn number(&self, field: u64) -> Option<u64> {
        match self.all(field).last() {
            None => Some(0),
            Some(WireField::Number(value)) => Some(value),
            Some(WireField::Bytes(_)) => None,
        }
    }

    pub(super) fn bytes(&self, field: u64) -> Option<&'a [u8]> {
        match self.all(field).last() {
            Some(WireField::Bytes(bytes)) => Some(bytes),
            _ => None,
        }
    }

    pub(super) fn text(&self, field: u64) -> Option<&'a str> {
        std::str::from_utf8(self.bytes(field)?).ok()
    }

    pub(super) fn part(&self, field: u64) -> Option<Self> {
        Self::of(self.bytes(field)?)
    }

    /// Returns the messages of a repeated field.
    pub(super) fn parts(&self, field: u64) -> Option<Vec<Self>> {
        let each = |value| match value {
            WireField::Bytes(bytes) => Self::of(bytes),
            WireField::Number(_) => None,
        };
        self.all(field).map(each).collect()
    }

    /// Returns the texts of a repeated field.
    pub(super) fn texts(&self, field: u64) -> Option<Vec<&'a str>> {
        let each = |value| match value {
            WireField::Bytes(bytes) => std::str::from_utf8(bytes).ok(),
            WireField::Number(_) => None,
        };
        self.all(field).map(each).collect()
    }

    /// Returns the entries of a map.
    pub(super) fn entries(&self, field: u64) -> Option<Vec<(&'a str, Self)>> {
        self.parts(field)?.into_iter().map(|entry| Some((entry.text(1)?, entry.part(2)?))).collect()
    }
}
