//! Finds the words of the glossary in a text. Identifiers count as their words: `is_told` and `NodeWord` have two each.

use std::{collections::HashMap, fmt, sync::LazyLock};

use crate::glossary::{Entry, GLOSSARY, SPELLINGS};

/// A use of a word to avoid.
pub(crate) struct Hit<'a> {
    start: usize,
    line: usize,
    found: &'a str,
    /// The identifier that contains the first word of the hit.
    pub(crate) identifier: &'a str,
    write: &'static str,
}

impl<'a> Hit<'a> {
    fn new(
        text: &'a str,
        (start, end): (usize, usize),
        identifier: &'a str,
        write: &'static str,
    ) -> Self {
        let line = text[..start].matches('\n').count() + 1;
        Self { start, line, found: &text[start..end], identifier, write }
    }

    /// Whether `text`, in which this was found, has `quote` around it.
    pub(crate) fn is_in_quote(&self, text: &str, quote: &str) -> bool {
        let end = self.start + self.found.len();
        let mut starts = end.saturating_sub(quote.len())..=self.start;
        starts.any(|start| text.as_bytes()[start..].starts_with(quote.as_bytes()))
    }
}

impl fmt::Display for Hit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, found, identifier, write, .. } = self;
        write!(f, "{line}: {found:?}")?;
        if !found.contains(identifier) {
            write!(f, " in {identifier}")?;
        }
        write!(f, ": write {write}")
    }
}

/// One word of a text: a part of an identifier.
struct Word<'a> {
    text: &'a str,
    start: usize,
    end: usize,
    identifier: &'a str,
}

impl Word<'_> {
    fn is_any_of(&self, words: &[&str]) -> bool {
        words.iter().any(|word| self.text.eq_ignore_ascii_case(word))
    }
}

/// A phrase of the glossary: the alternatives for each of its words.
struct Phrase {
    words: Vec<Vec<&'static str>>,
    entry: &'static Entry,
}

/// The phrases by the length and the initial of their first word: few words of a text need a closer look.
static PHRASES: LazyLock<HashMap<(usize, u8), Vec<Phrase>>> = LazyLock::new(|| {
    let mut phrases: HashMap<_, Vec<Phrase>> = HashMap::new();
    for entry in GLOSSARY {
        for text in entry.avoid {
            let words = || text.split(' ').map(|any| any.split('|').collect::<Vec<_>>());
            for first in words().next().into_iter().flatten() {
                let mut words: Vec<_> = words().collect();
                words[0] = vec![first];
                phrases.entry(key(first)).or_default().push(Phrase { words, entry });
            }
        }
    }
    phrases
});

fn key(word: &str) -> (usize, u8) {
    (word.len(), word.as_bytes()[0].to_ascii_lowercase())
}

/// The uses of words to avoid, in order.
pub(crate) fn hits(text: &str) -> Vec<Hit<'_>> {
    let words = words(text);
    let mut hits = Vec::new();
    for (number, word) in words.iter().enumerate() {
        let begins_identifier = word.text.as_ptr() == word.identifier.as_ptr();
        let spelling = SPELLINGS.iter().find(|(spelling, _)| *spelling == word.identifier);
        if let Some((spelling, write)) = spelling.filter(|_| begins_identifier) {
            let place = (word.start, word.start + spelling.len());
            hits.push(Hit::new(text, place, word.identifier, write));
        }
        let mut phrases = PHRASES.get(&key(word.text)).into_iter().flatten();
        let found = phrases.find_map(|phrase| Some((phrase, phrase.end(text, &words, number)?)));
        if let Some((phrase, end)) = found {
            hits.push(Hit::new(text, (word.start, end), word.identifier, phrase.entry.write));
        }
    }
    hits
}

impl Phrase {
    /// The end of the phrase if it begins at this word.
    fn end(&self, text: &str, words: &[Word<'_>], first: usize) -> Option<usize> {
        let last = first + self.words.len() - 1;
        let these = words.get(first..=last)?;
        let matches = these.iter().zip(&self.words).all(|(word, any)| word.is_any_of(any))
            && these.windows(2).all(|pair| is_joined(text, &pair[0], &pair[1]));
        if !matches {
            return None;
        }
        let before = first.checked_sub(1).map(|number| &words[number]);
        let before = before.filter(|before| is_joined(text, before, &words[first]));
        let after = words.get(last + 1).filter(|after| is_joined(text, &words[last], after));
        let is_harmless = before.is_some_and(|word| word.is_any_of(self.entry.unless_after))
            || after.is_some_and(|word| word.is_any_of(self.entry.unless_before));
        (!is_harmless).then(|| words[last].end)
    }
}

/// Whether only blanks, hyphens, line breaks and the signs of comments are between two words.
fn is_joined(text: &str, one: &Word<'_>, next: &Word<'_>) -> bool {
    text[one.end..next.start].chars().all(|c| c.is_whitespace() || "_-/!#*\\".contains(c))
}

fn words(text: &str) -> Vec<Word<'_>> {
    let mut words = Vec::new();
    let mut start = 0;
    let is_part = |byte: &&u8| byte.is_ascii_alphanumeric() || **byte == b'_';
    while let Some(skipped) = text.as_bytes()[start..].iter().position(|byte| is_part(&byte)) {
        start += skipped;
        let length = text.as_bytes()[start..].iter().take_while(is_part).count();
        split(&text[start..start + length], start, &mut words);
        start += length;
    }
    words
}

/// Splits an identifier at underscores, digits and capitals: `VMsOfNode_2` has the words vms, of, node.
fn split<'a>(identifier: &'a str, start: usize, words: &mut Vec<Word<'a>>) {
    let bytes = identifier.as_bytes();
    let is_small = |number: usize| bytes.get(number).is_some_and(u8::is_ascii_lowercase);
    let mut begin = 0;
    for at in 0..=bytes.len() {
        let byte = bytes.get(at).copied().unwrap_or(b'_');
        let is_capital = byte.is_ascii_uppercase() && at > begin;
        let is_plural = bytes.get(at + 1) == Some(&b's');
        let is_next = is_capital && (is_small(at - 1) || is_small(at + 1) && !is_plural);
        if !byte.is_ascii_alphabetic() || is_next {
            if at > begin {
                let text = &identifier[begin..at];
                words.push(Word { text, start: start + begin, end: start + at, identifier });
            }
            begin = if is_next { at } else { at + 1 };
        }
    }
}
