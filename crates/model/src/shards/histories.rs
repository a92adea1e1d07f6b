//! Compares the scripts of the model of shards with those in lua/. One shard is the home of one buyer and the lender of another. It runs
//! random histories in the model and on a real server: answers and states must be equal after each step.

use std::collections::BTreeSet;

use proptest::prelude::*;
use redis::{FromRedisValue, Value};

use super::super::histories::{KEYS, NEVER_MS, RealSale, Reserved, SaleFields, id};
use super::World;
use super::scripts::{Admission, Answer};
use super::state::{BUYERS, Epoch, Loan, Number, ORDERS, Order, Phase, Shard, Snapshot, Status, Ticket, buyer};

/// The shard under test. Buyer 0 is at home there, buyer 1 at shard 1.
const SELF: usize = 0;
/// Longer than a test: shards count as empty until `Step::ReturnUnits`.
const EMPTY_MS: &str = "1000000000";

#[derive(Clone, Debug)]
enum Step {
    /// The order, the lender to ask, and whether the caller wants to remember "sold out".
    Reserve(Order, Option<usize>, bool),
    Move(Order, Number, Option<usize>),
    Lend(Order, Number, Epoch),
    Bar(Order, Number),
    TakeBack(Order, Number),
    Close(Order),
    Confirm(Order),
    Release(Order),
    ReturnUnits,
    Stop,
    /// begin_refill, put_tickets and open_sale, under the next epoch.
    Refill(u8, [Status; ORDERS]),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let own = || 0..2_usize;
    let guest = || Just(2_usize);
    let number = || 1..4_u8;
    let lender = || prop::option::of(1..3_usize);
    let status = |home: bool| {
        let others = if home {
            vec![Status::Live(SELF), Status::Live(2), Status::Ended(SELF), Status::Ended(2)]
        } else {
            vec![Status::Live(SELF), Status::Ended(SELF)]
        };
        prop_oneof![2 => Just(Status::None), 1 => prop::sample::select(others)]
    };
    let orders = (status(true), status(false)).prop_map(|(own, guest)| [own, Status::None, guest]);
    let step = prop_oneof![
        8 => (own(), lender(), any::<bool>()).prop_map(|(order, lender, remember)| Step::Reserve(order, lender, remember)),
        4 => (own(), number(), lender()).prop_map(|(order, number, lender)| Step::Move(order, number, lender)),
        6 => (guest(), number(), 1..3_u8).prop_map(|(order, number, epoch)| Step::Lend(order, number, epoch)),
        2 => (guest(), number()).prop_map(|(order, number)| Step::Bar(order, number)),
        3 => (own(), number()).prop_map(|(order, number)| Step::TakeBack(order, number)),
        3 => own().prop_map(Step::Close),
        2 => (0..ORDERS).prop_map(Step::Confirm),
        5 => (0..ORDERS).prop_map(Step::Release),
        2 => Just(Step::ReturnUnits),
        1 => Just(Step::Stop),
        2 => (0..3_u8, orders).prop_map(|(stock, orders)| Step::Refill(stock, orders)),
    ];
    prop::collection::vec(step, 1..40)
        .prop_map(|steps| [Step::Refill(1, [Status::None; ORDERS])].into_iter().chain(steps).collect())
}

/// One shard on a real server.
struct Real {
    sale: RealSale,
    asks_pass: bool,
}

impl Real {
    /// The sale requires passes from all buyers or from none: the letter of that flag.
    fn pass_flag(&self) -> &'static str {
        if self.asks_pass { "1" } else { "0" }
    }

    /// The server's state, in the terms of the model.
    fn shard(&mut self) -> Shard {
        let SaleFields { epoch, state, stock, returning, granted, loans } = self.sale.fields();
        let holders = self.sale.holders();
        Shard {
            epoch,
            phase: if state.as_deref() == Some("filling") { Phase::Filling } else { Phase::Open },
            stock,
            aside: returning,
            granted,
            tickets: std::array::from_fn(|order| self.ticket(order)),
            unconfirmed: std::array::from_fn(|order| self.sale.is_unconfirmed(order)),
            holders: std::array::from_fn(|of| holders.contains(&user(of))),
            number: loans,
        }
    }

    fn ticket(&mut self, order: Order) -> Ticket {
        let text: Option<String> = self.sale.command("HGET", "tickets", &[&id(order)]);
        let Some(text) = text else { return Ticket::None };
        let parts: Vec<&str> = text.split('|').collect();
        let number = |at: usize| parts[at].parse::<u8>().unwrap();
        let of = [parts[1], parts[parts.len() - 1]];
        assert!(parts[0] == "x" || of == ["1", &*user(buyer(order))], "{text}");
        match parts[0] {
            "h" => Ticket::Held,
            "o" => Ticket::Open { lender: number(2).into(), number: number(3) },
            "b" => Ticket::Closed { lender: number(2).into() },
            "l" => Ticket::Lent { number: number(2) },
            "x" => Ticket::Barred { number: number(1) },
            "t" => Ticket::Ended,
            _ => panic!("{text}"),
        }
    }

    /// Checks the server's further data: the units, the open loan and the spent passes of its own buyer, and nothing of the other.
    fn check_buyers(&mut self, found: &Shard) {
        let counts = |o: &Order| matches!(found.tickets[*o], Ticket::Held | Ticket::Closed { .. });
        let kept: Option<String> = self.sale.command("HGET", "buyers", &[&user(0)]);
        let units = kept.map_or(0, |kept| kept.split('|').next().unwrap().parse::<usize>().unwrap());
        assert_eq!(units, (0..2).filter(counts).count());
        let loan: Option<String> = self.sale.command("HGET", "loans", &[&user(0)]);
        let open = (0..2).find(|o| matches!(found.tickets[*o], Ticket::Open { .. }));
        assert_eq!(loan, open.map(id));
        let tickets = (0..2).filter(|o| !matches!(found.tickets[*o], Ticket::None | Ticket::Open { .. })).count();
        assert_eq!(self.sale.passes(&user(0)), if self.asks_pass { tickets } else { 0 }, "passes");
        for key in ["buyers", "loans", "passes"] {
            assert!(!self.sale.command::<bool>("HEXISTS", key, &[&user(1)]), "{key}");
        }
    }

    /// The answer, and the buyers that must not get "sold out" from memory; `None` if the shard does not serve.
    fn reserve(
        &mut self,
        order: Order,
        lender: Option<usize>,
        remember: bool,
    ) -> Option<(Admission, Option<BTreeSet<String>>)> {
        let (id, user, lender) = (id(order), user(buyer(order)), lender_text(lender));
        let (spent, sold_out_ms) = (self.sale.passes(&user).to_string(), if remember { EMPTY_MS } else { "0" });
        let parts = if self.asks_pass { "pl" } else { "l" };
        let mut arguments = vec!["1", "0", "0", sold_out_ms, "0", "0", "-1", "0", parts, &id, &user];
        if self.asks_pass {
            arguments.extend([NEVER_MS, &spent]);
        }
        arguments.push(&lender);
        let Reserved { epoch, may_remember, holders, answers } = self.sale.reserve(&arguments)?;
        let (code, detail) = &answers[0];
        let loan = |lender: usize, number: &str| Loan { order, lender, number: number.parse().unwrap(), epoch };
        let admission = match code {
            0 => Admission::Held,
            1 if detail == "u" => Admission::Repeat,
            1 => Admission::Durable,
            2 => Admission::Ended,
            4 => Admission::AtLimit,
            9 => Admission::Empty,
            16 => {
                let (lender, number) = detail.split_once('|').unwrap();
                Admission::OpenLoan(loan(lender.parse().unwrap(), number))
            }
            17 => Admission::UnderWay,
            18 => Admission::Borrow(loan(lender.parse().unwrap(), detail)),
            other => panic!("reserve answered {other}"),
        };
        Some((admission, may_remember.then_some(holders)))
    }

    fn refill(&mut self, shard: &Shard, stock: u8, orders: &[Status; ORDERS]) {
        let epoch = shard.epoch.to_string();
        assert_eq!(self.sale.call::<i64>("begin_refill", &KEYS, &[&epoch]), 1);
        let rows = (0..ORDERS).filter_map(|order| {
            let kind = match shard.tickets[order] {
                Ticket::Held => "h".to_owned(),
                Ticket::Closed { lender } => format!("b{lender}"),
                Ticket::Lent { .. } => "l".to_owned(),
                Ticket::Ended if order < 2 => "t".to_owned(),
                Ticket::Ended => "e".to_owned(),
                Ticket::None => return None,
                Ticket::Open { .. } | Ticket::Barred { .. } => panic!("no refill writes that: {orders:?}"),
            };
            Some([id(order), user(buyer(order)), "1".to_owned(), kind, "0".to_owned()])
        });
        let rows: Vec<String> = rows.flatten().collect();
        if !rows.is_empty() {
            let n = (rows.len() / 5).to_string();
            let mut arguments = vec![&*epoch, self.pass_flag(), &n];
            arguments.extend(rows.iter().map(String::as_str));
            assert_eq!(self.sale.call::<i64>("put_tickets", &KEYS, &arguments), 1);
        }
        let stock = stock.to_string();
        let terms = ["starts_at_ms", "0", "ends_at_ms", NEVER_MS, "per_user", "1", "pay_within_ms", "1"];
        let arguments = [&[&*epoch, "open", &*stock, "0"], &terms[..]].concat();
        assert_eq!(self.sale.call::<i64>("open_sale", &KEYS, &arguments), 1);
    }
}

fn user(of: usize) -> String {
    format!("buyer-{of}")
}

fn lender_text(lender: Option<usize>) -> String {
    lender.map_or("-1".to_owned(), |lender| lender.to_string())
}

/// Runs one step on both, and compares the answers.
fn run(step: &Step, world: &World, model: &mut Shard, real: &mut Real) {
    let epoch = model.epoch.to_string();
    let is_open = model.phase == Phase::Open;
    match *step {
        Step::Reserve(order, lender, remember) => {
            let expected = is_open.then(|| {
                let admission = model.reserve(world, order, lender);
                let may_remember = remember && model.stock == 0 && model.aside == 0;
                model.granted |= may_remember;
                let listed = model.listed(world);
                let names = || (0..BUYERS).filter(|of| listed[*of]).map(user).collect::<BTreeSet<_>>();
                (admission, may_remember.then(names))
            });
            assert_eq!(real.reserve(order, lender, remember), expected);
        }
        Step::Move(order, number, lender) => {
            let expected = model.move_loan(world, &Loan { order, lender: 1, number, epoch: model.epoch }, lender);
            let arguments =
                [&*epoch, "0", real.pass_flag(), "1", &id(order), &number.to_string(), &lender_text(lender)];
            let reply: Vec<Value> = real.sale.call("move_loan", &KEYS, &arguments);
            let [_, _, Value::BulkString(codes), numbers] = &reply[..] else {
                return assert_eq!(expected, Admission::Lost);
            };
            let numbers = Vec::<Number>::from_redis_value_ref(numbers).unwrap();
            let answered = match codes[0] {
                0 => Admission::Held,
                9 => Admission::Empty,
                18 => {
                    Admission::Borrow(Loan { order, lender: lender.unwrap(), number: numbers[0], epoch: model.epoch })
                }
                19 => Admission::Lost,
                other => panic!("move_loan answered {other}"),
            };
            assert_eq!(answered, expected);
        }
        Step::Lend(order, number, of) => {
            let expected = model.lend(world, &Loan { order, lender: SELF, number, epoch: of });
            let empty_ms = if world.knows_empty { EMPTY_MS } else { "0" };
            let arguments = [&*of.to_string(), empty_ms, "0", "1", &id(order), &user(1), "1", &number.to_string()];
            let reply: Vec<Value> = real.sale.call("lend", &KEYS, &arguments);
            let answered = match &reply[..] {
                [_, _, _, Value::BulkString(codes)] if codes[0] == 0 => Answer::Held,
                // The script reports for the shard that it is empty. The model reports it to each buyer that it refuses for lack of units.
                [_, _, Value::Int(empty_ms), _] => {
                    assert_eq!(*empty_ms > 0, world.knows_empty && model.stock == 0);
                    model.granted |= *empty_ms > 0;
                    Answer::No { is_empty: false }
                }
                _ => Answer::No { is_empty: false },
            };
            assert_eq!(answered == Answer::Held, expected == Answer::Held);
            if answered == Answer::Held && world.knows_empty && model.stock == 0 {
                // The buyer of the last unit learns at once that no other is left.
                model.granted = true;
            }
        }
        Step::Bar(order, number) => {
            let expected = model.bar(world, &Loan { order, lender: SELF, number, epoch: model.epoch });
            let arguments = [&*epoch, &id(order), &number.to_string()];
            let reply: Vec<Value> = real.sale.call("bar_loan", &KEYS, &arguments);
            let answered = match &reply[..] {
                [_, Value::BulkString(codes)] if codes[0] < 2 => Some(codes[0] == 1),
                _ => None,
            };
            assert_eq!(answered, expected);
        }
        Step::TakeBack(order, number) => {
            model.take_back(world, &Loan { order, lender: 1, number, epoch: model.epoch });
            let arguments = [&*epoch, &id(order), &number.to_string()];
            real.sale.call::<Value>("take_back_loan", &KEYS, &arguments);
        }
        Step::Close(order) => {
            model.close_loan(order);
            real.sale.call::<i64>("close_loan", &KEYS, &[real.pass_flag(), &id(order)]);
        }
        // A hold is confirmed; a loan is closed.
        Step::Confirm(order) if matches!(model.tickets[order], Ticket::Open { .. }) => {}
        Step::Confirm(order) => {
            model.unconfirmed[order] = false;
            real.sale.call::<i64>("confirm", &["unconfirmed"], &[id(order)]);
        }
        Step::Release(order) => {
            let expected = if model.tickets[order].is_hold() {
                model.release_hold(world, order)
            } else {
                model.release_loan(world, order)
            };
            let known = !matches!(model.tickets[order], Ticket::None | Ticket::Barred { .. });
            let arguments = ["1", &id(order), "1", "0", real.pass_flag()];
            let reply: Vec<Value> = real.sale.call("release", &KEYS, &arguments);
            match expected {
                Some(epoch) => {
                    assert_eq!(reply[0], Value::Int(epoch.into()));
                    let named = String::from_redis_value_ref(&reply[2]).unwrap();
                    assert_eq!(named, if known { user(buyer(order)) } else { String::new() });
                }
                None => assert_eq!(reply.len(), 1),
            }
        }
        Step::ReturnUnits => {
            if model.epoch > 0 {
                model.granted = false;
                model.stock += std::mem::take(&mut model.aside);
                real.sale.command::<i64>("HSET", "sale", &["returning_at_ms", "0", "sold_out_until_ms", "0"]);
            }
        }
        Step::Stop => {
            model.stop(model.epoch);
            real.sale.call::<i64>("begin_refill", &KEYS, &[&epoch, "close"]);
        }
        Step::Refill(stock, orders) => {
            let snapshot = Snapshot { epoch: model.epoch + 1, shares: [stock; 3], orders, only: None };
            model.fill(world, &snapshot, SELF);
            model.phase = Phase::Open;
            real.refill(model, stock, &orders);
        }
    }
}

#[ignore = "needs Redis: ./dev test unit"]
#[test]
fn scripts_and_model_agree_on_random_histories_of_a_shard() {
    proptest!(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() }, |(steps in steps(), knows_empty in any::<bool>(), asks_pass in any::<bool>())| {
        let world = World { knows_empty, ..super::NO_FAULTS };
        let mut real = Real { sale: RealSale::new(), asks_pass };
        let mut model = Shard::default();
        for (at, step) in steps.iter().enumerate() {
            run(step, &world, &mut model, &mut real);
            let found = real.shard();
            real.check_buyers(&found);
            prop_assert_eq!(found, model, "after step {}: {:?}", at, step);
        }
        real.sale.delete(&KEYS);
    });
}
