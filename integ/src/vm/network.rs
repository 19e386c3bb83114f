//! Addresses in the network that `integ/vm/network.sh` makes: every guest and each of its pods has one that the control
//! plane, other guests and the tests reach.

use std::net::Ipv4Addr;

use anyhow::{Context as _, ensure};

/// This machine, as guests see it: their router, their DNS and the API server's address.
pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);

/// Address of the guest with this number.
pub(super) const fn address(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 99, 0, 10 + number)
}

/// Addresses of the pods of the guest with this number.
pub(super) fn pods(number: u8) -> String {
    format!("10.244.{number}.0/24")
}

/// Fails unless there is a network for so many guests.
pub(super) fn check(guests: u8) -> anyhow::Result<()> {
    let links = std::fs::read_to_string("/proc/self/net/dev").context("/proc is not mounted")?;
    let tap = format!("tap{guests}:");
    ensure!(
        links.lines().any(|line| line.trim_start().starts_with(&tap)),
        "there is no network for {guests} virtual machines: run it by make test-vm"
    );
    Ok(())
}
