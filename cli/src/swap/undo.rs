//! The next step of `undo`: until v3 is stored, everything that `swap` has done can be put back as it was.

use serde_json::Value;

use super::record::id;
use super::steps::{Facts, Next, Phase, Step, is_api_server, open};

/// Reason why `undo` does nothing once v3 is stored.
const TOO_LATE: &str = "shadows are stored in v3 already, which the earlier operator cannot read, so it cannot be put back \
     over them. Finish the takeover (kubectl brupop takeover swap). To go back after that: save the ConfigMaps \
     brupop-takeover-* in brupop-system, remove this operator with its definition (kubectl brupop uninstall), and install the \
     earlier one again by its own means: it makes its shadows itself";

/// Returns the next step.
pub(super) fn next(facts: &Facts) -> Next {
    if matches!(facts.phase(), Phase::Both | Phase::Ours) {
        return Next::Blocked(TOO_LATE.to_owned());
    }
    open(facts)
        .or_else(|| conversion(facts))
        .or_else(|| workload(facts))
        .or_else(|| {
            let (name, uid) = facts.record.maps.first()?;
            Some(Next::Act(Step::DeleteRecord(name.clone(), uid.clone())))
        })
        .unwrap_or(Next::Done)
}

fn conversion(facts: &Facts) -> Option<Next> {
    let kept = &facts.record.of_kind("CustomResourceDefinition").next()?["spec"]["conversion"];
    let Some(definition) = &facts.definition else {
        return Some(Next::Blocked(
            "the definition of the shadows was deleted, and every shadow with it: install the earlier operator again by its \
             own means"
                .to_owned(),
        ));
    };
    (definition.live.kept["spec"]["conversion"] != *kept).then(|| Next::Act(Step::SetConversion(kept.clone())))
}

fn workload(facts: &Facts) -> Option<Next> {
    let exists = |object: &Value| facts.workloads.iter().any(|live| id(&live.kept) == id(object));
    let all = facts.record.of_kind("Deployment").chain(facts.record.of_kind("DaemonSet"));
    let missing = all.filter(|object| !exists(object));
    let first = missing.min_by_key(|object| (!is_api_server(object), id(object)))?;
    Some(Next::Act(Step::CreateWorkload(first.clone())))
}
