//! What is committed can be read, whole and in part; what does not fit together is refused.

use crate::fixture::{checkpoint, draft, pattern, w, write_shards};
use enn_common::{
    checkpoint::{
        Checkpoint, Region, TensorDType, commit, latest, name, prune,
        prune::{remove, verdicts, verdicts_with_progress},
        remove_leftovers,
        retain::Rule,
        value::Value,
    },
    fs::Disk,
};
use proptest::prelude::*;
use std::{fs, path::Path};

#[test]
fn every_division_reads_back() {
    for world in [1, 2, 3, 7] {
        let root = tempfile::tempdir().unwrap();
        let path = checkpoint(root.path(), world, 12);
        let found = Checkpoint::open(&path).unwrap();
        let tensor = found.tensor("model.w").unwrap();
        assert_eq!((tensor.dtype, tensor.shape.as_slice()), (TensorDType::F32, &[7, 5][..]));
        assert_eq!(tensor.bytes, w(12));
        assert_eq!(found.tensor("model.big").unwrap().bytes, pattern(13, 160_000));
        assert_eq!(found.tensor("progress.step").unwrap().bytes, 12u64.to_le_bytes());
        assert_eq!(found.tensor("model.empty").unwrap().shape, [0, 4]);
        assert_eq!(found.value("progress.note").unwrap().get("step"), Some(&Value::Int(12)));
        for &dtype in TensorDType::ALL {
            let tensor = found.tensor(&format!("types.{}", dtype.torch())).unwrap();
            assert_eq!((tensor.dtype, tensor.bytes.len() as u64), (dtype, 6 * dtype.bytes()));
        }
        let mut read = 0;
        found.verify(&mut |bytes| read += bytes).unwrap();
        let manifest = found.manifest().unwrap();
        assert_eq!((manifest.step, manifest.world, manifest.bytes()), (12, world, read));
    }
}

#[test]
fn parts_read_only_what_is_asked() {
    let root = tempfile::tempdir().unwrap();
    let found = Checkpoint::open(&checkpoint(root.path(), 3, 1)).unwrap();
    let all = w(1);
    for (offsets, sizes) in [([0, 0], [7, 5]), ([1, 2], [5, 3]), ([6, 4], [1, 1]), ([2, 0], [3, 5]), ([0, 0], [0, 5])] {
        let part = Region { offsets: offsets.to_vec(), sizes: sizes.to_vec() };
        let rows = offsets[0]..offsets[0] + sizes[0];
        let cells = rows.flat_map(|row| (offsets[1]..offsets[1] + sizes[1]).map(move |column| row * 5 + column));
        let expected: Vec<u8> = cells.flat_map(|cell| all[cell as usize * 4..cell as usize * 4 + 4].to_vec()).collect();
        assert_eq!(found.tensor_box("model.w", &part).unwrap().bytes, expected, "{part:?}");
    }
    let outside = Region { offsets: vec![6, 0], sizes: vec![2, 5] };
    assert!(found.tensor_box("model.w", &outside).unwrap_err().to_string().contains("[7, 5]"));
    assert!(found.tensor("model.nothing").unwrap_err().to_string().contains("holds no tensor model.nothing"));
    assert!(found.read_into("model.w", &mut [0; 3]).unwrap_err().to_string().contains("it has 140"));
}

#[test]
fn large_payloads_begin_at_a_page() {
    let root = tempfile::tempdir().unwrap();
    let path = checkpoint(root.path(), 1, 3);
    let bytes = fs::read(path.join("__0_0.distcp")).unwrap();
    let payload = pattern(4, 160_000);
    let at = bytes.windows(64).position(|window| window == &payload[..64]).unwrap();
    assert_eq!(at % 4096, 0);
}

#[test]
fn shards_that_do_not_fit_are_refused_and_nothing_is_committed() {
    let root = tempfile::tempdir().unwrap();
    let temporary = root.path().join(name::temporary(5, "a"));
    let committed = root.path().join(name::committed(5));
    let tables = write_shards(&Disk, &temporary, 3, 5);
    let refused = |tables: &[_]| commit(&temporary, &committed, tables, draft(5)).unwrap_err().to_string();
    assert!(refused(&tables[..2]).contains("tensor model.w: the boxes hold 20 of the 35"), "{}", refused(&tables[..2]));
    let mut twice = tables.clone();
    let mine = twice[0].items[0].clone();
    twice[1].items.push(mine);
    assert!(refused(&twice).contains("overlap"), "{}", refused(&twice));
    let mut other = tables.clone();
    other[1].bytes += 1;
    assert!(refused(&other).contains("its writer said"), "{}", refused(&other));
    let mut away = tables.clone();
    away[1].file = "../x".into();
    assert!(refused(&away).contains("not a plain file name"), "{}", refused(&away));
    assert!(!committed.exists());
    commit(&temporary, &committed, &tables, draft(5)).unwrap();
    Checkpoint::open(&committed).unwrap();
}

#[test]
fn the_same_step_again_replaces_the_old_one() {
    let root = tempfile::tempdir().unwrap();
    checkpoint(root.path(), 3, 5);
    let path = checkpoint(root.path(), 2, 5);
    assert_eq!(Checkpoint::open(&path).unwrap().manifest().unwrap().world, 2);
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
}

#[test]
fn the_newest_complete_one_is_found() {
    let root = tempfile::tempdir().unwrap();
    assert!(latest(root.path()).found.is_none());
    for step in [1, 2, 3] {
        checkpoint(root.path(), 2, step);
    }
    fs::remove_file(root.path().join("step-00000003/manifest.json")).unwrap();
    fs::OpenOptions::new()
        .write(true)
        .open(root.path().join("step-00000002/__1_0.distcp"))
        .unwrap()
        .set_len(9)
        .unwrap();
    let latest = latest(root.path());
    assert_eq!(latest.found.unwrap().manifest().unwrap().step, 1);
    let reasons: Vec<_> = latest.skipped.iter().map(|(_, error)| error.to_string()).collect();
    assert!(reasons[0].contains("has no manifest.json") && reasons[1].contains("9 bytes"), "{reasons:?}");
}

#[test]
fn pruning_keeps_the_newest_and_the_best() {
    let root = tempfile::tempdir().unwrap();
    for step in [1, 2, 3, 4] {
        checkpoint(root.path(), 1, step);
    }
    fs::create_dir(root.path().join(name::temporary(9, "dead"))).unwrap();
    assert_eq!(remove_leftovers(root.path()).unwrap().len(), 1);
    // The metric of the fixture is the step: step 1 is the best.
    let removed = prune(root.path(), Rule::last(1)).unwrap();
    assert_eq!(removed, [root.path().join("step-00000002")]);
    assert_eq!(name::list(root.path()).iter().map(|(step, _)| *step).collect::<Vec<_>>(), [4, 3, 1]);
}

#[test]
fn damaged_checkpoints_take_no_ones_place_so_that_the_last_good_one_stays() {
    let root = tempfile::tempdir().unwrap();
    for step in [1, 2, 3, 4, 5] {
        checkpoint(root.path(), 1, step);
    }
    // Of the best and the newest a shard is cut; of another one the manifest is gone.
    for step in [1, 5] {
        let shard = root.path().join(name::committed(step)).join("__0_0.distcp");
        fs::write(&shard, &fs::read(&shard).unwrap()[..100]).unwrap();
    }
    fs::remove_file(root.path().join("step-00000004/manifest.json")).unwrap();
    let judged = verdicts(root.path(), Rule::default());
    let told: Vec<_> = judged.iter().map(|one| (one.step, one.keeps)).collect();
    assert_eq!(told, [(1, true), (2, true), (3, true), (4, true), (5, true)], "{judged:?}");
    assert!(judged[0].reason.contains("damaged") && judged[1].reason.contains("best"), "{judged:?}");
    assert!(judged[2].reason.contains("newest"), "{judged:?}");
    assert!(prune(root.path(), Rule::default()).unwrap().is_empty());
    assert_eq!(latest(root.path()).found.unwrap().manifest().unwrap().step, 3);
}

fn flip(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    fs::write(path, bytes).unwrap();
}

#[test]
fn one_that_no_run_can_resume_from_is_not_the_newest() {
    let root = tempfile::tempdir().unwrap();
    // The metric of the fixture is the step: step 1 is the best.
    for step in [1, 2, 3] {
        checkpoint(root.path(), 1, step);
    }
    flip(&root.path().join("step-00000003/.metadata"));
    assert_eq!(latest(root.path()).found.unwrap().manifest().unwrap().step, 2);
    assert!(prune(root.path(), Rule::default()).unwrap().is_empty());
    // Elements are read where somebody asks for it.
    flip(&root.path().join("step-00000002/__0_0.distcp"));
    checkpoint(root.path(), 1, 0);
    let stays = |judged: &[prune::Judged]| judged.iter().map(|one| (one.step, one.keeps)).collect::<Vec<_>>();
    assert_eq!(stays(&verdicts(root.path(), Rule::default())), [(0, true), (1, false), (2, true), (3, true)]);
    let mut read = 0;
    let judged = verdicts_with_progress(root.path(), Rule::default(), &mut |_, bytes| read += bytes);
    assert_eq!(stays(&judged), [(0, true), (1, true), (2, true), (3, true)], "{judged:?}");
    assert!(judged[2].reason.contains("damaged") && judged[1].reason.contains("newest") && read > 0, "{judged:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn whatever_is_damaged_the_last_good_one_stays(
        damage in proptest::collection::vec(0u8..8, 1..6), last in 0usize..3, epochs in 0u64..3, hours in 0u8..2,
    ) {
        let root = tempfile::tempdir().unwrap();
        for (step, damage) in (1..).zip(&damage) {
            let path = checkpoint(root.path(), 1, step);
            match damage {
                0 => flip(&path.join(".metadata")),
                1 => flip(&path.join("manifest.json")),
                2 => fs::remove_file(path.join("manifest.json")).unwrap(),
                3 => fs::write(path.join("__0_0.distcp"), b"short").unwrap(),
                4 => flip(&path.join("__0_0.distcp")),
                _ => {}
            }
        }
        let good = |path: &Path| Checkpoint::open(path).is_ok_and(|found| found.verify(&mut |_| {}).is_ok());
        let newest = || name::list(root.path()).into_iter().find(|(_, path)| good(path));
        let (before, resumed) = (newest(), latest(root.path()).found.map(|found| found.dir().to_owned()));
        let rule = Rule { last, epochs, hours: f64::from(hours) };
        let judged = verdicts_with_progress(root.path(), rule, &mut |_, _| {});
        remove(root.path(), &judged).unwrap();
        prop_assert_eq!(newest(), before);
        prune(root.path(), rule).unwrap();
        prop_assert_eq!(latest(root.path()).found.map(|found| found.dir().to_owned()), resumed);
    }
}
