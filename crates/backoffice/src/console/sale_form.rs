//! The form of a sale: a new one, a draft, a copy of another sale, and the change of one.

use actix_web::HttpResponse;
use askama::Template;
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::frame::{Frame, page};
use super::sales::named_sale;
use super::show;
use crate::admin::drafts::DraftField;
use crate::admin::paging::given;
use crate::admin::sales::{ManagedSale, SaleDetails};
use crate::admin::{AdminError, Office};
use crate::api::{Ask, Caller};
use seckill_domain::currency::Currency;
use seckill_domain::ids::SaleId;
use seckill_domain::sale::SalePhase;

const NAMES_MAX: i64 = 200;

#[derive(Template)]
#[template(path = "console/sale-form.html")]
struct SaleFormPage {
    frame: Frame,
    products: Vec<String>,
    currencies: Vec<Currency>,
    default: Currency,
    /// The sale that is changed; `None` for a new one.
    changed: Option<SaleId>,
    is_sold: bool,
    is_open: bool,
    draft: Option<Uuid>,
    /// The texts that the fields begin with: a JSON list.
    texts: Value,
}

impl SaleFormPage {
    async fn new(office: &Office, caller: &Caller, frame: Frame) -> Result<Self, AdminError> {
        let products = office.products(&caller.account, None, None, NAMES_MAX).await?;
        Ok(Self {
            frame,
            products: products.into_iter().map(|product| product.name).collect(),
            currencies: Currency::all().collect(),
            default: office.currency,
            changed: None,
            is_sold: false,
            is_open: false,
            draft: None,
            texts: json!([]),
        })
    }

    fn title(&self) -> &'static str {
        match self.changed {
            None => show::t("Plan a sale", "计划抢购"),
            Some(_) => show::t("Change the sale", "更改抢购"),
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Origin {
    draft: Option<String>,
    like: Option<String>,
}

pub(crate) async fn plan(ask: Ask) -> HttpResponse {
    page(ask, "sales", async |office, caller, frame| {
        let (mut page, origin) = (SaleFormPage::new(office, caller, frame).await?, caller.query::<Origin>()?);
        if let Some(draft) = given(&origin.draft) {
            let draft = Uuid::try_parse(draft).map_err(|_| AdminError::Unknown("draft"))?;
            page.texts = json!(office.draft(&caller.account, draft).await?);
            page.draft = Some(draft);
        } else if let Some(like) = given(&origin.like) {
            let like = SaleId::parse(like).map_err(|_| AdminError::Unknown("sale"))?;
            // The times of the other sale are over, or its own.
            let texts = texts(&office.sale(like).await?).into_iter().filter(|field| !field.name.ends_with("_at_ms"));
            page.texts = json!(texts.collect::<Vec<_>>());
        }
        Ok(page)
    })
    .await
}

pub(crate) async fn change(ask: Ask) -> HttpResponse {
    page(ask, "sales", async |office, caller, frame| {
        let id = named_sale(caller)?;
        let details = office.sale(id).await?;
        if details.sale.is_closed {
            return Err(AdminError::Conflict(format!("sale {id} is closed, which is final")));
        }
        let page = SaleFormPage::new(office, caller, frame).await?;
        let (is_sold, is_open) = (office.is_sold(id).await?, details.sale.status == SalePhase::Open);
        Ok(SaleFormPage { changed: Some(id), is_sold, is_open, texts: json!(texts(&details)), ..page })
    })
    .await
}

/// The fields of the form as a person would have typed them for this sale. Waves are those to come.
fn texts(SaleDetails { sale, keep_refunded, waves, .. }: &SaleDetails) -> Vec<DraftField> {
    let ManagedSale { starts_at_ms, ends_at_ms, .. } = *sale;
    let to_come = waves.iter().rev().filter(|wave| wave.planned && wave.released_at.is_none());
    let waves: Vec<Value> = to_come
        .map(|wave| {
            json!({ "after_s": (wave.due_at.timestamp_millis() - starts_at_ms).max(0) / 1000, "units": wave.units })
        })
        .collect();
    let is_unlimited = sale.total_stock < 0;
    let minutes = sale.pay_within_s as f64 / 60.0;
    [
        ("product", sale.product.clone()),
        ("currency", sale.currency.to_string()),
        ("price_cents", sale.currency.amount(sale.price_cents)),
        ("stock", if is_unlimited { String::new() } else { sale.total_stock.to_string() }),
        ("unlimited", is_unlimited.to_string()),
        ("per_user", sale.per_user.get().to_string()),
        ("starts_at_ms", starts_at_ms.to_string()),
        ("ends_at_ms", ends_at_ms.to_string()),
        ("pay_within_s", minutes.to_string()),
        ("min_level", sale.min_level.to_string()),
        ("captcha", sale.captcha.to_string()),
        ("shards", sale.shards.to_string()),
        ("keep_refunded", keep_refunded.to_string()),
        ("show_stock", sale.show_stock.to_string()),
        ("waves", json!(waves).to_string()),
    ]
    .map(|(name, text)| DraftField { name: name.to_owned(), text })
    .into()
}
