//! A node without a machine beside those that have one: the kubelet stand-in and the simulated host of the other tests, in the
//! same cluster and network.

use anyhow::Context as _;
use kube::Client;

use super::FIRST;
use crate::bed::{Programs, TestNode};
use crate::control_plane::ControlPlane;
use crate::host::{Host, HostOptions, Releases};
use crate::kubelet::{Addresses, Kubelet, KubeletOptions};
use crate::proxy::{ConnectProxy, Sources};

/// The running node.
pub(super) struct StandIn {
    pub(super) node: TestNode,
    pub(super) releases: Releases,
    _proxy: ConnectProxy,
}

impl StandIn {
    /// Starts the node, whose images are those of the machines: the programs of this version, and the same as a next one.
    pub(super) async fn start(name: &str, control_plane: &ControlPlane, client: &Client) -> anyhow::Result<Self> {
        let addresses = Addresses::routed()?;
        let proxy = ConnectProxy::start(client.clone(), addresses.clone(), Sources::One).await?;
        let releases = Releases::of([FIRST]);
        let root = control_plane.dir().join("h").join(name);
        let host = Host::start(HostOptions::new(name, root, FIRST, releases.clone())).await?;
        let mut options = KubeletOptions::new(
            control_plane.client_as(&format!("system:node:{name}"), &["system:nodes"])?,
            control_plane.url(),
            control_plane.ca_file(),
            control_plane.dir(),
            host.machine(),
            addresses.node(1),
        );
        let (programs, current) = (Programs::find()?, deploy::Options::default());
        let next = deploy::Options { tag: "next".into(), ..current.clone() };
        options.images = programs.images(&current).with(programs.images(&next));
        options.https_proxy = Some(proxy.url());
        let kubelet = Kubelet::start(options).await.with_context(|| format!("kubelet of {name}"))?;
        Ok(Self { node: TestNode { name: name.to_owned(), host, kubelet }, releases, _proxy: proxy })
    }
}
