//! A user's file as it may be shown: every place is where it was, and what is secret cannot be read.
//!
//! The text may be broken, and whoever reads it must not lean on its grammar. So rather too much is
//! hidden: all that follows a telling name on its line, and whatever may still belong to it below.

use operator::support::is_telling;

/// What stands for a byte that is not shown.
const FILLER: &str = "*";

/// Names of sections that hold what is secret, whatever stands in them.
const SECTIONS: [&str; 3] = ["data", "stringData", "binaryData"];

/// A text with fillers in place of what may be secret; as long as before in bytes, line by line.
pub(crate) fn redacted(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut open: Option<Open> = None;
    for line in text.split_inclusive('\n') {
        if line.trim_end() == "---" || line.starts_with("--- ") {
            open = None;
        }
        if let Some(section) = &mut open
            && section.takes(line)
        {
            cover(line, &mut shown);
            continue;
        }
        open = value(line).map(|begin| {
            shown.push_str(&line[..begin]);
            cover(&line[begin..], &mut shown);
            Open::begin(indent(line), &line[begin..])
        });
        if open.is_none() {
            shown.push_str(line);
        }
    }
    shown
}

/// What somebody else says about a text, without the words that are hidden in it.
pub(crate) fn discreet(output: &str, text: &str) -> String {
    let shown = redacted(text);
    let (mut output, mut word) = (output.to_owned(), String::new());
    let hidden = |at: usize| shown.as_bytes().get(at) == Some(&b'*');
    for (at, c) in text.char_indices().chain([(text.len(), '\n')]) {
        if hidden(at) && !c.is_whitespace() && !"{}[],:\"'".contains(c) {
            word.push(c);
            continue;
        }
        if word.chars().count() > 3 && !["username", "password"].contains(&word.as_str()) {
            output = output.replace(&word, "(hidden)");
        }
        word.clear();
    }
    output
}

/// Something secret that may go on in the next line.
struct Open {
    indent: usize,
    /// Brackets and a quote that are not closed yet.
    depth: i32,
    quote: Option<char>,
}

impl Open {
    fn begin(indent: usize, value: &str) -> Self {
        let mut open = Self { indent, depth: 0, quote: None };
        // Within a plain text they mean nothing.
        if value.trim_start().starts_with(['{', '[', '"', '\'']) {
            open.read(value);
        }
        open
    }

    /// Whether a line belongs to it, which then may end it.
    fn takes(&mut self, line: &str) -> bool {
        if self.depth > 0 || self.quote.is_some() {
            self.read(line);
            return true;
        }
        let text = line.trim_start();
        text.is_empty() || indent(line) > self.indent || text.starts_with(": ")
    }

    fn read(&mut self, text: &str) {
        let (mut before, mut escaped) = (' ', false);
        for c in text.chars() {
            match self.quote {
                Some(quote) if c == quote && !escaped => self.quote = None,
                Some(quote) => escaped = quote == '"' && c == '\\' && !escaped,
                None => match c {
                    '{' | '[' => self.depth += 1,
                    '}' | ']' => self.depth -= 1,
                    '"' | '\'' if before.is_whitespace() || "{[,:".contains(before) => {
                        self.quote = Some(c);
                    }
                    _ => {}
                },
            }
            before = c;
        }
    }
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// Where in a line that begins which is secret: behind a telling name that is a key, or that begins the
/// line and may have lost its colon.
fn value(line: &str) -> Option<usize> {
    let part = |c: char| c.is_alphanumeric() || "-_./".contains(c);
    let mut begin = 0;
    while let Some(skip) = line[begin..].find(part) {
        begin += skip;
        let length = line[begin..].find(|c| !part(c)).unwrap_or(line.len() - begin);
        let (name, rest) = line[begin..].split_at(length);
        let secret = is_telling(name) || SECTIONS.iter().any(|one| one.eq_ignore_ascii_case(name));
        let after = rest.trim_start_matches(['"', '\'']).trim_start();
        let is_key = after.starts_with([':', '=']);
        let is_first =
            !line[..begin].contains(|c: char| !(c.is_whitespace() || "-?#{\"'".contains(c)));
        if secret && (is_key || is_first) {
            return Some(line.len() - after.len() + usize::from(is_key));
        }
        begin += length;
    }
    None
}

fn cover(text: &str, shown: &mut String) {
    for c in text.chars() {
        if c.is_whitespace() {
            shown.push(c);
        } else {
            shown.push_str(&FILLER.repeat(c.len_utf8()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_secret_is_not_shown_however_broken_the_text_is() {
        for text in [
            "stringData: {username: u, password: S3cret}x\"y}\n",
            "stringData:\n  username: u\n  password: S3cret\nkind: Secret\n",
            "stringData:\n  vc.password S3cret\n\n  more: S3cret\nkind: Secret\n",
            "spec:\n  password:S3cret\n",
            "spec:\n  password S3cret\n",
            "spec:\n  - password: |\n      S3cret\n    x: y\n",
            "password: \"S3\nS3cret\"\nkind: Secret\n",
            "password: \"S3\nS3cret\nkind: Secret\n",
            "data: {\nx: S3cret\n}\nkind: Secret\n",
            "{\"kind\": \"Secret\", \"data\": {\"x\": \"S3cret\"}}\n",
            "{user: u, password: S3cret, port: 1}\n",
            "? password\n: S3cret\n",
            "password: ößS3cret\n",
            "\t\"password\" = S3cret",
        ] {
            let shown = redacted(text);
            assert!(!shown.contains("S3cret"), "{text}{shown}");
            assert_eq!(shown.len(), text.len(), "{text}{shown}");
            let ends = |text: &str| text.match_indices('\n').map(|(at, _)| at).collect::<Vec<_>>();
            assert_eq!(ends(&shown), ends(text), "{text}{shown}");
        }
    }

    #[test]
    fn what_is_not_secret_is_shown() {
        let text = "kind: Secret\nmetadata:\n  name: vc-password\n---\nspec:\n  credentials: vc\n  - a: [1\n";
        assert_eq!(redacted(text), text);
        let shown =
            redacted("data:\n  a: b\nkind: Secret\n---\npassword: {\n---\nkind: VDOConfig\n");
        assert_eq!(shown, "data:\n  ** *\nkind: Secret\n---\npassword: *\n---\nkind: VDOConfig\n");
    }

    #[test]
    fn nobody_repeats_what_is_hidden() {
        let text = "password: *S3cret\nuser: u\n";
        assert_eq!(discreet("no anchor *S3cret of user", text), "no anchor (hidden) of user");
    }
}
