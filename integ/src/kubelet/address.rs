//! Addresses of nodes and pods. The API server refuses loopback addresses as endpoints, and every process of the test
//! cluster has to use loopback: so a pod is `10.R.n.p` for Kubernetes, and its process listens on `127.R.n.p`. Beside virtual
//! machines there is a network, which routes `10.200.0.0/16` to this machine: there a process has the pod's address itself.

use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};

/// The port whose listener marks a second octet as taken: above the range that Linux assigns by itself.
const CLAIM_PORT: u16 = 65_000;

/// The second octet that the network of virtual machines routes to this machine.
const ROUTED: u8 = 200;

/// The addresses of one test cluster: a second octet that no other test cluster on this machine uses, held until the
/// last clone is dropped.
#[derive(Clone, Debug)]
pub struct Addresses {
    bed: u8,
    _claim: Arc<TcpListener>,
}

impl Addresses {
    /// Reserves a free second octet.
    pub fn claim() -> Result<Self> {
        let first: u8 = rand::random_range(1..=254);
        for step in 0..254_u16 {
            let bed = (u16::from(first - 1) + step) % 254 + 1;
            let Ok(bed) = u8::try_from(bed) else { continue };
            if let (false, Ok(addresses)) = (bed == ROUTED, Self::of(bed)) {
                return Ok(addresses);
            }
        }
        bail!("all of 127.1.0.0/16 to 127.254.0.0/16 are taken: 253 test beds run on this machine")
    }

    /// The addresses that virtual machines reach, inside the network that `integ/vm/network.sh` makes.
    pub fn routed() -> Result<Self> {
        Self::of(ROUTED)
    }

    fn of(bed: u8) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::new(127, bed, 255, 254), CLAIM_PORT))
            .with_context(|| format!("127.{bed}.0.0/16 is taken"))?;
        Ok(Self { bed, _claim: Arc::new(listener) })
    }

    /// The second octet.
    pub fn bed(&self) -> u8 {
        self.bed
    }

    /// The addresses of node number `node` (0 to 254).
    pub fn node(&self, node: u8) -> NodeAddress {
        NodeAddress { bed: self.bed, node }
    }

    /// The address of the process that Kubernetes knows under `address`, if it can be reached.
    pub fn process_ip(&self, address: IpAddr) -> Option<IpAddr> {
        match address {
            IpAddr::V4(ip) if ip.octets()[0] == 10 && ip.octets()[1] == self.bed => Some(IpAddr::V4(to_process(ip))),
            // A pod on a virtual machine.
            _ => (self.bed == ROUTED).then_some(address),
        }
    }
}

/// The addresses of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeAddress {
    /// The second octet of the test cluster.
    pub bed: u8,
    /// The third octet of the node.
    pub node: u8,
}

impl NodeAddress {
    /// The node's address for Kubernetes.
    pub fn host_ip(self) -> Ipv4Addr {
        Ipv4Addr::new(10, self.bed, self.node, 1)
    }

    /// The address of the node's pod number `pod`.
    pub fn pod_ip(self, pod: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, self.bed, self.node, pod)
    }
}

/// `127.b.c.d` for `10.b.c.d`, unless that is routed to this machine.
pub fn to_process(ip: Ipv4Addr) -> Ipv4Addr {
    match ip.octets() {
        [_, ROUTED, ..] => ip,
        [_, b, c, d] => Ipv4Addr::new(127, b, c, d),
    }
}

/// The pod addresses of one node, assigned in turn, so that a released address is reused last: a client with an old
/// address reaches no other pod.
#[derive(Debug)]
pub(crate) struct IpPool {
    node: NodeAddress,
    used: [bool; 256],
    next: u8,
}

impl IpPool {
    pub(crate) fn new(node: NodeAddress) -> Self {
        Self { node, used: [false; 256], next: 2 }
    }

    pub(crate) fn take(&mut self) -> Option<Ipv4Addr> {
        for _ in 2..=254_u8 {
            let candidate = self.next;
            self.next = if candidate >= 254 { 2 } else { candidate + 1 };
            if let Some(slot @ false) = self.used.get_mut(usize::from(candidate)) {
                *slot = true;
                return Some(self.node.pod_ip(candidate));
            }
        }
        None
    }

    pub(crate) fn release(&mut self, ip: Ipv4Addr) {
        if let Some(slot) = self.used.get_mut(usize::from(ip.octets()[3])) {
            *slot = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_beds_claim_different_address_octets() {
        let (a, b) = (Addresses::claim().unwrap(), Addresses::claim().unwrap());
        assert_ne!(a.bed(), b.bed());
    }

    #[test]
    fn only_pod_addresses_map_to_loopback_addresses() {
        let bed = Addresses::claim().unwrap();
        let pod = bed.node(3).pod_ip(7);
        assert_eq!(bed.process_ip(pod.into()), Some(Ipv4Addr::new(127, bed.bed(), 3, 7).into()));
        assert_eq!(bed.process_ip(Ipv4Addr::new(192, 168, 1, 1).into()), None);
    }

    #[test]
    fn beside_virtual_machines_processes_have_the_addresses_of_their_pods() {
        let bed = Addresses { bed: ROUTED, _claim: Arc::new(TcpListener::bind("127.0.0.1:0").unwrap()) };
        for pod in [bed.node(3).pod_ip(7), Ipv4Addr::new(10, 244, 1, 9)] {
            assert_eq!(bed.process_ip(pod.into()), Some(pod.into()));
        }
    }

    #[test]
    fn released_address_is_reused_last() {
        let mut pool = IpPool::new(NodeAddress { bed: 9, node: 1 });
        let first = pool.take().unwrap();
        pool.release(first);
        let others: Vec<_> = (0..252).map(|_| pool.take().unwrap()).collect();
        assert!(!others.contains(&first));
        assert_eq!(pool.take(), Some(first));
        assert_eq!(pool.take(), None);
    }
}
