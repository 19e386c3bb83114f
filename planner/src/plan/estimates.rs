//! The estimates of completion in the operator's status.

use models::operator::{ActiveRollout, CompletionEstimate};
use models::time::between;

use crate::view::ReportedFacts;

/// The smallest difference, in seconds, that is written.
const LEAST: u64 = 60;

/// Returns whether an estimate says nothing that the one before did not: it differs by less than a tenth of the time left.
fn is_same(before: &CompletionEstimate, new: &CompletionEstimate) -> bool {
    let differs = between(before.at, new.at).max(between(new.at, before.at)).as_secs();
    differs <= LEAST.max(between(new.made, new.at).as_secs() / 10)
}

/// Records the estimates of the rollouts that run.
pub(super) fn record(reported: &ReportedFacts, rollouts: &mut [ActiveRollout]) {
    for rollout in rollouts {
        let record = rollout.record.as_mut().filter(|record| record.ended.is_none() && rollout.ended.is_none());
        let Some(record) = record else {
            rollout.estimated_completion = None;
            continue;
        };
        let Some(estimates) = reported.estimates.as_ref().filter(|of| of.basis.rollouts.contains(&record.number))
        else {
            continue;
        };
        let new = estimates.rollouts.get(&record.number).copied();
        let kept = rollout.estimated_completion.filter(|before| new.is_some_and(|new| is_same(before, &new)));
        rollout.estimated_completion = kept.or(new);
        record.first_estimate = record.first_estimate.or(new);
    }
}

#[cfg(test)]
mod tests {
    use models::history::RolloutPhase;

    use super::*;
    use crate::fixtures::{NEW, recorded, rollout, t};
    use crate::view::{EstimateBasis, EstimateFacts};

    fn estimate(at: i64, made: i64) -> CompletionEstimate {
        CompletionEstimate { at: t(at), earliest: t(at), latest: t(at), made: t(made) }
    }

    fn view(number: i64, new: Option<CompletionEstimate>) -> ReportedFacts {
        let basis = EstimateBasis { rollouts: [number].into(), ..EstimateBasis::default() };
        let rollouts = new.map(|new| (number, new)).into_iter().collect();
        let estimates = Some(EstimateFacts { basis, rollouts, ..EstimateFacts::default() });
        ReportedFacts { estimates, ..ReportedFacts::default() }
    }

    #[test]
    fn estimate_is_written_where_it_differs_by_a_tenth_of_the_time_left_and_the_first_one_is_kept() {
        let mut rollouts = [ActiveRollout { record: Some(recorded(7)), ..rollout(NEW) }];
        let written = |rollouts: &[ActiveRollout]| {
            let first = rollouts[0].record.as_ref().and_then(|record| record.first_estimate);
            (rollouts[0].estimated_completion, first)
        };
        let first = estimate(10_000, 0);
        record(&ReportedFacts::default(), &mut rollouts);
        assert_eq!(written(&rollouts), (None, None), "none was made");
        record(&view(6, Some(first)), &mut rollouts);
        assert_eq!(written(&rollouts), (None, None), "of another rollout");
        record(&view(7, Some(first)), &mut rollouts);
        assert_eq!(written(&rollouts), (Some(first), Some(first)));
        record(&view(7, Some(estimate(10_800, 1_000))), &mut rollouts);
        assert_eq!(written(&rollouts).0, Some(first), "900 s of 9,800 s");
        record(&ReportedFacts::default(), &mut rollouts);
        assert_eq!(written(&rollouts).0, Some(first), "another leader has made none yet");
        let later = estimate(11_200, 1_000);
        record(&view(7, Some(later)), &mut rollouts);
        assert_eq!(written(&rollouts), (Some(later), Some(first)));
        let near = estimate(11_150, 11_100);
        record(&view(7, Some(near)), &mut rollouts);
        assert_eq!(written(&rollouts).0, Some(later), "less than a minute");
        record(&view(7, None), &mut rollouts);
        assert_eq!(written(&rollouts), (None, Some(first)), "no update is expected to end");
        record(&view(7, Some(later)), &mut rollouts);
        rollouts[0].record.as_mut().unwrap().phase = RolloutPhase::Completed;
        rollouts[0].record.as_mut().unwrap().ended = Some(t(11_000));
        record(&view(7, Some(later)), &mut rollouts);
        assert_eq!(written(&rollouts), (None, Some(first)), "it has ended");
    }
}
