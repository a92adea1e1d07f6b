//! The admin API, for signed-in people (`caller`). The console shows and changes everything through it. The document of the API adds to
//! each address its tag and the session that it requires (`api::document`).

mod accounts;
mod apps;
mod buyers;
mod caller;
mod cookies;
mod drafts;
mod live;
mod log;
mod money;
mod orders;
mod outflows;
mod policies;
mod problems;
mod products;
mod queues;
mod sales;
mod session;
pub(crate) mod shoppers;

pub use caller::{Ask, Caller};
pub use cookies::CookieNames;
pub(crate) use cookies::cookie;

use crate::admin::{AdminError, Office};
use seckill_buying::live::LiveSales;
use seckill_domain::policy::Name;
use seckill_http::Answer;
use seckill_http::addresses::{Address, address};
use seckill_http::codes::problems;

/// State for the handlers of the admin API and the console's pages.
pub struct Backoffice {
    pub office: Office,
    pub cookies: CookieNames,
    pub live: LiveSales,
}

/// The addresses of the admin API.
pub fn addresses() -> Vec<Address> {
    vec![
        address(session::__path_sign_in, session::sign_in),
        address(session::__path_show_session, session::show_session),
        address(session::__path_sign_out, session::sign_out),
        address(session::__path_sign_out_everywhere, session::sign_out_everywhere),
        address(log::__path_overview, log::overview),
        address(accounts::__path_list_accounts, accounts::list_accounts),
        address(accounts::__path_create_account, accounts::create_account),
        address(accounts::__path_change_account, accounts::change_account),
        address(drafts::__path_list_drafts, drafts::list_drafts),
        address(drafts::__path_add_draft, drafts::add_draft),
        address(drafts::__path_show_draft, drafts::show_draft),
        address(drafts::__path_set_draft, drafts::set_draft),
        address(drafts::__path_remove_draft, drafts::remove_draft),
        address(sales::__path_list_managed_sales, sales::list_managed_sales),
        address(sales::__path_plan_sale, sales::plan_sale),
        address(sales::__path_show_managed_sale, sales::show_managed_sale),
        address(sales::__path_change_sale, sales::change_sale),
        address(sales::__path_remove_sale, sales::remove_sale),
        address(sales::__path_set_sale_status, sales::set_sale_status),
        address(sales::__path_add_stock, sales::add_stock),
        address(sales::__path_lapsed_holds, sales::lapsed_holds),
        address(shoppers::__path_show_activity, shoppers::show_activity),
        address(shoppers::__path_list_blocks, shoppers::list_blocks),
        address(shoppers::__path_set_block, shoppers::set_block),
        address(shoppers::__path_end_block, shoppers::end_block),
        address(live::__path_watch_sale, live::watch_sale),
        address(products::__path_set_product, products::set_product),
        address(products::__path_remove_product, products::remove_product),
        address(products::__path_rename_product, products::rename_product),
        address(products::__path_set_product_picture, products::set_product_picture),
        address(products::__path_remove_product_picture, products::remove_product_picture),
        address(orders::__path_search_orders, orders::search_orders),
        address(orders::__path_export_orders, orders::export_orders),
        address(orders::__path_show_any_order, orders::show_any_order),
        address(orders::__path_refund_any_order, orders::refund_any_order),
        address(buyers::__path_erase_buyer, buyers::erase_buyer),
        address(money::__path_list_payments, money::list_payments),
        address(money::__path_list_conflicts, money::list_conflicts),
        address(money::__path_settle_conflict, money::settle_conflict),
        address(money::__path_list_refunds, money::list_refunds),
        address(money::__path_retry_refund, money::retry_refund),
        address(queues::__path_show_outbox, queues::show_outbox),
        address(queues::__path_retry_messages, queues::retry_messages),
        address(queues::__path_retry_message, queues::retry_message),
        address(outflows::__path_list_outflows, outflows::list_outflows),
        address(outflows::__path_change_outflow, outflows::change_outflow),
        address(outflows::__path_retry_outflow_items, outflows::retry_outflow_items),
        address(outflows::__path_list_outflow_items, outflows::list_outflow_items),
        address(outflows::__path_retry_outflow_item, outflows::retry_outflow_item),
        address(policies::__path_list_policies, policies::list_policies),
        address(policies::__path_set_policy, policies::set_policy),
        address(policies::__path_delete_policy, policies::delete_policy),
        address(policies::__path_preview_policy, policies::preview_policy),
        address(apps::__path_list_apps, apps::list_apps),
        address(apps::__path_create_app, apps::create_app),
        address(apps::__path_rotate_app_token, apps::rotate_app_token),
        address(apps::__path_set_grant, apps::set_grant),
        address(log::__path_audit_log, log::audit_log),
        address(log::__path_alarms, log::alarms),
        address(log::__path_acknowledge_alarm, log::acknowledge_alarm),
        address(log::__path_mute_alarm, log::mute_alarm),
        address(log::__path_unmute_alarm, log::unmute_alarm),
    ]
}

fn app(text: &str) -> Result<Name, AdminError> {
    Ok(Name::parse(text, "app")?)
}

// What reads are refused with: all of a list, some of it, or one thing; `Guarded` ones are not for every account.
problems!(pub NotRead: SignedOut, TemporarilyUnavailable);
problems!(pub NotReadSome: InvalidRequest, SignedOut, TemporarilyUnavailable);
problems!(pub NotReadOne: InvalidRequest, SignedOut, NotFound, TemporarilyUnavailable);
problems!(pub NotReadGuarded: SignedOut, Forbidden, TemporarilyUnavailable);
problems!(pub NotReadSomeGuarded: InvalidRequest, SignedOut, Forbidden, TemporarilyUnavailable);

// What changes are refused with: of something that is always there, that may be unknown, and that may be in another state.
problems! {
    pub(crate) NotDone: InvalidRequest, SignedOut, Forbidden, ForgedRequest, TooSlow, BodyTooLarge, TemporarilyUnavailable
}
problems! {
    pub(crate) NotDoneToOne: InvalidRequest, SignedOut, Forbidden, ForgedRequest, NotFound, TooSlow, BodyTooLarge,
    TemporarilyUnavailable
}
problems! {
    pub(crate) NotMade: InvalidRequest, SignedOut, Forbidden, ForgedRequest, TooSlow, Conflict, BodyTooLarge,
    TemporarilyUnavailable
}
problems! {
    pub(crate) NotChanged: InvalidRequest, SignedOut, Forbidden, ForgedRequest, NotFound, TooSlow, Conflict, BodyTooLarge,
    TemporarilyUnavailable
}
