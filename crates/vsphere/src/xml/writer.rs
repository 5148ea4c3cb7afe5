//! Writes XML text.

/// XML under construction. Elements are closed by the code that opens them; nothing is checked
/// here.
#[derive(Debug)]
pub(crate) struct Writer {
    out: String,
}

impl Default for Writer {
    /// With room for an ordinary request: text that grows leaves copies of itself behind, and a
    /// login has a password in it.
    fn default() -> Self {
        Self { out: String::with_capacity(4096) }
    }
}

impl Writer {
    /// The text written so far.
    pub(crate) fn finish(self) -> String {
        self.out
    }

    /// `<name>`
    pub(crate) fn open(&mut self, name: &str) {
        self.out.push('<');
        self.out.push_str(name);
        self.out.push('>');
    }

    /// `<name attribute="value" …>`
    pub(crate) fn open_with(&mut self, name: &str, attributes: &[(&str, &str)]) {
        self.out.push('<');
        self.out.push_str(name);
        for (attribute, value) in attributes {
            self.out.push(' ');
            self.out.push_str(attribute);
            self.out.push_str("=\"");
            self.text(value);
            self.out.push('"');
        }
        self.out.push('>');
    }

    /// `</name>`
    pub(crate) fn close(&mut self, name: &str) {
        self.out.push_str("</");
        self.out.push_str(name);
        self.out.push('>');
    }

    /// Text, escaped so that a reader gets back exactly what was given. Characters that XML 1.0
    /// cannot carry at all (most control characters) become U+FFFD, as a server would refuse
    /// the whole request otherwise.
    pub(crate) fn text(&mut self, text: &str) {
        for c in text.chars() {
            match c {
                '&' => self.out.push_str("&amp;"),
                '<' => self.out.push_str("&lt;"),
                '>' => self.out.push_str("&gt;"),
                '"' => self.out.push_str("&quot;"),
                '\r' => self.out.push_str("&#13;"),
                '\t' | '\n' => self.out.push(c),
                '\u{0}'..'\u{20}' | '\u{FFFE}' | '\u{FFFF}' => self.out.push('\u{FFFD}'),
                c => self.out.push(c),
            }
        }
    }

    /// Text that is XML already.
    pub(crate) fn raw(&mut self, xml: &str) {
        self.out.push_str(xml);
    }

    /// `<name>text</name>`
    pub(crate) fn leaf(&mut self, name: &str, text: &str) {
        self.open(name);
        self.text(text);
        self.close(name);
    }
}
