//! Durations in the format of Go programs: `15s`, `1m30s`, `250ms`, `1.5h`.

use std::{fmt, str::FromStr, time::Duration};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GoDuration(pub Duration);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidDuration(String);

impl fmt::Display for InvalidDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is not a duration: write for example 30s, 5m or 1h30m", self.0)
    }
}

impl std::error::Error for InvalidDuration {}

impl FromStr for GoDuration {
    type Err = InvalidDuration;

    fn from_str(text: &str) -> Result<Self, InvalidDuration> {
        let invalid = || InvalidDuration(text.to_owned());
        if text == "0" {
            return Ok(Self(Duration::ZERO));
        }
        let (mut seconds, mut rest) = (0.0, text);
        if rest.is_empty() {
            return Err(invalid());
        }
        while !rest.is_empty() {
            let digits =
                rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(invalid)?;
            let number: f64 = rest[..digits].parse().map_err(|_| invalid())?;
            rest = &rest[digits..];
            let end = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
            let unit = match &rest[..end] {
                "h" => 3600.0,
                "m" => 60.0,
                "s" => 1.0,
                "ms" => 1e-3,
                "us" | "µs" => 1e-6,
                "ns" => 1e-9,
                _ => return Err(invalid()),
            };
            seconds += number * unit;
            rest = &rest[end..];
        }
        // Go's limit is 292 years.
        let in_range = seconds <= 9.2e9;
        let duration = Duration::try_from_secs_f64(seconds).ok().filter(|_| in_range);
        duration.map(Self).ok_or_else(invalid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_of_go_programs_are_parsed() {
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
