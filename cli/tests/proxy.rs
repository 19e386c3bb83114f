//! The way of the plugin to the API server: directly, or through a proxy.

use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::thread;

/// Returns the address of a server that sends its name at each connection, and closes it.
fn server(name: &'static str, reached: Sender<&'static str>) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for connection in listener.incoming() {
            // The test may be over.
            let _ = reached.send(name);
            drop(connection);
        }
    });
    Ok(address)
}

#[test]
fn proxy_of_the_environment_is_put_aside_for_a_server_that_is_exempt() {
    let (sender, reached) = channel();
    let [api, proxy] = ["API server", "proxy"].map(|name| server(name, sender.clone()).unwrap());
    let proxy = format!("http://{proxy}");
    let path = format!("{}/proxy-kubeconfig", env!("CARGO_TARGET_TMPDIR"));
    let (none, of_kubeconfig) = (String::new(), format!("proxy-url: '{proxy}'"));
    // The local host is exempt in any case.
    for (sentence, of_kubeconfig, variable, value, expected, error) in [
        ("none", &none, "HTTPS_PROXY", "", Some("API server"), "cannot be reached"),
        ("of the environment", &none, "HTTPS_PROXY", proxy.as_str(), Some("API server"), "cannot be reached"),
        ("in lower case", &none, "https_proxy", proxy.as_str(), Some("API server"), "cannot be reached"),
        ("of the kubeconfig", &of_kubeconfig, "NO_PROXY", "*", Some("proxy"), "cannot be reached"),
        ("with NO_PROXY that kube refuses", &of_kubeconfig, "NO_PROXY", "a,,b", None, "NO_PROXY cannot be used"),
    ] {
        let kubeconfig = format!(
            "
current-context: c
contexts: [{{name: c, context: {{cluster: c, user: u}}}}]
users: [{{name: u, user: {{}}}}]
clusters:
- name: c
  cluster:
    server: https://{api}
    insecure-skip-tls-verify: true
    {of_kubeconfig}
"
        );
        std::fs::write(&path, kubeconfig).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-brupop"));
        for name in ["HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"] {
            command.env_remove(name);
        }
        command.env(variable, value).args(["status", "--kubeconfig", path.as_str()]).stdin(Stdio::null());
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && text.contains(error), "{sentence}: {output:?}");
        // A name is sent before its connection is closed.
        let reached: Vec<&str> = reached.try_iter().collect();
        assert!(reached.iter().all(|name| Some(*name) == expected), "{sentence}: {reached:?}");
        assert_eq!(reached.first().copied(), expected, "{sentence}");
    }
}
