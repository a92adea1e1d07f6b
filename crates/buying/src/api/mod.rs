//! The API for buyers: sales, challenges, purchases, orders.

mod call;
pub mod challenges;
mod events;
mod orders;
mod problems;
mod purchases;
mod sales;
pub mod shortcut;
mod state;

pub use call::Call;

use seckill_http::addresses::{Address, address};

/// The addresses for buyers.
pub fn addresses() -> Vec<Address> {
    vec![
        address(purchases::__path_create, purchases::create).busy(),
        address(state::__path_sale_state_script, state::sale_state_script).busy(),
        address(challenges::__path_ask_challenge, challenges::ask_challenge).busy(),
        address(challenges::__path_answer_challenge, challenges::answer_challenge).busy(),
        address(sales::__path_show_product, sales::show_product),
        address(sales::__path_list_sales, sales::list_sales),
        address(sales::__path_show_sale, sales::show_sale),
        address(state::__path_sale_state, state::sale_state),
        address(orders::__path_list_orders, orders::list_orders),
        address(orders::__path_show_order, orders::show_order),
        address(events::__path_follow_order, events::follow_order),
        address(orders::__path_cancel_order, orders::cancel_order),
    ]
}
