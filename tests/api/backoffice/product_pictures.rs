//! Pictures of products: the refusal of invalid ones, and the retention of unused ones.

use seckill_harness::System;
use seckill_harness::folder::Folder;

use crate::pages::served_pages::{PRODUCT, png, sale_with_picture, seckill};

#[tokio::test(flavor = "multi_thread")]
async fn hostile_pictures_are_refused_and_change_nothing() {
    let (system, place) = (System::prepare(&[]).await, Folder::new("pages"));
    sale_with_picture(&system, &place).await;
    let rows =
        "SELECT coalesce(description, '') || picture || picture_alt || (SELECT count(*) FROM pictures) FROM products";
    let before: String = sqlx::query_scalar(rows).fetch_one(&system.sql).await.unwrap();
    let whole = png(400, 300, [1, 2, 3]);
    // A head that claims 30000 x 30000 pixels.
    let mut bomb = whole.clone();
    bomb[16..24].copy_from_slice(&[0, 0, 0x75, 0x30, 0, 0, 0x75, 0x30]);
    let svg = b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>".to_vec();
    for (name, content, word) in [
        ("empty", Vec::new(), "not a JPEG, PNG or WebP"),
        ("page.html", b"<!doctype html><script>1</script>".to_vec(), "not a JPEG, PNG or WebP"),
        ("picture.svg", svg, "not a JPEG, PNG or WebP"),
        ("cut.png", whole[..whole.len() / 2].to_vec(), "picture"),
        ("bomb.png", bomb, "picture"),
        ("long.png", vec![0; 10 * 1024 * 1024 + 1], "10 MiB"),
    ] {
        let file = place.write(name, content);
        let words = ["product", "set", "--name", PRODUCT, "--description", "New", "--picture", &file];
        let refused = seckill(&system, &words).expect_err(name);
        assert!(refused.contains(word) && refused.contains(name) && refused.lines().count() == 1, "{name}: {refused}");
    }
    let (long_alt, long_text) = ("a".repeat(301), "a".repeat(5001));
    for (name, option, value, word) in [
        (PRODUCT, "--picture", "/nowhere/phone.png", "No such file"),
        ("", "--description", "x", "name"),
        ("Kettle", "--alt", "A kettle", "no picture"),
        (PRODUCT, "--alt", &long_alt, "alt"),
        (PRODUCT, "--description", &long_text, "description"),
    ] {
        let refused = seckill(&system, &["product", "set", "--name", name, option, value]).expect_err(word);
        assert!(refused.contains(word) && refused.lines().count() == 1, "{word}: {refused}");
    }
    let after: String = sqlx::query_scalar(rows).fetch_one(&system.sql).await.unwrap();
    assert_eq!(after, before);
    system.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pictures_that_nothing_shows_are_cleared_after_a_day() {
    let (system, place) = (System::prepare(&[]).await, Folder::new("pages"));
    let set = |name: &str, colour| {
        let file = place.write("picture.png", png(20, 20, colour));
        let set = seckill(&system, &["product", "set", "--name", name, "--picture", &file]).unwrap();
        set["picture"].as_str().unwrap().to_owned()
    };
    let (red, blue) = (set("Phone", [200, 0, 0]), set("Phone", [0, 0, 200]));
    // The same picture for another product is the same row.
    assert_eq!(set("Kettle", [0, 0, 200]), blue);
    let kept = async || -> Vec<String> {
        let hashes = sqlx::query_scalar("SELECT hash FROM pictures ORDER BY created_at");
        hashes.fetch_all(&system.sql).await.unwrap()
    };
    assert_eq!(kept().await, [red, blue.clone()]);
    system.execute("UPDATE pictures SET unused_since = unused_since - interval '25 hours'").await;
    let green = set("Phone", [0, 200, 0]);
    assert_eq!(kept().await, [blue, green]);
    system.finish().await;
}
