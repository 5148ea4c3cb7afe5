//! Calls of the Controller service in the same process, and what its answers mean for a loop.

use std::{collections::HashSet, sync::Arc, time::Duration};

use runtime::lease::Mandate;
use tonic::{Code, Request, Response, Status};

use crate::proto::csi::{
    ControllerGetCapabilitiesRequest, VolumeCapability,
    controller_server::Controller,
    controller_service_capability::{Type, rpc::Type as Rpc},
    volume_capability::{
        AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode as CsiMode,
    },
};

/// The Controller service, called only while this process leads.
#[derive(Clone)]
pub struct Calls {
    controller: Arc<dyn Controller>,
    mandate: Mandate,
    timeout: Duration,
}

impl Calls {
    pub fn new(controller: Arc<dyn Controller>, mandate: Mandate, timeout: Duration) -> Self {
        Self { controller, mandate, timeout }
    }

    /// The service, for the argument of [`Calls::send`].
    pub fn service(&self) -> &dyn Controller {
        &*self.controller
    }

    pub async fn send<T>(
        &self,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, Status> {
        let limited = tokio::time::timeout(self.timeout, call);
        match self.mandate.while_it_holds(limited).await {
            None => Err(Status::unavailable("this instance is no longer the leader")),
            Some(Err(_)) => Err(Status::deadline_exceeded(format!(
                "the operation did not finish within {} seconds; the driver continues it",
                self.timeout.as_secs()
            ))),
            Some(Ok(answer)) => answer.map(Response::into_inner),
        }
    }

    pub async fn capabilities(&self) -> Result<Capabilities, Status> {
        let request = Request::new(ControllerGetCapabilitiesRequest {});
        let answer = self.send(self.controller.controller_get_capabilities(request)).await?;
        let types = answer.capabilities.into_iter().filter_map(|capability| capability.r#type);
        Ok(Capabilities(types.map(|Type::Rpc(rpc)| rpc.r#type()).collect()))
    }
}

/// The operations that the Controller service offers.
#[derive(Clone, Debug, Default)]
pub struct Capabilities(HashSet<Rpc>);

impl Capabilities {
    pub fn has(&self, capability: Rpc) -> bool {
        self.0.contains(&capability)
    }
}

impl FromIterator<Rpc> for Capabilities {
    fn from_iter<I: IntoIterator<Item = Rpc>>(capabilities: I) -> Self {
        Self(capabilities.into_iter().collect())
    }
}

/// Whether the operation is certainly not running any more. CreateVolume has a rule of its own: for it,
/// `ResourceExhausted` is final.
pub fn is_final(code: Code) -> bool {
    code != Code::ResourceExhausted && is_final_for_create(code)
}

pub fn is_final_for_create(code: Code) -> bool {
    !matches!(code, Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable | Code::Aborted)
}

/// The access mode that a volume needs for all these modes of a claim or a PersistentVolume.
pub fn access_mode(modes: &[String], single_node_modes: bool) -> Result<CsiMode, String> {
    let has = |mode: &str| modes.iter().any(|m| m == mode);
    let (multiple, single) = if single_node_modes {
        (CsiMode::SingleNodeMultiWriter, CsiMode::SingleNodeSingleWriter)
    } else {
        (CsiMode::SingleNodeWriter, CsiMode::SingleNodeWriter)
    };
    match () {
        () if has("ReadWriteOncePod") && modes.len() > 1 => {
            Err("ReadWriteOncePod cannot be combined with other access modes".into())
        }
        () if has("ReadWriteOncePod") => Ok(single),
        () if has("ReadWriteMany") => Ok(CsiMode::MultiNodeMultiWriter),
        () if has("ReadOnlyMany") && has("ReadWriteOnce") => {
            Err("ReadOnlyMany and ReadWriteOnce cannot be combined".into())
        }
        () if has("ReadOnlyMany") => Ok(CsiMode::MultiNodeReaderOnly),
        () if has("ReadWriteOnce") => Ok(multiple),
        () => Err(format!("the access modes {modes:?} are not supported")),
    }
}

pub fn volume_capability(
    mode: CsiMode,
    is_block: bool,
    fs_type: &str,
    mount_options: &[String],
) -> VolumeCapability {
    let access_type = if is_block {
        AccessType::Block(BlockVolume {})
    } else {
        AccessType::Mount(MountVolume {
            fs_type: fs_type.into(),
            mount_flags: mount_options.to_vec(),
            ..MountVolume::default()
        })
    };
    VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(access_type),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(modes: &[&str], single_node_modes: bool) -> Result<CsiMode, String> {
        let modes: Vec<String> = modes.iter().map(ToString::to_string).collect();
        access_mode(&modes, single_node_modes)
    }

    #[test]
    fn access_modes_become_csi_modes() {
        let (rwo, rox, rwx, rwop) =
            ("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod");
        assert_eq!(mode(&[rwo], false), Ok(CsiMode::SingleNodeWriter));
        assert_eq!(mode(&[rwo], true), Ok(CsiMode::SingleNodeMultiWriter));
        assert_eq!(mode(&[rwop], false), Ok(CsiMode::SingleNodeWriter));
        assert_eq!(mode(&[rwop], true), Ok(CsiMode::SingleNodeSingleWriter));
        assert_eq!(mode(&[rox], true), Ok(CsiMode::MultiNodeReaderOnly));
        assert_eq!(mode(&[rwo, rwx], true), Ok(CsiMode::MultiNodeMultiWriter));
        assert!(mode(&[rwo, rox], true).is_err());
        assert!(mode(&[rwop, rwo], true).is_err());
        assert!(mode(&[], true).is_err());
    }

    #[test]
    fn an_operation_that_may_still_run_is_not_final() {
        for code in [Code::Cancelled, Code::DeadlineExceeded, Code::Unavailable, Code::Aborted] {
            assert!(!is_final(code) && !is_final_for_create(code), "{code:?}");
        }
        assert!(!is_final(Code::ResourceExhausted) && is_final_for_create(Code::ResourceExhausted));
        for code in [Code::InvalidArgument, Code::Internal, Code::NotFound, Code::Unknown] {
            assert!(is_final(code) && is_final_for_create(code), "{code:?}");
        }
    }
}
