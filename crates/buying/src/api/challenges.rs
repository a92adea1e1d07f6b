//! `POST /api/v1/sales/{id}/challenges` and `POST /api/v1/sales/{id}/passes`

use actix_web::HttpResponse;
use seckill_captcha::{picture, slider};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::Call;
use crate::sale::challenges::{Answer, Question};
use seckill_domain::captcha::ChallengeKind;
use seckill_domain::ids::SaleId;
use seckill_domain::json_object;
use seckill_http::codes::problems;
use seckill_http::extract::{Body, client_address, sale_id};
use seckill_http::problem::Problem;

const ID_MAX: usize = 512;
pub const TEXT_MAX: usize = 100;
pub const POINTS_MAX: usize = slider::POINTS_MAX;
/// The greatest number of a trail: eleven days in milliseconds.
pub const NUMBER_MAX: f64 = 1e9;

/// Which challenge a buyer wishes.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ChallengeWish {
    /// The sale's own kind by default. `work` is offered by every sale that asks for a challenge: a computer does it, and its
    /// owner needs neither see nor read.
    kind: Option<ChallengeKind>,
}

/// A challenge.
#[derive(Serialize, ToSchema)]
#[schema(as = Challenge)]
struct ChallengeView {
    /// To be sent back with the answer. Only the same buyer can answer it, once.
    challenge_id: String,
    kind: ChallengeKind,
    /// An answer must arrive before this time.
    expires_at_ms: i64,
    #[serde(flatten)]
    #[schema(inline)]
    question: QuestionView,
    /// A debug build in development mode: an answer that passes; empty for work, which tests do themselves.
    #[cfg(debug_assertions)]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(ignore)]
    answer_for_tests: Option<Value>,
}

/// The fields that depend on the kind. Pictures are `data:` addresses; sizes and places are in pixels.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
enum QuestionView {
    Image {
        image: String,
        /// How many letters and digits the picture shows.
        length: usize,
        width: usize,
        height: usize,
    },
    Slider {
        image: String,
        width: usize,
        height: usize,
        /// The piece that belongs into the gap of the picture; transparent around the piece.
        piece: String,
        /// Width and height of the piece.
        piece_size: usize,
        /// How far the piece lies below the upper edge of the picture.
        piece_y: u16,
    },
    Work {
        /// The text that is hashed before the nonce.
        prefix: String,
        /// How many zero bits SHA-256 of the prefix and the nonce, written as a decimal number, begins with.
        difficulty: u32,
    },
}

impl From<Question> for QuestionView {
    fn from(question: Question) -> Self {
        match question {
            Question::Image { image } => {
                Self::Image { image, length: picture::LENGTH, width: picture::WIDTH, height: picture::HEIGHT }
            }
            Question::Slider { image, piece, piece_y } => {
                let (width, height) = (slider::WIDTH, slider::HEIGHT);
                Self::Slider { image, width, height, piece, piece_size: slider::PIECE, piece_y }
            }
            Question::Work { prefix, difficulty } => Self::Work { prefix, difficulty },
        }
    }
}

#[cfg(debug_assertions)]
fn for_tests(answer: Answer) -> Value {
    match answer {
        Answer::Text(text) => text.into(),
        Answer::Drag { x, trail } => serde_json::json!({ "x": x, "trail": trail }),
        Answer::Nonce(nonce) => serde_json::json!({ "nonce": nonce }),
    }
}

/// An answer to a challenge.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ChallengeAnswer {
    #[schema(max_length = 512)]
    challenge_id: String,
    /// `image`: the text, in small or large letters. `slider`: where the piece was let go, and the places that it had on its way,
    /// each as milliseconds since the drag began, x and y; the piece begins at x = 0. `work`: the nonce.
    #[schema(value_type = Object)]
    answer: GivenAnswer,
}

#[derive(Deserialize)]
#[serde(try_from = "Value")]
struct GivenAnswer(Answer);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AnswerFields {
    x: Option<f64>,
    trail: Option<Vec<[f64; 3]>>,
    nonce: Option<String>,
}

impl TryFrom<Value> for GivenAnswer {
    type Error = String;

    fn try_from(given: Value) -> Result<Self, String> {
        let fields = match given {
            Value::String(text) if text.chars().count() > TEXT_MAX => {
                return Err("answer must be at most 100 characters".to_owned());
            }
            Value::String(text) => return Ok(Self(Answer::Text(text))),
            Value::Object(_) => AnswerFields::deserialize(given).map_err(|error| error.to_string())?,
            _ => {
                return Err(
                    "answer must be a text, or an object with x and trail, or an object with a nonce".to_owned()
                );
            }
        };
        let in_bounds = |number: &f64| number.abs() <= NUMBER_MAX;
        match fields {
            AnswerFields { x: Some(x), trail: Some(trail), nonce: None } => {
                if trail.len() > POINTS_MAX || !in_bounds(&x) || !trail.iter().flatten().all(in_bounds) {
                    return Err("trail must have at most 500 samples, and numbers of at most 1e9".to_owned());
                }
                Ok(Self(Answer::Drag { x, trail }))
            }
            AnswerFields { x: None, trail: None, nonce: Some(nonce) } => {
                if !(1..=20).contains(&nonce.len()) || !nonce.bytes().all(|b| b.is_ascii_digit()) {
                    return Err("nonce must be 1 to 20 digits".to_owned());
                }
                Ok(Self(Answer::Nonce(nonce)))
            }
            AnswerFields { .. } => Err("answer must have x and trail, or nonce".to_owned()),
        }
    }
}

/// A pass, for one purchase.
#[derive(Serialize, ToSchema)]
struct Pass {
    /// To be sent with the purchase: `pass`.
    pass: String,
    pub expires_at_ms: i64,
}

problems! {
    NoChallenge: InvalidRequest, Unauthenticated, NotStarted, Ended, UnknownSale, TooSlow, NoChallenge, BodyTooLarge,
    QuotaExceeded, TemporarilyUnavailable
}
problems! {
    NoPass: InvalidRequest, Unauthenticated, NotStarted, Ended, ChallengeFailed, UnknownSale, TooSlow, NoChallenge, BodyTooLarge,
    QuotaExceeded, TemporarilyUnavailable
}

/// Ask for a challenge
///
/// Sales whose `captcha` is not `none` ask buyers to solve a challenge before they buy. Challenges can be asked for from some time
/// before the start on (`opens_at_ms` of the refusal says from when), so that answers cannot be gathered in advance. An empty
/// body is the same as `{}`.
#[utoipa::path(
    post,
    path = "/api/v1/sales/{id}/challenges",
    tag = "buying",
    security(("buyer" = [])),
    params(("id" = SaleId, Path, description = "The sale")),
    request_body = ChallengeWish,
    responses((status = 201, description = "To be solved by this buyer", body = ChallengeView), NoChallenge),
)]
pub async fn ask_challenge(
    Call { request, thread, app_state }: Call,
    Body(body): Body,
) -> Result<HttpResponse, Problem> {
    // Before all slow steps: a challenge can come a little later, and a purchase cannot.
    if thread.challenges.gives_way() {
        return Err(Problem::shed("challenges"));
    }
    let buyer = app_state.buyer(request.head(), thread.catalog.clock.now_ms())?;
    let sale = sale_id(&request)?;
    let ChallengeWish { kind } = match body.is_empty() {
        true => ChallengeWish::default(),
        false => json_object::from_slice(&body).map_err(Problem::invalid)?,
    };
    let address = client_address(request.head(), &app_state.trusted_proxies).to_string();
    let challenge = thread.challenge(sale, &buyer.user, &address, kind).await?;
    Ok(HttpResponse::Created().json(ChallengeView {
        challenge_id: challenge.id,
        kind: challenge.question.kind(),
        expires_at_ms: challenge.expires_at_ms,
        question: challenge.question.into(),
        #[cfg(debug_assertions)]
        answer_for_tests: app_state.dev.then(|| challenge.solution.map_or_else(|| serde_json::json!({}), for_tests)),
    }))
}

/// Answer a challenge
///
/// The challenge is used up by the first answer, right or wrong. A right one yields a pass for one purchase of this buyer in this
/// sale; the pass is used up when the purchase takes units, and not before.
#[utoipa::path(
    post,
    path = "/api/v1/sales/{id}/passes",
    tag = "buying",
    security(("buyer" = [])),
    params(("id" = SaleId, Path, description = "The sale")),
    request_body = ChallengeAnswer,
    responses((status = 201, description = "The answer is right", body = Pass), NoPass),
)]
pub async fn answer_challenge(
    Call { request, thread, app_state }: Call,
    Body(body): Body,
) -> Result<HttpResponse, Problem> {
    let buyer = app_state.buyer(request.head(), thread.catalog.clock.now_ms())?;
    let sale = sale_id(&request)?;
    let given: ChallengeAnswer = json_object::from_slice(&body).map_err(Problem::invalid)?;
    if given.challenge_id.chars().count() > ID_MAX {
        return Err(Problem::invalid("challenge_id must be at most 512 characters"));
    }
    let address = client_address(request.head(), &app_state.trusted_proxies).to_string();
    let GivenAnswer(answer) = given.answer;
    let earned = thread.earn_pass(sale, &buyer.user, &address, &given.challenge_id, &answer).await?;
    Ok(HttpResponse::Created().json(Pass { pass: earned.pass, expires_at_ms: earned.expires_at_ms }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<Answer, String> {
        let given: Result<ChallengeAnswer, _> = json_object::from_slice(body.as_bytes());
        given.map(|given| given.answer.0).map_err(|error| error.to_string())
    }

    #[test]
    fn an_answer_is_a_text_or_a_drag_or_a_nonce_and_nothing_else() {
        let answer = |json: &str| read(&format!(r#"{{"challenge_id": "c", "answer": {json}}}"#));
        assert!(matches!(answer(r#""AC347""#), Ok(Answer::Text(text)) if text == "AC347"));
        let drag = answer(r#"{"x": 12, "trail": [[0, 0.5, -1], [1e3, 12, 3]]}"#);
        assert!(
            matches!(drag, Ok(Answer::Drag { x: 12.0, trail }) if trail == [[0.0, 0.5, -1.0], [1000.0, 12.0, 3.0]])
        );
        assert!(matches!(answer(r#"{"nonce": "007"}"#), Ok(Answer::Nonce(nonce)) if nonce == "007"));
        let many = vec!["[0,0,0]"; POINTS_MAX + 1].join(",");
        let wrong = r#"null|5|true|[]|{}|{"x": 1}|{"trail": []}|{"x": 1, "trail": [], "nonce": "1"}|{"x": 1, "trail": [], "more": 1}|
            {"x": "1", "trail": []}|{"x": 1, "trail": [[1, 2]]}|{"x": 1, "trail": [[1, 2, 3, 4]]}|{"x": 1e10, "trail": []}|
            {"x": 1, "trail": [[1, 2, 1e400]]}|{"nonce": 5}|{"nonce": ""}|{"nonce": "-5"}|{"nonce": "000000000000000000000"}"#;
        let long = [format!("\"{}\"", "x".repeat(TEXT_MAX + 1)), format!(r#"{{"x": 1, "trail": [{many}]}}"#)];
        for wrong in wrong.split('|').chain(long.iter().map(String::as_str)) {
            assert!(answer(wrong).is_err(), "{wrong:.60}");
        }
        assert!(read(r#"{"answer": "a"}"#).is_err() && read(r#"{"challenge_id": "c"}"#).is_err());
    }
}
