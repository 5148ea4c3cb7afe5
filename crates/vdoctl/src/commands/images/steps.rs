//! The progress of a transfer on the screen: one step per image.

use tokio::time::Instant;

use crate::{
    progress::{PACE, ProgressStep},
    screen::Screen,
};

pub(crate) struct Steps<'a> {
    screen: &'a Screen,
    step: Option<ProgressStep<'a>>,
    drawn: Instant,
}

impl<'a> Steps<'a> {
    pub(crate) fn new(screen: &'a Screen) -> Self {
        Self { screen, step: None, drawn: Instant::now() }
    }
}

impl oci::Progress for Steps<'_> {
    fn image(&mut self, name: &str) {
        self.step = Some(ProgressStep::begin(self.screen, name));
    }

    fn bytes(&mut self, done: u64, of: u64) {
        // Without a terminal, each step is one line.
        if self.screen.animated
            && self.drawn.elapsed() >= PACE
            && let Some(step) = &mut self.step
        {
            self.drawn = Instant::now();
            step.waits(&format!("{} of {}", megabytes(done), megabytes(of)));
        }
    }

    fn done(&mut self, new_bytes: u64) {
        let Some(step) = self.step.take() else { return };
        let text = if new_bytes == 0 { String::new() } else { megabytes(new_bytes) };
        step.done(&text);
    }
}

/// With one decimal, and never 0.0 for something.
pub(crate) fn megabytes(bytes: u64) -> String {
    let tenths = bytes.div_ceil(100_000);
    format!("{}.{} MB", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_up() {
        let shown = [0, 1, 100_000, 100_001, 98_765_432].map(megabytes);
        assert_eq!(shown, ["0.0 MB", "0.1 MB", "0.1 MB", "0.2 MB", "98.8 MB"]);
    }
}
