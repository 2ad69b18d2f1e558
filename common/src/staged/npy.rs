//! The `.npy` header: written and parsed without any input or output of its own.
//!
//! ```text
//! "\x93NUMPY" | major u8 | minor u8 | header length u16 (v1) or u32 (v2, v3), little-endian | dict text, padded with spaces, '\n'
//! ```
//! **Invariant:** the data we write begin at a multiple of 64 bytes. Foreign files may begin anywhere.

/// Alignment of the data, bytes.
pub const ALIGN_BYTES: usize = 64;

/// Headers longer than this are refused.
pub const HEADER_BYTES_MAX: usize = 64 * 1024;

/// Axes a shape may have.
pub const AXES_MAX: usize = 16;

const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// Element types of NumPy that we read. We write `F32`, `U8` and `I64`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NpyElement {
    F64,
    F32,
    F16,
    I64,
    I32,
    I16,
    I8,
    U64,
    U32,
    U16,
    U8,
    /// One byte, 0 or 1.
    Bool,
}

/// Text of the header and type.
const ELEMENTS: &[(&str, NpyElement)] = &[
    ("<f8", NpyElement::F64),
    ("<f4", NpyElement::F32),
    ("<f2", NpyElement::F16),
    ("<i8", NpyElement::I64),
    ("<i4", NpyElement::I32),
    ("<i2", NpyElement::I16),
    ("|i1", NpyElement::I8),
    ("<u8", NpyElement::U64),
    ("<u4", NpyElement::U32),
    ("<u2", NpyElement::U16),
    ("|u1", NpyElement::U8),
    ("|b1", NpyElement::Bool),
];

impl NpyElement {
    /// NumPy's name for the type, e.g. `<f4`.
    pub fn descr(self) -> &'static str {
        match ELEMENTS.iter().find(|(_, element)| *element == self) {
            Some((text, _)) => text,
            None => "|V0",
        }
    }

    /// Bytes per element.
    pub fn bytes(self) -> usize {
        match self {
            Self::F64 | Self::I64 | Self::U64 => 8,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F16 | Self::I16 | Self::U16 => 2,
            Self::I8 | Self::U8 | Self::Bool => 1,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    pub element: NpyElement,
    /// Shape; empty for a scalar.
    pub shape: Vec<u64>,
    pub data_offset: usize,
}

/// Why a header cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum NpyError {
    #[error("does not begin with NumPy's magic bytes; expected an .npy file")]
    Magic,
    #[error("format version {major}.{minor}, expected 1.0, 2.0 or 3.0")]
    Version { major: u8, minor: u8 },
    /// The file ends inside the header, or the header is longer than `HEADER_BYTES_MAX`.
    #[error("header of {bytes} bytes does not fit; expected at most {HEADER_BYTES_MAX} bytes and a whole file")]
    Length { bytes: usize },
    #[error("header {found:?} lacks {key}; expected descr, fortran_order and shape")]
    Dict { key: &'static str, found: String },
    #[error("element type {found:?}; expected little-endian numbers: save it with .astype('<f4')")]
    NpyElement { found: String },
    #[error("the array is in Fortran order; expected C order: save numpy.ascontiguousarray(a)")]
    FortranOrder,
    #[error("shape {found} cannot be; expected at most {AXES_MAX} axes and a product below 2^63")]
    Shape { found: String },
}

impl Header {
    /// Number of elements. The product was checked when the header was parsed.
    pub fn count(&self) -> u64 {
        self.shape.iter().product()
    }

    pub fn data_bytes(&self) -> u64 {
        self.count() * self.element.bytes() as u64
    }

    /// Reads the header at the beginning of `bytes` (which may go on behind it).
    pub fn parse(bytes: &[u8]) -> Result<Self, NpyError> {
        let (start, length) = extent(bytes)?;
        let data_offset = start + length;
        let text = bytes.get(start..data_offset).ok_or(NpyError::Length { bytes: length })?;
        let text = String::from_utf8_lossy(text);
        let descr = quoted(value(&text, "descr")?);
        let element = match descr {
            Some(descr) => element_of(descr)?,
            None => return Err(NpyError::NpyElement { found: brief(value(&text, "descr")?) }),
        };
        if value(&text, "fortran_order")?.starts_with("True") {
            return Err(NpyError::FortranOrder);
        }
        let shape = shape_of(value(&text, "shape")?)?;
        Ok(Self { element, shape, data_offset })
    }

    /// Bytes of the header at the beginning of `bytes`, as soon as its first 12 bytes are there.
    pub fn bytes_of(bytes: &[u8]) -> Result<usize, NpyError> {
        extent(bytes).map(|(start, length)| start + length)
    }

    /// A version 1 header for C order, exactly `data_offset` bytes long; `None` when that is too short for the shape.
    pub fn write(element: NpyElement, shape: &[u64], data_offset: usize) -> Option<Vec<u8>> {
        let mut text = format!("{{'descr': '{}', 'fortran_order': False, 'shape': (", element.descr());
        for (axis, size) in shape.iter().enumerate() {
            text.push_str(&size.to_string());
            // A tuple of one needs its comma.
            text.push_str(if axis + 1 < shape.len() {
                ", "
            } else if shape.len() == 1 {
                ","
            } else {
                ""
            });
        }
        text.push_str("), }");
        let length = data_offset.checked_sub(MAGIC.len() + 4)?;
        let padding = length.checked_sub(text.len() + 1)?;
        let mut header = Vec::with_capacity(data_offset);
        header.extend_from_slice(MAGIC);
        header.extend_from_slice(&[1, 0]);
        header.extend_from_slice(&u16::try_from(length).ok()?.to_le_bytes());
        header.extend_from_slice(text.as_bytes());
        header.resize(header.len() + padding, b' ');
        header.push(b'\n');
        Some(header)
    }

    /// Data offset that leaves room for any number of rows: a multiple of `ALIGN_BYTES`.
    pub fn roomy_offset(element: NpyElement, inner: &[u64]) -> usize {
        let mut shape = vec![u64::MAX];
        shape.extend_from_slice(inner);
        let mut offset = 2 * ALIGN_BYTES;
        while Self::write(element, &shape, offset).is_none() {
            offset += ALIGN_BYTES;
        }
        offset
    }
}

/// Where the dictionary begins and how long it is.
fn extent(bytes: &[u8]) -> Result<(usize, usize), NpyError> {
    if bytes.get(..6) != Some(MAGIC.as_slice()) {
        return Err(NpyError::Magic);
    }
    let (&[major, minor], rest) = bytes[6..].split_first_chunk::<2>().ok_or(NpyError::Length { bytes: 0 })?;
    let (start, length) = match (major, minor) {
        (1, 0) => {
            let field = rest.first_chunk::<2>().ok_or(NpyError::Length { bytes: 0 })?;
            (10, usize::from(u16::from_le_bytes(*field)))
        }
        (2 | 3, 0) => {
            let field = rest.first_chunk::<4>().ok_or(NpyError::Length { bytes: 0 })?;
            (12, u32::from_le_bytes(*field) as usize)
        }
        _ => return Err(NpyError::Version { major, minor }),
    };
    if length > HEADER_BYTES_MAX {
        return Err(NpyError::Length { bytes: length });
    }
    Ok((start, length))
}

/// The text behind `'key':`.
fn value<'a>(text: &'a str, key: &'static str) -> Result<&'a str, NpyError> {
    for quote in ['\'', '"'] {
        if let Some((_, rest)) = text.split_once(&format!("{quote}{key}{quote}"))
            && let Some(rest) = rest.trim_start().strip_prefix(':')
        {
            return Ok(rest.trim_start());
        }
    }
    Err(NpyError::Dict { key, found: brief(text) })
}

fn brief(text: &str) -> String {
    text.trim_end().chars().take(80).collect()
}

/// The contents of the string literal `text` begins with.
fn quoted(text: &str) -> Option<&str> {
    let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    text[1..].split_once(quote).map(|(inside, _)| inside)
}

fn element_of(descr: &str) -> Result<NpyElement, NpyError> {
    // '=' is the writer's own order (little-endian on every machine we build for); one byte has no order.
    let little = descr.replace('=', "<");
    let found = ELEMENTS.iter().find(|(text, element)| {
        *text == little || (element.bytes() == 1 && little.len() == 3 && little.get(1..) == Some(&text[1..]))
    });
    found.map(|(_, element)| *element).ok_or_else(|| NpyError::NpyElement { found: brief(descr) })
}

fn shape_of(text: &str) -> Result<Vec<u64>, NpyError> {
    let wrong = || NpyError::Shape { found: brief(text) };
    let inside = text.strip_prefix('(').and_then(|rest| rest.split_once(')')).ok_or_else(wrong)?.0;
    let mut shape = Vec::new();
    for size in inside.split(',').map(str::trim).filter(|size| !size.is_empty()) {
        // Python 2 wrote long integers as 3L.
        shape.push(size.trim_end_matches('L').parse::<u64>().map_err(|_| wrong())?);
    }
    let product = shape.iter().try_fold(8u64, |product, size| product.checked_mul((*size).max(1)));
    match product {
        Some(bytes) if bytes < 1 << 63 && shape.len() <= AXES_MAX => Ok(shape),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_what_numpy_wrote() {
        // numpy.lib.format.write_array_header_1_0 for (3, 4) <f4 in C order.
        let mut bytes = b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }".to_vec();
        bytes.resize(127, b' ');
        bytes.push(b'\n');
        let header = Header::parse(&bytes).unwrap();
        assert_eq!(header, Header { element: NpyElement::F32, shape: vec![3, 4], data_offset: 128 });
        assert_eq!(Header::write(NpyElement::F32, &[3, 4], 128).unwrap(), bytes);
        assert_eq!(header.data_bytes(), 48);
    }

    #[test]
    fn refuses_what_it_cannot_map() {
        let with = |dict: &str| {
            let mut bytes = b"\x93NUMPY\x02\x00".to_vec();
            bytes.extend_from_slice(&u32::try_from(dict.len()).unwrap().to_le_bytes());
            bytes.extend_from_slice(dict.as_bytes());
            Header::parse(&bytes)
        };
        assert_eq!(with("{'descr': '<f4', 'fortran_order': True, 'shape': (2,)}"), Err(NpyError::FortranOrder));
        assert!(matches!(
            with("{'descr': '>f4', 'fortran_order': False, 'shape': (2,)}"),
            Err(NpyError::NpyElement { .. })
        ));
        assert!(matches!(
            with("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': ()}"),
            Err(NpyError::NpyElement { .. })
        ));
        assert!(matches!(with("{'descr': '<f4', 'shape': (2,)}"), Err(NpyError::Dict { key: "fortran_order", .. })));
        let huge = "{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775807, 3)}";
        assert!(matches!(with(huge), Err(NpyError::Shape { .. })));
        assert_eq!(with("{'descr': '<i8', 'fortran_order': False, 'shape': (), }").unwrap().shape, Vec::<u64>::new());
        assert_eq!(Header::parse(b"PK\x03\x04"), Err(NpyError::Magic));
        assert_eq!(Header::parse(b"\x93NUMPY\x01\x00\xff\xff{"), Err(NpyError::Length { bytes: 65535 }));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(shape in prop::collection::vec(0u64..1_000_000, 0..3), index in 0..ELEMENTS.len()) {
            let element = ELEMENTS[index].1;
            let offset = Header::roomy_offset(element, &shape);
            let header = Header::write(element, &shape, offset).unwrap();
            prop_assert_eq!(header.len(), offset);
            prop_assert_eq!(offset % ALIGN_BYTES, 0);
            prop_assert_eq!(Header::parse(&header).unwrap(), Header { element, shape, data_offset: offset });
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut header = b"\x93NUMPY\x01\x00".to_vec();
            header.extend_from_slice(&bytes);
            let _ = Header::parse(&header);
            let _ = Header::parse(&bytes);
        }
    }
}
