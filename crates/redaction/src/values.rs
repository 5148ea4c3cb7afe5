//! Redacts the values of known Secrets, in every encoding that programs use.

use std::{collections::BTreeSet, fmt};

use aho_corasick::{AhoCorasick, MatchKind};
use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD},
};
use serde_json::Value;

use crate::{REDACTED, is_secret_name};

/// Shorter values occur everywhere by chance: they are redacted only as whole words.
const SHORTEST: usize = 4;
/// The shortest readable part of a binary value that is redacted on its own.
const SHORTEST_READABLE: usize = 8;

/// One entry of a Secret.
pub struct SecretValue {
    pub key: String,
    pub value: Vec<u8>,
}

/// The values of known Secrets, ready to be searched for.
#[derive(Clone, Default)]
pub struct SecretValues {
    anywhere: Search,
    /// Values that are redacted only between characters that are not letters or digits.
    whole_words: Search,
}

#[derive(Clone, Default)]
enum Search {
    #[default]
    Nothing,
    For(AhoCorasick),
    /// There are too many values. No text can be shown.
    Impossible,
}

/// Replaces a text that cannot be searched.
const NOT_SEARCHED: &str = "(omitted: there are too many secrets to search for)\n";

impl fmt::Debug for SecretValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretValues")
    }
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key)
    }
}

impl SecretValues {
    /// Prepares the search for each value as a whole, and for the secret values of lines in it: plain, and as
    /// XML, JSON (once and twice over), URLs, base64 (at any offset) and hex encode it.
    ///
    /// Values of less than four characters count only if their key is a secret name: Secrets also contain
    /// ports and booleans, which support needs.
    pub fn new(secrets: impl IntoIterator<Item = SecretValue>) -> Self {
        let (mut anywhere, mut whole_words) = (BTreeSet::new(), BTreeSet::new());
        for SecretValue { key, value } in secrets {
            for (part, is_secret) in parts(&value, is_secret_name(&key)) {
                let text = std::str::from_utf8(&part).ok();
                let length = text.map_or(part.len(), |text| text.chars().count());
                if length == 0 || !is_secret && text.is_some_and(is_common) {
                    continue;
                }
                if length >= SHORTEST {
                    anywhere.extend(encodings(&part));
                } else if is_secret {
                    whole_words.extend(encodings(&part));
                }
            }
        }
        anywhere.retain(|text| text.len() >= SHORTEST);
        Self { anywhere: search_for(anywhere), whole_words: search_for(whole_words) }
    }

    /// Redacts the values in a text, or the whole text if there are too many values to search for.
    pub fn redact(&self, text: &str) -> String {
        let text = replace(&self.anywhere, text, |_, _| true);
        replace(&self.whole_words, &text, |before, after| {
            let is_boundary = |next: Option<char>| !next.is_some_and(char::is_alphanumeric);
            is_boundary(before.chars().next_back()) && is_boundary(after.chars().next())
        })
    }
}

fn search_for(texts: BTreeSet<String>) -> Search {
    let mut builder = AhoCorasick::builder();
    builder.match_kind(MatchKind::LeftmostLongest);
    let texts: Vec<String> = texts.into_iter().filter(|text| !text.is_empty()).collect();
    if texts.is_empty() {
        return Search::Nothing;
    }
    builder.build(texts).map_or(Search::Impossible, Search::For)
}

/// Redacts the matches for which `is_match` accepts the text before and after.
fn replace(search: &Search, text: &str, is_match: impl Fn(&str, &str) -> bool) -> String {
    let automaton = match search {
        Search::Nothing => return text.to_owned(),
        Search::Impossible => return NOT_SEARCHED.to_owned(),
        Search::For(automaton) => automaton,
    };
    let mut out = String::with_capacity(text.len());
    automaton.replace_all_with(text, &mut out, |found, word, out| {
        let redact = is_match(&text[..found.start()], &text[found.end()..]);
        out.push_str(if redact { REDACTED } else { word });
        true
    });
    out
}

/// A value as a whole, and the values of `key = "value"` lines in it, as in the drivers' files; each with
/// whether its name is a secret name.
fn parts(secret: &[u8], is_secret: bool) -> Vec<(Vec<u8>, bool)> {
    let mut parts = vec![(secret.to_owned(), is_secret)];
    let Ok(text) = std::str::from_utf8(secret) else {
        // Programs that print binary values as text show the readable parts.
        let pieces = secret.utf8_chunks().map(|chunk| chunk.valid());
        let long = pieces.filter(|piece| piece.chars().count() >= SHORTEST_READABLE);
        parts.extend(long.map(|piece| (piece.as_bytes().to_owned(), is_secret)));
        return parts;
    };
    let mut add = |part: &str, is_secret: bool| parts.push((part.as_bytes().to_owned(), is_secret));
    add(text.trim_end_matches(['\n', '\r']), is_secret);
    if let Ok(document @ (Value::Object(_) | Value::Array(_))) = serde_json::from_str(text) {
        add_json_values(&document, false, &mut add);
        return parts;
    }
    for line in text.lines() {
        let value = line.split_once('=').or_else(|| line.split_once(':'));
        let Some((name, value)) = value else { continue };
        if is_secret_name(name) {
            let value = value.trim();
            let bare = value.trim_matches(['"', '\'']);
            add(value, true);
            add(bare, true);
            add(&bare.replace("\\\"", "\"").replace("\\\\", "\\"), true);
        }
    }
    parts
}

/// Adds the values with a secret name in a JSON document, such as an image pull secret. There, `auth` is the
/// encoded user and password.
fn add_json_values(value: &Value, is_secret: bool, add: &mut impl FnMut(&str, bool)) {
    match value {
        Value::String(text) if is_secret => {
            add(text, true);
            let decoded =
                STANDARD.decode(text).ok().and_then(|bytes| String::from_utf8(bytes).ok());
            if let Some((_, password)) = decoded.as_deref().and_then(|both| both.split_once(':')) {
                add(password, true);
            }
        }
        Value::Array(all) => all.iter().for_each(|one| add_json_values(one, is_secret, add)),
        Value::Object(fields) => {
            for (name, value) in fields {
                add_json_values(value, name == "auth" || is_secret_name(name), add);
            }
        }
        _ => {}
    }
}

/// Values that occur in Secrets but are not secret.
fn is_common(text: &str) -> bool {
    ["true", "false", "default", "vsphere.local", "kube-system", "Opaque"].contains(&text)
}

fn encodings(secret: &[u8]) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    if let Ok(text) = std::str::from_utf8(secret) {
        all.insert(text.to_owned());
        all.extend(as_xml(text));
    }
    all.extend(as_url(secret));
    // JSON, and JSON inside JSON.
    for _ in 0..2 {
        let again: Vec<String> = all.iter().flat_map(|text| as_json(text)).collect();
        all.extend(again);
    }
    all.extend(as_base64(secret));
    let hex = |byte: &u8| format!("{byte:02x}");
    let hex: String = secret.iter().map(hex).collect();
    all.insert(hex.to_uppercase());
    all.insert(hex);
    all
}

fn as_xml(text: &str) -> [String; 3] {
    let plain = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let named = plain.replace('"', "&quot;");
    let numbered = plain.replace('"', "&#34;").replace('\'', "&#39;");
    [named.replace('\'', "&apos;"), named, numbered]
}

/// As most programs encode it, as Go does, and in ASCII only.
fn as_json(text: &str) -> [String; 3] {
    let quoted = serde_json::to_string(text).unwrap_or_default();
    let plain = quoted.strip_prefix('"').and_then(|q| q.strip_suffix('"')).unwrap_or_default();
    let escaped = |escapes: fn(char) -> bool| {
        plain.chars().fold(String::new(), |mut out, c| {
            if escapes(c) {
                let mut units = [0; 2];
                let units = c.encode_utf16(&mut units).iter();
                out.extend(units.map(|unit| format!("\\u{unit:04x}")));
            } else {
                out.push(c);
            }
            out
        })
    };
    let go = |c| matches!(c, '<' | '>' | '&' | '\u{2028}' | '\u{2029}');
    [plain.to_owned(), escaped(go), escaped(|c| !c.is_ascii())]
}

/// As in paths and as in forms, with upper and lower case digits.
fn as_url(secret: &[u8]) -> [String; 4] {
    let written = |blank: &str, lower: bool| {
        let one = |byte: &u8| match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                char::from(*byte).to_string()
            }
            b' ' => blank.to_owned(),
            other if lower => format!("%{other:02x}"),
            other => format!("%{other:02X}"),
        };
        secret.iter().map(one).collect::<String>()
    };
    [written("%20", false), written("+", false), written("%20", true), written("+", true)]
}

/// In both alphabets and at any offset in the encoded text: the characters that encode nothing else.
fn as_base64(secret: &[u8]) -> Vec<String> {
    let mut all = Vec::new();
    for before in 0..3 {
        let bytes = [&[0; 3][..before], secret].concat();
        let (first, last) = ((before * 8).div_ceil(6), bytes.len() * 8 / 6);
        for engine in [&STANDARD_NO_PAD, &URL_SAFE_NO_PAD] {
            let whole = engine.encode(&bytes);
            all.extend(whole.get(first..last).map(str::to_owned));
            if before == 0 {
                let filled = "=".repeat((4 - whole.len() % 4) % 4);
                all.push(format!("{whole}{filled}"));
                all.push(whole);
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWORD: &str = "p&ss\"w<r>d\\ ü#1";

    fn secret(key: &str, value: &[u8]) -> SecretValues {
        SecretValues::new([SecretValue { key: key.into(), value: value.to_owned() }])
    }

    #[test]
    fn a_secret_is_found_in_every_encoding() {
        let secret = secret("password", PASSWORD.as_bytes());
        for (who, written, left) in [
            ("plain", r#"before p&ss"w<r>d\ ü#1 after"#, "before (redacted) after"),
            ("JSON", r#"{"a":"p&ss\"w<r>d\\ ü#1"}"#, r#"{"a":"(redacted)"}"#),
            (
                "JSON as Go writes it",
                r#"{"a":"p\u0026ss\"w\u003cr\u003ed\\ ü#1"}"#,
                r#"{"a":"(redacted)"}"#,
            ),
            ("JSON in ASCII", r#"{"a":"p&ss\"w<r>d\\ \u00fc#1"}"#, r#"{"a":"(redacted)"}"#),
            (
                "JSON in JSON",
                r#"{"a":"{\"b\":\"p&ss\\\"w<r>d\\\\ ü#1\"}"}"#,
                r#"{"a":"{\"b\":\"(redacted)\"}"}"#,
            ),
            ("XML", "<p>p&amp;ss&quot;w&lt;r&gt;d\\ ü#1</p>", "<p>(redacted)</p>"),
            ("XML as Go writes it", "<p>p&amp;ss&#34;w&lt;r&gt;d\\ ü#1</p>", "<p>(redacted)</p>"),
            ("a URL", "//u:p%26ss%22w%3Cr%3Ed%5C%20%C3%BC%231@h", "//u:(redacted)@h"),
            ("a URL in small", "//u:p%26ss%22w%3cr%3ed%5c%20%c3%bc%231@h", "//u:(redacted)@h"),
            ("a form", "p=p%26ss%22w%3Cr%3Ed%5C+%C3%BC%231&q", "p=(redacted)&q"),
            ("base64", "x cCZzcyJ3PHI+ZFwgw7wjMQ== y", "x (redacted) y"),
            ("base64 without its end", "x cCZzcyJ3PHI+ZFwgw7wjMQ y", "x (redacted) y"),
            ("base64 for URLs", "x cCZzcyJ3PHI-ZFwgw7wjMQ== y", "x (redacted) y"),
            ("base64 of u:SECRET", "Basic dTpwJnNzInc8cj5kXCDDvCMx", "Basic dTp(redacted)"),
            ("base64 of us:SECRET", "dXM6cCZzcyJ3PHI+ZFwgw7wjMQ==", "dXM6(redacted)"),
            ("base64 of usr:SECRET", "dXNyOnAmc3MidzxyPmRcIMO8IzE=", "dXNyOn(redacted)E="),
            (
                "and more behind it",
                "dXNyOnAmc3MidzxyPmRcIMO8IzEKbW9yZQ==",
                "dXNyOn(redacted)EKbW9yZQ==",
            ),
            ("hex", "0x7026737322773c723e645c20c3bc2331!", "0x(redacted)!"),
            ("HEX", "0x7026737322773C723E645C20C3BC2331!", "0x(redacted)!"),
        ] {
            assert_eq!(secret.redact(written), left, "{who}");
        }
    }

    #[test]
    fn a_binary_secret_is_found() {
        let value = [0xff, 0x00, 0xfe, 0x80, 0x01, 0xc3, 0x28, 0x99, 0xaa, 0xbb];
        let secret = secret("keytab", &value);
        for (written, left) in [
            ("ff00fe8001c32899aabb", "(redacted)"),
            ("FF00FE8001C32899AABB", "(redacted)"),
            ("/wD+gAHDKJmquw==", "(redacted)"),
            ("_wD-gAHDKJmquw", "(redacted)"),
            ("Yf8A/oABwyiZqrs=", "Yf(redacted)s="),
            ("YWL/AP6AAcMomaq7", "YWL(redacted)"),
            ("%FF%00%FE%80%01%C3%28%99%AA%BB", "(redacted)"),
        ] {
            assert_eq!(secret.redact(written), left, "{written}");
        }
        // Its readable parts are redacted too.
        let store = [b"\xfe\xed\xfe\xed".as_slice(), b"readable-secret", b"\xff"].concat();
        let secret = super::tests::secret("keystore.jks", &store);
        assert_eq!(secret.redact("it holds readable-secret"), "it holds (redacted)");
    }

    #[test]
    fn nothing_is_shown_when_the_search_is_impossible() {
        for (anywhere, whole_words) in
            [(Search::Impossible, Search::Nothing), (Search::Nothing, Search::Impossible)]
        {
            assert_eq!(SecretValues { anywhere, whole_words }.redact("geheim"), NOT_SEARCHED);
        }
    }

    #[test]
    fn a_short_secret_is_redacted_as_a_whole_word() {
        let secret = secret("password", b"abc");
        for (written, left) in [
            ("password: abc", "password: (redacted)"),
            (r#"{"a":"abc"}"#, r#"{"a":"(redacted)"}"#),
            ("abc", "(redacted)"),
            ("x=YWJj", "x=(redacted)"),
            ("0x 616263", "0x (redacted)"),
            ("abcdef and labc", "abcdef and labc"),
        ] {
            assert_eq!(secret.redact(written), left, "{written}");
        }
        let words = "a port of 443, and default";
        for (key, value, left) in [
            ("port", "443", words),
            ("namespace", "default", words),
            ("password", "443", "a port of (redacted), and default"),
            ("password", "default", "a port of 443, and (redacted)"),
        ] {
            let secret = super::tests::secret(key, value.as_bytes());
            assert_eq!(secret.redact(words), left, "{key}");
        }
        let secret = super::tests::secret("password", b"");
        assert_eq!(secret.redact(words), words, "an empty value is not a secret");
    }

    #[test]
    fn a_password_inside_json_is_found() {
        let auth = STANDARD.encode("robot:hunter2hunter");
        let entry = serde_json::json!({"auths": {"registry.example.com": {
            "username": "robot", "password": "hunter2hunter", "auth": auth,
        }}});
        let alone = serde_json::json!({"auths": {"registry.example.com": {"auth": auth}}});
        for text in
            [entry.to_string(), serde_json::to_string_pretty(&entry).unwrap(), alone.to_string()]
        {
            let value = SecretValue { key: ".dockerconfigjson".into(), value: text.into_bytes() };
            let shown = SecretValues::new([value]).redact(&format!(
                "robot: login with hunter2hunter fails; Basic {auth} at registry.example.com"
            ));
            assert!(!shown.contains("hunter2") && !shown.contains(&auth), "{shown}");
            assert!(shown.contains("robot: login") && shown.contains("registry.example.com"));
        }
    }

    #[test]
    fn a_password_inside_a_driver_file_is_found() {
        let file = "[VirtualCenter \"vc\"]\nuser = \"u\"\npassword = \"p\\\"w/secret\"\n";
        let secret = secret("csi-vsphere.conf", file.as_bytes());
        assert_eq!(secret.redact("login with p\"w/secret"), "login with (redacted)");
        let secret = super::tests::secret("vsphere.conf", b"password: s1\nport: 443\n");
        assert_eq!(secret.redact("s1 on 443"), "(redacted) on 443");
    }
}
