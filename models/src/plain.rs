//! Texts from other parties, made safe to show: the output of a host, an agent or a server ends up in objects, in logs and on the terminals of
//! users, and there it must be read and not obeyed. Lists of names are cut here, too.

/// The character, or what is shown in its place: a space for the end of a line and a tabulator, a replacement character for
/// whatever else would move a cursor or change the order in which text is read, and for what hides in a text. One for one, so that a text
/// keeps its length, and one that was made plain is left as it is.
pub const fn shown(c: char) -> char {
    match c {
        '\t'..='\r' | '\u{85}' | '\u{2028}' | '\u{2029}' => ' ',
        // Controls of the terminal, in their short and their long form.
        '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' => char::REPLACEMENT_CHARACTER,
        // Marks and overrides of the direction, invisible characters, and tags.
        '\u{ad}'
        | '\u{61c}'
        | '\u{180e}'
        | '\u{200b}'..='\u{200f}'
        | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{feff}'
        | '\u{fff9}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e007f}' => char::REPLACEMENT_CHARACTER,
        _ => c,
    }
}

/// The whole text, on one line.
pub fn plain(text: &str) -> String {
    // Nearly every text is like this, and plans make many of them.
    let is_plain = text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
    if is_plain { text.to_owned() } else { text.chars().map(shown).collect() }
}

/// At most so many characters of it, on one line.
pub fn cut(text: &str, longest: usize) -> String {
    let end = text.char_indices().nth(longest).map_or(text.len(), |(end, _)| end);
    plain(&text[..end])
}

/// Returns whether two texts differ in digits at most, as messages about the same cause do that have a time or a count in them.
pub fn is_alike(one: &str, other: &str) -> bool {
    let is_text = |c: &char| !c.is_ascii_digit();
    one.chars().filter(is_text).eq(other.chars().filter(is_text))
}

/// Returns a number with its noun, as in "1 node" and "2 nodes".
pub fn counted<N: Copy + PartialEq + From<u8> + std::fmt::Display>(count: N, noun: &str) -> String {
    let plural = if count == N::from(1) { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

/// The first so many names, and the number of the others: `a, b and 3 more`.
pub fn some(names: impl IntoIterator<Item = impl AsRef<str>>, shown: usize) -> String {
    some_by(names, shown, ", ", " and ")
}

/// The same list as by [`some`], with other texts between two names and before the number.
pub fn some_by(names: impl IntoIterator<Item = impl AsRef<str>>, shown: usize, between: &str, last: &str) -> String {
    let mut names = names.into_iter();
    let first: Vec<String> = names.by_ref().take(shown).map(|name| name.as_ref().to_owned()).collect();
    match names.count() {
        0 => first.join(between),
        more => format!("{}{last}{more} more", first.join(between)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_has_no_line_breaks_control_or_bidi_characters() {
        for (input, shown) in [
            ("no space left on /dev/sda: größer ✓", "no space left on /dev/sda: größer ✓"),
            ("one\ntwo\r\nthree\tfour", "one two  three four"),
            ("\u{1b}[2J\u{1b}]0;title\u{7}", "\u{fffd}[2J\u{fffd}]0;title\u{fffd}"),
            ("\u{9b}2J\u{7f}\u{8}\0", "\u{fffd}2J\u{fffd}\u{fffd}\u{fffd}"),
            ("a\u{85}b\u{2028}c\u{2029}d\u{b}e\u{c}f", "a b c d e f"),
            ("\u{202e}txt.exe\u{2066}\u{200f}\u{61c}", "\u{fffd}txt.exe\u{fffd}\u{fffd}\u{fffd}"),
            ("a\u{200b}b\u{feff}c\u{ad}d\u{e0041}", "a\u{fffd}b\u{fffd}c\u{fffd}d\u{fffd}"),
        ] {
            assert_eq!(plain(input), shown);
            assert_eq!(plain(shown), shown, "what is plain stays as it is");
        }
    }

    #[test]
    fn plain_text_has_no_control_characters() {
        let all: String = (char::MIN..=char::MAX).collect();
        assert!(!plain(&all).contains(char::is_control));
        assert_eq!(plain(&all).chars().count(), all.chars().count(), "a limit that held holds");
    }

    #[test]
    fn truncated_text_is_sanitized() {
        assert_eq!(cut("ä\nö\u{1b}ü", 4), "ä ö\u{fffd}");
        assert_eq!(cut("no space left", 8), "no space");
        assert_eq!(cut("", 4), "");
    }
}
