//! Every kind of damage becomes an error that names the file or the tensor; none is read as if nothing were.

use crate::fixture::{checkpoint, pattern, w};
use enn_common::checkpoint::{Checkpoint, ReadError, latest, set_aside};
use proptest::prelude::*;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Opens, reads every tensor and value, and compares with what was written. `None`: all is as it was.
fn read_all(dir: &Path, step: u64) -> Option<ReadError> {
    let found = match Checkpoint::open(dir) {
        Ok(found) => found,
        Err(error) => return Some(error),
    };
    for fqn in found.tensor_names() {
        match found.tensor(fqn) {
            Ok(tensor) if fqn == "model.w" => assert_eq!(tensor.bytes, w(step), "read wrong without an error"),
            Ok(tensor) if fqn == "model.big" => assert_eq!(tensor.bytes, pattern(step + 1, 160_000)),
            Ok(_) => {}
            Err(error) => return Some(error),
        }
    }
    found.metadata().values.keys().find_map(|fqn| found.value(fqn).err())
}

fn fresh() -> (tempfile::TempDir, PathBuf) {
    let root = tempfile::tempdir().unwrap();
    let path = checkpoint(root.path(), 2, 5);
    assert!(read_all(&path, 5).is_none());
    (root, path)
}

fn place_of(haystack: &[u8], needle: &[u8]) -> usize {
    haystack.windows(needle.len()).position(|window| window == needle).unwrap()
}

fn change(path: &Path, edit: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    edit(&mut bytes);
    fs::write(path, bytes).unwrap();
}

/// The error's sentence, after checking that there is one and that it names `words`.
fn refused(path: &Path, words: &[&str]) -> String {
    let error = read_all(path, 5).expect("damage was not seen").to_string();
    assert!(words.iter().all(|word| error.contains(word)), "{error}");
    error
}

#[test]
fn a_flipped_bit_of_a_payload_names_the_tensor() {
    let (_root, path) = fresh();
    change(&path.join("__0_0.distcp"), |bytes| {
        let at = place_of(bytes, &pattern(6, 64));
        bytes[at + 5000] ^= 1;
    });
    refused(&path, &["model.big", "__0_0.distcp", "CRC-32"]);
    let error = Checkpoint::open(&path).unwrap().verify(&mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("__0_0.distcp") && error.contains("CRC-32"), "{error}");
}

#[test]
fn only_what_is_damaged_is_set_aside_and_stays_so() {
    let (root, path) = fresh();
    let older = checkpoint(root.path(), 2, 4);
    let bad = path.join("__0_0.distcp");
    let good = path.join("__1_0.distcp");
    assert!(set_aside(&path, Some(&bad)).unwrap().is_none() && set_aside(&path, None).unwrap().is_none());
    change(&bad, |bytes| {
        let at = place_of(bytes, &pattern(6, 64));
        bytes[at + 5000] ^= 1;
    });
    let newest = || latest(root.path()).found.unwrap().dir().to_owned();
    assert!(set_aside(&path, Some(&good)).unwrap().is_none(), "that file is as it was written");
    assert_eq!(newest(), path);
    let told = set_aside(&path, Some(&bad)).unwrap().unwrap().to_string();
    assert!(told.contains("__0_0.distcp") && told.contains("CRC-32"), "{told}");
    assert_eq!(newest(), older);
    refused(&path, &["is set aside", "manifest.damaged.json"]);
    assert!(bad.exists() && set_aside(&path, Some(&bad)).unwrap().is_some());
    // The step can be saved again.
    assert_eq!(checkpoint(root.path(), 2, 5), path);
    assert!(read_all(&path, 5).is_none());
}

#[test]
fn zeroed_pages_are_seen() {
    let (_root, path) = fresh();
    change(&path.join("__0_0.distcp"), |bytes| {
        let at = place_of(bytes, &pattern(6, 64));
        bytes[at..at + 8192].fill(0);
    });
    refused(&path, &["model.big", "CRC-32"]);
    change(&path.join("__0_0.distcp"), |bytes| bytes.fill(0));
    refused(&path, &["model.big", "__0_0.distcp"]);
}

#[test]
fn a_shard_of_another_step_is_seen() {
    let (root, path) = fresh();
    let other = checkpoint(root.path(), 2, 6);
    fs::copy(other.join("__0_0.distcp"), path.join("__0_0.distcp")).unwrap();
    refused(&path, &["model.big", "belongs to another checkpoint"]);
}

#[test]
fn missing_and_cut_files_are_named() {
    let (_root, path) = fresh();
    for cut in [100_000, 4096, 400, 1, 0] {
        change(&path.join("__0_0.distcp"), |bytes| bytes.truncate(cut));
        refused(&path, &["__0_0.distcp", &format!("{cut} bytes")]);
    }
    fs::remove_file(path.join("__0_0.distcp")).unwrap();
    refused(&path, &["__0_0.distcp", "No such file"]);
    for cut in [100, 0] {
        let (_root, path) = fresh();
        change(&path.join(".metadata"), |bytes| bytes.truncate(cut));
        refused(&path, &[".metadata", &format!("{cut} bytes")]);
        fs::remove_file(path.join(".metadata")).unwrap();
        refused(&path, &[".metadata", "No such file"]);
    }
}

#[test]
fn manifest_and_metadata_are_guarded() {
    let (_root, path) = fresh();
    change(&path.join(".metadata"), |bytes| {
        let at = place_of(bytes, b"__1_0.distcp");
        bytes[at + 2] = b'0';
    });
    refused(&path, &[".metadata", "blake3"]);
    let (_root, path) = fresh();
    change(&path.join("manifest.json"), |bytes| {
        let at = place_of(bytes, b"\"step\": 5");
        bytes[at + 8] = b'6';
    });
    refused(&path, &["manifest.json", "changed after it was written"]);
    fs::write(path.join("manifest.json"), b"").unwrap();
    refused(&path, &["manifest.json", "too short"]);
    fs::remove_file(path.join("manifest.json")).unwrap();
    refused(&path, &["is not a complete checkpoint", "manifest.json"]);
}

#[test]
fn stale_shards_beside_the_listed_ones_are_ignored() {
    let (root, path) = fresh();
    let other = checkpoint(root.path(), 3, 6);
    fs::copy(other.join("__2_0.distcp"), path.join("__2_0.distcp")).unwrap();
    assert!(read_all(&path, 5).is_none());
}

/// A checkpoint without our manifest, so that nothing but the reader itself stands between the bytes and the tensors.
fn read_foreign(dir: &Path) {
    let Ok(found) = Checkpoint::open_dcp(dir) else { return };
    for fqn in found.tensor_names() {
        let _ = found.tensor(fqn);
    }
    for fqn in found.metadata().values.keys() {
        let _ = found.value(fqn);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    #[test]
    fn no_byte_can_change_unseen(place in any::<prop::sample::Index>(), flip in 1u8..=255, shard in 0usize..2) {
        let (_root, path) = fresh();
        let file = path.join(format!("__{shard}_0.distcp"));
        change(&file, |bytes| { let at = place.index(bytes.len()); bytes[at] ^= flip; });
        // A byte of padding or of an unused header field may be read over; then the data are right (`read_all` compares),
        // and `verify` still sees it.
        let _ = read_all(&path, 5);
        let seen = Checkpoint::open(&path).unwrap().verify(&mut |_| {}).is_err();
        prop_assert!(seen);
    }

    #[test]
    fn mutated_metadata_never_panics(places in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let (_root, path) = fresh();
        change(&path.join(".metadata"), |bytes| {
            for (place, byte) in &places { let at = place.index(bytes.len()); bytes[at] = *byte; }
        });
        read_foreign(&path);
    }

    #[test]
    fn mutated_shards_never_panic(places in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20)) {
        let (_root, path) = fresh();
        change(&path.join("__1_0.distcp"), |bytes| {
            for (place, byte) in &places { let at = place.index(bytes.len()); bytes[at] = *byte; }
        });
        read_foreign(&path);
    }

    #[test]
    fn cut_files_never_panic(place in any::<prop::sample::Index>(), which in 0usize..3) {
        let (_root, path) = fresh();
        let name = ["__0_0.distcp", "__1_0.distcp", ".metadata"][which];
        change(&path.join(name), |bytes| { let at = place.index(bytes.len()); bytes.truncate(at); });
        prop_assert!(read_all(&path, 5).is_some());
        read_foreign(&path);
    }
}
