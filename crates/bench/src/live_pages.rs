//! The live pages of a sale: managers who watch it in the console while it sells.

use std::process::Stdio;

use anyhow::{Context, ensure};
use reqwest::header::{COOKIE, SET_COOKIE};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::task::JoinSet;

use crate::processes::program;
use crate::service::{Sale, Service};

/// Pages that are open, shared among accounts, each of which may have eight.
pub const PAGES: usize = 10;
const ACCOUNTS: usize = 2;

/// The cookies of managers who are signed in.
pub struct Managers(Vec<String>);

impl Managers {
    /// Creates accounts and signs them in.
    pub async fn sign_in(service: &Service) -> anyhow::Result<Self> {
        let mut cookies = Vec::new();
        for _ in 0..ACCOUNTS {
            let (name, password) = (format!("bench-{}", uuid::Uuid::new_v4()), uuid::Uuid::new_v4().to_string());
            let mut create = Command::new(program()?);
            create.args(["admin", "create", "--name", &name, "--role", "manager"]);
            let mut create = create.stdin(Stdio::piped()).kill_on_drop(true).spawn()?;
            let line = format!("{password}\n");
            create.stdin.take().context("no stdin")?.write_all(line.as_bytes()).await?;
            ensure!(create.wait().await?.success(), "the account {name} could not be created");
            let url = format!("http://{}/api/v1/admin/session", service.process.address);
            let credentials = json!({ "name": name, "password": password }).to_string();
            let sign_in = service.client.post(url).header("Content-Type", "application/json").body(credentials);
            let answer = sign_in.send().await?.error_for_status()?;
            let mut set = answer.headers().get_all(SET_COOKIE).iter().filter_map(|cookie| cookie.to_str().ok());
            let session = set.find(|cookie| cookie.contains("seckill_session=")).context("no session's cookie")?;
            cookies.push(session.split(';').next().unwrap_or_default().to_owned());
        }
        Ok(Self(cookies))
    }

    /// Opens the live pages' streams of a sale. Each is read until the result is dropped.
    pub async fn watch(&self, service: &Service, sale: &Sale) -> anyhow::Result<JoinSet<()>> {
        let url = format!("http://{}/api/v1/admin/sales/{}/live", service.process.address, sale.id);
        let mut pages = JoinSet::new();
        for cookie in self.0.iter().cycle().take(PAGES) {
            let mut stream = service.client.get(&url).header(COOKIE, cookie).send().await?.error_for_status()?;
            ensure!(stream.chunk().await?.is_some(), "a live page's stream has ended");
            pages.spawn(async move { while let Ok(Some(_)) = stream.chunk().await {} });
        }
        Ok(pages)
    }
}
