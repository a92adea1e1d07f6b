//! Compresses the files of Swagger UI, once.

use std::env;
use std::error::Error;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use flate2::Compression;
use flate2::write::GzEncoder;

/// The files of Swagger UI that the API document's page loads (src/docs.rs).
const SWAGGER_UI: [&str; 2] = ["swagger-ui-bundle.js", "swagger-ui.css"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    let out = env::var("OUT_DIR")?;
    for name in SWAGGER_UI {
        let file = utoipa_swagger_ui::serve(name, Arc::default())?.ok_or(name)?;
        let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
        gzip.write_all(&file.bytes)?;
        fs::write(Path::new(&out).join(name), &file.bytes)?;
        fs::write(Path::new(&out).join(format!("{name}.gz")), gzip.finish()?)?;
    }
    Ok(())
}
