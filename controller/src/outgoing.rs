//! Clients of servers that users name: Prometheus, and receivers of notices.

use reqwest::{Certificate, Client, redirect};

/// Returns the certificates of a file in PEM; `None` if it holds none.
pub(crate) fn certificates(pem: &[u8]) -> Option<Vec<Certificate>> {
    Certificate::from_pem_bundle(pem).ok().filter(|all| !all.is_empty())
}

/// Returns a client. Certificates are verified with these authorities alone, or with those of the system if none are
/// given.
pub(crate) fn client(tls: bool, authorities: Option<Vec<Certificate>>) -> reqwest::Result<Client> {
    let builder = Client::builder()
        .redirect(redirect::Policy::none())
        // Requests go to the address that users name, whatever the environment sets.
        .no_proxy()
        .referer(false)
        .user_agent(concat!("brupop-controller/", env!("CARGO_PKG_VERSION")));
    // Without authorities of its own, a client with TLS cannot be made in an image that holds none.
    match authorities.or_else(|| (!tls).then(Vec::new)) {
        Some(only) => builder.tls_certs_only(only).build(),
        None => builder.build(),
    }
}
