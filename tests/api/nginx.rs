//! nginx, as Debian ships it, with the files of deploy/. Only addresses, folders and the numbers of limits are other ones here.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use reqwest::Response;
use seckill_harness::eventually;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use crate::service_killed::free_address;

const DEPLOY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy");

/// A folder of its own, removed with the value.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        let path = std::env::temp_dir().join(format!("seckill-{}", uuid::Uuid::new_v4().simple()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A running nginx. It ends with the value.
pub struct Nginx {
    pub address: SocketAddr,
    _process: Child,
    _folder: Folder,
}

impl Nginx {
    /// Runs a file of deploy/ with some texts replaced, each of which must be there. `beside` are files that it includes from
    /// /etc/nginx/seckill/ and that deploy/ does not have.
    pub async fn start(file: &str, changes: &[(&str, &str)], beside: &[(&str, &str)]) -> Self {
        let (address, folder) = (free_address(), Folder::new());
        let configuration = write(&folder, file, address, changes, beside);
        let process = command(&folder, &configuration)
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("./dev test installs nginx");
        eventually(|| async { TcpStream::connect(address).await.map(drop).map_err(|error| error.to_string()) }).await;
        Self { address, _process: process, _folder: folder }
    }

    /// The edge in front of one instance, with the pages in `site`.
    pub async fn edge(instance: SocketAddr, site: &Path, changes: &[(&str, &str)]) -> Self {
        let (instance, states) = (instance.to_string(), free_address().to_string());
        let site = site.to_string_lossy();
        let own = [
            ("serve-1:8080", instance.as_str()),
            ("    server serve-2:8080 max_fails=2 fail_timeout=2s;\n", ""),
            ("127.0.0.1:8081", &states),
            ("/var/www/seckill", &site),
        ];
        Self::start("nginx.conf", &[&own[..], changes].concat(), &[]).await
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub async fn get(&self, path: &str) -> Response {
        reqwest::get(self.url(path)).await.unwrap()
    }
}

/// Writes a file of deploy/ and what it includes into the folder. Returns its path.
fn write(
    folder: &Folder,
    file: &str,
    address: SocketAddr,
    changes: &[(&str, &str)],
    beside: &[(&str, &str)],
) -> PathBuf {
    let here = folder.path().display().to_string();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {here}/{kind};\n"))
        .concat();
    let (listen, http, included) = (format!("listen {address};"), format!("http {{\n{temporary}"), format!("{here}/"));
    let mut text = std::fs::read_to_string(format!("{DEPLOY}/{file}")).unwrap();
    let own = [
        ("listen 80 backlog=4096;", listen.as_str()),
        ("http {\n", &http),
        ("access_log /dev/stdout combined buffer=64k flush=2s;", "access_log off;"),
        ("/etc/nginx/seckill/", &included),
    ];
    for (from, to) in own.iter().chain(changes) {
        assert!(text.contains(from), "{file} has no {from}");
        text = text.replace(from, to);
    }
    // Not every file has a cache.
    text = text.replace("/var/cache/nginx/", &included);
    for included in ["client.conf", "headers.conf"] {
        std::fs::copy(format!("{DEPLOY}/{included}"), folder.path().join(included)).unwrap();
    }
    for (name, content) in beside {
        std::fs::write(folder.path().join(name), content).unwrap();
    }
    let path = folder.path().join(file);
    std::fs::write(&path, text).unwrap();
    path
}

fn command(folder: &Folder, configuration: &Path) -> Command {
    let mut nginx = Command::new("/usr/sbin/nginx");
    nginx.args(["-e", "/dev/stderr", "-c"]).arg(configuration);
    // One process, which ends with the test.
    let globals = format!("daemon off; master_process off; pid {}/pid;", folder.path().display());
    nginx.args(["-g", &globals]);
    nginx
}

/// What `nginx -t` says of a file.
async fn checked(file: &str, changes: &[(&str, &str)], beside: &[(&str, &str)]) -> Output {
    let folder = Folder::new();
    let configuration = write(&folder, file, free_address(), changes, beside);
    command(&folder, &configuration).arg("-t").output().await.expect("./dev test installs nginx")
}

/// Each file of deploy/ is one that nginx takes without a warning, alone or included by another one.
#[tokio::test(flavor = "multi_thread")]
async fn nginx_takes_every_file_of_deploy() {
    let names = std::fs::read_dir(DEPLOY).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let texts: Vec<(String, String)> = names
        .filter(|name| name.ends_with(".conf"))
        .map(|name| (name.clone(), std::fs::read_to_string(format!("{DEPLOY}/{name}")).unwrap()))
        .collect();
    let mut checked_files = 0;
    for (file, text) in &texts {
        if !text.contains("http {") {
            let includes = format!("include /etc/nginx/seckill/{file};");
            assert!(texts.iter().any(|(_, other)| other.contains(&includes)), "nothing includes {file}");
            continue;
        }
        // Names that only the network of compose.yaml knows.
        let hosts = ["serve-1:8080", "serve-2:8080", "app:8080"];
        let known = hosts.into_iter().filter(|host| text.contains(host)).map(|host| (host, "127.0.0.1:9"));
        let token = [("gateway-token.conf", "proxy_set_header Authorization \"Bearer x\";\n")];
        let output = checked(file, &known.collect::<Vec<_>>(), &token).await;
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !said.contains("[warn]"), "{file}: {said}");
        checked_files += 1;
    }
    assert!(checked_files >= 2, "{checked_files} files");
}
