//! The HTTP server: its socket, its threads, and the limits of its connections.

use std::future::ready;
use std::net::{SocketAddr, TcpListener};
use std::num::NonZero;
use std::rc::Rc;
use std::time::Duration;

use actix_http::HttpService;
use actix_server::ServerBuilder;
use actix_service::{IntoServiceFactory, ServiceFactory, ServiceFactoryExt, fn_factory, fn_service, map_config};
use actix_web::body::MessageBody;
use actix_web::dev::{AppConfig, Server, ServiceRequest, ServiceResponse};
use actix_web::{App, Error};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::{TcpSocket, TcpStream};

use super::connection::{Bounds, TimedStream};
use super::front::Front;
use super::slices::SLICE;
use crate::api::Shortcut;
use seckill_config as config;
use seckill_domain::origin::Origin;

/// Connections waiting to be accepted. A sale opens for everyone at once.
const BACKLOG: u32 = 4096;
/// Files and sockets reserved for other uses than clients: connections to the servers behind, and logs.
const FILES_KEPT: u64 = 256;
/// Two heartbeats of a stream of events (`buying::api::events`). A silent stream is not idle.
const HEARTBEATS: Duration = Duration::from_secs(30);
/// How long after actix-web's deadline an idle connection is closed here, if actix-web has not done so.
const IDLE_GRACE: Duration = Duration::from_secs(5);
/// How much may follow a request's body before the answer, in bytes: hundreds of requests. With the default body limit, this is below
/// actix-http's buffer (128 KiB).
const SENT_AHEAD: usize = 64 * 1024;
/// How long a client may take to close a connection with an unread body.
const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// The kernel's send buffer, in bytes. Linux doubles the number, for its own bookkeeping. Without this limit, the buffer grows to
/// megabytes.
const SEND_BUFFER: u32 = 128 * 1024;

pub(crate) fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    // Accepted connections inherit both. With Nagle's algorithm, the end of an answer would wait 40 ms for the client's kernel.
    socket.set_send_buffer_size(SEND_BUFFER)?;
    socket.set_nodelay(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)?.into_std()
}

/// Starts a server of the application, and of the shortcut, which `app` makes on each thread. It does the same as actix-web's own server,
/// which accepts only bare sockets, but its streams have deadlines. `connections`: the limit per thread. `hosts`: only in development mode
/// (`Front`).
pub(crate) fn start<A, T, B>(
    config: &config::Http,
    connections: usize,
    listener: TcpListener,
    hosts: Option<Vec<Origin>>,
    app: A,
) -> std::io::Result<Server>
where
    A: Fn() -> anyhow::Result<(App<T>, Option<Rc<Shortcut>>)> + Send + Clone + 'static,
    T: ServiceFactory<ServiceRequest, Config = (), Response = ServiceResponse<B>, Error = Error, InitError = ()>
        + 'static,
    T::Future: 'static,
    B: MessageBody + 'static,
{
    let client_timeout = Duration::from_millis(config.client_timeout_ms);
    let keep_alive = Duration::from_millis(config.keep_alive_ms);
    let bounds = Bounds {
        head: client_timeout,
        answer: Duration::from_millis(config.send_timeout_ms),
        // actix-web counts from the end of the last head's deadline.
        idle: keep_alive.max(HEARTBEATS) + client_timeout + IDLE_GRACE,
        body: config.body_max_bytes,
        ahead: config.body_max_bytes + SENT_AHEAD,
    };
    let builder = ServerBuilder::new()
        .workers(workers(config))
        .disable_signals()
        .max_concurrent_connections(connections)
        .shutdown_timeout(config.shutdown_timeout_ms.div_ceil(1000));
    let stopping = builder.graceful_shutdown_signal();
    let builder = builder.listen("http", listener, move || {
        let (app, stopping) = (app.clone(), stopping.clone());
        let hosts: Option<Rc<[Origin]>> = hosts.clone().map(Rc::from);
        let front = fn_factory(move || {
            let (made, hosts) = (app(), hosts.clone());
            async move {
                let (app, shortcut) =
                    made.map_err(|error| tracing::error!(%error, "a worker thread does not start"))?;
                let app = map_config(app.into_factory(), |()| AppConfig::default()).new_service(()).await?;
                Ok::<_, ()>(Front { app, shortcut, long_answers: Rc::default(), hosts })
            }
        });
        let http = HttpService::build()
            // When the server stops, idle connections are closed at once.
            .graceful_shutdown_signal(move || {
                let stopping = stopping.clone();
                async move { stopping.notified().await }
            })
            .client_request_timeout(client_timeout)
            .client_disconnect_timeout(DISCONNECT_TIMEOUT)
            // No slice is copied while a whole one is waiting.
            .h1_write_buffer_size(SLICE)
            .keep_alive(keep_alive)
            // A client that hangs up leaves every queue.
            .h1_allow_half_closed(false)
            .on_connect_ext(|stream: &TimedStream, extensions| {
                extensions.insert(stream.state());
            })
            .h1(front);
        fn_service(move |stream: TcpStream| {
            let client = stream.peer_addr().ok();
            ready(Ok((TimedStream::new(stream, bounds), client)))
        })
        .and_then(http)
    })?;
    Ok(builder.run())
}

fn workers(config: &config::Http) -> usize {
    match config.workers {
        0 => std::thread::available_parallelism().map_or(1, NonZero::get),
        workers => workers,
    }
}

/// The connection limit per thread: the configured one, but below the process's limit of open files. Otherwise a crowd of clients could
/// take the last file, and the servers behind would be unreachable.
pub(crate) fn connections(config: &config::Http) -> usize {
    // Many systems start processes with a limit of 1024 files, but allow more.
    let limit = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    if let Err(error) = raised {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
    // `None`: no limit.
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let files = usize::try_from(files.saturating_sub(FILES_KEPT)).unwrap_or(usize::MAX);
    let most = (files / workers(config)).max(1);
    if most < config.max_connections {
        tracing::warn!(most, "the limit of open files allows fewer connections than http.max_connections");
    }
    most.min(config.max_connections)
}
