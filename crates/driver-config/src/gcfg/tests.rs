use proptest::prelude::*;

use super::*;

fn value_of(line: &str) -> Result<String, Fault> {
    let sections = parse(&format!("[S]\n{line}\n")).map_err(|e| e.what)?;
    let value = sections[0].entries[0].value.clone().unwrap();
    Ok(value.expose().to_owned())
}

#[test]
fn values_read_as_the_drivers_read_them() {
    let cases = [
        ("k = plain", "plain"),
        ("k=plain", "plain"),
        ("k =", ""),
        ("k = \"\"", ""),
        ("k = two words  ", "two words"),
        ("k = \" kept \"", " kept "),
        ("k = a#comment", "a"),
        ("k = a ; comment", "a"),
        ("k = \"a#b;c\" # comment", "a#b;c"),
        (r#"k = "a\\b\"c""#, "a\\b\"c"),
        (r#"k = "tab\tline\nend""#, "tab\tline\nend"),
        ("k = say \\\"hi\\\"", "say \"hi\""),
        ("k = one \\\n two", "one  two"),
        ("k = \"joined\"together", "joinedtogether"),
        ("k = carriage\r", "carriage"),
        ("k = `a`", "`a`"),
    ];
    for (line, expected) in cases {
        assert_eq!(value_of(line).as_deref(), Ok(expected), "{line}");
    }
}

#[test]
fn mistakes_are_named_with_their_line() {
    let cases = [
        ("k = 1", 1, Fault::NoSection),
        ("=", 1, Fault::NoSection),
        ("[]", 1, Fault::SectionName),
        ("[A", 1, Fault::SectionEnd),
        ("[A b]", 1, Fault::SectionEnd),
        ("[A \"\"]", 1, Fault::EmptySubsection),
        ("[A \"b]\nk = 1", 2, Fault::Unterminated),
        ("[A \"b\\n\"]", 1, Fault::Escape),
        ("[A] k = 1", 1, Fault::Trailing),
        ("[A]\nk v", 2, Fault::Assign),
        ("[A]\n\nk = \"open", 3, Fault::Unterminated),
        ("[A]\nk = \"a\\x\"", 2, Fault::Escape),
        ("[A]\nk = a\\b", 2, Fault::BareBackslash),
        ("[A]\n1k = a", 2, Fault::Illegal),
        ("[A]\n# \0", 2, Fault::Nul),
        ("\u{feff}[A]", 1, Fault::ByteOrderMark),
    ];
    for (text, line, what) in cases {
        assert_eq!(parse(text), Err(SyntaxError { line, what }), "{text:?}");
    }
}

#[test]
fn a_key_alone_has_no_value_and_sections_keep_their_order() {
    let sections = parse("[Global]\nflag\n[VirtualCenter \"a\\\"b\\\\c\"] # x\n").unwrap();
    assert_eq!(sections[0].entries[0].value, None);
    assert_eq!(sections[1].subsection.as_deref(), Some("a\"b\\c"));
    assert_eq!((sections[0].line, sections[1].line), (1, 3));
}

#[test]
fn values_that_the_driver_would_change_are_refused() {
    let mut writer = Writer::default();
    assert_eq!(writer.section("A", Some("")), Err(Unwritable::EmptyName));
    assert_eq!(writer.section("A", Some("b\nc")), Err(Unwritable::LineBreakInName));
    assert_eq!(writer.entry("k", "a\rb"), Err(Unwritable::CarriageReturn));
    assert_eq!(writer.entry("k", "a\0b"), Err(Unwritable::Nul));
}

proptest! {
    #[test]
    fn every_writable_text_reads_back(name in "[^\0\r\n]{1,12}", value in "[^\0\r]{0,40}") {
        let mut writer = Writer::default();
        writer.section("Section", Some(&name)).unwrap();
        writer.entry("key", &value).unwrap();
        let sections = parse(writer.finish().expose()).unwrap();
        prop_assert_eq!(sections[0].subsection.as_deref(), Some(name.as_str()));
        prop_assert_eq!(sections[0].entries[0].value.as_ref().unwrap().expose(), value);
    }

    #[test]
    fn no_text_makes_the_reader_panic(text in "(\\PC|[\\[\\]\"\\\\=#;\n\r\t a]){0,60}") {
        let _ = parse(&text);
    }
}
