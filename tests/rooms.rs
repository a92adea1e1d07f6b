//! The tables of allowed imports in docs/ARCHITECTURE.md, compared with the code and the manifests of the crates. No files import each
//! other in a circle, and the size of a room is bounded.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test that cannot go on shall fail

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
/// Crates from outside that only one room may name.
const BELONGS_TO: [(&str, &str); 3] = [("redis", "gate"), ("sqlx", "ledger"), ("lapin", "queue")];

/// A room with more lines is divided where the parts have clear names.
const LINES_MAX: usize = 3000;
/// `domain` is pure types, each read by itself; `ledger` has rooms inside, each far smaller.
const DIVIDED_INSIDE: [&str; 2] = ["domain", "ledger"];
/// Rooms inside another one, counted separately. To change how a sale is kept, one need not know how a server is found, how shards borrow,
/// how units are requested, how a lock is taken, or how a limiter is asked. To sell, one need not know how a challenge is drawn. To settle
/// sales, one need not know how Redis is filled.
const INSIDE: [(&str, &str); 7] = [
    ("gate", "servers"),
    ("gate", "loans"),
    ("gate", "reserve"),
    ("gate", "lock"),
    ("gate", "limiter"),
    ("sale", "challenges"),
    ("sale_work", "refill"),
];

/// A table of docs/ARCHITECTURE.md: each name of the first column, with the names of the last.
fn table(head: &str) -> BTreeMap<String, BTreeSet<String>> {
    let document = std::fs::read_to_string(format!("{ROOT}/docs/ARCHITECTURE.md")).unwrap();
    let names = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<BTreeSet<_>>();
    let (_, rows) = document.split_once(head).expect("the table is in docs/ARCHITECTURE.md");
    let mut table = BTreeMap::new();
    for row in rows.lines().skip(1).take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').collect();
        for name in names(cells[0]) {
            table.insert(name, names(cells[cells.len() - 1]));
        }
    }
    table
}

/// The code of each file in a folder, with its room.
fn sources(folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            let name = path.strip_prefix(format!("{ROOT}/src")).unwrap();
            let room = name.components().next().unwrap().as_os_str().to_string_lossy().replace(".rs", "");
            found.push((room, std::fs::read_to_string(&path).unwrap()));
        }
    }
}

/// The words that follow a marker in a line of code.
fn words_after<'a>(line: &'a str, marker: &'a str) -> impl Iterator<Item = &'a str> {
    let end = |c: char| !c.is_alphanumeric() && c != '_';
    line.split(marker).skip(1).map(move |rest| rest.split(end).next().unwrap_or_default())
}

#[test]
fn rooms_import_only_what_the_table_allows() {
    let table = table("| room | what is in it | may import |");
    let mut found = Vec::new();
    sources(&Path::new(ROOT).join("src"), &mut found);
    assert!(found.len() > 40 && table.len() > 10, "the sources and the table are not where they are looked for");
    let mut broken = BTreeSet::new();
    for (room, text) in found.iter().filter(|(room, _)| room != "lib" && room != "main") {
        let Some(allowed) = table.get(room) else {
            broken.insert(format!("{room} is not in the table"));
            continue;
        };
        for line in text.lines().map(|line| line.split("//").next().unwrap_or_default()) {
            let rooms = words_after(line, "crate::").filter(|word| table.contains_key(*word)).map(str::to_owned);
            let crates = words_after(line, "seckill_").map(|name| format!("seckill_{name}"));
            let crates = crates.filter(|name| line.contains(&format!("{name}::")));
            for other in rooms.chain(crates).filter(|other| other != room && !allowed.contains(other)) {
                broken.insert(format!("{room} imports {other}"));
            }
            for (name, owner) in BELONGS_TO {
                let named = line.contains(&format!("{name}::")) && !line.contains(&format!("_{name}::"));
                if named && room != owner {
                    broken.insert(format!("{room} names {name}"));
                }
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

/// To change a room, at most 3,000 lines must be known.
#[test]
fn no_room_is_too_large_to_know() {
    let mut found = Vec::new();
    sources(&Path::new(ROOT).join("src"), &mut found);
    let mut lines: BTreeMap<String, usize> = BTreeMap::new();
    for (room, text) in found.into_iter().filter(|(room, _)| !DIVIDED_INSIDE.contains(&room.as_str())) {
        *lines.entry(room).or_default() += text.lines().count();
    }
    for (room, inside) in INSIDE {
        let mut found = Vec::new();
        sources(&Path::new(ROOT).join("src").join(room).join(inside), &mut found);
        let own: usize = found.iter().map(|(_, text)| text.lines().count()).sum();
        assert!(own > 0, "{room}/{inside} is not there");
        *lines.entry(room.to_owned()).or_default() -= own;
        lines.insert(format!("{room}/{inside}"), own);
    }
    let large: Vec<_> = lines.into_iter().filter(|(_, lines)| *lines > LINES_MAX).collect();
    assert!(large.is_empty(), "{large:?}");
}

/// The module of each file of a crate, with the paths that the file imports outside its tests.
fn modules(root: &Path, folder: &Path, found: &mut BTreeMap<Vec<String>, Vec<Vec<String>>>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            modules(root, &path, found);
            continue;
        }
        let name = path.strip_prefix(root).unwrap().with_extension("");
        let mut module: Vec<String> = name.iter().map(|part| part.to_string_lossy().into_owned()).collect();
        if path.extension().is_none_or(|ending| ending != "rs") || module == ["main"] {
            continue;
        }
        if matches!(module.last().map(String::as_str), Some("mod" | "lib")) {
            module.pop();
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let is_tests =
            |lines: &[&str]| lines[0] == "#[cfg(test)]" && lines[1].contains("mod ") && lines[1].ends_with('{');
        let end = lines.windows(2).position(is_tests).unwrap_or(lines.len());
        let code = lines[..end].iter().map(|line| line.split("//").next().unwrap_or_default().trim());
        let code = code.collect::<Vec<_>>().join(" ");
        let mut imports = Vec::new();
        let uses = code.split("use ").skip(1).filter_map(|rest| rest.split(';').next());
        uses.for_each(|tree| branches(tree, &[], &mut imports));
        // Paths written in full in the code.
        let words = code.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
        words.filter(|word| word.contains("::")).for_each(|word| branches(word, &[], &mut imports));
        found.insert(module, imports);
    }
}

/// The paths of a tree such as `a::{b, c::{d, e}}`.
fn branches(tree: &str, before: &[String], found: &mut Vec<Vec<String>>) {
    let (path, inside) = tree.split_once('{').map_or((tree, None), |(path, inside)| (path, Some(inside)));
    let parts = path.split("::").map(|part| part.split(" as ").next().unwrap_or_default().trim().to_owned());
    let path: Vec<String> = before.iter().cloned().chain(parts.filter(|part| !part.is_empty())).collect();
    let Some(inside) = inside else { return found.push(path) };
    let inside = inside.trim_end().strip_suffix('}').unwrap_or(inside);
    let (mut depth, mut from) = (0, 0);
    for (at, c) in inside.char_indices().chain([(inside.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                branches(&inside[from..at], &path, found);
                from = at + 1;
            }
            _ => {}
        }
    }
}

/// Files of a crate that import each other in a circle can only be understood together. A module's file and the files inside the module do
/// not count: that file declares its parts.
#[test]
fn no_files_import_each_other_in_a_circle() {
    let mut roots = vec![Path::new(ROOT).join("src")];
    roots.extend(std::fs::read_dir(format!("{ROOT}/crates")).unwrap().map(|folder| folder.unwrap().path().join("src")));
    let mut circles = Vec::new();
    let mut arrows = 0;
    for root in roots {
        let mut files = BTreeMap::new();
        modules(&root, &root, &mut files);
        let file_of = |module: &[String], path: &[String]| {
            let supers = path.iter().take_while(|part| *part == "super").count();
            let base =
                if path.first().is_some_and(|part| part == "crate") { 0 } else { module.len().saturating_sub(supers) };
            let rest = path.iter().skip(supers).filter(|part| !matches!(part.as_str(), "crate" | "self"));
            let whole: Vec<String> = module[..base].iter().chain(rest).cloned().collect();
            (0..=whole.len()).rev().map(|end| whole[..end].to_vec()).find(|file| files.contains_key(file))
        };
        let mut imports: BTreeMap<_, BTreeSet<Vec<String>>> = BTreeMap::new();
        for (module, paths) in &files {
            let others = paths.iter().filter_map(|path| file_of(module, path));
            let others = others.filter(|other| !module.starts_with(other) && !other.starts_with(module));
            imports.insert(module.clone(), others.collect());
        }
        arrows += imports.values().map(BTreeSet::len).sum::<usize>();
        // Removes files that import no other, or that no other imports, until there are none.
        loop {
            let left: BTreeSet<_> = imports.keys().cloned().collect();
            let imported: BTreeSet<_> = imports.values().flatten().cloned().collect();
            imports.retain(|file, others| {
                others.retain(|other| left.contains(other));
                !others.is_empty() && imported.contains(file)
            });
            if imports.len() == left.len() {
                break;
            }
        }
        circles.extend(imports.into_iter().map(|(file, others)| {
            let others: Vec<String> = others.iter().map(|other| other.join("/")).collect();
            format!("{}: {} imports {}", root.display(), file.join("/"), others.join(", "))
        }));
    }
    assert!(arrows > 900, "the imports are not where they are looked for: {arrows}");
    assert!(circles.is_empty(), "{circles:#?}");
}

#[test]
fn crates_depend_only_on_what_the_table_allows() {
    let table = table("| crate | what is in it | may depend on |");
    let mut broken = BTreeSet::new();
    for folder in std::fs::read_dir(format!("{ROOT}/crates")).unwrap() {
        let folder = folder.unwrap();
        let name = format!("seckill_{}", folder.file_name().to_string_lossy()).replace('-', "_");
        let Some(allowed) = table.get(&name) else {
            broken.insert(format!("{name} is not in the table"));
            continue;
        };
        let manifest = std::fs::read_to_string(folder.path().join("Cargo.toml")).unwrap();
        // Dependencies come after [package], whose name begins alike.
        let (_, sections) = manifest.split_once("dependencies]").unwrap_or_default();
        for line in sections.lines().filter(|line| line.starts_with("seckill")) {
            let other = line.split([' ', '.', '=']).next().unwrap_or_default().replace('-', "_");
            if !allowed.contains(&other) {
                broken.insert(format!("{name} depends on {other}"));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

/// An interrupted `BEGIN` must be recorded (src/ledger/mod.rs), so transactions begin in one place. `search.rs` begins a part of one.
#[test]
fn transactions_begin_in_one_place() {
    let mut found = Vec::new();
    sources(&Path::new(ROOT).join("src"), &mut found);
    let ledger: Vec<&String> = found.iter().filter(|(room, _)| room == "ledger").map(|(_, text)| text).collect();
    let count = |call: &str| ledger.iter().map(|text| text.matches(call).count()).sum::<usize>();
    assert!(count("self.begin()") > 40, "the ledger's transactions are not where they are looked for");
    let elsewhere = [
        ("pool.begin()", 1),
        ("reserved.begin()", 0),
        ("connection.begin()", 0),
        ("tx.begin()", 1),
        (".begin_with(", 0),
    ];
    for (call, allowed) in elsewhere {
        assert_eq!(count(call), allowed, "{call}: use Ledger::begin");
    }
}
