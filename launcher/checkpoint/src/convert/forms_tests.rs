//! Every form into every other, without PyTorch; and the damage that each form can tell.

use super::{ConvertOptions, Outcome, Selection, Target, Verified, contents, convert, diff, verify};
use enn_common::{
    checkpoint::{DirectoryWriter, Element, PathPart, TensorDType, Value, name},
    fs::Disk,
};
use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

fn quiet(_: u64, _: u64) {}

/// A directory as PyTorch writes one: no manifest; a type that ENN does not compute with, a value, nesting.
fn dcp(path: &Path) {
    let mut writer = DirectoryWriter::create(&Disk, path, u64::MAX).unwrap();
    let floats: Vec<u8> = (0..600).flat_map(|number| (number as f32).to_le_bytes()).collect();
    writer.tensor("model.w", TensorDType::F32.into(), &[20, 30], &floats).unwrap();
    writer.tensor("model.f8", Element::of_torch("float8_e4m3fn").unwrap(), &[4], &[1, 2, 3, 4]).unwrap();
    writer.tensor("model.n", TensorDType::I64.into(), &[], &7i64.to_le_bytes()).unwrap();
    writer.value("optim.groups.0.lr", &Value::Float(0.5)).unwrap();
    let path = ["optim", "groups"].map(|key| PathPart::Key(key.into()));
    writer.path("optim.groups.0.lr", &[&path[..], &[PathPart::Index(0), PathPart::Key("lr".into())]].concat());
    writer.finish(None).unwrap();
}

fn source() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("source");
    dcp(&path);
    (dir, path)
}

fn options(form: Target) -> ConvertOptions {
    ConvertOptions { form: Some(form), shard_bytes: 1000, ..ConvertOptions::default() }
}

fn checked(path: &Path, deep: bool) -> Verified {
    verify(path, deep, &mut quiet).unwrap()
}

fn problem(path: &Path, words: &[&str]) {
    let found = checked(path, true);
    let fits = found.problems.iter().any(|problem| words.iter().all(|word| problem.contains(word)));
    assert!(fits, "{words:?}: {found:?}");
}

#[test]
fn every_form_holds_the_same() {
    let (dir, path) = source();
    let forms = [
        (Target::Safetensors, "a.safetensors"),
        (Target::Pt, "a.pt"),
        (Target::Shards, "shards"),
        (Target::Dcp, "dcp"),
        (Target::Enn, "enn"),
    ];
    for (form, name) in forms {
        let target = dir.path().join(name);
        let done = convert(&path, &target, &options(form), &mut quiet).unwrap();
        let plain = matches!(form, Target::Safetensors | Target::Shards);
        assert_eq!(
            (done.tensors, done.values, done.left_out.len()),
            (3, u64::from(!plain), usize::from(plain)),
            "{name}"
        );
        assert!(
            convert(&path, &target, &options(form), &mut quiet).unwrap_err().to_string().contains("is there already")
        );
        let found = checked(&target, true);
        assert!(found.problems.is_empty() && found.tensors == 3 && found.bytes == 2400 + 4 + 8, "{found:?}");
        for (second, other) in forms {
            let again = dir.path().join(format!("{name}-{other}"));
            convert(&target, &again, &options(second), &mut quiet).unwrap();
            let found = diff(&path, &again, 0.0, &mut quiet).unwrap();
            let lost = if matches!(second, Target::Safetensors | Target::Shards) || plain { 1 } else { 0 };
            assert_eq!(
                (found.equal, found.only_first.len(), found.values.len()),
                (3, lost, 0),
                "{name} {other}: {found:?}"
            );
        }
    }
    assert!(fs::read_dir(dir.path().join("dcp")).unwrap().count() > 2, "more than one shard");
    let shown = contents(&dir.path().join("a.pt")).unwrap();
    assert_eq!(shown.values, [("optim.groups.0.lr".to_owned(), "0.5".to_owned())]);
    assert_eq!(shown.tensors[0], ("model.f8".to_owned(), "float8_e4m3fn", vec![4]));
}

#[test]
fn names_are_chosen_and_types_changed() {
    let (dir, path) = source();
    let target = dir.path().join("half.safetensors");
    let select = Selection { only: vec!["model.w".into()], without: vec![], strip: Some("model".into()) };
    let options = ConvertOptions { select, dtype: Some(TensorDType::F16), ..ConvertOptions::default() };
    let done = convert(&path, &target, &options, &mut quiet).unwrap();
    assert_eq!((done.tensors, done.bytes), (1, 1200));
    assert_eq!(contents(&target).unwrap().tensors, [("w".to_owned(), "float16", vec![20, 30])]);
    let none = ConvertOptions {
        select: Selection { only: vec!["nothing".into()], ..Selection::default() },
        ..ConvertOptions::default()
    };
    assert!(convert(&path, &dir.path().join("x.pt"), &none, &mut quiet).unwrap_err().to_string().contains("--only"));
    let wrong =
        convert(&path, &dir.path().join("x.onnx"), &ConvertOptions::default(), &mut quiet).unwrap_err().to_string();
    assert!(wrong.contains("does not end like a form"), "{wrong}");
    assert!(!dir.path().join("x.pt").exists() && !dir.path().join("x.onnx").exists());
}

#[test]
fn differences_are_counted_and_measured() {
    let (dir, path) = source();
    let other = dir.path().join("other");
    let mut writer = DirectoryWriter::create(&Disk, &other, u64::MAX).unwrap();
    let floats: Vec<u8> =
        (0..600).flat_map(|number| (number as f32 + if number == 5 { 0.5 } else { 0.0 }).to_le_bytes()).collect();
    writer.tensor("model.w", TensorDType::F32.into(), &[20, 30], &floats).unwrap();
    writer.tensor("model.f8", Element::of_torch("float8_e4m3fn").unwrap(), &[2, 2], &[1, 2, 3, 4]).unwrap();
    writer.tensor("model.n", TensorDType::F32.into(), &[], &7f32.to_le_bytes()).unwrap();
    writer.tensor("model.more", TensorDType::F32.into(), &[], &7f32.to_le_bytes()).unwrap();
    writer.value("optim.groups.0.lr", &Value::Float(0.25)).unwrap();
    writer.finish(None).unwrap();
    let found = diff(&path, &other, 0.0, &mut quiet).unwrap();
    assert_eq!(
        found.values.iter().map(|one| (one.name.as_str(), one.differing, one.max_abs)).collect::<Vec<_>>()[1],
        ("model.w", 1, Some(0.5))
    );
    assert_eq!((found.shapes[0].0.as_str(), found.types[0].0.as_str()), ("model.f8", "model.n"));
    assert_eq!((found.only_second.as_slice(), found.plain.len()), (&["model.more".to_owned()][..], 1));
    let found = diff(&path, &other, 0.5, &mut quiet).unwrap();
    assert!(found.values.iter().all(|one| one.name != "model.w"), "{found:?}");
    assert!(diff(&path, &path, 0.0, &mut quiet).unwrap().is_empty());
}

fn change(path: &Path, edit: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    edit(&mut bytes);
    fs::write(path, bytes).unwrap();
}

fn place_of(bytes: &[u8], value: f32) -> usize {
    let pair = [value.to_le_bytes(), (value + 1.0).to_le_bytes()].concat();
    bytes.windows(8).position(|window| window == pair).unwrap()
}

#[test]
fn damage_that_pytorch_loads_without_a_word_is_named() {
    for zeros in [false, true] {
        let (_dir, path) = source();
        change(&path.join("__0_0.distcp"), |bytes| {
            let at = place_of(bytes, 100.0);
            if zeros { bytes[at..at + 400].fill(0) } else { bytes[at] ^= 1 }
        });
        problem(&path, &["model.w", "__0_0.distcp", "CRC-32"]);
    }
    let (_dir, path) = source();
    change(&path.join("__0_0.distcp"), |bytes| bytes.truncate(300));
    problem(&path, &["model.w", "__0_0.distcp"]);
    change(&path.join("__0_0.distcp"), |bytes| bytes.fill(0));
    problem(&path, &["model.w", "__0_0.distcp"]);
    fs::remove_file(path.join("__0_0.distcp")).unwrap();
    problem(&path, &["__0_0.distcp", "No such file"]);
    for length in [0, 10, 500] {
        let (_dir, path) = source();
        change(&path.join(name::METADATA), |bytes| bytes.truncate(length));
        problem(&path, &[".metadata", "cannot be understood"]);
    }
    let (_dir, path) = source();
    change(&path.join(name::METADATA), |bytes| {
        let at = bytes.windows(5).position(|window| window == b"1.0.0").unwrap();
        bytes[at..at + 5].copy_from_slice(b"9.9.9");
    });
    problem(&path, &[".metadata", "found version \"9.9.9\", expected 1"]);
    fs::remove_file(path.join(name::METADATA)).unwrap();
    let error = verify(&path, true, &mut quiet).unwrap_err().to_string();
    assert!(error.contains(&path.display().to_string()) && error.contains(".metadata"), "{error}");
    // What only the time tells: a file of another save that has the same items.
    let (_dir, path) = source();
    let (_other, other) = source();
    assert!(checked(&path, true).notes.is_empty() && checked(&path, true).outcome() == Outcome::Whole);
    let listed = fs::metadata(path.join(name::METADATA)).unwrap().modified().unwrap();
    fs::copy(other.join("__0_0.distcp"), path.join("__0_0.distcp")).unwrap();
    let copy = fs::File::options().write(true).open(path.join("__0_0.distcp")).unwrap();
    copy.set_modified(listed + Duration::from_secs(1)).unwrap();
    let found = checked(&path, true);
    assert!(
        found.outcome() == Outcome::Suspect && found.suspicions[0].contains("__0_0.distcp was written after .metadata"),
        "{found:?}"
    );
    let (_place, place) = source();
    let target = place.with_extension("safetensors");
    let done = convert(&path, &target, &ConvertOptions::default(), &mut quiet).unwrap();
    assert!(done.notes[0].contains("__0_0.distcp was written after .metadata"), "{done:?}");
    let differ = diff(&path, &target, 0.0, &mut quiet).unwrap();
    assert!(differ.suspicions[0].contains("__0_0.distcp was written after"), "{differ:?}");
    let (_dir, path) = source();
    fs::write(path.join("__7_0.distcp"), "stale").unwrap();
    let found = checked(&path, true);
    assert!(found.problems.is_empty() && found.notes[0].contains("__7_0.distcp"), "{found:?}");
    // A hole: what is listed covers half of the tensor.
    change(&path.join(name::METADATA), |bytes| {
        let at = bytes.windows(5).position(|window| window == [b'K', 20, b'K', 30, b't']).unwrap();
        bytes[at + 1] = 40;
    });
    problem(&path, &["model.w", "a part is missing"]);
}

#[test]
fn a_missing_or_stale_shard_of_safetensors_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let shard_of = |rank: usize, of: usize, more: &str| {
        let rows = 8 / of;
        let header = format!(
            r#"{{"__metadata__":{{"DCP_VERSION":"1.0","DCP_SHARDING_INFO":"{{\"w\":{{\"saved_offsets\":[{},0]{more}}}}}"}},"w":{{"dtype":"F32","shape":[{rows},2],"data_offsets":[0,{}]}}}}"#,
            rank * rows,
            rows * 8
        );
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.bytes());
        bytes.extend(vec![rank as u8; rows * 8]);
        fs::write(dir.path().join(format!("shard-{:05}-model-00001-of-00001.safetensors", rank + 1)), bytes).unwrap();
    };
    let shard = |rank, of| shard_of(rank, of, "");
    (0..4).for_each(|rank| shard(rank, 4));
    assert!(checked(dir.path(), true).problems.is_empty());
    let merged = dir.path().join("merged.pt");
    convert(dir.path(), &merged, &ConvertOptions::default(), &mut quiet).unwrap();
    assert_eq!(contents(&merged).unwrap().tensors, [("w".to_owned(), "float32", vec![8, 2])]);
    // A save by two ranks over one by four leaves two of the old files.
    (0..2).for_each(|rank| shard(rank, 2));
    problem(dir.path(), &["tensor w", "overlap", "shard-00003"]);
    (0..4).for_each(|rank| shard(rank, 4));
    fs::remove_file(dir.path().join("shard-00002-model-00001-of-00001.safetensors")).unwrap();
    problem(dir.path(), &["tensor w", "a part is missing", "shard-00003"]);
    // Of the last one nothing is left where no shard says how large the whole is.
    (0..4).for_each(|rank| shard(rank, 4));
    let last = dir.path().join("shard-00004-model-00001-of-00001.safetensors");
    fs::remove_file(&last).unwrap();
    assert_eq!(contents(dir.path()).unwrap().tensors, [("w".to_owned(), "float32", vec![6, 2])]);
    let told = |notes: &[String]| notes.iter().any(|note| note.contains("a last one is missing behind these 3"));
    assert!(told(&checked(dir.path(), true).notes));
    let smaller = dir.path().with_extension("safetensors");
    assert!(told(&convert(dir.path(), &smaller, &ConvertOptions::default(), &mut quiet).unwrap().notes));
    fs::remove_file(smaller).unwrap();
    (0..3).for_each(|rank| shard_of(rank, 4, r#",\"global_shape\":[8,2]"#));
    problem(dir.path(), &["tensor w", "a part is missing", "shard-00003"]);
}

#[test]
fn an_index_that_does_not_fit_its_files_is_named() {
    let (dir, path) = source();
    let shards = dir.path().join("shards");
    convert(&path, &shards, &options(Target::Shards), &mut quiet).unwrap();
    let index = shards.join("model.safetensors.index.json");
    let sound = fs::read_to_string(&index).unwrap();
    fs::write(&index, sound.replace("model.w", "model.v")).unwrap();
    problem(&shards, &["model.v is listed in", "does not hold it"]);
    fs::write(&index, sound.replace("model-00001-of", "../model-00001-of")).unwrap();
    problem(&shards, &["no plain file name"]);
    fs::write(&index, &sound).unwrap();
    fs::copy(shards.join("model-00001-of-00002.safetensors"), shards.join("old.safetensors")).unwrap();
    problem(&shards, &["old.safetensors", "left over"]);
    fs::remove_file(shards.join("old.safetensors")).unwrap();
    change(&shards.join("model-00001-of-00002.safetensors"), |bytes| bytes.truncate(bytes.len() - 1));
    problem(&shards, &["model-00001-of-00002.safetensors"]);
    fs::remove_file(shards.join("model-00001-of-00002.safetensors")).unwrap();
    assert!(verify(&shards, false, &mut quiet).unwrap_err().to_string().contains("model-00001-of-00002.safetensors"));
}

#[test]
fn elements_of_two_numbers_and_types_without_a_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("source");
    let mut writer = DirectoryWriter::create(&Disk, &path, u64::MAX).unwrap();
    let packed = Element::of_torch("float4_e2m1fn_x2").unwrap();
    writer.tensor("w", packed, &[2, 3], &[1, 2, 3, 4, 5, 6]).unwrap();
    writer.finish(None).unwrap();
    let target = dir.path().join("a.safetensors");
    convert(&path, &target, &options(Target::Safetensors), &mut quiet).unwrap();
    // The format counts numbers.
    assert!(fs::read(&target).unwrap().windows(27).any(|window| window == br#""dtype":"F4","shape":[2,6]}"#));
    assert_eq!(contents(&target).unwrap().tensors, [("w".to_owned(), "float4_e2m1fn_x2", vec![2, 3])]);
    let back = dir.path().join("back.pt");
    convert(&target, &back, &options(Target::Pt), &mut quiet).unwrap();
    assert!(diff(&path, &back, 0.0, &mut quiet).unwrap().is_empty());
    for (element, shape, bytes) in [("complex128", &[][..], 16), ("float4_e2m1fn_x2", &[][..], 1)] {
        let path = dir.path().join(element);
        let mut writer = DirectoryWriter::create(&Disk, &path, u64::MAX).unwrap();
        writer.tensor("c", Element::of_torch(element).unwrap(), shape, &vec![0; bytes]).unwrap();
        writer.finish(None).unwrap();
        let target = dir.path().join("c.safetensors");
        let error = convert(&path, &target, &options(Target::Safetensors), &mut quiet).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{} cannot hold c: safetensors", target.display())), "{error}");
        assert!(!target.exists());
    }
}
