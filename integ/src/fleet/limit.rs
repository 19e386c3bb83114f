//! The shortest time in which hosts and budgets let a rollout end.

use std::fmt;
use std::time::Duration;

/// The limit of a rollout's makespan, with its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Makespan {
    /// Download of the first node. All others download while the ones before them are out of service.
    pub download: Duration,
    /// Drain of a wave: the end of its pods, in as many rounds as the budgets require.
    pub drain: Duration,
    /// Reboot of a host.
    pub reboot: Duration,
    /// Time until the agent's pod is Ready after the boot.
    pub start: Duration,
    /// Soak of a node.
    pub soak: Duration,
    /// Nodes out of service at a time.
    pub at_once: usize,
    /// Number of waves after the first node.
    pub waves: usize,
}

/// Input of a limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Number of nodes.
    pub nodes: usize,
    /// Share of the nodes that may be out of service, in percent.
    pub percent: usize,
    /// Pods of each Deployment, which are spread evenly over the nodes; 0 without a workload.
    pub replicas: usize,
    /// Share of them that the budget lets be disrupted, in percent.
    pub budget_percent: usize,
    /// Time until a new pod is Ready.
    pub start: Duration,
    /// Time that a pod takes to end.
    pub termination: Duration,
}

impl Makespan {
    /// The first node alone, and then waves of as many nodes as may be out of service at a time: each takes the drain of all its nodes
    /// at once, a reboot, the start of the agents' pods and the soak.
    pub(super) fn of(limits: Limits, download: Duration, reboot: Duration, soak: Duration) -> Self {
        let Limits { nodes, percent, replicas, budget_percent, start, termination } = limits;
        let at_once = (nodes * percent / 100).max(1);
        let drain = if replicas == 0 {
            Duration::ZERO
        } else {
            // A budget is rounded up.
            let allowed = (replicas * budget_percent).div_ceil(100).max(1);
            let in_wave = (replicas * at_once).div_ceil(nodes.max(1));
            let rounds = u32::try_from(in_wave.div_ceil(allowed)).unwrap_or(u32::MAX);
            // A further round begins when the pods of the one before are replaced.
            termination + (termination + start) * rounds.saturating_sub(1)
        };
        Self { download, drain, reboot, start, soak, at_once, waves: nodes.saturating_sub(1).div_ceil(at_once) }
    }

    /// Time of one node, and of one wave.
    pub(super) fn wave(&self) -> Duration {
        self.drain + self.reboot + self.start + self.soak
    }

    /// The limit.
    pub(super) fn limit(&self) -> Duration {
        self.download + self.wave() * (1 + u32::try_from(self.waves).unwrap_or(u32::MAX))
    }
}

impl fmt::Display for Makespan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { download, drain, reboot, start, soak, at_once, waves } = self;
        let seconds = Duration::as_secs_f64;
        write!(
            f,
            "download {:.1}, then the first node and {waves} waves of {at_once}, each {:.1} s: drain {:.1}, reboot {:.1}, start {:.1}, soak {:.1}",
            seconds(download),
            seconds(&self.wave()),
            seconds(drain),
            seconds(reboot),
            seconds(start),
            seconds(soak)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn limits(nodes: usize, percent: usize, replicas: usize, budget_percent: usize) -> Limits {
        Limits { nodes, percent, replicas, budget_percent, start: SECOND, termination: SECOND }
    }

    #[test]
    fn first_node_goes_alone_and_budgets_lengthen_each_wave() {
        let limit = |limits| {
            let makespan = Makespan::of(limits, 4 * SECOND, 10 * SECOND, 5 * SECOND);
            (makespan.at_once, makespan.waves, makespan.drain.as_secs(), makespan.limit().as_secs())
        };
        assert_eq!(limit(limits(1, 10, 0, 10)), (1, 0, 0, 4 + 16));
        assert_eq!(limit(limits(500, 10, 100, 10)), (50, 10, 1, 4 + 11 * 17));
        assert_eq!(limit(limits(500, 10, 100, 5)), (50, 10, 3, 4 + 11 * 19));
        assert_eq!(limit(limits(20, 5, 10, 10)), (1, 19, 1, 4 + 20 * 17));
    }
}
