//! Versions and ranges of `spec.version`.

use std::collections::BTreeSet;
use std::fmt;

use jiff::Timestamp;
use models::operator::UrgentVersion;
use models::shadow::BottlerocketShadow;
use semver::{Prerelease, Version, VersionReq};

use super::error::PolicyError;

/// A range of versions, with its text in the policy.
///
/// The parts are separated by commas, and all have to match. A part without an operator means the versions that begin
/// with it: `1.20` is any 1.20.x.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    text: String,
    request: VersionReq,
}

impl Range {
    fn parse(text: &str) -> Result<Self, String> {
        let parts: Vec<String> = text.split(',').map(part).collect::<Result<_, _>>()?;
        let request: VersionReq = parts.join(", ").parse().map_err(|error: semver::Error| error.to_string())?;
        if !satisfiable(&request) {
            return Err("no version can match all of its parts".to_owned());
        }
        Ok(Self { text: text.to_owned(), request })
    }

    /// Returns whether a version is in the range.
    pub fn matches(&self, version: &Version) -> bool {
        self.request.matches(version)
    }
}

/// Parses one part of a range into the form of [`semver`], for which a version without an operator would mean
/// everything compatible with it.
fn part(text: &str) -> Result<String, String> {
    let text = text.trim();
    let version = text.trim_start_matches(['=', '<', '>', '~', '^']);
    let operator = &text[..text.len() - version.len()];
    let version = version.trim_start();
    let version = version.strip_prefix('v').unwrap_or(version);
    if version.contains(char::is_whitespace) {
        return Err("a comma has to separate its parts".to_owned());
    }
    let wildcard = version.split('.').any(|part| matches!(part, "*" | "x" | "X"));
    let operator = if operator.is_empty() && !wildcard { "=" } else { operator };
    Ok(format!("{operator}{version}"))
}

/// Returns whether any version is in a range: if so, the lowest is a version that a part names, or the next one.
fn satisfiable(request: &VersionReq) -> bool {
    let named = request.comparators.iter().flat_map(|comparator| {
        let (major, minor, patch) =
            (comparator.major, comparator.minor.unwrap_or_default(), comparator.patch.unwrap_or_default());
        [
            Version { pre: comparator.pre.clone(), ..Version::new(major, minor, patch) },
            Version::new(major, minor, patch),
            Version::new(major, minor, patch.saturating_add(1)),
            Version::new(major, minor.saturating_add(1), 0),
            Version::new(major.saturating_add(1), 0, 0),
        ]
    });
    std::iter::once(Version::new(0, 0, 0)).chain(named).any(|version| request.matches(&version))
}

/// The versions that `spec.version.target` or an entry of `spec.version.exclude` names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Any newer version that the host chooses, never an older one. Only a target.
    Latest,
    /// This version; as a target, up or down.
    Exact(Version),
    /// The versions in this range; as a target, the highest of them that the host offers, up or down.
    Range(Range),
}

impl Target {
    /// Parses a version, which means exactly that one, or a range.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        match text.strip_prefix('v').unwrap_or(text).parse() {
            Ok(version) => Ok(Self::Exact(version)),
            Err(_) => Range::parse(text).map(Self::Range),
        }
    }

    /// Returns whether the host needs a version in its own setting.
    pub fn pins(&self) -> bool {
        !matches!(self, Self::Latest)
    }

    /// Returns whether a version is one of these.
    pub fn allows(&self, version: &Version) -> bool {
        match self {
            Self::Latest => true,
            Self::Exact(exact) => exact == version,
            Self::Range(range) => range.matches(version),
        }
    }

    /// Returns whether a version is excluded by these. In a range, a pre-release is covered with the version that it
    /// precedes.
    pub fn covers(&self, version: &Version) -> bool {
        let release = || Version { pre: Prerelease::EMPTY, ..version.clone() };
        self.allows(version) || matches!(self, Self::Range(range) if range.matches(&release()))
    }

    /// Returns the text in one spelling: the order of a range's parts makes no difference.
    pub(crate) fn normalized(&self) -> String {
        match self {
            Self::Range(range) => {
                let parts: BTreeSet<String> = range.request.comparators.iter().map(ToString::to_string).collect();
                // Backwards, a lower bound comes before an upper one. A range without comparators is any version.
                if parts.is_empty() { "*".to_owned() } else { Vec::from_iter(parts.into_iter().rev()).join(", ") }
            }
            Self::Latest | Self::Exact(_) => self.to_string(),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Latest => f.write_str("latest"),
            Self::Exact(version) => version.fmt(f),
            Self::Range(range) => f.write_str(&range.text),
        }
    }
}

fn error(field: &str, text: &str, also: &str, why: &str) -> PolicyError {
    PolicyError {
        field: field.to_owned(),
        message: format!(
            "'{text}' is not understood ({why}); write {also}a version such as 1.20.5, all versions that begin alike such as \
             1.20, or a range such as '>=1.20, <1.23'"
        ),
    }
}

/// Parses `spec.version.target`.
pub(super) fn target(field: &str, text: Option<&str>, errors: &mut Vec<PolicyError>) -> Target {
    let Some(text) = text.map(str::trim).filter(|text| *text != "latest") else { return Target::Latest };
    Target::parse(text).unwrap_or_else(|why| {
        errors.push(error(field, text, "'latest', ", &why));
        Target::Latest
    })
}

/// A version that windows and the soaks of canary steps do not delay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Urgent {
    /// The first urgent version.
    pub from: Version,
    pub reason: String,
    /// The end, as the policy requests it.
    pub until: Timestamp,
}

/// Parses `spec.version.urgent`.
pub(super) fn urgent(field: &str, urgent: UrgentVersion, errors: &mut Vec<PolicyError>) -> Option<Urgent> {
    let UrgentVersion { from, reason, until } = urgent;
    match until.parse() {
        Ok(until) => Some(Urgent { from, reason, until }),
        Err(_) => {
            let message = format!("'{until}' is no time; write the end of the urgency, such as 2026-12-01T00:00:00Z");
            errors.push(PolicyError { field: format!("{field}.until"), message });
            None
        }
    }
}

/// A variant and an architecture, as an exclusion names them: `aws-k8s-1.37/x86_64`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeKind {
    /// The variant.
    pub variant: String,
    /// The architecture.
    pub arch: String,
}

impl NodeKind {
    /// Returns the kind of a node, as its agent has reported it.
    pub fn of_node(shadow: &BottlerocketShadow) -> Option<Self> {
        let agent = &shadow.status.as_ref()?.agent;
        Some(Self { variant: agent.variant.clone()?, arch: agent.arch.clone()? })
    }

    /// Parses `VARIANT/ARCH`; `None` if it is none.
    pub fn parse(text: &str) -> Option<Self> {
        let is_word = |word: &str| {
            let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '_' | '-');
            !word.is_empty() && word.chars().all(is_part)
        };
        let (variant, arch) = text.split_once('/').filter(|(variant, arch)| is_word(variant) && is_word(arch))?;
        Some(Self { variant: variant.to_owned(), arch: arch.to_owned() })
    }

    /// Returns whether nodes of this variant and architecture are of the kind.
    fn is(&self, variant: &str, arch: &str) -> bool {
        (self.variant.as_str(), self.arch.as_str()) == (variant, arch)
    }
}

impl fmt::Display for NodeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.variant, self.arch)
    }
}

/// An entry of `spec.version.exclude`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exclusion {
    /// The excluded versions.
    pub versions: Target,
    /// The nodes that do not take them; `None`: no node does.
    pub kind: Option<NodeKind>,
}

impl Exclusion {
    /// The word between the versions and the kind of nodes.
    pub(crate) const ON: &str = " on ";

    /// Parses an entry: a version or a range, and where it is for one kind of nodes, ` on VARIANT/ARCH` after it.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let Some((versions, kind)) = text.split_once(Self::ON) else {
            return Ok(Self { versions: Target::parse(text)?, kind: None });
        };
        let parsed = NodeKind::parse(kind.trim());
        let no_kind = || format!("'{}' is no variant and architecture such as aws-k8s-1.37/x86_64", kind.trim());
        Ok(Self { versions: Target::parse(versions.trim())?, kind: Some(parsed.ok_or_else(no_kind)?) })
    }

    /// Returns whether nodes of this variant and architecture do not take a version.
    pub fn covers(&self, variant: &str, arch: &str, version: &Version) -> bool {
        self.kind.as_ref().is_none_or(|kind| kind.is(variant, arch)) && self.versions.covers(version)
    }

    /// Returns the text in one spelling.
    pub(crate) fn normalized(&self) -> String {
        Self::spelled(&self.versions.normalized(), self.kind.as_ref())
    }

    fn spelled(versions: &str, kind: Option<&NodeKind>) -> String {
        kind.map_or_else(|| versions.to_owned(), |kind| format!("{versions}{}{kind}", Self::ON))
    }
}

impl fmt::Display for Exclusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&Self::spelled(&self.versions.to_string(), self.kind.as_ref()))
    }
}

/// Parses `spec.version.exclude`.
pub(super) fn exclusions(field: &str, texts: &[String], errors: &mut Vec<PolicyError>) -> Vec<Exclusion> {
    let read = |(index, text): (usize, &String)| {
        let text = text.trim();
        let failed = |why: String| errors.push(error(&format!("{field}[{index}]"), text, "", &why));
        Exclusion::parse(text).map_err(failed).ok()
    };
    texts.iter().enumerate().filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v(text: &str) -> Version {
        text.parse().unwrap()
    }

    fn read(text: &str) -> (Target, Vec<PolicyError>) {
        let mut errors = Vec::new();
        (target("f", Some(text), &mut errors), errors)
    }

    #[test]
    fn target_parses_as_latest_version_or_range() {
        assert_eq!(read("latest"), (Target::Latest, vec![]));
        for text in ["1.20.5", "v1.20.5", " 1.20.5 "] {
            assert_eq!(read(text), (Target::Exact(v("1.20.5")), vec![]), "{text}");
        }
        for (text, allowed, refused) in [
            ("1.20", vec!["1.20.0", "1.20.5"], vec!["1.19.9", "1.21.0", "1.54.0", "2.0.0"]),
            ("v1.20", vec!["1.20.0", "1.20.5"], vec!["1.19.9", "1.21.0"]),
            ("1", vec!["1.0.0", "1.54.0"], vec!["0.9.0", "2.0.0"]),
            ("1.20.*", vec!["1.20.0", "1.20.5"], vec!["1.21.0"]),
            ("v1.x", vec!["1.20.0", "1.54.0"], vec!["2.0.0"]),
            ("=1.20", vec!["1.20.5"], vec!["1.21.0"]),
            ("=v1.20.5", vec!["1.20.5"], vec!["1.20.4", "1.20.6"]),
            (">=1.20, <1.23", vec!["1.20.0", "1.22.9"], vec!["1.19.9", "1.23.0"]),
            (">= v1.20.1,<=1.22", vec!["1.20.1", "1.22.9"], vec!["1.20.0", "1.23.0"]),
            (">1.20", vec!["1.21.0", "2.0.0"], vec!["1.20.9"]),
            ("<1.20.5", vec!["1.20.4"], vec!["1.20.5"]),
            ("1.20, <1.20.5", vec!["1.20.4"], vec!["1.20.5"]),
            ("~1.20", vec!["1.20.5"], vec!["1.21.0"]),
            ("~1.20.3", vec!["1.20.3", "1.20.9"], vec!["1.20.2", "1.21.0"]),
            ("^1.20", vec!["1.20.0", "1.54.0"], vec!["1.19.9", "2.0.0"]),
        ] {
            let (target, errors) = read(text);
            assert_eq!(errors, [], "{text}");
            assert!(matches!(target, Target::Range(_)), "{text}");
            let allows = |version: &&str| target.allows(&v(version));
            assert!(allowed.iter().all(allows), "{text}: {allowed:?}");
            assert!(!refused.iter().any(allows), "{text}: {refused:?}");
        }
    }

    #[test]
    fn exclusion_covers_version_or_range() {
        for (text, covered, left) in [
            ("1.19", vec!["1.19.0", "1.19.5", "1.19.5-rc.1"], vec!["1.18.9", "1.20.5"]),
            ("1.20.5", vec!["1.20.5"], vec!["1.20.4", "1.20.6"]),
            ("v1.20.5", vec!["1.20.5"], vec!["1.20.6"]),
            (">=1.21.0, <1.21.2", vec!["1.21.0", "1.21.1"], vec!["1.21.2"]),
        ] {
            let mut errors = Vec::new();
            let read = exclusions("f", &[text.to_owned()], &mut errors);
            assert_eq!((read.len(), errors), (1, vec![]), "{text}");
            let covers = |version: &&str| read[0].covers("aws-k8s-1.37", "x86_64", &v(version));
            assert!(covered.iter().all(covers), "{text}: {covered:?}");
            assert!(!left.iter().any(covers), "{text}: {left:?}");
        }
    }

    #[test]
    fn exclusion_of_one_kind_covers_no_other() {
        for text in
            ["1.20.5 on aws-k8s-1.37/x86_64", "1.20 on aws-k8s-1.37/x86_64", ">=1.20, <1.21  on  aws-k8s-1.37/x86_64"]
        {
            let read = Exclusion::parse(text).unwrap();
            for (variant, arch, version, expected) in [
                ("aws-k8s-1.37", "x86_64", "1.20.5", true),
                ("aws-k8s-1.37", "x86_64", "1.21.0", false),
                ("aws-k8s-1.37", "aarch64", "1.20.5", false),
                ("aws-k8s-1.37-nvidia", "x86_64", "1.20.5", false),
            ] {
                assert_eq!(read.covers(variant, arch, &v(version)), expected, "{text}: {variant} {arch} {version}");
            }
            assert_eq!(Exclusion::parse(&read.to_string()), Ok(read.clone()), "{text}");
            let found = Exclusion::parse(&read.normalized()).map(|again| again.normalized());
            assert_eq!(found, Ok(read.normalized()), "{text}");
        }
        for text in [
            "1.20.5 on ",
            "1.20.5 on x86_64",
            "1.20.5 on a/b/c",
            "1.20.5 on A/b",
            "on a/b",
            "latest on a/b",
            "1.20.5 on a/",
        ] {
            let mut errors = Vec::new();
            assert_eq!(exclusions("f", &[text.to_owned()], &mut errors), []);
            assert_eq!(errors.len(), 1, "{text}: {errors:?}");
        }
    }

    #[test]
    fn invalid_target_error_shows_how_to_write_it() {
        for (text, hint) in [
            ("newest", "'latest'"),
            ("", "'latest'"),
            ("1.20.5.1", ">=1.20, <1.23"),
            ("1.020", ">=1.20, <1.23"),
            ("=>1.20", ">=1.20, <1.23"),
            (">=", ">=1.20, <1.23"),
            (">=1.20 <1.23", "comma"),
            (">=1.20,", ">=1.20, <1.23"),
            ("1.20, 1.21", "no version can match"),
            (">=1.23, <1.20", "no version can match"),
        ] {
            let (read, errors) = read(text);
            assert_eq!((read, errors.len()), (Target::Latest, 1), "{text}");
            assert!(errors[0].message.contains(hint), "{text}: {}", errors[0].message);
        }
    }
}
