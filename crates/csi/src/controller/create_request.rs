//! A validated request for a new volume.

use snafu::{Snafu, ensure};
use tonic::Code;

use super::{
    capabilities::{self, CapabilityError},
    parameters::{self, ParameterError, VolumeParameters},
    size::{self, SizeError},
};
use crate::{
    proto::csi::{CapacityRange, CreateVolumeRequest, volume_content_source::Type},
    records::{NO_SOURCE, Operation, short_digest},
    site::Segments,
};

/// CNS accepts this many characters in a name.
const MAX_NAME: usize = 80;
/// The specification's limit for a name, in bytes.
const MAX_REQUEST_NAME: usize = 128;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Snapshot { volume: String, snapshot: String },
    Volume { volume: String },
}

impl Source {
    /// The id of the source as a CSI caller knows it.
    pub(super) fn id(&self) -> String {
        match self {
            Self::Snapshot { volume, snapshot } => format!("{volume}+{snapshot}"),
            Self::Volume { volume } => volume.clone(),
        }
    }

    pub(super) fn volume(&self) -> &str {
        match self {
            Self::Snapshot { volume, .. } | Self::Volume { volume } => volume,
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct WantedVolume {
    pub(super) name: String,
    /// The name in CNS.
    pub(super) cns_name: String,
    pub(super) range: Option<CapacityRange>,
    pub(super) size_mib: i64,
    pub(super) parameters: VolumeParameters,
    pub(super) source: Option<Source>,
    /// The acceptable segments, best first.
    pub(super) terms: Vec<Segments>,
}

#[derive(Debug, Snafu)]
pub(super) enum RequestError {
    #[snafu(display("the request has no name"))]
    NoName,
    #[snafu(display("the name has {length} bytes; at most 128 are allowed"))]
    LongName { length: usize },
    #[snafu(transparent)]
    Capability { source: CapabilityError },
    #[snafu(transparent)]
    Parameter { source: ParameterError },
    #[snafu(transparent)]
    Size { source: SizeError },
    #[snafu(display("the content source is neither a volume nor a snapshot"))]
    NoSource,
    #[snafu(display("there is no snapshot {snapshot} to create the volume from"))]
    UnknownSnapshot { snapshot: String },
    #[snafu(display(
        "topology category names not specified in the vsphere config secret: the request asks for {wanted}. Set topology-categories in the section [Labels] of csi-vsphere.conf, or create volumes without topology"
    ))]
    NoTopology { wanted: String },
}

impl RequestError {
    pub(super) fn code(&self) -> Code {
        match self {
            Self::Size { source } => source.code(),
            Self::UnknownSnapshot { .. } => Code::NotFound,
            _ => Code::InvalidArgument,
        }
    }
}

impl WantedVolume {
    pub(super) fn read(
        request: &CreateVolumeRequest,
        has_topology: bool,
    ) -> Result<Self, RequestError> {
        let name = request.name.clone();
        ensure!(!name.is_empty(), NoNameSnafu);
        ensure!(name.len() <= MAX_REQUEST_NAME, LongNameSnafu { length: name.len() });
        capabilities::check(&request.volume_capabilities)?;
        let mut parameters = VolumeParameters::read(&request.parameters)?;
        if let Some(policy) = parameters::mutable_policy(&request.mutable_parameters)? {
            parameters.policy = Some(policy);
        }
        if let Some(fs_type) = &parameters.fs_type {
            capabilities::check_fs_type(fs_type)?;
        }
        Ok(Self {
            cns_name: cns_name(&name),
            size_mib: size::wanted_mib(request.capacity_range.as_ref())?,
            range: request.capacity_range,
            source: source(request)?,
            terms: terms(request, has_topology)?,
            parameters,
            name,
        })
    }
}

impl WantedVolume {
    /// The request of an earlier call, as far as its record has it.
    pub(super) fn recorded(record: &Operation) -> Self {
        let source = record.source.as_ref().filter(|id| *id != NO_SOURCE);
        let source = source.map(|id| match id.split_once('+') {
            Some((volume, snapshot)) => {
                Source::Snapshot { volume: volume.to_owned(), snapshot: snapshot.to_owned() }
            }
            None => Source::Volume { volume: id.clone() },
        });
        Self {
            cns_name: cns_name(&record.name),
            name: record.name.clone(),
            range: None,
            size_mib: record.capacity_mib.unwrap_or_default(),
            parameters: VolumeParameters::default(),
            source,
            terms: Vec::new(),
        }
    }

    /// The source in a record.
    pub(super) fn source_id(&self) -> String {
        self.source.as_ref().map_or_else(|| NO_SOURCE.to_owned(), Source::id)
    }
}

/// CNS cuts long names off. Two names must not become one, so a long name ends with its digest.
fn cns_name(name: &str) -> String {
    if name.chars().count() <= MAX_NAME {
        return name.to_owned();
    }
    let start: String = name.chars().take(MAX_NAME - 33).collect();
    format!("{start}-{}", short_digest(name))
}

fn source(request: &CreateVolumeRequest) -> Result<Option<Source>, RequestError> {
    let Some(source) = &request.volume_content_source else { return Ok(None) };
    match &source.r#type {
        Some(Type::Volume(source)) => {
            ensure!(!source.volume_id.is_empty(), NoSourceSnafu);
            Ok(Some(Source::Volume { volume: source.volume_id.clone() }))
        }
        Some(Type::Snapshot(source)) => {
            ensure!(!source.snapshot_id.is_empty(), NoSourceSnafu);
            match source.snapshot_id.split_once('+') {
                Some((volume, snapshot)) if !volume.is_empty() && !snapshot.is_empty() => {
                    let (volume, snapshot) = (volume.to_owned(), snapshot.to_owned());
                    Ok(Some(Source::Snapshot { volume, snapshot }))
                }
                _ => UnknownSnapshotSnafu { snapshot: &source.snapshot_id }.fail(),
            }
        }
        None => NoSourceSnafu.fail(),
    }
}

/// The preferred segments, then the required ones that are not among them.
fn terms(request: &CreateVolumeRequest, has_topology: bool) -> Result<Vec<Segments>, RequestError> {
    let Some(requirement) = &request.accessibility_requirements else { return Ok(Vec::new()) };
    let given = requirement.preferred.iter().chain(&requirement.requisite);
    let mut terms: Vec<Segments> = Vec::new();
    for topology in given {
        let segments: Segments = topology.segments.clone().into_iter().collect();
        if !segments.is_empty() && !terms.contains(&segments) {
            terms.push(segments);
        }
    }
    if let (false, Some(first)) = (has_topology, terms.first()) {
        return NoTopologySnafu { wanted: super::placement::show(first) }.fail();
    }
    Ok(terms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_stay_different_and_short_ones_stay() {
        let pv = "pvc-0d3c8a1e-2b1f-4c55-9f0e-3f8f3a1d2c4b";
        assert_eq!(cns_name(pv), pv);
        let (one, two) = (format!("{}a", "x".repeat(127)), format!("{}b", "x".repeat(127)));
        assert!(cns_name(&one).len() == MAX_NAME && cns_name(&one) != cns_name(&two));
    }
}
