//! Hooks: the request on a Node, and the answers of other controllers beside it. `docs/hooks.md` is their contract.
//!
//! The request is an annotation under the operator's own name, and the same for all hooks: they answer by a copy of it. It
//! names the attempt with its start, so that no answer to an earlier request counts.

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use models::names::{HOOK_ANSWER_PREFIX, HOOKS_ANNOTATION, JOB_PHASE_ANNOTATION};
use models::plain::cut;
use models::shadow::{Progress, Step};
use serde_json::{Value, json};

/// Phase of a Job before a drain, as its annotation has it.
pub const BEFORE: &str = "before";

/// The longest part of an answer that is read.
const ANSWER_LENGTH: usize = 512;

/// The answer of one hook to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HookAnswer {
    /// None, or one to an earlier request.
    Missing,
    Done,
    /// The reason of the refusal.
    Refused(String),
}

/// The request of a step that awaits hooks; `None` for all others.
pub fn request(progress: &Progress) -> Option<String> {
    let Progress { step, attempt, started, .. } = progress;
    let awaits = matches!(step, Step::BeforeDrain | Step::AfterUpdate);
    awaits.then(|| format!("{}/{attempt}/{}", step.as_str(), started.as_second()))
}

/// Returns the step of a request, and its attempt with the start; `None` for a text that is none.
pub fn parts(request: &str) -> Option<(Step, &str)> {
    let (step, attempt) = request.split_once('/')?;
    let step = [Step::BeforeDrain, Step::AfterUpdate].into_iter().find(|known| known.as_str() == step)?;
    Some((step, attempt))
}

/// Returns whether a request is one of this attempt, whatever its step.
pub fn is_of(request: &str, progress: &Progress) -> bool {
    let attempt = format!("{}/{}", progress.attempt, progress.started.as_second());
    parts(request).is_some_and(|(_, of)| of == attempt)
}

/// Returns whether a Job is one before a drain, and what it has prepared is not taken back yet: from then on it has a time after which
/// it is deleted.
pub fn is_open(job: &Job) -> bool {
    let phase = job.metadata.annotations.as_ref().and_then(|annotations| annotations.get(JOB_PHASE_ANNOTATION));
    let is_kept = job.spec.as_ref().is_some_and(|spec| spec.ttl_seconds_after_finished.is_none());
    is_kept && phase.is_some_and(|phase| phase == BEFORE)
}

/// The request that a Node has.
pub fn requested(meta: &ObjectMeta) -> Option<String> {
    meta.annotations.as_ref()?.get(HOOKS_ANNOTATION).cloned()
}

/// The answers that a Node has, by the name of the hook.
pub fn answers(meta: &ObjectMeta) -> BTreeMap<String, String> {
    let annotations = meta.annotations.iter().flatten();
    let of_hooks = annotations.filter_map(|(name, value)| Some((name.strip_prefix(HOOK_ANSWER_PREFIX)?, value)));
    of_hooks.map(|(name, value)| (name.to_owned(), cut(value, ANSWER_LENGTH))).collect()
}

/// Returns the answer of a hook to this request.
pub fn answer(answers: &BTreeMap<String, String>, hook: &str, request: &str) -> HookAnswer {
    let Some(rest) = answers.get(hook).and_then(|answer| answer.trim().strip_prefix(request)) else {
        return HookAnswer::Missing;
    };
    match rest.strip_prefix(" Refused") {
        Some(reason) => HookAnswer::Refused(reason.trim_start_matches(':').trim().to_owned()),
        None if rest.is_empty() => HookAnswer::Done,
        None => HookAnswer::Missing,
    }
}

/// Returns whether a hook has read this request: its answer begins with it, whatever follows.
pub fn was_read(answers: &BTreeMap<String, String>, request: &str) -> bool {
    let rest = |answer: &String| {
        answer.trim().strip_prefix(request).map(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    answers.values().any(|answer| rest(answer) == Some(true))
}

/// The merge patch that sets or removes the request of a Node, refused if anything was written since.
pub fn patch(uid: &str, resource_version: &str, request: Option<&str>) -> Value {
    json!({"metadata": {
        "uid": uid, "resourceVersion": resource_version, "annotations": {HOOKS_ANNOTATION: request},
    }})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    #[test]
    fn answer_counts_for_its_own_request_only() {
        let of = |answer: Option<&str>| {
            let answers = answer.map(|answer| ("ceph".to_owned(), answer.to_owned())).into_iter().collect();
            super::answer(&answers, "ceph", "BeforeDrain/7/1800000000")
        };
        let refused = |text: &str| HookAnswer::Refused(text.into());
        for (answer, expected) in [
            (None, HookAnswer::Missing),
            (Some(""), HookAnswer::Missing),
            (Some("BeforeDrain/7/1800000000"), HookAnswer::Done),
            (Some(" BeforeDrain/7/1800000000 "), HookAnswer::Done),
            (Some("BeforeDrain/7/18000000001"), HookAnswer::Missing),
            (Some("BeforeDrain/6/1800000000"), HookAnswer::Missing),
            (Some("AfterUpdate/7/1800000000"), HookAnswer::Missing),
            (Some("BeforeDrain/7/1800000000 later"), HookAnswer::Missing),
            (Some("BeforeDrain/7/1800000000 Refused: HEALTH_WARN"), refused("HEALTH_WARN")),
            (Some("BeforeDrain/7/1800000000 Refused"), refused("")),
            (Some("BeforeDrain/6/1800000000 Refused: no"), HookAnswer::Missing),
        ] {
            assert_eq!(of(answer), expected, "{answer:?}");
        }
    }

    #[test]
    fn request_names_step_attempt_and_its_start() {
        let at = |step| request(&fixtures::progress(step, 90));
        let started = fixtures::t(0).as_second();
        assert_eq!(at(Step::BeforeDrain), Some(format!("BeforeDrain/1/{started}")));
        assert_eq!(at(Step::AfterUpdate), Some(format!("AfterUpdate/1/{started}")));
        for step in Step::ALL.iter().copied().filter(|step| !matches!(step, Step::BeforeDrain | Step::AfterUpdate)) {
            assert_eq!(at(step), None);
        }
    }

    #[test]
    fn request_is_of_the_attempt_that_it_names_whatever_the_step() {
        let (progress, started) = (fixtures::progress(Step::Draining, 90), fixtures::t(0).as_second());
        for (request, expected) in [
            (format!("BeforeDrain/1/{started}"), true),
            (format!("AfterUpdate/1/{started}"), true),
            (format!("BeforeDrain/2/{started}"), false),
            (format!("BeforeDrain/1/{started}1"), false),
            (format!("Draining/1/{started}"), false),
            (format!("1/{started}"), false),
            ("BeforeDrain".to_owned(), false),
        ] {
            assert_eq!(is_of(&request, &progress), expected, "{request}");
        }
    }

    #[test]
    fn request_and_answers_are_read_from_annotations() {
        let meta: ObjectMeta = serde_json::from_value(json!({"annotations": {
            HOOKS_ANNOTATION: "BeforeDrain/7/1",
            (format!("{HOOK_ANSWER_PREFIX}ceph")): format!("a\nb{}", "x".repeat(2000)),
            "example.com/ceph": "BeforeDrain/7/1",
        }}))
        .unwrap();
        assert_eq!(requested(&meta).as_deref(), Some("BeforeDrain/7/1"));
        let found = answers(&meta);
        assert!(
            found.len() == 1 && found["ceph"].len() == ANSWER_LENGTH && found["ceph"].starts_with("a bx"),
            "{found:?}"
        );
        assert_eq!((requested(&ObjectMeta::default()), answers(&ObjectMeta::default()).len()), (None, 0));
    }
}
