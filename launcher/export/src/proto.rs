//! Encoding of protocol buffers, the format of ONNX, TensorFlow and Core ML files (wire format of protobuf.dev/programming-guides/encoding).
//!
//! **Invariant:** fields are written in the order of the calls, so that equal calls give equal bytes.

/// A message under construction.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Message(Vec<u8>);

const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const LENGTH: u64 = 2;
const FIXED32: u64 = 5;

impl Message {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// Returns the length so far in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Appends a uint32, uint64, bool or enum; also a zero, which plain proto3 would leave out.
    pub fn uint(mut self, field: u32, value: u64) -> Self {
        self.key(field, VARINT);
        varint(&mut self.0, value);
        self
    }

    /// Appends an int32 or int64.
    pub fn int(self, field: u32, value: i64) -> Self {
        self.uint(field, value.cast_unsigned())
    }

    pub fn float(mut self, field: u32, value: f32) -> Self {
        self.key(field, FIXED32);
        self.0.extend(value.to_le_bytes());
        self
    }

    pub fn double(mut self, field: u32, value: f64) -> Self {
        self.key(field, FIXED64);
        self.0.extend(value.to_le_bytes());
        self
    }

    pub fn bytes(mut self, field: u32, value: &[u8]) -> Self {
        self = self.opening(field, value.len() as u64);
        self.0.extend_from_slice(value);
        self
    }

    pub fn text(self, field: u32, value: &str) -> Self {
        self.bytes(field, value.as_bytes())
    }

    /// Appends a message.
    pub fn message(self, field: u32, value: &Self) -> Self {
        self.bytes(field, &value.0)
    }

    /// Appends the messages of a repeated field.
    pub fn messages(self, field: u32, values: impl IntoIterator<Item = Self>) -> Self {
        values.into_iter().fold(self, |whole, value| whole.message(field, &value))
    }

    /// Appends the key and length of a field whose `bytes` bytes follow from elsewhere.
    pub fn opening(mut self, field: u32, bytes: u64) -> Self {
        self.key(field, LENGTH);
        varint(&mut self.0, bytes);
        self
    }

    /// Appends a packed repeated field of int32 or int64.
    pub fn ints(self, field: u32, values: &[i64]) -> Self {
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

/// A decoded field of a message.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Field<'a> {
    /// A field of type uint32, uint64, int32, int64, bool or enum.
    Number(u64),
    /// A field of type bytes or string, a message, or a packed field.
    Bytes(&'a [u8]),
    /// A float or double, or an integer of fixed length: 4 or 8 bytes.
    Fixed(&'a [u8]),
}

/// Returns the fields of a message in their order; `None` for malformed bytes.
pub fn fields(mut message: &[u8]) -> Option<Vec<(u32, Field<'_>)>> {
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
        let whole = Message::new().message(3, &inner).float(4, 1.0).double(5, 2.0).uint(6, 150).into_bytes();
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
