//! Compiles the C++ shim (every `shim/*.cpp`) against the libtorch that torch-sys was built with.
//!
//! The libraries are linked dynamically and without an rpath: the process that starts the binary sets the path of
//! libtorch.

#![expect(clippy::disallowed_methods, reason = "the environment is how cargo speaks to a build script")]

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

const SHIM: &str = "shim";

fn main() {
    for name in ["LIBTORCH_INCLUDE", "ENN_CUDA_INCLUDE", "ENN_ASAN"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={SHIM}");
    if let Err(error) = compile() {
        println!("cargo:warning={error}");
        panic!("failed to build the C++ shim: {error}");
    }
}

fn compile() -> Result<(), String> {
    let lib = PathBuf::from(
        env::var_os("DEP_TCH_LIBTORCH_LIB").ok_or("torch-sys did not say where libtorch is; run `make libtorch`")?,
    );
    let include = include_dir(&lib)?;
    let cuda = env::var_os("CARGO_FEATURE_CUDA").is_some();
    let sources = sources().map_err(|error| format!("{SHIM}: {error}"))?;
    let mut build = cc::Build::new();
    build.cpp(true).pic(true).std("c++17").warnings(false).opt_level(2);
    // No code reads errno after a square root, and only without it is the root vectorised.
    build.flag("-fno-math-errno");
    build.define("USE_C10D_GLOO", None).define("GLOG_USE_GLOG_EXPORT", None);
    // Warnings in libtorch's headers are suppressed.
    for dir in [include.clone(), include.join("torch/csrc/api/include")] {
        build.flag("-isystem").flag(dir);
    }
    build.include(SHIM);
    if cuda {
        build.define("USE_C10D_NCCL", None).define("USE_CUDA", None).define("ENN_CUDA", None);
        for dir in cuda_includes(&lib)? {
            build.flag("-isystem").flag(dir);
        }
    }
    if env::var_os("ENN_ASAN").is_some() {
        // For `make asan`: memory errors of the shim are detected; libtorch is not instrumented.
        build.flag("-fsanitize=address").flag("-fno-omit-frame-pointer").flag("-g");
        // Rustc links with -nodefaultlibs, which omits the runtime.
        println!("cargo:rustc-link-lib=dylib=asan");
    }
    stand_in(&build)?;
    build.files(&sources).try_compile("enn_shim").map_err(|error| error.to_string())?;
    link(&lib, cuda);
    Ok(())
}

/// Builds an empty library called libtorch.so, which the worker embeds (`backend::artifact`).
fn stand_in(build: &cc::Build) -> Result<(), String> {
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo did not say where to build")?);
    let source = out.join("empty.c");
    let library = out.join("libtorch.so");
    fs::write(&source, "").map_err(|error| format!("{}: {error}", source.display()))?;
    let compiler = build.try_get_compiler().map_err(|error| error.to_string())?;
    let mut command = std::process::Command::new(compiler.path());
    command.args(["-x", "c", "-shared", "-nostdlib", "-Wl,-soname,libtorch.so", "-Wl,--build-id=none", "-o"]);
    let done =
        command.arg(&library).arg(&source).status().map_err(|error| format!("{}: {error}", library.display()))?;
    if done.success() { Ok(()) } else { Err(format!("{}: the compiler ended with {done}", library.display())) }
}

fn sources() -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(SHIM)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "cpp") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Returns `LIBTORCH_INCLUDE` as torch-sys reads it, else the folder beside the libraries (libtorch, and torch inside
/// Python).
fn include_dir(lib: &Path) -> Result<PathBuf, String> {
    let root = match env::var_os("LIBTORCH_INCLUDE") {
        Some(dir) => PathBuf::from(dir),
        None => lib.parent().ok_or("libtorch's lib folder has no parent")?.to_path_buf(),
    };
    let include = root.join("include");
    let header = include.join("torch/csrc/distributed/c10d/ProcessGroupGloo.hpp");
    if header.is_file() {
        Ok(include)
    } else {
        Err(format!("{} is missing; a libtorch with its headers is needed: run `make libtorch`", header.display()))
    }
}

/// Returns the folders of CUDA's headers: `ENN_CUDA_INCLUDE` (colon-separated), else `cuda/include` beside libtorch's
/// lib, where `make cuda` gathers them, else /usr/local/cuda/include.
fn cuda_includes(lib: &Path) -> Result<Vec<PathBuf>, String> {
    if let Some(dirs) = env::var_os("ENN_CUDA_INCLUDE") {
        return Ok(env::split_paths(&dirs).collect());
    }
    let beside = lib.join("../cuda/include");
    let found: Vec<PathBuf> = [beside, PathBuf::from("/usr/local/cuda/include")]
        .into_iter()
        .filter(|dir| dir.join("cuda_runtime_api.h").is_file())
        .collect();
    if found.is_empty() {
        return Err(
            "cuda_runtime_api.h was not found; `make cuda` fetches CUDA's headers, or set ENN_CUDA_INCLUDE".into()
        );
    }
    // The compiler's header library (cuda/std) is one level deeper in CUDA 13.
    Ok(found.iter().flat_map(|dir| [dir.clone(), dir.join("cccl")]).collect())
}

fn link(lib: &Path, cuda: bool) {
    println!("cargo:rustc-link-search=native={}", lib.display());
    println!("cargo:rustc-link-lib=dylib=torch_cpu");
    println!("cargo:rustc-link-lib=dylib=c10");
    println!("cargo:rustc-link-lib=dylib=stdc++");
    if cuda {
        println!("cargo:rustc-link-lib=dylib=torch_cuda");
        println!("cargo:rustc-link-lib=dylib=c10_cuda");
        // Libtorch_cuda needs NCCL, cuBLAS and the driver, which a machine that only builds does not have; and its
        // operators register themselves on loading, so it must stay linked although few of its symbols are named.
        println!("cargo:rustc-link-arg=-Wl,--allow-shlib-undefined,--no-as-needed,-ltorch_cuda,-lc10_cuda,--as-needed");
        // CUDA's runtime, of the version libtorch itself names; there is no libcudart.so to link by a plain name. A library, not
        // an argument: programs that use this crate need it, too.
        println!("cargo:rustc-link-lib=dylib:+verbatim=libcudart.so.13");
    }
}
