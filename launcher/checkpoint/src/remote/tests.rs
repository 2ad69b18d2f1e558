use super::*;
use crate::convert::Pair;
use enn_common::{
    checkpoint::{
        Checkpoint, Draft, ShardWriter, TensorDType, commit, listing, metadata::StoredPlace, name, retain::Rule,
    },
    fs::RelPath,
};
use object_store::{memory::InMemory, path::Path as Key};
use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

/// A run with one checkpoint of a step, larger than a part of an upload.
fn run(root: &Path, step: u64, fill: u8) -> PathBuf {
    run_of(root, step, fill, fill)
}

/// The same with a large tensor full of one number and a small one full of another.
fn run_of(root: &Path, step: u64, large: u8, small: u8) -> PathBuf {
    let checkpoints = root.join("checkpoints");
    let temporary = checkpoints.join(name::temporary(step, "a"));
    let mut shard = ShardWriter::create(&temporary, 0).unwrap();
    shard.whole("best.w", TensorDType::U8, &[9 << 20], &vec![large; 9 << 20]).unwrap();
    let mut other = ShardWriter::create(&temporary, 1).unwrap();
    other.whole("best.v", TensorDType::U8, &[3], &[small; 3]).unwrap();
    let tables = [shard.finish().unwrap(), other.finish().unwrap()];
    fs::write(root.join("run.json"), "{}").unwrap();
    commit(&temporary, &checkpoints.join(name::committed(step)), &tables, Draft { step, ..Draft::default() })
        .unwrap()
        .path
}

fn memory() -> Store {
    let memory = Arc::new(InMemory::new());
    Store::of(memory.clone(), Some(memory), Key::from("runs/a"), "memory://runs/a").unwrap()
}

fn quiet(_: u64, _: u64) {}

#[test]
fn a_run_goes_up_and_comes_back_whole() {
    let dir = tempfile::tempdir().unwrap();
    run(dir.path(), 10, 1);
    run(dir.path(), 20, 2);
    fs::write(dir.path().join("events.jsonl"), "there\n").unwrap();
    for store in [memory(), Store::open(&dir.path().join("remote_runs").display().to_string()).unwrap()] {
        let pushed = push_run(dir.path(), &store, true, false, &mut quiet).unwrap();
        assert_eq!(pushed.iter().map(|one| (one.step, one.sent)).collect::<Vec<_>>(), [(10, 3), (20, 3)]);
        let again = push_run(dir.path(), &store, true, false, &mut quiet).unwrap();
        assert_eq!(again.iter().map(|one| (one.sent, one.present)).collect::<Vec<_>>(), [(0, 3), (0, 3)]);
        let back = tempfile::tempdir().unwrap();
        let target = back.path().join("run");
        let pulled = pull(&store, None, &target, false, &mut quiet).unwrap();
        assert_eq!((pulled.step, pulled.files), (Some(20), 3));
        let open = Checkpoint::open(&target.join("checkpoints/step-00000020")).unwrap();
        assert_eq!(open.tensor("best.v").unwrap().bytes, [2; 3]);
        open.verify(&mut |_| {}).unwrap();
        assert!(target.join("run.json").exists());
        assert_eq!(fs::read(target.join("events.jsonl")).unwrap(), b"there\n");
        fs::write(target.join("events.jsonl"), "here\n").unwrap();
        let older = pull(&store, Some(10), &target, false, &mut quiet).unwrap();
        assert_eq!(older.step, Some(10));
        assert_eq!(fs::read(target.join("events.jsonl")).unwrap(), b"here\n");
        assert!(pull(&store, Some(11), &target, false, &mut quiet).unwrap_err().to_string().contains("step-00000011"));
        let hidden = fs::read_dir(target.join("checkpoints")).unwrap().flatten();
        assert_eq!(hidden.filter(|entry| entry.file_name().to_string_lossy().starts_with('.')).count(), 0);
    }
}

#[test]
fn an_interrupted_upload_goes_on_and_is_no_checkpoint_before() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = run(dir.path(), 10, 1);
    let store = memory();
    // The files before the one that failed, as an upload that was cut off leaves them.
    let below = store.below("step-00000010");
    for file in [".metadata", "__0_0.distcp"] {
        let digest =
            Checkpoint::whole(&checkpoint).unwrap().files.into_iter().find(|one| one.path == file).unwrap().digest();
        upload::upload(&below, &checkpoint.join(file), file, None, &mut |_| {}).unwrap();
        below.put(&format!(".pushed/{file}"), digest.into_bytes()).unwrap();
    }
    let error = pull(&below, None, &dir.path().join("half"), false, &mut quiet).unwrap_err().to_string();
    assert!(error.contains("__1_0.distcp") && !dir.path().join("half").exists(), "{error}");
    let done = push(&checkpoint, &store, false, &mut quiet).unwrap();
    assert_eq!((done.sent, done.present), (1, 2));
    let (objects, folders) = below.list().unwrap();
    assert_eq!((objects.len(), folders.len()), (4, 0), "the notes are gone: {objects:?} {folders:?}");
}

#[test]
fn another_checkpoint_of_the_same_step_is_only_replaced_when_it_may_be() {
    let dir = tempfile::tempdir().unwrap();
    let other = tempfile::tempdir().unwrap();
    let one = run(dir.path(), 10, 1);
    let two = run(other.path(), 10, 2);
    let store = memory();
    push(&one, &store, false, &mut quiet).unwrap();
    assert!(matches!(push(&two, &store, false, &mut quiet), Err(RemoteError::Exists { .. })));
    push(&two, &store, true, &mut quiet).unwrap();
    let target = dir.path().join("copy");
    pull(&store, None, &target, false, &mut quiet).unwrap();
    assert_eq!(Checkpoint::open(&target).unwrap().tensor("best.v").unwrap().bytes, [2; 3]);
    let below = store.below("step-00000010");
    assert!(matches!(pull(&below, None, &one, false, &mut quiet), Err(RemoteError::Exists { .. })));
}

#[test]
fn what_a_disk_says_of_a_directory_is_the_machines() {
    let dir = tempfile::tempdir().unwrap();
    let one = run(dir.path(), 10, 1);
    fs::write(dir.path().join("file"), "").unwrap();
    let store = Store::open(&format!("file://{}/file/remote_runs", dir.path().display())).unwrap();
    let error = push(&one, &store, false, &mut quiet).unwrap_err();
    assert!(
        matches!(&error, RemoteError::File(error) if error.to_string().contains("/file/remote_runs/step-00000010/")),
        "{error:?}"
    );
}

#[test]
fn a_place_has_the_same_objects_whether_it_is_named_at_once_or_step_by_step() {
    let dir = tempfile::tempdir().unwrap();
    let one = run(dir.path(), 10, 1);
    for name in ["plain", "a b", "a~b", "[x]", "ü", "a%20b"] {
        let remote_runs = Store::open(&dir.path().display().to_string()).unwrap();
        let whole = Store::open(&dir.path().join(name).display().to_string()).unwrap();
        push(&one, &whole, false, &mut quiet).unwrap();
        assert!(dir.path().join(name).is_dir(), "{name}");
        let steps: Vec<u64> = list(&remote_runs.below(name)).unwrap().iter().map(|found| found.step).collect();
        assert_eq!(steps, [10], "{name}");
    }
}

#[test]
fn an_interrupted_fetch_goes_on_and_damage_is_never_named_a_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = run(dir.path(), 10, 1);
    let store = memory();
    push(&checkpoint, &store, false, &mut quiet).unwrap();
    let target = dir.path().join("copy");
    let beside = dir.path().join(".copy.pull");
    fs::create_dir(&beside).unwrap();
    let bytes = fs::read(checkpoint.join("__0_0.distcp")).unwrap();
    fs::write(beside.join("__0_0.distcp"), &bytes[..5 << 20]).unwrap();
    fs::write(beside.join("stale"), "x").unwrap();
    let pulled = pull(&store, None, &target, false, &mut quiet).unwrap();
    assert_eq!(pulled.resumed, 5 << 20);
    assert_eq!(fs::read_dir(&target).unwrap().count(), 4);

    let below = store.below("step-00000010");
    let mut damaged = bytes;
    damaged[1 << 20] ^= 1;
    below.put("__0_0.distcp", damaged).unwrap();
    let target = dir.path().join("other");
    let error = pull(&store, None, &target, false, &mut quiet).unwrap_err().to_string();
    assert!(error.contains("__0_0.distcp") && (error.contains("blake3") || error.contains("CRC-32")), "{error}");
    assert!(!target.exists());
}

#[test]
fn addresses_hold_no_credentials_and_messages_no_signatures() {
    for address in ["s3://key:secret@bucket/x", "az://box/x?sig=secret", "ftp://host/x", "s3:///x"] {
        let error = Store::open(address).map(|_| ()).unwrap_err().to_string();
        assert!(!error.contains("secret") && error.contains("expected s3://BUCKET/PATH"), "{error}");
    }
    let told = super::error::scrub("error sending request for https://a.b/c?sig=secret&se=1 after 3 tries");
    assert_eq!(told, "error sending request for https://a.b/c?… after 3 tries");
}

#[test]
fn a_mirror_has_the_newest_checkpoint_when_it_ends() {
    let dir = tempfile::tempdir().unwrap();
    let remote_runs = dir.path().join("remote_runs");
    fs::write(dir.path().join("events.jsonl"), "begun\n").unwrap();
    let told = Arc::new(Mutex::new(Vec::new()));
    let mirror = |address: &Path| {
        let told = told.clone();
        let targets = vec![UploadTarget { address: address.display().to_string(), retention: None }];
        Mirror::start(dir.path(), targets, move |what| told.lock().unwrap().push(what)).unwrap()
    };
    let first = mirror(&remote_runs);
    for step in [10, 20] {
        let path = run(dir.path(), step, step as u8);
        first.offer(&path);
        // The run lets it go while it is on its way.
        fs::remove_dir_all(&path).unwrap();
    }
    drop(first);
    assert_eq!(*told.lock().unwrap(), Vec::<String>::new());
    let open = Checkpoint::open(&remote_runs.join("checkpoints/step-00000020")).unwrap();
    assert_eq!(open.tensor("best.v").unwrap().bytes, [20; 3]);
    assert_eq!(fs::read(remote_runs.join("events.jsonl")).unwrap(), b"begun\n");
    let blocked = dir.path().join("file");
    fs::write(&blocked, "x").unwrap();
    let second = mirror(&blocked);
    second.offer(&run(dir.path(), 30, 3));
    drop(second);
    let told = told.lock().unwrap();
    assert!(told.len() == 1 && told[0].starts_with("step-00000030 is not uploaded: "), "{told:?}");
    assert_eq!(fs::read_dir(dir.path().join("checkpoints")).unwrap().count(), 1, "no links are left");
}

#[test]
fn of_a_checkpoint_at_an_address_no_more_comes_than_differs() {
    let dir = tempfile::tempdir().unwrap();
    let remote_runs = tempfile::tempdir().unwrap();
    let here = run_of(dir.path(), 10, 1, 2);
    run_of(remote_runs.path(), 20, 1, 3);
    let store = memory();
    push_run(remote_runs.path(), &store, true, false, &mut quiet).unwrap();
    let outline = |name: &str| Outline::open(&store, &dir.path().join(name)).unwrap();
    let room = |outline: &Outline, file: &str| fs::metadata(outline.dir().join(file)).unwrap().blocks();

    // What is told without reading tensors needs none of their files.
    let shown = outline("shown");
    assert_eq!(shown.address(), "memory://runs/a/checkpoints/step-00000020");
    let told = listing::show(&listing::find(shown.dir()).unwrap());
    assert_eq!(told.manifest.unwrap().step, 20);
    assert_eq!(
        told.tensors.iter().map(|one| (&*one.name, one.shape[0])).collect::<Vec<_>>(),
        [("best.v", 3), ("best.w", 9 << 20)]
    );
    assert_eq!([room(&shown, "__0_0.distcp"), room(&shown, "__1_0.distcp")], [0, 0]);

    // The large tensor is the same by its checksum; whoever read it would find it damaged.
    let there = store.below("checkpoints/step-00000020");
    there.put("__0_0.distcp", vec![9; fs::metadata(here.join("__0_0.distcp")).unwrap().len() as usize]).unwrap();
    let compared = outline("compared");
    let mut pair = Pair::open(&here, compared.dir()).unwrap();
    let [_, places] = pair.trust_checksums();
    let mut brought = 0;
    compared.fetch(&places, &mut |done, _| brought = done).unwrap();
    assert!((1..1 << 16).contains(&brought), "{brought}");
    assert_eq!(room(&compared, "__0_0.distcp"), 0);
    let found = pair.diff(0.0, &mut quiet).unwrap();
    let values: Vec<_> = found.values.iter().map(|one| (&*one.name, one.differing, one.max_abs)).collect();
    assert_eq!((found.equal, values), (1, vec![("best.v", 3, None)]));

    // What was not brought is not taken for anything.
    let error = Checkpoint::open(shown.dir()).unwrap().tensor("best.v").unwrap_err();
    assert!(error.is_damage(), "{error}");
    // An older one, when the newest is not whole.
    there.remove("__1_0.distcp").unwrap();
    let error = Outline::open(&store, &dir.path().join("none")).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("__1_0.distcp"), "{error}");
}

#[test]
fn places_of_a_file_that_lie_together_come_together() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = run(dir.path(), 10, 1);
    let store = memory();
    push(&checkpoint, &store, false, &mut quiet).unwrap();
    let outline = Outline::open(&store, &dir.path().join("outline")).unwrap();
    let of = |file: &str| RelPath::parse(file).unwrap();
    let place = |offset, length| StoredPlace { file: of("__0_0.distcp"), offset, length, transforms: Vec::new() };
    // Said to lie beyond the end, in a file that is not listed, nowhere.
    let odd = [place(u64::MAX - 1, u64::MAX), StoredPlace { file: of("run.json"), ..place(0, 9) }, place(5, 0)];
    let places = [place(8 << 20, 1 << 40), place(4096, 4096), place(0, 100), place(6000, 10)];
    let mut told = Vec::new();
    outline.fetch(&[&places[..], &odd].concat(), &mut |done, total| told.push((done, total))).unwrap();
    let bytes = fs::metadata(checkpoint.join("__0_0.distcp")).unwrap().len();
    let total = 8192 + bytes - (8 << 20);
    assert_eq!(told, [(8192, total), (total, total)]);
    let [ours, theirs] = [&*checkpoint, outline.dir()].map(|dir| fs::read(dir.join("__0_0.distcp")).unwrap());
    assert!(ours[..8192] == theirs[..8192] && ours[8 << 20..] == theirs[8 << 20..]);
    assert!(theirs[8192..8 << 20].iter().all(|byte| *byte == 0));
}

const NAME: &str = "a-20260101T000000Z-0001";

/// The runs in `root`, as a machine of its own sees it.
fn machine(root: &Path, name: &str) -> RemoteRuns {
    RemoteRuns::open(&format!("file://{}/remote_runs", root.display()), &root.join(name)).unwrap()
}

fn steps(run: &Path) -> Vec<u64> {
    name::list(&run.join("checkpoints")).into_iter().map(|(step, _)| step).collect()
}

#[test]
fn a_run_at_an_address_is_found_fetched_and_gone_on_with_on_another_machine() {
    let root = tempfile::tempdir().unwrap();
    let one = machine(root.path(), "one");
    let two = machine(root.path(), "two");
    let first = one.dir().join(NAME);
    assert!(matches!(one.find("latest", true).unwrap(), Err(known) if known.is_empty()));
    run(&first, 10, 1);
    fs::write(first.join("events.jsonl"), "begun\n").unwrap();
    assert_eq!(RemoteRuns::address_of(&first), Some(format!("{}/{NAME}", one.address())));
    assert_eq!(RemoteRuns::address_of(root.path()), None);
    upload_run(&first, &one.run_store(NAME), true).unwrap();

    for reference in [NAME, "a-2026", "latest"] {
        assert_eq!(two.find(reference, false).unwrap().unwrap(), NAME);
    }
    assert_eq!(two.find("b", false).unwrap().unwrap_err(), [NAME]);
    let second = two.fetch(NAME, false, &mut quiet).unwrap();
    assert_eq!((steps(&second), fs::read(second.join("events.jsonl")).unwrap()), (vec![], b"begun\n".to_vec()));
    assert_eq!(two.fetch(NAME, true, &mut quiet).unwrap(), second);
    assert_eq!(steps(&second), [10]);

    // The second machine goes on; the first one, which did not hear of it, too.
    run(&second, 20, 2);
    fs::write(second.join("events.jsonl"), "begun\nended\n").unwrap();
    upload_run(&second, &two.run_store(NAME), true).unwrap();
    run(&first, 30, 3);
    let refused = upload_run(&first, &one.run_store(NAME), true).unwrap_err().to_string();
    assert!(refused.contains("step-00000020") && refused.contains("another enn has continued"), "{refused}");
    assert_eq!(one.fetch(NAME, true, &mut quiet).unwrap(), first);
    assert_eq!(steps(&first), [20]);
    assert_eq!(fs::read(first.join("events.jsonl")).unwrap(), b"begun\nended\n");
    let aside = fs::read_dir(one.dir()).unwrap().flatten().map(|entry| entry.path());
    let aside: Vec<_> = aside.filter(|path| path.display().to_string().contains(".aside-")).collect();
    assert!(aside.len() == 1 && steps(&aside[0]) == [30, 10], "what was done here is kept: {aside:?}");
}

#[test]
fn what_did_not_come_to_the_address_is_gone_on_with_where_it_is() {
    let root = tempfile::tempdir().unwrap();
    let one = machine(root.path(), "one");
    let first = one.dir().join(NAME);
    run(&first, 10, 1);
    upload_run(&first, &one.run_store(NAME), true).unwrap();
    run(&first, 20, 2);
    fs::write(first.join("events.jsonl"), "here\n").unwrap();
    one.fetch(NAME, true, &mut quiet).unwrap();
    assert_eq!((steps(&first), fs::read(first.join("events.jsonl")).unwrap()), (vec![20, 10], b"here\n".to_vec()));
    // A process that was killed had no time to note what it uploaded.
    fs::remove_file(first.join(".stored")).unwrap();
    upload_run(&first, &one.run_store(NAME), true).unwrap();
    assert_eq!(
        list(&one.run_store(NAME)).unwrap().iter().map(|one| (one.step, one.complete)).collect::<Vec<_>>(),
        [(10, true), (20, true)]
    );
}

#[test]
fn a_home_lets_old_checkpoints_go_and_a_damaged_one_is_passed_over() {
    let root = tempfile::tempdir().unwrap();
    let one = machine(root.path(), "one");
    let first = one.dir().join(NAME);
    let place = one.run_store(NAME);
    // What a machine that is gone had begun.
    place.below("checkpoints/step-00000005").put("__0_0.distcp", vec![1]).unwrap();
    for step in [10, 20, 30] {
        let told = Arc::new(Mutex::new(Vec::new()));
        let hears = told.clone();
        let target = UploadTarget { address: format!("{}/{NAME}", one.address()), retention: Some(Rule::last(1)) };
        let mirror = Mirror::start(&first, vec![target], move |what| hears.lock().unwrap().push(what)).unwrap();
        mirror.offer(&run(&first, step, step as u8));
        drop(mirror);
        assert_eq!(*told.lock().unwrap(), Vec::<String>::new());
    }
    assert_eq!(list(&place).unwrap().iter().map(|one| one.step).collect::<Vec<_>>(), [20, 30]);
    let newest = place.below("checkpoints/step-00000030");
    let mut bytes = newest.small("__0_0.distcp", u64::MAX).unwrap().unwrap();
    bytes[1 << 20] ^= 1;
    newest.put("__0_0.distcp", bytes).unwrap();
    let copy = machine(root.path(), "two").fetch(NAME, true, &mut quiet).unwrap();
    assert_eq!(steps(&copy), [20]);
    newest.remove("__1_0.distcp").unwrap();
    let listed = list(&place).unwrap();
    assert!(!listed[1].complete && listed[1].reason.as_ref().unwrap().contains("__1_0.distcp"), "{listed:?}");
}

#[test]
fn an_address_names_a_run_below_a_place() {
    let cache = tempfile::tempdir().unwrap();
    for address in ["s3://bucket", "s3://bucket/", "file:///"] {
        let error = RemoteRuns::of_run(address, cache.path()).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("names no run"), "{address}: {error}");
    }
}
