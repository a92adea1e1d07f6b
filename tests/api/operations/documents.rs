//! README, docs and runbooks: their shell commands are run as they stand. The documents that a newcomer follows are one script, in the order in
//! which they are read, from the state that `./dev run` leaves. The lines of runbooks only look, so each is run alone.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use regex::Regex;
use seckill_harness::folder::free_address;
use seckill_harness::repository::{TOP, read};
use seckill_harness::{Environment, terms};
use tokio::process::Command;
use tokio::time::timeout;

use super::alarm_drill::programs::Programs;
use crate::network::service_killed::Process;
use crate::pages::served_pages::png;

/// The first words of a block of shell commands. Other blocks are files, requests and diagrams.
const SHELL: [&str; 10] =
    ["eval", "seckill", "curl", "psql", "redis-cli", "api=", "token=$(", "be ", "export", "until"];
/// The documents with such blocks, in the order in which README names them.
const FOLLOWED: [&str; 7] = [
    "README.md",
    "docs/client.md",
    "docs/delivery.md",
    "docs/limits.md",
    "docs/edge.md",
    "docs/security.md",
    "docs/scale.md",
];
/// Documents with such blocks that are not followed.
const NOT_FOLLOWED: [(&str, &str); 4] = [
    ("docs/shop.md", "a test of its own, because it starts the service with other settings"),
    ("docs/install.md", "servers and processes of the machine"),
    ("docs/payments.md", "a bank that runs until it is ended"),
    ("docs/console.md", "mends a database of an older version"),
];
/// What stands in lines that are not run.
const NOT_RUN: [(&str, &str); 8] = [
    ("seckill serve", "runs until it is ended"),
    ("seckill work", "runs until it is ended"),
    ("--watch", "runs until it is ended"),
    ("--latency-history", "runs until it is ended"),
    ("docker ", "no test has Docker"),
    ("sudo ", "a superuser's"),
    ("/var/lib/", "a file of the machine"),
    ("receiver.example", "no such machine"),
];
/// What the reader fills in, and sizes that this machine does not need.
const FILLED_IN: [(&str, &str); 18] = [
    (r"(localhost|127\.0\.0\.1|INSTANCE):8080", "$$SERVICE"),
    (r"WORKER:9100", "$$SERVICE"),
    (r"127\.0\.0\.1:9000", "$$SHOP"),
    (r"shop\.py 9000", "shop.py $${SHOP#*:}"),
    (r"redis://(FIRST|SECOND):6379", "$$REDIS_URL"),
    (r"'POLICY'", "'login'"),
    (r"app APP\b", "app shop"),
    (r"flow:APP", "flow:shop"),
    (r"refunds create ORDER\b", "refunds create $$order"),
    (r"\bID\b", "$$sale"),
    (r"--buyers \d+", "--buyers 200"),
    (r"--bots \d+", "--bots 5"),
    (r"--rate 12000", "--rate 100"),
    (r"--seconds \d+", "--seconds 2"),
    (r"--starts-in 60\b", "--starts-in 1"),
    (r"# asks for a password.*", "<word"),
    // A comment that quotes the answer is checked.
    (r#"^(\s*)(ask .*?)\s+# ("[^"]*":"[^"]*")$"#, "$1$2 | grep -F '$3'"),
    (r"'sk:\{\$sale", "'sk:{'$$sale'"),
];

/// The blocks of a document that are indented by four spaces or more.
fn blocks(text: &str) -> Vec<Vec<&str>> {
    let (mut blocks, mut block, mut is_fenced) = (Vec::new(), Vec::new(), false);
    for line in text.lines().chain([""]) {
        is_fenced ^= line.starts_with("```");
        let (indent, is_code) = (line.len() - line.trim_start().len(), !is_fenced && !line.trim().is_empty());
        if is_code && indent >= 4 {
            block.push(line);
        } else if !block.is_empty() {
            blocks.push(std::mem::take(&mut block));
        }
    }
    blocks
}

fn shell_blocks(document: &str) -> Vec<String> {
    let text = read(document);
    let is_shell = |block: &Vec<&str>| SHELL.iter().any(|word| block[0].trim().starts_with(word));
    blocks(&text).into_iter().filter(is_shell).map(|block| block.join("\n")).collect()
}

/// The lines that are run, as they are run. A line that ends with a backslash goes on.
fn commands(block: &str) -> Vec<String> {
    let (mut lines, mut rest) = (Vec::new(), String::new());
    for line in block.lines() {
        rest += line.trim();
        match rest.strip_suffix('\\') {
            Some(part) => rest = part.to_owned(),
            None => lines.push(std::mem::take(&mut rest)),
        }
    }
    lines.retain(|line| !NOT_RUN.iter().any(|(part, _)| line.contains(part)) || line.starts_with("eval "));
    let fill = |line: String, (pattern, with): &(&str, &str)| {
        Regex::new(pattern).unwrap().replace_all(&line, *with).into_owned()
    };
    lines.into_iter().map(|line| FILLED_IN.iter().fold(line, fill)).collect()
}

/// Every document whose blocks are commands is followed, or says here why it is not.
#[test]
fn no_document_is_forgotten() {
    let docs = fs::read_dir(Path::new(TOP).join("docs")).unwrap().map(|file| file.unwrap().file_name());
    let docs = docs.filter_map(|name| name.into_string().ok().filter(|name| name.ends_with(".md")));
    let named = |document: &str| FOLLOWED.contains(&document) || NOT_FOLLOWED.iter().any(|(name, _)| *name == document);
    for document in docs.map(|name| format!("docs/{name}")).chain(["README.md".to_owned()]) {
        assert_eq!(!shell_blocks(&document).is_empty(), named(&document), "{document}");
    }
}

/// What `./dev` does here with the service, at `$SERVICE`. The rest of the file prints the settings.
const DEV: &str = "#!/bin/sh
case $1 in
  run) eval \"$(./dev env)\"; seckill serve --with-workers >service.log 2>&1 & echo $! >pid
    until curl -fso /dev/null $SERVICE/readyz; do sleep 0.2; done; exit ;;
  stop) kill \"$(cat pid)\" && rm pid; exit ;;
esac
";

/// A folder as the repository is after `./dev run`, with the bank, and with the service or without.
struct Newcomer {
    programs: Programs,
    path: String,
    service: SocketAddr,
    _running: Vec<Process>,
}

impl Newcomer {
    async fn start(with_service: bool) -> Self {
        let [service, bank] = [free_address(), free_address()];
        let url = format!("http://{bank}");
        let programs = Programs::prepare(&[("SECKILL_CHANNELS__SANDBOX__URL", url.as_str())]).await;
        let folder = programs.folder.path();
        let callbacks = format!("http://{service}/api/v1/payments/callbacks/sandbox");
        let books = folder.join("bank.jsonl");
        let settings = [
            ("SECKILL_SANDBOX__DATA_FILE", books.to_str().unwrap()),
            ("SECKILL_SANDBOX__CALLBACK_URL", callbacks.as_str()),
        ];
        let mut running = vec![programs.start("bank", bank, &["channel-sandbox"], &settings).await];
        if with_service {
            running.push(programs.start("service", service, &["serve", "--with-workers"], &[]).await);
        }
        let mut environment = programs.system.environment.clone();
        environment.insert("SECKILL_HTTP__BIND".into(), service.to_string());
        Self::furnish(folder, &environment);
        let path = format!("{}/target/release:{}", folder.display(), std::env::var("PATH").unwrap());
        Self { programs, path, service, _running: running }
    }

    /// What the commands of the documents expect in their folder.
    fn furnish(folder: &Path, environment: &Environment) {
        let export = |(name, value): (&String, &String)| match name.as_str() {
            "SECKILL_AUTH__JWT_SECRET" => format!("echo \"export {name}=${{{name}:-{value}}}\"\n"),
            _ => format!("echo \"export {name}='{value}'\"\n"),
        };
        fs::write(folder.join("dev"), DEV.to_owned() + &environment.iter().map(export).collect::<String>()).unwrap();
        fs::set_permissions(folder.join("dev"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::create_dir_all(folder.join("target/release")).unwrap();
        symlink(env!("CARGO_BIN_EXE_seckill"), folder.join("target/release/seckill")).unwrap();
        symlink(Path::new(TOP).join("deploy"), folder.join("deploy")).unwrap();
        fs::write(folder.join("phone.jpg"), png(40, 40, [200, 0, 0])).unwrap();
        fs::write(folder.join("word"), "a long word, and nobody's\n").unwrap();
    }

    async fn bash(&self, script: &str) -> Output {
        let mut bash = Command::new("bash");
        bash.args(["-eo", "pipefail", "-c", script]).current_dir(self.programs.folder.path());
        bash.stdin(Stdio::null()).kill_on_drop(true).env_clear().env("PATH", &self.path);
        bash.env("SERVICE", self.service.to_string()).env("SHOP", free_address().to_string());
        timeout(Duration::from_secs(400), bash.output()).await.expect("the commands end").unwrap()
    }

    /// Runs the documents as one script, and returns what the commands print.
    async fn follow(&self, documents: &[&str], begin: &str) -> String {
        let mut script = format!("set -x; {begin}\n");
        for document in documents {
            let blocks = shell_blocks(document);
            assert!(!blocks.is_empty(), "{document}");
            script += &format!(": {document}\n");
            for block in blocks {
                // A buyer cannot be erased while a sale knows it.
                script += &commands(&block.replace("--user ID", "--user nobody")).join("\n");
                script.push('\n');
            }
        }
        let done = self.bash(&script).await;
        let [told, steps] = [&done.stdout, &done.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
        let last: Vec<&str> = steps.lines().skip(steps.lines().count().saturating_sub(12)).collect();
        assert!(done.status.success(), "{last:#?}\n{told}");
        told
    }
}

/// README and the documents that it leads to, by somebody who copies every block.
#[tokio::test(flavor = "multi_thread")]
async fn a_newcomer_who_follows_the_documents_meets_no_error() {
    let newcomer = Newcomer::start(true).await;
    let told = newcomer.follow(&FOLLOWED, "").await;
    for said in ["\"status\":\"paid\"", "\"status\":\"refunded\"", "\"code\":1", "held"] {
        assert!(told.contains(said), "{said} is missing in {told}");
    }
    newcomer.programs.system.finish().await;
}

/// deploy/shop.py signs tokens that buy, and believes the webhooks of its own orders.
#[tokio::test(flavor = "multi_thread")]
async fn a_shop_is_connected_as_its_document_says() {
    let newcomer = Newcomer::start(false).await;
    let told = newcomer.follow(&["docs/shop.md"], "trap 'kill $(jobs -p) $(cat pid)' EXIT").await;
    assert!(told.contains("of ann is paid"), "{told}");
    newcomer.programs.system.finish().await;
}

/// Each line of a runbook's blocks, after a sale has been bought in.
#[tokio::test(flavor = "multi_thread")]
async fn an_operator_can_run_every_line_of_the_runbooks() {
    let newcomer = Newcomer::start(true).await;
    let sale = newcomer.programs.system.create_sale(terms(5)).await;
    let prelude = format!("eval \"$(./dev env)\"; sale={} order=0197b2f0-0000-7000-8000-000000000001", sale.id);
    let prepare = format!(
        "{prelude}; seckill app create shop; seckill policy set --app shop --name login --algorithm token-bucket --rate 5 --capacity 9"
    );
    let prepared = newcomer.bash(&prepare).await;
    assert!(prepared.status.success(), "{prepared:?}");
    let (mut failed, mut run) = (Vec::new(), 0);
    let mut files: Vec<_> =
        fs::read_dir(Path::new(TOP).join("docs/runbooks")).unwrap().map(|file| file.unwrap().file_name()).collect();
    // tests/money/restore_drill.rs does what that one says.
    files.retain(|file| file != "backup-and-restore.md");
    files.sort();
    for file in files {
        let document = format!("docs/runbooks/{}", file.to_str().unwrap());
        for line in shell_blocks(&document).iter().flat_map(|block| commands(block)) {
            if !SHELL.iter().any(|word| line.starts_with(word))
                || ["eval", "export"].iter().any(|word| line.starts_with(word))
            {
                continue;
            }
            let done = newcomer.bash(&format!("{prelude}; {line}")).await;
            run += 1;
            // 1 is an answer of `grep`, and of commands that judge the system.
            let error = String::from_utf8_lossy(&done.stderr).into_owned();
            let may_fail = ["| grep", "seckill doctor"].iter().any(|part| line.contains(part)) && error.is_empty();
            if !(done.status.success() || (may_fail && done.status.code() == Some(1))) {
                failed.push(format!("{document}: {line}: {} {error}", done.status));
            }
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(run > 60, "{run} lines");
    newcomer.programs.system.finish().await;
}
