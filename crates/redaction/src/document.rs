//! Masks secrets in a user's file. Every byte keeps its place, so that error messages can point into it.
//!
//! The file may be invalid YAML, so nothing here relies on the grammar. A mask covers the rest of the line
//! after a secret name, and all lines below that may belong to it.

use crate::{
    REDACTED,
    names::{is_name_character, is_secret_name},
};

/// Replaces one byte.
const MASK: &str = "*";

/// Sections of a Secret. Every value in them is secret.
const SECTIONS: [&str; 3] = ["data", "stringData", "binaryData"];

/// Masks secrets in a file. Each line keeps its length in bytes.
pub fn mask_document(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut open: Option<OpenValue> = None;
    for line in text.split_inclusive('\n') {
        if line.trim_end() == "---" || line.starts_with("--- ") {
            open = None;
        }
        if let Some(section) = &mut open
            && section.takes(line)
        {
            mask(line, &mut shown);
            continue;
        }
        open = start_of_secret(line).map(|begin| {
            shown.push_str(&line[..begin]);
            mask(&line[begin..], &mut shown);
            OpenValue::begin(indent(line), &line[begin..])
        });
        if open.is_none() {
            shown.push_str(line);
        }
    }
    shown
}

/// Redacts a message about a document: every word that [`mask_document`] masks in the document.
pub fn redact_message(message: &str, document: &str) -> String {
    let masked = mask_document(document);
    let (mut message, mut word) = (message.to_owned(), String::new());
    let is_masked = |at: usize| masked.as_bytes().get(at) == Some(&b'*');
    for (at, c) in document.char_indices().chain([(document.len(), '\n')]) {
        if is_masked(at) && !c.is_whitespace() && !"{}[],:\"'".contains(c) {
            word.push(c);
            continue;
        }
        if word.chars().count() > 3 && !["username", "password"].contains(&word.as_str()) {
            message = message.replace(&word, REDACTED);
        }
        word.clear();
    }
    message
}

/// A secret value that may continue on the next line.
struct OpenValue {
    indent: usize,
    /// Brackets that are still open.
    depth: i32,
    quote: Option<char>,
}

impl OpenValue {
    fn begin(indent: usize, value: &str) -> Self {
        let mut open = Self { indent, depth: 0, quote: None };
        // In a plain scalar, brackets and quotes have no meaning.
        if value.trim_start().starts_with(['{', '[', '"', '\'']) {
            open.read(value);
        }
        open
    }

    /// Whether the line belongs to the value. Closes brackets and quotes that end in the line.
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

/// Where the first secret value of a line starts: after a secret name that is a key, or that is the first
/// word of the line, because its colon may be missing.
fn start_of_secret(line: &str) -> Option<usize> {
    let mut begin = 0;
    while let Some(skip) = line[begin..].find(is_name_character) {
        begin += skip;
        let length = line[begin..].find(|c| !is_name_character(c)).unwrap_or(line.len() - begin);
        let (name, rest) = line[begin..].split_at(length);
        let secret =
            is_secret_name(name) || SECTIONS.iter().any(|one| one.eq_ignore_ascii_case(name));
        let after = rest.trim_start_matches(['"', '\'', '\\']).trim_start();
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

fn mask(text: &str, shown: &mut String) {
    for c in text.chars() {
        if c.is_whitespace() {
            shown.push(c);
        } else {
            shown.push_str(&MASK.repeat(c.len_utf8()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_masked_even_in_invalid_yaml() {
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
            let shown = mask_document(text);
            assert!(!shown.contains("S3cret"), "{text}{shown}");
            assert_eq!(shown.len(), text.len(), "{text}{shown}");
            let ends = |text: &str| text.match_indices('\n').map(|(at, _)| at).collect::<Vec<_>>();
            assert_eq!(ends(&shown), ends(text), "{text}{shown}");
        }
    }

    #[test]
    fn everything_else_is_shown() {
        let text = "kind: Secret\nmetadata:\n  name: vc-password\n---\nspec:\n  credentials: vc\n  - a: [1\n";
        assert_eq!(mask_document(text), text);
        let shown =
            mask_document("data:\n  a: b\nkind: Secret\n---\npassword: {\n---\nkind: VDOConfig\n");
        assert_eq!(shown, "data:\n  ** *\nkind: Secret\n---\npassword: *\n---\nkind: VDOConfig\n");
    }

    #[test]
    fn a_message_does_not_repeat_masked_words() {
        let text = "password: *S3cret\nuser: u\n";
        assert_eq!(
            redact_message("no anchor *S3cret of user", text),
            "no anchor (redacted) of user"
        );
    }
}
