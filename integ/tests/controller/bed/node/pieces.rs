//! Hosts of long runs: those that go, and logs that are judged in pieces.

use integ::oracle::{HostFact, HostLog};

use super::Fleet;

impl Fleet {
    /// Removes a host whose Node is gone. Its log stays until it is judged.
    pub(crate) fn remove(&self, node: &str) {
        self.change(|state| {
            if let Some(scripted) = state.nodes.remove(node) {
                state.removed.push(HostLog { node: node.to_owned(), events: scripted.events });
            }
        });
    }

    /// Returns whether a host is up, and does not shut down.
    pub(crate) fn is_up(&self, node: &str) -> bool {
        self.lock().nodes.get(node).is_some_and(|scripted| scripted.up && !scripted.going_down)
    }

    /// Returns the logs, and begins others with the present boots of the hosts, none of which is armed.
    pub(crate) fn take_logs(&self) -> Vec<HostLog> {
        let logs = self.logs();
        let mut state = self.lock();
        state.removed.clear();
        state.errors.clear();
        for scripted in state.nodes.values_mut() {
            scripted.events.clear();
            let boot_id = scripted.boot_id.clone();
            scripted.log(HostFact::Booted { boot_id });
        }
        logs
    }
}
