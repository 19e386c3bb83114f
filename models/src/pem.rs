//! The certificates of a bundle in PEM.

/// The first line of a certificate.
pub const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
/// The last line of a certificate.
pub const END: &str = "-----END CERTIFICATE-----";

/// Returns the blocks of certificates in a text, each from its first line to its last, and whether there is nothing
/// else in it. A block without a last line ends where the next one begins, so that it takes no other along.
pub fn certificates(text: &str) -> (Vec<&str>, bool) {
    let (mut blocks, mut clean, mut rest) = (Vec::new(), true, text);
    while let Some(begin) = rest.find(BEGIN) {
        clean &= rest[..begin].trim().is_empty();
        let block = &rest[begin..];
        let next = block[BEGIN.len()..].find(BEGIN).map_or(block.len(), |at| BEGIN.len() + at);
        let end = block[..next].find(END).map_or(next, |at| at + END.len());
        blocks.push(&block[..end]);
        rest = &block[end..];
    }
    (blocks, clean && rest.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ca_bundle_is_split_into_pem_blocks() {
        let (one, other) = (format!("{BEGIN}\nAAAA\n{END}"), format!("{BEGIN}\nBBBB\n{END}"));
        let (one, other) = (one.as_str(), other.as_str());
        let cut = format!("{BEGIN}\nCC\n");
        let cut = cut.as_str();
        for (text, blocks, clean) in [
            (String::new(), vec![], true),
            ("no PEM".into(), vec![], false),
            (format!("{one}\n{other}\n"), vec![one, other], true),
            (format!("{one}{other}"), vec![one, other], true),
            (format!("# a comment\n{one}"), vec![one], false),
            (format!("{one}\nbetween\n{other}"), vec![one, other], false),
            (format!("{one}\nbehind"), vec![one], false),
            (format!("{one}\n{cut}"), vec![one, cut], true),
            (format!("{cut}{other}"), vec![cut, other], true),
            (format!("{END}\n{one}"), vec![one], false),
            (BEGIN.into(), vec![BEGIN], true),
        ] {
            assert_eq!(certificates(&text), (blocks, clean), "{text}");
        }
    }
}
