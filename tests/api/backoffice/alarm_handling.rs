//! Alarms that people acknowledge and mute.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::backoffice::console_frame::people;
use seckill_harness::System;

/// The subjects of the alarms that the webhook would be told of now, with what it would be told.
async fn untold(system: &System) -> BTreeSet<String> {
    system.execute("UPDATE alarms SET next_at = now()").await;
    let unsent = system.stores.ledger.alarms.unsent_alarms(100).await.unwrap();
    unsent
        .into_iter()
        .map(|alarm| format!("{} {}", alarm.subject, if alarm.raised { "raised" } else { "cleared" }))
        .collect()
}

fn set(texts: &[&str]) -> BTreeSet<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

/// An acknowledged alarm stays where it is. A muted one is in all lists, and the webhook is told of it when the mute ends.
#[tokio::test(flavor = "multi_thread")]
async fn alarms_are_acknowledged_and_muted() {
    let mut system = System::without_workers(&[]).await;
    let [root, max, vic] = people(&system).await;
    system.execute("DELETE FROM alarms").await;
    for (kind, subject, more) in [
        ("drift", "plain", ""),
        ("drift", "known", ""),
        ("drift", "muted", ""),
        ("drift", "passing", ""),
        ("drift", "told", "told_raised = true, "),
        ("drift", "old", "raised_at = now() - interval '3 days', "),
        ("refusals", "p of secret-app", ""),
        ("drift", "cleared", "told_raised = true, told_cleared = true, cleared_at = now(), "),
    ] {
        system.execute(format!("INSERT INTO alarms (kind, subject) VALUES ('{kind}', '{subject}')")).await;
        system.execute(format!("UPDATE alarms SET {more} seen_at = now() WHERE subject = '{subject}'")).await;
    }
    let alarms = async |person: &crate::backoffice::admin_api::Person| {
        let listed = person.get("alarms").await.body["alarms"].clone();
        let alarms = listed.as_array().unwrap().clone();
        move |subject: &str| alarms.iter().find(|alarm| alarm["subject"] == subject).cloned().unwrap_or_default()
    };
    let all = alarms(&root).await;
    let path = |subject: &str, what: &str| format!("alarms/{}/{what}", all(subject)["id"]);
    let (note, hour) = (json!({ "note": "Ann looks at it" }), json!({ "note": "Works on the switch", "minutes": 60 }));
    assert_eq!(max.put(&path("known", "acknowledgement"), note.clone()).await.status, 200);
    for subject in ["muted", "passing", "told", "old"] {
        assert_eq!(max.put(&path(subject, "mute"), hour.clone()).await.status, 200, "{subject}");
    }
    // An alarm that is cleared and raised again is another alarm, and as quiet.
    system.execute("UPDATE alarms SET cleared_at = now() WHERE subject IN ('passing', 'told')").await;
    assert_eq!(untold(&system).await, set(&["plain raised", "known raised", "p of secret-app raised"]));
    system.execute("INSERT INTO alarms (kind, subject) VALUES ('drift', 'told')").await;
    assert_eq!(untold(&system).await, set(&["plain raised", "known raised", "p of secret-app raised"]));

    for (person, known) in [(&root, true), (&max, true), (&vic, true)] {
        let seen = alarms(person).await;
        let acknowledged = &seen("known")["acknowledged"];
        assert_eq!((&acknowledged["by"], &acknowledged["note"]), (&json!("max"), &json!("Ann looks at it")), "{known}");
        let muted = &seen("muted")["muted"];
        assert_eq!((&muted["by"], &muted["note"]), (&json!("max"), &json!("Works on the switch")));
        let lasts_ms = muted["until_ms"].as_i64().unwrap() - chrono::Utc::now().timestamp_millis();
        assert!((3_000_000..3_700_000).contains(&lasts_ms), "{lasts_ms}");
        assert_eq!((&seen("plain")["muted"], &seen("plain")["acknowledged"]), (&Value::Null, &Value::Null));
    }
    let page = max.page("/admin/alarms").await.1;
    assert!(
        page.contains("max knows of it")
            && page.contains("Ann looks at it")
            && page.contains("by max: Works on the switch")
    );
    assert!(!vic.page("/admin/alarms").await.1.contains("/acknowledgement"));

    for subject in ["muted", "passing", "told", "old"] {
        assert_eq!(max.delete(&path(subject, "mute")).await.status, 200, "{subject}");
    }
    let told = [
        "plain raised",
        "known raised",
        "p of secret-app raised",
        "muted raised",
        "old raised",
        "told raised",
        "told cleared",
    ];
    assert_eq!(untold(&system).await, set(&told), "what passed meanwhile is not told");

    for (person, subject, what, body, code) in [
        (&max, "cleared", "acknowledgement", note.clone(), "409 conflict"),
        (&max, "known", "acknowledgement", json!({ "note": " " }), "400 invalid-request"),
        (&max, "known", "acknowledgement", json!({}), "400 invalid-request"),
        (&max, "known", "mute", json!({ "note": "x", "minutes": 0 }), "400 invalid-request"),
        (&max, "known", "mute", json!({ "note": "x", "minutes": 43_201 }), "400 invalid-request"),
        (&max, "p of secret-app", "mute", hour.clone(), "404 not-found"),
        (&max, "p of secret-app", "acknowledgement", note.clone(), "404 not-found"),
        (&vic, "known", "mute", hour.clone(), "403 forbidden"),
        (&root, "p of secret-app", "mute", hour.clone(), "200 "),
    ] {
        let answer = person.put(&path(subject, what), body).await;
        assert!(answer.code().starts_with(code.trim_end()), "{subject} {what}: {} {}", answer.code(), answer.body);
    }
    assert_eq!(max.delete(&path("known", "mute")).await.code(), "409 conflict");
    assert_eq!(max.put("alarms/999999/mute", hour).await.code(), "404 not-found");
    let lines =
        "SELECT string_agg(DISTINCT action, ', ' ORDER BY action) FROM audit_log WHERE subject LIKE 'alarm drift %'";
    assert_eq!(system.value::<String>(lines).await, "alarm acknowledged, alarm muted, alarm unmuted");
    system.stop().await;
}
