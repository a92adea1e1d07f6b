//! The Lua scripts of lua/.

use redis::Script;

use crate::domain::limiter::AlgorithmKind;

/// The scripts of sales and locks. A call loads a script that is missing from the server.
pub(super) struct Scripts {
    pub reserve: Script,
    pub answer_challenge: Script,
    pub confirm: Script,
    pub lend: Script,
    pub move_loan: Script,
    pub bar_loan: Script,
    pub take_back_loan: Script,
    pub close_loan: Script,
    pub release: Script,
    pub begin_refill: Script,
    pub put_tickets: Script,
    pub open_sale: Script,
    pub set_sale_state: Script,
    pub release_wave: Script,
    pub read_unconfirmed: Script,
    pub read_server: Script,
    pub acquire_lock: Script,
    pub renew_lock: Script,
    pub unlock: Script,
}

impl Scripts {
    pub fn new() -> Self {
        let of_sale = |main: &str| Script::new(&[include_str!("../../lua/sale_begin.lua"), main].concat());
        Self {
            reserve: of_sale(include_str!("../../lua/reserve.lua")),
            answer_challenge: of_sale(include_str!("../../lua/answer_challenge.lua")),
            confirm: Script::new(include_str!("../../lua/confirm.lua")),
            lend: of_sale(include_str!("../../lua/lend.lua")),
            move_loan: of_sale(include_str!("../../lua/move_loan.lua")),
            bar_loan: of_sale(include_str!("../../lua/bar_loan.lua")),
            take_back_loan: of_sale(include_str!("../../lua/take_back_loan.lua")),
            close_loan: of_sale(include_str!("../../lua/close_loan.lua")),
            release: of_sale(include_str!("../../lua/release.lua")),
            begin_refill: of_sale(include_str!("../../lua/begin_refill.lua")),
            put_tickets: of_sale(include_str!("../../lua/put_tickets.lua")),
            open_sale: of_sale(include_str!("../../lua/open_sale.lua")),
            set_sale_state: of_sale(include_str!("../../lua/set_sale_state.lua")),
            release_wave: of_sale(include_str!("../../lua/release_wave.lua")),
            read_unconfirmed: of_sale(include_str!("../../lua/read_unconfirmed.lua")),
            read_server: of_sale(include_str!("../../lua/read_server.lua")),
            acquire_lock: Script::new(include_str!("../../lua/acquire_lock.lua")),
            renew_lock: Script::new(include_str!("../../lua/renew_lock.lua")),
            unlock: Script::new(include_str!("../../lua/unlock.lua")),
        }
    }
}

/// The files of lua/ that define a limiter, in the order in which a script needs them.
const fn limiter_files(kind: AlgorithmKind) -> &'static [&'static str] {
    const BUCKET: &str = include_str!("../../lua/limit_bucket.lua");
    match kind {
        AlgorithmKind::FixedWindow => &[include_str!("../../lua/limit_fixed_window.lua")],
        AlgorithmKind::SlidingLog => &[include_str!("../../lua/limit_sliding_log.lua")],
        AlgorithmKind::SlidingCounter => &[include_str!("../../lua/limit_sliding_counter.lua")],
        AlgorithmKind::TokenBucket => &[BUCKET, include_str!("../../lua/limit_token_bucket.lua")],
        AlgorithmKind::LeakyBucket => &[BUCKET, include_str!("../../lua/limit_leaky_bucket.lua")],
        AlgorithmKind::Concurrency => &[include_str!("../../lua/limit_concurrency.lua")],
    }
}

/// One main part, composed with each limiter alone and with all of them. A script defines its functions anew at every
/// call, so that a script with one limiter is faster.
pub(super) struct ComposedScript {
    /// In the order of `AlgorithmKind::ALL`.
    single: Vec<Script>,
    all: Script,
}

impl ComposedScript {
    fn new(main: &str) -> Self {
        let compose = |kinds: &[AlgorithmKind]| {
            let mut files = vec![include_str!("../../lua/limit_begin.lua")];
            for file in kinds.iter().flat_map(|kind| limiter_files(*kind)) {
                if !files.contains(file) {
                    files.push(file);
                }
            }
            files.push(main);
            Script::new(&files.concat())
        };
        let single = AlgorithmKind::ALL.iter().map(|kind| compose(&[*kind])).collect();
        Self { single, all: compose(AlgorithmKind::ALL) }
    }

    /// The smallest script that has all these kinds.
    pub fn of(&self, mut kinds: impl Iterator<Item = AlgorithmKind>) -> &Script {
        match kinds.next() {
            Some(first) if kinds.all(|kind| kind == first) => &self.single[first as usize],
            _ => &self.all,
        }
    }
}

/// The scripts of the limiters. A call loads a script that is missing from the server.
pub(super) struct LimiterScripts {
    pub acquire: ComposedScript,
    pub give_back: ComposedScript,
    pub wait_in_line: ComposedScript,
    pub leave_line: Script,
}

impl LimiterScripts {
    pub fn new() -> Self {
        Self {
            acquire: ComposedScript::new(include_str!("../../lua/acquire_permits.lua")),
            give_back: ComposedScript::new(include_str!("../../lua/give_back_permits.lua")),
            wait_in_line: ComposedScript::new(include_str!("../../lua/wait_in_line.lua")),
            leave_line: Script::new(include_str!("../../lua/leave_line.lua")),
        }
    }
}
