//! Writes a shard from elements that lie in memory: several threads, each byte read once for its checksum and the disk.
//!
//! ```text
//! items ─► jobs: a run of small items in one write, or a stretch of a large one ─► threads take the next job
//!          the thread that ends a large item's last stretch writes the zip around it
//! ```
//! **Invariant:** the file is never read back; after an error nothing more is begun, and the first error is told.

use super::{
    bulk::in_threads,
    item,
    layout::{BoxOf, ShardLayout, Span},
    name,
    shard::ShardError,
    table::{ItemKind, ShardItem, ShardTable},
    zip::Envelope,
};
use crate::fs::{FileError, Storage, StorageFile};
use std::{
    ops::Range,
    path::Path,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

/// Items with fewer bytes are put together before they are written.
const SMALL_BYTES_MAX: u64 = 1 << 20;
/// Bytes that are put together for one write.
const TOGETHER_BYTES: u64 = 4 << 20;
/// Bytes of a large item that one thread takes at a time.
const STRETCH_BYTES: u64 = 32 << 20;
/// Bytes that are checked and then written, still in the processor's cache.
const BLOCK_BYTES: usize = 512 << 10;
/// Bytes that are checked and then written where the disk reads memory itself: there fewer requests matter more.
const DIRECT_BLOCK_BYTES: usize = 4 << 20;
/// Writing threads of one shard, at most: more do not make a disk faster.
const THREADS_MAX: usize = 4;

/// How a shard is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct How {
    /// Threads, at most 4.
    pub threads: usize,
    /// Whether the file gets a blake3 beside its CRC-32: one more pass over memory.
    pub blake3: bool,
}

impl How {
    /// Returns the settings for `sharers` processes that write on this machine at the same time.
    pub fn shared_by(sharers: usize) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self { threads: (cores / sharers.max(1)).clamp(1, THREADS_MAX), blake3: false }
    }
}

/// Writes `dir/__{rank}_0.distcp`, fsynced. `payloads` are the elements of the layout's items: row-major, little-endian.
///
/// # Errors
/// What the disk says, or elements of another length than the layout's: nothing is removed.
pub fn write_shard(
    storage: &dyn Storage,
    dir: &Path,
    rank: u32,
    layout: &ShardLayout,
    payloads: &[&[u8]],
    how: How,
) -> Result<ShardTable, ShardError> {
    check_lengths(layout, payloads)?;
    storage.create_dir(dir)?;
    let name = name::shard(rank);
    let file = storage.create_sized(&dir.join(&name), layout.bytes)?;
    let work = ShardWork::new(layout, payloads, file.as_ref());
    let threads = how.threads.min(THREADS_MAX).min(work.jobs.len());
    in_threads("enn-writer", threads, || work.run());
    let mut done = work.done.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(error) = done.error.take() {
        return Err(error.into());
    }
    file.sync()?;
    done.pieces.sort_unstable_by_key(|piece| piece.0);
    let blake3 = if how.blake3 { digest(layout, payloads, &done.crc32) } else { String::new() };
    let crc32 = Some(joined(done.pieces.iter().map(|(_, hasher)| hasher)).finalize());
    Ok(ShardTable { file: name, bytes: layout.bytes, blake3, crc32, items: items(layout, &done.crc32) })
}

fn check_lengths(layout: &ShardLayout, payloads: &[&[u8]]) -> Result<(), ShardError> {
    for (index, (part, span)) in layout.boxes.iter().zip(&layout.spans).enumerate() {
        let found = payloads.get(index).map_or(0, |bytes| bytes.len() as u64);
        if found != span.payload {
            let BoxOf { fqn, dtype, sizes, .. } = part.clone();
            return Err(ShardError::Bytes { fqn, sizes, dtype, found, expected: span.payload });
        }
    }
    Ok(())
}

fn items(layout: &ShardLayout, crc32: &[u32]) -> Vec<ShardItem> {
    let all = layout.boxes.iter().zip(&layout.spans).zip(crc32);
    all.map(|((part, span), &crc32)| {
        let BoxOf { fqn, dtype, global, offsets, sizes } = part.clone();
        let kind = ItemKind::Tensor { dtype, global, offsets, sizes, crc32 };
        ShardItem { fqn, offset: span.at, length: span.length, kind }
    })
    .collect()
}

fn digest(layout: &ShardLayout, payloads: &[&[u8]], crc32: &[u32]) -> String {
    let mut hasher = blake3::Hasher::new();
    for (index, payload) in payloads.iter().enumerate() {
        let around = envelope(layout, index, crc32[index]);
        hasher.update(&around.head).update(payload).update(&around.tail);
    }
    hasher.finalize().to_hex().to_string()
}

fn envelope(layout: &ShardLayout, index: usize, crc32: u32) -> Envelope {
    let part = &layout.boxes[index];
    let span = &layout.spans[index];
    item::tensor(span.at, part.dtype, &part.sizes, span.payload, crc32)
}

/// The CRC-32 of pieces behind each other.
fn joined<'a>(pieces: impl Iterator<Item = &'a crc32fast::Hasher>) -> crc32fast::Hasher {
    let mut all = crc32fast::Hasher::new();
    pieces.for_each(|piece| all.combine(piece));
    all
}

fn hashed(bytes: &[u8]) -> crc32fast::Hasher {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(bytes);
    hasher
}

#[derive(Debug)]
enum WriteJob {
    /// Write these items in one write.
    Together(Range<usize>),
    /// This stretch of a large item's elements.
    Stretch(usize, Range<usize>),
}

struct Done {
    error: Option<FileError>,
    /// CRC-32 of each item's elements.
    crc32: Vec<u32>,
    /// Stretches of large items that are still to be written.
    left: Vec<usize>,
    /// Stretches of large items that are written, by their offset.
    stretches: Vec<Vec<(u64, crc32fast::Hasher)>>,
    /// Pieces of the file by their offset.
    pieces: Vec<(u64, crc32fast::Hasher)>,
}

struct ShardWork<'a> {
    layout: &'a ShardLayout,
    payloads: &'a [&'a [u8]],
    file: &'a dyn StorageFile,
    jobs: Vec<WriteJob>,
    next: AtomicUsize,
    done: Mutex<Done>,
}

impl<'a> ShardWork<'a> {
    fn new(layout: &'a ShardLayout, payloads: &'a [&'a [u8]], file: &'a dyn StorageFile) -> Self {
        let (jobs, left) = divide(&layout.spans);
        let count = layout.spans.len();
        let crc32 = vec![0; count];
        let stretches = vec![Vec::new(); count];
        let done = Done { error: None, crc32, left, stretches, pieces: Vec::new() };
        Self { layout, payloads, file, jobs, next: AtomicUsize::new(0), done: Mutex::new(done) }
    }

    fn done(&self) -> MutexGuard<'_, Done> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut buffer = Vec::new();
        while let Some(job) = self.jobs.get(self.next.fetch_add(1, Relaxed)) {
            let done = match job {
                WriteJob::Together(items) => self.together(items.clone(), &mut buffer),
                WriteJob::Stretch(index, part) => self.stretch(*index, part.clone(), &mut buffer),
            };
            if let Err(error) = done {
                self.next.store(self.jobs.len(), Relaxed);
                self.done().error.get_or_insert(error);
            }
        }
    }

    fn together(&self, items: Range<usize>, buffer: &mut Vec<u8>) -> Result<(), FileError> {
        buffer.clear();
        let first = items.start;
        let mut sums = Vec::with_capacity(items.len());
        for index in items {
            let payload = self.payloads[index];
            let crc32 = crc32fast::hash(payload);
            let around = envelope(self.layout, index, crc32);
            buffer.extend_from_slice(&around.head);
            buffer.extend_from_slice(payload);
            buffer.extend_from_slice(&around.tail);
            sums.push(crc32);
        }
        let at = self.layout.spans[first].at;
        self.file.write_at(at, &[buffer])?;
        let hasher = hashed(buffer);
        let mut done = self.done();
        done.crc32[first..first + sums.len()].copy_from_slice(&sums);
        done.pieces.push((at, hasher));
        Ok(())
    }

    fn stretch(&self, index: usize, part: Range<usize>, buffer: &mut Vec<u8>) -> Result<(), FileError> {
        let span = &self.layout.spans[index];
        let at = span.payload_at + part.start as u64;
        let mut hasher = crc32fast::Hasher::new();
        let align = self.file.alignment();
        let block_bytes = if align > 1 { DIRECT_BLOCK_BYTES } else { BLOCK_BYTES };
        let mut offset = at;
        for block in self.payloads[index][part].chunks(block_bytes) {
            hasher.update(block);
            self.file.write_at(offset, &[aligned(block, align, buffer)])?;
            offset += block.len() as u64;
        }
        let whole = {
            let mut done = self.done();
            done.stretches[index].push((at, hasher));
            done.left[index] -= 1;
            (done.left[index] == 0).then(|| std::mem::take(&mut done.stretches[index]))
        };
        whole.map_or(Ok(()), |stretches| self.surround(index, stretches))
    }

    /// Writes the zip around a large item whose stretches are all written.
    fn surround(&self, index: usize, mut stretches: Vec<(u64, crc32fast::Hasher)>) -> Result<(), FileError> {
        stretches.sort_unstable_by_key(|stretch| stretch.0);
        let payload = joined(stretches.iter().map(|(_, hasher)| hasher));
        let crc32 = payload.clone().finalize();
        let span = &self.layout.spans[index];
        let around = envelope(self.layout, index, crc32);
        let tail_at = span.payload_at + span.payload;
        self.file.write_at(span.at, &[&around.head])?;
        self.file.write_at(tail_at, &[&around.tail])?;
        let mut done = self.done();
        done.crc32[index] = crc32;
        done.pieces.push((span.at, hashed(&around.head)));
        done.pieces.push((span.payload_at, payload));
        done.pieces.push((tail_at, hashed(&around.tail)));
        Ok(())
    }
}

/// Jobs in file order, and the stretches of each item.
fn divide(spans: &[Span]) -> (Vec<WriteJob>, Vec<usize>) {
    let mut jobs = Vec::new();
    let mut left = vec![0; spans.len()];
    let mut first = 0;
    let mut index = 0;
    while index < spans.len() {
        let span = &spans[index];
        let large = span.payload >= SMALL_BYTES_MAX;
        if large || span.at + span.length - spans[first].at > TOGETHER_BYTES {
            if first < index {
                jobs.push(WriteJob::Together(first..index));
            }
            first = index;
        }
        if large {
            for start in (0..span.payload).step_by(STRETCH_BYTES as usize) {
                let end = (start + STRETCH_BYTES).min(span.payload);
                jobs.push(WriteJob::Stretch(index, start as usize..end as usize));
                left[index] += 1;
            }
            first = index + 1;
        }
        index += 1;
    }
    if first < index {
        jobs.push(WriteJob::Together(first..index));
    }
    (jobs, left)
}

/// The block itself where it lies as the disk wants it, else a copy that does.
fn aligned<'b>(block: &'b [u8], align: usize, buffer: &'b mut Vec<u8>) -> &'b [u8] {
    if align <= 1 || block.as_ptr().addr().is_multiple_of(align) {
        return block;
    }
    buffer.resize(block.len() + align, 0);
    let start = buffer.as_ptr().addr().wrapping_neg() % align;
    buffer[start..start + block.len()].copy_from_slice(block);
    &buffer[start..start + block.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        checkpoint::{Checkpoint, Draft, ShardWriter, TensorBox, commit, layout::BoxOf, table::TensorDType},
        fs::Disk,
    };

    fn part(index: usize, elements: u64) -> BoxOf {
        let fqn = format!("t{index}");
        let dtype = TensorDType::U8;
        BoxOf { fqn, dtype, global: vec![elements], offsets: vec![0], sizes: vec![elements] }
    }

    /// Items of all kinds: empty, small, between, several stretches.
    fn state() -> (ShardLayout, Vec<Vec<u8>>) {
        let lengths = [0, 3, 70_000, SMALL_BYTES_MAX, STRETCH_BYTES + 5, 1, 9_000_000, 17, 900_000, 900_001, 4096];
        let boxes = lengths.iter().enumerate().map(|(index, &length)| part(index, length)).collect();
        let bytes = |length: u64| (0..length).map(|at| (at * 31 + at / 251 + length) as u8).collect();
        (ShardLayout::of(boxes).unwrap(), lengths.iter().map(|&length| bytes(length)).collect())
    }

    #[test]
    fn threads_write_what_one_writer_writes() {
        let (layout, bytes) = state();
        let payloads: Vec<&[u8]> = bytes.iter().map(Vec::as_slice).collect();
        let dir = tempfile::tempdir().unwrap();
        let mut plain = ShardWriter::create(&dir.path().join("plain"), 0).unwrap();
        for (part, payload) in layout.boxes.iter().zip(&payloads) {
            let BoxOf { fqn, dtype, global, offsets, sizes } = part;
            plain.tensor(&TensorBox { fqn, dtype: *dtype, global, offsets, sizes }, payload).unwrap();
        }
        let expected = plain.finish().unwrap();
        let of = |name: &str| std::fs::read(dir.path().join(name).join("__0_0.distcp")).unwrap();
        for threads in [1, 3] {
            let name = format!("{threads}");
            let how = How { threads, blake3: true };
            let table = write_shard(&Disk, &dir.path().join(&name), 0, &layout, &payloads, how).unwrap();
            assert!(of(&name) == of("plain"));
            assert_eq!(table.blake3, blake3::hash(&of("plain")).to_hex().as_str());
            assert_eq!(table.crc32, Some(crc32fast::hash(&of("plain"))));
            assert_eq!(ShardTable { blake3: String::new(), ..table }, expected);
        }
        let target = dir.path().join(name::committed(1));
        commit(&dir.path().join("3"), &target, &[expected], Draft { step: 1, ..Draft::default() }).unwrap();
        let checkpoint = Checkpoint::open(&target).unwrap();
        for (part, payload) in layout.boxes.iter().zip(&payloads) {
            assert!(checkpoint.tensor(&part.fqn).unwrap().bytes == *payload, "{}", part.fqn);
        }
        checkpoint.verify(&mut |_| {}).unwrap();
    }

    #[test]
    fn what_does_not_fit_the_layout_is_refused() {
        let layout = ShardLayout::of(vec![part(0, 8)]).unwrap();
        let how = How { threads: 1, blake3: false };
        let error = write_shard(&Disk, Path::new("/nonexistent"), 0, &layout, &[&[0; 7]], how).unwrap_err();
        assert!(error.to_string().contains("7 bytes were given"), "{error}");
        let twice = ShardLayout::of(vec![part(0, 8), part(0, 8)]).unwrap_err();
        assert!(twice.to_string().contains("already"), "{twice}");
        let outside = BoxOf { offsets: vec![1], ..part(0, 8) };
        assert!(matches!(ShardLayout::of(vec![outside]), Err(ShardError::Outside { .. })));
    }
}
