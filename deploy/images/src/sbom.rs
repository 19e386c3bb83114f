//! The list of what a program is linked from, as SPDX 2.3.

use serde_json::{Value, json};

use crate::component::Component;
use crate::crates::Package;
use crate::digest::sha256;

/// The program that a document is about.
pub(crate) struct Subject<'a> {
    pub(crate) name: &'a str,
    pub(crate) package: &'a Package,
    /// SPDX expression with the licenses of everything.
    pub(crate) licenses: &'a str,
    pub(crate) created: &'a str,
    pub(crate) program: &'a [u8],
}

/// Returns the document.
pub(crate) fn document(subject: &Subject<'_>, components: &[Component]) -> anyhow::Result<String> {
    let Subject { name, package, licenses, created, program } = subject;
    let digest = sha256(program);
    let mut packages = vec![json!({
        "SPDXID": "SPDXRef-Program",
        "name": name,
        "versionInfo": package.version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": false,
        "primaryPackagePurpose": "APPLICATION",
        "licenseConcluded": licenses,
        "licenseDeclared": package.license,
        "copyrightText": "NOASSERTION",
        "checksums": [{"algorithm": "SHA256", "checksumValue": digest}],
    })];
    let mut relations = vec![relation("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-Program")];
    for component in components {
        let within = component.within.and_then(|name| components.iter().find(|component| component.name == name));
        relations.push(match within {
            Some(whole) => relation(&id(whole), "CONTAINS", &id(component)),
            None => relation("SPDXRef-Program", "STATIC_LINK", &id(component)),
        });
        packages.push(entry(component));
    }
    let document = json!({
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": name,
        "documentNamespace": format!("https://spdx.org/spdxdocs/{name}-{}-{digest}", package.version),
        "creationInfo": {"created": created, "creators": [concat!("Tool: brupop-images-", env!("CARGO_PKG_VERSION"))]},
        "packages": packages,
        "relationships": relations,
    });
    Ok(format!("{document:#}\n"))
}

fn relation(from: &str, kind: &str, to: &str) -> Value {
    json!({"spdxElementId": from, "relationshipType": kind, "relatedSpdxElement": to})
}

/// Identifiers have letters, digits, dots and hyphens only.
fn id(component: &Component) -> String {
    let Component { name, version, within, .. } = component;
    let whole = within.map(|name| format!("{name}-")).unwrap_or_default();
    let version = if version.is_empty() { String::new() } else { format!("-{version}") };
    let text = format!("SPDXRef-{whole}{}{version}", name.replace('_', "."));
    text.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect()
}

fn entry(component: &Component) -> Value {
    let Component { name, version, license, checksum, purl, origin, .. } = component;
    let mut entry = json!({
        "SPDXID": id(component),
        "name": name,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": false,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": license,
        "copyrightText": "NOASSERTION",
    });
    if !version.is_empty() {
        entry["versionInfo"] = version.as_str().into();
    }
    if let Some(checksum) = checksum {
        let location = format!("https://static.crates.io/crates/{name}/{name}-{version}.crate");
        entry["downloadLocation"] = location.into();
        entry["checksums"] = json!([{"algorithm": "SHA256", "checksumValue": checksum}]);
    }
    if let Some(purl) = purl {
        entry["externalRefs"] = json!([{
            "referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl,
        }]);
    }
    if let Some(origin) = origin {
        entry["sourceInfo"] = origin.as_str().into();
    }
    entry
}
