//! The Lua scripts, each once.

use redis::Script;

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
            unlock: Script::new(include_str!("../../lua/unlock.lua")),
        }
    }
}
