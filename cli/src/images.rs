//! The versions of the images that run, by their tags.

use semver::Version;
use serde_json::Value;

/// A number that is the year of a date, and the major version of no release.
const YEAR: u64 = 1000;

/// Returns the tag of the images of this plugin's version.
pub(crate) fn own_tag() -> String {
    deploy::Options::default().tag
}

/// Returns the tag of an image. One that is named by its digest alone has none, and its version is not known.
pub(crate) fn tag(image: &str) -> Option<&str> {
    let name = image.rsplit('/').next().unwrap_or_default();
    let (name, digest) = name.split_once('@').map_or((name, None), |(name, digest)| (name, Some(digest)));
    match name.split_once(':') {
        Some((_, tag)) => Some(tag),
        None => digest.is_none().then_some("latest"),
    }
}

/// Returns the version that a tag names, with the number of a release candidate, which is earlier than its release.
/// Other suffixes, such as that of an architecture, are ignored. A tag of the user's own, or a date, names no version.
pub(crate) fn version(tag: &str) -> Option<[u64; 4]> {
    let version = Version::parse(tag.strip_prefix('v')?).ok()?;
    let candidate = version.pre.as_str().strip_prefix("rc.").and_then(|rest| rest.split(['.', '-']).next());
    let candidate: Option<u64> = candidate.and_then(|number| number.parse().ok());
    (version.major < YEAR).then_some([version.major, version.minor, version.patch, candidate.unwrap_or(u64::MAX)])
}

/// Returns the image that a workload runs, given the workload of this version. Containers that a user has added are left out.
pub(crate) fn image_of<'a>(wanted: &Value, found: &'a Value) -> Option<&'a str> {
    let own = wanted.pointer("/spec/template/spec/containers/0/name")?;
    let containers = found.pointer("/spec/template/spec/containers")?.as_array()?;
    containers.iter().find(|container| container["name"] == *own)?["image"].as_str()
}

/// Returns the newest tag of these images, if it names a later version than that of this plugin.
pub(crate) fn newer<'a>(images: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let newest = images.filter_map(tag).max_by_key(|tag| version(tag))?;
    (version(newest) > version(&own_tag())).then_some(newest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn release_candidate_is_earlier_than_its_release_and_suffixes_do_not_count() {
        let order = ["v0.1.9", "v0.2.0-rc.2", "v0.2.0-rc.10", "v0.2.0"].map(version);
        assert!(order.iter().all(Option::is_some) && order.is_sorted_by(|one, next| one < next), "{order:?}");
        for (tag, same) in [("v0.2.0-arm64", "v0.2.0"), ("v0.2.0-1", "v0.2.0"), ("v0.2.0-rc.2-arm64", "v0.2.0-rc.2")] {
            assert_eq!(version(tag), version(same), "{tag}");
        }
    }
}
