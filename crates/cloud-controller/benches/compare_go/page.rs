//! The tables for docs/benchmarks.md.

use std::time::Duration;

use testkit::Process;

/// The memory of a process. Pages of its program count as resident, and the kernel can free them at any time;
/// anonymous pages are what the process itself allocated.
pub(crate) fn memory(process: &Process) -> String {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid()));
    let status = status.unwrap_or_default();
    let field = |name: &str| -> f64 {
        let mut values = status.lines().filter_map(|line| line.strip_prefix(name));
        let kib =
            values.next().and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
        kib.unwrap_or(f64::NAN) / 1024.0
    };
    let (resident, anonymous, peak) = (field("VmRSS:"), field("RssAnon:"), field("VmHWM:"));
    format!("{resident:.1} MiB resident ({peak:.1} at most), {anonymous:.1} MiB anonymous")
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
    pub(crate) memory: String,
}

impl Measured {
    pub(crate) fn new(done: (usize, Duration), size: usize, calls: u64, process: &Process) -> Self {
        let (count, time) = done;
        let (mark, share) = match count {
            _ if count >= size => ("", 1.0),
            ENOUGH.. => ("≈ ", size as f64 / count as f64),
            _ => (MORE_THAN, 1.0),
        };
        Self {
            seconds: time.as_secs_f64() * share,
            calls: calls as f64 * share,
            mark,
            calls_mark: mark,
            memory: memory(process),
        }
    }
}

/// With fewer initialised nodes than this, the time is not extrapolated.
const ENOUGH: usize = 10;
pub(crate) const MORE_THAN: &str = "> ";

/// The same number of nodes with each controller.
pub(crate) struct Size {
    pub(crate) nodes: usize,
    pub(crate) go: Measured,
    /// The Go controller with higher limits for its requests to the API server.
    pub(crate) raised: Measured,
    pub(crate) ours: Measured,
}

/// One table with a column for each size, and one with a row for each other measurement.
#[derive(Default)]
pub(crate) struct Page {
    pub(crate) sizes: Vec<Size>,
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
        let row = |title: &str, cell: &dyn Fn(&Size) -> String| {
            let cells: Vec<String> = self.sizes.iter().map(cell).collect();
            println!("| {title} | {} |", cells.join(" | "));
        };
        println!("\nFor docs/benchmarks.md (load {} before, {} after):\n", load.0, load.1);
        row("tainted nodes until all are initialised", &|size| thousands(size.nodes as f64));
        row("---", &|_| "---".into());
        row("Go, default limits", &|size| size.go.cell());
        row("Go, raised limits", &|size| size.raised.cell());
        row("ours", &|size| size.ours.cell());
        row("ours compared with Go, default limits", &|size| size.ours.compared_with(&size.go));
        row("ours compared with Go, raised limits", &|size| size.ours.compared_with(&size.raised));
        row("memory at that moment: Go, default limits", &|size| size.go.memory_cell());
        row("memory at that moment: Go, raised limits", &|size| size.raised.memory_cell());
        row("memory at that moment: ours", &|size| size.ours.memory_cell());
        println!("\n| | Go | ours |\n|---|---|---|");
        for [what, go, ours] in &self.rows {
            println!("| {what} | {go} | {ours} |");
        }
        let stopped = |size: &Size| !size.go.mark.is_empty() || !size.raised.mark.is_empty();
        if self.sizes.iter().any(stopped) {
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
    fn compared_with(&self, go: &Self) -> String {
        let (faster, fewer) = (go.seconds / self.seconds, go.calls / self.calls);
        format!(
            "{}{faster:.0} times faster, {}{fewer:.0} times fewer calls",
            go.mark, go.calls_mark
        )
    }

    fn memory_cell(&self) -> String {
        let part = if self.mark.is_empty() { "" } else { " (with the nodes it had initialized)" };
        format!("{}{part}", self.memory)
    }
}
