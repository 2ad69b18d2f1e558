//! With the feature `cuda`, keeps libtorch's CUDA part linked: its operators register themselves when it is loaded, so that the
//! linker would drop it for want of named symbols.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_FEATURE_CUDA").is_some() {
        println!("cargo:rustc-link-arg=-Wl,--allow-shlib-undefined,--no-as-needed,-ltorch_cuda,-lc10_cuda,--as-needed");
    }
}
