//! Names, collisions, owners.

use super::*;

/// Makes a revision one without an owner, one of another owner, and so on.
type Change = fn(&mut ControllerRevision);

const OWNED: Change = |_| {};
const ORPHAN: Change = |revision| revision.metadata.owner_references = None;
const OF_ANOTHER: Change = |revision| revision.metadata.owner_references = Some(vec![owner("another")]);
const UNLABELLED: Change = |revision| revision.metadata.labels = None;
const DELETING: Change =
    |revision| revision.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).ok();

fn all(changes: &[Change], revision: &mut ControllerRevision) {
    changes.iter().for_each(|change| change(revision));
}

#[test]
fn revisions_of_operator_are_selected_by_label_and_owner() {
    for (sentence, changes, listed, actions) in [
        ("its own", vec![OWNED], true, vec![]),
        ("without an owner", vec![ORPHAN], true, vec!["adopt x"]),
        ("of another owner", vec![OF_ANOTHER], false, vec![]),
        ("its own, with other labels", vec![UNLABELLED], false, vec!["release x"]),
        ("without an owner and label", vec![ORPHAN, UNLABELLED], false, vec![]),
        ("of another owner, without label", vec![OF_ANOTHER, UNLABELLED], false, vec![]),
        ("without an owner, being deleted", vec![ORPHAN, DELETING], false, vec![]),
        ("its own, being deleted", vec![DELETING], true, vec![]),
        ("its own, with other labels, being deleted", vec![UNLABELLED, DELETING], false, vec![]),
    ] {
        let mut world = World::new(A);
        world.add_of("a", 9, A);
        all(&changes, world.add_of("x", 3, B));
        assert_eq!(world.numbers().len() == 2, listed, "{sentence}");
        assert_eq!(shorts(&world.plan()), actions, "{sentence}");
    }
    assert_eq!(World::new(A).numbers(), [], "none");
}

#[test]
fn adoption_and_release_keep_other_owners_and_are_guarded() {
    let another = OwnerReference { controller: None, ..owner("another") };
    for (labelled, owners, expected) in [
        (true, vec![another.clone()], vec![another.clone(), owner("op")]),
        (true, vec![OwnerReference { controller: None, ..owner("op") }], vec![owner("op")]),
        (false, vec![another.clone(), owner("op")], vec![another.clone()]),
    ] {
        let mut world = World::new(A);
        let revision = world.add_of("a", 1, A);
        revision.metadata.owner_references = Some(owners);
        if !labelled {
            UNLABELLED(revision);
        }
        let action = &world.plan().actions[0];
        let (RevisionAction::Adopt { patch, .. } | RevisionAction::Release { patch, .. }) = action else {
            panic!("{action:?}")
        };
        let metadata = json!({"uid": "uid-a", "resourceVersion": "1", "ownerReferences": expected});
        assert_eq!(*patch, json!({"metadata": metadata}), "it names only what changes");
    }
    let reference = serde_json::to_value(owner("op")).unwrap();
    assert_eq!(
        reference,
        json!({"apiVersion": "brupop.bottlerocket.aws/v1", "kind": "BottlerocketUpdateOperator", "name": "default", "uid": "op",
            "controller": true}),
        "without blockOwnerDeletion"
    );
}

#[test]
fn nothing_is_adopted_or_made_for_operator_that_is_being_deleted() {
    let mut resource = models::operator::BottlerocketUpdateOperator::new("default", Default::default());
    resource.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).ok();
    let mut world = World::new(A);
    ORPHAN(world.add_of("a", 1, A));
    world.operator = OperatorFacts::project(&resource);
    assert_eq!(world.plan(), RevisionPlan::default());
}

#[test]
fn recreated_operator_adopts_orphans_and_leaves_revisions_of_its_predecessor() {
    // Deleted with --cascade=orphan, and created again.
    let mut world = World::new(A);
    world.settle();
    world.target(B);
    world.settle();
    let before = world.numbers();
    world.objects.values_mut().for_each(ORPHAN);
    world.operator().uid = "op-2".into();
    world.operator().status = Default::default();
    assert_eq!(world.plan().update, Some(world.named(B)), "adopted in this very plan");
    let done = world.settle();
    assert!(done.len() == 2 && done.iter().all(|action| action.starts_with("adopt")), "{done:?}");
    assert_eq!(before.len(), 2);

    // Deleted in the background: the earlier revisions are still there.
    world.operator().uid = "op-3".into();
    world.operator().status = Default::default();
    assert_eq!(world.settle(), ["count 1", "create 1"], "a name of another owner is taken");
    assert_eq!(world.objects.len(), 3);
}

#[test]
fn adopted_revision_is_renumbered_only_once_it_is_owned() {
    let mut world = World::new(A);
    ORPHAN(world.add_of("a", 1, A));
    world.add_of("b", 2, B);
    assert_eq!(shorts(&world.plan()), ["adopt a"], "the next write needs another resourceVersion");
    assert_eq!(world.settle(), ["adopt a", "renumber 3"]);

    let mut world = World::new(A);
    world.add_of("low", 1, A);
    ORPHAN(world.add_of("a", 2, A));
    let planned = world.plan();
    assert_eq!((shorts(&planned), planned.update.as_deref()), (vec!["adopt a".to_owned()], Some("a")));
    assert_eq!(world.settle(), ["adopt a", "delete low"], "the other one is deleted once this one is owned");
}

#[test]
fn first_revision_has_number_name_labels_owner_and_cause() {
    let mut world = World::new(A);
    world.operator().change_cause = Some("CVE".into());
    let RevisionAction::Create(revision) = &world.plan().actions[0] else { panic!() };
    let created = serde_json::to_value(revision).unwrap();
    let hash = name::hash(&content_of(A).data().to_string(), None);
    assert_eq!(
        created,
        json!({
            "apiVersion": "apps/v1", "kind": "ControllerRevision",
            "metadata": {
                "name": format!("default-{hash}"),
                "labels": {
                    "app.kubernetes.io/name": "brupop", "brupop.bottlerocket.aws/operator": "default",
                    "controller.kubernetes.io/hash": hash,
                },
                "annotations": {"kubernetes.io/change-cause": "CVE"},
                "ownerReferences": [owner("op")],
            },
            "data": content_of(A).data(), "revision": 1,
        })
    );
    let data = content_of(A).data().to_string();
    assert!(
        serde_json::to_string(revision).unwrap().contains(&data),
        "the bytes that are posted are the canonical ones"
    );
    let read = PolicyRevision::from(RevisionFacts::project(revision).unwrap());
    assert_eq!((&read.content, read.change_cause.as_deref()), (&Ok(content_of(A)), Some("CVE")));
}

#[test]
fn taken_name_raises_collision_count_before_next_name_is_used() {
    for (sentence, changes, target) in [
        ("another content with the same hash", vec![OWNED], B),
        ("an unreadable one", vec![OWNED, |r: &mut ControllerRevision| r.data = RawExtension(json!({"form": 2}))], B),
        ("another owner's, with the same content", vec![OF_ANOTHER], A),
        ("without label, with the same content", vec![ORPHAN, UNLABELLED], A),
        ("one that is being deleted by another", vec![ORPHAN, DELETING], A),
    ] {
        let mut world = World::new(A);
        let taken = world.plan().actions;
        let RevisionAction::Create(first) = &taken[0] else { panic!() };
        all(&changes, world.add_of(&first.metadata.name.clone().unwrap(), 1, target));
        let planned = world.plan();
        assert_eq!(shorts(&planned), ["count 1"], "{sentence}");
        assert_eq!(planned.update, None, "{sentence}: it does not exist yet");
        world.carry_out(&planned.actions[0]);
        let RevisionAction::Create(second) = &world.plan().actions[0] else { panic!("{sentence}") };
        assert_ne!(second.metadata.name, first.metadata.name, "{sentence}");
        let labels = second.metadata.labels.as_ref().unwrap();
        assert!(second.metadata.name.as_ref().unwrap().ends_with(&labels[names::HASH_LABEL]), "{sentence}");

        // The name of that one is taken too.
        let again = if target == A { A } else { C };
        all(&changes, world.add_of(&second.metadata.name.clone().unwrap(), 1, again));
        assert_eq!(shorts(&world.plan()), ["count 2"], "{sentence}");
        world.settle();
        world.target(LATEST);
        world.settle();
        assert_eq!(world.operator().status.collision_count, Some(2), "{sentence}: it never falls");
    }
    let mut world = World::new(A);
    world.operator().status.collision_count = Some(i32::MAX);
    let RevisionAction::Create(last) = &world.plan().actions[0] else { panic!() };
    world.add_of(&last.metadata.name.clone().unwrap(), 1, B);
    let full = world.plan();
    assert!(full.actions.is_empty() && full.problem.unwrap().contains("taken"));
}

#[test]
fn taken_name_of_equal_content_is_not_counted() {
    let mut world = World::new(A);
    let planned = world.plan();
    world.carry_out(&planned.actions[0]);
    // The answer was lost, or another leader was faster: the live object is in the next snapshot.
    assert_eq!(world.settle(), Vec::<String>::new());
    assert_eq!((world.objects.len(), world.operator().status.collision_count), (1, None));
}

#[test]
fn second_leader_with_earlier_count_makes_no_lasting_second_revision() {
    let mut world = World::new(A);
    let earlier = world.plan();
    world.operator().status.collision_count = Some(1);
    world.settle();
    // The other leader had not read the count.
    world.carry_out(&earlier.actions[0]);
    assert_eq!(world.objects.len(), 2);
    world.shadows = vec![shadow("a", None, true)];
    let done = world.settle();
    assert!(done.len() == 1 && done[0].starts_with("delete"), "{done:?}");
    assert_eq!(world.operator().status.collision_count, Some(1));
}

#[test]
fn oversized_policy_is_refused_with_field() {
    let mut world = World::new(A);
    let long: Vec<String> = (0..100_000).map(|patch| format!("1.20.{patch}")).collect();
    world.set(json!({"version": {"exclude": long}}));
    let planned = world.plan();
    assert!(planned.actions.is_empty() && planned.problem.unwrap().contains("spec.version.exclude"));
}
