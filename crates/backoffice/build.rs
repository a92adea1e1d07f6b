//! Runbooks are compiled into the program, so a new file must trigger a build.

use std::env;
use std::error::Error;
use std::fs;
use std::path::Path;

const RUNBOOKS: &str = "../../docs/runbooks";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={RUNBOOKS}");
    println!("cargo:rerun-if-changed=build.rs");
    let mut runbooks = Vec::new();
    // The image's first layer has dependencies only, and no documents. A test shows that the program has its runbooks.
    for file in fs::read_dir(RUNBOOKS).into_iter().flatten() {
        let path = fs::canonicalize(file?.path())?;
        let name = path.file_stem().ok_or("no name")?.to_string_lossy().into_owned();
        runbooks.push(format!("({name:?}, include_str!({path:?})),"));
    }
    runbooks.sort();
    fs::write(Path::new(&env::var("OUT_DIR")?).join("runbooks.rs"), format!("&[{}]", runbooks.concat()))?;
    Ok(())
}
