//! Migrations and runbooks are compiled into the program, so a new file must trigger a build. The files of Swagger UI are compressed here,
//! once.

use std::env;
use std::error::Error;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use flate2::Compression;
use flate2::write::GzEncoder;

/// The files of Swagger UI that the API document's page loads (src/pages/docs.rs).
const SWAGGER_UI: [&str; 2] = ["swagger-ui-bundle.js", "swagger-ui.css"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=migrations");
    println!("cargo:rerun-if-changed=docs/runbooks");
    println!("cargo:rerun-if-changed=build.rs");
    let out = env::var("OUT_DIR")?;
    let mut runbooks = Vec::new();
    // The image's first layer has dependencies only, and no documents. A test shows that the program has its runbooks.
    for file in fs::read_dir("docs/runbooks").into_iter().flatten() {
        let path = fs::canonicalize(file?.path())?;
        let name = path.file_stem().ok_or("no name")?.to_string_lossy().into_owned();
        runbooks.push(format!("({name:?}, include_str!({path:?})),"));
    }
    runbooks.sort();
    fs::write(Path::new(&out).join("runbooks.rs"), format!("&[{}]", runbooks.concat()))?;
    for name in SWAGGER_UI {
        let file = utoipa_swagger_ui::serve(name, Arc::default())?.ok_or(name)?;
        let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
        gzip.write_all(&file.bytes)?;
        fs::write(Path::new(&out).join(name), &file.bytes)?;
        fs::write(Path::new(&out).join(format!("{name}.gz")), gzip.finish()?)?;
    }
    Ok(())
}
