//! What needs the compiler but no device. Without it a test says so and passes, except where `ENN_NEEDS_NVRTC` is set.

use enn_worker::backend::cuda::{self, BuildError, Element, Source, Variant, cache};
use std::collections::BTreeSet;
use std::fs;

const ARCHITECTURES: [&str; 3] = ["sm_80", "sm_90", "sm_100"];

#[expect(clippy::disallowed_methods, reason = "the environment says whether the compiler may be missing")]
fn have_compiler() -> bool {
    match cuda::compile(&example(), "sm_90", None) {
        Ok(_) => true,
        Err(error @ BuildError::Library { .. }) => {
            assert!(std::env::var_os("ENN_NEEDS_NVRTC").is_none(), "{error}");
            eprintln!("skipped: {error}");
            false
        }
        Err(error) => panic!("{error}"),
    }
}

fn example() -> Variant {
    static ONE: Source = Source {
        name: "one",
        text: "extern \"C\" __global__ void one(ELEMENT* x) { x[thread_of_grid()] = narrow<ELEMENT>(FILL); }",
        numbers: &["FILL"],
        shared_bytes_max: 0,
    };
    Variant::new(&ONE, Element::Bf16, &[3])
}

#[test]
fn every_source_compiles_for_every_architecture() {
    if !have_compiler() {
        return;
    }
    let mut seen = BTreeSet::new();
    for (i, variant) in cuda::examples().into_iter().enumerate() {
        // Element types come in threes: each source meets each architecture, and each pair of them with several numbers.
        let arch = ARCHITECTURES[(i + i / ARCHITECTURES.len()) % ARCHITECTURES.len()];
        let cubin = cuda::compile(&variant, arch, None).unwrap_or_else(|error| panic!("{error}"));
        assert!(cubin.starts_with(b"\x7fELF"), "{} for {arch}", variant.name());
        seen.insert((variant.source.name, arch));
    }
    let sources: BTreeSet<_> = cuda::examples().iter().map(|variant| variant.source.name).collect();
    assert_eq!(seen.len(), sources.len() * ARCHITECTURES.len(), "{seen:?}");
}

#[test]
fn a_source_that_does_not_compile_says_where() {
    static WRONG: Source = Source {
        name: "wrong",
        text: "__global__ void f() {\n  int x = nothing;\n}",
        numbers: &[],
        shared_bytes_max: 0,
    };
    if !have_compiler() {
        return;
    }
    let error = cuda::compile(&Variant::new(&WRONG, Element::F32, &[]), "sm_90", None).unwrap_err().to_string();
    for part in ["wrong<float>", "sm_90", "wrong.cu(2)", "nothing"] {
        assert!(error.contains(part), "{part} in: {error}");
    }
}

#[test]
fn a_torn_file_of_the_cache_is_compiled_again() {
    if !have_compiler() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let compile = || cuda::compile(&example(), "sm_90", Some(folder.path())).unwrap();
    let first = compile();
    let files: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    let [file] = files.as_slice() else { panic!("{files:?}") };
    let whole = fs::read(file).unwrap();
    // What is in the cache is what is used.
    let key = file.file_stem().unwrap().to_str().unwrap();
    cache::write(folder.path(), key, b"planted").unwrap();
    assert_eq!(compile(), b"planted");
    for torn in
        [&whole[..0], &whole[..whole.len() / 2], b"something else entirely, and long enough to be a file of ours"]
    {
        fs::write(file, torn).unwrap();
        assert_eq!(compile(), first);
        assert_eq!(fs::read(file).unwrap(), whole);
    }
}
