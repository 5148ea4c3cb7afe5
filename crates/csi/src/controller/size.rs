//! Sizes: CNS counts in MiB.

use snafu::{Snafu, ensure};
use tonic::Code;

use crate::proto::csi::CapacityRange;

pub(super) const MIB: i64 = 1 << 20;
/// Upstream's size for a request without one.
const DEFAULT_MIB: i64 = 10 << 10;
/// vSphere's limit for a virtual disk: 62 TiB.
const MAX_MIB: i64 = 62 << 20;

#[derive(Debug, PartialEq, Eq, Snafu)]
pub(super) enum SizeError {
    #[snafu(display("the size {bytes} bytes is negative"))]
    Negative { bytes: i64 },
    #[snafu(display(
        "the smallest possible size for {required} bytes is {possible} bytes, but the limit is {limit} bytes: vSphere disks have whole mebibytes"
    ))]
    Limit { required: i64, limit: i64, possible: i64 },
    #[snafu(display("{required} bytes are more than the 62 TiB that a vSphere disk can have"))]
    TooLarge { required: i64 },
}

impl SizeError {
    pub(super) fn code(&self) -> Code {
        match self {
            Self::Negative { .. } => Code::InvalidArgument,
            Self::Limit { .. } | Self::TooLarge { .. } => Code::OutOfRange,
        }
    }
}

/// The size of a new volume in MiB, rounded up.
pub(super) fn wanted_mib(range: Option<&CapacityRange>) -> Result<i64, SizeError> {
    let (required, limit) = bounds(range)?;
    if required == 0 && limit > 0 {
        // Any size up to the limit is fine.
        let most = limit / MIB;
        ensure!(most > 0, LimitSnafu { required, limit, possible: MIB });
        return Ok(most.min(DEFAULT_MIB));
    }
    let mib = if required == 0 { DEFAULT_MIB } else { round_up(required) };
    ensure!(mib <= MAX_MIB, TooLargeSnafu { required });
    ensure!(limit == 0 || mib * MIB <= limit, LimitSnafu { required, limit, possible: mib * MIB });
    Ok(mib)
}

/// Whether a volume of this size is what the request asks for.
pub(super) fn fits(range: Option<&CapacityRange>, mib: i64) -> bool {
    bounds(range).is_ok_and(|(required, limit)| {
        mib >= round_up(required) && (limit == 0 || mib.saturating_mul(MIB) <= limit)
    })
}

fn bounds(range: Option<&CapacityRange>) -> Result<(i64, i64), SizeError> {
    let (required, limit) = range.map_or((0, 0), |range| (range.required_bytes, range.limit_bytes));
    for bytes in [required, limit] {
        ensure!(bytes >= 0, NegativeSnafu { bytes });
    }
    Ok((required, limit))
}

fn round_up(bytes: i64) -> i64 {
    bytes / MIB + i64::from(bytes % MIB != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(required_bytes: i64, limit_bytes: i64) -> CapacityRange {
        CapacityRange { required_bytes, limit_bytes }
    }

    #[test]
    fn sizes_are_rounded_up_to_mebibytes() {
        for (required, limit, mib) in [
            (0, 0, 10240),
            (1, 0, 1),
            (MIB, 0, 1),
            (MIB + 1, 0, 2),
            (1 << 30, 1 << 30, 1024),
            (0, 5 * MIB + 1, 5),
            (0, i64::MAX, 10240),
        ] {
            assert_eq!(wanted_mib(Some(&range(required, limit))), Ok(mib), "{required} {limit}");
        }
        assert_eq!(wanted_mib(None), Ok(10240));
    }

    #[test]
    fn impossible_sizes_are_out_of_range() {
        for (required, limit) in [(MIB + 1, MIB + 2), (0, 1), (i64::MAX, 0), (2 * MIB, MIB)] {
            let error = wanted_mib(Some(&range(required, limit))).unwrap_err();
            assert_eq!(error.code(), Code::OutOfRange, "{required} {limit}: {error}");
        }
        let error = wanted_mib(Some(&range(-1, 0))).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
    }

    #[test]
    fn an_existing_volume_fits_if_it_is_large_enough_and_within_the_limit() {
        assert!(fits(None, 10240));
        assert!(fits(Some(&range(MIB, 0)), 1));
        assert!(!fits(Some(&range(MIB + 1, 0)), 1), "too small");
        assert!(!fits(Some(&range(MIB, MIB)), 2), "too large");
    }
}
