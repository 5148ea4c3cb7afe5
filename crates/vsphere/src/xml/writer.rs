//! Writes XML text.

/// An XML document under construction. The caller must close each element; the writer does not
/// check.
#[derive(Debug)]
pub(crate) struct Writer {
    out: String,
}

impl Default for Writer {
    /// Allocates room for an ordinary request. A string that grows leaves copies behind in memory,
    /// and a login contains a password.
    fn default() -> Self {
        Self { out: String::with_capacity(4096) }
    }
}

impl Writer {
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

    /// Appends escaped text. Control characters that XML 1.0 cannot represent become U+FFFD,
    /// because a server would reject the whole request.
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

    /// Appends XML without escaping.
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
