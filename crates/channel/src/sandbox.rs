//! The interface of the sandbox bank (docs/payments.md), from this service's side. Requests and callbacks are signed as Standard
//! Webhooks defines. Each request has an Idempotency-Key, and its outcome can be asked by that key.

use serde::Deserialize;
use serde_json::json;
use uuid::Uuid;

use super::{BadCallback, BooksPage, Charge, SignatureHeaders, StatusReply};
use seckill_domain::ids::OrderId;
use seckill_domain::payment::{About, ChannelReport, PaymentId, Progress, RefundKey};
use seckill_webhook::{HttpAnswer, Secret, SendError, SignedRequest, verify};

const PAGE: usize = 1000;

pub(super) struct Sandbox {
    url: String,
    /// The first secret signs; a callback may be signed with any of them.
    secrets: Vec<Secret>,
}

/// A payment or refund as the channel writes it.
#[derive(Deserialize)]
struct Document {
    key: Uuid,
    id: Option<String>,
    status: Progress,
    amount_cents: i64,
    currency: String,
    order_id: Option<OrderId>,
    payment_key: Option<PaymentId>,
    reason: Option<String>,
}

#[derive(Deserialize)]
struct Callback {
    #[serde(rename = "type")]
    kind: String,
    data: serde_json::Value,
}

#[derive(Deserialize)]
struct Page {
    entries: Vec<Document>,
    pub next: Option<i64>,
}

impl Document {
    fn report(self) -> Option<ChannelReport> {
        let about = match (self.order_id, self.payment_key) {
            (_, Some(payment)) => About::Refund { key: RefundKey(self.key), payment },
            (Some(order), None) => About::Payment { key: PaymentId(self.key), order },
            (None, None) => return None,
        };
        let Self { status: progress, amount_cents, currency, reason, .. } = self;
        let reference = self.id.unwrap_or_default();
        Some(ChannelReport { about, progress, amount_cents, currency, reference, reason })
    }
}

impl Sandbox {
    pub(super) fn new(url: &str, secrets: Vec<Secret>) -> Self {
        Self { url: url.trim_end_matches('/').to_owned(), secrets }
    }

    pub(super) fn request(&self, charge: &Charge<'_>, now_s: i64) -> SignedRequest {
        let Charge { about, amount_cents, currency } = charge;
        let (url, body) = match about {
            About::Payment { order, .. } => (
                format!("{}/v1/payments", self.url),
                json!({ "order_id": order, "amount_cents": amount_cents, "currency": currency }),
            ),
            About::Refund { payment, .. } => (
                self.refund_url(),
                json!({ "payment_key": payment, "amount_cents": amount_cents, "currency": currency }),
            ),
        };
        let signing = &self.secrets[..self.secrets.len().min(1)];
        SignedRequest::new(&url, about.key(), signing, now_s, body.to_string().into_bytes())
    }

    pub(super) fn status_url(&self, about: About) -> String {
        let kind = if about.is_refund() { "refunds" } else { "payments" };
        format!("{}/v1/{kind}/{}", self.url, about.key())
    }

    pub(super) fn read_status(&self, answer: &HttpAnswer) -> StatusReply {
        let report = || serde_json::from_slice::<Document>(&answer.body).ok().and_then(Document::report);
        match answer.status {
            200 => report().map_or_else(|| StatusReply::Unclear(answer.text()), StatusReply::ChannelReport),
            404 if answer.text().contains("unknown") => StatusReply::Unknown,
            _ => StatusReply::Unclear(answer.status_and_text()),
        }
    }

    pub(super) fn read_callback(
        &self,
        signed: SignatureHeaders<'_>,
        body: &[u8],
        now_s: i64,
    ) -> Result<Option<ChannelReport>, BadCallback> {
        verify(&self.secrets, signed.id, signed.timestamp, signed.signature, body, now_s)?;
        let unreadable = |error: &dyn std::fmt::Display| BadCallback::Unreadable(error.to_string());
        let callback: Callback = serde_json::from_slice(body).map_err(|error| unreadable(&error))?;
        let (is_refund, progress) = match callback.kind.as_str() {
            "payment.succeeded" => (false, Progress::Succeeded),
            "payment.failed" => (false, Progress::Failed),
            "payment.pending" => (false, Progress::Pending),
            "refund.succeeded" => (true, Progress::Succeeded),
            "refund.failed" => (true, Progress::Failed),
            "refund.pending" => (true, Progress::Pending),
            _ => return Ok(None),
        };
        let document: Document = serde_json::from_value(callback.data).map_err(|error| unreadable(&error))?;
        let report = document.report().ok_or_else(|| unreadable(&"it names no order and no payment"))?;
        if is_refund != report.about.is_refund() || progress != report.progress {
            return Err(unreadable(&"its type does not fit its data"));
        }
        Ok(Some(report))
    }

    pub(super) fn books_url(&self, after: i64) -> String {
        format!("{}/v1/ledger?after={after}&limit={PAGE}", self.url)
    }

    pub(super) fn read_books(&self, answer: &HttpAnswer) -> Result<BooksPage, SendError> {
        let page: Page = match answer.status {
            200 => serde_json::from_slice(&answer.body).map_err(|error| SendError::Lost(error.to_string()))?,
            _ => return Err(SendError::Lost(answer.status_and_text())),
        };
        let movements = page.entries.into_iter().filter_map(Document::report).collect();
        Ok(BooksPage { movements, next: page.next })
    }

    pub(super) fn refund_url(&self) -> String {
        format!("{}/v1/refunds", self.url)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_700_000_000;

    fn sandbox() -> Sandbox {
        let secrets = ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"];
        let secrets = secrets.map(|secret| Secret::parse(secret).unwrap());
        Sandbox::new("http://127.0.0.1:1/", secrets.into())
    }

    fn read(kind: &str, data: &serde_json::Value) -> Result<Option<ChannelReport>, BadCallback> {
        let sandbox = sandbox();
        let body = json!({ "type": kind, "timestamp": "2026-01-01T00:00:00Z", "data": data }).to_string();
        let signature = sandbox.secrets[1].sign("msg_1", NOW, body.as_bytes());
        let signed = SignatureHeaders { id: "msg_1", timestamp: &NOW.to_string(), signature: &signature };
        sandbox.read_callback(signed, body.as_bytes(), NOW)
    }

    #[test]
    fn a_callback_signed_by_either_key_is_read() {
        let (key, order) = (PaymentId(Uuid::from_u128(1)), OrderId(Uuid::from_u128(2)));
        let data = json!({ "key": key, "id": "pay_1", "status": "succeeded", "order_id": order,
                           "amount_cents": 5, "currency": "CNY" });
        let report = read("payment.succeeded", &data).unwrap().unwrap();
        assert_eq!(report.about, About::Payment { key, order });
        assert_eq!((report.progress, report.amount_cents, report.currency.as_str()), (Progress::Succeeded, 5, "CNY"));
        assert!(matches!(read("payment.failed", &data), Err(BadCallback::Unreadable(_))), "type and status differ");
        assert!(matches!(read("refund.succeeded", &data), Err(BadCallback::Unreadable(_))), "no refund");
        assert!(matches!(read("payment.succeeded", &json!({})), Err(BadCallback::Unreadable(_))));
    }

    /// Banks send events of kinds that nobody asked for, and add new ones.
    #[test]
    fn an_event_of_another_kind_is_no_report() {
        for kind in
            ["webhook.ping", "payout.paid", "payment.refund_requested", "payment", "refund.", "PAYMENT.SUCCEEDED", ""]
        {
            for data in [json!({}), json!(null), json!({ "key": Uuid::nil(), "status": "succeeded" })] {
                assert!(matches!(read(kind, &data), Ok(None)), "{kind} {data}");
            }
        }
    }
}
