//! Where each parameter lies in the flat buckets.

use super::tree::Group;
use crate::autograd::{BucketId, Lent, ParamId};
use tch::{TchError, Tensor};

/// Most bytes of the first bucket, small so that communication starts early.
const FIRST_BUCKET_BYTES: i64 = 1 << 20;
/// Most bytes of the last bucket, which holds the first parameters and is there when the backward pass ends: nothing hides its sum.
const LAST_BUCKET_BYTES: i64 = 16 << 20;
/// Elements each parameter starts at a multiple of: 64 bytes of f32.
const ALIGN: i64 = 16;

/// One parameter's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) bucket: u32,
    pub(super) start: i64,
    pub(super) len: i64,
}

/// A run of one group inside a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    pub bucket: BucketId,
    /// The group of its parameters.
    pub group: Group,
    /// First element.
    pub start: i64,
    /// Elements, padding included.
    pub len: i64,
}

/// How many ranks share flat arrays, and which of them this is. Of an array, each rank has the part with its number, all of one
/// length; what is left behind the last of them, fewer elements than ranks times 16, belongs to all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// This rank.
    pub rank: u32,
    /// All ranks.
    pub world: u32,
}

impl Share {
    /// Everything is this rank's.
    pub const WHOLE: Self = Self { rank: 0, world: 1 };

    /// Elements of each rank's part of an array of `len`.
    fn part(self, len: i64) -> i64 {
        len / i64::from(self.world) / ALIGN * ALIGN
    }

    /// Elements that have parts, from the first on, of an array of `len`; those behind them belong to all.
    fn divided(self, len: i64) -> i64 {
        self.part(len) * i64::from(self.world)
    }

    /// An array as the part that is divided between the ranks and the part that belongs to all; `None` where there is nothing of
    /// it. All belongs to all when this rank keeps all.
    ///
    /// # Errors
    /// What libtorch says.
    pub fn split(self, whole: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>), TchError> {
        let len = whole.numel() as i64;
        let end = if self == Self::WHOLE { 0 } else { self.divided(len) };
        let part = |start: i64, len: i64| (len > 0).then(|| whole.f_narrow(0, start, len)).transpose();
        Ok((part(0, end)?, part(end, len - end)?))
    }
}

/// A run of a bucket that this rank keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    pub bucket: BucketId,
    /// First element.
    pub start: i64,
    /// Elements.
    pub len: i64,
    /// Whether all ranks keep it.
    pub common: bool,
}

/// Places of all parameters. Inside a bucket decayed parameters come first.
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
    /// In buckets of at most `bytes_max`, but for parameters that are larger.
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

    /// Runs of one group, in bucket order.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// What a rank keeps of the buckets, in their order.
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

    /// Takes the memory of an array of this layout away, of which this rank keeps its share.
    pub(super) fn lend(&self, share: Share, bucket: BucketId, flat: &Tensor) -> Result<Lent, TchError> {
        let mine = self.runs(share).into_iter().filter(|run| run.bucket == bucket);
        let places = mine.map(|run| flat.f_narrow(0, run.start, run.len)).collect::<Result<_, _>>()?;
        Lent::new(flat, share.split(flat)?, places)
    }

    /// [`Layout::lend`] of an array for each bucket.
    pub(super) fn lend_all(&self, share: Share, flats: &[Tensor]) -> Result<Vec<Lent>, TchError> {
        (0..).map(BucketId).zip(flats).map(|(bucket, flat)| self.lend(share, bucket, flat)).collect()
    }

    /// Number of buckets.
    pub fn buckets(&self) -> usize {
        self.lens.len()
    }

    /// Elements of a bucket, padding included.
    pub fn bucket_len(&self, bucket: BucketId) -> i64 {
        self.lens[bucket.index()]
    }

    /// Bucket, first element and number of elements of a parameter.
    pub fn place(&self, id: ParamId) -> (BucketId, i64, i64) {
        let slot = self.slots[id.index()];
        (BucketId(slot.bucket), slot.start, slot.len)
    }
}
