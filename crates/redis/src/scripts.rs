//! The Lua scripts of lua/. A call loads a script that is missing from the server.

use std::sync::LazyLock;

use redis::Script;

use seckill_domain::limiter::AlgorithmKind;

type Lazy<T = Script> = LazyLock<T>;

fn of_sale(main: &str) -> Script {
    Script::new(&[include_str!("../../../lua/sale_begin.lua"), main].concat())
}

/// The parts of reserve, in the order in which one needs the other.
pub(super) const RESERVE_PARTS: &str = concat!(
    include_str!("../../../lua/reserve_begin.lua"),
    include_str!("../../../lua/reserve_limits.lua"),
    include_str!("../../../lua/reserve_ticket.lua"),
    include_str!("../../../lua/reserve_window.lua"),
    include_str!("../../../lua/reserve_stock.lua"),
    include_str!("../../../lua/reserve_memory.lua"),
);

pub(super) static RESERVE: Lazy =
    Lazy::new(|| of_sale(&[RESERVE_PARTS, include_str!("../../../lua/reserve.lua")].concat()));
pub(super) static ANSWER_CHALLENGE: Lazy = Lazy::new(|| of_sale(include_str!("../../../lua/answer_challenge.lua")));
pub(super) static CONFIRM: Lazy = Lazy::new(|| Script::new(include_str!("../../../lua/confirm.lua")));
pub(super) static LEND: Lazy = Lazy::new(|| of_sale(include_str!("../../../lua/lend.lua")));
pub(super) static MOVE_LOAN: Lazy = Lazy::new(|| of_sale(include_str!("../../../lua/move_loan.lua")));
pub(super) static BAR_LOAN: Lazy = Lazy::new(|| of_sale(include_str!("../../../lua/bar_loan.lua")));
pub(super) static TAKE_BACK_LOAN: Lazy = Lazy::new(|| of_sale(include_str!("../../../lua/take_back_loan.lua")));
pub(super) static CLOSE_LOAN: Lazy = Lazy::new(|| of_sale(include_str!("../../../lua/close_loan.lua")));
pub(super) static RELEASE: Lazy = Lazy::new(|| of_sale(include_str!("../../../lua/release.lua")));
pub(super) static BEGIN_REFILL: Lazy = Lazy::new(|| of_sale(include_str!("../../../lua/begin_refill.lua")));
pub(super) static PUT_TICKETS: Lazy = Lazy::new(|| of_sale(include_str!("../../../lua/put_tickets.lua")));
pub(super) static OPEN_SALE: Lazy = Lazy::new(|| of_sale(include_str!("../../../lua/open_sale.lua")));
pub(super) static SET_SALE_STATE: Lazy = Lazy::new(|| of_sale(include_str!("../../../lua/set_sale_state.lua")));
pub(super) static RELEASE_WAVE: Lazy = Lazy::new(|| of_sale(include_str!("../../../lua/release_wave.lua")));
pub(super) static READ_UNCONFIRMED: Lazy = Lazy::new(|| of_sale(include_str!("../../../lua/read_unconfirmed.lua")));
pub(super) static READ_SERVER: Lazy = Lazy::new(|| of_sale(include_str!("../../../lua/read_server.lua")));
pub(super) static ACQUIRE_LOCK: Lazy = Lazy::new(|| Script::new(include_str!("../../../lua/acquire_lock.lua")));
pub(super) static RENEW_LOCK: Lazy = Lazy::new(|| Script::new(include_str!("../../../lua/renew_lock.lua")));
pub(super) static UNLOCK: Lazy = Lazy::new(|| Script::new(include_str!("../../../lua/unlock.lua")));

pub(super) static ACQUIRE: Lazy<ComposedScript> =
    Lazy::new(|| ComposedScript::new(include_str!("../../../lua/acquire_permits.lua")));
pub(super) static GIVE_BACK: Lazy<ComposedScript> =
    Lazy::new(|| ComposedScript::new(include_str!("../../../lua/give_back_permits.lua")));
pub(super) static WAIT_IN_LINE: Lazy<ComposedScript> =
    Lazy::new(|| ComposedScript::new(include_str!("../../../lua/wait_in_line.lua")));
pub(super) static LEAVE_LINE: Lazy = Lazy::new(|| Script::new(include_str!("../../../lua/leave_line.lua")));

/// The files of lua/ that define a limiter, in the order in which a script needs them.
const fn limiter_files(kind: AlgorithmKind) -> &'static [&'static str] {
    const BUCKET: &str = include_str!("../../../lua/limit_bucket.lua");
    match kind {
        AlgorithmKind::FixedWindow => &[include_str!("../../../lua/limit_fixed_window.lua")],
        AlgorithmKind::SlidingLog => &[include_str!("../../../lua/limit_sliding_log.lua")],
        AlgorithmKind::SlidingCounter => &[include_str!("../../../lua/limit_sliding_counter.lua")],
        AlgorithmKind::TokenBucket => &[BUCKET, include_str!("../../../lua/limit_token_bucket.lua")],
        AlgorithmKind::LeakyBucket => &[BUCKET, include_str!("../../../lua/limit_leaky_bucket.lua")],
        AlgorithmKind::Concurrency => &[include_str!("../../../lua/limit_concurrency.lua")],
    }
}

/// A main part with each limiter alone, and with all of them. Each call defines the functions of its script again, so a script
/// with one limiter is faster.
pub(super) struct ComposedScript {
    /// In the order of `AlgorithmKind::ALL`.
    single: Vec<Script>,
    all: Script,
}

impl ComposedScript {
    fn new(main: &str) -> Self {
        let compose = |kinds: &[AlgorithmKind]| {
            let mut files = vec![include_str!("../../../lua/limit_begin.lua")];
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

    /// The smallest script with all these kinds.
    pub(crate) fn of(&self, mut kinds: impl Iterator<Item = AlgorithmKind>) -> &Script {
        match kinds.next() {
            Some(first) if kinds.all(|kind| kind == first) => &self.single[first as usize],
            _ => &self.all,
        }
    }
}
