//! Layout of the parameters in the flat buckets.

use super::group::Group;
use crate::autograd::{BucketId, ParamId, ShardedBuffer};
use tch::{TchError, Tensor};

/// Maximum size of the first bucket, small so that communication starts early.
const FIRST_BUCKET_BYTES: i64 = 1 << 20;
/// Maximum size of the last bucket. It holds the first parameters and is complete only when the backward pass ends, so
/// that no computation hides its reduction.
const LAST_BUCKET_BYTES: i64 = 16 << 20;
/// Alignment of each parameter in elements: 64 bytes of f32.
const ALIGN: i64 = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) bucket: u32,
    pub(super) start: i64,
    pub(super) len: i64,
}

/// A range of a bucket with parameters of one group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    pub bucket: BucketId,
    pub group: Group,
    /// Offset of the first element in the bucket.
    pub start: i64,
    /// Number of elements, including padding.
    pub len: i64,
}

/// Division of flat arrays between ranks, and the part of this rank. The parts of an array are equal in length and
/// ordered by rank; the elements behind the last part, fewer than ranks times 16, belong to all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    pub rank: u32,
    pub world: u32,
}

impl Share {
    /// The share of a rank that keeps everything.
    pub const WHOLE: Self = Self { rank: 0, world: 1 };

    /// Returns the length of each rank's part of an array of `len` elements.
    fn part(self, len: i64) -> i64 {
        len / i64::from(self.world) / ALIGN * ALIGN
    }

    /// Returns the number of leading elements of an array of `len` that are divided; the others belong to all ranks.
    fn divided(self, len: i64) -> i64 {
        self.part(len) * i64::from(self.world)
    }

    /// Splits an array into the section that is divided between the ranks and the section that belongs to all; `None`
    /// for an empty section. With [`Share::WHOLE`] everything belongs to all.
    pub fn split(self, whole: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>), TchError> {
        let len = whole.numel() as i64;
        let end = if self == Self::WHOLE { 0 } else { self.divided(len) };
        let part = |start: i64, len: i64| (len > 0).then(|| whole.f_narrow(0, start, len)).transpose();
        Ok((part(0, end)?, part(end, len - end)?))
    }
}

/// A range of a bucket that this rank keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    pub bucket: BucketId,
    /// Offset of the first element in the bucket.
    pub start: i64,
    pub len: i64,
    /// Whether all ranks keep the range.
    pub common: bool,
}

/// Positions of all parameters. Inside a bucket, parameters with weight decay come first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Layout {
    pub(super) slots: Vec<Slot>,
    pub(super) lens: Vec<i64>,
    segments: Vec<Segment>,
}

fn padded(len: i64) -> i64 {
    len.max(1).div_euclid(ALIGN) * ALIGN + if len.max(1) % ALIGN == 0 { 0 } else { ALIGN }
}

impl Layout {
    /// Fills buckets of at most `bytes_max`; a larger parameter gets a bucket of its own.
    pub(super) fn new(params: &[(i64, Group)], bytes_max: i64) -> Self {
        let mut buckets: Vec<Vec<usize>> = vec![Vec::new()];
        let up_to = |bytes: &mut i64, (len, _): &(i64, Group)| {
            *bytes += 4 * padded(*len);
            (*bytes <= LAST_BUCKET_BYTES).then_some(())
        };
        let last = params.iter().scan(0, up_to).count();
        let mut bytes = 0;
        for (i, (len, _)) in params.iter().enumerate().rev() {
            let limit = if buckets.len() == 1 { bytes_max.min(FIRST_BUCKET_BYTES) } else { bytes_max };
            if bytes > 0 && (i + 1 == last || bytes + 4 * padded(*len) > limit) {
                buckets.push(Vec::new());
                bytes = 0;
            }
            bytes += 4 * padded(*len);
            if let Some(bucket) = buckets.last_mut() {
                bucket.push(i);
            }
        }
        let mut slots = vec![Slot { bucket: 0, start: 0, len: 0 }; params.len()];
        let mut lens = Vec::new();
        let mut segments = Vec::new();
        for (b, members) in buckets.iter().enumerate() {
            let mut at = 0;
            for group in [Group::Decay, Group::NoDecay] {
                let start = at;
                for &i in members.iter().filter(|i| params[**i].1 == group) {
                    slots[i] = Slot { bucket: b as u32, start: at, len: params[i].0 };
                    at += padded(params[i].0);
                }
                if at > start {
                    segments.push(Segment { bucket: BucketId(b as u32), group, start, len: at - start });
                }
            }
            lens.push(at);
        }
        Self { slots, lens, segments }
    }

    /// Returns the segments of each parameter group, in bucket order.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Returns the ranges that a rank keeps, in bucket order.
    pub fn runs(&self, share: Share) -> Vec<Run> {
        let runs = self.lens.iter().enumerate().flat_map(|(b, &len)| {
            let bucket = BucketId(b as u32);
            let part = share.part(len);
            let end = share.divided(len);
            let own = Run { bucket, start: part * i64::from(share.rank), len: part, common: false };
            [own, Run { bucket, start: end, len: len - end, common: true }]
        });
        runs.filter(|run| run.len > 0).collect()
    }

    /// Frees the memory of an array of this layout, except the share of this rank.
    pub(super) fn shard_buffer(
        &self,
        share: Share,
        bucket: BucketId,
        flat: &Tensor,
    ) -> Result<ShardedBuffer, TchError> {
        let mine = self.runs(share).into_iter().filter(|run| run.bucket == bucket);
        let places = mine.map(|run| flat.f_narrow(0, run.start, run.len)).collect::<Result<_, _>>()?;
        let (divided, common) = share.split(flat)?;
        ShardedBuffer::new(flat, divided, common, places)
    }

    /// Applies [`Layout::shard_buffer`] to one array per bucket.
    pub(super) fn shard_buffers(&self, share: Share, flats: &[Tensor]) -> Result<Vec<ShardedBuffer>, TchError> {
        (0..).map(BucketId).zip(flats).map(|(bucket, flat)| self.shard_buffer(share, bucket, flat)).collect()
    }

    pub fn buckets(&self) -> usize {
        self.lens.len()
    }

    /// Returns bucket, first element and number of elements of a parameter.
    pub fn place(&self, id: ParamId) -> (BucketId, i64, i64) {
        let slot = self.slots[id.index()];
        (BucketId(slot.bucket), slot.start, slot.len)
    }
}
