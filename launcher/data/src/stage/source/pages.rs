//! Size checks of the pages of Parquet files, before the parquet reader allocates what a page header states.
//!
//! A page begins with a header in Thrift's compact protocol, of which only the sizes and counts are parsed.

use crate::stage::bound::BoundError;
use parquet::file::metadata::ParquetMetaData;
use std::{fs::File, io, os::unix::fs::FileExt, path::Path};

/// Maximum uncompressed bytes of a page; writers make pages of about one MiB.
const PAGE_BYTES_MAX: u64 = 256 << 20;
/// Bytes of a page header that are read, in successive attempts; its minimum and maximum values may be long.
const HEADER_BYTES: [usize; 3] = [256, 64 << 10, 4 << 20];
const DEPTH_MAX: u32 = 8;
/// Maximum stated rows of a file: this many plus `ROWS_PER_BYTE` per byte.
const ROWS_FREE: u64 = 1 << 20;
const ROWS_PER_BYTE: u64 = 4096;
const HINT: &str = "the file is damaged or made to look small: write it anew, with pages of about one MiB";

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Page {
    unpacked: u64,
    packed: u64,
    values: u64,
    bytes: u64,
}

/// Refuses a file that states more rows than its bytes can hold.
pub(super) fn check_rows(path: &Path, rows: u64, bytes: u64) -> Result<(), BoundError> {
    let most = bytes.saturating_mul(ROWS_PER_BYTE).saturating_add(ROWS_FREE);
    if rows <= most {
        return Ok(());
    }
    Err(BoundError::new(path, format!("{rows} rows in {bytes} bytes"), format!("at most {most}"), HINT))
}

/// Refuses pages of these columns that unpack to more than `PAGE_BYTES_MAX`.
pub(super) fn check(path: &Path, file: &File, found: &ParquetMetaData, columns: &[usize]) -> Result<(), BoundError> {
    let roots = found.file_metadata().schema_descr();
    for (group, row_group) in found.row_groups().iter().enumerate() {
        for (at, chunk) in row_group.columns().iter().enumerate() {
            if !columns.contains(&roots.get_column_root_idx(at)) {
                continue;
            }
            let (mut at, bytes) = chunk.byte_range();
            let end = at.saturating_add(bytes);
            let name = chunk.column_path().string();
            // The parquet reader reports headers that cannot be parsed.
            while at < end
                && let Ok(Some(page)) = page_at(file, at)
            {
                let place = || format!("page of column {name:?} at byte {at}, row group {group}");
                if page.unpacked > PAGE_BYTES_MAX {
                    let found = format!("a {} that unpacks to {} bytes", place(), page.unpacked);
                    return Err(BoundError::new(path, found, format!("at most {PAGE_BYTES_MAX}"), HINT));
                }
                let values = page.unpacked.saturating_mul(ROWS_PER_BYTE).saturating_add(ROWS_FREE);
                if page.values > values {
                    let found = format!("a {} of {} values in {} bytes", place(), page.values, page.unpacked);
                    return Err(BoundError::new(path, found, format!("at most {values}"), HINT));
                }
                at = at.saturating_add(page.bytes + page.packed);
            }
        }
    }
    Ok(())
}

/// Parses the page header at an offset; `None` where there is none.
fn page_at(file: &File, at: u64) -> io::Result<Option<Page>> {
    for bytes in HEADER_BYTES {
        let mut header = vec![0; bytes];
        let mut filled = 0;
        while filled < bytes {
            match file.read_at(&mut header[filled..], at + filled as u64)? {
                0 => break,
                count => filled += count,
            }
        }
        if let Some(page) = (Thrift { bytes: &header[..filled], at: 0 }).page() {
            return Ok(Some(page));
        }
    }
    Ok(None)
}

/// Parser of Thrift's compact protocol; methods return `None` at the end and for invalid bytes.
struct Thrift<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Thrift<'_> {
    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn number(&mut self) -> Option<u64> {
        let mut found = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            found |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(found);
            }
        }
        None
    }

    /// Parses a zigzag-encoded number; `None` if it is negative.
    fn count(&mut self) -> Option<u64> {
        let number = self.number()?;
        (number & 1 == 0).then_some(number >> 1)
    }

    fn skip(&mut self, bytes: u64) -> Option<()> {
        let end = self.at.checked_add(usize::try_from(bytes).ok()?)?;
        self.at = end;
        (end <= self.bytes.len()).then_some(())
    }

    /// Parses a field header: returns its kind and updates the field number `last`; `Some(None)` at the end of a structure.
    fn field(&mut self, last: &mut u64) -> Option<Option<u8>> {
        let byte = self.byte()?;
        if byte == 0 {
            return Some(None);
        }
        *last = match byte >> 4 {
            0 => self.count()?,
            more => last.checked_add(u64::from(more))?,
        };
        Some(Some(byte & 0x0f))
    }

    fn skip_value(&mut self, kind: u8, depth: u32) -> Option<()> {
        match kind {
            1 | 2 => Some(()),
            3 => self.skip(1),
            4..=6 => self.number().map(|_| ()),
            7 => self.skip(8),
            8 => self.number().and_then(|bytes| self.skip(bytes)),
            9 | 10 if depth < DEPTH_MAX => {
                let byte = self.byte()?;
                let count = if byte >> 4 == 15 { self.number()? } else { u64::from(byte >> 4) };
                (0..count).try_for_each(|_| match byte & 0x0f {
                    // In lists a truth value has its own byte.
                    1 | 2 => self.skip(1),
                    kind => self.skip_value(kind, depth + 1),
                })
            }
            12 if depth < DEPTH_MAX => {
                let mut last = 0;
                while let Some(kind) = self.field(&mut last)? {
                    self.skip_value(kind, depth + 1)?;
                }
                Some(())
            }
            _ => None,
        }
    }

    /// Returns the number in the first field of a structure and skips the others.
    fn first(&mut self) -> Option<u64> {
        let mut last = 0;
        let mut found = 0;
        while let Some(kind) = self.field(&mut last)? {
            match (last, kind) {
                (1, 5) => found = self.count()?,
                (_, kind) => self.skip_value(kind, 1)?,
            }
        }
        Some(found)
    }

    /// Parses a page header: the sizes are fields 2 and 3, the counts of values are in the structures 5, 7 and 8.
    fn page(&mut self) -> Option<Page> {
        let mut last = 0;
        let mut page = Page::default();
        let mut sizes = 0;
        while let Some(kind) = self.field(&mut last)? {
            match (last, kind) {
                (2, 5) => {
                    page.unpacked = self.count()?;
                    sizes += 1;
                }
                (3, 5) => {
                    page.packed = self.count()?;
                    sizes += 1;
                }
                (5 | 7 | 8, 12) => page.values = self.first()?,
                (_, kind) => self.skip_value(kind, 0)?,
            }
        }
        page.bytes = self.at as u64;
        (sizes == 2).then_some(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_of_a_page_is_understood_and_nothing_else_is() {
        // Type 0, 300 bytes unpacked, 20 packed, a page of 7 values with three encodings, and a value that nobody knows.
        let header = [0x15, 0, 0x15, 0xd8, 4, 0x15, 40, 0x2c, 0x15, 14, 0x15, 0, 0x15, 6, 0x15, 6, 0, 0x38, 2, 1, 2, 0];
        let page = Page { unpacked: 300, packed: 20, values: 7, bytes: header.len() as u64 };
        let of = |bytes: &[u8]| (Thrift { bytes, at: 0 }).page();
        assert_eq!(of(&header), Some(page));
        assert!((0..header.len()).all(|cut| of(&header[..cut]).is_none()));
        assert_eq!(of(&[0x1c; 99]), None, "too deep");
        assert_eq!(of(&[0]), None, "no sizes");
    }

    #[test]
    fn rows_that_no_bytes_hold_are_refused() {
        assert!(check_rows(Path::new("t"), 1 << 20, 10).is_ok());
        let error = check_rows(Path::new("t"), 1 << 40, 1000).unwrap_err().to_string();
        assert!(error.contains("1099511627776 rows in 1000 bytes"), "{error}");
    }
}
