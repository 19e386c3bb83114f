use models::operator::BottlerocketUpdateOperatorSpec;

use super::*;
use crate::view::Projection as _;

mod keeping;
mod names_and_owners;

const LATEST: &str = "latest";
const A: &str = "1.20.5";
const B: &str = ">=1.20, <1.23";
const C: &str = "1.21";

/// The operator's namespace. It carries out what is planned, by the rules of the API server.
struct World {
    operator: Option<OperatorFacts>,
    objects: BTreeMap<String, ControllerRevision>,
    shadows: Vec<LabelledShadow>,
    all_follow: bool,
    /// Of the last write.
    version: u32,
}

fn content_of(target: &str) -> RevisionContent {
    let spec = json!({"version": {"target": target}});
    let spec: BottlerocketUpdateOperatorSpec = serde_json::from_value(spec).unwrap();
    RevisionContent::of(&Policy::from_spec(&spec).unwrap())
}

fn shadow(node: &str, label: Option<&str>, follows: bool) -> LabelledShadow {
    LabelledShadow { node: node.into(), label: label.map(str::to_owned), deleting: false, follows }
}

impl World {
    fn new(target: &str) -> Self {
        let operator = OperatorFacts { uid: "op".into(), ..OperatorFacts::default() };
        let mut world = Self {
            operator: Some(operator),
            objects: BTreeMap::new(),
            shadows: Vec::new(),
            all_follow: false,
            version: 0,
        };
        world.set(json!({"version": {"target": target}}));
        world
    }

    fn operator(&mut self) -> &mut OperatorFacts {
        self.operator.as_mut().unwrap()
    }

    fn set(&mut self, spec: Value) {
        self.operator().spec = serde_json::from_value(spec).unwrap();
    }

    fn target(&mut self, target: &str) {
        let limit = self.operator().spec.revision_history_limit;
        self.set(json!({"version": {"target": target}}));
        self.operator().spec.revision_history_limit = limit;
    }

    fn limit(&mut self, limit: u32) {
        self.operator().spec.revision_history_limit = Some(limit);
    }

    /// Adds a revision of the operator with this number.
    fn add(&mut self, name: &str, number: i64, data: Value) -> &mut ControllerRevision {
        self.version += 1;
        let revision = ControllerRevision {
            metadata: ObjectMeta {
                name: Some(name.into()),
                uid: Some(format!("uid-{name}")),
                resource_version: Some(self.version.to_string()),
                labels: Some([(names::OPERATOR_LABEL.into(), names::OPERATOR_NAME.into())].into()),
                owner_references: Some(vec![owner("op")]),
                ..ObjectMeta::default()
            },
            data: RawExtension(data),
            revision: Some(number),
        };
        self.objects.entry(name.into()).insert_entry(revision).into_mut()
    }

    fn add_of(&mut self, name: &str, number: i64, target: &str) -> &mut ControllerRevision {
        self.add(name, number, content_of(target).data())
    }

    fn plan(&self) -> RevisionPlan {
        let revisions: Vec<_> =
            self.objects.values().filter_map(RevisionFacts::project).map(PolicyRevision::from).collect();
        plan(&RevisionSnapshot {
            operator: self.operator.as_ref(),
            policy: &Policy::in_force(self.operator.as_ref()),
            all_follow: self.all_follow,
            revisions: &revisions,
            shadows: &self.shadows,
        })
    }

    /// Carries out one write, with the guards of the API server.
    fn carry_out(&mut self, action: &RevisionAction) {
        self.version += 1;
        let version = self.version.to_string();
        match action {
            RevisionAction::RaiseCollisionCount(count) => self.operator().status.collision_count = Some(*count),
            RevisionAction::Create(revision) => {
                let name = revision.metadata.name.clone().unwrap();
                assert!(!self.objects.contains_key(&name), "409: {name}");
                let mut revision = revision.clone();
                revision.metadata.uid = Some(format!("uid-{name}"));
                revision.metadata.resource_version = Some(version);
                self.objects.insert(name, *revision);
            }
            RevisionAction::Delete { name, uid } => {
                let deleted = self.objects.remove(name).unwrap();
                assert_eq!(deleted.metadata.uid.as_ref(), Some(uid));
            }
            RevisionAction::Adopt { name, patch }
            | RevisionAction::Release { name, patch }
            | RevisionAction::Renumber { name, patch } => {
                let stored = self.objects.get_mut(name).unwrap();
                let (data, meta) = (stored.data.clone(), &mut stored.metadata);
                assert_eq!(patch["metadata"]["uid"], json!(meta.uid), "422");
                assert_eq!(patch["metadata"]["resourceVersion"], json!(meta.resource_version), "409");
                let owners = patch["metadata"].get("ownerReferences").cloned();
                meta.owner_references =
                    owners.map_or(meta.owner_references.clone(), |o| serde_json::from_value(o).unwrap());
                meta.resource_version = Some(version);
                stored.revision = patch.get("revision").map_or(stored.revision, Value::as_i64);
                assert_eq!(stored.data, data);
            }
        }
    }

    /// Carries out plans until nothing is left to do, and returns the names of the writes.
    fn settle(&mut self) -> Vec<String> {
        let mut done = Vec::new();
        for _ in 0..20 {
            let plan = self.plan();
            let creations = plan.actions.iter().filter(|action| matches!(action, RevisionAction::Create(_)));
            assert!(creations.count() <= 1, "{plan:?}");
            for action in &plan.actions {
                self.carry_out(action);
            }
            let status = &mut self.operator().status;
            (status.current_revision, status.update_revision) = (plan.current, plan.update);
            let mut relabelled = false;
            for shadow in &mut self.shadows {
                let label = plan.labels.get(&shadow.node).cloned();
                relabelled |= !shadow.deleting && shadow.label != label;
                shadow.label = if shadow.deleting { shadow.label.clone() } else { label };
            }
            if plan.actions.is_empty() && !relabelled {
                return done;
            }
            done.extend(plan.actions.iter().map(short));
        }
        panic!("it never ends: {done:?}");
    }

    /// The numbers of the revisions, by what they mean.
    fn numbers(&self) -> Vec<(i64, String)> {
        let revisions: Vec<_> =
            self.objects.values().filter_map(RevisionFacts::project).map(PolicyRevision::from).collect();
        let history = history("op", &revisions);
        history
            .iter()
            .map(|r| (r.number, self.objects[&r.name].data.0["target"].as_str().unwrap_or("?").into()))
            .collect()
    }

    /// The name of the revision with this target.
    fn named(&self, target: &str) -> String {
        let wanted = content_of(target);
        let with = |r: &&ControllerRevision| RevisionContent::read(&r.data.0).as_ref() == Ok(&wanted);
        self.objects.values().find(with).unwrap().metadata.name.clone().unwrap()
    }
}

/// The write in one word, with the name of an object that was there before.
fn short(action: &RevisionAction) -> String {
    match action {
        RevisionAction::Adopt { name, .. } => format!("adopt {name}"),
        RevisionAction::Release { name, .. } => format!("release {name}"),
        RevisionAction::RaiseCollisionCount(count) => format!("count {count}"),
        RevisionAction::Create(revision) => format!("create {}", revision.revision.unwrap()),
        RevisionAction::Renumber { patch, .. } => format!("renumber {}", patch["revision"]),
        RevisionAction::Delete { name, .. } => format!("delete {name}"),
    }
}

fn shorts(plan: &RevisionPlan) -> Vec<String> {
    plan.actions.iter().map(short).collect()
}
