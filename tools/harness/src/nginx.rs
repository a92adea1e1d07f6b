//! nginx, as Debian ships it, with the files of deploy/. Only addresses, folders and the numbers of limits are other ones here.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use reqwest::Response;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use crate::eventually;
use crate::folder::{Folder, free_address};

pub const DEPLOY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy");

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
        let (address, folder) = (free_address(), Folder::new("nginx"));
        let configuration = write(&folder, file, address, changes, beside);
        let process = command(&folder, &configuration)
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("./dev test installs nginx");
        eventually(|| async { TcpStream::connect(address).await.map(drop).map_err(|error| error.to_string()) }).await;
        Self { address, _process: process, _folder: folder }
    }

    /// The edge in front of these instances, with the pages in `site`.
    pub async fn edge(instances: &[SocketAddr], site: &Path, changes: &[(&str, &str)]) -> Self {
        let (states, site) = (free_address().to_string(), site.to_string_lossy());
        let own = [("127.0.0.1:8081", states.as_str()), ("/var/www/seckill", &site)];
        let beside = [(INSTANCES, &*servers(instances))];
        Self::start("nginx.conf", &[&own[..], changes].concat(), &beside).await
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub async fn get(&self, path: &str) -> Response {
        reqwest::get(self.url(path)).await.unwrap()
    }
}

/// The file of deploy/ with the instances of `serve`, and its text for these.
pub const INSTANCES: &str = "instances.conf";
pub fn servers(instances: &[SocketAddr]) -> String {
    instances.iter().map(|instance| format!("server {instance} max_fails=2 fail_timeout=2s;\n")).collect()
}

/// Writes a file of deploy/, with the files it includes, into the folder. Returns its path.
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

/// The verdict of `nginx -t` on a file of deploy/.
pub async fn checked(file: &str, changes: &[(&str, &str)], beside: &[(&str, &str)]) -> Output {
    let folder = Folder::new("nginx");
    let configuration = write(&folder, file, free_address(), changes, beside);
    command(&folder, &configuration).arg("-t").output().await.expect("./dev test installs nginx")
}
