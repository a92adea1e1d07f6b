//! The Lua scripts, each once.

use redis::Script;

use crate::domain::limiter::AlgorithmKind;

/// Every script of lua/. All but `reserve` are loaded by whoever finds them missing.
pub struct Scripts {
    pub reserve: Script,
    pub confirm: Script,
    pub release: Script,
    pub begin_refill: Script,
    pub put_tickets: Script,
    pub open_sale: Script,
    pub set_sale_state: Script,
    pub release_wave: Script,
    pub read_unconfirmed: Script,
    pub acquire_lock: Script,
    pub renew_lock: Script,
    pub unlock: Script,
}

impl Scripts {
    pub fn new() -> Self {
        Self {
            reserve: Script::new(include_str!("../../lua/reserve.lua")),
            confirm: Script::new(include_str!("../../lua/confirm.lua")),
            release: Script::new(include_str!("../../lua/release.lua")),
            begin_refill: Script::new(include_str!("../../lua/begin_refill.lua")),
            put_tickets: Script::new(include_str!("../../lua/put_tickets.lua")),
            open_sale: Script::new(include_str!("../../lua/open_sale.lua")),
            set_sale_state: Script::new(include_str!("../../lua/set_sale_state.lua")),
            release_wave: Script::new(include_str!("../../lua/release_wave.lua")),
            read_unconfirmed: Script::new(include_str!("../../lua/read_unconfirmed.lua")),
            acquire_lock: Script::new(include_str!("../../lua/acquire_lock.lua")),
            renew_lock: Script::new(include_str!("../../lua/renew_lock.lua")),
            unlock: Script::new(include_str!("../../lua/unlock.lua")),
        }
    }
}

/// A limiter script: the beginning, the limiters it knows, and what it does with them.
macro_rules! limiter_script {
    ($main:literal: $($limiter:literal),+) => {
        Script::new(concat!(
            include_str!("../../lua/limit_begin.lua"),
            $(include_str!(concat!("../../lua/limit_", $limiter, ".lua")),)+
            include_str!(concat!("../../lua/", $main, ".lua")),
        ))
    };
}

/// One main part, composed for each limiter alone and for all of them. A script says what it defines each time that it
/// runs: one limiter alone is quicker.
pub struct Composed {
    alone: [(AlgorithmKind, Script); 6],
    all: Script,
}

macro_rules! composed {
    ($main:literal) => {
        Composed {
            alone: [
                (AlgorithmKind::FixedWindow, limiter_script!($main: "fixed_window")),
                (AlgorithmKind::SlidingLog, limiter_script!($main: "sliding_log")),
                (AlgorithmKind::SlidingCounter, limiter_script!($main: "sliding_counter")),
                (AlgorithmKind::TokenBucket, limiter_script!($main: "bucket", "token_bucket")),
                (AlgorithmKind::LeakyBucket, limiter_script!($main: "bucket", "leaky_bucket")),
                (AlgorithmKind::Concurrency, limiter_script!($main: "concurrency")),
            ],
            all: limiter_script!($main: "fixed_window", "sliding_log", "sliding_counter", "bucket", "token_bucket",
                "leaky_bucket", "concurrency"),
        }
    };
}

impl Composed {
    /// The smallest script that knows all these kinds.
    pub fn of(&self, mut kinds: impl Iterator<Item = AlgorithmKind>) -> &Script {
        let Some(first) = kinds.next() else { return &self.all };
        if kinds.any(|kind| kind != first) {
            return &self.all;
        }
        self.alone.iter().find(|(kind, _)| *kind == first).map_or(&self.all, |(_, script)| script)
    }
}

/// The limiters' scripts, loaded by whoever finds them missing.
pub struct LimiterScripts {
    pub acquire: Composed,
    pub give_back: Composed,
    pub wait_in_line: Composed,
    pub leave_line: Script,
}

impl LimiterScripts {
    pub fn new() -> Self {
        Self {
            acquire: composed!("acquire_permits"),
            give_back: composed!("give_back_permits"),
            wait_in_line: composed!("wait_in_line"),
            leave_line: Script::new(include_str!("../../lua/leave_line.lua")),
        }
    }
}
