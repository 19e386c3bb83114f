//! YAML with marks as a template of Helm.

use anyhow::{Context, ensure};
use models::names::{AGENT_NAMESPACE, SYSTEM_NAMESPACE};

use super::places::{Fill, Fills, MARK};

/// Writes the fills in the places of their marks, and the names of the namespaces as values.
///
/// # Errors
/// If the text has braces that Helm would evaluate, or a fill has no mark in it.
pub(super) fn expand(document: &str, fills: &Fills) -> anyhow::Result<String> {
    ensure!(!document.contains("{{") && !document.contains("}}"), "braces that Helm would evaluate: {document}");
    let (mut text, mut placed) = (String::new(), 0);
    for line in document.lines() {
        let Some((before, rest)) = line.split_once(MARK.0) else {
            text.push_str(&namespaces(line));
            text.push('\n');
            continue;
        };
        let number = rest.split_once(MARK.1).context("a mark without an end")?.0;
        text.push_str(&filled(before, fills.get(number.parse()?)?));
        placed += 1;
    }
    ensure!(placed == fills.len(), "{placed} of {} fills are in: {document}", fills.len());
    Ok(text)
}

/// A line with a mark, given what precedes the mark in it.
fn filled(before: &str, fill: &Fill) -> String {
    let indent = before.len() - before.trim_start().len();
    let space = " ".repeat(indent);
    // The mark may be quoted.
    let field = before.trim().trim_end_matches(['"', '\'']).trim_end();
    let with = |expression: &str, lines: &str| {
        format!("{space}{{{{- with {expression} }}}}\n{lines}\n{space}{{{{- end }}}}\n")
    };
    match fill {
        Fill::Scalar(expression) => format!("{space}{field} {{{{ {expression} }}}}\n"),
        Fill::Text(expression) => with(expression, &format!("{space}{field} {{{{ . }}}}")),
        Fill::Field(expression) => {
            with(expression, &format!("{space}{field}\n{space}  {{{{- toYaml . | nindent {} }}}}", indent + 2))
        }
        Fill::Entries(expression) => with(expression, &format!("{space}{{{{- toYaml . | nindent {indent} }}}}")),
        Fill::Items(lines) => lines.iter().map(|line| format!("{space}{line}\n")).collect(),
    }
}

/// The operator's own namespace is that of the release; the agents' is a value.
fn namespaces(line: &str) -> String {
    const SYSTEM: &str = ".Release.Namespace";
    const AGENTS: &str = ".Values.namespaces.agents.name";
    let mut line = line.to_owned();
    for (name, expression) in [(SYSTEM_NAMESPACE, SYSTEM), (AGENT_NAMESPACE, AGENTS)] {
        // A name of digits alone is a number unless it is quoted.
        if let Some(field) = line.strip_suffix(&format!(": {name}")) {
            line = format!("{field}: {{{{ {expression} | quote }}}}");
        }
        line = line.replace(name, &format!("{{{{ {expression} }}}}"));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_and_lost_fills_are_refused() {
        assert!(expand("a: '{{ b }}'\n", &Fills::default()).is_err());
        let mut fills = Fills::default();
        let mut object = serde_json::json!({"kind": "Service", "metadata": {"labels": {}}});
        super::super::places::fill(&mut object, &mut fills).unwrap();
        let error = expand("kind: Service\n", &fills).unwrap_err().to_string();
        assert!(error.contains("0 of 2 fills"), "{error}");
    }

    #[test]
    fn namespaces_become_values() {
        assert_eq!(namespaces("  namespace: brupop-system"), "  namespace: {{ .Release.Namespace | quote }}");
        assert_eq!(
            namespaces("- --agent-namespace=brupop-agents"),
            "- --agent-namespace={{ .Values.namespaces.agents.name }}"
        );
    }
}
