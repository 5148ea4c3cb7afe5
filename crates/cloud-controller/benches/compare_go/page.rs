//! The tables for docs/benchmarks.md.

use std::time::Duration;

use testkit::Process;

pub(crate) fn mib(bytes: u64) -> f64 {
    bytes as f64 / (1024.0 * 1024.0)
}

pub(crate) fn seconds(time: f64) -> String {
    match time {
        t if t < 100.0 => format!("{t:.1} s"),
        t => format!("{t:.0} s"),
    }
}

/// The cost of initialising all nodes with one controller.
pub(crate) struct Measured {
    pub(crate) seconds: f64,
    pub(crate) calls: f64,
    /// Prefix of the figures: empty if all nodes were initialised, `≈` if extrapolated, `>` if too few nodes
    /// were initialised to extrapolate.
    pub(crate) mark: &'static str,
    pub(crate) calls_mark: &'static str,
    /// In MiB.
    pub(crate) rss: f64,
    pub(crate) peak: f64,
}

impl Measured {
    pub(crate) fn new(done: (usize, Duration), size: usize, calls: u64, process: &Process) -> Self {
        let (count, time) = done;
        let (mark, share) = match count {
            _ if count >= size => ("", 1.0),
            ENOUGH.. => ("≈ ", size as f64 / count as f64),
            _ => (MORE_THAN, 1.0),
        };
        let (now, peak) = process.memory();
        Self {
            seconds: time.as_secs_f64() * share,
            calls: calls as f64 * share,
            mark,
            calls_mark: mark,
            rss: mib(now),
            peak: mib(peak),
        }
    }
}

/// With fewer initialised nodes than this, the time is not extrapolated.
const ENOUGH: usize = 10;
pub(crate) const MORE_THAN: &str = "> ";

/// One table with a column for each size, and one with a row for each other measurement.
#[derive(Default)]
pub(crate) struct Page {
    pub(crate) sizes: Vec<(usize, Measured, Measured)>,
    /// Measurement, Go, ours.
    rows: Vec<[String; 3]>,
}

impl Page {
    pub(crate) fn note(
        &mut self,
        what: impl Into<String>,
        go: impl Into<String>,
        ours: impl Into<String>,
    ) {
        self.rows.push([what.into(), go.into(), ours.into()]);
    }

    pub(crate) fn print(&self, load: (&str, &str)) {
        let row = |title: &str, cell: &dyn Fn(&(usize, Measured, Measured)) -> String| {
            let cells: Vec<String> = self.sizes.iter().map(cell).collect();
            println!("| {title} | {} |", cells.join(" | "));
        };
        println!("\nFor docs/benchmarks.md (load {} before, {} after):\n", load.0, load.1);
        row("tainted nodes until all are initialised", &|(size, ..)| thousands(*size as f64));
        row("---", &|_| "---".into());
        row("Go", &|(_, go, _)| go.cell());
        row("ours", &|(_, _, ours)| ours.cell());
        row("", &|(_, go, ours)| {
            format!(
                "{}{:.0} times faster, {}{:.0} times fewer calls",
                go.mark,
                go.seconds / ours.seconds,
                go.calls_mark,
                go.calls / ours.calls
            )
        });
        row("memory at that moment: Go, ours", &|(_, go, ours)| {
            let part = if go.mark.is_empty() { "" } else { " (of the part it did)" };
            format!("{:.0} MiB{part}, {:.0} MiB", go.rss, ours.rss)
        });
        println!("\n| | Go | ours |\n|---|---|---|");
        for [what, go, ours] in &self.rows {
            println!("| {what} | {go} | {ours} |");
        }
        if self.sizes.iter().any(|(_, go, _)| !go.mark.is_empty()) {
            println!(
                "\n≈: the Go controller was stopped before its end. The time is extrapolated from its pace, one node after \
                 the other, the calls from what it needed per node at the largest size it finished."
            );
        }
    }
}

/// A whole number with commas.
pub(crate) fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

impl Measured {
    pub(crate) fn cell(&self) -> String {
        let Self { mark, calls_mark, .. } = self;
        format!("{mark}{}, {calls_mark}{} calls", seconds(self.seconds), thousands(self.calls))
    }
}
