//! Programs that a test starts. They end with the test.

use std::process::Stdio;

use seckill_harness::PATIENCE;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

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
