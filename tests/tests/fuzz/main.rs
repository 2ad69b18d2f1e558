//! Readers of files from elsewhere, fed with damaged ones: no panic, no endless recursion, no allocation that the input does not
//! account for.
//!
//! Seeds are valid files; a mutator with a seed of its own damages them. `ENN_FUZZ_SECONDS` says how long each reader is fed
//! (1 by default, `make fuzz` a minute), `ENN_FUZZ_SEED` where the mutator begins; a failure names the seed that repeats it.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test by panicking")]
#![expect(clippy::disallowed_methods, reason = "the environment says for how long, and where to begin")]

mod mutator;
mod readers;
mod sys;

use mutator::Mutator;
use std::{
    io::Write,
    time::{Duration, Instant},
};

/// Bytes a reader may ask for at one time beyond what the input accounts for: buffers of files, maps of sizes of their own.
const ALLOWANCE_BYTES: usize = 4 << 20;
/// Bytes in memory for a byte of the input: a pickle of one byte is a node.
const BYTES_PER_BYTE: usize = 256;
/// What a reader may hold in all, in what it may ask for at one time.
const HELD_TIMES: usize = 4;
/// Stack of a reader: what recurses without bound overflows it.
const STACK_BYTES: usize = 1 << 20;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Feeds `read` with damaged copies of the seeds until the time is over.
fn feed(name: &'static str, seeds: Vec<Vec<u8>>, read: fn(&[u8])) {
    let seconds = number("ENN_FUZZ_SECONDS").unwrap_or(1);
    let first = number("ENN_FUZZ_SEED").unwrap_or(0x9e37_79b9);
    let end = Instant::now() + Duration::from_secs(seconds);
    // Without a backtrace, whose making asks for more memory than any reader may.
    std::panic::set_hook(Box::new(|what| _ = writeln!(std::io::stderr(), "{what}")));
    let feeding = move || {
        for seed in &seeds {
            read(seed);
        }
        let mut round = 0u64;
        // At least a hundred, however slow the machine is.
        while round < 100 || Instant::now() < end {
            let mut mutator = Mutator::new(first.wrapping_add(round));
            let damaged = mutator.damage(&seeds);
            let noted = sys::noted_while(|| {
                let outcome = std::panic::catch_unwind(|| read(&damaged));
                assert!(outcome.is_ok(), "{name}: a panic at ENN_FUZZ_SEED={}", first.wrapping_add(round));
            });
            let limit = ALLOWANCE_BYTES + BYTES_PER_BYTE * damaged.len();
            let seed = first.wrapping_add(round);
            let sys::Noted { largest, most, .. } = noted;
            assert!(largest <= limit, "{name}: {largest} bytes asked for, {limit} allowed, at ENN_FUZZ_SEED={seed}");
            let limit = HELD_TIMES * limit;
            assert!(most <= limit, "{name}: {most} bytes held, {limit} allowed, at ENN_FUZZ_SEED={seed}");
            round += 1;
        }
        round
    };
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(feeding).unwrap();
    let rounds = thread.join().unwrap_or_else(|_| panic!("{name} did not survive; see above"));
    assert!(rounds >= 100);
}

#[test]
fn metadata() {
    feed("metadata", readers::metadata_seeds(), readers::metadata);
}

#[test]
fn shards() {
    feed("shards", readers::shard_seeds(), readers::shard);
}

#[test]
fn state_files() {
    feed("state files", readers::state_file_seeds(), readers::state_file);
}

#[test]
fn safetensors() {
    feed("safetensors", readers::safetensors_seeds(), readers::safetensors);
}

#[test]
fn safetensors_indices() {
    feed("safetensors indices", readers::index_seeds(), readers::index);
}

#[test]
fn arrays() {
    feed("arrays", readers::npy_seeds(), readers::npy);
}

#[test]
fn manifests() {
    feed("manifests", readers::manifest_seeds(), readers::manifest);
}

#[test]
fn arrow_streams() {
    feed("arrow streams", readers::arrow_seeds(), readers::arrow);
}
