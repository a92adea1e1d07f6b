//! Compares the model's scripts with those in lua/: both run the same random histories, and must give the same answers and states after
//! each step. A restart or a new replication id cannot be caused on the real server. The test writes to the sale instead, as begin_refill
//! would have done before the event.

use super::histories::{KEYS, NEVER_MS, RealSale, SaleFields, id};
use super::orders::{ORDERS, Order};
use super::redis::Admission;
use super::state::{Epoch, Phase, SaleKeys, Server, Snapshot, Ticket};
use super::variants::World;
use proptest::prelude::*;

/// A memory of "sold out" outlives the test: it ends only by `Step::ReturnUnits`.
const SOLD_OUT_MS: i64 = 1_000_000_000;

#[derive(Clone, Debug)]
enum Step {
    /// A batch: each buyer sees the changes of the earlier ones.
    Reserve(Vec<Order>),
    Confirm(Order),
    /// Whether its units return, and whether its buyer failed to pay in time.
    Release(Order, bool, bool),
    Close(Epoch),
    Begin(Epoch),
    /// The last: which ended orders lapsed.
    Put(Epoch, Snapshot, [bool; ORDERS]),
    Open(Epoch, Snapshot),
    ReturnUnits,
    /// The index of a key.
    Lose(usize),
    NewId,
    Restart,
    Flush,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let order = || 0..ORDERS;
    let ticket = prop_oneof![Just(Ticket::None), Just(Ticket::Held), Just(Ticket::Ended)];
    let snapshot = (0..4_u8, prop::array::uniform3(ticket))
        .prop_map(|(units_left, tickets)| Snapshot { units_left, tickets })
        .boxed();
    let epoch = || 1..4_u8;
    let step = prop_oneof![
        8 => prop::collection::vec(order(), 1..4).prop_map(Step::Reserve),
        2 => order().prop_map(Step::Confirm),
        4 => (order(), any::<bool>(), any::<bool>()).prop_map(|(order, returns, lapses)| Step::Release(order, returns, lapses)),
        1 => epoch().prop_map(Step::Close),
        3 => epoch().prop_map(Step::Begin),
        3 => (epoch(), snapshot.clone(), any::<[bool; ORDERS]>()).prop_map(|(epoch, from, lapsed)| Step::Put(epoch, from, lapsed)),
        5 => (epoch(), snapshot).prop_map(|(epoch, from)| Step::Open(epoch, from)),
        2 => Just(Step::ReturnUnits),
        1 => (0..KEYS.len()).prop_map(Step::Lose),
        1 => Just(Step::NewId),
        1 => Just(Step::Restart),
        1 => Just(Step::Flush),
    ];
    // Each history begins with an open sale, so that few steps are refused.
    prop::collection::vec(step, 1..40).prop_map(|steps| {
        let opened = Snapshot { units_left: 2, ..Snapshot::default() };
        [Step::Begin(1), Step::Open(1, opened)].into_iter().chain(steps).collect()
    })
}

/// A sale on a real server.
struct Real {
    sale: RealSale,
    /// Whether the sale requires passes. Each buyer shows the right one.
    asks_pass: bool,
}

impl Real {
    fn says_yes(&mut self, script: &str, arguments: &[String]) -> bool {
        self.sale.call(script, &KEYS, arguments)
    }

    fn set(&mut self, fields: &[&str]) {
        if self.sale.command("EXISTS", "sale", &[]) {
            self.sale.command::<()>("HSET", "sale", fields);
        }
    }

    /// The server's state, in the terms of the model.
    fn keys(&mut self, world: &World) -> SaleKeys {
        let SaleFields { epoch, state, stock, returning, granted, .. } = self.sale.fields();
        let phase = match state.as_deref() {
            None => Phase::Missing,
            Some("filling") => Phase::Filling,
            Some(_) => Phase::Open,
        };
        let sold_out_granted = granted;
        let mut found = SaleKeys { epoch, phase, stock, returning, sold_out_granted, ..SaleKeys::default() };
        let holders = self.sale.holders();
        for order in 0..ORDERS {
            let ticket: Option<String> = self.sale.command("HGET", "tickets", &[&id(order)]);
            let held = format!("h|{}|{}", world.units(order), user(world, order));
            found.tickets[order] = match ticket {
                None => Ticket::None,
                Some(ticket) if ticket == held => Ticket::Held,
                Some(ticket) => {
                    assert_eq!(ticket, held.replacen('h', "t", 1));
                    Ticket::Ended
                }
            };
            found.unconfirmed[order] = self.sale.is_unconfirmed(order);
            found.holders[order] = holders.contains(&user(world, order));
        }
        found
    }

    /// The model derives a buyer's units and lapses from the orders. The server stores them.
    fn check_buyers(&mut self, world: &World, found: &SaleKeys, lapsed: &[bool; ORDERS]) {
        for order in (0..ORDERS).filter(|order| found.tickets[*order] != Ticket::None) {
            let kept: String = self.sale.command("HGET", "buyers", &[&user(world, order)]);
            let of_buyer = |other: Order| world.buyer(other) == world.buyer(order);
            let live = world.units_of(|other| of_buyer(other) && found.tickets[other] == Ticket::Held);
            let lapses = (0..ORDERS).filter(|other| of_buyer(*other) && lapsed[*other]).count();
            let kept: Vec<&str> = kept.split('|').collect();
            let kept = (kept[0], kept.get(2).copied().unwrap_or("0"));
            assert_eq!(kept, (&*live.to_string(), &*lapses.to_string()), "units and lapses of {}", user(world, order));
            // Rule 18: each ticket has spent a pass, whatever the order in which a refill restores the tickets.
            let spent = if self.asks_pass { tickets_of(world, found, order) } else { 0 };
            assert_eq!(self.sale.passes(&user(world, order)), spent, "passes of {}", user(world, order));
        }
    }

    /// The number beside each order: the passes that its buyer has spent before it.
    fn reserve(&mut self, world: &World, orders: &[(Order, usize)]) -> Option<(Vec<Admission>, bool)> {
        let sold_out_ms = if world.caches_sold_out { SOLD_OUT_MS } else { 0 }.to_string();
        let (n, lapses_max) = (orders.len().to_string(), world.lapses_max.to_string());
        let asks_more = orders.iter().any(|(order, _)| world.units(*order) != 1);
        let parts = [(asks_more, "u"), (self.asks_pass, "p")];
        let parts: String = parts.into_iter().filter_map(|(sent, letters)| sent.then_some(letters)).collect();
        let call = [&*n, "0", "0", &*sold_out_ms, "0", "0", &*lapses_max, "1000", &*parts];
        let mut arguments = call.map(str::to_owned).to_vec();
        arguments.extend(orders.iter().map(|(order, _)| id(*order)));
        arguments.extend(orders.iter().map(|(order, _)| user(world, *order)));
        if asks_more {
            arguments.extend(orders.iter().map(|(order, _)| world.units(*order).to_string()));
        }
        if self.asks_pass {
            arguments.extend(orders.iter().map(|_| NEVER_MS.to_owned()));
            arguments.extend(orders.iter().map(|(_, spent)| spent.to_string()));
        }
        let reply = self.sale.reserve(&arguments)?;
        let admissions = reply.answers.iter().map(|(code, detail)| match code {
            0 => Admission::Reserved,
            1 => Admission::Repeat { confirmed: detail == "c" },
            2 => Admission::RepeatEnded,
            4 => Admission::AtLimit,
            9 => Admission::SoldOutCache,
            10 => Admission::TooFew,
            14 => Admission::Lapsed,
            other => panic!("reserve answered {other}"),
        });
        Some((admissions.collect(), reply.may_remember))
    }
}

fn user(world: &World, order: Order) -> String {
    format!("buyer-{}", world.buyer(order))
}

/// The tickets of an order's buyer, live and ended.
fn tickets_of(world: &World, sale: &SaleKeys, order: Order) -> usize {
    let of_buyer = |other: &Order| world.buyer(*other) == world.buyer(order);
    (0..ORDERS).filter(of_buyer).filter(|other| sale.tickets[*other] != Ticket::None).count()
}

/// So late that the buyer has to wait until the end of the test.
fn lapsed_at(lapsed: bool) -> String {
    if lapsed { NEVER_MS } else { "0" }.to_owned()
}

/// Runs one step on both, and compares the answers.
fn run(step: &Step, world: &World, model: &mut Server, real: &mut Real) {
    match step {
        Step::Reserve(orders) => {
            let mut with_passes: Vec<(Order, usize)> = orders.iter().map(|order| (*order, 0)).collect();
            let expected = model.begin_script(world).then(|| {
                let mut admissions = Vec::new();
                for (order, spent) in &mut with_passes {
                    *spent = tickets_of(world, &model.now, *order);
                    admissions.push(model.now.reserve(world, *order));
                }
                let last = admissions[admissions.len() - 1];
                (admissions, model.now.may_remember(world, last))
            });
            assert_eq!(real.reserve(world, &with_passes), expected);
        }
        Step::Confirm(order) => {
            model.now.confirm(*order);
            real.sale.call::<()>("confirm", &["unconfirmed"], &[id(*order)]);
        }
        Step::Release(order, returns, lapses) => {
            let expected = model.begin_script(world).then(|| {
                let was_live = model.now.tickets[*order] == Ticket::Held;
                model.now.lapsed[*order] |= was_live && *lapses;
                (model.now.release(world, *order, *returns), was_live)
            });
            let arguments = ["1".to_owned(), id(*order), u8::from(*returns).to_string(), lapsed_at(*lapses)];
            let reply: Vec<i64> = real.sale.call("release", &KEYS, &arguments);
            match expected {
                Some((epoch, was_live)) => assert_eq!(reply, [i64::from(epoch), i64::from(was_live)]),
                None => assert!(reply.len() == 1 && reply[0] < 0, "{reply:?}"),
            }
        }
        Step::Close(epoch) => {
            model.now.close(*epoch);
            real.sale.call::<()>("begin_refill", &KEYS, &[&*epoch.to_string(), "close"]);
        }
        Step::Begin(epoch) => {
            let stamp = model.stamp();
            let expected = model.now.begin(world, *epoch, stamp);
            assert_eq!(real.says_yes("begin_refill", &[epoch.to_string()]), expected);
        }
        Step::Put(epoch, from, lapsed) => {
            let before = model.now.tickets;
            let expected = model.now.put(*epoch, from);
            let lapses = |order: Order| lapsed[order] && from.tickets[order] == Ticket::Ended;
            for order in (0..ORDERS).filter(|order| before[*order] == Ticket::None && expected && lapses(*order)) {
                model.now.lapsed[order] = true;
            }
            let tickets: Vec<Order> = (0..ORDERS).filter(|order| from.tickets[*order] != Ticket::None).collect();
            if !tickets.is_empty() {
                let asks_pass = u8::from(real.asks_pass).to_string();
                let mut arguments = vec![epoch.to_string(), asks_pass, tickets.len().to_string()];
                for order in tickets {
                    let kind = if from.tickets[order] == Ticket::Held { "h" } else { "t" };
                    arguments.extend([id(order), user(world, order), world.units(order).to_string(), kind.into()]);
                    arguments.push(lapsed_at(lapses(order)));
                }
                assert_eq!(real.says_yes("put_tickets", &arguments), expected);
            }
        }
        Step::Open(epoch, from) => {
            let expected = model.open(world, *epoch, from);
            let (left, per_user) = (from.units_left.to_string(), world.per_user.to_string());
            let state = [&*epoch.to_string(), "open", &left, "0", "state_version", "1"];
            let window = ["starts_at_ms", "0", "ends_at_ms", NEVER_MS];
            let terms = ["key", "key", "per_user", &per_user, "min_level", "0", "pay_within_ms", "1"];
            let arguments = [&state[..], &window, &terms].concat().into_iter().map(str::to_owned).collect::<Vec<_>>();
            assert_eq!(real.says_yes("open_sale", &arguments), expected);
        }
        Step::ReturnUnits => {
            model.now.return_units();
            real.set(&["returning_at_ms", "0", "sold_out_until_ms", "0"]);
        }
        Step::Lose(place) => {
            real.sale.delete(&[KEYS[*place]]);
            if KEYS[*place] == "sale" {
                model.now = SaleKeys::default();
            }
            model.now.is_key_lost = model.now.phase != Phase::Missing;
        }
        Step::NewId => {
            model.replid += 1;
            real.set(&["replid", "before"]);
        }
        Step::Restart => {
            (model.run, model.replid) = (model.run + 1, model.replid + 1);
            real.set(&["replid", "before", "server", "before|0"]);
        }
        Step::Flush => {
            model.now = SaleKeys::default();
            real.sale.delete(&KEYS);
        }
    }
}

#[ignore = "needs Redis: ./dev test unit"]
#[test]
fn scripts_and_model_agree_on_random_histories() {
    // Two buyers; the first has two orders. And whether "sold out" may be remembered.
    let world = |caches_sold_out| World {
        orders: [(0, 1), (1, 2), (0, 1)],
        lapses_max: 1,
        caches_sold_out,
        ..World::NO_FAULTS
    };
    proptest!(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() }, |(steps in steps(), caches in any::<bool>(), asks_pass in any::<bool>())| {
        let world = world(caches);
        let mut real = Real { sale: RealSale::new(), asks_pass };
        let mut model = Server { run: 1, replid: 1, ..Server::default() };
        for (at, step) in steps.iter().enumerate() {
            run(step, &world, &mut model, &mut real);
            if real.sale.lacks_a_key() {
                // A lost key stays lost, and the other keys do not count, until a refill begins.
                prop_assert!(model.now.is_key_lost || model.now.phase == Phase::Missing, "after step {}: {:?}", at, step);
                continue;
            }
            // The server stores lapses per buyer, not per order.
            let mut expected = SaleKeys { stamp: Default::default(), lapsed: Default::default(), ..model.now.clone() };
            // The list of holders names buyers, and the model's names orders.
            let holders = expected.holders;
            let named = |order: Order| (0..ORDERS).any(|other| holders[other] && world.buyer(other) == world.buyer(order));
            expected.holders = std::array::from_fn(named);
            let found = real.keys(&world);
            real.check_buyers(&world, &found, &model.now.lapsed);
            prop_assert_eq!(found, expected, "after step {}: {:?}", at, step);
        }
        real.sale.delete(&KEYS);
    });
}
