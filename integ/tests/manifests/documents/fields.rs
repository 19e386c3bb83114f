//! The fields that a command of kubectl reads, by `-o jsonpath=`, `-o custom-columns=` and `--sort-by=`. kubectl prints
//! nothing for a field that does not exist, so that a command with such a field is wrong and succeeds.

use anyhow::{Context as _, bail, ensure};

/// Options whose value may be a word of its own.
const WITH_VALUE: [&str; 8] =
    ["-n", "--namespace", "-l", "--selector", "-o", "--output", "--field-selector", "--sort-by"];

/// Output formats that read fields, by the beginning of their option's value.
const JSONPATH: [&str; 2] = ["jsonpath=", "jsonpath-as-json="];
const COLUMNS: &str = "custom-columns=";

/// The names of a field, from the root of an object.
type Names = Vec<String>;

/// The fields that a command reads, in the form that `kubectl explain` takes. Keys of maps, and what is below them, are left
/// out.
///
/// # Errors
/// A template is not understood here, or reads nothing.
pub(super) fn read_by(arguments: &[&str]) -> anyhow::Result<Vec<String>> {
    let (mut words, mut templates, mut columns) = (Vec::new(), Vec::new(), Vec::new());
    let mut rest = arguments.iter();
    while let Some(word) = rest.next() {
        let (option, value) = match word.split_once('=') {
            Some((option, value)) if word.starts_with('-') => (option, Some(value)),
            _ if WITH_VALUE.contains(word) => (*word, rest.next().copied()),
            _ if word.starts_with('-') => continue,
            _ => {
                words.push(*word);
                continue;
            }
        };
        let value = value.unwrap_or_default();
        match option {
            "--sort-by" => columns.push(value),
            "-o" | "--output" => {
                templates.extend(JSONPATH.iter().find_map(|format| value.strip_prefix(format)));
                columns.extend(value.strip_prefix(COLUMNS).map(split_columns).transpose()?.unwrap_or_default());
            }
            _ => {}
        }
    }
    let hidden = |word: &&str| word.contains("jsonpath") || word.contains(COLUMNS);
    if templates.is_empty() && columns.is_empty() {
        let hidden = arguments.iter().copied().find(hidden);
        return hidden.map_or(Ok(Vec::new()), |word| bail!("the test does not know how to read {word}"));
    }
    let ["get", resource, names @ ..] = &words[..] else { bail!("the test reads fields of `kubectl get` alone") };
    let (resource, is_list) = match resource.split_once('/') {
        Some((resource, _)) => (resource, false),
        None => (*resource, names.len() != 1),
    };
    let mut found = Vec::new();
    for template in templates {
        let read = of_template(template).with_context(|| format!("jsonpath={template}"))?;
        ensure!(!read.is_empty(), "jsonpath={template} reads no field");
        for names in read {
            found.push(if is_list {
                of_an_item(names).with_context(|| format!("jsonpath={template}"))?
            } else {
                names
            });
        }
    }
    for column in columns {
        // Of each object, in a list too; the braces may be left out.
        let path = column.trim_start_matches('{').trim_end_matches('}');
        of_path(path, &[], &mut found).with_context(|| column.to_owned())?;
    }
    let found = found.into_iter().filter(|names| !names.is_empty());
    Ok(found.map(|names| format!("{resource}.{}", names.join("."))).collect())
}

/// The names without those of the list.
fn of_an_item(mut names: Names) -> anyhow::Result<Names> {
    ensure!(names.first().is_some_and(|name| name == "items"), "a list has .items, and no .{}", names.join("."));
    names.remove(0);
    Ok(names)
}

/// The paths of `NAME:PATH,NAME:PATH`.
fn split_columns(text: &str) -> anyhow::Result<Vec<&str>> {
    let (mut columns, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        let end = end_of(rest, ',').unwrap_or(rest.len());
        let (column, after) = rest.split_at(end);
        columns.push(column.split_once(':').with_context(|| format!("{column}: no NAME:PATH"))?.1);
        rest = after.get(1..).unwrap_or_default();
    }
    Ok(columns)
}

/// The fields of a template: text, and in braces paths, texts, `range PATH` and `end`.
fn of_template(template: &str) -> anyhow::Result<Vec<Names>> {
    let (mut found, mut ranges) = (Vec::new(), Vec::<Names>::new());
    let mut rest = template;
    while let Some((_, opened)) = rest.split_once('{') {
        let (action, after) = opened.split_at(end_of(opened, '}').context("a brace is not closed")?);
        rest = after.get(1..).unwrap_or_default();
        let action = action.trim();
        let here = ranges.last().cloned().unwrap_or_default();
        if action == "end" {
            ranges.pop().context("`end` without `range`")?;
        } else if let Some(path) = action.strip_prefix("range ") {
            let range = of_path(path.trim(), &here, &mut found)?;
            ranges.push(range);
        } else if !action.starts_with(['"', '\'']) {
            of_path(action, &here, &mut found)?;
        }
    }
    ensure!(ranges.is_empty(), "`range` without `end`");
    Ok(found)
}

/// Adds the field of a path, and those of its filters, and returns the names of the first. Elements of a list have the names of the
/// list.
fn of_path(path: &str, here: &[String], found: &mut Vec<Names>) -> anyhow::Result<Names> {
    let (mut names, mut rest) = match path.strip_prefix('$') {
        Some(rest) => (Vec::new(), rest),
        None => (here.to_vec(), path.strip_prefix('@').unwrap_or(path)),
    };
    let not_understood = || format!("the path {path} is not understood by the test");
    while !rest.is_empty() {
        if let Some(opened) = rest.strip_prefix('[') {
            let (index, after) = opened.split_at(end_of(opened, ']').with_context(not_understood)?);
            rest = after.get(1..).unwrap_or_default();
            if let Some(filter) = index.strip_prefix("?(").and_then(|filter| filter.strip_suffix(')')) {
                let operand = filter.split(['=', '!', '<', '>']).next().unwrap_or_default().trim();
                ensure!(operand.starts_with("@."), not_understood());
                of_path(operand, &names, found)?;
            } else if index.starts_with(['"', '\'']) {
                break;
            } else {
                ensure!(
                    index == "*" || index.chars().all(|c| c.is_ascii_digit() || "-:".contains(c)),
                    not_understood()
                );
            }
        } else {
            let name = rest.strip_prefix('.').with_context(not_understood)?;
            let (name, after) = name.split_at(name.find(['.', '[']).unwrap_or(name.len()));
            // `\.` is in a key of a map.
            if name == "*" || name.contains('\\') {
                break;
            }
            let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic())
                && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
            ensure!(is_name, not_understood());
            names.push(name.to_owned());
            rest = after;
        }
    }
    found.push(names.clone());
    Ok(names)
}

/// The place of the character that ends a part of a template, outside of quotes and brackets.
fn end_of(text: &str, end: char) -> Option<usize> {
    let (mut quote, mut depth, mut escaped) = (None, 0_usize, false);
    for (place, c) in text.char_indices() {
        match quote {
            _ if escaped => escaped = false,
            Some(_) if c == '\\' => escaped = true,
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if c == end && depth == 0 => return Some(place),
            None => match c {
                '"' | '\'' => quote = Some(c),
                '[' => depth += 1,
                ']' => depth = depth.saturating_sub(1),
                _ => {}
            },
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fields that `kubectl get` reads with these words, with bars between them.
    fn read(words: &str) -> anyhow::Result<Vec<String>> {
        read_by(&["get"].into_iter().chain(words.split('|')).collect::<Vec<_>>())
    }

    #[test]
    fn fields_of_commands_are_found() -> anyhow::Result<()> {
        for (words, expected) in [
            ("brs", ""),
            ("brs|-n|a|-o|yaml", ""),
            ("brs|brs-a|-n|a|-o|jsonpath={.status.host.set}", "brs.status.host.set"),
            (r#"-n|a|brs/brs-a|--output=jsonpath=a {.spec.version} {.spec}{"\n"}"#, "brs.spec.version brs.spec"),
            ("node|a|-o=jsonpath={.metadata.annotations}", "node.metadata.annotations"),
            (
                r#"brs|-o|jsonpath={range .items[*]}{.metadata.name}: {@.status.host.applied}{"}\"\n"}{end}"#,
                "brs.metadata.name brs.status.host.applied",
            ),
            ("nodes|a|b|-o|jsonpath={.items[0].metadata.name}{.items[-1:].spec}", "nodes.metadata.name nodes.spec"),
            (
                r#"bruo|a|-o|jsonpath={.status.conditions[?(@.type=="a]b")].reason}"#,
                "bruo.status.conditions.type bruo.status.conditions.reason",
            ),
            (
                "node|a|-o|jsonpath={range .status.conditions[*]}{.type}{range $.spec.taints[*]}{.key}{end}{end}",
                "node.status.conditions node.status.conditions.type node.spec.taints node.spec.taints.key",
            ),
            (
                r"node|a|-o|jsonpath={.metadata.labels.a\.b/c}{.metadata.labels['d']}{.metadata.annotations.*}",
                "node.metadata.labels node.metadata.labels node.metadata.annotations",
            ),
            (
                r#"brs|-o|custom-columns=NAME:.metadata.name,OF:.status.conditions[?(@.type=="a,b")].reason"#,
                "brs.metadata.name brs.status.conditions.type brs.status.conditions.reason",
            ),
            ("controllerrevisions|-n|a|--sort-by=.revision|-o|yaml", "controllerrevisions.revision"),
        ] {
            assert_eq!(read(words).with_context(|| words)?.join(" "), expected, "{words}");
        }
        Ok(())
    }

    #[test]
    fn templates_that_are_not_understood_are_refused() -> anyhow::Result<()> {
        for (words, expected) in [
            ("brs|-o|jsonpath={.status.host}", "a list has .items, and no .status.host"),
            ("brs|a|-o|jsonpath=.status.host", "reads no field"),
            ("brs|a|-o|jsonpath={.status", "a brace is not closed"),
            ("brs|-o|jsonpath={range .items[*]}{.spec}", "`range` without `end`"),
            ("brs|a|-o|jsonpath={.spec}{end}", "`end` without `range`"),
            ("brs|a|-o|jsonpath={..host}", "not understood"),
            ("brs|a|-o|jsonpath={.spec .status}", "not understood"),
            ("brs|a|-o|jsonpath={.spec[?(a)]}", "not understood"),
            ("brs|a|-o|custom-columns=.spec", "no NAME:PATH"),
            ("brs|a|-ojsonpath={.spec}", "does not know how to read"),
        ] {
            let error = read(words).err().with_context(|| format!("{words} is not refused"))?;
            assert!(format!("{error:#}").contains(expected), "{words}: {error:#}");
        }
        Ok(())
    }
}
