//! Shares of a state on a GPU, left in memory that it copies to by itself.

use crate::cuda::operands::device;
use enn_common::{
    checkpoint::write::{How, write_shard},
    fs::{Disk, mmap::SharedPart},
    wire::control::{ControlPage, PAGE_BYTES},
};
use enn_worker::checkpoint::{
    Named, ShardContent,
    staging::{Staging, StagingMemory},
    write_share,
};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::sync::atomic::AtomicU64;
use tch::{Device, Kind, Tensor};

fn staging(device: Device) -> (Staging, std::fs::File, ControlPage<'static>) {
    let words: &'static [AtomicU64] = Box::leak((0..PAGE_BYTES / 8).map(|_| AtomicU64::new(0)).collect());
    // As the launcher's: pages of a file on a disk may not be held for long.
    let file = std::fs::File::from(memfd_create("staging", MFdFlags::MFD_CLOEXEC).unwrap());
    file.set_len(PAGE_BYTES as u64).unwrap();
    let page = ControlPage::create(words).unwrap();
    (Staging::new(StagingMemory { file: file.try_clone().unwrap(), page }, device), file, page)
}

#[test]
fn a_share_is_copied_by_the_device_itself() {
    let Some(device) = device() else { return };
    let (mut staging, file, page) = staging(device);
    let dir = tempfile::tempdir().unwrap();
    // The second does not fit where the first was: its memory is unlocked, given back and made anew.
    for (rows, rank) in [(700, 0), (6_000, 1), (10, 0)] {
        let random = |shape: &[i64]| Tensor::rand(shape, (Kind::Float, device));
        let items = [
            Named::of("model.a", &random(&[rows, 1000])),
            Named::of("model.turned", &random(&[70, 30]).transpose(0, 1)),
            Named::of("model.half", &random(&[33]).to_kind(Kind::BFloat16)),
            Named::of("step", &Tensor::from(3.5f64)),
        ];
        let share = ShardContent::of(&items, &[], rank, 2).unwrap();
        staging.prepare(share.layout.bytes).unwrap();
        let index = staging.free().unwrap();
        let left = staging.stage(index, &share, 2).unwrap();
        assert!(staging.is_pinned(index) && left.pending, "{rows} rows: {:?}", staging.unlocked());
        staging.finish().unwrap();
        assert!(staging.is_pinned(index) && staging.is_filled() && staging.copying().is_none());
        let part = SharedPart::of(&file, left.at, share.layout.bytes as usize, false).unwrap();
        let payloads: Vec<&[u8]> = share
            .layout
            .spans
            .iter()
            .map(|span| &part.bytes()[span.payload_at as usize..][..span.payload as usize])
            .collect();
        let staged = dir.path().join("staged");
        let table =
            write_shard(&Disk, &staged, rank, &share.layout, &payloads, How { threads: 1, blake3: false }).unwrap();
        let plain = dir.path().join("plain");
        assert_eq!(write_share(&plain, rank, 2, &items).unwrap(), table);
        page.give_back(left.ticket);
    }
}

#[test]
fn what_holds_for_a_copy_may_change_what_is_copied() {
    let Some(device) = device() else { return };
    let (mut staging, file, page) = staging(device);
    // Much, so that the device would change it long before it is copied if it did not hold.
    let weight = Tensor::ones([64 << 20], (Kind::Float, device));
    let small = Tensor::ones([3], (Kind::Float, device));
    let items = [Named::of("weight", &weight), Named::of("small", &small)];
    let share = ShardContent::of(&items, &[], 0, 1).unwrap();
    staging.prepare(share.layout.bytes).unwrap();
    for round in 1..=5u32 {
        let _ = weight.shallow_clone().fill_(f64::from(round));
        let _ = small.shallow_clone().fill_(f64::from(round));
        let index = staging.free().unwrap();
        let left = staging.stage(index, &share, 2).unwrap();
        assert!(left.pending);
        staging.copying().unwrap().hold().unwrap();
        let _ = weight.shallow_clone().fill_(-1.0);
        let _ = small.shallow_clone().fill_(-1.0);
        staging.finish().unwrap();
        let part = SharedPart::of(&file, left.at, share.layout.bytes as usize, false).unwrap();
        for span in &share.layout.spans {
            let bytes = &part.bytes()[span.payload_at as usize..][..span.payload as usize];
            let other = bytes
                .chunks_exact(4)
                .find(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) != round as f32);
            assert_eq!(other, None, "round {round}");
        }
        page.give_back(left.ticket);
    }
}

#[test]
fn memory_that_cannot_be_locked_serves_all_the_same() {
    if device().is_none() {
        return;
    }
    // A device that is not there.
    let (mut staging, _, _) = staging(Device::Cuda(tch::Cuda::device_count() as usize));
    let items = [Named::of("a", &Tensor::ones([5], (Kind::Float, Device::Cuda(0))))];
    let share = ShardContent::of(&items, &[], 0, 1).unwrap();
    staging.stage(0, &share, 1).unwrap();
    assert!(staging.unlocked().is_some() && !staging.is_pinned(0));
    assert!(staging.unlocked().is_none(), "told once");
}
