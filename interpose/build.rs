//! Links the library anew when the way it is linked changes.

fn main() {
    println!("cargo::rerun-if-changed=smc.map");
    println!("cargo::rerun-if-changed=link-gcc");
}
