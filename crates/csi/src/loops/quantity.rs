//! Sizes in the notation of Kubernetes.

use std::fmt::{self, Display};

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::{Deserialize, Deserializer, de::Error as _};

/// A number of bytes. Read from a quantity such as `10Gi`, and displayed as one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub i64);

const SUFFIXES: [(&str, i128); 12] = [
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("Pi", 1 << 50),
    ("Ei", 1 << 60),
    ("k", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
    ("P", 1_000_000_000_000_000),
    ("E", 1_000_000_000_000_000_000),
];

impl Bytes {
    /// Fractions of a byte count as a byte, as in Kubernetes.
    pub fn parse(quantity: &str) -> Option<Self> {
        let at = quantity.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(quantity.len());
        let (number, suffix) = quantity.split_at(at);
        let (numerator, denominator) = decimal(number)?;
        let (multiplier, divisor) = match suffix {
            "" => (1, 1),
            "m" => (1, 1_000),
            "u" => (1, 1_000_000),
            "n" => (1, 1_000_000_000),
            _ => match SUFFIXES.iter().find(|(known, _)| *known == suffix) {
                Some((_, factor)) => (*factor, 1),
                None => power_of_ten(suffix)?,
            },
        };
        let (numerator, denominator) =
            (numerator.checked_mul(multiplier)?, denominator.checked_mul(divisor)?);
        let rounded_up =
            numerator.div_euclid(denominator) + i128::from(numerator.rem_euclid(denominator) != 0);
        i64::try_from(rounded_up).ok().map(Self)
    }

    pub fn quantity(self) -> Quantity {
        Quantity(self.to_string())
    }
}

/// A decimal number as a fraction.
fn decimal(number: &str) -> Option<(i128, i128)> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.len() > 18 || !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let denominator = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    Some((digits, denominator))
}

/// `e3`, `E-3`, as multiplier and divisor.
fn power_of_ten(suffix: &str) -> Option<(i128, i128)> {
    let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    let power = 10_i128.checked_pow(exponent.unsigned_abs())?;
    Some(if exponent < 0 { (1, power) } else { (power, 1) })
}

impl Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = i128::from(self.0);
        let exact = |(_, factor): &&(&str, i128)| value != 0 && value % factor == 0;
        match SUFFIXES[..6].iter().rev().find(exact) {
            Some((suffix, factor)) => write!(f, "{}{suffix}", value / factor),
            None => write!(f, "{value}"),
        }
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Quantity(text) = Quantity::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| D::Error::custom(format!("{text:?} is no size")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_kubernetes_reads_them() {
        let cases = [
            ("0", 0),
            ("1", 1),
            ("10Gi", 10 << 30),
            ("1.5Gi", 3 << 29),
            ("1G", 1_000_000_000),
            ("5e3", 5_000),
            ("5E3", 5_000),
            ("2E", 2_000_000_000_000_000_000),
            ("1500m", 2),
            ("0.1", 1),
            ("1n", 1),
            ("7Ei", 7 << 60),
        ];
        for (text, bytes) in cases {
            assert_eq!(Bytes::parse(text), Some(Bytes(bytes)), "{text}");
        }
        for text in ["", "Gi", "1GB", "1..5", "1 Gi", "9Ei", "1.x"] {
            assert_eq!(Bytes::parse(text), None, "{text}");
        }
    }

    #[test]
    fn sizes_are_displayed_with_the_largest_exact_suffix() {
        let cases =
            [(0, "0"), (1 << 30, "1Gi"), (3 << 29, "1536Mi"), (1000, "1000"), (1 << 40, "1Ti")];
        for (bytes, text) in cases {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }
}
