//! Manifests and tables of somebody who wants a command to touch files elsewhere: whatever a path in them says, nothing outside of their
//! directory is read, written, truncated, removed or uploaded.
//!
//! What a path leads to is a whole copy of the file that belongs there: a command that followed it would succeed.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test by panicking")]

use enn_common::artifact::seal;
use enn_tests::{frozen::archive, launch::enn};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    os::unix::{
        ffi::OsStrExt,
        fs::{MetadataExt, PermissionsExt},
    },
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

const CHECKPOINT: &str = "runs/rows/checkpoints/step-00000012";
const SHARD: &str = "__0_0.distcp";
/// What reads a checkpoint; OUT is a new name, RUN and STEP are the run and its checkpoint.
const READERS: [&[&str]; 9] = [
    &["model", "save", "RUN", "OUT.safetensors"],
    &["model", "load", "STEP"],
    &["ckpt", "push", "RUN", "file://OUT"],
    &["ckpt", "convert", "STEP", "OUT.pt"],
    &["ckpt", "verify", "STEP", "--deep"],
    &["ckpt", "show", "STEP"],
    &["ckpt", "diff", "STEP", "STEP"],
    &["predict", "RUN", "--data", "rows.csv", "--out", "OUT.csv"],
    &["train", "--resume", "RUN", "--set", "train.epochs=4"],
];

/// What version 0.1 left, moved into a place of its own, with a directory beside it that nobody may touch.
struct Scene {
    all: tempfile::TempDir,
}

/// Everything that can be told of a file.
type Seen = BTreeMap<PathBuf, (Vec<u8>, i64, u64)>;

fn seen(dir: &Path) -> Seen {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let of = |path: PathBuf| {
        let found = fs::metadata(&path).unwrap();
        (path.clone(), (fs::read(&path).unwrap(), found.mtime_nsec(), found.ino()))
    };
    entries.map(of).collect()
}

impl Scene {
    fn new() -> Self {
        let all = tempfile::tempdir().unwrap();
        let unpacked = archive();
        assert!(
            Command::new("cp")
                .arg("-a")
                .arg(unpacked.path())
                .arg(all.path().join("inside"))
                .status()
                .unwrap()
                .success()
        );
        fs::create_dir(all.path().join("outside")).unwrap();
        Self { all }
    }

    fn inside(&self) -> PathBuf {
        self.all.path().join("inside")
    }

    fn outside(&self) -> PathBuf {
        self.all.path().join("outside")
    }

    /// A copy outside of a file inside.
    fn copy(&self, of: &Path) -> PathBuf {
        let to = self.outside().join("victim");
        fs::copy(self.inside().join(of), &to).unwrap();
        to
    }

    fn run(&self, words: &[&str]) -> Output {
        let fill = |word: &&str| match *word {
            "RUN" => "runs/rows".to_owned(),
            "STEP" => CHECKPOINT.to_owned(),
            word => word.replace("OUT", self.inside().join("out").to_str().unwrap()),
        };
        let mut command = Command::new(enn());
        command.args(words.iter().map(fill)).current_dir(self.inside()).stdin(Stdio::null());
        command.env("HOME", self.inside()).env_remove("ENN_RUNS").output().unwrap()
    }
}

/// Texts for a path to `victim`, from a directory that lies `depth` below the scene.
fn hostile(victim: &Path, depth: usize) -> Vec<String> {
    let up = format!("{}outside/victim", "../".repeat(depth));
    vec![
        up.clone(),
        victim.to_str().unwrap().to_owned(),
        format!("./{up}"),
        format!("a/../{up}"),
        format!("/{}", victim.to_str().unwrap()),
        up.replace('/', "\\"),
        format!("{SHARD}\0{up}"),
        "x".repeat(300),
        format!("{}{SHARD}", "y/".repeat(3000)),
    ]
}

/// Runs the commands; every one is refused in a sentence, and the outside is as it was.
fn refused(scene: &Scene, what: &str, commands: &[&[&str]]) {
    let before = seen(&scene.outside());
    for words in commands {
        let output = scene.run(words);
        let said = String::from_utf8_lossy(&output.stderr);
        let told = format!("{what}\nenn {}\n{}{said}", words.join(" "), String::from_utf8_lossy(&output.stdout));
        assert!(matches!(output.status.code(), Some(1..=9)), "{:?} {told}", output.status);
        assert!(!said.contains("panicked") && !said.contains("has a fault"), "{told}");
        assert_eq!(seen(&scene.outside()), before, "{told}");
    }
}

/// Changes a sealed or plain JSON file.
fn edit(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut value: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let is_sealed = value.as_object_mut().unwrap().remove("digest").is_some();
    change(&mut value);
    let bytes = if is_sealed { seal::seal(path, &value).unwrap() } else { serde_json::to_vec(&value).unwrap() };
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_checkpoints_manifest_leads_nowhere_else() {
    let scene = Scene::new();
    let victim = scene.copy(Path::new(&format!("{CHECKPOINT}/{SHARD}")));
    let manifest = scene.inside().join(CHECKPOINT).join("manifest.json");
    let whole = fs::read(&manifest).unwrap();
    for path in hostile(&victim, 5) {
        edit(&manifest, |value| value["files"][1]["path"] = path.clone().into());
        refused(&scene, &path, &READERS[..if path.len() > 40 { 3 } else { 9 }]);
        fs::write(&manifest, &whole).unwrap();
    }
}

#[test]
fn the_metadata_of_a_foreign_checkpoint_lead_nowhere_else() {
    let scene = Scene::new();
    let step = scene.inside().join(CHECKPOINT);
    let victim = scene.copy(Path::new(&format!("{CHECKPOINT}/{SHARD}")));
    fs::remove_file(step.join("manifest.json")).unwrap();
    let metadata = step.join(".metadata");
    let whole = fs::read(&metadata).unwrap();
    let name = [&[0x8c, SHARD.len() as u8][..], SHARD.as_bytes()].concat();
    let at = whole.windows(name.len()).position(|window| window == name).unwrap();
    for path in hostile(&victim, 5) {
        // Of any length: the form with four bytes of it.
        let text = [&b"X"[..], &(path.len() as u32).to_le_bytes(), path.as_bytes()].concat();
        fs::write(&metadata, [&whole[..at], &text, &whole[at + name.len()..]].concat()).unwrap();
        let commands: [&[&str]; 3] =
            [&["ckpt", "convert", "STEP", "OUT.pt"], &["ckpt", "verify", "STEP"], &["model", "load", "STEP"]];
        refused(&scene, &path, &commands);
    }
}

#[test]
fn a_link_in_the_tree_leads_nowhere_else() {
    let scene = Scene::new();
    let step = scene.inside().join(CHECKPOINT);
    for name in [SHARD, ".metadata"] {
        let victim = scene.copy(Path::new(&format!("{CHECKPOINT}/{name}")));
        let whole = fs::read(step.join(name)).unwrap();
        fs::remove_file(step.join(name)).unwrap();
        std::os::unix::fs::symlink(&victim, step.join(name)).unwrap();
        refused(&scene, name, &READERS[..5]);
        fs::remove_file(step.join(name)).unwrap();
        fs::write(step.join(name), whole).unwrap();
    }
}

#[test]
fn an_index_of_tensors_leads_nowhere_else() {
    let scene = Scene::new();
    let made = scene.run(&["ckpt", "convert", "rows.safetensors", "shards", "--to", "shards"]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let dir = scene.inside().join("shards");
    let names = || fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path());
    let index = names().find(|path| path.as_os_str().as_bytes().ends_with(b".index.json")).unwrap();
    let shard = names().find(|path| path.as_os_str().as_bytes().ends_with(b".safetensors")).unwrap();
    let victim = scene.copy(shard.strip_prefix(scene.inside()).unwrap());
    let whole = fs::read(&index).unwrap();
    let index_name = index.strip_prefix(scene.inside()).unwrap().to_str().unwrap();
    for path in hostile(&victim, 2) {
        edit(&index, |value| {
            value["weight_map"].as_object_mut().unwrap().values_mut().for_each(|file| *file = path.clone().into());
        });
        let commands: [&[&str]; 4] = [
            &["ckpt", "convert", index_name, "OUT.pt"],
            &["ckpt", "show", index_name],
            &["ckpt", "verify", index_name],
            &["model", "load", index_name],
        ];
        refused(&scene, &path, &commands);
        fs::write(&index, &whole).unwrap();
    }
    fs::remove_file(&shard).unwrap();
    std::os::unix::fs::symlink(&victim, &shard).unwrap();
    refused(&scene, "a link", &[&["ckpt", "convert", index_name, "OUT.pt"]]);
}

#[test]
fn manifests_of_predictions_and_of_staged_data_lead_nowhere_else() {
    let scene = Scene::new();
    let victim = scene.copy(Path::new("rows.parquet"));
    let manifest = scene.inside().join("rows.parquet.manifest.json");
    let whole = fs::read(&manifest).unwrap();
    for path in hostile(&victim, 1) {
        edit(&manifest, |value| value["files"][0]["path"] = path.clone().into());
        refused(&scene, &path, &[&["data", "verify", "rows.parquet"]]);
        // What takes its place touches nothing else either.
        let before = seen(&scene.outside());
        scene.run(&["predict", "RUN", "--data", "rows.csv", "--out", "rows.parquet", "--replace"]);
        assert_eq!(seen(&scene.outside()), before, "{path}");
        fs::write(&manifest, &whole).unwrap();
    }
    let staged = scene.inside().join("runs/rows/staged").canonicalize().unwrap();
    let victim = scene.copy(staged.join("x.npy").strip_prefix(scene.inside().canonicalize().unwrap()).unwrap());
    let sums = staged.join("sums.json");
    let whole = fs::read(&sums).unwrap();
    for path in hostile(&victim, 4) {
        edit(&sums, |value| {
            let files = value["files"].as_object_mut().unwrap();
            let of = files.remove("x.npy").unwrap();
            files.insert(path.clone(), of);
        });
        refused(&scene, &path, &[&["data", "verify", "RUN"]]);
        fs::write(&sums, &whole).unwrap();
    }
}

#[test]
fn without_a_home_only_a_directory_of_this_user_stands_for_it() {
    let temporary = tempfile::tempdir().unwrap();
    let user = nix::unistd::geteuid();
    let dir = temporary.path().join(format!("enn-{user}"));
    let asked = || {
        let mut command = Command::new(enn());
        command.args(["status", "no-such-run"]).current_dir(temporary.path()).env_clear();
        #[expect(clippy::disallowed_methods, reason = "the environment says where libtorch is")]
        let path = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let output = command.env("TMPDIR", temporary.path()).env("LD_LIBRARY_PATH", path).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let refused = |why: &str| {
        let (code, said) = asked();
        assert_eq!(code, 4, "{said}");
        assert!(
            said.contains(dir.to_str().unwrap()) && said.contains(why) && said.contains("hint: set HOME"),
            "{said}"
        );
    };
    let (_, said) = asked();
    assert!(!said.contains("trust"), "{said}");
    assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o777, 0o700);
    for wide in [0o777, 0o770, 0o702] {
        fs::set_permissions(&dir, fs::Permissions::from_mode(wide)).unwrap();
        refused("other users may write to it");
    }
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
    let elsewhere = temporary.path().join("elsewhere");
    fs::rename(&dir, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &dir).unwrap();
    refused("it is a link");
    fs::remove_file(&dir).unwrap();
    if user.is_root() {
        fs::create_dir(&dir).unwrap();
        std::os::unix::fs::chown(&dir, Some(65534), Some(65534)).unwrap();
        refused("it belongs to another user");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    } else {
        eprintln!("skipped: only root can give a directory to another user");
    }
}

#[test]
fn the_description_of_an_artifact_leads_nowhere_else() {
    let scene = Scene::new();
    let made = scene.run(&["export", "RUN", "--to", "pt2", "--out", "made"]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let victim = scene.copy(Path::new("made/rows.pt2"));
    let description = scene.inside().join("made/rows.pt2.json");
    let whole = fs::read(&description).unwrap();
    for path in hostile(&victim, 2) {
        edit(&description, |value| value["files"][0]["path"] = path.clone().into());
        let predict = ["predict", "made/rows.pt2", "--data", "rows.csv", "--out", "OUT.csv"];
        refused(&scene, &path, &[&predict]);
        // Making it anew replaces what is there, and nothing elsewhere.
        let before = seen(&scene.outside());
        scene.run(&["export", "RUN", "--to", "pt2", "--out", "made"]);
        assert_eq!(seen(&scene.outside()), before, "{path}");
        fs::write(&description, &whole).unwrap();
    }
}
