//! What a vCenter is.

use crate::moref::MoRef;
use crate::xml::codec::data;

data! {
    /// Product and version of a vCenter.
    pub struct AboutInfo {
        /// `VMware vCenter Server`.
        name: String = "name",
        /// With version and build.
        full_name: String = "fullName",
        /// Who made it.
        vendor: String = "vendor",
        /// `8.0.3`.
        version: String = "version",
        /// The patch level, from 7.0 Update 2 on.
        patch_level: Option<String> = "patchLevel",
        /// The build number.
        build: String = "build",
        /// The operating system it runs on.
        os_type: String = "osType",
        /// `vpx`.
        product_line: String = "productLineId",
        /// `VirtualCenter`, or `HostAgent` for an ESXi host.
        api_type: String = "apiType",
        /// The version of the API, `8.0.3.0`.
        api_version: String = "apiVersion",
        /// Tells this vCenter from every other.
        instance_uuid: Option<String> = "instanceUuid",
    }
}

data! {
    /// The entry points into the API.
    pub(crate) struct ServiceContent {
        /// The root of the inventory.
        root_folder: MoRef = "rootFolder",
        /// Reads properties.
        property_collector: MoRef = "propertyCollector",
        /// Makes views.
        view_manager: MoRef = "viewManager",
        /// What it is.
        about: AboutInfo = "about",
        /// Knows sessions.
        session_manager: MoRef = "sessionManager",
        /// Knows roles and permissions.
        authorization_manager: MoRef = "authorizationManager",
        /// Finds objects.
        search_index: MoRef = "searchIndex",
    }
}
