//! Challenges (captchas), and the passes that they earn.

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::buyer::BuyerClient;
use crate::error::Error;

/// A challenge for one buyer and one sale. It is used up by the first answer, right or wrong.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Challenge {
    pub challenge_id: String,
    /// Until when it can be answered, in milliseconds since the epoch.
    pub expires_at_ms: i64,
    #[serde(flatten)]
    pub question: Question,
}

/// The question of a challenge.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
#[non_exhaustive]
pub enum Question {
    /// Which text is in the picture? Case does not count.
    Image { image: String, length: u32 },
    /// Where does the piece belong?
    Slider {
        /// The picture with the gap, as a `data:` address.
        image: String,
        piece: String,
        width: u32,
        height: u32,
        /// The width and height of the piece in pixels.
        piece_size: u32,
        /// How far below the picture's upper edge the piece is moved, in pixels.
        piece_y: u32,
    },
    /// Which number, appended to the prefix, gives a SHA-256 that begins with this many zero bits?
    Work { prefix: String, difficulty: u32 },
}

/// A kind of challenge to ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum ChallengeKind {
    Image,
    Slider,
    /// A proof of work: always allowed, for users who cannot see pictures.
    Work,
}

/// The answer to a challenge, of the same kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum ChallengeAnswer {
    Image(String),
    Slider {
        /// The left edge of the piece, in pixels of the picture.
        x: i32,
        /// Milliseconds since the beginning of the move, and where the pointer was then. At most 500 points.
        trail: Vec<[i32; 3]>,
    },
    Work {
        nonce: String,
    },
}

/// The result of a solved challenge, for [`crate::Purchase::pass`]. It is spent when the purchase takes stock.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Pass {
    pub pass: String,
    /// Until when it can be used, in milliseconds since the epoch.
    pub expires_at_ms: i64,
}

#[derive(Serialize)]
struct ChallengeRequest {
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<ChallengeKind>,
}

impl BuyerClient {
    /// Asks for a challenge: the sale's own kind, or another one.
    ///
    /// # Errors
    /// [`Error::Problem`]: [`crate::Code::NotStarted`] with `opens_at_ms` too long before the start, [`crate::Code::Ended`],
    /// [`crate::Code::NoChallenge`] if the sale asks for none, and others; or no answer.
    pub async fn challenge(&self, sale_id: i64, kind: Option<ChallengeKind>) -> Result<Challenge, Error> {
        self.post(&format!("/api/v1/sales/{sale_id}/challenges"), &ChallengeRequest { kind }).await
    }

    /// Answers a challenge.
    ///
    /// # Errors
    /// [`Error::Problem`] with [`crate::Code::ChallengeFailed`]: ask for another challenge; and others; or no answer.
    pub async fn pass(&self, sale_id: i64, challenge_id: &str, answer: &ChallengeAnswer) -> Result<Pass, Error> {
        self.post(
            &format!("/api/v1/sales/{sale_id}/passes"),
            &json!({ "challenge_id": challenge_id, "answer": answer }),
        )
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_and_answers_have_the_documented_form() {
        let slider = json!({ "challenge_id": "c", "expires_at_ms": 9, "new": true, "kind": "slider", "image": "data:x",
            "piece": "data:y", "width": 320, "height": 160, "piece_size": 44, "piece_y": 50 });
        let slider: Challenge = serde_json::from_value(slider).unwrap();
        assert!(matches!(slider.question, Question::Slider { piece_y: 50, .. }));
        for (answer, written) in [
            (ChallengeAnswer::Image("ab3".into()), json!("ab3")),
            (ChallengeAnswer::Slider { x: 9, trail: vec![[0, 1, 20]] }, json!({ "x": 9, "trail": [[0, 1, 20]] })),
            (ChallengeAnswer::Work { nonce: "12".into() }, json!({ "nonce": "12" })),
        ] {
            assert_eq!(serde_json::to_value(answer).unwrap(), written);
        }
        assert_eq!(serde_json::to_value(ChallengeRequest { kind: None }).unwrap(), json!({}));
    }
}
