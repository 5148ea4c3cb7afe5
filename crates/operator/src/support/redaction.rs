//! What must not be seen is found in whatever way it is written, and replaced.

use std::{collections::BTreeSet, fmt};

use aho_corasick::{AhoCorasick, MatchKind};
use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD},
};
use serde_json::Value;

use super::is_telling;

/// What stands for a secret.
pub const REDACTED: &str = "(redacted)";

/// Anything shorter would be found everywhere: it is replaced where it stands alone.
const SHORTEST: usize = 4;
/// A readable piece of a secret that is no text.
const PIECE: usize = 8;

/// Something a Secret holds.
pub struct Held {
    /// The key it is held under.
    pub key: String,
    /// What is held; any bytes.
    pub value: Vec<u8>,
}

/// Texts that must not be seen.
#[derive(Clone, Default)]
pub struct Redaction {
    /// Replaced wherever they are found.
    anywhere: Search,
    /// Replaced where no letter or digit stands beside them.
    alone: Search,
}

/// How texts are looked for.
#[derive(Clone, Default)]
enum Search {
    /// There are none.
    #[default]
    Nothing,
    For(AhoCorasick),
    /// There are too many: nothing that is searched may be shown.
    Impossible,
}

/// What stands for a text that could not be searched.
const UNSEARCHED: &str = "(left out: there are too many secrets to look for)\n";

impl fmt::Debug for Redaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Redaction")
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key)
    }
}

impl Redaction {
    /// Everything these hold: each as a whole, and the secret values of lines in it; plain, and as XML,
    /// JSON (once and twice over), URLs, base64 (at any place in what is encoded) and hex write it.
    ///
    /// What is shorter than four characters is replaced where it stands alone, if its key says that it is
    /// secret: ports and switches stand in Secrets too, and help.
    pub fn of(secrets: impl IntoIterator<Item = Held>) -> Self {
        let (mut anywhere, mut alone) = (BTreeSet::new(), BTreeSet::new());
        for Held { key, value } in secrets {
            for (part, telling) in parts(&value, is_telling(&key)) {
                let text = std::str::from_utf8(&part).ok();
                let length = text.map_or(part.len(), |text| text.chars().count());
                if length == 0 || !telling && text.is_some_and(is_common) {
                    continue;
                }
                if length >= SHORTEST {
                    anywhere.extend(encodings(&part));
                } else if telling {
                    alone.extend(encodings(&part));
                }
            }
        }
        anywhere.retain(|text| text.len() >= SHORTEST);
        Self { anywhere: searched(anywhere), alone: searched(alone) }
    }

    /// A text without them; nothing of it where they cannot be looked for.
    pub fn apply(&self, text: &str) -> String {
        let text = replaced(&self.anywhere, text, |_, _| true);
        replaced(&self.alone, &text, |before, after| {
            let apart = |beside: Option<char>| !beside.is_some_and(char::is_alphanumeric);
            apart(before.chars().next_back()) && apart(after.chars().next())
        })
    }
}

fn searched(texts: BTreeSet<String>) -> Search {
    let mut builder = AhoCorasick::builder();
    // Of two that begin at the same place, the longer one is meant.
    builder.match_kind(MatchKind::LeftmostLongest);
    let texts: Vec<String> = texts.into_iter().filter(|text| !text.is_empty()).collect();
    if texts.is_empty() {
        return Search::Nothing;
    }
    builder.build(texts).map_or(Search::Impossible, Search::For)
}

/// A text without what is searched, where that may be taken out between what stands before and after.
fn replaced(searched: &Search, text: &str, may: impl Fn(&str, &str) -> bool) -> String {
    let searched = match searched {
        Search::Nothing => return text.to_owned(),
        Search::Impossible => return UNSEARCHED.to_owned(),
        Search::For(searched) => searched,
    };
    let mut out = String::with_capacity(text.len());
    searched.replace_all_with(text, &mut out, |found, word, out| {
        let takes = may(&text[..found.start()], &text[found.end()..]);
        out.push_str(if takes { REDACTED } else { word });
        true
    });
    out
}

/// A secret as a whole, and the values of `key = "value"` lines in it, as the drivers' files have them;
/// and whether what they are called says that they are secret.
fn parts(secret: &[u8], telling: bool) -> Vec<(Vec<u8>, bool)> {
    let mut parts = vec![(secret.to_owned(), telling)];
    let Ok(text) = std::str::from_utf8(secret) else {
        // Whoever writes it as text shows its readable pieces.
        let pieces = secret.utf8_chunks().map(|chunk| chunk.valid());
        let long = pieces.filter(|piece| piece.chars().count() >= PIECE);
        parts.extend(long.map(|piece| (piece.as_bytes().to_owned(), telling)));
        return parts;
    };
    let mut add = |part: &str, telling: bool| parts.push((part.as_bytes().to_owned(), telling));
    add(text.trim_end_matches(['\n', '\r']), telling);
    if let Ok(document @ (Value::Object(_) | Value::Array(_))) = serde_json::from_str(text) {
        in_document(&document, false, &mut add);
        return parts;
    }
    for line in text.lines() {
        let value = line.split_once('=').or_else(|| line.split_once(':'));
        let Some((name, value)) = value else { continue };
        if is_telling(name) {
            let value = value.trim();
            let bare = value.trim_matches(['"', '\'']);
            add(value, true);
            add(bare, true);
            add(&bare.replace("\\\"", "\"").replace("\\\\", "\\"), true);
        }
    }
    parts
}

/// The values of a document in JSON, as those to pull images with are, whose names say that they are
/// secret. What such a Secret calls `auth` is user and password, encoded.
fn in_document(value: &Value, telling: bool, add: &mut impl FnMut(&str, bool)) {
    match value {
        Value::String(text) if telling => {
            add(text, true);
            let decoded =
                STANDARD.decode(text).ok().and_then(|bytes| String::from_utf8(bytes).ok());
            if let Some((_, password)) = decoded.as_deref().and_then(|both| both.split_once(':')) {
                add(password, true);
            }
        }
        Value::Array(all) => all.iter().for_each(|one| in_document(one, telling, add)),
        Value::Object(fields) => {
            for (name, value) in fields {
                in_document(value, name == "auth" || is_telling(name), add);
            }
        }
        _ => {}
    }
}

/// Words that stand in Secrets and are none.
fn is_common(text: &str) -> bool {
    ["true", "false", "default", "vsphere.local", "kube-system", "Opaque"].contains(&text)
}

/// Every way in which programs write these bytes.
fn encodings(secret: &[u8]) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    if let Ok(text) = std::str::from_utf8(secret) {
        all.insert(text.to_owned());
        all.extend(as_xml(text));
    }
    all.extend(as_url(secret));
    // A text inside of JSON, and such JSON inside of JSON.
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

/// As most write it, as Go does, and in ASCII alone.
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

/// In paths and in forms, with either case of digits.
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

/// What base64 makes of it, in both alphabets, wherever in the encoded text it begins: each character
/// that is made of nothing else.
fn as_base64(secret: &[u8]) -> Vec<String> {
    let mut all = Vec::new();
    for before in 0..3 {
        let bytes = [&[0; 3][..before], secret].concat();
        let (first, last) = ((before * 8).div_ceil(6), bytes.len() * 8 / 6);
        for engine in [&STANDARD_NO_PAD, &URL_SAFE_NO_PAD] {
            let whole = engine.encode(&bytes);
            all.extend(whole.get(first..last).map(str::to_owned));
            if before == 0 {
                // On its own it ends with what is left of it.
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

    fn redaction(key: &str, value: &[u8]) -> Redaction {
        Redaction::of([Held { key: key.into(), value: value.to_owned() }])
    }

    /// Written by hand and by other programs, not by what is tested.
    #[test]
    fn a_secret_is_found_in_whatever_way_it_is_written() {
        let redaction = redaction("password", PASSWORD.as_bytes());
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
            assert_eq!(redaction.apply(written), left, "{who}");
        }
    }

    #[test]
    fn a_secret_that_is_no_text_is_found_too() {
        let value = [0xff, 0x00, 0xfe, 0x80, 0x01, 0xc3, 0x28, 0x99, 0xaa, 0xbb];
        let redaction = redaction("keytab", &value);
        for (written, left) in [
            ("ff00fe8001c32899aabb", "(redacted)"),
            ("FF00FE8001C32899AABB", "(redacted)"),
            ("/wD+gAHDKJmquw==", "(redacted)"),
            ("_wD-gAHDKJmquw", "(redacted)"),
            ("Yf8A/oABwyiZqrs=", "Yf(redacted)s="),
            ("YWL/AP6AAcMomaq7", "YWL(redacted)"),
            ("%FF%00%FE%80%01%C3%28%99%AA%BB", "(redacted)"),
        ] {
            assert_eq!(redaction.apply(written), left, "{written}");
        }
        // What of it can be read is not shown either.
        let store = [b"\xfe\xed\xfe\xed".as_slice(), b"readable-secret", b"\xff"].concat();
        let redaction = super::tests::redaction("keystore.jks", &store);
        assert_eq!(redaction.apply("it holds readable-secret"), "it holds (redacted)");
    }

    #[test]
    fn where_secrets_cannot_be_looked_for_nothing_is_shown() {
        for (anywhere, alone) in
            [(Search::Impossible, Search::Nothing), (Search::Nothing, Search::Impossible)]
        {
            assert_eq!(Redaction { anywhere, alone }.apply("geheim"), UNSEARCHED);
        }
    }

    #[test]
    fn a_short_secret_is_taken_out_where_it_stands_alone() {
        let redaction = redaction("password", b"abc");
        for (written, left) in [
            ("password: abc", "password: (redacted)"),
            (r#"{"a":"abc"}"#, r#"{"a":"(redacted)"}"#),
            ("abc", "(redacted)"),
            ("x=YWJj", "x=(redacted)"),
            ("0x 616263", "0x (redacted)"),
            ("abcdef and labc", "abcdef and labc"),
        ] {
            assert_eq!(redaction.apply(written), left, "{written}");
        }
        let words = "a port of 443, and default";
        for (key, value, left) in [
            ("port", "443", words),
            ("namespace", "default", words),
            ("password", "443", "a port of (redacted), and default"),
            ("password", "default", "a port of 443, and (redacted)"),
        ] {
            let redaction = super::tests::redaction(key, value.as_bytes());
            assert_eq!(redaction.apply(words), left, "{key}");
        }
        let redaction = super::tests::redaction("password", b"");
        assert_eq!(redaction.apply(words), words, "nothing is no secret");
    }

    #[test]
    fn a_password_inside_of_json_is_found_on_its_own() {
        let auth = STANDARD.encode("robot:hunter2hunter");
        let entry = serde_json::json!({"auths": {"registry.example.com": {
            "username": "robot", "password": "hunter2hunter", "auth": auth,
        }}});
        let alone = serde_json::json!({"auths": {"registry.example.com": {"auth": auth}}});
        for text in
            [entry.to_string(), serde_json::to_string_pretty(&entry).unwrap(), alone.to_string()]
        {
            let held = Held { key: ".dockerconfigjson".into(), value: text.into_bytes() };
            let shown = Redaction::of([held]).apply(&format!(
                "robot: login with hunter2hunter fails; Basic {auth} at registry.example.com"
            ));
            assert!(!shown.contains("hunter2") && !shown.contains(&auth), "{shown}");
            assert!(shown.contains("robot: login") && shown.contains("registry.example.com"));
        }
    }

    #[test]
    fn a_password_inside_a_drivers_file_is_found_on_its_own() {
        let file = "[VirtualCenter \"vc\"]\nuser = \"u\"\npassword = \"p\\\"w/secret\"\n";
        let redaction = redaction("csi-vsphere.conf", file.as_bytes());
        assert_eq!(redaction.apply("login with p\"w/secret"), "login with (redacted)");
        let redaction = super::tests::redaction("vsphere.conf", b"password: s1\nport: 443\n");
        assert_eq!(redaction.apply("s1 on 443"), "(redacted) on 443");
    }
}
