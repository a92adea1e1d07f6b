//! compose.yaml and the Dockerfile: the checks that need no Docker. tests/docker_by_hand.sh executes the Dockerfile's steps.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use regex::{Captures, Regex};
use seckill_config::{self as config, Config};
use seckill_harness::repository::{TOP, read};
use seckill_harness::secret;
use serde_json::{Value, json};

fn compose() -> Value {
    serde_saphyr::from_str(&read("compose.yaml")).unwrap()
}

fn services() -> BTreeMap<String, Value> {
    serde_json::from_value(compose()["services"].clone()).unwrap()
}

/// The texts of a list; none if it is not a list.
fn texts(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().map(|text| text.as_str().expect("a text")).collect()
}

/// A text of compose.yaml: these variables are set, and all others have their defaults.
fn filled(text: &str, set: &[(&str, &str)]) -> String {
    let value_of = |found: &Captures<'_>| {
        let given = set.iter().find(|(name, _)| *name == &found[1]).map(|(_, value)| *value);
        given.unwrap_or_else(|| found.get(2).map_or("", |default| default.as_str())).to_owned()
    };
    Regex::new(r"\$\{(\w+)(?::-([^}]*))?\}").unwrap().replace_all(text, value_of).into_owned()
}

fn environment(service: &Value, set: &[(&str, &str)]) -> HashMap<String, String> {
    let entries = service["environment"].as_object().into_iter().flatten();
    entries.map(|(name, value)| (name.clone(), filled(value.as_str().unwrap(), set))).collect()
}

/// Whether an image is named with its full version, so that a later pull gets the same one.
fn is_pinned(image: &str) -> bool {
    Regex::new(r"^[a-z0-9./-]+:v?[0-9]+\.[0-9]+(\.[0-9]+)?(-[a-z0-9]+)*$").unwrap().is_match(image)
}

/// The names in a map or in a list of texts.
fn names(value: &Value) -> Vec<&str> {
    let keys = value.as_object().into_iter().flat_map(|map| map.keys().map(String::as_str));
    keys.chain(texts(value)).collect()
}

/// The words of the Compose Specification that the file uses. `docker compose` refuses a service with another word.
const WORDS: &str = "build cap_add cap_drop command depends_on entrypoint environment healthcheck hostname image networks ports read_only \
    restart security_opt shm_size stop_grace_period tmpfs volumes";
const HEALTH_WORDS: &str = "disable interval retries test timeout";

/// Unknown words, and references to missing services, networks and volumes.
fn problems(compose: &Value) -> Vec<String> {
    let mut problems = Vec::new();
    let [words, health_words] = [WORDS, HEALTH_WORDS].map(|words| words.split_whitespace().collect());
    let [services, networks, volumes] = ["services", "networks", "volumes"].map(|key| names(&compose[key]));
    for (name, service) in compose["services"].as_object().unwrap() {
        let sources = texts(&service["volumes"]).into_iter().map(|volume| volume.split(':').next().unwrap());
        let sources = sources.filter(|source| !source.starts_with("./")).collect();
        for (found, known) in [
            (names(service), &words),
            (names(&service["healthcheck"]), &health_words),
            (names(&service["depends_on"]), &services),
            (names(&service["networks"]), &networks),
            (sources, &volumes),
        ] {
            let missing = found.into_iter().filter(|word| !known.contains(word));
            problems.extend(missing.map(|word| format!("{name}: {word}")));
        }
    }
    problems
}

#[test]
fn compose_yaml_has_only_known_words_and_references() {
    let compose = compose();
    assert_eq!(problems(&compose), Vec::<String>::new());
    for (place, value) in [
        ("/services/edge", json!({ "helthcheck": {} })),
        ("/services/edge/healthcheck", json!({ "intervall": "1s" })),
        ("/services/edge/depends_on", json!({ "serve-3": {} })),
        ("/services/publish/volumes", json!(["sites:/var/www/seckill"])),
    ] {
        let mut wrong = compose.clone();
        *wrong.pointer_mut(place).unwrap() = value;
        assert!(!problems(&wrong).is_empty(), "{place} is not checked");
    }
}

/// The configurations of other programs name services of this network, and all instances and workers.
#[test]
fn everything_is_started() {
    let host = Regex::new(r"\b([a-z]+-[0-9]):[0-9]+\b").unwrap();
    let files = ["deploy/prometheus/prometheus.yaml", "deploy/instances.conf"].map(read).concat();
    let named: BTreeSet<&str> = host.captures_iter(&files).map(|found| found.get(1).unwrap().as_str()).collect();
    let services = services();
    let started: BTreeSet<&str> = services.keys().map(String::as_str).filter(|name| name.contains('-')).collect();
    assert_eq!(named, started);
}

/// Each name in an environment is a setting with a valid value, and all settings of `./dev` are set.
#[test]
fn every_environment_is_one_that_the_program_accepts() {
    let mut set = BTreeSet::new();
    for (name, service) in services().iter().filter(|(_, service)| service["build"].is_string()) {
        let environment = environment(service, &[]);
        set.extend(environment.keys().cloned());
        let config = Config::read(&environment).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(config.dev, "{name}");
        config.check_for_service().unwrap_or_else(|error| panic!("{name}: {error}"));
        config::sandbox_settings(&environment).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    let dev = read("dev.d/sets.sh");
    let (_, exported) = dev.split_once("\nenvironment() {").expect("what ./dev env prints");
    let setting = Regex::new(r"\bSECKILL_[A-Z_]+\b").unwrap();
    let missing: Vec<&str> =
        setting.find_iter(exported).map(|name| name.as_str()).filter(|name| !set.contains(*name)).collect();
    assert!(missing.is_empty(), "./dev sets {missing:?}");
    assert!(set.contains("SECKILL_HTTP__TRUSTED_PROXIES"));
}

/// Outside development mode nothing starts until each secret of the file is replaced.
#[test]
fn no_default_secret_is_accepted_outside_development_mode() {
    let services = services();
    let serve = &services["serve-1"];
    let [jwt, postgres, rabbitmq] = [secret(), secret(), secret()];
    let own = [
        ("SECKILL_DEV", "0"),
        ("SECKILL_AUTH__JWT_SECRET", jwt.as_str()),
        ("POSTGRES_PASSWORD", postgres.as_str()),
        ("RABBITMQ_PASSWORD", rabbitmq.as_str()),
    ];
    let check = |set: &[(&str, &str)]| {
        let config = Config::read(&environment(serve, set)).map_err(|error| error.to_string())?;
        config.check_for_service().map_err(|error| error.to_string())
    };
    assert_eq!(check(&own), Ok(()));
    for (missing, named) in [(1, "SECKILL_AUTH__JWT_SECRET"), (2, "DATABASE_URL"), (3, "AMQP_URL")] {
        let rest: Vec<_> = own.iter().enumerate().filter(|(n, _)| *n != missing).map(|(_, pair)| *pair).collect();
        let refused = check(&rest).expect_err(named);
        assert!(refused.contains(named), "{refused}");
    }
    assert!(config::sandbox_settings(&environment(&services["sandbox"], &own)).is_err(), "the sandbox bank starts");
    // The servers have the passwords that the service uses.
    assert_eq!(environment(&services["postgres"], &own)["POSTGRES_PASSWORD"], postgres);
    assert_eq!(environment(&services["rabbitmq"], &own)["RABBITMQ_DEFAULT_PASS"], rabbitmq);
}

#[test]
fn every_service_is_pinned_watched_and_confined() {
    for (name, service) in services() {
        let image = service["image"].as_str().unwrap();
        assert!(service["build"].is_string() || is_pinned(image), "{name}: {image}");
        let check = &service["healthcheck"];
        let runs_once = service["restart"] == "no" && check["disable"] == true;
        assert!(runs_once || !texts(&check["test"]).is_empty(), "{name} has no health check");
        for risky in ["privileged", "network_mode", "pid", "ipc", "devices", "userns_mode"] {
            assert!(service[risky].is_null(), "{name} has {risky}");
        }
        assert_eq!(texts(&service["cap_drop"]), ["ALL"], "{name}");
        assert_eq!(texts(&service["security_opt"]), ["no-new-privileges:true"], "{name}");
        // Their images need these to change the owner of files and to become that user; nginx needs one for its port.
        let needed = match name.as_str() {
            "redis" | "postgres" | "rabbitmq" => &["CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID"][..],
            "edge" => &["CHOWN", "DAC_OVERRIDE", "NET_BIND_SERVICE", "SETGID", "SETUID"],
            _ => &[],
        };
        assert_eq!(texts(&service["cap_add"]), needed, "{name}");
        assert_eq!(service["read_only"] == true, !["rabbitmq", "grafana"].contains(&name.as_str()), "{name}");
        for port in texts(&service["ports"]) {
            let here = port.starts_with("127.0.0.1:") || (name == "edge" && port.starts_with("${PUBLISH:-127.0.0.1:"));
            assert!(here, "{name} is reached from elsewhere at {port}");
        }
    }
}

/// In development mode everyone may do everything. Only two statements open it to other machines. Nothing starts before `setup` has ended.
#[test]
fn development_mode_is_not_published_by_one_variable() {
    let services = services();
    assert_eq!(services["setup"]["depends_on"]["edge"], Value::Null);
    let entrypoint = texts(&services["setup"]["entrypoint"]);
    let [sh, flag, script] = entrypoint[..] else { panic!("{entrypoint:?}") };
    // `seckill` does nothing: it is a function here.
    let starts = |set: &[(&str, &str)]| {
        let script = format!("seckill() {{ :; }}\n{}", filled(script, set).replace("$$", "$"));
        let dev = filled("${SECKILL_DEV:-1}", set);
        let run = std::process::Command::new(sh).args([flag, &script]).env("SECKILL_DEV", dev).output().unwrap();
        assert_eq!(run.status.success(), run.stderr.is_empty(), "{}", String::from_utf8_lossy(&run.stderr));
        run.status.success()
    };
    assert!(starts(&[]) && starts(&[("PUBLISH", "127.0.0.1:80")]) && starts(&[("PUBLISH", "[::1]:80")]));
    for elsewhere in ["0.0.0.0:80", "80", "[::]:80", "192.0.2.1:80", "127.0.0.1.example:80"] {
        let published = ("PUBLISH", elsewhere);
        assert!(!starts(&[published]) && !starts(&[published, ("PUBLISH_DEVELOPMENT", "1")]), "{elsewhere}");
        assert!(starts(&[published, ("PUBLISH_DEVELOPMENT", "yes")]), "{elsewhere}");
        assert!(starts(&[published, ("SECKILL_DEV", "0")]), "{elsewhere}");
    }
    assert!(!starts(&[("PUBLISH", "0.0.0.0:80"), ("SECKILL_DEV", "true")]));
}

#[test]
fn every_mounted_file_is_in_the_repository_and_read_only() {
    let mut files = 0;
    for (name, service) in services() {
        for volume in texts(&service["volumes"]) {
            let (source, target) = volume.split_once(':').unwrap();
            if let Some(file) = source.strip_prefix("./") {
                assert!(Path::new(TOP).join(file).exists(), "{name} mounts {file}, which does not exist");
                assert!(target.ends_with(":ro"), "{name} can write {file}");
                files += 1;
            }
        }
    }
    assert!(files >= 4, "{files} files are mounted");
}

/// The Dockerfile starts from full versions, copies existing files, and ends without root and with a health check.
#[test]
fn the_dockerfile_ends_in_a_program_without_root() {
    let file = read("Dockerfile").replace("\\\n", " ");
    let steps: Vec<Vec<&str>> = file
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| line.split_whitespace().collect())
        .collect();
    let of = |word: &str| steps.iter().filter(|step| step[0] == word).cloned().collect::<Vec<_>>();
    for from in of("FROM") {
        assert!(is_pinned(from[1]), "{}", from[1]);
    }
    let toolchain = read("Cargo.toml");
    let (_, needed) = toolchain.split_once("rust-version = \"").unwrap();
    let needed = format!("rust:{}.", needed.split('"').next().unwrap());
    assert!(of("FROM")[0][1].starts_with(&needed), "{needed} builds the program");
    let ignored = read(".dockerignore");
    for copy in of("COPY").iter().filter(|copy| !copy[1].starts_with("--from")) {
        for source in &copy[1..copy.len() - 1] {
            assert!(Path::new(TOP).join(source).exists(), "{source} does not exist");
            assert!(!ignored.lines().any(|line| line == *source), "{source} is in .dockerignore");
        }
    }
    // All inputs of the program reach the build.
    let inputs = "src crates tools migrations lua frontend-static .sqlx config.default.toml docs/runbooks";
    for needed in inputs.split(' ') {
        assert!(Path::new(TOP).join(needed).exists() && !ignored.lines().any(|line| line == needed), "{needed}");
    }
    let last = file.rsplit("\nFROM ").next().unwrap();
    let user = last.lines().find_map(|line| line.strip_prefix("USER ")).expect("a user");
    assert!(user.parse::<u32>().is_ok_and(|user| user > 0), "{user}");
    let after = last.split("\nUSER ").nth(1).unwrap();
    assert!(!after.contains("\nRUN ") && after.contains("\nHEALTHCHECK "), "{after}");
}

/// Cargo refuses a manifest that names a missing test, so the Dockerfile's first layers create an empty file for each.
#[test]
fn the_dockerfile_makes_each_test_that_a_manifest_names() {
    let dockerfile = read("Dockerfile");
    let named =
        Regex::new("(?m)^\\[\\[(test|bench|example)\\]\\]\nname = \"([^\"]+)\"\n(?:path = \"([^\"]+)\")?").unwrap();
    let folders = ["crates", "tools"].into_iter().flat_map(|parent| {
        let crates = std::fs::read_dir(Path::new(TOP).join(parent)).unwrap();
        crates.map(move |entry| format!("{parent}/{}/", entry.unwrap().file_name().to_str().unwrap()))
    });
    let mut targets = 0;
    for folder in folders.chain([String::new()]) {
        let manifest = read(&format!("{folder}Cargo.toml"));
        for target in named.captures_iter(&manifest) {
            let path = target
                .get(3)
                .map_or_else(|| format!("{}s/{}.rs", &target[1], &target[2]), |path| path.as_str().to_owned());
            assert!(dockerfile.contains(&format!(">{folder}{path} ")), "{folder}{path}");
            targets += 1;
        }
    }
    assert!(targets >= 2, "{targets} targets are named");
}

/// The program contains pages of docs. The image's build gets only the pages that `.dockerignore` lets through.
#[test]
fn the_image_has_every_page_that_the_program_contains() {
    let ignored = read(".dockerignore");
    let let_through: Vec<&str> = ignored.lines().filter_map(|line| line.strip_prefix('!')).collect();
    let included = Regex::new(r#""(?:\.\./)+(docs/[^"]+)""#).unwrap();
    let mut pages = BTreeSet::new();
    for file in walk(&Path::new(TOP).join("crates")) {
        let Ok(text) = std::fs::read_to_string(file) else { continue };
        pages.extend(included.captures_iter(&text).map(|found| found[1].to_owned()));
    }
    assert_eq!(pages.len(), 2, "{pages:?}");
    let missing: Vec<_> = pages.iter().filter(|page| !let_through.iter().any(|kept| page.starts_with(kept))).collect();
    assert!(missing.is_empty(), "not in the image: {missing:?}");
}

fn walk(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] })
        .filter(|path| path.extension().is_some_and(|kind| kind == "rs"))
        .collect()
}
