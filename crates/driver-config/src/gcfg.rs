//! The syntax of `csi-vsphere.conf` and of the old `vsphere.conf`: git-config, as Go's `gcfg` reads it.
//!
//! It looks like INI and is not. A password in INI syntax would reach the driver changed, or not at all. So reader
//! and writer follow that library's scanner exactly:
//!
//! - `#` and `;` start a comment anywhere outside double quotes;
//! - inside quotes a backslash escapes only `\`, `"`, `n` (new line) and `t` (tab);
//! - outside quotes a backslash is only valid before a new line (the line continues) or a quote;
//! - the reader drops carriage returns and refuses NUL, so neither can be written;
//! - a subsection name is always quoted, never empty, and has no `\n` or `\t` escapes;
//! - section and key names consist of letters, digits and `-`, begin with a letter, and ignore case;
//! - a key without `=` is `true`; a key or section that repeats continues the earlier one.

use std::fmt::Write as _;

use snafu::Snafu;
use zeroize::Zeroizing;

use crate::secret::{SecretText, WipedText};

#[derive(Debug, Clone, PartialEq, Eq, Snafu)]
#[snafu(display("line {line}: {what}"))]
pub struct SyntaxError {
    pub line: usize,
    pub what: Fault,
}

/// The fault in a line. It never contains the text of the line, which may be a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Snafu)]
pub enum Fault {
    #[snafu(display("a key comes before the first section: begin with a line such as [Global]"))]
    NoSection,
    #[snafu(display("a section name is expected after `[`: write for example [Global]"))]
    SectionName,
    #[snafu(display(
        "the section header is not closed: write [Name] or [Name \"subsection\"], the subsection in double quotes"
    ))]
    SectionEnd,
    /// `[Name ""]`
    #[snafu(display("the subsection is empty: write its name between the quotes"))]
    EmptySubsection,
    /// Text follows on the same line.
    #[snafu(display("the line continues after the section header or value: start a new line"))]
    Trailing,
    #[snafu(display("`=` is expected after the key"))]
    Assign,
    /// A double quote is not closed on its line.
    #[snafu(display(
        "a double quote is not closed on its line: close it, or write \\\" for a quote inside the value"
    ))]
    Unterminated,
    /// An unknown escape inside quotes.
    #[snafu(display(
        "unknown escape: inside double quotes only \\\\ \\\" \\n \\t are known; write \\\\ for one backslash"
    ))]
    Escape,
    #[snafu(display(
        "a backslash is outside double quotes: put the value in quotes and write \\\\ for one backslash"
    ))]
    BareBackslash,
    /// The file begins with U+FEFF.
    #[snafu(display(
        "the file begins with a byte-order mark, which the drivers refuse: save it as UTF-8 without one"
    ))]
    ByteOrderMark,
    #[snafu(display("the text contains a NUL character: remove it"))]
    Nul,
    /// Any other character that does not start a key, section or comment.
    #[snafu(display("a key, a section or a comment is expected here: a key begins with a letter"))]
    Illegal,
}

/// Why the driver could not read a value back unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Snafu)]
#[snafu(module)]
pub enum Unwritable {
    /// The driver drops carriage returns silently.
    #[snafu(display(
        "contains a carriage return, which the driver would drop: remove it (often a file saved on Windows)"
    ))]
    CarriageReturn,
    #[snafu(display("contains a NUL character, which the driver refuses: remove it"))]
    Nul,
    /// A section header cannot contain a line break.
    #[snafu(display("is a section name and contains a line break: remove it"))]
    LineBreakInName,
    /// The driver refuses `[Section ""]`.
    #[snafu(display("is an empty section name: specify a name"))]
    EmptyName,
}

/// A line `key = value`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// As written; names ignore case.
    pub key: String,
    /// The value, unquoted; `None` for a key without `=`, which means `true`.
    pub value: Option<SecretText>,
    /// Counts from 1.
    pub line: usize,
}

/// A section header and its entries, in the order of the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// As written; names ignore case.
    pub name: String,
    /// The quoted text after the name; case-sensitive.
    pub subsection: Option<String>,
    /// The line of the header; counts from 1.
    pub line: usize,
    pub entries: Vec<Entry>,
}

/// Parses the sections of a text.
///
/// Accepts and refuses the same texts as the drivers' own reader, except that it is slightly more lenient with
/// letters outside ASCII in unknown keys. Repeated sections are returned as often as they occur; the caller
/// merges them.
pub fn parse(text: &str) -> Result<Vec<Section>, SyntaxError> {
    if text.starts_with('\u{feff}') {
        return Err(SyntaxError { line: 1, what: Fault::ByteOrderMark });
    }
    if let Some(at) = text.find('\0') {
        let line = 1 + text[..at].matches('\n').count();
        return Err(SyntaxError { line, what: Fault::Nul });
    }
    Scanner { rest: text, line: 1 }.document()
}

/// The position in the text.
struct Scanner<'a> {
    rest: &'a str,
    line: usize,
}

impl<'a> Scanner<'a> {
    fn document(mut self) -> Result<Vec<Section>, SyntaxError> {
        let mut sections: Vec<Section> = Vec::new();
        loop {
            self.blank();
            let line = self.line;
            match self.peek() {
                None => return Ok(sections),
                Some('\n') => {
                    self.bump();
                }
                Some('[') => {
                    self.bump();
                    let (name, subsection) = self.header()?;
                    sections.push(Section { name, subsection, line, entries: Vec::new() });
                }
                Some(c) if is_letter(c) => {
                    let key = self.identifier().to_owned();
                    let value = self.assigned()?;
                    let Some(section) = sections.last_mut() else {
                        return Err(self.at(line, Fault::NoSection));
                    };
                    section.entries.push(Entry { key, value, line });
                }
                Some(_) if sections.is_empty() => return Err(self.fault(Fault::NoSection)),
                Some(_) => return Err(self.fault(Fault::Illegal)),
            }
        }
    }

    /// Reads a section header after `[`, up to the end of the line.
    fn header(&mut self) -> Result<(String, Option<String>), SyntaxError> {
        self.spaces();
        if !self.peek().is_some_and(is_letter) {
            return Err(self.fault(Fault::SectionName));
        }
        let name = self.identifier().to_owned();
        self.spaces();
        let subsection = if self.eat('"') { Some(self.quoted_name()?) } else { None };
        self.spaces();
        if !self.eat(']') {
            return Err(self.fault(Fault::SectionEnd));
        }
        self.end_of_line()?;
        Ok((name, subsection))
    }

    /// Reads a subsection name after its opening quote.
    fn quoted_name(&mut self) -> Result<String, SyntaxError> {
        let mut name = String::new();
        loop {
            match self.bump() {
                None | Some('\n') => return Err(self.fault(Fault::Unterminated)),
                Some('"') if name.is_empty() => return Err(self.fault(Fault::EmptySubsection)),
                Some('"') => return Ok(name),
                Some('\\') => match self.bump() {
                    Some(c @ ('\\' | '"')) => name.push(c),
                    _ => return Err(self.fault(Fault::Escape)),
                },
                Some(c) => name.push(c),
            }
        }
    }

    /// Reads the text after a key: nothing, or `=` and a value.
    fn assigned(&mut self) -> Result<Option<SecretText>, SyntaxError> {
        self.blank();
        match self.peek() {
            None | Some('\n') => Ok(None),
            Some('=') => {
                self.bump();
                self.spaces();
                let value = self.value()?;
                self.end_of_line()?;
                Ok(Some(value))
            }
            Some(_) => Err(self.fault(Fault::Assign)),
        }
    }

    /// Reads a value up to a comment or the end of the line, without trailing blanks.
    fn value(&mut self) -> Result<SecretText, SyntaxError> {
        let mut text = Zeroizing::new(String::with_capacity(64));
        // The length of `text` without the unquoted blanks at its end.
        let mut kept = 0;
        let mut quoted = false;
        let line = self.line;
        loop {
            match self.peek() {
                None | Some('\n') if quoted => return Err(self.at(line, Fault::Unterminated)),
                None | Some('\n') => break,
                Some('#' | ';') if !quoted => break,
                _ => {}
            }
            match self.bump() {
                Some('\\') if quoted => {
                    text.push(match self.bump() {
                        Some(c @ ('\\' | '"')) => c,
                        Some('n') => '\n',
                        Some('t') => '\t',
                        _ => return Err(self.at(line, Fault::Escape)),
                    });
                    kept = text.len();
                }
                Some('\\') => {
                    self.eat('\r');
                    match self.bump() {
                        Some('\n') => {}
                        Some('"') => text.push('"'),
                        _ => return Err(self.at(line, Fault::BareBackslash)),
                    }
                    kept = text.len();
                }
                Some('"') => {
                    quoted = !quoted;
                    kept = text.len();
                }
                Some('\r') | None => {}
                Some(c) => {
                    text.push(c);
                    if quoted || !matches!(c, ' ' | '\t') {
                        kept = text.len();
                    }
                }
            }
        }
        Ok(SecretText::from(&text[..kept]))
    }

    /// Only blanks and a comment may follow; the line break itself stays.
    fn end_of_line(&mut self) -> Result<(), SyntaxError> {
        self.blank();
        match self.peek() {
            None | Some('\n') => Ok(()),
            Some(_) => Err(self.fault(Fault::Trailing)),
        }
    }

    fn blank(&mut self) {
        self.spaces();
        if matches!(self.peek(), Some('#' | ';')) {
            let end = self.rest.find('\n').unwrap_or(self.rest.len());
            self.rest = &self.rest[end..];
        }
    }

    fn spaces(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\r']);
    }

    fn identifier(&mut self) -> &'a str {
        let inside = |c: char| is_letter(c) || c.is_numeric() || c == '-';
        let end = self.rest.find(|c| !inside(c)).unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at(end);
        self.rest = rest;
        name
    }

    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn bump(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.rest = &self.rest[c.len_utf8()..];
        if c == '\n' {
            self.line += 1;
        }
        Some(c)
    }

    fn eat(&mut self, wanted: char) -> bool {
        let found = self.peek() == Some(wanted);
        if found {
            self.bump();
        }
        found
    }

    fn fault(&self, what: Fault) -> SyntaxError {
        self.at(self.line, what)
    }

    #[expect(clippy::unused_self, reason = "reads as the place it is about")]
    fn at(&self, line: usize, what: Fault) -> SyntaxError {
        SyntaxError { line, what }
    }
}

fn is_letter(c: char) -> bool {
    c.is_alphabetic()
}

#[derive(Default)]
pub struct Writer {
    text: WipedText,
}

impl Writer {
    pub fn section(&mut self, name: &str, subsection: Option<&str>) -> Result<(), Unwritable> {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        match subsection {
            None => {
                let _ = writeln!(self.text, "[{name}]");
            }
            Some(subsection) => {
                let quoted = quote_name(subsection)?;
                let _ = writeln!(self.text, "[{name} {quoted}]");
            }
        }
        Ok(())
    }

    /// Writes a key of the current section; the value is always quoted.
    pub fn entry(&mut self, key: &str, value: &str) -> Result<(), Unwritable> {
        let quoted = quote_value(value)?;
        let _ = writeln!(self.text, "{key} = {}", quoted.as_str());
        Ok(())
    }

    pub fn finish(self) -> SecretText {
        SecretText::from(self.text.as_str())
    }
}

fn quote_value(value: &str) -> Result<Zeroizing<String>, Unwritable> {
    let mut quoted = Zeroizing::new(String::with_capacity(value.len() * 2 + 2));
    quoted.push('"');
    for c in value.chars() {
        match c {
            '\\' => quoted.push_str("\\\\"),
            '"' => quoted.push_str("\\\""),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            '\r' => return Err(Unwritable::CarriageReturn),
            '\0' => return Err(Unwritable::Nul),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    Ok(quoted)
}

fn quote_name(name: &str) -> Result<String, Unwritable> {
    if name.is_empty() {
        return Err(Unwritable::EmptyName);
    }
    let mut quoted = String::with_capacity(name.len() + 2);
    quoted.push('"');
    for c in name.chars() {
        match c {
            '\\' => quoted.push_str("\\\\"),
            '"' => quoted.push_str("\\\""),
            '\n' | '\r' => return Err(Unwritable::LineBreakInName),
            '\0' => return Err(Unwritable::Nul),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    Ok(quoted)
}

#[cfg(test)]
mod tests;
