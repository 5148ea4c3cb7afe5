//! What is shown: steps that fill in, commands as they are typed, and plain text.
//!
//! On a terminal the step under way moves; elsewhere each step is one line once it is done. Colours
//! stay away from pipes and from those who set `NO_COLOR`.

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
/// What moves stays on one line, also on a narrow terminal.
const ROOM: usize = 56;
/// Where nobody says how wide it is.
const USUAL: usize = 100;
/// Narrower than this nothing is laid out.
const NARROWEST: usize = 40;
/// What a mark before a title and the time after it take.
const TIME: usize = 12;
const PACE: Duration = Duration::from_millis(100);

/// Where all of it goes.
#[derive(Debug)]
pub(crate) struct Screen {
    /// Whether what moves may move.
    animated: bool,
    /// Columns there are.
    width: usize,
}

/// Something that is counted while one waits for it.
pub(crate) struct Gauge {
    title: String,
    shown: Option<(i32, i32)>,
}

impl Screen {
    pub(crate) fn new() -> Self {
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let told = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
        let seen = || {
            let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
            Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
        };
        let width = told.or_else(seen).unwrap_or(USUAL).max(NARROWEST);
        Self { animated: std::io::stdout().is_terminal() && !dumb, width }
    }

    /// A line or several.
    #[expect(clippy::unused_self, reason = "everything shown goes through the screen")]
    pub(crate) fn say(&self, text: &str) {
        anstream::println!("{text}");
    }

    /// A line that begins a part.
    pub(crate) fn heading(&self, text: &str) {
        self.say(&format!("\n{STRONG}{}{STRONG:#}", folded(text, self.width)));
    }

    /// A command, as somebody types it.
    pub(crate) fn prompt(&self, command: &str) {
        self.say(&format!("\n{BUSY}${BUSY:#} {STRONG}{command}{STRONG:#}"));
    }

    /// Does something while saying so, and says how it went and how long it took.
    pub(crate) async fn step<T, E>(
        &self,
        title: &str,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let began = Instant::now();
        let mut work = std::pin::pin!(work);
        let mut ticks = interval(PACE);
        let mut frames = FRAMES.iter().cycle();
        let result = loop {
            tokio::select! {
                result = &mut work => break result,
                _ = ticks.tick() => {
                    let frame = frames.next().copied().unwrap_or_default();
                    let title: String = title.chars().take(ROOM).collect();
                    self.draw(&format!("{BUSY}{frame}{BUSY:#} {title}"));
                }
            }
        };
        self.draw("");
        let took = began.elapsed().as_secs_f32();
        let (style, mark) = if result.is_ok() { (GOOD, "✔") } else { (BAD, "✖") };
        let title = folded(title, self.width.saturating_sub(TIME));
        self.say(&format!("{style}{mark}{style:#} {title}  {DIM}{took:.1} s{DIM:#}"));
        result
    }

    /// Something is done.
    pub(crate) fn done(&self, title: &str) {
        self.draw("");
        self.say(&format!("{GOOD}✔{GOOD:#} {title}"));
    }

    /// The line that moves, where lines move.
    fn draw(&self, line: &str) {
        if self.animated {
            anstream::print!("\r\x1b[K{line}");
            // Whoever does not read on needs no line that moves.
            let _ = anstream::stdout().flush();
        }
    }
}

/// Breaks a text at blanks where it is too long; it goes on a little further in.
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
    fn a_title_that_does_not_fit_goes_on_below() {
        let title = "VDO-1203 is there: Disk ids are hidden from nodes of this cluster";
        assert_eq!(folded(title, 100), title);
        let lines = folded(title, 48);
        assert_eq!(lines, "VDO-1203 is there: Disk ids are hidden from\n    nodes of this cluster");
    }
}
