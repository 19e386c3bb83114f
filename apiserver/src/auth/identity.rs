//! Checks of a bearer against the node in the path and against the shadow. Pure.

use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::UserInfo;
use models::names::{AGENT, shadow_name};

use crate::refusal::Refusal;
use crate::shadow::Shadow;

/// Extras of a service account's token (Kubernetes 1.32 and later give all of them).
const POD_UID: &str = "authentication.kubernetes.io/pod-uid";
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
const NODE_UID: &str = "authentication.kubernetes.io/node-uid";

/// Identity of the bearer of a valid token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bearer {
    pub(crate) username: String,
    pub(crate) pod_uid: Option<String>,
    pub(crate) node_name: Option<String>,
    pub(crate) node_uid: Option<String>,
    /// Expiry of the token, as it states.
    pub(crate) expires: Option<Timestamp>,
}

impl Bearer {
    pub(crate) fn new(user: &UserInfo, expires: Option<Timestamp>) -> Self {
        // A name with two values counts as absent.
        let extra = |name: &str| match user.extra.as_ref().and_then(|extra| extra.get(name)).map(Vec::as_slice) {
            Some([value]) if !value.is_empty() => Some(value.clone()),
            _ => None,
        };
        Self {
            username: user.username.clone().unwrap_or_default(),
            pod_uid: extra(POD_UID),
            node_name: extra(NODE_NAME),
            node_uid: extra(NODE_UID),
            expires,
        }
    }
}

/// The agent of one node, as proven by its token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AgentIdentity {
    pub(crate) node_name: String,
    pub(crate) node_uid: String,
    pub(crate) pod_uid: String,
    /// Expiry of its token.
    pub(crate) expires: Option<Timestamp>,
}

impl AgentIdentity {
    /// Returns the name of this node's shadow.
    pub(crate) fn shadow_name(&self) -> String {
        shadow_name(&self.node_name)
    }
}

/// Returns the user name of the agents' service account.
pub(crate) fn agent_username(namespace: &str) -> String {
    format!("system:serviceaccount:{namespace}:{AGENT}")
}

/// Checks that a bearer is the agent of the node in the path.
pub(crate) fn check(bearer: &Bearer, agent_username: &str, node: &str) -> Result<AgentIdentity, Refusal> {
    let Bearer { username, pod_uid, node_name, node_uid, expires } = bearer;
    if username != agent_username {
        return Err(Refusal::OtherAccount);
    }
    let Some(pod_uid) = pod_uid else {
        return Err(Refusal::NoPod);
    };
    let (Some(node_name), Some(node_uid)) = (node_name, node_uid) else {
        return Err(Refusal::NoNode);
    };
    if node_name != node {
        return Err(Refusal::OtherNode);
    }
    Ok(AgentIdentity {
        node_name: node_name.clone(),
        node_uid: node_uid.clone(),
        pod_uid: pod_uid.clone(),
        expires: *expires,
    })
}

/// Checks that a shadow is this agent's.
pub(crate) fn owns(agent: &AgentIdentity, shadow: &Shadow) -> Result<(), Refusal> {
    let Some(owner) = &shadow.owner else {
        return Err(Refusal::ShadowWithoutNode);
    };
    if shadow.name != agent.shadow_name() || owner.name != agent.node_name {
        return Err(Refusal::OtherNode);
    }
    if owner.uid != agent.node_uid {
        return Err(Refusal::AgentTokenForOldNode);
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use crate::shadow::tests::shadow;

    const USERNAME: &str = "system:serviceaccount:brupop-agents:brupop-agent";

    fn bearer() -> Bearer {
        Bearer {
            username: USERNAME.into(),
            pod_uid: Some("pod-1".into()),
            node_name: Some("a".into()),
            node_uid: Some("node-1".into()),
            expires: None,
        }
    }

    pub(crate) fn agent() -> AgentIdentity {
        check(&bearer(), USERNAME, "a").unwrap()
    }

    #[test]
    fn agent_is_identified_by_account_pod_and_node() {
        assert_eq!(agent_username("brupop-agents"), USERNAME);
        let agent = agent();
        assert_eq!(
            (agent.node_name.as_str(), agent.node_uid.as_str(), agent.pod_uid.as_str()),
            ("a", "node-1", "pod-1")
        );
        assert_eq!(agent.shadow_name(), "brs-a");
    }

    #[test]
    fn any_wrong_identity_field_is_rejected() {
        type Change = fn(&mut Bearer);
        let table: &[(&str, Change, Refusal)] = &[
            ("no user name", |b| b.username.clear(), Refusal::OtherAccount),
            (
                "an account of the same name in another namespace",
                |b| b.username = "system:serviceaccount:default:brupop-agent".into(),
                Refusal::OtherAccount,
            ),
            (
                "another account of the same namespace",
                |b| b.username = "system:serviceaccount:brupop-agents:default".into(),
                Refusal::OtherAccount,
            ),
            ("one whose name begins with the agent's", |b| b.username = format!("{USERNAME}-2"), Refusal::OtherAccount),
            ("an administrator", |b| b.username = "admin".into(), Refusal::OtherAccount),
            ("no pod uid", |b| b.pod_uid = None, Refusal::NoPod),
            ("no node name", |b| b.node_name = None, Refusal::NoNode),
            ("no node uid", |b| b.node_uid = None, Refusal::NoNode),
            ("another node", |b| b.node_name = Some("b".into()), Refusal::OtherNode),
            ("the node in other letters", |b| b.node_name = Some("A".into()), Refusal::OtherNode),
            ("a node whose name begins with this one's", |b| b.node_name = Some("a.b".into()), Refusal::OtherNode),
        ];
        for (what, change, refusal) in table {
            let mut bearer = bearer();
            change(&mut bearer);
            assert_eq!(check(&bearer, USERNAME, "a"), Err(*refusal), "{what}");
        }
    }

    #[test]
    fn path_traversal_in_node_name_is_rejected() {
        for node in ["", ".", "a/../a", "a%00", "a ", "brs-a", "../a", "a\n"] {
            assert_eq!(check(&bearer(), USERNAME, node), Err(Refusal::OtherNode), "{node:?}");
        }
    }

    #[test]
    fn shadow_ownership_requires_name_owner_and_owner_uid() {
        let good = shadow("u", 1, 1, json!({}));
        assert_eq!(owns(&agent(), &good), Ok(()));

        let mut other = good.clone();
        other.name = "brs-b".into();
        assert_eq!(owns(&agent(), &other), Err(Refusal::OtherNode));

        let mut other = good.clone();
        other.owner.as_mut().unwrap().name = "b".into();
        assert_eq!(owns(&agent(), &other), Err(Refusal::OtherNode));

        let mut recreated = good.clone();
        recreated.owner.as_mut().unwrap().uid = "node-2".into();
        assert_eq!(owns(&agent(), &recreated), Err(Refusal::AgentTokenForOldNode));

        let mut orphan = good;
        orphan.owner = None;
        assert_eq!(owns(&agent(), &orphan), Err(Refusal::ShadowWithoutNode));
    }

    #[test]
    fn extra_with_several_or_empty_values_is_ignored() {
        let user = |values: &[&str]| UserInfo {
            username: Some(USERNAME.into()),
            extra: Some(BTreeMap::from([(NODE_UID.to_owned(), values.iter().map(|&v| v.to_owned()).collect())])),
            ..UserInfo::default()
        };
        assert_eq!(Bearer::new(&user(&["node-1"]), None).node_uid.as_deref(), Some("node-1"));
        assert_eq!(Bearer::new(&user(&["node-1", "node-2"]), None).node_uid, None);
        assert_eq!(Bearer::new(&user(&[""]), None).node_uid, None);
        assert_eq!(Bearer::new(&user(&[]), None).node_uid, None);
        assert_eq!(Bearer::new(&UserInfo::default(), None), Bearer::default());
    }
}
