//! What a permit for each request costs at a gateway: requests a second to the hello-world server alone, behind nginx, and behind
//! nginx with deploy/gateway.conf.

use std::fmt::Write;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::processes::{Meter, Process, seckill};
use crate::series::{Series, thousands, two_places};
use crate::service::Service;
use crate::throttlecrab::PLENTY;
use crate::wrk::{self, Seen};

/// Parallel callers. Each sends its next request after the last answer.
const CALLERS: u64 = 64;
const CONFIGURATION: &str = "deploy/gateway.conf";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Alone,
    Nginx,
    Granted,
    Refused,
}

impl Way {
    const ALL: [Self; 4] = [Self::Alone, Self::Nginx, Self::Granted, Self::Refused];

    fn title(self) -> &'static str {
        match self {
            Self::Alone => "hello-world POST, alone",
            Self::Nginx => "behind nginx",
            Self::Granted => "behind nginx, with a permit for each",
            Self::Refused => "refused by the gateway (429)",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::Nginx => "nginx",
            Self::Granted => "granted",
            Self::Refused => "refused",
        }
    }

    /// deploy/gateway.conf counts `/` and `/search/` by policies of their own.
    fn path(self) -> &'static str {
        match self {
            Self::Alone | Self::Nginx | Self::Granted => "/",
            Self::Refused => "/search/",
        }
    }
}

/// One way in one round.
struct Round {
    seen: Seen,
    /// Microseconds of CPU a request, by process.
    cpu_us: Vec<(&'static str, f64)>,
}

pub struct Results {
    seconds: u64,
    /// By way, in the order of `Way::ALL`.
    rounds: Vec<Vec<Round>>,
}

/// Plays all ways in each round.
pub async fn measure(
    service: &Service,
    servers: &[(&'static str, u32)],
    hello: &Path,
    logs: &Path,
    rounds: u64,
    seconds: u64,
) -> anyhow::Result<Results> {
    let token = seckill(&["app", "create", "gateway"]).await?["token"].as_str().context("no token")?.to_owned();
    let plenty = PLENTY.to_string();
    let set = ["policy", "set", "--app", "gateway", "--name"];
    let granted = ["web", "--algorithm", "token-bucket", "--rate", &plenty, "--capacity", &plenty];
    let refused = ["search", "--algorithm", "fixed-window", "--limit", "1", "--window-ms", "86400000"];
    seckill(&[&set[..], &granted].concat()).await?;
    seckill(&[&set[..], &refused].concat()).await?;

    let command = |address: SocketAddr| {
        let mut command = Command::new(hello);
        command.arg(address.to_string());
        Ok(command)
    };
    let hello = Process::start(&logs.join("hello.log"), command)?.ready(&service.client, "/").await?;
    let asking = nginx(logs, "asking", service, &hello, &token, &[]).await?;
    // The same without the question.
    let passing = nginx(logs, "passing", service, &hello, &token, &[("      auth_request /_seckill;\n", "")]).await?;
    let behind = |others: &[(&'static str, &Process)]| {
        let mut all = servers.to_vec();
        all.extend(others.iter().map(|(name, process)| (*name, process.pid)));
        all
    };
    let mut all: Vec<Vec<Round>> = Way::ALL.iter().map(|_| Vec::new()).collect();
    for n in 1..=rounds {
        eprintln!("gateway: round {n} of {rounds}");
        for (way, rounds) in Way::ALL.into_iter().zip(&mut all) {
            let server = match way {
                Way::Alone => &hello,
                Way::Nginx => &passing,
                Way::Granted | Way::Refused => &asking,
            };
            let meter = Meter::start(server.pid, &behind(&[("hello", &hello), ("seckill", &service.process)]))?;
            let seen = wrk::run("permits.lua", server.address, CALLERS, &[way.path(), "", "{}", "1"], seconds).await?;
            let cpu_us = meter.read(seen.requests)?;
            // The first request of a day is granted.
            let refused = if way == Way::Refused { seen.requests - 1..=seen.requests } else { 0..=0 };
            ensure!(refused.contains(&seen.refused), "{way:?}: {} of {} were refused", seen.refused, seen.requests);
            rounds.push(Round { seen, cpu_us });
        }
    }
    Ok(Results { seconds, rounds: all })
}

/// nginx with deploy/gateway.conf between the service and the hello-world server, as one process. Each changed text must be there.
async fn nginx(
    logs: &Path,
    name: &str,
    service: &Service,
    hello: &Process,
    token: &str,
    changes: &[(&str, &str)],
) -> anyhow::Result<Process> {
    let folder = std::path::absolute(format!(".dev/bench/nginx-{name}"))?;
    std::fs::create_dir_all(&folder)?;
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let here = folder.display();
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let temporary = temporary.map(|kind| format!("{kind}_temp_path {here}/{kind};\n")).concat();
    let (listen, http) = (format!("listen {address} backlog=4096;"), format!("http {{\n{temporary}"));
    let (seckill, app) = (service.process.address.to_string(), hello.address.to_string());
    let include = format!("{here}/");
    let own = [
        ("listen 80 backlog=4096;", listen.as_str()),
        ("http {\n", &http),
        ("access_log /dev/stdout combined buffer=64k flush=2s;", "access_log off;"),
        ("/etc/nginx/seckill/", &include),
        ("serve-1:8080", &seckill),
        ("    server serve-2:8080 max_fails=2 fail_timeout=2s;\n", ""),
        ("app:8080", &app),
        // A gateway should not wait so long, but a busy machine may take longer than half a second.
        ("proxy_read_timeout 500ms;", "proxy_read_timeout 5s;"),
    ];
    let mut text = std::fs::read_to_string(CONFIGURATION).with_context(|| CONFIGURATION)?;
    for (from, to) in own.iter().chain(changes) {
        ensure!(text.contains(from), "{CONFIGURATION} has no {from}");
        text = text.replace(from, to);
    }
    std::fs::copy("deploy/client.conf", folder.join("client.conf"))?;
    let secret = format!("proxy_set_header Authorization \"Bearer {token}\";\n");
    std::fs::write(folder.join("gateway-token.conf"), secret)?;
    let file = folder.join("nginx.conf");
    std::fs::write(&file, text)?;
    let mut command = Command::new("/usr/sbin/nginx");
    command.args(["-e", "/dev/stderr", "-c"]).arg(&file);
    command.args(["-g", &format!("daemon off; master_process off; pid {here}/pid;")]);
    let process = Process::start_at(address, &logs.join(format!("nginx-{name}.log")), &mut command)?;
    process.ready(&service.client, "/").await
}

impl Results {
    fn series(&self, way: Way, figure: impl Fn(&Round) -> f64) -> Series {
        Series::of(self.rounds[way as usize].iter().map(figure))
    }

    fn rate(&self, way: Way) -> Series {
        self.series(way, |round| round.seen.per_second())
    }

    fn cpu_us(&self, way: Way, process: &str) -> f64 {
        let of = |round: &Round| round.cpu_us.iter().find(|(name, _)| *name == process).map(|(_, us)| *us);
        self.series(way, |round| of(round).unwrap_or(f64::NAN)).median()
    }

    pub fn markdown(&self, text: &mut String) {
        let _ = writeln!(
            text,
            "\n| {CALLERS} callers, {} rounds of {} s | requests/s | of nginx alone | p50, p99 ms | CPU µs: front, hello, \
             seckill, Redis |\n|---|---|---|---|---|",
            self.rounds[0].len(),
            self.seconds
        );
        for way in Way::ALL {
            let ms = |figure: fn(&Round) -> u64| self.series(way, |round| figure(round) as f64 / 1000.0).median();
            let of_nginx = self.rate(way).over(&self.rate(Way::Nginx)).with_range(two_places);
            let cpu =
                ["server", "hello", "seckill", "redis"].map(|process| format!("{:.1}", self.cpu_us(way, process)));
            let _ = writeln!(
                text,
                "| {} | {} | {of_nginx} | {:.2}, {:.2} | {} |",
                way.title(),
                self.rate(way).with_range(thousands),
                ms(|round| round.seen.p50_us),
                ms(|round| round.seen.p99_us),
                cpu.join(", ")
            );
        }
        text.push_str(
            "\nnginx is one process. The front is what the callers speak to: the hello-world server, or nginx.\n",
        );
    }

    pub fn json(&self) -> Value {
        let ways = Way::ALL.map(|way| {
            let cpu = ["server", "hello", "seckill", "redis"];
            let cpu = cpu.map(|name| (name.to_owned(), json!(self.cpu_us(way, name))));
            json!({
                "way": way.name(),
                "cpu_us": cpu.into_iter().collect::<serde_json::Map<_, _>>(),
                "per_second": self.rate(way).json(),
                "p50_us": self.series(way, |round| round.seen.p50_us as f64).json(),
                "p99_us": self.series(way, |round| round.seen.p99_us as f64).json(),
            })
        });
        json!({ "callers": CALLERS, "seconds": self.seconds, "ways": ways })
    }
}
