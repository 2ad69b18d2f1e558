//! Damages bytes: bits, numbers at places where lengths are, stretches cut, doubled, moved or taken from another seed.

/// Numbers that lengths and offsets go wrong with.
const NUMBERS: [u64; 10] =
    [0, 1, 0x7f, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, 0x7fff_ffff_ffff_ffff, u64::MAX];
/// Damages done to one input at most.
const DAMAGES_MAX: u64 = 6;
/// Inputs do not grow beyond this.
const BYTES_MAX: usize = 1 << 16;

pub(crate) struct Mutator(u64);

impl Mutator {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next number below `limit`; 0 for none.
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.checked_rem(limit).unwrap_or(0)
    }

    fn place(&mut self, bytes: &[u8]) -> usize {
        self.below(bytes.len() as u64 + 1) as usize
    }

    /// A damaged copy of one of the seeds.
    pub(crate) fn damage(&mut self, seeds: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = seeds[self.below(seeds.len() as u64) as usize].clone();
        for _ in 0..=self.below(DAMAGES_MAX) {
            self.once(&mut bytes, seeds);
            bytes.truncate(BYTES_MAX);
        }
        bytes
    }

    fn once(&mut self, bytes: &mut Vec<u8>, seeds: &[Vec<u8>]) {
        let at = self.place(bytes);
        let end = (at + self.below(40) as usize).min(bytes.len());
        match self.below(8) {
            0 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << self.below(8)),
            1 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte = self.below(256) as u8),
            2 => {
                let number = NUMBERS[self.below(NUMBERS.len() as u64) as usize];
                let width = 1 << self.below(4);
                let number = number.to_le_bytes();
                bytes.iter_mut().skip(at).zip(&number[..width]).for_each(|(byte, new)| *byte = *new);
            }
            3 => drop(bytes.drain(at..end)),
            4 => {
                let stretch = bytes[at..end].to_vec();
                let times = 1 + self.below(50) as usize;
                bytes.splice(at..at, stretch.repeat(times));
            }
            5 => {
                let other = &seeds[self.below(seeds.len() as u64) as usize];
                let from = self.place(other);
                let stretch = other[from..(from + self.below(60) as usize).min(other.len())].to_vec();
                bytes.splice(at..end, stretch);
            }
            6 => bytes.truncate(at),
            // Many of the same: nesting.
            _ => {
                let one = bytes.get(at).copied().unwrap_or(b'(');
                let many = vec![one; self.below(4000) as usize];
                bytes.splice(at..at, many);
            }
        }
    }
}
