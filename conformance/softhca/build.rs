//! Links the library anew when the way it is linked changes, and gives the linker the library it asks for.

fn main() {
    println!("cargo::rerun-if-changed=ibverbs.map");
    println!("cargo::rerun-if-changed=../../interpose/link-gcc");
    // ibverbs-sys asks for -libverbs without saying where it built it. Nothing of it is used, so it is not needed later.
    if let Ok(root) = std::env::var("DEP_IBVERBS_ROOT") {
        println!("cargo::rustc-link-search=native={root}/build/lib");
    }
}
