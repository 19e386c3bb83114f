//! The operator's own metrics, as Prometheus reads them.

use std::time::Duration;

use anyhow::Context as _;
use reqwest::Client;

/// Reads metrics of the operator's programs.
#[derive(Clone, Debug)]
pub(super) struct Metrics(Client);

/// Metrics in Prometheus' text format.
pub(super) struct Text(String);

impl Metrics {
    pub(super) fn new() -> anyhow::Result<Self> {
        Ok(Self(Client::builder().no_proxy().timeout(Duration::from_secs(5)).build()?))
    }

    pub(super) async fn read(&self, url: &str) -> anyhow::Result<Text> {
        let answer = self.0.get(url).send().await.and_then(reqwest::Response::error_for_status);
        Ok(Text(answer.with_context(|| url.to_owned())?.text().await?))
    }
}

impl Text {
    /// Sum of all series of a name.
    pub(super) fn sum(&self, name: &str) -> Option<f64> {
        let values = self.series(name).map(|(_, value)| value);
        values.reduce(|one, other| one + other)
    }

    /// The series of a name, with their labels as they are written.
    pub(super) fn series<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (&'a str, f64)> + 'a {
        self.0.lines().filter_map(move |line| {
            let rest = line.strip_prefix(name)?;
            let (labels, value) = rest.rsplit_once(' ')?;
            (labels.is_empty() || labels.starts_with('{')).then_some((labels, value.parse().ok()?))
        })
    }

    /// The cumulative counts of a histogram, by the upper bound of their buckets.
    pub(super) fn histogram(&self, name: &str) -> Vec<(f64, f64)> {
        let name = format!("{name}_bucket");
        let bound = |labels: &str| labels.split("le=\"").nth(1)?.split('"').next()?.parse::<f64>().ok();
        self.series(&name).filter_map(|(labels, value)| Some((bound(labels)?, value))).collect()
    }
}

/// Returns the upper bound of the bucket in which the median is of what a histogram has counted between two reads.
pub(super) fn median_bound(before: &[(f64, f64)], after: &[(f64, f64)]) -> Option<f64> {
    let grown: Vec<(f64, f64)> = after
        .iter()
        .enumerate()
        .map(|(at, (bound, count))| (*bound, count - before.get(at).map_or(0.0, |(_, count)| *count)))
        .collect();
    let all = grown.last()?.1;
    (all > 0.0).then(|| grown.iter().find(|(_, count)| *count * 2.0 >= all).map(|(bound, _)| *bound))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_of_a_name_are_summed_and_histograms_have_medians() {
        let text = Text(
            "# HELP a_b x\na_b 2\na_bc 9\na_b{x=\"1\"} 3.5\nt_bucket{le=\"0.01\"} 4\nt_bucket{le=\"+Inf\"} 6\n"
                .to_owned(),
        );
        assert_eq!(text.sum("a_b"), Some(5.5));
        assert_eq!(text.sum("b"), None);
        let histogram = text.histogram("t");
        assert_eq!(histogram, [(0.01, 4.0), (f64::INFINITY, 6.0)]);
        assert_eq!(median_bound(&[], &histogram), Some(0.01));
        assert_eq!(median_bound(&[(0.01, 4.0), (f64::INFINITY, 4.0)], &histogram), Some(f64::INFINITY));
        assert_eq!(median_bound(&histogram, &histogram), None);
    }
}
