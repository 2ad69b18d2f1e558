//! The order of the search, and what it says where nothing fits.

use super::{release::CUDA_LIBRARY, *};
use std::{fs, os::unix::fs::PermissionsExt};

/// A directory that looks like a libtorch of a release.
fn made(root: &Path, at: &str, release: &str) -> PathBuf {
    let dir = root.join(at);
    fs::create_dir_all(dir.join("lib")).unwrap();
    fs::write(dir.join("lib").join(CPU_LIBRARY), "").unwrap();
    fs::write(dir.join("build-version"), release).unwrap();
    dir
}

fn nothing(_: &Path) -> PythonPackages {
    lookup(TorchLookup::Absent("the Python python3 has no torch".to_owned()))
}

fn lookup(torch: TorchLookup) -> PythonPackages {
    PythonPackages { torch, workers: None }
}

fn libtorch(places: &SearchPaths, query: PackageQuery<'_>) -> Result<Libtorch, NotFound> {
    search(places, query).libtorch
}

#[test]
fn libtorch_is_looked_for_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("a path with spaces");
    let given = made(&root, "given", "2.11.0");
    let torch = made(&root, "python/torch", "2.11.0+cu130");
    let built = made(&root, "built", "2.11.0");
    let near = made(&root, "target/libtorch", "2.11.0");
    let has_torch = |_: &Path| lookup(TorchLookup::Found(torch.clone()));
    let mut places = SearchPaths {
        given: Some(given.join("lib")),
        python: "python3".into(),
        built: Some(built.clone()),
        exe: Some(root.join("target/release/enn")),
        ..SearchPaths::default()
    };
    let found = |places: &SearchPaths, ask: PackageQuery<'_>| {
        libtorch(places, ask).map(|found| (found.lib, found.from)).unwrap()
    };
    assert_eq!(found(&places, &has_torch), (given.join("lib"), "ENN_LIBTORCH".to_owned()));
    places.given = None;
    assert_eq!(found(&places, &has_torch), (torch.join("lib"), "the torch of python3".to_owned()));
    assert_eq!(found(&places, &nothing), (built.join("lib"), "LIBTORCH".to_owned()));
    places.built = None;
    assert_eq!(found(&places, &nothing), (near.join("lib"), "near the program enn".to_owned()));
    let elsewhere = made(&root, "elsewhere", "2.11.0").join("lib");
    places.exe = None;
    places.library_path = Some(elsewhere.clone().into_os_string());
    assert_eq!(found(&places, &nothing), (elsewhere, "LD_LIBRARY_PATH".to_owned()));
}

#[test]
fn a_torch_of_another_release_is_passed_over_with_a_line() {
    let dir = tempfile::tempdir().unwrap();
    let torch = made(dir.path(), "torch", "2.5.1");
    let near = made(dir.path(), "target/libtorch", "2.11.0");
    let places = SearchPaths {
        python: "python3".into(),
        exe: Some(dir.path().join("target/release/enn")),
        ..SearchPaths::default()
    };
    let found = libtorch(&places, &|_| lookup(TorchLookup::Found(torch.clone()))).unwrap();
    assert_eq!(found.lib, near.join("lib"));
    let note = found.note.unwrap();
    assert!(
        note.starts_with("the torch of python3 is passed over: ")
            && note.ends_with("is torch 2.5.1, expected a libtorch 2.11")
    );
    assert_eq!(libtorch(&places, &nothing).unwrap().note, None);
    let broken =
        libtorch(&places, &|_| lookup(TorchLookup::Broken("the Python python3 did not say".to_owned()))).unwrap();
    assert_eq!((broken.lib, broken.note.as_deref()), (near.join("lib"), Some("the Python python3 did not say")));
}

#[test]
fn what_was_named_and_is_wrong_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let old = made(dir.path(), "old", "2.1.0");
    let empty = dir.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let near = Some(made(dir.path(), "target/libtorch", "2.11.0").join("../release/enn"));
    let divided = made(dir.path(), "a:b", "2.11.0");
    let cases = [
        (divided, "has a colon or semicolon in its name"),
        (old, "old is torch 2.1.0, expected a libtorch 2.11"),
        (empty, "empty has no libtorch_cpu.so"),
        (dir.path().join("absent"), "absent does not exist"),
    ];
    for (given, why) in cases {
        let places = SearchPaths { given: Some(given), exe: near.clone(), ..SearchPaths::default() };
        let said = libtorch(&places, &nothing).unwrap_err().to_string();
        assert!(said.starts_with("ENN_LIBTORCH: ") && said.contains(why) && said.contains("\nhint: "), "{said}");
    }
}

#[test]
fn where_nothing_fits_all_that_was_tried_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let old = made(dir.path(), "target/libtorch", "2.4.0");
    let places = SearchPaths {
        python: "python3".into(),
        built: Some(dir.path().join("absent")),
        exe: Some(dir.path().join("target/release/enn")),
        ..SearchPaths::default()
    };
    let said = libtorch(&places, &nothing).unwrap_err().to_string();
    let old = format!("{} is torch 2.4.0", old.display());
    for part in ["ENN_LIBTORCH is not set", "python3 has no torch", "absent does not exist", &old, "make libtorch"] {
        assert!(said.contains(part), "{part} is not in: {said}");
    }
    let alone = SearchPaths { exe: Some("/nowhere/enn".into()), ..SearchPaths::default() };
    let said = libtorch(&alone, &nothing).unwrap_err().to_string();
    assert!(said.contains("no target/libtorch is near the program enn"), "{said}");
}

#[test]
fn a_worker_for_gpus_needs_the_libraries_for_them() {
    let dir = tempfile::tempdir().unwrap();
    let torch = made(dir.path(), "torch", "2.11.0+cpu");
    let worker = dir.path().join("enn-worker");
    fs::write(&worker, CUDA_LIBRARY).unwrap();
    let places = SearchPaths { worker: Some(NamedWorker::new(worker)), ..SearchPaths::default() };
    let said = libtorch(&places, &|_| lookup(TorchLookup::Found(torch.clone()))).unwrap_err().to_string();
    assert!(said.contains("has no libtorch_cuda.so"), "{said}");
    fs::write(torch.join("lib").join(CUDA_LIBRARY), "").unwrap();
    assert_eq!(libtorch(&places, &|_| lookup(TorchLookup::Found(torch.clone()))).unwrap().lib, torch.join("lib"));
}

#[test]
fn no_libtorch_is_taken_from_where_every_user_may_put_one() {
    let dir = tempfile::tempdir().unwrap();
    let put = dir.path().join("everybodys");
    made(&put, "libtorch", "2.11.0");
    let places = SearchPaths { exe: Some(put.join("mine/enn")), ..SearchPaths::default() };
    assert!(libtorch(&places, &nothing).is_ok());
    fs::set_permissions(&put, fs::Permissions::from_mode(0o1777)).unwrap();
    assert!(libtorch(&places, &nothing).is_err());
}

#[test]
fn the_program_of_the_package_is_the_one_for_the_torch_of_the_active_python() {
    let dir = tempfile::tempdir().unwrap();
    let packages = dir.path().join("lib/python3.11/site-packages");
    let bin = packages.join("enn_train/bin");
    fs::create_dir_all(&bin).unwrap();
    for name in ["enn-worker-2.11-cpu", "enn-worker-2.13-cpu"] {
        fs::write(bin.join(name), "").unwrap();
    }
    let exe = Some(dir.path().join("bin/enn"));
    let installation = Installation::package("/env/bin/python3", Some("/env/bin/python3"));
    let places = SearchPaths { python: "python3".into(), exe, installation, ..SearchPaths::default() };
    let torch = |release: &str| lookup(TorchLookup::Found(made(dir.path(), &format!("torch-{release}"), release)));
    let program = |release: &str| search(&places, &|_| torch(release)).worker.unwrap().path;
    assert_eq!(program("2.11.0"), bin.join("enn-worker-2.11-cpu"));
    assert_eq!(program("2.13.0"), bin.join("enn-worker-2.13-cpu"));
    let said = libtorch(&places, &|_| torch("2.12.0")).unwrap_err().to_string();
    for part in ["is torch 2.12.0, expected a libtorch 2.11 or 2.13", "`/env/bin/python3 -m pip install torch==2.11.0`"]
    {
        assert!(said.contains(part), "{part} is not in: {said}");
    }
    assert!(!said.contains("target/libtorch") && !said.contains("make "), "{said}");
    let elsewhere = SearchPaths { exe: Some("/nowhere/bin/enn".into()), ..places };
    let of_python = PythonPackages { workers: Some(packages.join("enn_train")), ..torch("2.13.0") };
    assert_eq!(search(&elsewhere, &|_| of_python.clone()).worker.unwrap().path, bin.join("enn-worker-2.13-cpu"));
    let none = search(&elsewhere, &|_| torch("2.11.0")).worker.unwrap_err().to_string();
    assert!(
        none.ends_with("hint: `/env/bin/python3 -m pip install enn-train==0.1.0`, or set ENN_WORKER to an enn-worker"),
        "{none}"
    );
}

#[test]
fn the_runtime_of_cuda_lies_beside_a_torch_from_pypi() {
    let dir = tempfile::tempdir().unwrap();
    let torch = made(dir.path(), "torch", "2.11.0");
    let found = Libtorch { lib: torch.join("lib"), from: String::new(), note: None };
    assert_eq!(found.path(None), torch.join("lib"));
    fs::create_dir_all(dir.path().join(CUDA_PACKAGE)).unwrap();
    let all = [torch.join("lib"), dir.path().join(CUDA_PACKAGE), "/rest".into()];
    assert_eq!(env::split_paths(&found.path(Some(OsStr::new("/rest")))).collect::<Vec<_>>(), all);
}
