//! Renders errors.

use std::{error::Error, fmt};

use miette::{
    Diagnostic, GraphicalReportHandler, GraphicalTheme, LabeledSpan, SourceCode, ThemeCharacters,
    ThemeStyles,
};

use crate::{exit::Exit, failure::Failure, screen::Screen, text::as_called};

pub(crate) fn show(failure: &Failure, screen: &Screen) -> Exit {
    if !failure.is_silent() {
        screen.complain(&text(failure, screen.side_width, screen.colours_errors()));
    }
    failure.exit()
}

fn text(failure: &Failure, width: usize, colours: bool) -> String {
    let theme = GraphicalTheme {
        characters: ThemeCharacters { error: "✖".into(), ..ThemeCharacters::unicode() },
        styles: if colours { ThemeStyles::ansi() } else { ThemeStyles::none() },
    };
    let handler = GraphicalReportHandler::new_themed(theme)
        .with_width(width)
        .with_wrap_lines(true)
        .with_break_words(false)
        .with_context_lines(2)
        .with_urls(false);
    let mut shown = String::new();
    let view = FailureView { failure, causes: causes(failure) };
    if handler.render_report(&mut shown, &view).is_err() {
        shown = failure.to_string();
    }
    format!("{}\n", shown.trim_matches('\n'))
}

/// A failure with its causes. Omits causes that repeat the previous text.
#[derive(Debug)]
struct FailureView<'a> {
    failure: &'a Failure,
    causes: Option<Box<Cause>>,
}

#[derive(Debug)]
struct Cause {
    text: String,
    next: Option<Box<Cause>>,
}

fn causes(failure: &Failure) -> Option<Box<Cause>> {
    let mut texts: Vec<String> = Vec::new();
    let mut cause = failure.source();
    let mut output = failure.to_string();
    while let Some(error) = cause {
        cause = error.source();
        let text = runtime::error_chain::tidy(&error.to_string());
        if !output.contains(&text) && !text.is_empty() {
            output.clone_from(&text);
            texts.push(text);
        }
    }
    texts.into_iter().rev().fold(None, |next, text| Some(Box::new(Cause { text, next })))
}

impl fmt::Display for FailureView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&as_called(&self.failure.to_string()))
    }
}

impl Error for FailureView<'_> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.causes.as_deref().map(|cause| cause as &(dyn Error + 'static))
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Error for Cause {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.next.as_deref().map(|cause| cause as &(dyn Error + 'static))
    }
}

impl Diagnostic for FailureView<'_> {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        let help = self.failure.help()?.to_string();
        Some(Box::new(as_called(&help).into_owned()))
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.failure.source_code()
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        self.failure.labels()
    }
}
