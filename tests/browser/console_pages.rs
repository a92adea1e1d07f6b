//! Every page of the console, for each role: its visible and hidden parts, its accessibility, and screen sizes.

use std::collections::BTreeSet;

use seckill_domain::account::AccountRole;
use serde_json::{Value, json};

use crate::accessibility::Audit;
use crate::chromium::Page;
use crate::console::{PEOPLE, SIGN_OUT, at};
use crate::day::Day;
use crate::page::shown;

const STATUS: &str = "performance.getEntriesByType('navigation')[0].responseStatus";
/// Every address that the page links to, except parts of the page itself.
const LINKS: &str = "[...document.querySelectorAll('a[href^=\"/\"]')].map((link) => link.getAttribute('href'))";
/// The addresses of the API that the page's content can send to.
const CALLS: &str = "[...document.querySelectorAll('main [data-api]')].map((one) => one.dataset.api)";

pub struct Place {
    pub name: &'static str,
    pub path: String,
    /// This many of `PEOPLE` may see it, from the admin on.
    seen_by: usize,
    /// Texts that all of them see.
    shows: &'static [&'static str],
}

fn place(name: &'static str, path: &str, seen_by: usize, shows: &'static [&'static str]) -> Place {
    Place { name, path: path.to_owned(), seen_by, shows }
}

/// All pages, on a day when each has contents.
pub fn places(day: &Day) -> Vec<Place> {
    let sales = [&day.open, &day.planned, &day.closed];
    let [open, planned, closed] = sales.map(|sale| format!("/admin/sales/{}", sale.id));
    vec![
        place("overview", "/admin", 3, &["Phone", "Lamp"]),
        place("sales", "/admin/sales", 3, &["Phone", "Lamp", "Kettle"]),
        place("sale", &open, 3, &["Phone", "open"]),
        place("sale-planned", &planned, 3, &["Lamp", "scheduled"]),
        place("sale-closed", &closed, 3, &["Kettle", "ended", "finn"]),
        place("live", &format!("{open}/live"), 3, &["Phone"]),
        place("report", &format!("{closed}/report"), 3, &["Kettle", "Revenue", "Conversion"]),
        place("activity", &format!("{closed}/activity?buyer=finn"), 2, &["finn", "Kettle"]),
        place("sale-new", "/admin/sales/new", 2, &[]),
        place("sale-copied", &format!("/admin/sales/new?like={}", day.planned.id), 2, &[]),
        place("sale-edited", &format!("{open}/edit"), 2, &["they keep the terms that they saw"]),
        place("products", "/admin/products", 2, &["Phone", "Lamp", "Kettle"]),
        place("product", "/admin/products?name=Phone", 2, &["Phone", "Description"]),
        place("orders", "/admin/orders", 3, &["ann", "bob", "cat", "dan", "waiting for payment", "refunded"]),
        place("order", &format!("/admin/orders/{}", day.paid), 3, &["ann", "paid", "History"]),
        place("payments", "/admin/payments", 2, &["sandbox", "unknown payment"]),
        place("refunds", "/admin/refunds", 2, &["too loud"]),
        place("outflows", "/admin/outflows", 2, &["letters", "paused", "the receiver answered 503"]),
        place("outbox", "/admin/outbox", 2, &["group_placed", "eve", "this one never"]),
        place("policies", "/admin/policies", 3, &["mailer", "everyone", "each", "for everybody together"]),
        place("policy", "/admin/policies/mailer/everyone", 3, &["limit 5, window_ms 60000", "The last hour"]),
        place("policy-new", "/admin/policies/new", 2, &["token-bucket"]),
        place("policy-draft", "/admin/policies/draft?app=mailer&name=p&algorithm=token-bucket", 2, &["p of mailer"]),
        place("apps", "/admin/apps", 1, &["mailer", "scanner", "max"]),
        place("alarms", "/admin/alarms", 3, &["parked", "group_placed"]),
        place("runbooks", "/admin/runbooks", 3, &[]),
        place("runbook", "/admin/runbooks/parked", 3, &["What to do"]),
        place("accounts", "/admin/accounts", 1, &["root", "max", "vic"]),
        place("audit-log", "/admin/audit-log", 1, &["app created", "scanner"]),
    ]
}

/// Fails if the console has a page that is missing in `places`.
fn assert_all(places: &[Place]) {
    let fits = |pattern: &str, path: &str| {
        let path = path.split('?').next().unwrap();
        let (parts, pieces): (Vec<_>, Vec<_>) = (pattern.split('/').collect(), path.split('/').collect());
        parts.len() == pieces.len()
            && parts.iter().zip(&pieces).all(|(part, piece)| part.starts_with('{') || part == piece)
    };
    for (pattern, _) in seckill_backoffice::console::pages() {
        assert!(places.iter().any(|place| fits(pattern, &place.path)), "{pattern} is tested by no browser");
    }
}

/// Opens a page, and unfolds its folded parts.
pub async fn visit(page: &Page, day: &Day, path: &str) {
    page.open_console(&day.shop, path).await;
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })").await;
}

/// Buyers that no page shows to viewers (tests/api/backoffice/console_rights.rs).
const BUYERS: [&str; 5] = ["ann", "bob", "cat", "dan", "finn"];

/// Checks the contents of a page that the account may see.
async fn look(page: &Page, place: &Place, role: AccountRole) {
    let Place { name, path, shows, .. } = place;
    assert_eq!(page.number(STATUS).await, 200.0, "{path}, {role:?}");
    page.wait(&shown("main h1")).await;
    for text in shows.iter().filter(|text| role != AccountRole::Viewer || !BUYERS.contains(text)) {
        page.wait(&format!("document.querySelector('main').innerText.includes({text:?})")).await;
    }
    assert_eq!(page.number("document.querySelectorAll('h1').length").await, 1.0, "{name}");
    let marked = page.number("document.querySelectorAll('nav.sections [aria-current]').length").await;
    assert_eq!(marked, 1.0, "{name} is in one section");
    let calls: Vec<String> = serde_json::from_value(page.evaluate(CALLS).await).unwrap();
    let theirs = ["accounts", "sessions", "apps", "grants"].map(|area| format!("/api/v1/admin/{area}"));
    match role {
        AccountRole::Admin => {}
        AccountRole::Manager => {
            let forbidden = calls.iter().find(|call| theirs.iter().any(|area| call.starts_with(area)));
            assert_eq!(forbidden, None, "{name} offers a manager what is an admin's");
        }
        AccountRole::Viewer => assert_eq!(calls, [""; 0], "{name} offers a viewer a change"),
    }
    if role != AccountRole::Admin {
        let named = page.is_true("document.body.textContent.includes('scanner')").await;
        assert!(!named, "{name} names what was not granted");
    }
}

/// The parts of a page that scroll horizontally, except code and what a person types.
const SCROLLS: &str = "[...document.querySelectorAll('body *:not(pre, textarea, input, .unseen)')]
    .filter((one) => one.checkVisibility() && one.scrollWidth > one.clientWidth + 1 && one.clientWidth > 1)
    .filter((one) => ['auto', 'scroll'].includes(getComputedStyle(one).overflowX))
    .map((one) => `${one.tagName}.${one.className}: ${one.scrollWidth}`)";

async fn dead_links(page: &Page, links: &BTreeSet<String>) -> Value {
    let links = serde_json::to_string(links).unwrap();
    let ask = format!(
        "(async () => {{
            const dead = [];
            for (const link of {links}) {{
                let answer;
                // A busy service may refuse for a moment.
                for (let tries = 0; tries < 10 && (!answer || answer.status === 503); tries++) {{
                    if (tries) await new Promise((done) => setTimeout(done, 1000));
                    answer = await fetch(link);
                    await answer.body?.cancel();
                }}
                if (!answer.ok) dead.push(`${{link}}: ${{answer.status}}`);
            }}
            return dead;
        }})()"
    );
    page.evaluate(&ask).await
}

/// A10: a viewer is offered no change, and a manager no change for admins. No link leads to a forbidden page.
#[tokio::test(flavor = "multi_thread")]
async fn each_role_has_its_pages() {
    let day = Day::begin().await;
    assert_all(&places(&day));
    let page = Page::open().await;
    for (n, (person, role)) in PEOPLE.into_iter().enumerate() {
        page.sign_in_at(&day.shop, person, "/admin").await;
        let mut links = BTreeSet::new();
        for place in places(&day) {
            visit(&page, &day, &place.path).await;
            if n < place.seen_by {
                look(&page, &place, role).await;
                let found: Vec<String> = serde_json::from_value(page.evaluate(LINKS).await).unwrap();
                links.extend(found);
            } else {
                assert_eq!(page.number(STATUS).await, 403.0, "{}, {person}", place.path);
                page.wait(&shown("main a[href='/admin']")).await;
            }
        }
        page.open_console(&day.shop, "/admin").await;
        assert_eq!(dead_links(&page, &links).await, json!([]), "links on the pages of {person}");
        page.send(SIGN_OUT).await;
        page.wait(&at("/admin/sign-in")).await;
    }
    day.shop.close(page).await;
}

/// Also in the confirmation question, the sign-in page, and the pages for missing and forbidden addresses.
#[tokio::test(flavor = "multi_thread")]
async fn every_page_passes_axe_and_fits_a_phone() {
    let mut audit = Audit::new();
    let day = Day::begin().await;
    let page = Page::open().await;
    page.open_console(&day.shop, "/admin").await;
    audit.look(&page, "sign in").await;
    page.sign_in_at(&day.shop, "vic", "/admin").await;
    let others =
        [("forbidden", "/admin/accounts"), ("missing", "/admin/no-such-page"), ("a viewer's overview", "/admin")];
    for (what, path) in others {
        page.open_console(&day.shop, path).await;
        audit.look(&page, what).await;
    }
    page.send(SIGN_OUT).await;
    page.sign_in_at(&day.shop, "root", "/admin").await;
    for place in places(&day) {
        visit(&page, &day, &place.path).await;
        audit.look(&page, place.name).await;
    }
    visit(&page, &day, "/admin/accounts").await;
    page.click("form[data-api='/api/v1/admin/accounts/vic']:has([name=disabled]) button").await;
    page.wait(&shown("dialog[open]")).await;
    audit.look(&page, "a question").await;
    page.click("dialog button[value=no]").await;
    let publish = "#sale-form .actions > .button";
    page.open_console(&day.shop, &format!("/admin/sales/new?like={}", day.planned.id)).await;
    page.type_over("#sale-form [name=price_cents]", "1,299").await;
    page.click(publish).await;
    page.wait(&shown("#sale-form .error")).await;
    audit.look(&page, "form errors").await;
    page.type_over("#sale-form [name=price_cents]", "0").await;
    page.press_and_look(publish).await;
    audit.look(&page, "sale preview").await;
    page.click("dialog button[value=no]").await;
    audit.passes();

    // A phone of 360 pixels: no page and no part of one scrolls horizontally. The rows of tables are cards.
    page.be_a_phone().await;
    for Place { name, path, .. } in places(&day) {
        // First as opened, and then with all parts unfolded.
        page.open_console(&day.shop, &path).await;
        page.screenshot(&format!("console-phone-{name}")).await;
        page.assert_fits(name).await;
        assert_eq!(page.evaluate(SCROLLS).await, json!([]), "{name} scrolls sideways");
        visit(&page, &day, &path).await;
        page.assert_fits(&format!("{name}, unfolded")).await;
    }
    page.open_console(&day.shop, "/admin/no-such-page").await;
    page.assert_fits("missing").await;
    page.open_console(&day.shop, "/admin").await;
    page.send(SIGN_OUT).await;
    page.assert_fits("sign in").await;
    day.shop.close(page).await;
}
