//! Output: steps that fill in, commands as they are typed, and plain text.
//!
//! On a terminal the running step is animated; otherwise each step is one line once it is done. Pipes and `NO_COLOR` get
//! no colours.

use std::{
    io::{IsTerminal as _, Write as _},
    time::Duration,
};

use anstyle::{AnsiColor, Style};
use tokio::time::{Instant, interval};

const GOOD: Style = AnsiColor::Green.on_default();
const BAD: Style = AnsiColor::Red.on_default();
const BUSY: Style = AnsiColor::Cyan.on_default();
const DIM: Style = Style::new().dimmed();
const STRONG: Style = Style::new().bold();

const FRAMES: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];
/// An animated line must fit on one line of a narrow terminal.
const MAX_TITLE: usize = 56;
/// The width if it is unknown.
const DEFAULT_WIDTH: usize = 100;
/// The minimum width.
const MIN_WIDTH: usize = 40;
/// The columns of the mark before a title and the time after it.
const MARK_AND_TIME: usize = 12;
const FRAME_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Screen {
    animated: bool,
    width: usize,
}

/// A progress counter.
pub(crate) struct Gauge {
    title: String,
    shown: Option<(i32, i32)>,
}

impl Screen {
    pub(crate) fn new() -> Self {
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let from_env = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
        let from_terminal = || {
            let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
            Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
        };
        let width = from_env.or_else(from_terminal).unwrap_or(DEFAULT_WIDTH).max(MIN_WIDTH);
        Self { animated: std::io::stdout().is_terminal() && !dumb, width }
    }

    #[expect(clippy::unused_self, reason = "everything shown goes through the screen")]
    pub(crate) fn say(&self, text: &str) {
        anstream::println!("{text}");
    }

    pub(crate) fn heading(&self, text: &str) {
        self.say(&format!("\n{STRONG}{}{STRONG:#}", folded(text, self.width)));
    }

    /// A command as the user types it.
    pub(crate) fn prompt(&self, command: &str) {
        self.say(&format!("\n{BUSY}${BUSY:#} {STRONG}{command}{STRONG:#}"));
    }

    /// Shows a step while it runs, then its result and duration.
    pub(crate) async fn step<T, E>(
        &self,
        title: &str,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let began = Instant::now();
        let mut work = std::pin::pin!(work);
        let mut ticks = interval(FRAME_INTERVAL);
        let mut frames = FRAMES.iter().cycle();
        let result = loop {
            tokio::select! {
                result = &mut work => break result,
                _ = ticks.tick() => {
                    let frame = frames.next().copied().unwrap_or_default();
                    let title: String = title.chars().take(MAX_TITLE).collect();
                    self.draw(&format!("{BUSY}{frame}{BUSY:#} {title}"));
                }
            }
        };
        self.draw("");
        let took = began.elapsed().as_secs_f32();
        let (style, mark) = if result.is_ok() { (GOOD, "✔") } else { (BAD, "✖") };
        let title = folded(title, self.width.saturating_sub(MARK_AND_TIME));
        self.say(&format!("{style}{mark}{style:#} {title}  {DIM}{took:.1} s{DIM:#}"));
        result
    }

    pub(crate) fn done(&self, title: &str) {
        self.draw("");
        self.say(&format!("{GOOD}✔{GOOD:#} {title}"));
    }

    /// Redraws the animated line on a terminal.
    fn draw(&self, line: &str) {
        if self.animated {
            anstream::print!("\r\x1b[K{line}");
            // A closed output needs no animation.
            let _ = anstream::stdout().flush();
        }
    }
}

/// Wraps a text at spaces, with an indent.
fn folded(text: &str, width: usize) -> String {
    let (mut folded, mut column) = (String::new(), 0);
    for word in text.split(' ') {
        let long = word.chars().count();
        if column > 0 && column + 1 + long > width {
            folded.push_str("\n    ");
            column = 4;
        } else if column > 0 {
            folded.push(' ');
            column += 1;
        }
        folded.push_str(word);
        column += long;
    }
    folded
}

impl Gauge {
    pub(crate) fn new(title: &str) -> Self {
        Self { title: title.to_owned(), shown: None }
    }

    /// Shows how many of how many there are: a bar that fills on a terminal, a line for each change
    /// elsewhere.
    pub(crate) fn show(&mut self, screen: &Screen, there: i32, all: i32) {
        if self.shown == Some((there, all)) || all < 1 {
            return;
        }
        let waits = self.shown.is_some() || there < all;
        self.shown = Some((there, all));
        if !waits {
            return;
        }
        let bar: String = (0..all).map(|n| if n < there { '▰' } else { '▱' }).collect();
        let line = format!("{BUSY}{bar}{BUSY:#} {}: {there} of {all}", self.title);
        if screen.animated && there < all {
            screen.draw(&line);
        } else {
            screen.draw("");
            screen.say(&line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_title_wraps() {
        let title = "VDO-1203 is there: Disk ids are hidden from nodes of this cluster";
        assert_eq!(folded(title, 100), title);
        let lines = folded(title, 48);
        assert_eq!(lines, "VDO-1203 is there: Disk ids are hidden from\n    nodes of this cluster");
    }
}
