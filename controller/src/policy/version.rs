//! What `spec.version` asks for.

use semver::{Version, VersionReq};

use super::PolicyError;

/// What nodes become.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Whatever newer version their host chooses, never an older one.
    Latest,
    /// This version, up or down.
    Exact(Version),
    /// The highest version in this range that the host offers, up or down.
    Range(VersionReq),
}

impl Target {
    /// Whether the host has to be told which version to choose, by its own setting.
    pub fn pins(&self) -> bool {
        !matches!(self, Self::Latest)
    }

    /// Whether a version is one that nodes may become.
    pub fn allows(&self, version: &Version) -> bool {
        match self {
            Self::Latest => true,
            Self::Exact(exact) => exact == version,
            Self::Range(range) => range.matches(version),
        }
    }
}

/// What no node takes: one version, or all of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exclusion {
    /// This version alone.
    Exact(Version),
    /// Every version in the range.
    Range(VersionReq),
}

impl Exclusion {
    /// Whether it is about this version.
    pub fn covers(&self, version: &Version) -> bool {
        match self {
            Self::Exact(exact) => exact == version,
            Self::Range(range) => range.matches(version),
        }
    }
}

fn error(field: &str, text: &str, also: &str) -> PolicyError {
    PolicyError {
        field: field.to_owned(),
        message: format!("'{text}' is neither {also}a version such as 1.20.5 nor a range such as '>=1.20.0, <1.21.0'"),
    }
}

/// Reads `spec.version.target`. A version alone means that version, and not, as a range would, everything compatible with
/// it: who writes 1.20.5 wants 1.20.5.
pub(super) fn target(field: &str, text: Option<&str>, errors: &mut Vec<PolicyError>) -> Target {
    match text.map(str::trim) {
        None | Some("latest") => Target::Latest,
        Some(text) => match (text.parse::<Version>(), text.parse::<VersionReq>()) {
            (Ok(version), _) => Target::Exact(version),
            (_, Ok(range)) => Target::Range(range),
            (Err(_), Err(_)) => {
                errors.push(error(field, text, "'latest' nor "));
                Target::Latest
            }
        },
    }
}

/// Reads `spec.version.exclude`.
pub(super) fn exclusions(field: &str, texts: &[String], errors: &mut Vec<PolicyError>) -> Vec<Exclusion> {
    let read = |(index, text): (usize, &String)| {
        let text = text.trim();
        match (text.parse::<Version>(), text.parse::<VersionReq>()) {
            (Ok(version), _) => Some(Exclusion::Exact(version)),
            (_, Ok(range)) => Some(Exclusion::Range(range)),
            (Err(_), Err(_)) => {
                errors.push(error(&format!("{field}[{index}]"), text, ""));
                None
            }
        }
    };
    texts.iter().enumerate().filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_latest_one_version_or_a_range() {
        let read = |text: &str| {
            let mut errors = Vec::new();
            (target("f", Some(text), &mut errors), errors.len())
        };
        let version = Version::new(1, 20, 5);
        assert_eq!(read("latest"), (Target::Latest, 0));
        assert_eq!(read("1.20.5"), (Target::Exact(version.clone()), 0));
        for (text, allows) in [
            (">=1.20.0, <1.21.0", true),
            ("~1.20", true),
            ("1.20", true),
            ("<1.20.5", false),
            ("=1.20.4", false),
            ("1.20.*", true),
        ] {
            let (target, errors) = read(text);
            assert_eq!((target.allows(&version), errors), (allows, 0), "{text}");
            assert!(matches!(target, Target::Range(_)), "{text}");
        }
        assert_eq!(read("newest").1, 1);
        assert_eq!(read("").1, 1);
    }
}
