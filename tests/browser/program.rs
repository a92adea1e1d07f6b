//! Programs that a test starts. They end with the test.

use std::path::PathBuf;
use std::process::Stdio;

use seckill_harness::PATIENCE;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;
use uuid::Uuid;

/// A folder of a test, removed when the value is dropped.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("browser-{}", Uuid::new_v4().simple()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    pub fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A process that was just killed may still write. The rest is deleted with the target folder.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// chromedriver takes a free port of IPv6, and ends if the same port of IPv4 is taken. Then it is started again, up to this number of
/// starts.
const STARTS: usize = 5;

/// A server that chooses its own port, and prints it. It is killed when the value is dropped.
pub struct Server {
    pub port: u16,
    _child: Child,
}

impl Server {
    /// A command with a process that the kernel kills when the calling thread ends: a killed test cannot end it itself.
    pub fn command(program: &str) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", program]);
        command
    }

    /// Starts the command, and waits until it has printed its port.
    pub async fn start(command: &mut Command) -> Self {
        for _ in 0..STARTS {
            if let Some(server) = Self::try_start(command).await {
                return server;
            }
        }
        panic!("{command:?} ended {STARTS} times");
    }

    /// `None` if the program ends before it has a port.
    async fn try_start(command: &mut Command) -> Option<Self> {
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.kill_on_drop(true).spawn().expect("setpriv, which every Debian has");
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let printed = async {
            while let Some(line) = lines.next_line().await.unwrap() {
                if let Some(port) = port(&line) {
                    return Some(port);
                }
            }
            None
        };
        let port = timeout(PATIENCE, printed).await.expect("the program prints its port")?;
        // Reads on, so that a full pipe never blocks the program.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Some(Self { port, _child: child })
    }
}

/// The port that a line names: "… was started successfully on port 40123." Port 0 only repeats the argument.
fn port(line: &str) -> Option<u16> {
    let (_, rest) = line.split_once(" port ")?;
    let digits = rest.split(|letter: char| !letter.is_ascii_digit()).next()?;
    digits.parse().ok().filter(|port| *port > 0)
}
