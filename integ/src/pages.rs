//! Commands of the documentation, for tests that run them as they are.

use std::path::Path;

use anyhow::Context as _;

/// The command lines of the first code block below a heading of a page, given by its path in the repository, without notes. A line
/// that ends with `&&` or a backslash is one with the next. The heading is that of any level.
///
/// # Errors
/// The page cannot be read, or has no such heading or no commands below it.
pub fn commands(page: &str, heading: &str) -> anyhow::Result<Vec<String>> {
    let lines = block(page, heading, "```sh\n")?.replace("&&\n  ", "&& ").replace("\\\n  ", "");
    Ok(lines.lines().filter(|line| !line.starts_with('#')).map(|line| line.trim().to_owned()).collect())
}

/// The first YAML block below a heading of a page.
///
/// # Errors
/// The page cannot be read, or has no such heading or no YAML below it.
pub fn yaml(page: &str, heading: &str) -> anyhow::Result<String> {
    block(page, heading, "```yaml\n")
}

/// The first block of plain text below a heading of a page.
///
/// # Errors
/// The page cannot be read, or has no such heading or no text below it.
pub fn text(page: &str, heading: &str) -> anyhow::Result<String> {
    block(page, heading, "```text\n")
}

fn block(page: &str, heading: &str, fence: &str) -> anyhow::Result<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(page);
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let title = text.lines().find(|line| line.starts_with('#') && line.trim_start_matches('#').trim() == heading);
    let title = title.with_context(|| format!("{page} has no heading '{heading}'"))?;
    let (_, section) = text.split_once(&format!("\n{title}\n")).context("the heading is a line")?;
    let (_, rest) = section.split_once(fence).with_context(|| format!("{page}, '{heading}' has no block"))?;
    let (block, _) = rest.split_once("```").context("a block without an end")?;
    Ok(block.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quick_start_labels_a_node_and_enables_updates_in_two_lines() {
        let lines = commands("README.md", "Install it").unwrap();
        assert!(lines[0].starts_with("kubectl apply ") && lines[0].ends_with("/brupop.yaml"), "{lines:?}");
        let own = &lines[1..];
        assert!(own[0].starts_with("kubectl label node NODE ") && own[1].contains(r#"{"enabled":true}"#), "{lines:?}");
        assert!(commands("README.md", "No such heading").is_err());
    }
}
