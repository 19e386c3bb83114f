//! Actions as sentences, for the path to a violation.

use std::fmt;

use super::NAMES;
use super::moves::Move;

impl fmt::Display for Move {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |node: &usize| NAMES[*node];
        match self {
            Self::Sends(index, write) => write!(f, "controller {index} writes: {write}"),
            Self::SendsLate(index, write) => write!(f, "controller {index} sends, and it does not arrive yet: {write}"),
            Self::ReadsLease(index, node) => write!(f, "controller {index} reads the Lease of {}", name(node)),
            Self::AgentSteps(node) => write!(f, "the agent of {} takes a step and reports", name(node)),
            Self::GoesDown(node) => write!(f, "the host {} goes down by its permit", name(node)),
            Self::Boots(node) => write!(f, "the host {} boots", name(node)),
            Self::KubeletReports(node) => write!(f, "the kubelet of {} reports its boot", name(node)),
            Self::PodEnds(node) => write!(f, "the evicted pods of {} end", name(node)),
            Self::TimePasses(_) => write!(f, "time passes to the next moment at which anything is due"),
            Self::Rests => write!(f, "nothing is left to do for a while"),
            Self::ComesFirst(node) => write!(f, "(it is the turn of {})", name(node)),
            Self::Arrives(index) => write!(f, "late write {index} arrives"),
            Self::CatchesUp(index, kind) => write!(f, "controller {index} sees its {kind:?} as they are"),
            Self::Notices(index) => write!(f, "controller {index} notices that it does not lead any more"),
            Self::NotReadyIsSeen(node) => write!(f, "{} is seen not to be Ready", name(node)),
            Self::HookAnswers(node) => write!(f, "the hook of {} answers", name(node)),
            Self::ShowsPresent(node) => write!(f, "the web API shows {} its desired state", name(node)),
            Self::ReportsAgain(node) => {
                write!(f, "the agent of {} finds another report than its own, and repeats it", name(node))
            }
            Self::AgentStarts(node) => write!(f, "the agent of {} starts", name(node)),
            Self::Registers(node) => write!(f, "{} is registered again", name(node)),
            Self::EarlierOperatorLeaves => write!(f, "the last pod of the earlier operator ends"),
            Self::FallsBehind(index, kind) => write!(f, "FAULT: controller {index} sees nothing new of its {kind:?}"),
            Self::LeasePasses(index) => {
                write!(f, "FAULT: the Lease passes from controller {index}, which goes on for a write")
            }
            Self::Crashes(index) => write!(f, "FAULT: controller {index} crashes, and the other one leads"),
            Self::IsDelayed(_) => write!(f, "FAULT: nothing happens until the next moment at which anything is due"),
            Self::FallsBack(node) => write!(f, "FAULT: the host {} falls back to its old version", name(node)),
            Self::LingersInShutdown(node) => write!(f, "FAULT: the shutdown of {} takes long", name(node)),
            Self::UserReboots(node) => write!(f, "FAULT: a user reboots {}", name(node)),
            Self::UserCordons(node) => write!(f, "FAULT: a user cordons {}", name(node)),
            Self::UserHolds(node) => write!(f, "FAULT: a user holds {}", name(node)),
            Self::UserAnnotates(node) => write!(f, "FAULT: a user sets scale-down-disabled of {} to false", name(node)),
            Self::UserEditsPolicy(policy) => write!(f, "FAULT: a user edits the policy to that of number {policy}"),
            Self::ReleaseIsWithdrawn => write!(f, "FAULT: another release takes the place of the new one"),
            Self::AgentStops(node) => write!(f, "FAULT: the agent of {} stops", name(node)),
            Self::NodeIsDeleted(node) => write!(f, "FAULT: the Node {} is deleted", name(node)),
            Self::PodIsBound(node) => write!(f, "FAULT: a pod is bound to {}", name(node)),
            Self::EarlierOperatorComes => write!(f, "FAULT: a pod of the earlier operator appears"),
            Self::ReportIsSwallowed(node) => {
                write!(f, "FAULT: the agent of {} takes a step, and the web API keeps its report", name(node))
            }
            Self::ReportIsRepeated(node) => write!(f, "FAULT: the web API repeats an earlier report of {}", name(node)),
            Self::ShowsEarlier(node, index) => {
                write!(f, "FAULT: the web API shows {} an earlier desired state, {index}", name(node))
            }
            Self::Lies(node, lie) => write!(f, "FAULT: the web API reports of {}: {lie:?}", name(node)),
            Self::PlanIsRefused(index, text) => {
                write!(f, "the plan validator refuses a plan of controller {index}: {text}")
            }
        }
    }
}
