//! Agents, hosts, and the faults of all parts.

use super::objects::*;
use super::*;
use crate::hold::Hold;

impl World {
    /// Runs one step of one agent, with its reports in the real order but without their cost.
    pub(super) fn agent(&mut self, name: &str) {
        self.hooks(name);
        let (now, releases) = (self.now, self.releases.clone());
        let (stalls, slow) = (self.rng.random_bool(0.4), self.rng.random_bool(0.5));
        let queued = if self.rng.random_bool(0.2) { self.rng.random_range(1..=90) } else { 0 };
        let node = self.view.nodes.get_mut(name).unwrap();
        let host = self.hosts.get_mut(name).unwrap();
        if host.going_down.is_some() && !host.restarted {
            if !slow && !host.lingers && !host.graceful && host.going_down <= Some(now) {
                self.goes_down(name);
            }
            return;
        }
        let fresh = host.host.request_is_fresh(now);
        if host.host.cleared {
            if fresh && stalls {
                return;
            }
            host.host.cleared = false;
            if fresh {
                host.going_down = Some(now + SignedDuration::from_secs(queued));
                host.lingers = queued > 60;
                return;
            }
        }
        let downloads = !std::mem::take(&mut host.next_stage_fails);
        let stages = node.shadow.as_ref().is_some_and(|shadow| shadow.spec.state == HostState::StagedUpdate);
        host.host.agent_step(node, &releases, downloads, now);
        // The failure is for the next download.
        host.next_stage_fails = !downloads && !stages;
    }

    /// Runs one step of the controllers of hooks: `slow` answers after a while and refuses some of them, most of
    /// those after an update, `deaf` never answers. Both take back what they did once the request is gone.
    pub(super) fn hooks(&mut self, name: &str) {
        let facts = &mut self.view.nodes.get_mut(name).unwrap().facts;
        let Some(request) = facts.hook_request.clone() else { return facts.hook_answers.clear() };
        if self.rng.random_bool(0.3) {
            let refuses = self.rng.random_bool(if request.starts_with("BeforeDrain") { 0.05 } else { 0.5 });
            let refused = if refuses { " Refused: not now" } else { "" };
            facts.hook_answers.insert("slow".into(), format!("{request}{refused}"));
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
        host.slow_until = Some(self.now + SLOW);
        let (armed, boots) = (host.host.armed, !host.next_boot_fails);
        host.host.boot(node, boots);
        host.next_boot_fails &= !armed;
        if host.shuts_pods_down(self.now) {
            set_ready(&mut node.facts, true, self.now);
        }
        (host.going_down, host.restarted, host.lingers, host.graceful) = (None, false, false, false);
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
        let kind = self.rng.random_range(0..26);
        if !self.view.earlier_pods.is_empty() && self.rng.random_bool(0.4) {
            self.earlier_operator_leaves();
        }
        if matches!(kind, 4 | 12 | 21) {
            self.changed();
        }
        if matches!(kind, 5 | 6) {
            self.late = self.sent.take().or(self.late.take());
            self.view.retracted = not_begun(&self.view);
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
                operator.spec.hooks.pop();
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
            7 if !host.shuts_pods_down(now) => {
                let ready = !node.facts.ready;
                set_ready(&mut node.facts, ready, now);
            }
            8 if !node.facts.unschedulable => {
                host.pods_made += 1;
                let pod = pod(&name, host.pods_made);
                node.pods.as_mut().unwrap().push(pod);
            }
            9 => {
                host.person_cordoned = !host.person_cordoned;
                node.facts.cordoned_since = host.person_cordoned.then_some(now);
                node.facts.unschedulable = node.facts.claimed() || host.person_cordoned;
            }
            10 => {
                node.facts.labelled = !node.facts.labelled;
            }
            11 => {
                host.restarted = host.going_down.is_some();
                (host.host.asked, host.host.cleared) = (None, false);
            }
            12 => self.view.operator.as_mut().unwrap().resume = request,
            13 => node.shadow.as_mut().unwrap().retry = request,
            14 => node.shadow.as_mut().unwrap().release = request,
            23 => node.shadow.as_mut().unwrap().drill = request.map(|request| format!("{request} evict")),
            24 => node.shadow.as_mut().unwrap().drill = request,
            25 => host.graceful |= host.going_down.is_none(),
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
