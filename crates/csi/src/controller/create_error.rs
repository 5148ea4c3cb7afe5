//! Why a volume was not created.

use snafu::Snafu;
use tonic::Code;
use vsphere::Error as VcenterError;

use super::{
    create_request::RequestError,
    failure::{CnsError, code_of},
    locate::LocateError,
    locks::Busy,
    placement::{CopyError, PlacementError},
    status_of,
};
use crate::{
    records::RecordError,
    vcenters::{PolicyError, Unavailable},
};

#[derive(Debug, Snafu)]
#[snafu(visibility(pub(super)))]
pub(super) enum CreateError {
    #[snafu(transparent)]
    Request { source: RequestError },
    #[snafu(transparent)]
    Busy { source: Busy },
    #[snafu(transparent)]
    Record { source: RecordError },
    #[snafu(display("cannot create the volume {name}"))]
    Vcenter { name: String, source: Unavailable },
    #[snafu(display("cannot create the volume {name}"))]
    Placement { name: String, source: PlacementError },
    #[snafu(display("cannot create the volume {name}"))]
    Policy { name: String, source: PolicyError },
    #[snafu(display("cannot create the volume {name}: the privileges on datastores are unknown"))]
    Privileges { name: String, source: VcenterError },
    #[snafu(display("cannot create the volume {name}"))]
    Cns { name: String, source: CnsError },
    #[snafu(display("cannot create the volume {name} from {origin}"))]
    Source { name: String, origin: String, source: LocateError },
    #[snafu(display(
        "cannot create the volume {name} with {wanted_mib} MiB: its source {origin} has {source_mib} MiB, and a volume cannot be smaller than its source"
    ))]
    SmallerThanSource { name: String, origin: String, wanted_mib: i64, source_mib: i64 },
    #[snafu(display(
        "there is a volume {name} with {mib} MiB ({id}), which is not what the request asks for: {difference}. Delete it or choose another name"
    ))]
    Different { name: String, id: String, mib: i64, difference: String },
    #[snafu(display(
        "an earlier call to create the volume {name} got no answer, and vCenter may still work on it; repeat the call"
    ))]
    Undecided { name: String },
    #[snafu(display(
        "the volume {name} ({id}) exists, but its topology is unknown: {why}. Check the tags of hosts and the permissions on the datastore, and repeat the call"
    ))]
    NoSegment { name: String, id: String, why: String },
    #[snafu(display("cannot create the volume {name} next to its source {origin}"))]
    SourcePlacement { name: String, origin: String, source: CopyError },
    #[snafu(display("cannot find out what became of an earlier call to create the volume {name}"))]
    Recover { name: String, source: VcenterError },
}

impl CreateError {
    pub(super) fn code(&self) -> Code {
        match self {
            Self::Request { source } => source.code(),
            Self::Busy { .. } => Code::Aborted,
            Self::Record { source } => source.code(),
            Self::Vcenter { .. } | Self::Undecided { .. } | Self::NoSegment { .. } => {
                Code::Unavailable
            }
            Self::SourcePlacement { .. } => Code::ResourceExhausted,
            Self::Placement { source, .. } => source.code(),
            Self::Policy { source: PolicyError::Unknown { .. }, .. } => Code::InvalidArgument,
            Self::Policy { source: PolicyError::Read { source }, .. }
            | Self::Privileges { source, .. }
            | Self::Recover { source, .. } => code_of(source),
            Self::Cns { source, .. } => source.code(),
            Self::Source { source, .. } => source.code(),
            Self::SmallerThanSource { .. } => Code::OutOfRange,
            Self::Different { .. } => Code::AlreadyExists,
        }
    }
}
status_of!(CreateError);
