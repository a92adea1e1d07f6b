//! Migrations are compiled in: a new one must be seen.
fn main() {
    println!("cargo:rerun-if-changed=migrations");
}
