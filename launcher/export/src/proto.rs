//! Encoding and decoding of protocol buffers, the format of ONNX, TensorFlow and Core ML files (wire format of protobuf.dev/programming-guides/encoding).
//!
//! **Invariant:** fields are written in the order of the calls, so that equal calls give equal bytes.

/// A message under construction.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Message(Vec<u8>);

const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const LENGTH: u64 = 2;
const FIXED32: u64 = 5;

impl Message {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Appends a uint32, uint64, bool or enum; also a zero, which plain proto3 would leave out.
    pub(crate) fn uint(mut self, field: u32, value: u64) -> Self {
        self.key(field, VARINT);
        varint(&mut self.0, value);
        self
    }

    /// Appends an int32 or int64.
    pub(crate) fn int(self, field: u32, value: i64) -> Self {
        self.uint(field, value.cast_unsigned())
    }

    pub(crate) fn float(mut self, field: u32, value: f32) -> Self {
        self.key(field, FIXED32);
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(crate) fn bytes(mut self, field: u32, value: &[u8]) -> Self {
        self = self.opening(field, value.len() as u64);
        self.0.extend_from_slice(value);
        self
    }

    pub(crate) fn text(self, field: u32, value: &str) -> Self {
        self.bytes(field, value.as_bytes())
    }

    pub(crate) fn message(self, field: u32, value: &Self) -> Self {
        self.bytes(field, &value.0)
    }

    /// Appends the messages of a repeated field.
    pub(crate) fn messages(self, field: u32, values: impl IntoIterator<Item = Self>) -> Self {
        values.into_iter().fold(self, |whole, value| whole.message(field, &value))
    }

    /// Appends the key and length of a field whose `bytes` bytes follow from elsewhere.
    pub(crate) fn opening(mut self, field: u32, bytes: u64) -> Self {
        self.key(field, LENGTH);
        varint(&mut self.0, bytes);
        self
    }

    /// Appends a packed repeated field of int32 or int64.
    pub(crate) fn ints(self, field: u32, values: &[i64]) -> Self {
        let mut packed = Vec::with_capacity(values.len());
        values.iter().for_each(|value| varint(&mut packed, value.cast_unsigned()));
        self.bytes(field, &packed)
    }

    fn key(&mut self, field: u32, kind: u64) {
        varint(&mut self.0, u64::from(field) << 3 | kind);
    }
}

fn varint(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Field<'a> {
    /// A field of type uint32, uint64, int32, int64, bool or enum.
    Number(u64),
    /// A field of type bytes or string, a message, or a packed field.
    Bytes(&'a [u8]),
    /// A float or double, or an integer of fixed length: 4 or 8 bytes.
    Fixed(&'a [u8]),
}

impl<'a> Field<'a> {
    const fn bytes(self) -> Option<&'a [u8]> {
        match self {
            Self::Bytes(bytes) | Self::Fixed(bytes) => Some(bytes),
            Self::Number(_) => None,
        }
    }
}

/// Returns the fields of a message in their order; `None` for malformed bytes.
pub(crate) fn fields(mut message: &[u8]) -> Option<Vec<(u32, Field<'_>)>> {
    let mut all = Vec::new();
    while !message.is_empty() {
        let key = read(&mut message)?;
        let value = match key & 7 {
            VARINT => Field::Number(read(&mut message)?),
            LENGTH => {
                let bytes = usize::try_from(read(&mut message)?).ok()?;
                Field::Bytes(message.split_off(..bytes)?)
            }
            FIXED32 => Field::Fixed(message.split_off(..4)?),
            FIXED64 => Field::Fixed(message.split_off(..8)?),
            _ => return None,
        };
        all.push((u32::try_from(key >> 3).ok()?, value));
    }
    Some(all)
}

fn read(from: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let byte = *from.split_off_first()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

pub(crate) fn varints(mut bytes: &[u8]) -> Option<Vec<u64>> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        all.push(read(&mut bytes)?);
    }
    Some(all)
}

/// A decoded message. `None` stands for bytes that are no valid message.
#[derive(Debug, Clone)]
pub(crate) struct Part<'a>(Vec<(u32, Field<'a>)>);

impl<'a> Part<'a> {
    pub(crate) fn of(bytes: &'a [u8]) -> Option<Self> {
        fields(bytes).map(Self)
    }

    /// Returns the values of a repeated field.
    pub(crate) fn all(&self, field: u32) -> impl Iterator<Item = Field<'a>> {
        self.0.iter().filter(move |(number, _)| *number == field).map(|(_, value)| *value)
    }

    /// Returns a number; an absent field is zero.
    pub(crate) fn number(&self, field: u32) -> Option<u64> {
        match self.all(field).last() {
            None => Some(0),
            Some(Field::Number(value)) => Some(value),
            Some(Field::Bytes(_) | Field::Fixed(_)) => None,
        }
    }

    pub(crate) fn bytes(&self, field: u32) -> Option<&'a [u8]> {
        self.all(field).last()?.bytes()
    }

    pub(crate) fn text(&self, field: u32) -> Option<&'a str> {
        std::str::from_utf8(self.bytes(field)?).ok()
    }

    pub(crate) fn part(&self, field: u32) -> Option<Self> {
        Self::of(self.bytes(field)?)
    }

    /// Returns the messages of a repeated field.
    pub(crate) fn parts(&self, field: u32) -> Option<Vec<Self>> {
        self.all(field).map(|value| Self::of(value.bytes()?)).collect()
    }

    pub(crate) fn texts(&self, field: u32) -> Option<Vec<&'a str>> {
        self.all(field).map(|value| std::str::from_utf8(value.bytes()?).ok()).collect()
    }

    pub(crate) fn entries(&self, field: u32) -> Option<Vec<(&'a str, Self)>> {
        self.parts(field)?.into_iter().map(|entry| Some((entry.text(1)?, entry.part(2)?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_are_those_of_the_specification() {
        // The examples of protobuf.dev/programming-guides/encoding.
        assert_eq!(Message::new().uint(1, 150).into_bytes(), [0x08, 0x96, 0x01]);
        assert_eq!(Message::new().text(2, "testing").into_bytes(), b"\x12\x07testing");
        let inner = Message::new().uint(1, 150);
        assert_eq!(Message::new().message(3, &inner).into_bytes(), [0x1a, 0x03, 0x08, 0x96, 0x01]);
        assert_eq!(
            Message::new().ints(6, &[3, 270, 86942]).into_bytes(),
            [0x32, 0x06, 0x03, 0x8e, 0x02, 0x9e, 0xa7, 0x05]
        );
        assert_eq!(Message::new().int(1, -2).into_bytes().len(), 11);
        assert_eq!(Message::new().float(1, 1.0).into_bytes(), [0x0d, 0, 0, 0x80, 0x3f]);
    }
    #[test]
    fn what_is_written_is_read() {
        let inner = Message::new().int(1, -2).text(2, "x");
        let mut whole = Message::new().message(3, &inner).float(4, 1.0).into_bytes();
        whole.extend([&[5 << 3 | FIXED64 as u8][..], &2_f64.to_le_bytes()].concat());
        whole.extend(Message::new().uint(6, 150).into_bytes());
        let [(3, Field::Bytes(inside)), (4, Field::Fixed(float)), (5, Field::Fixed(double)), last] =
            fields(&whole).unwrap()[..]
        else {
            panic!("four fields: {:?}", fields(&whole));
        };
        assert_eq!(fields(inside).unwrap(), [(1, Field::Number((-2_i64).cast_unsigned())), (2, Field::Bytes(b"x"))]);
        assert_eq!(
            (float, double, last),
            (&1_f32.to_le_bytes()[..], &2_f64.to_le_bytes()[..], (6, Field::Number(150)))
        );
        for cut in 1..whole.len() {
            assert!(fields(&whole[..cut]).is_none_or(|some| some.len() < 4), "{cut}");
        }
        assert_eq!(fields(&[0xff; 20]), None);
    }
}
