//! Addresses that a program listens on, as they stand in a pod's spec.

use std::net::{IpAddr, SocketAddr};

/// Reads `ip:port`. An IPv6 address may stand without brackets, because `$(POD_IP):8443` in a pod's spec makes it so.
///
/// # Errors
/// If it is no IP address with a port, with what was given.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let fail = || format!("'{text}' is no IP address with a port");
    let (ip, port) = text.rsplit_once(':').ok_or_else(fail)?;
    let ip: IpAddr = ip.parse().map_err(|_| fail())?;
    let port: u16 = port.parse().map_err(|_| fail())?;
    Ok(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::address;

    #[test]
    fn listen_address_parses_ipv4_and_unbracketed_ipv6() {
        assert_eq!(address("10.0.0.7:8443").unwrap().to_string(), "10.0.0.7:8443");
        assert_eq!(address("fd00::7:8443").unwrap().to_string(), "[fd00::7]:8443");
        assert_eq!(address("[fd00::7]:8443").unwrap().to_string(), "[fd00::7]:8443");
        for text in ["", "10.0.0.7", "pod:8443", "10.0.0.7:port"] {
            assert!(address(text).unwrap_err().contains(text), "{text}");
        }
    }
}
