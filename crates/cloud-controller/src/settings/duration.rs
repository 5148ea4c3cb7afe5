//! Durations as Go programs write them: `15s`, `1m30s`, `250ms`, `1.5h`.

use std::{fmt, str::FromStr, time::Duration};

/// A duration from the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GoDuration(pub Duration);

/// What is no duration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoDuration(String);

impl fmt::Display for NoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is no duration: write for example 30s, 5m or 1h30m", self.0)
    }
}

impl std::error::Error for NoDuration {}

impl FromStr for GoDuration {
    type Err = NoDuration;

    fn from_str(text: &str) -> Result<Self, NoDuration> {
        let wrong = || NoDuration(text.to_owned());
        if text == "0" {
            return Ok(Self(Duration::ZERO));
        }
        let (mut seconds, mut rest) = (0.0, text);
        if rest.is_empty() {
            return Err(wrong());
        }
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
            let number: f64 = rest[..digits].parse().map_err(|_| wrong())?;
            rest = &rest[digits..];
            let end = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
            let unit = match &rest[..end] {
                "h" => 3600.0,
                "m" => 60.0,
                "s" => 1.0,
                "ms" => 1e-3,
                "us" | "µs" => 1e-6,
                "ns" => 1e-9,
                _ => return Err(wrong()),
            };
            seconds += number * unit;
            rest = &rest[end..];
        }
        // Go knows none above 292 years either.
        let known = seconds <= 9.2e9;
        let duration = Duration::try_from_secs_f64(seconds).ok().filter(|_| known);
        duration.map(Self).ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_writes_them() {
        for (text, millis) in [
            ("15s", 15_000),
            ("5m0s", 300_000),
            ("1h30m", 5_400_000),
            ("250ms", 250),
            ("1.5s", 1500),
            ("0", 0),
        ] {
            let read = text.parse::<GoDuration>().map(|d| d.0.as_millis());
            assert_eq!(read, Ok(millis), "{text}");
        }
        for text in ["", "15", "s", "1x", "-5s", "1.2.3s"] {
            assert!(text.parse::<GoDuration>().is_err(), "{text}");
        }
    }
}
