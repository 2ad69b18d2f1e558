//! Readers of bytes from elsewhere, fed with damaged ones: no panic, no endless recursion, no allocation that the input does not
//! account for.
//!
//! Seeds are valid inputs; a mutator with a seed of its own damages them. `ENN_FUZZ_SECONDS` says how long a reader is fed
//! (1 by default, `make fuzz` a minute; some a quarter of that), `ENN_FUZZ_SEED` where the mutator begins; a failure names the seed
//! that repeats it.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test by panicking")]
#![expect(clippy::disallowed_methods, reason = "the environment says for how long, and where to begin")]

mod models;
mod mutator;
mod readers;
mod records;
mod sys;
mod tables;
mod wire;

use mutator::Mutator;
use std::{
    io::Write,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

/// Bytes a reader may ask for at one time beyond what the input accounts for: buffers of files, maps of sizes of their own.
const ALLOWANCE_BYTES: usize = 4 << 20;
/// Bytes in memory for a byte of the input: a pickle of one byte is a node.
const BYTES_PER_BYTE: usize = 256;
/// What a reader may hold in all, in what it may ask for at one time.
const HELD_TIMES: usize = 4;
/// What a thread that a reader starts may ask for at one time: whose thread it is cannot be told.
const ELSEWHERE_BYTES: usize = 64 << 20;
/// Stack of a reader: what recurses without bound overflows it.
const STACK_BYTES: usize = 1 << 20;
/// Longest time for one input: more is an endless loop, or next to one. A crowded machine may take long for any.
const SECONDS_MAX: u64 = 60;
/// The thread of a server that catches what it should not have to.
const WATCHED: &str = "enn-http";

/// Parts of the time: one whole, one of four.
const WHOLE: u32 = 1;
const QUARTER: u32 = 4;

static PANICKED: AtomicBool = AtomicBool::new(false);
/// Makes seeds, and reads.
type Reader = (fn() -> Vec<Vec<u8>>, fn(&[u8]));

/// The panics of this input; readers catch some of their formats' own.
static LAST: Mutex<String> = Mutex::new(String::new());

fn last() -> String {
    LAST.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Feeds `read` with damaged copies of the seeds until the time is over, or a `part` of it.
fn feed(name: &'static str, (seeds, read): Reader, part: u32) {
    let time = Duration::from_secs(number("ENN_FUZZ_SECONDS").unwrap_or(1)) / part;
    let first = number("ENN_FUZZ_SEED").unwrap_or(0x9e37_79b9);
    // Without a backtrace, whose making asks for more memory than any reader may.
    std::panic::set_hook(Box::new(|what| {
        PANICKED.fetch_or(std::thread::current().name() == Some(WATCHED), Relaxed);
        LAST.lock().unwrap_or_else(PoisonError::into_inner).push_str(&format!("{what}\n"));
    }));
    let feeding = move || {
        let seeds = seeds();
        for seed in &seeds {
            read(seed);
        }
        let end = Instant::now() + time;
        let mut round = 0u64;
        // At least a hundred, however slow the machine is.
        while round < 100 || Instant::now() < end {
            let seed = first.wrapping_add(round);
            let damaged = Mutator::new(seed).damage(&seeds);
            let began = Instant::now();
            LAST.lock().unwrap_or_else(PoisonError::into_inner).clear();
            let noted = sys::noted_while(|| {
                let outcome = std::panic::catch_unwind(|| read(&damaged));
                let is_sound = outcome.is_ok() && !PANICKED.load(Relaxed);
                assert!(is_sound, "{name}: a panic at ENN_FUZZ_SEED={seed}: {}", last());
            });
            let limit = ALLOWANCE_BYTES + BYTES_PER_BYTE * damaged.len();
            let sys::Noted { largest, most, .. } = noted;
            assert!(largest <= limit, "{name}: {largest} bytes asked for, {limit} allowed, at ENN_FUZZ_SEED={seed}");
            let limit = HELD_TIMES * limit;
            assert!(most <= limit, "{name}: {most} bytes held, {limit} allowed, at ENN_FUZZ_SEED={seed}");
            let elsewhere = sys::largest_anywhere();
            assert!(
                elsewhere <= ELSEWHERE_BYTES,
                "{name}: a thread asked for {elsewhere} bytes at ENN_FUZZ_SEED={seed}"
            );
            let took = began.elapsed().as_secs();
            assert!(took <= SECONDS_MAX, "{name}: {took} s at ENN_FUZZ_SEED={seed}");
            round += 1;
        }
        _ = writeln!(std::io::stderr(), "{name}: {round} inputs");
        round
    };
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(feeding).unwrap();
    let rounds = thread.join().unwrap_or_else(|_| {
        drop(std::panic::take_hook());
        panic!("{name} did not survive: {}", last())
    });
    assert!(rounds >= 100);
}

/// A test of each reader, which is fed for a part of the time.
macro_rules! readers {
    ($part:ident: $($test:ident, $seeds:path => $read:path;)*) => {
        $(
            #[test]
            fn $test() {
                feed(stringify!($test), ($seeds, $read), $part);
            }
        )*
    };
}

// What is made of offsets and lengths, and comes from others or over sockets.
readers! {
    WHOLE:
    metadata, readers::metadata_seeds => readers::metadata;
    shards, readers::shard_seeds => readers::shard;
    compressed_items, models::compressed_seeds => models::compressed_items;
    state_files, readers::state_file_seeds => readers::state_file;
    safetensors, readers::safetensors_seeds => readers::safetensors;
    parquet, tables::parquet_seeds => tables::parquet;
    arrow_streams, readers::arrow_seeds => readers::arrow;
    workbooks, tables::workbook_seeds => tables::workbooks;
    store_requests, wire::store_seeds => wire::store;
    http_bodies, wire::body_seeds => wire::bodies;
}

// The same behind another door, text, and what this program wrote itself.
readers! {
    QUARTER:
    native_files, models::native_seeds => models::native;
    model_cards, models::card_seeds => models::cards;
    safetensors_indices, readers::index_seeds => readers::index;
    arrays, readers::npy_seeds => readers::npy;
    array_files, tables::array_seeds => tables::arrays;
    arrow_files, tables::arrow_file_seeds => tables::arrow_file;
    csv, tables::csv_seeds => tables::csv;
    staged_directories, tables::staged_seeds => tables::staged_dirs;
    http_requests, wire::request_seeds => wire::requests;
    frames, wire::frame_seeds => wire::frames;
    scripts, wire::script_seeds => wire::scripts;
    lines, wire::line_seeds => wire::lines;
    manifests, readers::manifest_seeds => readers::manifest;
    sealed_manifests, records::sealed_seeds => records::sealed;
    broken_predictions, records::prediction_seeds => records::predictions;
    journals, records::journal_seeds => records::journals;
    configurations, records::configuration_seeds => records::configuration;
    host_lists, records::host_list_seeds => records::host_lists;
    graphs, models::graph_seeds => models::graphs;
    artifacts, models::artifact_seeds => models::artifacts;
    sidecars, models::sidecar_seeds => models::sidecars;
}
