//! With the feature `cuda`, keeps libtorch's CUDA part linked: its operators register themselves when it is loaded, so that the
//! linker would drop it for lack of referenced symbols.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if cfg!(feature = "cuda") {
        println!("cargo:rustc-link-arg=-Wl,--allow-shlib-undefined,--no-as-needed,-ltorch_cuda,-lc10_cuda,--as-needed");
    }
}
