//! Saves and loads a state over and over, as it is told: `checkpoint_speed RANK WORLD BYTES TENSORS [cuda]` holds a rank's share of a
//! state of BYTES in TENSORS tensors and reads orders, one a line; each is answered by a line of seconds.
//! `tests/bench/checkpoint.py` runs it beside PyTorch.
//!
//! ```text
//! raw FILE   write(2) and fsync of the share from memory      read FILE   read(2) of it into memory that is there
//! save DIR   the share as a shard in DIR, fsynced              commit DIR COMMITTED WORLD   the shards a checkpoint
//! prepare    room for a snapshot, as a run makes it before its first step
//! stage      the share into the snapshot, as a run does while training waits; a GPU may still be copying then
//! arrive     until all of it is there, and the snapshot is free again
//! copy       the share into memory that is there, by one thread
//! room       memory to load to                                open DIR   what comes before a load
//! into DIR   the checkpoint into memory that is there, every byte checked      load DIR   the same into new memory
//! ```

#![expect(clippy::print_stdout, reason = "its answers are its output")]

use enn_common::{
    checkpoint::{Checkpoint, Draft, ShardTable, commit, write::How},
    wire::control::{ControlPage, PAGE_BYTES},
};
use enn_worker::checkpoint::{
    Named, ShardContent, host_bytes, host_bytes_mut, load_into, load_part, save,
    staging::{Staging, StagingMemory},
};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::{
    env,
    error::Error,
    fs::{self, File},
    io::{BufRead, Read, Write},
    path::Path,
    sync::atomic::AtomicU64,
    time::Instant,
};
use tch::{Device, Kind, Tensor};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Number of bytes per system call in `raw`.
const RAW_BYTES: usize = 16 << 20;

struct Bench {
    rank: u32,
    world: usize,
    items: Vec<Named>,
    /// Tensors that a checkpoint is loaded into.
    others: Vec<Named>,
    /// Table of the shard that was saved last.
    table: ShardTable,
    staging: Staging,
    /// Ticket of the snapshot that was staged last.
    ticket: u64,
    page: ControlPage<'static>,
    threads: usize,
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let (numbers, device) = arguments.split_at(arguments.len().min(4));
    let numbers: Vec<u64> = numbers.iter().map(|text| text.parse()).collect::<Result<_, _>>()?;
    let [rank, world, bytes, tensors] = numbers[..] else {
        return Err("usage: RANK WORLD BYTES TENSORS [cuda]".into());
    };
    let elements = (bytes / world / tensors / 4).cast_signed();
    let device = if device.is_empty() { Device::Cpu } else { Device::Cuda(usize::try_from(rank)?) };
    let name = |index: u64| format!("model.rank{rank}.layer{index:05}.weight");
    let tensor = |_| Tensor::f_rand([elements], (Kind::Float, device));
    let items = (0..tensors).map(|index| Ok(Named { fqn: name(index), tensor: tensor(index)? }));
    let items = items.collect::<Outcome<Vec<_>>>()?;
    let words: &'static [AtomicU64] = Box::leak((0..PAGE_BYTES / 8).map(|_| AtomicU64::new(0)).collect());
    let page = ControlPage::create(words)?;
    let file = File::from(memfd_create("checkpoint_speed", MFdFlags::MFD_CLOEXEC)?);
    file.set_len(PAGE_BYTES as u64)?;
    let staging = Staging::new(StagingMemory { file, page }, device);
    let world = usize::try_from(world)?;
    let threads = How::shared_by(world).threads;
    let others = Vec::new();
    let table = ShardTable::default();
    let mut bench =
        Bench { rank: u32::try_from(rank)?, world, items, others, table, staging, ticket: 0, page, threads };
    println!("0");
    std::io::stdout().flush()?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let began = Instant::now();
        bench.obey(&line.split(' ').collect::<Vec<_>>())?;
        println!("{}", began.elapsed().as_secs_f64());
        std::io::stdout().flush()?;
    }
    Ok(())
}

impl Bench {
    fn obey(&mut self, order: &[&str]) -> Outcome<()> {
        match order {
            ["raw", file] => self.raw(Path::new(file)),
            ["save", dir] => {
                let share = ShardContent::of(&self.items, &[], 0, 1)?;
                let table = save::write(Path::new(dir), self.rank, &share, How::shared_by(self.world))?;
                if self.rank > 0 {
                    fs::write(format!("{dir}.{}.json", self.rank), serde_json::to_vec(&table)?)?;
                }
                self.table = table;
                Ok(())
            }
            ["commit", dir, committed, world] => {
                let table = |rank: u32| -> Outcome<ShardTable> {
                    Ok(serde_json::from_slice(&fs::read(format!("{dir}.{rank}.json"))?)?)
                };
                let mut tables = vec![std::mem::take(&mut self.table)];
                tables.extend((1..world.parse()?).map(table).collect::<Outcome<Vec<_>>>()?);
                commit(Path::new(dir), Path::new(committed), &tables, Draft { step: 1, ..Draft::default() })?;
                Ok(())
            }
            ["copy"] => {
                for (item, other) in self.items.iter().zip(&mut self.others) {
                    let to = host_bytes_mut(&mut other.tensor).unwrap_or_default();
                    to.copy_from_slice(host_bytes(&item.tensor).unwrap_or_default());
                }
                Ok(())
            }
            ["open", dir] => {
                Checkpoint::open(Path::new(dir))?;
                Ok(())
            }
            ["load", dir] => {
                let wanted: Vec<_> =
                    self.items.iter().map(|n| (n.fqn.clone(), n.tensor.size(), n.tensor.kind())).collect();
                load_part(Path::new(dir), &wanted, &[])?;
                Ok(())
            }
            ["room"] => {
                let other = |item: &Named| -> Outcome<Named> {
                    Ok(Named { fqn: item.fqn.clone(), tensor: item.tensor.f_zeros_like()?.f_fill_(1.0)? })
                };
                self.others = self.items.iter().map(other).collect::<Outcome<Vec<_>>>()?;
                Ok(())
            }
            ["prepare"] => Ok(self.staging.prepare(ShardContent::of(&self.items, &[], 0, 1)?.layout.bytes)?),
            ["stage"] => {
                let share = ShardContent::of(&self.items, &[], 0, 1)?;
                let index = self.staging.free().ok_or("no snapshot is free")?;
                self.ticket = self.staging.stage(index, &share, self.threads)?.ticket;
                Ok(())
            }
            ["arrive"] => {
                self.staging.finish()?;
                self.page.give_back(self.ticket);
                Ok(())
            }
            ["into", dir] => Ok(load_into(
                &Checkpoint::open(Path::new(dir))?,
                self.others.iter_mut().map(|n| (n.fqn.as_str(), &mut n.tensor)),
            )?),
            ["read", file] => self.read(Path::new(file)),
            _ => Err(format!("found {order:?}, expected an order").into()),
        }
    }

    /// Returns the state's bytes in memory.
    fn bytes(&self) -> impl Iterator<Item = &[u8]> {
        self.items.iter().filter_map(|item| host_bytes(&item.tensor))
    }

    fn raw(&self, path: &Path) -> Outcome<()> {
        let mut file = File::create(path)?;
        for bytes in self.bytes() {
            for part in bytes.chunks(RAW_BYTES) {
                file.write_all(part)?;
            }
        }
        Ok(file.sync_all()?)
    }

    /// Reads a file with the bytes of the share into memory.
    fn read(&mut self, path: &Path) -> Outcome<()> {
        let mut file = File::open(path)?;
        for item in &mut self.others {
            file.read_exact(host_bytes_mut(&mut item.tensor).unwrap_or_default())?;
        }
        Ok(())
    }
}
