//! Reads boxes of a tensor that do not lie as its chunks do: what a rank needs of a state that other ranks had divided otherwise.
//!
//! **Invariant:** a chunk of which anything is wanted is read once and whole, so that its checksum is compared; of it only what is
//! wanted stays in memory.

use super::{Checkpoint, ChunkPart, CopyError, ReadError, check_coverage, index};
use crate::checkpoint::{
    boxes::{Region, runs},
    element::Element,
    metadata::StoredChunk,
    stored::{ItemError, StoredTensor},
};
use std::{fs::File, os::unix::fs::FileExt};

/// Bytes that are read and checked at a time.
const BLOCK_BYTES: usize = 512 << 10;

/// A box, and the memory it goes to: row-major elements in little-endian order.
pub(in crate::checkpoint) type Boxed<'a> = (&'a Region, &'a mut [u8]);

/// Bytes that go from a chunk to a box.
struct Run {
    from: usize,
    to: usize,
    length: usize,
}

impl Checkpoint {
    /// Boxes of a tensor, each into memory that has exactly its bytes. After an error it holds anything.
    pub(in crate::checkpoint) fn read_boxes(&self, fqn: &str, boxes: &mut [Boxed<'_>]) -> Result<(), ReadError> {
        let entry = self.entry(fqn)?;
        let element = self.element(fqn, entry)?;
        for (region, out) in boxes.iter() {
            let fits = region.volume().checked_mul(element.bytes()) == Some(out.len() as u64);
            if !(region.lies_in(&entry.shape) && fits) {
                let Region { offsets, sizes } = region;
                let asked = format!("the box at {offsets:?} of size {sizes:?} in a buffer of {} bytes", out.len());
                return Err(ReadError::Shape { fqn: fqn.to_owned(), shape: entry.shape.clone(), asked });
            }
        }
        check_coverage(self.dir(), fqn, entry)?;
        for chunk in &entry.chunks {
            let met = boxes.iter_mut().filter_map(|(region, out)| {
                let both = chunk.region.intersection(region)?;
                Some((both, *region, &mut **out))
            });
            let mut met: Vec<_> = met.collect();
            if !met.is_empty() {
                self.copy_all(chunk, element, &mut met).map_err(|error| self.copy_error(fqn, &chunk.place, error))?;
            }
        }
        Ok(())
    }

    /// Returns the overlap of the boxes with a chunk; with each the elements that both have.
    fn copy_all(
        &self,
        chunk: &StoredChunk,
        element: Element,
        met: &mut [(Region, &Region, &mut [u8])],
    ) -> Result<(), CopyError> {
        let (file, stored) = self.stored(chunk, element)?;
        if stored.is_plain() {
            return Ok(stream(&file.0, &stored, &chunk.region, met)?);
        }
        let payload = stored.payload(&file.0)?;
        for (both, wanted, out) in met {
            ChunkPart { chunk, both, wanted, element }.copy_elements(&payload, &stored, out);
        }
        Ok(())
    }
}

/// Reads a chunk block by block, and gives each box its part.
fn stream(
    file: &File,
    stored: &StoredTensor,
    chunk: &Region,
    met: &mut [(Region, &Region, &mut [u8])],
) -> Result<(), ItemError> {
    let width = stored.element.bytes();
    // In the order of the chunk, as both are row-major.
    let rest = |(both, wanted, _): &(Region, &Region, &mut [u8])| of_chunk(chunk, both, wanted, width).into_iter();
    let mut rests: Vec<_> = met.iter().map(|one| rest(one).peekable()).collect();
    let mut block = vec![0; BLOCK_BYTES.min(index(stored.bytes))];
    let mut hasher = crc32fast::Hasher::new();
    let mut at = 0;
    let end = index(stored.bytes);
    while at < end {
        let length = block.len().min(end - at);
        let block = &mut block[..length];
        file.read_exact_at(block, stored.at + at as u64)?;
        hasher.update(block);
        for (rest, (.., out)) in rests.iter_mut().zip(met.iter_mut()) {
            while let Some(run) = rest.peek().filter(|run| run.from < at + length) {
                let begin = run.from.max(at);
                let stop = (run.from + run.length).min(at + length);
                let to = run.to + (begin - run.from);
                out[to..to + (stop - begin)].copy_from_slice(&block[begin - at..stop - at]);
                if run.from + run.length > stop {
                    break;
                }
                rest.next();
            }
        }
        at += length;
    }
    match hasher.finalize() {
        found if stored.crc32 != 0 && found != stored.crc32 => {
            Err(ItemError::Checksum { found, expected: stored.crc32 })
        }
        _ => Ok(()),
    }
}

fn of_chunk(chunk: &Region, both: &Region, wanted: &Region, width: u64) -> Vec<Run> {
    let mut all = Vec::new();
    // Cannot fail: the closure never returns an error.
    let _ = runs::<()>(chunk, both, wanted, &mut |from, to, count| {
        all.push(Run { from: index(from * width), to: index(to * width), length: index(count * width) });
        Ok(())
    });
    all
}
