//! Progress of a step: an animated line on a terminal, plain lines otherwise.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    screen::Screen,
    text::{BAD, BUSY, DIM, GOOD, columns, paint, wrap},
};

const FRAMES: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];
/// The polling interval.
pub(crate) const PACE: Duration = Duration::from_millis(150);

pub(crate) struct ProgressStep<'a> {
    screen: &'a Screen,
    title: String,
    waits: String,
    began: Instant,
    frame: usize,
    over: bool,
}

impl<'a> ProgressStep<'a> {
    pub(crate) fn begin(screen: &'a Screen, title: impl Into<String>) -> Self {
        let step = Self {
            screen,
            title: title.into(),
            waits: String::new(),
            began: Instant::now(),
            frame: 0,
            over: false,
        };
        step.draw();
        step
    }

    pub(crate) fn title(&self) -> &str {
        &self.title
    }

    /// Shows what the step waits for, and advances the animation.
    pub(crate) fn waits(&mut self, what: &str) {
        self.frame += 1;
        if self.waits != what {
            what.clone_into(&mut self.waits);
            if !self.screen.animated && !what.is_empty() {
                let text = format!("{}: {what}", self.title);
                self.screen
                    .note(wrap("  … ", &text, self.screen.side_width).trim_end_matches('\n'));
            }
        }
        self.draw();
    }

    pub(crate) fn done(mut self, result: &str) {
        self.end(&paint(GOOD, "✔"), result);
    }

    pub(crate) fn failed(mut self, why: &str) {
        self.end(&paint(BAD, "✖"), why);
    }

    fn end(&mut self, mark: &str, result: &str) {
        self.clear();
        let took = self.began.elapsed();
        let took = if took >= Duration::from_secs(1) {
            format!("{} s", took.as_secs())
        } else {
            String::new()
        };
        let more = [result, &took].map(str::to_owned).into_iter().filter(|text| !text.is_empty());
        let more = more.collect::<Vec<_>>().join(", ");
        let room = columns(&self.title) + columns(&more) + 4 <= self.screen.side_width;
        let text = match more.as_str() {
            "" => format!("{mark} {}", self.title),
            more if room => format!("{mark} {}{}", self.title, paint(DIM, &format!("  {more}"))),
            more => {
                let width = self.screen.side_width;
                wrap(&format!("{mark} "), &self.title, width) + &wrap("    ", more, width)
            }
        };
        self.screen.note(text.trim_end_matches('\n'));
    }

    fn draw(&self) {
        if !self.screen.animated || self.screen.is_quiet() {
            return;
        }
        let mark = paint(BUSY, FRAMES[self.frame % FRAMES.len()]);
        let mut line = self.title.clone();
        if !self.waits.is_empty() {
            line = format!("{line}  {}", self.waits);
        }
        let room = self.screen.side_width.saturating_sub(4);
        let line: String = line.chars().take(room).collect();
        self.screen.complain(&format!("\r\x1b[K{mark} {line}"));
    }

    /// Removes the step from the screen.
    pub(crate) fn clear(&mut self) {
        self.over = true;
        if self.screen.animated && !self.screen.is_quiet() {
            self.screen.complain("\r\x1b[K");
        }
    }
}

impl Drop for ProgressStep<'_> {
    /// After an error or Ctrl-C, the line is free for the error message.
    fn drop(&mut self) {
        if !self.over {
            self.clear();
        }
    }
}
