use serde_json::json;

use super::super::read::{Bundle, keys_in};
use super::super::testing::{Signer, page, record, rollout, row};
use super::*;

/// Rollout 6 has ended, and rollout 7 is running; each has two pages.
fn bundle(signer: &Signer) -> Bundle {
    let mut bundle = Bundle { form: 1, keys: signer.published(), ..Bundle::default() };
    for (number, ended) in [(6, true), (7, false)] {
        let rollout = rollout(number, "1.21.0");
        let name = record_name(&rollout);
        let pages =
            [page(&name, 1, &[row("a", "Updated")]), page(&name, 2, &[row("b", "Updated"), row("c", "Updated")])];
        let record = record(&rollout, &pages);
        bundle.records.push(if ended { signer.end(record) } else { record });
        bundle.pages.extend(pages);
    }
    bundle
}

async fn report(bundle: Bundle) -> Report {
    let keys = bundle.keys.clone();
    verify(&Source::Bundle(bundle), None, &keys).await.unwrap()
}

async fn assert_finds(bundle: Bundle, sentences: &[&str]) {
    let report = report(bundle).await;
    let text = report.page.to_string();
    assert_eq!(report.findings, sentences.len(), "{text}");
    assert_eq!(
        text.lines().filter(|line| line.starts_with("FINDING ")).count(),
        sentences.len(),
        "one line each: {text}"
    );
    for sentence in sentences {
        assert!(text.contains(sentence), "{sentence}: {text}");
    }
}

#[tokio::test]
async fn untouched_history_verifies_and_its_key_is_shown_by_thumbprint() {
    let signer = Signer::new();
    let report = report(bundle(&signer)).await;
    let text = report.page.to_string();
    assert_eq!(report.findings, 0, "{text}");
    let jwk: Jwk = serde_json::from_value(signer.jwk.clone()).unwrap();
    let thumbprint = jwk.thumbprint(ThumbprintHash::SHA256).unwrap();
    for part in [
        &format!("(Completed): signed with the key {}; pages checked: 2, removed: 0", signer.id),
        "(Running): not signed yet (running); pages checked: 2, removed: 0",
        &format!("key {}: records signed: 1; SHA-256 thumbprint (RFC 7638): {thumbprint}", signer.id),
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[tokio::test]
async fn changed_record_or_page_is_found() {
    let signer = Signer::new();
    let mut changed = bundle(&signer);
    changed.pages[0]["spec"]["page"]["rows"][0]["result"] = json!("DrainTimeout");
    changed.pages[2]["spec"]["page"]["number"] = json!(2);
    let running = [name(&changed.pages[2]).to_owned()];
    let sentences = ["its content is not what was recorded", "its content is not what", "spec.page.number is 2"];
    assert_finds(changed, &sentences).await;
    let text = report({
        let mut changed = bundle(&signer);
        changed.pages[2]["spec"]["page"]["number"] = json!(2);
        changed
    })
    .await
    .page
    .to_string();
    assert!(text.contains(&format!("FINDING {}: ", running[0])), "{text}");

    type Change = fn(&mut Value);
    let changes: [Change; 4] = [
        |record| record["status"]["entries"][1]["message"] = json!("step 2"),
        |record| record["status"]["ended"] = json!("2026-01-01T12:00:01Z"),
        |record| record["spec"]["rollout"]["policy"] = json!("{\"enabled\":false}"),
        // A field that this version does not know.
        |record| record["status"]["later"] = json!(1),
    ];
    for change in changes {
        let mut changed = bundle(&signer);
        change(&mut changed.records[0]);
        assert_finds(changed, &["its spec or status was changed after it had ended"]).await;
    }
}

#[tokio::test]
async fn signature_of_another_record_key_or_purpose_is_found() {
    let signer = Signer::new();
    let signed = |claims: &RecordClaims| {
        let mut bundle = bundle(&signer);
        bundle.records[0]["status"]["signature"] = json!(signer.sign(claims));
        bundle
    };
    let original = bundle(&signer);
    let digest = record_digest(&original.records[0]["spec"], &original.records[0]["status"]).unwrap();
    let claims = RecordClaims { aud: RECORD_AUDIENCE.into(), record: name(&original.records[0]).into(), digest };
    assert_finds(signed(&claims), &[]).await;
    assert_finds(signed(&RecordClaims { aud: "permit".into(), ..claims.clone() }), &["is for 'permit'"]).await;
    let other = RecordClaims { record: "rollout-5-x".into(), ..claims.clone() };
    assert_finds(signed(&other), &["is that of the record rollout-5-x"]).await;

    // Another key signs everything once more, under the id of the published key, and under its own.
    let mut forger = Signer::new();
    let mut forged = bundle(&signer);
    forged.records[0] = forger.end(forged.records[0].clone());
    let id = forger.id.clone();
    assert_finds(forged.clone(), &[&format!("signed with the key {id}, which is not among the keys")]).await;
    let mut without = bundle(&signer);
    without.keys.clear();
    assert_finds(without, &["which is not among the keys: nothing is known about its author"]).await;
    forger.id = signer.id.clone();
    forged.records[0] = forger.end(forged.records[0].clone());
    assert_finds(forged.clone(), &["its signature is wrong"]).await;
    // The published key is exchanged too: its id does not fit.
    let mut exchanged = forger.jwk.clone();
    exchanged["kid"] = json!(signer.id);
    forged.keys.insert(signer.id.clone(), exchanged);
    assert_finds(forged, &["the key was exchanged; it is not used", "which is not among the keys"]).await;

    for (value, sentence) in [
        (Value::Null, "has ended and is not signed"),
        (json!("x"), "is no JWS"),
        (json!(signed(&claims).records[0]["status"]["signature"].as_str().unwrap().replace("ey", "ez")), "is no JWS"),
    ] {
        let mut bundle = bundle(&signer);
        bundle.records[0]["status"]["signature"] = value;
        assert_finds(bundle, &[sentence]).await;
    }
}

#[tokio::test]
async fn keys_kept_elsewhere_reject_a_bundle_that_was_signed_again() {
    let (signer, forger) = (Signer::new(), Signer::new());
    let forged = bundle(&forger);
    let kept = keys_in(&json!({"keys": [signer.jwk]}));
    assert_eq!(report(forged.clone()).await.findings, 0, "a bundle with keys of its own is consistent");
    let report = verify(&Source::Bundle(forged), None, &kept).await.unwrap();
    assert_eq!(report.findings, 1, "{}", report.page);
    let map = json!({"kind": "ConfigMap", "data": {&signer.id: signer.jwk.to_string()}});
    for form in [map, json!({"form": 1, "keys": signer.published()}), json!(signer.published())] {
        assert_eq!(keys_in(&form), kept, "{form}");
    }
}

#[tokio::test]
async fn removed_pages_are_counted_and_a_gap_is_found() {
    let signer = Signer::new();
    let mut first = bundle(&signer);
    first.pages.remove(0);
    let report = report(first.clone()).await;
    assert!(
        report.findings == 0 && report.page.to_string().contains("pages checked: 1, removed: 1"),
        "{}",
        report.page
    );
    let mut last = bundle(&signer);
    last.pages.remove(1);
    assert_finds(last, &["it is missing although an earlier page is there"]).await;
    for (removed, expected) in [(vec![], None), (vec![1, 2], None), (vec![1, 3], Some(3)), (vec![1, 2, 3], None)] {
        assert_eq!(gap(&removed.iter().copied().collect(), 3), expected, "{removed:?}");
    }
}

#[tokio::test]
async fn page_that_no_record_names_is_found_except_the_next_one_of_a_running_record() {
    let signer = Signer::new();
    let with = |record: usize, number: i64| {
        let mut bundle = bundle(&signer);
        bundle.pages.push(page(name(&bundle.records[record]), number, &[row("z", "Updated")]));
        bundle
    };
    assert_finds(with(1, 3), &[]).await;
    assert_finds(with(1, 4), &["names 2 pages, and not this one"]).await;
    assert_finds(with(0, 3), &["names 2 pages, and not this one"]).await;
    let mut orphan = bundle(&signer);
    orphan.records.remove(1);
    assert_finds(orphan, &["no record names it", "its record was removed, or it was added"]).await;
    let mut relabelled = bundle(&signer);
    let mut hidden = relabelled.records.remove(0);
    hidden["metadata"]["labels"] = json!({});
    relabelled.pages.push(hidden);
    assert_finds(relabelled, &["a record without the label of one"]).await;
}

#[tokio::test]
async fn name_that_does_not_follow_from_the_rollout_is_found() {
    let signer = Signer::new();
    let mut other = bundle(&signer);
    other.records[1]["spec"]["rollout"]["version"] = json!("1.21.1");
    assert_finds(other, &["what identifies the rollout was changed"]).await;
    let mut inside = bundle(&signer);
    inside.records[1]["spec"]["record"] = json!("rollout-9-x");
    assert_finds(inside, &["spec.record is 'rollout-9-x'"]).await;
    let mut counts = bundle(&signer);
    counts.records[1]["status"]["nodes"] = json!(9);
    assert_finds(counts, &["status.nodes is 9, and its pages have 3"]).await;
    assert!(Bundle::parse(json!({"form": 2})).unwrap_err().to_string().contains("this version reads the form 1"));
}

#[tokio::test]
async fn ended_record_that_is_presented_as_running_or_stands_twice_is_found() {
    let signer = Signer::new();
    let mut forged = bundle(&signer);
    let status = forged.records[0]["status"].as_object_mut().unwrap();
    status.insert("phase".to_owned(), json!("Running"));
    status.remove("signature");
    assert_finds(forged, &["it is running and has an end"]).await;
    let mut odd = bundle(&signer);
    odd.records[1]["status"]["phase"] = json!(7);
    assert_finds(odd, &["status.phase is 7"]).await;
    let mut twice = bundle(&signer);
    let again = twice.records[0].clone();
    twice.records.push(again);
    assert_finds(twice, &["there are two records of this name"]).await;
    let text = report(bundle(&signer)).await.page.to_string();
    assert!(text.contains("not signed: 1 (running)"), "{text}");
}
