//! Running systems that tests share. A test that only asks for answers, about sales, buyers and applications of its own, needs no
//! system of its own: starting one takes longer than most such tests.

use std::sync::{Arc, LazyLock, Mutex};

use seckill::app::{Service, Stopper};
use seckill_config::Config;
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;
use tokio::task::JoinHandle;

use super::{Environment, demolished, environment};

/// This many unused systems keep running, because the next tests of a file often have the same settings.
const IDLE_MAX: usize = 2;

/// The services run here. A test's own runtime ends with the test.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).thread_name("shared").enable_all().build().unwrap()
});

/// The running systems, the most recently used at the end.
static SYSTEMS: Mutex<Vec<Arc<SharedSystem>>> = Mutex::new(Vec::new());

/// A system with these settings, running or about to.
pub(super) struct SharedSystem {
    settings: Vec<(String, String)>,
    running: OnceCell<Running>,
}

/// One instance with workers.
pub(super) struct Running {
    pub environment: Environment,
    pub address: std::net::SocketAddr,
    stopper: Stopper,
    service: JoinHandle<anyhow::Result<()>>,
}

impl SharedSystem {
    /// The running system with these settings. It runs at least until the value is dropped.
    pub(crate) async fn with(settings: &[(&str, &str)]) -> Arc<Self> {
        let settings: Vec<_> = settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let (system, idle) = taken(settings);
        for system in idle {
            RUNTIME.spawn(system.stop());
        }
        system.running.get_or_init(|| Running::start(&system.settings)).await;
        system
    }

    pub(crate) fn running(&self) -> &Running {
        self.running.get().expect("a system is handed out when it runs")
    }

    async fn stop(self) {
        let Some(running) = self.running.into_inner() else { return };
        running.stopper.stop().await;
        running.service.await.unwrap().unwrap();
        demolished(&Config::read(&running.environment).unwrap()).await;
    }
}

/// The system with these settings, and idle systems beyond the limit.
fn taken(settings: Vec<(String, String)>) -> (Arc<SharedSystem>, Vec<SharedSystem>) {
    let mut systems = SYSTEMS.lock().unwrap();
    let known = systems.iter().position(|system| system.settings == settings);
    let system = match known {
        Some(at) => systems.remove(at),
        None => Arc::new(SharedSystem { settings, running: OnceCell::new() }),
    };
    let (idle, used): (Vec<_>, Vec<_>) = systems.drain(..).partition(|system| Arc::strong_count(system) == 1);
    let too_many = idle.len().saturating_sub(IDLE_MAX);
    let mut idle = idle.into_iter();
    let stopped = idle.by_ref().take(too_many).filter_map(Arc::into_inner).collect();
    systems.extend(idle.chain(used));
    systems.push(Arc::clone(&system));
    (system, stopped)
}

impl Running {
    async fn start(settings: &[(String, String)]) -> Self {
        let settings: Vec<_> = settings.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let environment = environment(&settings).await;
        let mut config = Config::read(&environment).unwrap();
        // Some tests use limits up: a slow Redis is not a limiter that is down. The settings allow one second.
        config.flow.timeout_ms = 20_000;
        let started = RUNTIME.spawn(async move {
            let service = Service::bind(config, true).await.unwrap();
            (service.address(), service.stopper(), tokio::spawn(service.run()))
        });
        let (address, stopper, service) = started.await.unwrap();
        Self { environment, address, stopper, service }
    }
}
