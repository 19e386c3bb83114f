//! The steps of an update, by hosts, agents and the controller.

use super::*;

/// Events of hosts.
impl Scenario {
    pub(in crate::oracle) fn current_boot(&self, node: &str) -> String {
        format!("{node}-boot-{}", self.hosts[node].0)
    }

    pub(in crate::oracle) fn host(&mut self, node: &str, fact: HostFact) {
        let (at, boot_id) = (self.tick(), self.current_boot(node));
        self.hosts.get_mut(node).unwrap().1.events.push(HostEvent { at, boot_id, fact });
    }

    pub(in crate::oracle) fn boot(&mut self, node: &str) -> String {
        self.hosts.get_mut(node).unwrap().0 += 1;
        let boot_id = self.current_boot(node);
        self.host(node, HostFact::Booted { boot_id: boot_id.clone() });
        boot_id
    }

    pub(in crate::oracle) fn come_back(&mut self, node: &str) {
        let boot_id = self.boot(node);
        self.node(node, KUBELET, |node| {
            node.boot_id = boot_id;
            node.status += 1;
        });
    }

    pub(in crate::oracle) fn host_arms(&mut self, node: &str) {
        self.host_arms_version(node, NEW_VERSION);
    }

    pub(in crate::oracle) fn host_arms_version(&mut self, node: &str, armed: &str) {
        self.host(node, HostFact::ActivateAsked);
        self.host_armed_by_hand(node, armed);
    }

    pub(in crate::oracle) fn host_armed_by_hand(&mut self, node: &str, armed: &str) {
        self.host(node, HostFact::Armed { version: version(armed) });
        self.host(node, HostFact::ActivateEnded);
    }

    pub(in crate::oracle) fn host_asked_to_reboot(&mut self, node: &str) {
        self.host(node, HostFact::Shutdown { by_api: true });
    }

    pub(in crate::oracle) fn host_reboots(&mut self, node: &str) {
        self.host_asked_to_reboot(node);
        self.come_back(node);
    }

    pub(in crate::oracle) fn host_reboots_by_hand(&mut self, node: &str) {
        self.host(node, HostFact::Shutdown { by_api: false });
        self.come_back(node);
    }
}

/// Steps of an update.
impl Scenario {
    pub(in crate::oracle) fn step(&mut self, node: &str, step: Step) {
        let (since, boot_id) = (self.clock, self.current_boot(node));
        self.controller(node, |shadow| {
            let old = shadow.status.controller.progress.take();
            shadow.status.controller.progress = Some(Progress {
                step,
                since,
                attempt: shadow.spec.attempt,
                boot_id,
                version: version(NEW_VERSION),
                from: Some(version(OLD)),
                started: old.map_or(since, |old| old.started),
                soak_restarted: false,
                interrupted: None,
                verifying_since: None,
                drill: None,
                verification: false,
                rollout: None,
                permit_issued: false,
                disruptive: !matches!(step, Step::Staging | Step::Staged),
            });
        });
    }

    pub(in crate::oracle) fn stage(&mut self, node: &str) {
        let boot = self.current_boot(node);
        self.controller(node, |shadow| {
            shadow.spec.state = HostState::StagedUpdate;
            shadow.spec.version = Some(version(NEW_VERSION));
            shadow.spec.boot_id = Some(boot);
            shadow.spec.attempt += 1;
        });
        self.step(node, Step::Staging);
        self.agent(node, |agent| agent.state = Some(HostState::StagedUpdate));
    }

    pub(in crate::oracle) fn take_slot(&mut self, node: &str) {
        let (uid, since) = (self.world.nodes[node].uid.clone(), self.clock);
        self.operator(|operator| operator.status.slots.push(Slot { uid, node: node.into(), since, update: None }));
    }

    pub(in crate::oracle) fn free_slot(&mut self, node: &str) {
        self.operator(|operator| operator.status.slots.retain(|slot| slot.node != node));
    }

    pub(in crate::oracle) fn claim(&mut self, node: &str) {
        self.node(node, CONTROLLER, |node| {
            node.fields.insert(Field::Unschedulable, "true".into());
            node.owners.entry(Field::Unschedulable).or_default().insert(names::CONTROLLER_MANAGER.into());
        });
    }

    pub(in crate::oracle) fn release(&mut self, node: &str) {
        self.set_field(node, CONTROLLER, "", Field::Unschedulable, None);
    }

    pub(in crate::oracle) fn until_claimed(&mut self, node: &str) {
        self.stage(node);
        self.take_slot(node);
        self.step(node, Step::LeavingLoadBalancer);
        self.claim(node);
        self.step(node, Step::Draining);
    }

    pub(in crate::oracle) fn until_drained(&mut self, node: &str) {
        self.until_claimed(node);
        let pods: Vec<Arc<Pod>> = self.world.evictable_on(node).cloned().collect();
        let listed = pods
            .iter()
            .map(|pod| DrainedPod {
                namespace: pod.namespace.clone(),
                name: pod.name.clone(),
                uid: pod.uid.clone(),
                ..DrainedPod::default()
            })
            .collect();
        let drain = DrainStatus { pods: listed, ..DrainStatus::default() };
        self.controller(node, |shadow| shadow.status.controller.drain = Some(drain));
        for pod in pods {
            self.evict(&pod.title());
            self.pod_gone(&pod.title());
        }
    }

    pub(in crate::oracle) fn request_reboot(&mut self, node: &str) {
        self.step(node, Step::Rebooting);
        self.controller(node, |shadow| shadow.spec.state = HostState::RebootedIntoUpdate);
    }

    pub(in crate::oracle) fn until_reboot_requested(&mut self, node: &str) {
        self.until_drained(node);
        self.request_reboot(node);
    }

    pub(in crate::oracle) fn arming(&mut self, node: &str) {
        let (boot_id, nonce) = (self.current_boot(node), self.fresh("nonce"));
        let attempt = self.world.shadows[&names::shadow_name(node)].spec.attempt;
        let armed = Armed { attempt, boot_id, version: version(NEW_VERSION), phase: ArmedPhase::Arming, nonce };
        self.agent(node, |agent| agent.armed = Some(armed));
    }

    pub(in crate::oracle) fn issue_permit(&mut self, node: &str) {
        self.controller(node, |shadow| {
            let nonce = shadow.status.agent.armed.as_ref().unwrap().nonce.clone();
            shadow.spec.permit = Some(Permit { nonce, jws: String::new() });
        });
    }

    pub(in crate::oracle) fn until_permit(&mut self, node: &str) {
        self.until_reboot_requested(node);
        self.arming(node);
        self.issue_permit(node);
    }

    pub(in crate::oracle) fn activated(&mut self, node: &str) {
        self.agent(node, |agent| agent.armed.as_mut().unwrap().phase = ArmedPhase::Activated);
    }

    pub(in crate::oracle) fn withdraw(&mut self, node: &str) {
        self.controller(node, |shadow| {
            shadow.spec.state = HostState::Idle;
            shadow.spec.version = None;
            shadow.spec.boot_id = None;
            shadow.spec.permit = None;
        });
    }

    pub(in crate::oracle) fn done(&mut self, node: &str) {
        self.ended(node, UPDATED);
    }

    fn ended(&mut self, node: &str, reason: &str) {
        self.controller(node, |shadow| {
            let progress = shadow.status.controller.progress.take().unwrap();
            shadow.status.controller.record.get_or_insert_default().last = Some(AttemptResult {
                attempt: progress.attempt,
                from: progress.from,
                version: progress.version,
                reason: reason.into(),
                message: String::new(),
                started: progress.started,
                ended: progress.since,
            });
        });
    }

    pub(in crate::oracle) fn update(&mut self, node: &str) {
        self.update_ending(node, UPDATED);
    }

    /// Takes a node to the version; its attempt ends for this reason.
    pub(in crate::oracle) fn update_ending(&mut self, node: &str, reason: &str) {
        self.until_permit(node);
        self.host_arms(node);
        self.activated(node);
        self.host_reboots(node);
        let boot_id = self.current_boot(node);
        self.agent(node, |agent| {
            agent.state = Some(HostState::RebootedIntoUpdate);
            agent.boot_id = Some(boot_id);
            agent.current_version = Some(version(NEW_VERSION));
        });
        self.step(node, Step::Verifying);
        self.release(node);
        self.withdraw(node);
        self.ended(node, reason);
        self.free_slot(node);
        self.agent(node, |agent| agent.armed = None);
    }

    pub(in crate::oracle) fn version_failed(&mut self, node: &str) {
        let time = self.clock;
        self.controller(node, |shadow| {
            shadow.status.controller.record.get_or_insert_default().version_failures.push(VersionFailure {
                version: version(NEW_VERSION),
                variant: "aws-k8s-1.37".into(),
                arch: "x86_64".into(),
                reason: FailureReason::BootFellBack,
                time,
                resolved_by: None,
            });
        });
    }

    pub(in crate::oracle) fn resolve_failures(&mut self, node: &str) {
        self.controller(node, |shadow| {
            for failure in &mut shadow.status.controller.record.as_mut().unwrap().version_failures {
                failure.resolved_by = Some("resume-1".into());
            }
        });
    }
}
