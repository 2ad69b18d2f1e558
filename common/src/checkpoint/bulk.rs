//! Reads many tensors and boxes of tensors at once, into memory of the caller: several threads, every byte checked while it is in the
//! cache.
//!
//! Of an item that we wrote, the bytes around its elements follow from `.metadata` and the manifest: they are compared, not
//! parsed. What differs, whatever others wrote, and boxes that are not made of whole chunks, are read tensor by tensor the careful way,
//! which also says what is wrong.
//!
//! **Invariant:** as that of the reader: nothing is returned that was not checked.

use super::{
    boxes::{Region, runs},
    item,
    metadata::{StoredChunk, TensorEntry},
    reader::{Boxed, Checkpoint, ReadError},
    zip::Envelope,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    ops::Range,
    os::unix::fs::FileExt,
    sync::{Arc, Mutex, PoisonError},
};

/// Items with fewer bytes are read together with their neighbours.
const SMALL_BYTES_MAX: u64 = 1 << 20;
/// Bytes that are read together.
const TOGETHER_BYTES: u64 = 4 << 20;
/// Bytes between two items that are read and thrown away rather than skipped.
const GAP_BYTES_MAX: u64 = 64 << 10;
/// Bytes of a large item that one thread takes at a time.
const STRETCH_BYTES: usize = 16 << 20;
/// Bytes that are read and then checked, still in the processor's cache.
const BLOCK_BYTES: usize = 512 << 10;
const THREADS_MAX: usize = 8;
const THREAD_NAME: &str = "enn-reader";

/// A tensor, or a box of one, and the memory it goes to, which has exactly its bytes.
#[derive(Debug)]
pub struct Target<'a> {
    pub fqn: &'a str,
    /// The box; `None`: all of it.
    pub region: Option<Region>,
    /// Row-major elements in little-endian order.
    pub out: &'a mut [u8],
}

impl Checkpoint {
    /// Reads all targets, in `threads` threads (at most 8). After an error the memory holds anything.
    pub fn read_all(&self, targets: &mut [Target<'_>], threads: usize) -> Result<(), ReadError> {
        let mut careful = BTreeSet::new();
        let mut pieces = Vec::new();
        for (index, target) in targets.iter_mut().enumerate() {
            match self.pieces(index, target)? {
                Some(own) => pieces.extend(own),
                None => {
                    careful.insert(index);
                }
            }
        }
        careful.extend(read(pieces, threads));
        let mut boxes: BTreeMap<&str, Vec<Boxed<'_>>> = BTreeMap::new();
        for (_, target) in targets.iter_mut().enumerate().filter(|(index, _)| careful.contains(index)) {
            match &target.region {
                Some(region) => boxes.entry(target.fqn).or_default().push((region, &mut *target.out)),
                None => self.read_into(target.fqn, target.out)?,
            }
        }
        self.read_carefully(boxes, threads)
    }

    fn read_carefully(&self, boxes: BTreeMap<&str, Vec<Boxed<'_>>>, threads: usize) -> Result<(), ReadError> {
        let jobs = Mutex::new(boxes.into_iter());
        let failed = Mutex::new(None);
        let next = || jobs.lock().unwrap_or_else(PoisonError::into_inner).next();
        in_threads(THREAD_NAME, threads.min(THREADS_MAX), || {
            while let Some((fqn, mut boxes)) = next() {
                if let Err(error) = self.read_boxes(fqn, &mut boxes) {
                    failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                    // What comes behind is of no use.
                    while next().is_some() {}
                }
            }
        });
        failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    /// The items of a tensor as they must be if we wrote them; `None` where that cannot be said, or where an item's elements do
    /// not lie behind each other in the tensor.
    fn pieces<'t>(&self, target: usize, to: &'t mut Target<'_>) -> Result<Option<Vec<ReadPiece<'t>>>, ReadError> {
        let entry = self.entry(to.fqn)?;
        let whole = Region::whole(&entry.shape);
        let Some(places) = places(entry, to.region.as_ref().unwrap_or(&whole), to.out.len()) else { return Ok(None) };
        let mut pieces = Vec::with_capacity(places.len());
        let mut rest: &'t mut [u8] = &mut *to.out;
        let mut at = 0;
        for (range, chunk) in places {
            let (out, behind) = rest.split_at_mut(range.end - at);
            rest = behind;
            at = range.end;
            let (Some(crc32), Some(dtype)) = (self.expected(&chunk.place), entry.dtype()) else { return Ok(None) };
            let at = chunk.place.offset;
            let payload = out.len() as u64;
            let around = item::tensor(at, dtype, &chunk.region.sizes, payload, crc32);
            let length = (around.head.len() + around.tail.len()) as u64 + payload;
            if length != chunk.place.length || !chunk.place.transforms.is_empty() {
                return Ok(None);
            }
            let file = self.file(&chunk.place.file)?;
            pieces.push(ReadPiece { item: ReadItem { target, file, at, around, crc32, payload }, out });
        }
        Ok(Some(pieces))
    }
}

/// Where in the bytes of a box each chunk with elements lies, in order; `None` when one is scattered or they do not tile it.
fn places<'c>(entry: &'c TensorEntry, wanted: &Region, bytes: usize) -> Option<Vec<(Range<usize>, &'c StoredChunk)>> {
    let width = entry.dtype()?.bytes();
    if !wanted.lies_in(&entry.shape) {
        return None;
    }
    let mut places = Vec::new();
    for chunk in &entry.chunks {
        let Some(both) = chunk.region.intersection(wanted) else { continue };
        if both != chunk.region {
            return None;
        }
        let mut found = None;
        let region = &chunk.region;
        runs(region, region, wanted, &mut |_, to, count| match found.replace((to * width, count * width)) {
            None => Ok(()),
            Some(_) => Err(()),
        })
        .ok()?;
        let (at, length) = found?;
        let start = usize::try_from(at).ok()?;
        places.push((start..start.checked_add(usize::try_from(length).ok()?)?, chunk));
    }
    places.sort_by_key(|(range, _)| range.start);
    let end = places.iter().try_fold(0, |at, (range, _)| (range.start == at).then_some(range.end))?;
    (end == bytes).then_some(places)
}

/// An item as it must be.
struct ReadItem {
    target: usize,
    file: Arc<(File, u64)>,
    at: u64,
    around: Envelope,
    crc32: u32,
    /// Bytes of its elements.
    payload: u64,
}

impl ReadItem {
    fn end(&self) -> u64 {
        self.at + (self.around.head.len() + self.around.tail.len()) as u64 + self.payload
    }

    /// Whether the bytes around the elements are there, and the checksum of the stretches, which are read one by one, is right.
    fn is_right<'s>(&self, stretches: impl Iterator<Item = &'s crc32fast::Hasher>) -> bool {
        let mut found = crc32fast::Hasher::new();
        stretches.for_each(|stretch| found.combine(stretch));
        let is_at = |at: u64, expected: &[u8]| {
            let mut bytes = vec![0; expected.len()];
            self.file.0.read_exact_at(&mut bytes, at).is_ok() && bytes == expected
        };
        let tail_at = self.at + self.around.head.len() as u64 + self.payload;
        found.finalize() == self.crc32 && is_at(self.at, &self.around.head) && is_at(tail_at, &self.around.tail)
    }
}

/// An item, and where its elements go.
struct ReadPiece<'t> {
    item: ReadItem,
    out: &'t mut [u8],
}

impl ReadPiece<'_> {
    /// Takes the elements from the item's bytes, if they are what they must be.
    fn take(&mut self, bytes: &[u8]) -> bool {
        let ReadItem { around, crc32, .. } = &self.item;
        let Some((head, rest)) = bytes.split_at_checked(around.head.len()) else { return false };
        let Some((payload, tail)) = rest.split_at_checked(self.out.len()) else { return false };
        self.out.copy_from_slice(payload);
        head == around.head && tail == around.tail && crc32fast::hash(self.out) == *crc32
    }
}

enum ReadJob<'t> {
    /// Neighbours in a file, in its order.
    Together(Vec<ReadPiece<'t>>),
    /// A stretch of a large item: its elements from `at` in the file on.
    Stretch { whole: usize, file: Arc<(File, u64)>, at: u64, out: &'t mut [u8] },
}

#[derive(Default)]
struct ReadOutcome {
    /// Checksums of stretches, with their whole and their place.
    sums: Vec<(usize, u64, crc32fast::Hasher)>,
    /// Wholes of which a stretch could not be read.
    unread: Vec<usize>,
    /// Targets of which something was not as it must be.
    wrong: BTreeSet<usize>,
}

/// Reads all pieces; the targets of which something was not as it must be.
fn read(mut pieces: Vec<ReadPiece<'_>>, threads: usize) -> BTreeSet<usize> {
    pieces.sort_by_key(|piece| (Arc::as_ptr(&piece.item.file).addr(), piece.item.at));
    let mut wholes = Vec::new();
    let jobs = Mutex::new(divide(pieces, &mut wholes));
    let found = Mutex::new(ReadOutcome::default());
    let next = || jobs.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let work = || {
        let mut buffer = Vec::new();
        while let Some(job) = next() {
            match job {
                ReadJob::Together(pieces) => {
                    let refused = together(pieces, &mut buffer);
                    found.lock().unwrap_or_else(PoisonError::into_inner).wrong.extend(refused);
                }
                ReadJob::Stretch { whole, file, at, out } => {
                    let sum = stretch(&file.0, at, out);
                    let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
                    match sum {
                        Some(sum) => found.sums.push((whole, at, sum)),
                        // The careful way finds it again, and says what it is.
                        None => found.unread.push(whole),
                    }
                }
            }
        }
    };
    in_threads(THREAD_NAME, threads.min(THREADS_MAX), work);
    let ReadOutcome { mut sums, unread, mut wrong } = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    wrong.extend(unread.into_iter().map(|whole| wholes[whole].target));
    sums.sort_by_key(|(whole, at, _)| (*whole, *at));
    for own in sums.chunk_by(|one, other| one.0 == other.0) {
        let whole = &wholes[own[0].0];
        if !whole.is_right(own.iter().map(|(.., sum)| sum)) {
            wrong.insert(whole.target);
        }
    }
    wrong
}

/// Works in so many threads, of which this is one.
pub(super) fn in_threads(name: &str, threads: usize, work: impl Fn() + Copy + Send) {
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // Where the system refuses a thread, the others do its part.
            let _refused = std::thread::Builder::new().name(name.into()).spawn_scoped(scope, work);
        }
        work();
    });
}

/// Jobs; the last is done first.
fn divide<'t>(pieces: Vec<ReadPiece<'t>>, wholes: &mut Vec<ReadItem>) -> Vec<ReadJob<'t>> {
    let (mut jobs, mut together): (Vec<ReadJob<'t>>, Vec<ReadPiece<'t>>) = (Vec::new(), Vec::new());
    for piece in pieces {
        let item = &piece.item;
        if item.end() - item.at < SMALL_BYTES_MAX {
            if let (Some(first), Some(last)) = (together.first(), together.last()) {
                let end = last.item.end();
                let near = Arc::ptr_eq(&last.item.file, &item.file) && item.at >= end && item.at - end <= GAP_BYTES_MAX;
                if !near || item.end() - first.item.at > TOGETHER_BYTES {
                    jobs.push(ReadJob::Together(std::mem::take(&mut together)));
                }
            }
            together.push(piece);
            continue;
        }
        let mut at = item.at + item.around.head.len() as u64;
        for out in piece.out.chunks_mut(STRETCH_BYTES) {
            let length = out.len() as u64;
            jobs.push(ReadJob::Stretch { whole: wholes.len(), file: Arc::clone(&piece.item.file), at, out });
            at += length;
        }
        wholes.push(piece.item);
    }
    if !together.is_empty() {
        jobs.push(ReadJob::Together(together));
    }
    jobs.reverse();
    jobs
}

/// Reads neighbours at once; the targets of those that are not as they must be.
fn together(pieces: Vec<ReadPiece<'_>>, buffer: &mut Vec<u8>) -> Vec<usize> {
    let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else { return Vec::new() };
    let begin = first.item.at;
    let end = last.item.end();
    buffer.resize(usize::try_from(end - begin).unwrap_or(0), 0);
    let file = &first.item.file;
    let is_read = end <= file.1 && file.0.read_exact_at(buffer, begin).is_ok();
    let right = |piece: &mut ReadPiece<'_>| {
        let bytes = buffer.get((piece.item.at - begin) as usize..(piece.item.end() - begin) as usize);
        is_read && bytes.is_some_and(|bytes| piece.take(bytes))
    };
    pieces.into_iter().filter_map(|mut piece| (!right(&mut piece)).then_some(piece.item.target)).collect()
}

/// Reads a stretch; its checksum, `None` when it cannot be read.
fn stretch(file: &File, mut at: u64, out: &mut [u8]) -> Option<crc32fast::Hasher> {
    let mut hasher = crc32fast::Hasher::new();
    for block in out.chunks_mut(BLOCK_BYTES) {
        file.read_exact_at(block, at).ok()?;
        hasher.update(block);
        at += block.len() as u64;
    }
    Some(hasher)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{Draft, ShardWriter, TensorBox, TensorDType, commit, name};
    use std::path::PathBuf;

    const ROWS: u64 = 5;

    fn bytes(seed: u64, length: u64) -> Vec<u8> {
        (0..length).map(|at| (at * 7 + at / 253 + seed) as u8).collect()
    }

    /// Two shards: `rows` cut by rows, `columns` by columns, many small ones, one of several stretches, one that is empty.
    fn saved(dir: &std::path::Path) -> (PathBuf, Vec<(String, Vec<u8>)>) {
        let temporary = dir.join(name::temporary(1, "x"));
        let rows = bytes(1, ROWS * 4);
        let columns = bytes(2, 4);
        let mut all = vec![("rows".to_owned(), rows.clone()), ("columns".to_owned(), columns.clone())];
        let mut tables = Vec::new();
        for rank in 0..2 {
            let mut shard = ShardWriter::create(&temporary, rank).unwrap();
            let (from, to) = [(0, 2), (2, ROWS)][rank as usize];
            let place = TensorBox {
                fqn: "rows",
                dtype: TensorDType::U8,
                global: &[ROWS, 4],
                offsets: &[from, 0],
                sizes: &[to - from, 4],
            };
            shard.tensor(&place, &rows[from as usize * 4..to as usize * 4]).unwrap();
            let half = [columns[rank as usize], columns[rank as usize + 2]];
            let fqn = "columns";
            let global = &[2, 2];
            let offsets = &[0, rank.into()];
            let sizes = &[2, 1];
            shard.tensor(&TensorBox { fqn, dtype: TensorDType::U8, global, offsets, sizes }, &half).unwrap();
            for index in 0..40 {
                let fqn = format!("small{rank}.{index}");
                let data = bytes(index, index * 3_000);
                shard.whole(&fqn, TensorDType::U8, &[index * 3_000], &data).unwrap();
                all.push((fqn, data));
            }
            let fqn = format!("large{rank}");
            let data = bytes(9, STRETCH_BYTES as u64 * 2 + 77);
            shard.whole(&fqn, TensorDType::U8, &[data.len() as u64], &data).unwrap();
            all.push((fqn, data));
            tables.push(shard.finish().unwrap());
        }
        let target = dir.join(name::committed(1));
        commit(&temporary, &target, &tables, Draft { step: 1, ..Draft::default() }).unwrap();
        (target, all)
    }

    fn read_back(path: &std::path::Path, all: &[(String, Vec<u8>)]) -> Result<(), ReadError> {
        let mut outs: Vec<Vec<u8>> = all.iter().map(|(_, data)| vec![0xee; data.len()]).collect();
        let targets = all.iter().zip(&mut outs).map(|((fqn, _), out)| Target { fqn, region: None, out });
        Checkpoint::open(path)?.read_all(&mut targets.collect::<Vec<_>>(), 3)?;
        for ((fqn, data), out) in all.iter().zip(&outs) {
            assert!(data == out, "{fqn}");
        }
        Ok(())
    }

    #[test]
    fn everything_comes_back_and_a_flipped_bit_anywhere_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let (path, all) = saved(dir.path());
        read_back(&path, &all).unwrap();
        let shard = path.join("__1_0.distcp");
        let whole = std::fs::read(&shard).unwrap();
        let large = whole.len() - STRETCH_BYTES;
        // Among the small ones, in the first and the last stretch of the large one.
        for at in [200_000, large - STRETCH_BYTES / 2, large + 5_000] {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            std::fs::write(&shard, &damaged).unwrap();
            let error = read_back(&path, &all).unwrap_err().to_string();
            assert!(error.contains("__1_0.distcp") && error.contains("CRC-32"), "{at}: {error}");
        }
        std::fs::write(&shard, &whole).unwrap();
        let open = Checkpoint::open(&path).unwrap();
        std::fs::File::options().write(true).open(&shard).unwrap().set_len(whole.len() as u64 / 2).unwrap();
        let mut out = vec![0; STRETCH_BYTES * 2 + 77];
        let error = open.read_all(&mut [Target { fqn: "large1", region: None, out: &mut out }], 2).unwrap_err();
        assert!(matches!(error, ReadError::Item { .. }), "{error}");
    }

    /// Boxes of `saved`: chunks as they are, parts of one and of several, all of a tensor in pieces, nothing.
    fn boxes() -> Vec<(&'static str, Region)> {
        let part = STRETCH_BYTES as u64;
        let rows = |fqn, from: &[u64], sizes: &[u64]| (fqn, Region { offsets: from.to_vec(), sizes: sizes.to_vec() });
        vec![
            rows("rows", &[0, 0], &[2, 4]),
            rows("rows", &[1, 0], &[3, 4]),
            rows("rows", &[2, 1], &[3, 2]),
            rows("rows", &[4, 3], &[1, 1]),
            rows("rows", &[5, 0], &[0, 4]),
            rows("columns", &[0, 1], &[2, 1]),
            rows("columns", &[1, 0], &[1, 2]),
            rows("large0", &[0], &[part]),
            rows("large0", &[part - 3], &[7]),
            rows("large0", &[part + 4], &[part + 73]),
            rows("large1", &[0], &[part * 2 + 77]),
            rows("small1.7", &[20_000], &[1_000]),
        ]
    }

    fn read_boxes(
        open: &Checkpoint,
        boxes: &[(&'static str, Region)],
        threads: usize,
    ) -> Result<Vec<Vec<u8>>, ReadError> {
        let bytes = |region: &Region| usize::try_from(region.volume()).unwrap();
        let mut outs: Vec<Vec<u8>> = boxes.iter().map(|(_, region)| vec![0xee; bytes(region)]).collect();
        let target =
            |((fqn, region), out): (&(&'static str, Region), _)| Target { fqn, region: Some(region.clone()), out };
        let mut targets: Vec<_> = boxes.iter().zip(outs.iter_mut().map(Vec::as_mut_slice)).map(target).collect();
        open.read_all(&mut targets, threads)?;
        Ok(outs)
    }

    #[test]
    fn boxes_come_back_however_they_lie_and_a_bit_beside_them_in_a_chunk_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let (path, _) = saved(dir.path());
        let open = Checkpoint::open(&path).unwrap();
        for ((fqn, region), out) in boxes().iter().zip(read_boxes(&open, &boxes(), 3).unwrap()) {
            assert!(open.tensor_box(fqn, region).unwrap().bytes == out, "{fqn} {region:?}");
        }
        let shard = path.join("__1_0.distcp");
        let mut bytes = std::fs::read(&shard).unwrap();
        let at = bytes.len() - 5_000;
        bytes[at] ^= 1;
        std::fs::write(&shard, &bytes).unwrap();
        let beside = [("large1", Region { offsets: vec![5], sizes: vec![9] })];
        let error = read_boxes(&open, &beside, 1).unwrap_err().to_string();
        assert!(error.contains("large1 in ") && error.contains("CRC-32"), "{error}");
        let outside = [("rows", Region { offsets: vec![4, 0], sizes: vec![2, 4] })];
        let error = read_boxes(&open, &outside, 1).unwrap_err().to_string();
        assert!(error.contains("the box at [4, 0] of size [2, 4] in a buffer of 8 bytes does not fit it"), "{error}");
    }

    /// Bytes that this thread has read so far, as the system counts them.
    fn bytes_read() -> u64 {
        let told = std::fs::read_to_string("/proc/thread-self/io").unwrap();
        told.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
    }

    #[test]
    fn only_chunks_that_boxes_meet_are_read_and_each_once() {
        let dir = tempfile::tempdir().unwrap();
        let (path, _) = saved(dir.path());
        let open = Checkpoint::open(&path).unwrap();
        let chunk = STRETCH_BYTES as u64 * 2 + 77;
        let all = ("large1", Region::whole(&[chunk]));
        let [some, more] = [3, chunk - 9].map(|at| ("large1", Region { offsets: vec![at], sizes: vec![9] }));
        for (boxes, most) in
            [(vec![all], chunk + (64 << 10)), (vec![some, more], chunk + (64 << 10)), (boxes()[..6].to_vec(), 64 << 10)]
        {
            let before = bytes_read();
            read_boxes(&open, &boxes, 1).unwrap();
            let read = bytes_read() - before;
            assert!(read <= most, "{read} bytes for {boxes:?}");
        }
    }

    #[test]
    fn memory_of_another_size_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (path, _) = saved(dir.path());
        let open = Checkpoint::open(&path).unwrap();
        let error = open.read_all(&mut [Target { fqn: "rows", region: None, out: &mut [0; 19] }], 1).unwrap_err();
        assert!(error.to_string().contains("a buffer of 19 bytes"), "{error}");
        assert!(matches!(
            open.read_all(&mut [Target { fqn: "no", region: None, out: &mut [] }], 1),
            Err(ReadError::Absent { .. })
        ));
    }
}
