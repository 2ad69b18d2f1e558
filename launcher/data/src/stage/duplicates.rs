//! Rows that repeat a key, found from one 128-bit hash per row in bounded memory.
//!
//! Up to `HASHES_MAX` hashes are kept in memory, the others in a file. A bit table marks hashes that may occur twice; only those are
//! sorted, in rounds of bounded size. Two different rows share a 128-bit hash once in about 10¹⁸ tables of a billion rows.

use super::{bits::Bits, error::StageError, scratch::Scratch};
use enn_common::{config::data::DuplicatePolicy, fs::mmap, staged::unfinished::HASHES};
use std::path::Path;

/// Maximum hashes in memory: 32 MiB.
const HASHES_MAX: usize = 2 * 1024 * 1024;

/// Maximum bits of the table of hashes seen: 64 MiB.
const TABLE_BITS_MAX: u64 = 1 << 29;

/// Maximum hashes that are sorted at once: 64 MiB.
const SORTED_MAX: u64 = 2 * 1024 * 1024;

/// Maximum percentage of rows left out as repetitions without a warning.
const WARNED_PERCENT: f64 = 1.0;

#[derive(Debug)]
pub(crate) struct Hashes {
    in_memory: Vec<u128>,
    file: Scratch,
}

#[derive(Debug, Default)]
pub(crate) struct Repeats {
    /// Rows to leave out under the policy.
    pub dropped: Bits,
    pub count: u64,
    /// The earliest repetition, as indices from 0: the row and the row that it repeats.
    pub first: Option<(u64, u64)>,
}

/// Returns the warning where more than `WARNED_PERCENT` of the rows are left out because they repeat `what` of another row.
pub(crate) fn warning(dropped: u64, rows: u64, what: &str) -> Option<String> {
    let share = 100.0 * dropped as f64 / rows.max(1) as f64;
    (share > WARNED_PERCENT).then(|| {
        format!(
            "{dropped} of {rows} rows ({share:.1} %) were left out because they repeat {what} of another row\n  hint: check whether \
             {what} identifies each row; data.duplicates sets which of the repeated rows is kept"
        )
    })
}

impl Hashes {
    /// Restores the hashes of the first `rows` rows from their file below `dir`, which stays for later attempts.
    pub(crate) fn kept(dir: &Path, rows: u64) -> Result<Self, StageError> {
        Ok(Self { in_memory: Vec::new(), file: Scratch::named(dir.join(HASHES), rows * 16)? })
    }

    pub(crate) fn rows(&self) -> u64 {
        self.file.bytes() / 16 + self.in_memory.len() as u64
    }

    pub(crate) fn push(&mut self, hashes: &[u128]) -> Result<(), StageError> {
        self.in_memory.extend_from_slice(hashes);
        if self.in_memory.len() < HASHES_MAX { Ok(()) } else { self.spill() }
    }

    pub(crate) fn spill(&mut self) -> Result<(), StageError> {
        let halves: Vec<u64> = self.in_memory.iter().flat_map(|hash| [*hash as u64, (hash >> 64) as u64]).collect();
        self.file.append(mmap::bytes_of(&halves))?;
        self.in_memory.clear();
        Ok(())
    }

    fn each(&self, mut f: impl FnMut(u64, u128)) -> Result<(), StageError> {
        let mut bytes = vec![0u8; 1 << 20];
        let mut row = 0;
        let spilled = self.file.bytes() / 16;
        while row < spilled {
            let count = ((spilled - row) as usize).min(bytes.len() / 16);
            let part = &mut bytes[..count * 16];
            self.file.read(row * 16, part)?;
            for hash in part.chunks_exact(16).filter_map(|chunk| chunk.first_chunk::<16>()) {
                f(row, u128::from_le_bytes(*hash));
                row += 1;
            }
        }
        self.in_memory.iter().zip(spilled..).for_each(|(hash, row)| f(row, *hash));
        Ok(())
    }

    /// Finds the rows that repeat another. The policy decides whether the first or the last of equal rows is kept.
    pub(crate) fn repeats(self, policy: DuplicatePolicy) -> Result<Repeats, StageError> {
        let rows = self.rows();
        let mut repeats = Repeats { dropped: Bits::new(rows), ..Repeats::default() };
        let bits = (rows * 16).next_power_of_two().clamp(64, TABLE_BITS_MAX);
        let slot = |hash: u128| (hash >> 64) as u64 & (bits - 1);
        let mut seen = Bits::new(bits);
        let mut twice = Bits::new(bits);
        let mut suspects = 0u64;
        self.each(|_, hash| {
            if seen.set(slot(hash)) {
                twice.set(slot(hash));
                suspects += 2;
            }
        })?;
        drop(seen);
        let rounds = suspects.div_ceil(SORTED_MAX);
        for round in 0..rounds {
            let mut group: Vec<(u128, u64)> = Vec::new();
            self.each(|row, hash| {
                if twice.get(slot(hash)) && hash as u64 % rounds == round {
                    group.push((hash, row));
                }
            })?;
            group.sort_unstable();
            group.chunk_by(|a, b| a.0 == b.0).filter(|equals| equals.len() > 1).for_each(|equals| {
                repeats.add(equals, policy);
            });
        }
        Ok(repeats)
    }
}

impl Repeats {
    fn add(&mut self, equals: &[(u128, u64)], policy: DuplicatePolicy) {
        self.count += equals.len() as u64 - 1;
        let pair = (equals[1].1, equals[0].1);
        self.first = Some(self.first.map_or(pair, |first| first.min(pair)));
        let out = match policy {
            DuplicatePolicy::Keep => &[],
            DuplicatePolicy::First | DuplicatePolicy::Error => &equals[1..],
            DuplicatePolicy::Last => &equals[..equals.len() - 1],
        };
        out.iter().for_each(|(_, row)| {
            self.dropped.set(*row);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn repeats(hashes: &[u128], policy: DuplicatePolicy) -> Repeats {
        let dir = tempfile::tempdir().unwrap();
        let mut all = Hashes::kept(dir.path(), 0).unwrap();
        hashes.chunks(1000).for_each(|part| all.push(part).unwrap());
        assert_eq!(all.rows(), hashes.len() as u64);
        all.repeats(policy).unwrap()
    }

    #[test]
    fn the_policy_says_which_stays() {
        let hashes = [5, 7, 5, 8, 5, 7];
        let dropped = |policy| {
            let found = repeats(&hashes, policy);
            assert_eq!((found.count, found.first), (3, Some((2, 0))));
            (0..6).filter(|row| found.dropped.get(*row)).collect::<Vec<u64>>()
        };
        assert_eq!(dropped(DuplicatePolicy::First), [2, 4, 5]);
        assert_eq!(dropped(DuplicatePolicy::Last), [0, 1, 2]);
        assert!(dropped(DuplicatePolicy::Keep).is_empty());
    }

    #[test]
    fn one_row_in_a_hundred_is_no_matter_for_a_warning() {
        assert_eq!((warning(0, 0, "the row id"), warning(1, 100, "the row id")), (None, None));
        let told = warning(3, 200, "the row id").unwrap();
        assert!(told.starts_with("3 of 200 rows (1.5 %) were left out because they repeat the row id"), "{told}");
    }

    #[test]
    fn a_spilled_table_gives_the_same_answer() {
        // A cheap generator with about one repetition in eight, more rows than stay in memory.
        let mut state = 1u128;
        let hashes: Vec<u128> = (0..HASHES_MAX as u128 + 5000)
            .map(|row| {
                state = state.wrapping_mul(0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645).wrapping_add(row);
                if row % 8 == 7 { (row / 16).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835) } else { state }
            })
            .collect();
        let mut seen = HashMap::new();
        let expected = hashes.iter().filter(|hash| seen.insert(**hash, ()).is_some()).count() as u64;
        let found = repeats(&hashes, DuplicatePolicy::First);
        assert!(expected > 100_000);
        assert_eq!(found.count, expected);
        assert_eq!(found.dropped.count(), expected);
    }
}
