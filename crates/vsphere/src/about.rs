//! vCenter's description of itself.

use crate::moref::MoRef;
use crate::xml::codec::data;

data! {
    pub struct AboutInfo {
        /// `VMware vCenter Server`.
        name: String = "name",
        /// Name, version and build.
        full_name: String = "fullName",
        vendor: String = "vendor",
        /// `8.0.3`.
        version: String = "version",
        /// Set from 7.0 Update 2 on.
        patch_level: Option<String> = "patchLevel",
        build: String = "build",
        os_type: String = "osType",
        /// `vpx`.
        product_line: String = "productLineId",
        /// `VirtualCenter`, or `HostAgent` for an ESXi host.
        api_type: String = "apiType",
        api_version: String = "apiVersion",
        /// Unique among all vCenters.
        instance_uuid: Option<String> = "instanceUuid",
    }
}

data! {
    pub(crate) struct ServiceContent {
        root_folder: MoRef = "rootFolder",
        property_collector: MoRef = "propertyCollector",
        view_manager: MoRef = "viewManager",
        about: AboutInfo = "about",
        session_manager: MoRef = "sessionManager",
        authorization_manager: MoRef = "authorizationManager",
        search_index: MoRef = "searchIndex",
        /// Unset in documents of tests.
        task_manager: Option<MoRef> = "taskManager",
    }
}

data! {
    /// The managers of the policy service.
    pub(crate) struct PolicyService {
        profile_manager: MoRef = "profileManager",
        placement_solver: MoRef = "placementSolver",
    }
}
