//! Agents, hosts, and the faults of all parts.

use super::objects::*;
use super::*;
use crate::hold::Hold;

impl World {
    /// Runs one step of one agent, with its reports in the real order but without their cost.
    pub(super) fn agent(&mut self, name: &str) {
        let (now, releases) = (self.now, self.releases.clone());
        let (stalls, slow) = (self.rng.random_bool(0.4), self.rng.random_bool(0.5));
        let queued = if self.rng.random_bool(0.2) { self.rng.random_range(1..=90) } else { 0 };
        let node = self.view.nodes.get_mut(name).unwrap();
        let host = self.hosts.get_mut(name).unwrap();
        if host.going_down.is_some() && !host.restarted {
            if !slow && !host.lingers && host.going_down <= Some(now) {
                self.goes_down(name);
            }
            return;
        }
        let fresh = host.asked.is_some_and(|at| now.duration_since(at).as_secs() < 30);
        if host.cleared {
            if fresh && stalls {
                return;
            }
            host.cleared = false;
            if fresh {
                host.going_down = Some(now + SignedDuration::from_secs(queued));
                host.lingers = queued > 60;
                return;
            }
        }
        let shadow = node.shadow.as_mut().unwrap();
        let spec = &shadow.spec;
        let agent: &mut AgentReport = &mut shadow.status.agent;
        let boot = node.facts.boot_id.clone();
        let same_boot = spec.boot_id.as_deref() == Some(boot.as_str());
        let failed = agent.failure.as_ref().is_some_and(|f| f.attempt == spec.attempt);
        let runs = host.runs.clone().unwrap();
        let before = agent.current_version.clone();
        let lock = spec.host.as_ref().and_then(|host| host.version_lock.clone());
        let lets_in = |version: &Version| lock.as_ref().is_none_or(|lock| *lock == version.to_string());
        agent.boot_id = Some(boot.clone());
        agent.current_version = Some(runs.clone());
        agent.variant = Some("aws-k8s-1.37".into());
        agent.arch = Some("x86_64".into());
        agent.updates = Some(OfferedUpdates {
            chosen_version: releases.iter().find(|version| **version > runs && lets_in(version)).cloned(),
            available_versions: releases.clone(),
            ..OfferedUpdates::default()
        });
        agent.observed_generation = Some(shadow.generation);
        let fail = |agent: &mut AgentReport, reason| {
            let (attempt, step, message) = (spec.attempt, spec.state, String::new());
            agent.failure = Some(Failure { attempt, step, reason, message, time: now });
            agent.state = Some(HostState::Idle);
        };
        match spec.state {
            HostState::Idle | HostState::Unknown => {
                host.armed = false;
                agent.armed = None;
                agent.state = Some(HostState::Idle);
            }
            _ if failed => {}
            HostState::StagedUpdate => {
                if host.next_stage_fails {
                    host.next_stage_fails = false;
                    fail(agent, FailureReason::PrepareFailed);
                } else if host.staged != spec.version && agent.updates.as_ref().unwrap().chosen_version != spec.version
                {
                    fail(agent, FailureReason::VersionNotOffered);
                } else {
                    host.staged.clone_from(&spec.version);
                    agent.state = Some(HostState::StagedUpdate);
                }
            }
            HostState::RebootedIntoUpdate if !same_boot => {
                let activated =
                    agent.armed.as_ref().is_some_and(|a| a.attempt == spec.attempt && a.phase == ArmedPhase::Activated);
                if Some(&runs) == spec.version.as_ref() {
                    agent.state = Some(HostState::RebootedIntoUpdate);
                } else if activated && before.as_ref() == Some(&runs) {
                    fail(agent, FailureReason::BootFellBack);
                } else {
                    fail(agent, FailureReason::RebootedByOther);
                }
                agent.armed = None;
            }
            HostState::RebootedIntoUpdate if host.staged != spec.version => fail(agent, FailureReason::NotStaged),
            HostState::RebootedIntoUpdate => {
                let armed = agent.armed.clone().filter(|a| a.attempt == spec.attempt && a.boot_id == boot);
                let answered =
                    armed.as_ref().is_some_and(|a| fresh && spec.permit.as_ref().is_some_and(|g| g.nonce == a.nonce));
                match armed {
                    Some(armed) if answered && armed.phase == ArmedPhase::Arming => {
                        host.armed = true;
                        agent.armed = Some(Armed { phase: ArmedPhase::Activated, ..armed });
                    }
                    Some(_) if answered => host.cleared = true,
                    _ if fresh => {}
                    _ => {
                        host.nonces += 1;
                        host.asked = Some(now);
                        let nonce = format!("{boot}-{}", host.nonces);
                        let (attempt, version) = (spec.attempt, spec.version.clone().unwrap());
                        agent.armed = Some(Armed { attempt, boot_id: boot, version, phase: ArmedPhase::Arming, nonce });
                    }
                }
            }
        }
    }

    /// Carries out the reboot that the agent requested: never of a released node, never over pods that had to leave.
    pub(super) fn goes_down(&mut self, name: &str) {
        let seed = self.seed;
        let node = &self.view.nodes[name];
        let drain = node.shadow.as_ref().and_then(|s| s.status.controller.drain.clone());
        let pods = node.pods.clone().unwrap_or_default();
        let left = drain::sort(&pods, Rules::default(), drain.as_ref());
        assert!(node.facts.claimed(), "seed {seed}: {name} reboots although it was released");
        assert!(left.evictable.is_empty() && left.refused.is_empty(), "seed {seed}: {name} reboots with pods");
        self.reboot(name);
    }

    pub(super) fn reboot(&mut self, name: &str) {
        let node = self.view.nodes.get_mut(name).unwrap();
        let host = self.hosts.get_mut(name).unwrap();
        host.boots += 1;
        host.slow_until = Some(self.now + SLOW);
        node.facts.boot_id = format!("boot-{}", host.boots);
        if host.armed && !host.next_boot_fails {
            host.runs = host.staged.take();
        }
        host.next_boot_fails &= !host.armed;
        (host.armed, host.staged, host.asked) = (false, None, None);
        (host.cleared, host.going_down, host.restarted, host.lingers) = (false, None, false, false);
        node.facts.os_image = format!("Bottlerocket OS {} (aws-k8s-1.37)", host.runs.as_ref().unwrap());
    }

    /// Removes the last pod of the earlier operator, if there is one.
    pub(super) fn earlier_operator_leaves(&mut self) {
        if !self.view.earlier_pods.is_empty() {
            self.view.earlier_pods.clear();
            self.view.earlier_seen = Some(self.clock());
        }
    }

    /// Injects a fault.
    pub(super) fn trouble(&mut self) {
        let name = self.some_node();
        let kind = self.rng.random_range(0..23);
        if !self.view.earlier_pods.is_empty() && self.rng.random_bool(0.4) {
            self.earlier_operator_leaves();
        }
        if matches!(kind, 4 | 12 | 21) {
            self.changed();
        }
        if matches!(kind, 5 | 6) {
            self.late = self.sent.take().or(self.late.take());
            self.view.retracted = crate::plan::not_begun(&self.view);
        }
        // The answer to the write of the operator's status is lost; the write may still arrive.
        if kind == 20 {
            self.late = self.sent.take().or(self.late.take());
        }
        if kind == 21 {
            let operator = self.view.operator.as_mut().unwrap();
            operator.uid.push('+');
            (operator.status, operator.resume) = (BottlerocketUpdateOperatorStatus::default(), None);
            self.created_again = true;
            self.lost_slot = self.names().into_iter().collect();
        }
        if kind == 17 {
            self.releases = vec![NEWER, NEW, OLD];
        }
        if kind == 18 && self.releases.contains(&NEWER) {
            self.releases = vec![NEWER, OLD];
        }
        let ahead = self.rng.random_range(-1..=1) * 10;
        let now = self.now;
        let request = Some(self.now.to_string());
        let node = self.view.nodes.get_mut(&name).unwrap();
        let host = self.hosts.get_mut(&name).unwrap();
        match kind {
            0 => self.reboot(&name),
            1 => host.next_stage_fails = true,
            2 => host.next_boot_fails = true,
            3 => {
                node.facts.hold = if node.facts.held() { None } else { Some(Hold::default()) };
                self.held.insert(name);
            }
            4 => {
                let operator = self.view.operator.as_mut().unwrap();
                operator.spec.enabled = Some(operator.spec.enabled == Some(false));
                self.policy = Policy::from_spec(&operator.spec).unwrap();
            }
            5 | 6 => {
                // The controller crashed: its memory is lost.
                self.view.leader_since = self.clock();
                self.view.earlier_seen = None;
                self.standings = Standings::default();
                self.fall_behind();
                for node in self.view.nodes.values_mut() {
                    node.blocked.clear();
                    node.in_flight.clear();
                    node.refused = None;
                    node.lease = None;
                }
            }
            7 => node.facts.ready = !node.facts.ready,
            8 if !node.facts.unschedulable => {
                host.pods_made += 1;
                let pod = pod(&name, host.pods_made);
                node.pods.as_mut().unwrap().push(pod);
            }
            9 => {
                host.person_cordoned = !host.person_cordoned;
                node.facts.unschedulable = node.facts.claimed() || host.person_cordoned;
            }
            10 => {
                node.facts.labelled = !node.facts.labelled;
            }
            11 => {
                host.restarted = host.going_down.is_some();
                (host.asked, host.cleared) = (None, false);
            }
            12 => self.view.operator.as_mut().unwrap().resume = request,
            13 => node.shadow.as_mut().unwrap().retry = request,
            14 => node.shadow.as_mut().unwrap().release = request,
            22 => self.view.earlier_pods = vec!["old/agent".into()],
            15 => self.ahead = SignedDuration::from_mins(ahead),
            // A client edits the status of a shadow by hand.
            16 if node.step() == Some(Step::Releasing) => {
                node.shadow.as_mut().unwrap().status.controller.progress = None;
            }
            // Another client writes an attempt into the status of a shadow that has none.
            19 if node.progress().is_none() && !node.facts.claimed() => {
                let steps =
                    [Step::LeavingLoadBalancer, Step::Draining, Step::Rebooting, Step::Returning, Step::Verifying];
                let step = steps[usize::try_from(now.as_second()).unwrap() % steps.len()];
                let shadow = node.shadow.as_mut().unwrap();
                let attempt = shadow.spec.attempt;
                let forged = crate::fixtures::progress(step, 0);
                shadow.status.controller.progress = Some(models::shadow::Progress {
                    attempt,
                    boot_id: node.facts.boot_id.clone(),
                    since: now,
                    started: now,
                    ..forged
                });
                self.forged.insert(name);
            }
            _ => {}
        }
    }
}
