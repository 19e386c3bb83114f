//! The releases of Helm, by their records. Only the metadata of these Secrets are read.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt as _};
use models::names;

use crate::call::call;
use crate::marks::Tool;
use crate::shell::{for_cluster, word};

/// Returns the release that an object names, and the namespace of that release.
pub(crate) fn release_of(meta: &ObjectMeta) -> Option<(String, String)> {
    Tool::all_of(meta).into_iter().find_map(Tool::release)
}

/// Returns the command that upgrades the release of an object: of one that Flux keeps, the command that changes its `HelmRelease`. Without
/// the option, Helm would set the release's other values back to their defaults as soon as a user adds one.
pub(crate) fn upgrade_of(meta: &ObjectMeta) -> Option<String> {
    let (release, namespace) = release_of(meta)?;
    let kept = Tool::all_of(meta).into_iter().find_map(|tool| match tool {
        Tool::Flux { kind: "helmrelease", name, namespace } => Some((name, namespace)),
        Tool::Flux { .. } | Tool::Helm { .. } | Tool::ArgoCd { .. } => None,
    });
    Some(for_cluster(&match kept {
        Some((name, namespace)) => format!("kubectl edit helmrelease {} -n {}", word(&name), word(&namespace)),
        None => format!("helm upgrade {} CHART -n {} --reset-then-reuse-values", word(&release), word(&namespace)),
    }))
}

/// Returns the command that keeps the definition of the shadows in an upgrade of its release to a chart without it: Helm then reads the
/// annotation in the cluster. For an uninstallation it reads its own record alone.
pub(crate) fn keep_in_upgrade() -> String {
    for_cluster(&format!("kubectl annotate crd {} helm.sh/resource-policy=keep --overwrite", names::SHADOW_DEFINITION))
}

/// Returns what comes before the commands of [`Releases::forget`] for a release that holds the definition of the shadows. `annotate` is the
/// clause about [`keep_in_upgrade`].
pub(crate) fn before_forgetting(annotate: &str) -> String {
    format!(
        "If the release has other parts than the earlier operator, do not let Helm forget it: {annotate}, and after the swap upgrade it to \
         a chart without the earlier operator. Helm leaves a definition with this annotation then. Otherwise first take the release out \
         of all that installs it, without an uninstallation: Terraform, Pulumi, the AWS CDK and Crossplane uninstall a release that is \
         taken out of their configuration, so have them forget it before (docs/takeover.md; Terraform: terraform state rm ADDRESS). \
         Leave its HelmRelease suspended until the HelmRelease itself is deleted. Each of these would install it again, which fails, and \
         may clean up by an uninstallation. Then let Helm forget it, by the deletion of the Secrets of its record, which deletes nothing \
         else"
    )
}

/// The record of a release in one namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Release {
    pub(crate) name: String,
    /// The namespace of the record, which need not be that of the release's objects.
    pub(crate) namespace: String,
    /// Names of its Secrets.
    pub(crate) secrets: Vec<String>,
    /// True if no object names this namespace: the release may be another one of the same name.
    pub(crate) elsewhere: bool,
}

/// The records of the releases that objects name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Releases {
    pub(crate) found: Vec<Release>,
    /// Sentences about what could not be read.
    pub(crate) unread: Vec<String>,
    /// True if that includes a namespace that an object names, and not the search in all namespaces alone.
    pub(crate) named_unread: bool,
}

impl Releases {
    /// Reads the records of the releases that these tools name. Flux has them in the namespace of its HelmRelease, unless that
    /// names another; Helm in the namespace of the objects.
    pub(crate) async fn read(client: &Client, tools: &[Tool]) -> Self {
        let (mut names, mut namespaces) = (BTreeSet::<&str>::new(), BTreeSet::<&str>::new());
        for tool in tools {
            match tool {
                Tool::Helm { release, namespace } => {
                    names.extend(release.as_deref());
                    namespaces.insert(namespace);
                }
                Tool::Flux { kind: "helmrelease", namespace, .. } => _ = namespaces.insert(namespace),
                Tool::Flux { .. } | Tool::ArgoCd { .. } => {}
            }
        }
        namespaces.remove("");
        let mut releases = Self::default();
        for name in names {
            for &namespace in &namespaces {
                releases.add(client, name, Some(namespace)).await;
            }
            if releases.of(name).next().is_none() {
                releases.add(client, name, None).await;
            }
        }
        releases
    }

    /// Reads the records of a release, without a namespace in all of them.
    async fn add(&mut self, client: &Client, name: &str, namespace: Option<&str>) {
        let (secrets, within): (Api<Secret>, &str) = match namespace {
            Some(namespace) => (Api::namespaced(client.clone(), namespace), namespace),
            None => (Api::all(client.clone()), "all namespaces"),
        };
        let params = ListParams::default().labels(&format!("owner=helm,name={name}")).fields("type=helm.sh/release.v1");
        let records = match call(&format!("list secrets in {within}"), secrets.list_metadata(&params)).await {
            Ok(records) => records,
            Err(error) => {
                self.unread.push(format!("the records of the Helm release {name} in {within}: {error:#}"));
                self.named_unread |= namespace.is_some();
                return;
            }
        };
        for record in records {
            let (of, secret) = (record.namespace().unwrap_or_default(), record.name_any());
            self.add_record(name, of, secret, namespace.is_none());
        }
    }

    /// Adds a record of a release. One that was found `elsewhere` in this operator's namespace is of this operator, whose release may have
    /// the same name.
    fn add_record(&mut self, name: &str, namespace: String, secret: String, elsewhere: bool) {
        if elsewhere && namespace == names::SYSTEM_NAMESPACE {
            return;
        }
        match self.found.iter_mut().find(|release| release.name == name && release.namespace == namespace) {
            Some(known) => known.secrets.push(secret),
            None => self.found.push(Release { name: name.to_owned(), namespace, secrets: vec![secret], elsewhere }),
        }
    }

    fn of(&self, name: &str) -> impl Iterator<Item = &Release> {
        self.found.iter().filter(move |release| release.name == name)
    }

    /// Returns false if Helm has no record of a release.
    pub(crate) fn may_have(&self, name: &str) -> bool {
        !self.unread.is_empty() || self.of(name).next().is_some()
    }

    /// Returns true if no namespace that an object names has a record of a release, and the other namespaces could not be searched.
    pub(crate) fn is_only_unsearched(&self, name: &str) -> bool {
        !self.unread.is_empty() && !self.named_unread && self.of(name).next().is_none()
    }

    /// Returns the place of the record of a release, as a clause.
    pub(crate) fn place(&self, name: &str) -> String {
        let places: Vec<String> = self
            .of(name)
            .map(|release| {
                let other = if release.elsewhere { ", if it is not another one of this name" } else { "" };
                format!("recorded in {} in the namespace {}{other}", release.secrets.join(", "), release.namespace)
            })
            .collect();
        if !places.is_empty() {
            return places.join(", and ");
        }
        let unknown = if self.unread.is_empty() {
            "of which no Secret in any namespace is a record, so that Helm has forgotten it or keeps its records elsewhere"
        } else {
            "of which the record could not be read"
        };
        unknown.to_owned()
    }

    /// Returns the commands that make Helm forget a release; if no record of it is known, the one that finds them.
    pub(crate) fn forget(&self, name: &str) -> Vec<String> {
        let delete = |release: &Release| {
            let (name, namespace) = (word(name), word(&release.namespace));
            let delete = for_cluster(&format!("kubectl delete secret -n {namespace} -l owner=helm,name={name}"));
            if release.elsewhere {
                let definition = names::SHADOW_DEFINITION;
                let manifest = for_cluster(&format!("helm get manifest {name} -n {namespace}"));
                format!("{manifest} | grep -q 'name: {definition}' && {delete}")
            } else {
                delete
            }
        };
        let commands: Vec<String> = self.of(name).map(delete).collect();
        if commands.is_empty() { vec![find(name)] } else { commands }
    }

    /// Returns what is left to do with the tools whose objects are deleted: a sentence about each HelmRelease of Flux, and about each release that
    /// Helm still has a record of where the objects name it, or may have.
    pub(crate) fn left(&self, tools: &[Tool]) -> Vec<String> {
        let kept = tools.iter().filter_map(|tool| match tool {
            Tool::Flux { kind: "helmrelease", name, namespace } => Some(format!(
                "The objects were those of the HelmRelease {name} of Flux: remove it from its source, and then: {}. If it is suspended, Helm \
                 keeps its record of the release",
                for_cluster(&format!("kubectl delete helmrelease {} -n {}", word(name), word(namespace)))
            )),
            Tool::Helm { release: Some(name), namespace } if self.named_unread && self.of(name).next().is_none() => {
                let (name, namespace) = (word(name), word(namespace));
                Some(format!(
                    "The records of the Helm release {name} could not be read. If Helm has it still ({}), and it has no other parts than the \
                     operator: {}",
                    for_cluster(&format!("helm list -n {namespace}")),
                    for_cluster(&format!("helm uninstall {name} -n {namespace}"))
                ))
            }
            Tool::Flux { .. } | Tool::Helm { .. } | Tool::ArgoCd { .. } => None,
        });
        let named = self.found.iter().filter(|release| !release.elsewhere);
        let sentence = |release: &Release| {
            let (name, namespace) = (word(&release.name), word(&release.namespace));
            format!(
                "Helm has a record of the release {name} still. If it has no other parts than the operator: {}",
                for_cluster(&format!("helm uninstall {name} -n {namespace}"))
            )
        };
        kept.chain(named.map(sentence)).collect()
    }

    /// Returns the command that uninstalls a release, unless Helm has no record of it: Helm knows it only in the namespace of its record.
    pub(crate) fn uninstall(&self, name: &str) -> Option<String> {
        let command = || match self.of(name).find(|release| !release.elsewhere) {
            Some(release) => format!("helm uninstall {} -n {}", word(name), word(&release.namespace)),
            None => format!("helm uninstall {} -n NAMESPACE   # that of its record: {}", word(name), find(name)),
        };
        self.may_have(name).then(|| for_cluster(&command()))
    }
}

/// Returns the command that shows the records of a release.
pub(crate) fn find(name: &str) -> String {
    for_cluster(&format!("kubectl get secret -A -l owner=helm,name={}", word(name)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::testing::with_context;

    #[test]
    fn commands_name_the_namespace_of_the_record_and_without_one_show_where_it_is() {
        let release = |namespace: &str, elsewhere| Release {
            name: "r".to_owned(),
            namespace: namespace.to_owned(),
            secrets: vec!["s".to_owned()],
            elsewhere,
        };
        let unread = || vec!["the records".to_owned()];
        let show = "kubectl get secret -A -l owner=helm,name=r";
        for (sentence, found, unread, exists, place, forget, uninstall) in [
            (
                "of Helm",
                vec![release("old", false)],
                vec![],
                true,
                "recorded in s in the namespace old",
                vec!["kubectl delete secret -n old -l owner=helm,name=r"],
                Some("helm uninstall r -n old"),
            ),
            (
                "of Flux, and one of Helm before",
                vec![release("flux-system", false), release("old", false)],
                unread(),
                true,
                "recorded in s in the namespace flux-system, and recorded in s in the namespace old",
                vec![
                    "kubectl delete secret -n flux-system -l owner=helm,name=r",
                    "kubectl delete secret -n old -l owner=helm,name=r",
                ],
                Some("helm uninstall r -n flux-system"),
            ),
            (
                "in a namespace that no object names",
                vec![release("x", true)],
                vec![],
                true,
                "recorded in s in the namespace x, if it is not another one of this name",
                vec![
                    "helm get manifest r -n x | grep -q 'name: bottlerocketshadows.brupop.bottlerocket.aws' && kubectl delete \
                     secret -n x -l owner=helm,name=r",
                ],
                Some(
                    "helm uninstall r -n NAMESPACE   # that of its record: kubectl get secret -A -l owner=helm,name=r",
                ),
            ),
            (
                "nowhere",
                vec![],
                vec![],
                false,
                "of which no Secret in any namespace is a record, so that Helm has forgotten it or keeps its records elsewhere",
                vec![show],
                None,
            ),
            (
                "not known",
                vec![],
                unread(),
                true,
                "of which the record could not be read",
                vec![show],
                Some(
                    "helm uninstall r -n NAMESPACE   # that of its record: kubectl get secret -A -l owner=helm,name=r",
                ),
            ),
        ] {
            let releases = Releases { found, unread, named_unread: false };
            assert_eq!(releases.may_have("r"), exists, "{sentence}");
            assert_eq!(releases.place("r"), place, "{sentence}");
            assert_eq!(releases.forget("r"), forget, "{sentence}");
            assert_eq!(releases.uninstall("r").as_deref(), uninstall, "{sentence}");
        }
        assert_eq!(find("x; rm"), "kubectl get secret -A -l owner=helm,name='x; rm'");
    }

    #[test]
    fn commands_are_for_the_chosen_context() {
        let release =
            |elsewhere| Release { name: "r".to_owned(), namespace: "x".to_owned(), secrets: vec![], elsewhere };
        let releases = |elsewhere| Releases { found: vec![release(elsewhere)], ..Releases::default() };
        let (forget, uninstall) = with_context("c", || (releases(true).forget("r"), releases(true).uninstall("r")));
        let expected = "helm get manifest r -n x --kube-context c | grep -q 'name: bottlerocketshadows.brupop.bottlerocket.aws' && \
                        kubectl delete secret -n x -l owner=helm,name=r --context c";
        assert_eq!(forget, [expected]);
        let expected = "helm uninstall r -n NAMESPACE --kube-context c   # that of its record: kubectl get secret -A -l owner=helm,name=r \
                        --context c";
        assert_eq!(uninstall.as_deref(), Some(expected));
        let uninstall = with_context("c", || releases(false).uninstall("r"));
        assert_eq!(uninstall.as_deref(), Some("helm uninstall r -n x --kube-context c"));
    }

    #[test]
    fn release_whose_objects_are_deleted_is_named_where_they_name_it() {
        let release = |name: &str, elsewhere| Release {
            name: name.to_owned(),
            namespace: "ops".to_owned(),
            secrets: vec!["s".to_owned()],
            elsewhere,
        };
        let helm = || Tool::Helm { release: Some("brupop".to_owned()), namespace: "ops".to_owned() };
        let flux = |kind| Tool::Flux { kind, name: "x".to_owned(), namespace: "flux-system".to_owned() };
        let recorded = || vec![release("brupop", false), release("other", true)];
        let (uninstall, list) = ("helm uninstall brupop -n ops", "(helm list -n ops)");
        let delete = "kubectl delete helmrelease x -n flux-system";
        for (sentence, found, named_unread, tools, expected) in [
            ("recorded", recorded(), false, vec![helm()], vec![uninstall]),
            ("recorded in one namespace, another one is unread", recorded(), true, vec![helm()], vec![uninstall]),
            ("forgotten", vec![], false, vec![helm()], vec![]),
            ("Secrets may not be listed", vec![], true, vec![helm()], vec![list]),
            ("kept by Flux", recorded(), false, vec![flux("helmrelease"), helm()], vec![delete, uninstall]),
            ("a Kustomization, which has no release", vec![], false, vec![flux("kustomization")], vec![]),
        ] {
            let left = Releases { found, named_unread, ..Releases::default() }.left(&tools);
            assert_eq!(left.len(), expected.len(), "{sentence}: {left:?}");
            for (left, expected) in left.iter().zip(expected) {
                assert!(left.contains(expected), "{sentence}: {left}");
            }
        }
    }

    #[test]
    fn release_of_this_operator_is_not_taken_for_the_earlier_one_of_the_same_name() {
        for (sentence, namespace, elsewhere, found) in [
            ("this operator's", names::SYSTEM_NAMESPACE, true, false),
            ("another one", "old", true, true),
            ("in this one's namespace, which an earlier object names", names::SYSTEM_NAMESPACE, false, true),
        ] {
            let mut releases = Releases::default();
            releases.add_record("brupop", namespace.to_owned(), "s".to_owned(), elsewhere);
            assert_eq!(releases.may_have("brupop"), found, "{sentence}");
        }
    }
}
