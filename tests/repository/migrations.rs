//! The text of the migrations.

use std::path::Path;

use seckill_harness::repository::TOP;

/// The older version runs beside a migration, so a migration removes nothing that this version reads or writes.
#[test]
fn migrations_only_add() {
    let mut checked = 0;
    for entry in std::fs::read_dir(Path::new(TOP).join("migrations")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let text = std::fs::read_to_string(&path).unwrap();
        let code = text.lines().filter_map(|line| line.split("--").next()).flat_map(str::split_whitespace);
        let code = format!("; {}", code.collect::<Vec<_>>().join(" ").to_ascii_uppercase());
        for taken in ["DROP TABLE", "DROP COLUMN", "DROP VIEW", " RENAME ", "SET NOT NULL", "; TRUNCATE", " TYPE "] {
            assert!(!code.contains(taken), "{name} has {taken}: docs/install.md says how to do that in two releases");
        }
        checked += 1;
    }
    assert!(checked > 0);
}
