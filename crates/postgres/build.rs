//! Migrations are compiled into the program, so a new file must trigger a build.

fn main() {
    println!("cargo:rerun-if-changed=../../migrations");
}
