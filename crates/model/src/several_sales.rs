//! Several sales on one server (rules 10 and 11): the server restarts without its last writes. Each sale is refilled on its own, and the
//! refill of one sale always fails. A sale is a number of units, and every buyer buys one.

use stateright::{Model, Property};

use super::small::is_at_rest;

const SALES: usize = 3;
/// This sale cannot be refilled: each try takes its place, then fails or never ends.
const SICK: usize = 0;
const STOCK: u8 = 2;
/// How many first tries may use PostgreSQL at the same time. Repeated tries have one more place.
const PLACES: usize = 1;
const TRIES: u8 = 2;

const NOT_OVERSOLD: &str = "no sale sells more than it has";
const OTHERS_OPEN: &str = "at rest every sale is open but the one that cannot be refilled";

#[derive(Clone, Copy, Default)]
struct SeveralSales {
    /// Whether a server may sell is remembered per server, and not per sale.
    decided_by_server: bool,
    /// A sale that has failed waits in the same queue as the others.
    one_line: bool,
    /// There is only one place in all, and the hanging refill of the sick sale keeps it.
    in_turn: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    run: u8,
    /// The run of the server that was refilled last: used only if it decides.
    filled_run: u8,
    sales: [Sale; SALES],
    restarts: u8,
    fsyncs: u8,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Sale {
    /// Units in PostgreSQL.
    sold: u8,
    /// Units in Redis, in memory and on disk.
    left: u8,
    left_on_disk: u8,
    /// The run on which the sale was filled.
    filled_on: u8,
    refill: Refill,
    tries: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Refill {
    #[default]
    None,
    Running,
    /// It never ends by itself.
    Hanging,
}

#[derive(Clone, Debug, PartialEq)]
enum Action {
    Buy(usize),
    Fsync,
    Restart,
    StartRefill(usize),
    /// A whole refill, which has its own model.
    Refill(usize),
    Fail(usize),
    Hang(usize),
}

impl SeveralSales {
    fn serves(&self, state: &State, sale: usize) -> bool {
        if self.decided_by_server { state.filled_run == state.run } else { state.sales[sale].filled_on == state.run }
    }

    fn has_place(&self, state: &State, sale: usize) -> bool {
        let failed = |sale: usize| state.sales[sale].tries > 0 && !self.one_line && !self.in_turn;
        let busy = (0..SALES).filter(|other| state.sales[*other].refill != Refill::None);
        let same_line = busy.filter(|other| failed(*other) == failed(sale)).count();
        same_line < PLACES
    }
}

impl Model for SeveralSales {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let sale = Sale { left: STOCK, left_on_disk: STOCK, filled_on: 1, ..Sale::default() };
        vec![State { run: 1, filled_run: 1, sales: std::array::from_fn(|_| sale.clone()), restarts: 1, fsyncs: 1 }]
    }

    fn actions(&self, state: &State, out: &mut Vec<Action>) {
        for sale in 0..SALES {
            let Sale { left, refill, tries, .. } = state.sales[sale];
            if left > 0 && self.serves(state, sale) && refill == Refill::None {
                out.push(Action::Buy(sale));
            }
            let lost = state.sales[sale].filled_on != state.run;
            match refill {
                Refill::None if lost && tries < TRIES && self.has_place(state, sale) => {
                    out.push(Action::StartRefill(sale));
                }
                Refill::Running if sale == SICK => out.extend([Action::Fail(sale), Action::Hang(sale)]),
                Refill::Running => out.push(Action::Refill(sale)),
                Refill::None | Refill::Hanging => {}
            }
        }
        if state.restarts > 0 {
            out.push(Action::Restart);
            if state.fsyncs > 0 {
                out.push(Action::Fsync);
            }
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        match action {
            Action::Buy(sale) => {
                state.sales[sale].left -= 1;
                state.sales[sale].sold += 1;
            }
            Action::Fsync => {
                state.sales.iter_mut().for_each(|sale| sale.left_on_disk = sale.left);
                state.fsyncs -= 1;
            }
            Action::Restart => {
                state.sales.iter_mut().for_each(|sale| sale.left = sale.left_on_disk);
                (state.run, state.restarts) = (state.run + 1, state.restarts - 1);
            }
            Action::StartRefill(sale) => state.sales[sale].refill = Refill::Running,
            Action::Refill(sale) => {
                let (run, of) = (state.run, &mut state.sales[sale]);
                (of.left, of.filled_on, of.refill) = (STOCK - of.sold.min(STOCK), run, Refill::None);
                state.filled_run = run;
            }
            Action::Fail(sale) => {
                state.sales[sale].refill = Refill::None;
                state.sales[sale].tries += 1;
            }
            Action::Hang(sale) => {
                // A hanging refill either is a repeated try, or takes the place of first tries for good.
                state.sales[sale].refill = if before.sales[sale].tries > 0 || self.in_turn {
                    Refill::Hanging
                } else {
                    return None;
                };
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(NOT_OVERSOLD, |_, state: &State| state.sales.iter().all(|sale| sale.sold <= STOCK)),
            Property::always(OTHERS_OPEN, |model: &Self, state: &State| {
                !is_at_rest(model, state)
                    || (0..SALES).filter(|sale| *sale != SICK).all(|sale| model.serves(state, sale))
            }),
            Property::sometimes("one sells again while another is being refilled", |model: &Self, state: &State| {
                let again = (0..SALES).any(|sale| state.run > 1 && model.serves(state, sale));
                again && state.sales.iter().any(|sale| sale.refill == Refill::Running)
            }),
        ]
    }
}

explored! {
    sales_are_refilled_apart: SeveralSales::default();
}

refuted! {
    decided_by_server: NOT_OVERSOLD, SeveralSales { decided_by_server: true, ..SeveralSales::default() };
    failed_in_the_same_line: OTHERS_OPEN, SeveralSales { one_line: true, ..SeveralSales::default() };
    refilled_in_turn: OTHERS_OPEN, SeveralSales { in_turn: true, ..SeveralSales::default() };
}
