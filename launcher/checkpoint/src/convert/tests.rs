use super::*;
use enn_common::checkpoint::{Checkpoint, Draft, ShardWriter, TensorDType, commit, name};
use std::{
    fs,
    path::{Path, PathBuf},
};

fn numbers(seed: u8, count: usize) -> Vec<u8> {
    (0..count).map(|place| (place as f32 + f32::from(seed)).to_le_bytes()).collect::<Vec<_>>().concat()
}

/// A run with one checkpoint: a weight, a buffer, averages, moments and progress, as the worker names them.
fn run(root: &Path) -> PathBuf {
    let checkpoints = root.join("run/checkpoints");
    let temporary = checkpoints.join(name::temporary(40, "a"));
    let mut shard = ShardWriter::create(&temporary, 0).unwrap();
    for (prefix, seed) in [("model.", 1), ("best.", 2), ("ema.", 3)] {
        shard.whole(&format!("{prefix}head.weight"), TensorDType::F32, &[3, 2], &numbers(seed, 6)).unwrap();
    }
    shard.whole("model.scaler.mean", TensorDType::F64, &[2], &[9; 16]).unwrap();
    shard.whole("optim.state.head.weight.exp_avg", TensorDType::F32, &[3, 2], &numbers(7, 6)).unwrap();
    shard.whole("optim.state.head.weight.step", TensorDType::F32, &[], &40f32.to_le_bytes()).unwrap();
    shard.whole("progress.counts", TensorDType::I64, &[2], &[5; 16]).unwrap();
    shard.whole("progress.order", TensorDType::I64, &[3], &[6; 24]).unwrap();
    shard.whole("progress.best_metric", TensorDType::F64, &[1], &1.5f64.to_le_bytes()).unwrap();
    let tables = [shard.finish().unwrap()];
    let draft = Draft {
        run: "weather".into(),
        step: 40,
        metric: Some(1.5),
        config: serde_json::json!({"name": "weather"}),
        meta: serde_json::json!({"out_shape": [3, 24]}),
        ..Draft::default()
    };
    commit(&temporary, &checkpoints.join(name::committed(40)), &tables, draft).unwrap();
    root.join("run")
}

#[test]
fn files_hold_the_best_weights_and_load_as_step_zero() {
    let dir = tempfile::tempdir().unwrap();
    let run = run(dir.path());
    for form in ["m.safetensors", "m.pt"] {
        let target = dir.path().join(form);
        let saved = save_model(&run, &target, false).unwrap();
        assert_eq!((saved.tensors, saved.bytes), (2, 24 + 16));
        assert!(matches!(save_model(&run, &target, false), Err(ConvertError::Exists { .. })));
        save_model(&run, &target, true).unwrap();
        // The run itself is a directory that is there, and no saved model.
        let refused = save_model(&run, &run, true).unwrap_err();
        assert!(matches!(refused, ConvertError::Displace(_)) && run.join("checkpoints").is_dir(), "{refused}");

        let loaded = load_model(&target, &dir.path().join(form.replace('.', "-")), 1.0).unwrap();
        let open = Checkpoint::open(&loaded.path).unwrap();
        open.verify(&mut |_| {}).unwrap();
        for prefix in ["model.", "best.", "ema."] {
            assert_eq!(open.tensor(&format!("{prefix}head.weight")).unwrap().bytes, numbers(2, 6), "{prefix}");
        }
        assert_eq!(open.tensor("model.scaler.mean").unwrap().bytes, [9; 16]);
        assert_eq!(open.tensor("optim.state.head.weight.exp_avg").unwrap().bytes, [0; 24]);
        assert_eq!(open.tensor("progress.counts").unwrap().bytes, [0; 16]);
        assert_eq!(open.tensor("progress.order").unwrap().bytes, [6; 24]);
        assert_eq!(open.tensor("progress.best_metric").unwrap().bytes, f64::INFINITY.to_le_bytes());
        let manifest = open.manifest().unwrap();
        assert_eq!((manifest.step, manifest.config["name"].as_str()), (0, Some("weather")));
    }
}

#[test]
fn a_directory_is_the_whole_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let run = run(dir.path());
    let copy = dir.path().join("copy");
    save_model(&run, &copy, false).unwrap();
    let loaded = load_model(&copy, &dir.path().join("other/checkpoints"), 1.0).unwrap();
    assert!(loaded.path.ends_with("other/checkpoints/step-00000040"));
    let open = Checkpoint::open(&loaded.path).unwrap();
    open.verify(&mut |_| {}).unwrap();
    assert_eq!(open.tensor("optim.state.head.weight.exp_avg").unwrap().bytes, numbers(7, 6));

    // A damaged source is not copied.
    let shard = copy.join("__0_0.distcp");
    let mut bytes = fs::read(&shard).unwrap();
    let place = bytes.len() / 2;
    bytes[place] ^= 1;
    fs::write(&shard, bytes).unwrap();
    let target = dir.path().join("damaged");
    assert!(save_model(&copy, &target, false).unwrap_err().to_string().contains("__0_0.distcp is damaged"));
    assert!(!target.exists());
}

/// Rewrites the header of a safetensors file.
fn edit(path: &Path, change: impl FnOnce(String) -> String) {
    let bytes = fs::read(path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header = change(String::from_utf8(bytes[8..8 + length].to_vec()).unwrap());
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.bytes());
    out.extend(&bytes[8 + length..]);
    fs::write(path, out).unwrap();
}

#[test]
fn what_does_not_fit_is_listed() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("m.safetensors");
    save_model(&run(dir.path()), &target, false).unwrap();
    edit(&target, |header| {
        header.replace("\"head.weight\":{", "\"tail.weight\":{").replace("\"shape\":[2]", "\"shape\":[1,2]")
    });
    let checkpoints = dir.path().join("c");
    let error = load_model(&target, &checkpoints, 1.0).unwrap_err().to_string();
    for part in
        ["head.weight is missing", "tail.weight is unexpected", "scaler.mean is float64 [1, 2], expected float64 [2]"]
    {
        assert!(error.contains(part), "{error}");
    }
    edit(&target, |header| header.replace("\"enn\":", "\"other\":"));
    let error = load_model(&target, &checkpoints, 1.0).unwrap_err().to_string();
    assert!(error.contains("expected a model saved by enn"), "{error}");
    fs::write(&target, b"not a model").unwrap();
    let error = load_model(&target, &checkpoints, 1.0).unwrap_err().to_string();
    assert!(error.contains("m.safetensors: its header is said to have"), "{error}");
    let pt = dir.path().join("m.pt");
    fs::write(&pt, b"not a model").unwrap();
    assert!(
        load_model(&pt, &checkpoints, 1.0).unwrap_err().to_string().contains("it is a file of no form that is read")
    );
    assert!(matches!(save_model(dir.path(), Path::new("m.onnx"), false), Err(ConvertError::Form { .. })));
    let nothing = dir.path().join("nothing");
    assert!(save_model(&nothing, &pt, true).unwrap_err().to_string().contains("holds no checkpoint"));
    assert!(!checkpoints.join("step-00000000").exists());
}

#[test]
fn a_tensor_that_a_header_has_twice_is_named_and_not_chosen_between() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("m.safetensors");
    save_model(&run(dir.path()), &target, false).unwrap();
    assert!(verify(&target, true, &mut |_, _| {}).unwrap().problems.is_empty());
    let other = r#"{"head.weight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"#;
    edit(&target, |header| header.replacen('{', other, 1));
    let error = load_model(&target, &dir.path().join("c"), 1.0).unwrap_err().to_string();
    assert!(error.contains("m.safetensors: its header has \"head.weight\" twice"), "{error}");
    let found = verify(&target, true, &mut |_, _| {}).unwrap();
    assert!(found.problems.iter().any(|problem| problem.contains("\"head.weight\" twice")), "{:?}", found.problems);
}

#[test]
fn a_card_cannot_ask_for_more_memory_than_its_tensors_take() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("m.safetensors");
    save_model(&run(dir.path()), &target, false).unwrap();
    let bytes = fs::read(&target).unwrap();
    let (length, rest) = bytes.split_first_chunk().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let header = std::str::from_utf8(header).unwrap();
    let counts = r#"progress.counts\",\"dtype\":\"int64\",\"shape\":[2]"#;
    assert!(header.contains(counts), "{header}");
    let header = header.replace(counts, &counts.replace("[2]", "[1125899906842624]"));
    fs::write(&target, [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()).unwrap();
    let error = load_model(&target, &dir.path().join("loaded"), 1.0).unwrap_err().to_string();
    assert!(error.contains("progress.counts of type int64 [1125899906842624] cannot be made"), "{error}");
}
