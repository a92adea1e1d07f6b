//! A session of Chromium through fantoccini and chromedriver, and commands that fantoccini lacks.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fantoccini::wd::WebDriverCompatibleCommand;
use fantoccini::{Client, ClientBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use reqwest::Method;
use seckill_harness::PATIENCE;
use seckill_harness::folder::Folder;
use serde_json::{Value, json};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};
use url::{ParseError, Url};

use crate::program::Server;

const SCREENSHOTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/screenshots");

/// Chromium without a screen: it starts in a fifth of the full browser's processor time.
const BROWSER: &str = "/usr/lib/chromium/chromium-headless-shell";

/// It also runs as root, and connects only to the pages' servers.
const FLAGS: [&str; 12] = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--lang=en-US",
    "--accept-lang=en-US,en",
    "--remote-debugging-port=0",
    "--window-size=1280,900",
];

const LOOK_EVERY: Duration = Duration::from_millis(50);

#[derive(Debug)]
struct Post {
    path: &'static str,
    body: Value,
}

impl WebDriverCompatibleCommand for Post {
    fn endpoint(&self, base: &Url, session: Option<&str>) -> Result<Url, ParseError> {
        base.join(&format!("session/{}/{}", session.unwrap_or_default(), self.path))
    }

    fn method_and_body(&self, _: &Url) -> (Method, Option<String>) {
        (Method::POST, Some(self.body.to_string()))
    }
}

/// A browser with an empty profile and one page. The fields are dropped in their order.
pub struct Page {
    pub client: Client,
    _driver: Server,
    _browser: Child,
    _profile: Folder,
}

/// A browser may end during its start next to others. Then it is started again, up to this number of starts.
const STARTS: usize = 3;

impl Page {
    pub async fn open() -> Self {
        let mut failed = String::new();
        for _ in 0..STARTS {
            match Self::try_open().await {
                Ok(page) => return page,
                Err(error) => failed = error,
            }
        }
        panic!("./dev test installs chromium-headless-shell and chromium-driver: {failed}");
    }

    async fn try_open() -> Result<Self, String> {
        let profile = Folder::new("browser");
        let (browser, port) = start_browser(&profile).await?;
        // It has no page yet.
        let new = reqwest::Client::new().put(format!("http://127.0.0.1:{port}/json/new")).send().await;
        new.and_then(reqwest::Response::error_for_status).map_err(|error| error.to_string())?;
        let driver = Server::start(home(&mut Server::command("/usr/bin/chromedriver"), &profile).arg("--port=0")).await;
        let patience_ms = u64::try_from(PATIENCE.as_millis()).unwrap();
        let capabilities = json!({
            "goog:chromeOptions": { "debuggerAddress": format!("127.0.0.1:{port}") },
            "goog:loggingPrefs": { "browser": "ALL" },
            "timeouts": { "pageLoad": patience_ms, "script": patience_ms },
        });
        let Value::Object(capabilities) = capabilities else { unreachable!("an object was written") };
        let client = ClientBuilder::new(HttpConnector::new())
            .capabilities(capabilities)
            .connect(&format!("http://127.0.0.1:{}", driver.port))
            .await
            .map_err(|error| error.to_string())?;
        Ok(Self { client, _driver: driver, _browser: browser, _profile: profile })
    }

    /// Ends the browser. No script of a page may have failed or broken the page's content policy.
    pub async fn close(self) {
        let log = self.post("se/log", json!({ "type": "browser" })).await.unwrap();
        // The browser reports a refused purchase as an error of the source "network".
        let bad = |entry: &&Value| entry["level"] == "SEVERE" && entry["source"] != "network";
        let complaints: Vec<_> = log.as_array().unwrap().iter().filter(bad).map(|entry| &entry["message"]).collect();
        self.client.clone().close().await.unwrap();
        assert!(complaints.is_empty(), "{complaints:#?}");
    }

    pub async fn post(&self, path: &'static str, body: Value) -> Result<Value, String> {
        self.client.issue_cmd(Post { path, body }).await.map_err(|error| error.to_string())
    }

    pub async fn devtools(&self, command: &str, parameters: Value) -> Value {
        self.try_devtools(command, parameters).await.unwrap_or_else(|error| panic!("{command}: {error}"))
    }

    async fn try_devtools(&self, command: &str, parameters: Value) -> Result<Value, String> {
        self.post("goog/cdp/execute", json!({ "cmd": command, "params": parameters })).await
    }

    /// The value of an expression in the page, or of its promise. The page's content policy does not apply.
    pub async fn try_evaluate(&self, expression: &str) -> Result<Value, String> {
        let parameters = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let mut answer = self.try_devtools("Runtime.evaluate", parameters).await?;
        match answer.get("exceptionDetails") {
            Some(details) => Err(format!("{expression}: {details}")),
            None => Ok(answer["result"]["value"].take()),
        }
    }

    pub async fn evaluate(&self, expression: &str) -> Value {
        self.try_evaluate(expression).await.unwrap()
    }

    pub async fn number(&self, expression: &str) -> f64 {
        let value = self.evaluate(expression).await;
        value.as_f64().unwrap_or_else(|| panic!("{expression} is {value}"))
    }

    pub async fn is_true(&self, expression: &str) -> bool {
        self.evaluate(&format!("Boolean({expression})")).await == true
    }

    /// Waits until an expression is true in the page. Fails with a picture of the page.
    pub async fn wait(&self, expression: &str) {
        let condition = format!("Boolean({expression})");
        let deadline = Instant::now() + PATIENCE;
        loop {
            // An error is no result: the page may be loading, or the element may not exist yet.
            let found = self.try_evaluate(&condition).await;
            if found == Ok(Value::Bool(true)) {
                return;
            }
            if Instant::now() > deadline {
                self.give_up(expression, &found).await;
            }
            sleep(LOOK_EVERY).await;
        }
    }

    async fn give_up(&self, expression: &str, found: &Result<Value, String>) -> ! {
        let test = std::thread::current().name().unwrap_or("test").replace("::", "-");
        let name = format!("failed-{test}");
        self.screenshot(&name).await;
        let shown = self.try_evaluate("location.href + '\\n' + document.body.innerText").await.unwrap_or_default();
        let shown = shown.as_str().unwrap_or_default();
        panic!("not so in time: {expression} ({found:?}). See {SCREENSHOTS}/{name}.png. The page:\n{shown}");
    }

    /// Writes a picture of the whole page, after its animations have ended.
    pub async fn screenshot(&self, name: &str) {
        let still = "document.getAnimations().every((one) => !(one instanceof CSSTransition))";
        let deadline = Instant::now() + Duration::from_secs(5);
        while self.try_evaluate(still).await == Ok(Value::Bool(false)) && Instant::now() < deadline {
            sleep(LOOK_EVERY).await;
        }
        std::fs::create_dir_all(SCREENSHOTS).unwrap();
        let size = self.devtools("Page.getLayoutMetrics", json!({})).await["cssContentSize"].take();
        let clip = json!({ "x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1 });
        let parameters = json!({ "format": "png", "captureBeyondViewport": true, "clip": clip });
        let taken = self.devtools("Page.captureScreenshot", parameters).await;
        let file = Path::new(SCREENSHOTS).join(format!("{name}.png"));
        std::fs::write(file, STANDARD.decode(taken["data"].as_str().unwrap()).unwrap()).unwrap();
    }
}

fn home<'a>(command: &'a mut Command, folder: &Folder) -> &'a mut Command {
    command.env("HOME", folder.file(""))
}

/// A browser, and the port at which it takes commands.
async fn start_browser(folder: &Folder) -> Result<(Child, u16), String> {
    let mut command = Server::command(BROWSER);
    home(&mut command, folder).args(FLAGS).arg(format!("--user-data-dir={}", folder.file("profile")));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let mut browser = command.spawn().expect("setpriv, which every Debian has");
    // The first line of this file.
    let file = folder.file("profile/DevToolsActivePort");
    let deadline = Instant::now() + PATIENCE;
    loop {
        let written = std::fs::read_to_string(&file).unwrap_or_default();
        if let Some(port) = written.split_once('\n').and_then(|(port, _)| port.parse().ok()) {
            return Ok((browser, port));
        }
        match browser.try_wait() {
            Ok(None) if Instant::now() < deadline => sleep(LOOK_EVERY).await,
            ended => return Err(format!("the browser has no port: {ended:?}")),
        }
    }
}
