//! `takeover settings`: a policy from the settings of the earlier operator. What has no safe translation is asked.

mod values;

use std::fmt::Write as _;

use anyhow::{Context as _, anyhow, bail};
use models::duration::Duration;
use models::operator::{BottlerocketUpdateOperator, CountOrPercent, MaintenanceWindow};
use models::plain::cut;
use planner::policy::Policy;
use serde_json::Value;

use super::facts::Workload;
use super::finding::NAMED;
use crate::advice::some;

/// Length to which a value of the earlier operator is cut in a comment.
const SHOWN: usize = 120;

/// The largest count of `maxUnavailable`.
const MOST: u64 = 10_000;

/// The value that the earlier operator's chart has for both ends of the daily window.
const MIDNIGHT: &str = "0:0:0";

const DAY: u64 = 24 * 3600;

/// Beginning of the comment about a schedule that the user has to choose.
const CHOOSE: &str = "  # Choose when nodes may be taken out of service:";

const NO_WINDOW: &str = "  # The earlier operator has no window: nodes may be taken out of service at any time.\n";

/// A setting of the earlier operator.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Setting {
    /// `None` where another object holds the value.
    value: Option<String>,
    /// Name and place, for a comment.
    origin: String,
}

impl Setting {
    fn shown(&self) -> String {
        let value = self.value.as_ref().map_or_else(|| "held by another object".to_owned(), |v| format!("{v:?}"));
        cut(&format!("{} ({value})", self.origin), SHOWN)
    }
}

/// The settings of the earlier operator that this one has an equivalent of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Settings {
    concurrent: Option<Setting>,
    cron: Option<Setting>,
    start: Option<Setting>,
    stop: Option<Setting>,
    balancer_wait: Option<Setting>,
    /// The workloads that are known from a record alone.
    recorded: Vec<String>,
    /// Keys among the values of its chart that the chart does not know.
    unknown: Vec<String>,
    /// A sentence about a schedule that the file of values cannot show.
    unseen: Option<String>,
}

impl Settings {
    /// Returns the settings in the environment of these workloads.
    pub(super) fn of_workloads(workloads: &[Workload]) -> Self {
        let [concurrent, cron, start, stop, balancer_wait] = values::SETTINGS.map(|(_, name)| {
            workloads.iter().find_map(|workload| {
                let value = workload.environment.get(name)?.clone();
                Some(Setting { value, origin: format!("{name} of {}", workload.id()) })
            })
        });
        let recorded = workloads.iter().filter(|workload| workload.recorded).map(Workload::id).collect();
        Self { concurrent, cron, start, stop, balancer_wait, recorded, ..Self::default() }
    }

    /// Returns the settings in the values of its chart, in any file that has them.
    pub(super) fn of_values(text: &str) -> anyhow::Result<Self> {
        let values = values::read(text)?;
        let [concurrent, cron, mut start, mut stop, balancer_wait] = values::SETTINGS.map(|(key, _)| {
            let (value, place) = values.get(key)?;
            Some(Setting { value: Some(value), origin: format!("the chart value {place}") })
        });
        let default = |name: &str| {
            Some(Setting { value: Some(MIDNIGHT.to_owned()), origin: format!("the chart's own value of {name}") })
        };
        if start.is_some() {
            stop = stop.or_else(|| default("update_window_stop"));
        } else if stop.is_some() {
            start = default("update_window_start");
        }
        let (unknown, unseen) = (values.unknown(), values.unseen());
        Ok(Self { concurrent, cron, start, stop, balancer_wait, unknown, unseen, ..Self::default() })
    }

    /// Returns sentences about the keys that the chart does not know, and about a schedule that the file cannot show.
    pub(super) fn remarks(&self) -> Vec<String> {
        let keys = some(&self.unknown, NAMED);
        let ignored = (!keys.is_empty())
            .then(|| format!("the earlier operator's chart has no such keys, and ignored them: {keys}"));
        ignored.into_iter().chain(self.unseen.clone()).collect()
    }
}

#[derive(Clone, Debug)]
pub(super) struct Proposal {
    /// The resource as YAML, with a comment for each value.
    pub(super) text: String,
    /// The decision that the user has to make, if there is one.
    pub(super) question: Option<String>,
}

/// Parses `--window`: `always`, or the five fields of cron, a duration and perhaps a time zone.
pub(super) fn windows(texts: &[String]) -> anyhow::Result<Option<Vec<MaintenanceWindow>>> {
    if texts.is_empty() {
        return Ok(None);
    }
    let always = |text: &String| text.trim() == "always";
    if texts.iter().any(always) {
        return if texts.len() == 1 { Ok(Some(Vec::new())) } else { bail!("--window always allows no other --window") };
    }
    texts.iter().map(|text| window(text)).collect::<anyhow::Result<_>>().map(Some)
}

fn window(text: &str) -> anyhow::Result<MaintenanceWindow> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let (cron, duration, zone) = match words.as_slice() {
        [cron @ .., duration] if cron.len() == 5 => (cron, duration, None),
        [cron @ .., duration, zone] if cron.len() == 5 => (cron, duration, Some((*zone).to_owned())),
        _ => bail!(
            "--window '{text}': write five fields of cron, how long the window is open and, unless it is UTC, a time \
             zone, such as \"0 2 * * SAT 4h Europe/Berlin\", or \"always\""
        ),
    };
    let duration = duration.parse().with_context(|| format!("--window '{text}'"))?;
    Ok(MaintenanceWindow { cron: cron.join(" "), duration, time_zone: zone })
}

/// Proposes a policy. `chosen` are the windows that the user has given.
pub(super) fn propose(settings: &Settings, chosen: Option<&[MaintenanceWindow]>, namespace: &str) -> Proposal {
    let mut text = "# A policy from the settings of the earlier operator. Review it, set enabled to true, and apply it when this\n\
                    # operator is installed:\n\
                    #   kubectl apply --server-side --field-manager=policy --force-conflicts -f FILE\n\
                    # Where Helm installs the policy, put it into the values of the chart instead, as policy.enabled and\n\
                    # policy.spec, or set policy.create=false first: otherwise Helm 4 may refuse later upgrades.\n"
        .to_owned();
    if !settings.recorded.is_empty() {
        text.push_str(
            "# Read from what takeover swap has recorded in the ConfigMaps brupop-system/brupop-takeover-*:\n",
        );
    }
    for workload in &settings.recorded {
        let _ = writeln!(text, "#   {}", cut(workload, SHOWN));
    }
    for sentence in settings.remarks() {
        let _ = writeln!(text, "# {}", cut(&sentence, 2 * SHOWN));
    }
    let _ = write!(
        text,
        "apiVersion: brupop.bottlerocket.aws/v1\n\
         kind: BottlerocketUpdateOperator\n\
         metadata:\n  name: default\n  namespace: {}\n\
         spec:\n  # No update starts until you set this to true.\n  enabled: false\n",
        quoted(namespace)
    );
    let (limit, comment) = max_unavailable(settings.concurrent.as_ref());
    let limit = match limit {
        CountOrPercent::Count(count) => count.to_string(),
        CountOrPercent::Percent(percent) => quoted(&percent),
    };
    let _ = write!(text, "  # {comment}\n  maxUnavailable: {limit}\n");
    let question = schedule(settings, chosen, &mut text);
    load_balancer(settings.balancer_wait.as_ref(), &mut text);
    Proposal { text, question }
}

/// Parses a policy as the operator does.
///
/// # Errors
/// Every field that cannot be applied.
pub(super) fn parse(text: &str) -> anyhow::Result<(BottlerocketUpdateOperator, Policy)> {
    let operator: BottlerocketUpdateOperator =
        serde_saphyr::from_str(text).map_err(|error| anyhow!("it is no BottlerocketUpdateOperator: {error}"))?;
    match Policy::from_spec(&operator.spec) {
        Ok(policy) => Ok((operator, policy)),
        Err(errors) => {
            let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
            bail!("the policy cannot be applied:\n  {}", errors.join("\n  "))
        }
    }
}

/// Returns a string of YAML. JSON is YAML.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

fn max_unavailable(setting: Option<&Setting>) -> (CountOrPercent, String) {
    let one = CountOrPercent::Count(1);
    let Some(setting) = setting else {
        return (one, "Not set in the earlier operator: one node at a time.".to_owned());
    };
    let shown = setting.shown();
    let all = || CountOrPercent::Percent("100%".to_owned());
    match setting.value.as_deref().map(str::trim) {
        Some("unlimited") => (all(), format!("From {shown}.")),
        Some(number) if !number.is_empty() && number.chars().all(|c| c.is_ascii_digit()) => {
            match number.parse::<u64>().ok().filter(|count| *count <= MOST).and_then(|count| u32::try_from(count).ok())
            {
                Some(count) => (CountOrPercent::Count(count.max(1)), format!("From {shown}.")),
                None => (all(), format!("From {shown}, which is more than {MOST}.")),
            }
        }
        _ => (one, format!("{shown} is no number that is known here: one node at a time. Check this.")),
    }
}

fn load_balancer(setting: Option<&Setting>, text: &mut String) {
    let Some(setting) = setting else { return };
    let shown = setting.shown();
    let _ = match setting.value.as_deref().and_then(|value| value.trim().parse::<u32>().ok()) {
        Some(0) => writeln!(text, "  # {shown}: nodes stay in external load balancers until their drain."),
        Some(seconds) => {
            let wait = Duration::from_secs(u64::from(seconds));
            writeln!(text, "  loadBalancer:\n    # From {shown}.\n    leaveBeforeDrain: {wait}")
        }
        None => writeln!(
            text,
            "  # {shown} is no number of seconds that is known here. Check whether you need\n  # spec.loadBalancer.leaveBeforeDrain."
        ),
    };
}

/// Writes the schedule, and returns what the user has to decide about it.
fn schedule(settings: &Settings, chosen: Option<&[MaintenanceWindow]>, text: &mut String) -> Option<String> {
    let cron = settings.cron.as_ref().filter(|cron| !cron.value.as_deref().is_some_and(is_always));
    if let Some(windows) = chosen {
        for setting in [cron, settings.start.as_ref(), settings.stop.as_ref()].into_iter().flatten() {
            let _ = writeln!(text, "  # Chosen with --window, instead of {}.", setting.shown());
        }
        write_windows(windows, text);
        return None;
    }
    if let Some(cron) = cron {
        let _ = write!(
            text,
            "{CHOOSE} {}\n\
             \x20 # is not translated. Its fields are second, minute, hour, day of month, month, day of week (1 is Sunday) and\n\
             \x20 # year, in UTC; all have to match, and its first two times decided whether it was a window or a moment.\n\
             \x20 # Without windows, nodes may be taken out of service at any time. Every Saturday from 02:00 to 06:00 would be:\n\
             \x20 # schedule:\n\
             \x20 #   windows:\n\
             \x20 #     - {{cron: \"0 2 * * SAT\", duration: 4h, timeZone: UTC}}\n",
            cron.shown()
        );
        return Some(format!("{} has no mechanical translation", cron.shown()));
    }
    let (start, stop) = match (&settings.start, &settings.stop) {
        (Some(start), Some(stop)) => (start, stop),
        (None, None) => return no_window(settings, text),
        (Some(alone), None) | (None, Some(alone)) => {
            // The earlier controller does not start with one of the two variables.
            let reason = format!("{} is only one end of a window", alone.shown());
            let _ = writeln!(text, "{CHOOSE} {reason}.");
            return Some(reason);
        }
    };
    let (from, to) = (start.shown(), stop.shown());
    match daily(start.value.as_deref(), stop.value.as_deref()) {
        Daily::Always => no_window(settings, text),
        Daily::Window(window) => {
            let _ = write!(
                text,
                "  # From {from}\n  # and {to}, in UTC.\n\
                 \x20 # Releases with a cron expression, from 1.2.0 on, pass these on only if their manifest sets them.\n"
            );
            write_windows(&[window], text);
            None
        }
        Daily::Equal => {
            let _ = write!(
                text,
                "{CHOOSE} {from}\n  # and {to} are the same, which means\n\
                 \x20 # the whole day in releases before 1.2.0, and one hour from 1.2.0 on.\n"
            );
            Some(format!("{from} and {to} are the same time"))
        }
        Daily::Unreadable => {
            let _ = writeln!(text, "{CHOOSE} {from}\n  # and {to} are no times that are known here.");
            Some(format!("{from} and {to} are no times of a day"))
        }
    }
}

/// Writes that there is no window. Where there may be one that the file of values cannot show, it is asked for.
fn no_window(settings: &Settings, text: &mut String) -> Option<String> {
    if settings.unseen.is_none() {
        text.push_str(NO_WINDOW);
        return None;
    }
    let reason = "the parent chart may set a schedule, which is not in the file of values";
    let _ = writeln!(text, "{CHOOSE} {reason}.");
    Some(reason.to_owned())
}

fn write_windows(windows: &[MaintenanceWindow], text: &mut String) {
    if windows.is_empty() {
        return;
    }
    text.push_str("  schedule:\n    windows:\n");
    for MaintenanceWindow { cron, duration, time_zone } in windows {
        let zone = time_zone.as_ref().map_or_else(String::new, |zone| format!(", timeZone: {}", quoted(zone)));
        let _ = writeln!(text, "      - {{cron: {}, duration: {duration}{zone}}}", quoted(cron));
    }
}

/// Returns whether a cron expression of the earlier operator means every second.
fn is_always(expression: &str) -> bool {
    let fields: Vec<&str> = expression.split_whitespace().collect();
    matches!(fields.len(), 0 | 6 | 7) && fields.iter().all(|field| *field == "*")
}

/// The daily window of the earlier operator.
#[derive(Debug, PartialEq, Eq)]
enum Daily {
    /// None: both ends are midnight, the default.
    Always,
    /// Both ends are the same time, and it is not the default.
    Equal,
    Window(MaintenanceWindow),
    Unreadable,
}

fn daily(start: Option<&str>, stop: Option<&str>) -> Daily {
    let (Some(start), Some(stop)) = (start.and_then(second_of_day), stop.and_then(second_of_day)) else {
        return Daily::Unreadable;
    };
    if start == stop {
        return if start == 0 { Daily::Always } else { Daily::Equal };
    }
    // Cron has whole minutes: a window begins with the first one in it.
    let begin = start.next_multiple_of(60);
    let length = (stop + DAY - start) % DAY;
    let Some(length) = length.checked_sub(begin - start).filter(|length| *length > 0) else { return Daily::Unreadable };
    let cron = format!("{} {} * * *", begin / 60 % 60, begin / 3600 % 24);
    Daily::Window(MaintenanceWindow { cron, duration: Duration::from_secs(length), time_zone: None })
}

/// Parses hours, minutes and seconds with colons between them.
fn second_of_day(text: &str) -> Option<u64> {
    let parts: Vec<u64> = text.trim().split(':').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    match parts.as_slice() {
        [hours @ 0..=23, minutes @ 0..=59, seconds @ 0..=59] => Some(hours * 3600 + minutes * 60 + seconds),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
