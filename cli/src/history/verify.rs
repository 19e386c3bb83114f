//! `history --verify`: signatures, digests, names, and pages that no record names.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::jwk::{AlgorithmParameters, Jwk, ThumbprintHash};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use models::history::{
    RECORD_AUDIENCE, RecordClaims, RecordedRollout, page_digest, page_name, page_number, record_digest, record_name,
};
use models::names::{PAGE, RECORD};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::read::Source;
use super::rollouts::{NO_ROLLOUTS, find, name, pages_named};
use crate::page::Page;

#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) page: Page,
    pub(super) findings: usize,
    /// Number of running records, which are not signed.
    unsigned: usize,
    pub(super) records: usize,
}

impl Report {
    fn finding(&mut self, object: &str, text: impl fmt::Display) {
        self.findings += 1;
        self.page.line(format_args!("FINDING {object}: {text}"));
    }
}

/// A public key whose id is the digest of the key.
struct Key {
    decoding: DecodingKey,
    /// RFC 7638, SHA-256.
    thumbprint: String,
    signed: usize,
}

/// Returns the id that belongs to a public key: the first 8 bytes of the SHA-256 of its point, in hexadecimal.
fn id_of(jwk: &Jwk) -> Option<String> {
    let AlgorithmParameters::EllipticCurve(point) = &jwk.algorithm else { return None };
    let mut bytes = vec![4];
    for coordinate in [&point.x, &point.y] {
        bytes.extend(BASE64_URL_SAFE_NO_PAD.decode(coordinate).ok()?);
    }
    Some(Sha256::digest(&bytes).iter().take(8).map(|byte| format!("{byte:02x}")).collect())
}

/// Returns the usable keys; the others are findings.
fn usable(published: &BTreeMap<String, Value>, report: &mut Report) -> BTreeMap<String, Key> {
    let mut keys = BTreeMap::new();
    for (id, value) in published {
        let parsed = serde_json::from_value::<Jwk>(value.clone()).ok().and_then(|jwk| {
            let thumbprint = jwk.thumbprint(ThumbprintHash::SHA256).ok()?;
            Some((id_of(&jwk)?, DecodingKey::from_jwk(&jwk).ok()?, thumbprint))
        });
        match parsed {
            None => report.finding(&format!("key {id}"), "it is no public key for ES256; it is not used"),
            Some((own, ..)) if own != *id || value["kid"].as_str() != Some(id) => report.finding(
                &format!("key {id}"),
                format_args!("its id does not belong to it, since the digest of this key is {own}: the key was exchanged; it is not used"),
            ),
            Some((_, decoding, thumbprint)) => {
                keys.insert(id.clone(), Key { decoding, thumbprint, signed: 0 });
            }
        }
    }
    keys
}

/// Returns the id of the key that signed a record, or what is wrong with its signature.
fn check_signature(record: &Value, signature: &str, keys: &BTreeMap<String, Key>) -> Result<String, String> {
    let header = decode_header(signature).map_err(|_| "its signature is no JWS".to_owned())?;
    let kid = header.kid.filter(|_| header.alg == Algorithm::ES256);
    let kid = kid.ok_or("its signature is not ES256 with a key id (kid)")?;
    let Some(key) = keys.get(&kid) else {
        return Err(format!(
            "it is signed with the key {kid}, which is not among the keys: nothing is known about its author"
        ));
    };
    let mut validation = Validation::new(Algorithm::ES256);
    validation.required_spec_claims.clear();
    validation.validate_exp = false;
    validation.validate_aud = false;
    let claims =
        decode::<RecordClaims>(signature, &key.decoding, &validation).map(|read| read.claims).map_err(|error| {
            match error.kind() {
                ErrorKind::Json(_) => format!("its signature, by the key {kid}, is not one of a record"),
                _ => format!("its signature is wrong: the key {kid} did not sign it"),
            }
        })?;
    if claims.aud != RECORD_AUDIENCE {
        return Err(format!("its signature is for '{}', not for '{RECORD_AUDIENCE}'", claims.aud));
    }
    if claims.record != name(record) {
        return Err(format!("its signature is that of the record {}: it was copied from there", claims.record));
    }
    let digest = record_digest(&record["spec"], &record["status"]).map_err(|error| error.to_string())?;
    if claims.digest != digest {
        return Err(format!(
            "its digest is {digest}, and {} was signed: its spec or status was changed after it had ended",
            claims.digest
        ));
    }
    Ok(kid)
}

fn check_names(record: &Value, report: &mut Report) {
    let (own, inside) = (name(record), record["spec"]["record"].as_str().unwrap_or_default());
    let mut wrong = |text: String| report.finding(own, text);
    if inside != own {
        wrong(format!("spec.record is '{inside}', which is not its name: it was copied or renamed"));
    }
    match serde_json::from_value::<RecordedRollout>(record["spec"]["rollout"].clone()) {
        Ok(rollout) if record_name(&rollout) == own => {}
        Ok(rollout) => wrong(format!(
            "the name of the rollout in its spec is {}: it was copied, or what identifies the rollout was changed",
            record_name(&rollout)
        )),
        Err(error) => wrong(format!("its rollout cannot be read by this version: {error}")),
    }
}

/// Checks a page that a record names.
fn check_page(record: &Value, number: i64, summary: &Value, page: &Value, report: &mut Report) {
    let mut wrong = |text: String| report.finding(&page_name(name(record), number), text);
    let named = summary["digest"].as_str().unwrap_or_default();
    match page_digest(&page["spec"]) {
        Ok(digest) if digest == named => {}
        Ok(digest) => {
            wrong(format!("its digest is {digest}, and its record has {named}: its content is not what was recorded"));
        }
        Err(error) => wrong(format!("it has no digest: {error}")),
    }
    let spec = &page["spec"];
    if spec["record"].as_str() != Some(name(record)) {
        wrong(format!("spec.record is {}: it is a page of another record", spec["record"]));
    }
    if spec["page"]["number"].as_i64() != Some(number) {
        wrong(format!("spec.page.number is {}: it is another page", spec["page"]["number"]));
    }
    let rows = spec["page"]["rows"].as_array();
    let pods = rows.into_iter().flatten().map(|row| row["pods"].as_array().map_or(0, Vec::len)).sum();
    for (field, found) in [("nodes", rows.map_or(0, Vec::len)), ("pods", pods)] {
        if summary[field].as_u64() != u64::try_from(found).ok() {
            wrong(format!("it has {found} {field}, and its record has {}", summary[field]));
        }
    }
}

/// Checks a record that is presented as running: one that has ended is signed, and could be presented so without its signature.
fn check_running(record: &Value, report: &mut Report) {
    let status = &record["status"];
    let mut wrong = |text: String| report.finding(name(record), text);
    if status.get("phase").is_some_and(|phase| !phase.is_string()) {
        wrong(format!("status.phase is {}, which is no phase", status["phase"]));
    }
    let last = |entry: &&Value| {
        let kind = entry["kind"].as_str().unwrap_or_default();
        matches!(kind, "Completed" | "Superseded" | "Stopped")
    };
    let ended = status["entries"].as_array().is_some_and(|entries| entries.iter().any(|entry| last(&entry)));
    if ended || !status["ended"].is_null() {
        wrong("it is running and has an end: it had ended, and its phase and signature were removed".to_owned());
    }
}

fn page_names(record: &Value) -> impl Iterator<Item = String> {
    pages_named(record).map(move |(number, _)| page_name(name(record), number))
}

/// Returns the first page that was removed although one before it is still there.
fn gap(removed: &BTreeSet<i64>, pages: usize) -> Option<i64> {
    let first_kept = (1..).zip(0..pages).map(|(number, _)| number).find(|number| !removed.contains(number))?;
    removed.iter().copied().find(|number| *number > first_kept)
}

/// Checks who wrote a record, and returns the clause about its signature.
fn check_author(record: &Value, phase: &str, keys: &mut BTreeMap<String, Key>, report: &mut Report) -> String {
    let own = name(record);
    match (phase, record["status"]["signature"].as_str()) {
        ("Running", None) => {
            check_running(record, report);
            report.unsigned += 1;
            "not signed yet (running)".to_owned()
        }
        ("Running", Some(_)) => {
            report.finding(own, "it is running and has a signature: only ended records are signed");
            "not verified".to_owned()
        }
        (_, None) => {
            report.finding(own, "it has ended and is not signed: nothing is known about its author");
            "not signed".to_owned()
        }
        (_, Some(signature)) => match check_signature(record, signature, keys) {
            Ok(kid) => {
                if let Some(key) = keys.get_mut(&kid) {
                    key.signed += 1;
                }
                format!("signed with the key {kid}")
            }
            Err(wrong) => {
                report.finding(own, wrong);
                "signature not valid".to_owned()
            }
        },
    }
}

/// Checks one record and the pages of it that exist.
async fn check_record(
    source: &Source<'_>,
    record: &Value,
    listed: &BTreeMap<String, Option<String>>,
    keys: &mut BTreeMap<String, Key>,
    report: &mut Report,
) -> anyhow::Result<()> {
    let own = name(record);
    let before = report.findings;
    check_names(record, report);
    let phase = record["status"]["phase"].as_str().unwrap_or("Running");
    let signed = check_author(record, phase, keys, report);
    let (mut removed, mut checked) = (BTreeSet::new(), 0_usize);
    for (number, summary) in pages_named(record) {
        let page = page_name(own, number);
        let found = if listed.contains_key(&page) { source.object(&page).await? } else { None };
        match found {
            None => _ = removed.insert(number),
            Some(object) => {
                checked += 1;
                check_page(record, number, summary, &object, report);
            }
        }
    }
    let pages = pages_named(record).count();
    if gap(&removed, pages).is_some() {
        // The limits may have removed pages since they were listed.
        let now = source.listed().await?;
        let numbers = pages_named(record).map(|(number, _)| number);
        removed.extend(numbers.filter(|number| !now.contains_key(&page_name(own, *number))));
    }
    if let Some(number) = gap(&removed, pages) {
        report.finding(
            &page_name(own, number),
            "it is missing although an earlier page is there: the limits of the history remove the first pages first, so \
             it was removed in another way",
        );
    }
    let count = |field: &str| record["status"][field].as_i64().unwrap_or_default();
    for field in ["nodes", "pods"] {
        let sum: i64 = pages_named(record).map(|(_, summary)| summary[field].as_i64().unwrap_or_default()).sum();
        if sum != count(field) {
            report.finding(own, format_args!("status.{field} is {}, and its pages have {sum}", count(field)));
        }
    }
    let verdict = match (report.findings == before, phase) {
        (false, _) => "NOT OK",
        (true, "Running") => "unsigned",
        (true, _) => "ok",
    };
    report.page.line(format_args!(
        "{verdict} {own} ({phase}): {signed}; pages checked: {checked}, removed: {}",
        removed.len()
    ));
    Ok(())
}

/// Returns what is wrong with an object that is neither a record nor a page of one. `records` has the number of pages of
/// each record, and true if it is running.
fn check_other(object: &str, label: Option<&str>, records: &BTreeMap<String, (i64, bool)>) -> Result<(), String> {
    let Some((record, (pages, running), number)) =
        records.iter().find_map(|(record, is)| Some((record, *is, page_number(record, object)?)))
    else {
        let label = label.unwrap_or_default();
        return Err(format!("no record names it (its label is '{label}'): its record was removed, or it was added"));
    };
    match (object == page_name(record, number), running && number == pages + 1) {
        // The controller writes a page first, and names it in the record afterwards.
        (true, true) => Ok(()),
        _ => Err(format!("its record {record} names {pages} pages, and not this one: it was added")),
    }
}

pub(super) async fn verify(
    source: &Source<'_>,
    only: Option<&str>,
    published: &BTreeMap<String, Value>,
) -> anyhow::Result<Report> {
    let mut report = Report::default();
    let mut keys = usable(published, &mut report);
    let mut records = source.records().await?;
    let listed = source.listed().await?;
    if let Some(id) = only {
        records = vec![find(&records, id)?.clone()];
    }
    // Also a record whose label was changed, so that the list of records does not have it.
    let known: BTreeSet<String> = records.iter().map(|record| name(record).to_owned()).collect();
    let mut named: BTreeSet<String> = known.iter().cloned().chain(records.iter().flat_map(page_names)).collect();
    let mut others = Vec::new();
    let unnamed: Vec<_> = listed.iter().filter(|(other, _)| !named.contains(*other)).collect();
    for (other, label) in unnamed {
        if only.is_some() && !known.iter().any(|record| page_number(record, other).is_some()) {
            continue;
        }
        match source.object(other).await? {
            None => {}
            Some(object) if object["spec"].get("rollout").is_some() => {
                if label.as_deref() != Some(RECORD) {
                    report.finding(other, "it is a record without the label of one: lists do not show it");
                }
                named.extend(page_names(&object));
                records.push(object);
            }
            Some(_) => others.push((other, label)),
        }
    }
    let state = |record: &Value| {
        let pages = i64::try_from(pages_named(record).count()).unwrap_or(i64::MAX);
        (name(record).to_owned(), (pages, record["status"]["phase"].as_str().unwrap_or("Running") == "Running"))
    };
    let states: BTreeMap<_, _> = records.iter().map(state).collect();
    for record in &records {
        check_record(source, record, &listed, &mut keys, &mut report).await?;
    }
    let mut names = BTreeSet::new();
    for twice in records.iter().map(name).filter(|record| !names.insert(*record)) {
        report.finding(twice, "there are two records of this name: one of them was added");
    }
    for (other, label) in others.into_iter().filter(|(other, _)| !named.contains(*other)) {
        // The limits may have removed it, after its record, since it was read.
        if source.object(other).await?.is_none() {
            continue;
        }
        if let Err(wrong) = check_other(other, label.as_deref(), &states) {
            report.finding(other, wrong);
        }
    }
    for page in records.iter().flat_map(page_names).collect::<BTreeSet<_>>() {
        if listed.get(&page).is_some_and(|label| label.as_deref() != Some(PAGE)) {
            report.finding(&page, "it is a page without the label of one");
        }
    }
    report.records = records.len();
    if records.is_empty() {
        report.page.line(NO_ROLLOUTS);
    }
    if report.unsigned > 0 {
        report.page.line(format_args!("not signed: {} (running); nothing proves who wrote them", report.unsigned));
    }
    for (id, key) in &keys {
        report.page.line(format_args!(
            "key {id}: records signed: {}; SHA-256 thumbprint (RFC 7638): {}",
            key.signed, key.thumbprint
        ));
    }
    report.page.line(
        "The signatures prove that the holder of these keys signed the records. Compare the thumbprints with those that you \
         keep elsewhere, or use --keys.",
    );
    Ok(report)
}

#[cfg(test)]
#[path = "verify_cases.rs"]
mod tests;
