//! A simulated host and its agent.

use jiff::Timestamp;
use models::permit::PERMIT_LIFETIME;
use models::reason::FailureReason;
use models::shadow::{AgentReport, Armed, ArmedPhase, Failure, HostState, OfferedUpdates, Rehearsal};
use semver::Version;

use crate::view::{NodeView, ShadowFacts};

/// A host: its two partition sets, and what its agent has requested.
#[derive(Clone, Debug, PartialEq)]
pub struct Host {
    pub runs: Version,
    pub staged: Option<Version>,
    /// True if the next boot is from the other partition set.
    pub armed: bool,
    /// Number of boots so far.
    pub boots: u32,
    /// Number of permit requests so far.
    pub nonces: u32,
    /// Time of the last permit request.
    pub asked: Option<Timestamp>,
    /// True if the agent has its permit for the reboot, and requests that from the host whatever happens to the desired
    /// state meanwhile.
    pub cleared: bool,
    /// True while its wave has not come: it takes nothing by itself, but what its version lock names.
    pub waits_for_wave: bool,
}

impl Host {
    /// Returns a host that runs this version.
    pub fn new(runs: Version) -> Self {
        let (staged, asked) = (None, None);
        Self { runs, staged, armed: false, boots: 0, nonces: 0, asked, cleared: false, waits_for_wave: false }
    }

    /// Returns the host of a node as its agent reports it; `None` if it has not reported.
    pub fn of(node: &NodeView) -> Option<Self> {
        let agent = &node.shadow.as_ref()?.status.agent;
        let spec = &node.shadow.as_ref()?.spec;
        let staged = spec.version.clone().filter(|_| agent.state == Some(HostState::StagedUpdate));
        let armed = agent.armed.as_ref().is_some_and(|armed| armed.phase == ArmedPhase::Activated);
        Some(Self { staged, armed, ..Self::new(agent.current_version.clone()?) })
    }

    /// Returns whether the last permit request may still be answered.
    pub fn request_is_fresh(&self, now: Timestamp) -> bool {
        self.asked.is_some_and(|at| now < models::time::after(at, PERMIT_LIFETIME))
    }

    /// Carries out one step of the agent on a host that is up: it does what the desired state requires, and reports.
    ///
    /// `offered` are the versions that the host may have, newest first; `downloads` is false if a download fails.
    pub fn agent_step(&mut self, node: &mut NodeView, offered: &[Version], downloads: bool, now: Timestamp) {
        let boot = node.facts.boot_id.clone();
        let Some(shadow) = &mut node.shadow else { return };
        let fresh = self.request_is_fresh(now);
        let spec = &shadow.spec;
        let agent: &mut AgentReport = &mut shadow.status.agent;
        let same_boot = spec.boot_id.as_deref() == Some(boot.as_str());
        let failed = agent.failure.as_ref().is_some_and(|f| f.attempt == spec.attempt);
        let before = agent.current_version.clone();
        let lock = spec.host.as_ref().and_then(|host| host.version_lock.clone());
        let chosen = match &lock {
            Some(lock) => offered.iter().find(|version| **version != self.runs && *lock == version.to_string()),
            None => offered.iter().find(|version| **version > self.runs).filter(|_| !self.waits_for_wave),
        };
        agent.boot_id = Some(boot.clone());
        agent.current_version = Some(self.runs.clone());
        let updates = agent.updates.get_or_insert_with(OfferedUpdates::default);
        updates.chosen_version = chosen.cloned();
        if updates.available_versions != offered {
            updates.available_versions = offered.to_vec();
        }
        agent.observed_generation = Some(shadow.generation);
        let fail = |agent: &mut AgentReport, reason| {
            let (attempt, step, message) = (spec.attempt, spec.state, String::new());
            agent.failure = Some(Failure { attempt, step, reason, message, time: now });
            agent.state = Some(HostState::Idle);
        };
        match spec.state {
            HostState::Idle | HostState::Unknown => {
                self.armed = false;
                (agent.armed, agent.rehearsal) = (None, None);
                agent.state = Some(HostState::Idle);
                // A request is one of the attempt that ended.
                self.asked = None;
            }
            _ if failed => {}
            // Another client has installed it.
            HostState::StagedUpdate if Some(&self.runs) == spec.version.as_ref() => {
                agent.state = Some(HostState::RebootedIntoUpdate);
            }
            HostState::StagedUpdate => {
                let chosen = agent.updates.as_ref().and_then(|updates| updates.chosen_version.as_ref());
                if !downloads {
                    fail(agent, FailureReason::PrepareFailed);
                } else if self.staged != spec.version && chosen != spec.version.as_ref() {
                    fail(agent, FailureReason::VersionNotOffered);
                } else {
                    self.staged.clone_from(&spec.version);
                    agent.state = Some(HostState::StagedUpdate);
                }
            }
            HostState::RehearsedUpdate if !same_boot => fail(agent, FailureReason::RebootedByOther),
            HostState::RehearsedUpdate => self.rehearse(shadow, fresh, now),
            HostState::RebootedIntoUpdate if !same_boot => {
                let activated =
                    agent.armed.as_ref().is_some_and(|a| a.attempt == spec.attempt && a.phase == ArmedPhase::Activated);
                if Some(&self.runs) == spec.version.as_ref() {
                    agent.state = Some(HostState::RebootedIntoUpdate);
                } else if before.is_some_and(|before| before != self.runs) {
                    fail(agent, FailureReason::BootedOtherVersion);
                } else if activated {
                    fail(agent, FailureReason::BootFellBack);
                } else {
                    fail(agent, FailureReason::RebootedByOther);
                }
                agent.armed = None;
            }
            HostState::RebootedIntoUpdate if self.staged != spec.version => fail(agent, FailureReason::NotStaged),
            HostState::RebootedIntoUpdate => self.arm(shadow, boot, fresh, now),
        }
    }

    /// Requests the permit of an update, and activates the image and reboots with it.
    fn arm(&mut self, shadow: &mut ShadowFacts, boot_id: String, fresh: bool, now: Timestamp) {
        let (spec, agent) = (&shadow.spec, &mut shadow.status.agent);
        let armed = agent.armed.clone().filter(|own| own.attempt == spec.attempt && own.boot_id == boot_id);
        let is_for = |own: &Armed| spec.permit.as_ref().is_some_and(|permit| permit.nonce == own.nonce);
        match armed {
            Some(own) if fresh && is_for(&own) && own.phase == ArmedPhase::Arming => {
                self.armed = true;
                agent.armed = Some(Armed { phase: ArmedPhase::Activated, ..own });
            }
            Some(own) if fresh && is_for(&own) => self.cleared = true,
            _ if fresh => {}
            _ => {
                let Some(version) = spec.version.clone() else { return };
                self.nonces += 1;
                self.asked = Some(now);
                let (attempt, nonce) = (spec.attempt, format!("{boot_id}-{}", self.nonces));
                agent.armed = Some(Armed { attempt, boot_id, version, phase: ArmedPhase::Arming, nonce });
            }
        }
    }

    /// Requests the permit of a drill, and reports that it was verified.
    fn rehearse(&mut self, shadow: &mut ShadowFacts, fresh: bool, now: Timestamp) {
        let (spec, agent) = (&shadow.spec, &mut shadow.status.agent);
        let (Some(version), Some(boot_id)) = (spec.version.clone(), spec.boot_id.clone()) else { return };
        let own = agent.rehearsal.take().filter(|own| own.attempt == spec.attempt && own.boot_id == boot_id);
        let permit = spec.permit.as_ref().map(|permit| permit.nonce.as_str());
        let answered = own.as_ref().is_some_and(|own| own.verified || (fresh && permit == Some(own.nonce.as_str())));
        agent.rehearsal = match own {
            Some(own) if answered => {
                agent.state = Some(HostState::RehearsedUpdate);
                Some(Rehearsal { verified: true, ..own })
            }
            Some(own) if fresh => Some(own),
            _ => {
                self.nonces += 1;
                self.asked = Some(now);
                let nonce = format!("{boot_id}-{}", self.nonces);
                Some(Rehearsal { attempt: spec.attempt, boot_id, version, nonce, verified: false })
            }
        };
    }

    /// Boots the host: into the version that it was armed with unless that does not boot.
    pub fn boot(&mut self, node: &mut NodeView, boots: bool) {
        self.boots += 1;
        node.facts.boot_id = format!("boot-{}", self.boots);
        if self.armed
            && boots
            && let Some(staged) = self.staged.take()
        {
            let before = self.runs.to_string();
            self.runs = staged;
            node.facts.os_image = node.facts.os_image.replacen(&before, &self.runs.to_string(), 1);
        }
        (self.armed, self.staged, self.asked, self.cleared) = (false, None, None, false);
    }
}
