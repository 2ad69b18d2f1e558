//! Records finished chunks, one line per chunk, so that an interrupted prediction can be resumed.
//!
//! **Invariant:** a chunk counts as finished only when its line exists and its bytes have the recorded digest. A ledger of another
//! checkpoint, other data or another chunk size is replaced.

use super::GatherError;
use enn_common::{
    artifact::{
        chunk::{self, Chunk},
        prediction::ChunkDigest,
    },
    config::train::Precision,
    fs::{Disk, FileError, Storage, atomic},
};
use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
};

const FILE: &str = "ledger.jsonl";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// blake3 of the checkpoint's manifest, hex.
    pub checkpoint: String,
    pub data: String,
    pub chunk_rows: u64,
    pub precision: Precision,
}

#[derive(Debug)]
pub struct Ledger {
    dir: PathBuf,
    file: File,
    chunks: Vec<ChunkDigest>,
}

impl Ledger {
    /// Opens the ledger in `partial`, or starts one. Chunks whose bytes differ from the record are dropped.
    pub fn open(partial: &Path, header: &Header) -> Result<Self, GatherError> {
        let path = partial.join(FILE);
        let first = line(&[&header.checkpoint, &header.data, &header.chunk_rows.to_string(), header.precision.name()]);
        let text = fs::read_to_string(&path).unwrap_or_default();
        let chunks = match text.strip_prefix(&first) {
            Some(lines) => lines.lines().filter_map(parse).filter(|chunk| intact(partial, chunk)).collect(),
            None => {
                if partial.exists() {
                    Disk.remove_dir(partial)?;
                }
                Vec::new()
            }
        };
        Disk.create_dir(partial)?;
        let lines: String = chunks.iter().map(record).collect();
        atomic::write(&path, format!("{first}{lines}").as_bytes())?;
        let file = File::options().append(true).open(&path).map_err(FileError::of("open", &path))?;
        Ok(Self { dir: partial.to_path_buf(), file, chunks })
    }

    /// Returns the rows [start, end) of the finished chunks.
    pub fn done(&self) -> Vec<(u64, u64)> {
        self.chunks.iter().map(|chunk| (chunk.start, chunk.end)).collect()
    }

    pub fn record(&mut self, start: u64, end: u64, blake3: &str) -> Result<(), GatherError> {
        let chunk = ChunkDigest { start, end, blake3: blake3.to_owned() };
        let path = self.dir.join(FILE);
        self.file.write_all(record(&chunk).as_bytes()).map_err(FileError::of("write", &path))?;
        self.chunks.retain(|known| (known.start, known.end) != (start, end));
        self.chunks.push(chunk);
        Ok(())
    }

    /// Returns the chunks in order of rows.
    pub fn chunks(&self) -> Vec<ChunkDigest> {
        let mut sorted = self.chunks.clone();
        sorted.sort_by_key(|chunk| (chunk.start, chunk.end));
        sorted
    }
}

fn line(fields: &[&str]) -> String {
    let mut text = serde_json::Value::from(fields.to_vec()).to_string();
    text.push('\n');
    text
}

fn record(chunk: &ChunkDigest) -> String {
    line(&[&chunk.start.to_string(), &chunk.end.to_string(), &chunk.blake3])
}

/// Parses a line; an incomplete last line is ignored.
fn parse(line: &str) -> Option<ChunkDigest> {
    let [start, end, blake3]: [String; 3] = serde_json::from_str(line).ok()?;
    Some(ChunkDigest { start: start.parse().ok()?, end: end.parse().ok()?, blake3 })
}

fn intact(partial: &Path, found: &ChunkDigest) -> bool {
    Chunk::open(&chunk::path(partial, found.start, found.end), Some(&found.blake3)).is_ok()
}
