//! What others wrote may hold what nobody should read: log lines and messages are cleaned before they
//! become part of a finding.

/// Words after which a secret may stand.
const MARKS: &[&str] = &["password", "passwd", "pwd", "token", "secretkey"];

/// The text in one line, with values that follow a word like `password` and `=` or `:` masked.
pub(crate) fn clean(text: &str) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let lower = line.to_ascii_lowercase();
    let mut cleaned = String::with_capacity(line.len());
    let mut at = 0;
    while let Some((start, end)) = next_secret(&line, &lower, at) {
        cleaned.push_str(&line[at..start]);
        cleaned.push_str("***");
        at = end;
    }
    cleaned.push_str(&line[at..]);
    cleaned
}

/// Where the next secret begins and ends.
fn next_secret(line: &str, lower: &str, from: usize) -> Option<(usize, usize)> {
    let mut search = from;
    loop {
        let (at, mark) = MARKS
            .iter()
            .filter_map(|mark| Some((search + lower[search..].find(mark)?, *mark)))
            .min()?;
        search = at + mark.len();
        // A quote that closes the word, then the sign, then a quote that opens the value.
        let rest = line[search..].trim_start_matches(['"', '\'', '\\']).trim_start();
        let Some(rest) = rest.strip_prefix([':', '=']) else { continue };
        let rest = rest.trim_start();
        let value = rest.trim_start_matches(['"', '\'', '\\']);
        let start = line.len() - value.len();
        let quoted = value.len() < rest.len();
        let ends = |c: char| {
            let bare = c.is_whitespace() || matches!(c, ',' | ';' | '}' | ')');
            if quoted { c == '"' || c == '\'' } else { bare }
        };
        let end = value.find(ends).map_or(line.len(), |length| start + length);
        if end > start {
            return Some((start, end));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn passwords_are_masked_however_they_are_written() {
        for (text, expected) in [
            ("password = \"hunter2\"", "password = \"***\""),
            ("Password=hunter2, user=k8s", "Password=***, user=k8s"),
            (r#"{"password":"hunter2","user":"k8s"}"#, r#"{"password":"***","user":"k8s"}"#),
            ("token: abc def", "token: *** def"),
            ("pwd=a token=b", "pwd=*** token=***"),
            ("incorrect user name or password", "incorrect user name or password"),
            ("the password of k8s expires", "the password of k8s expires"),
            ("first\nsecond\ttab", "first second tab"),
        ] {
            assert_eq!(clean(text), expected);
        }
    }

    proptest! {
        #[test]
        fn nothing_makes_it_stumble_and_no_secret_gets_through(
            before in "\\PC{0,20}",
            secret in "[A-Za-z0-9]{12,20}",
            after in "\\PC{0,20}",
        ) {
            let cleaned = clean(&format!("{before} password={secret} {after}"));
            prop_assert!(!cleaned.contains(&secret), "{cleaned}");
            prop_assert!(!clean(&after).contains('\n'));
        }
    }
}
