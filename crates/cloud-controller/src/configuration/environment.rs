//! The environment variables of the upstream controller, which override the file.
//!
//! They apply before each vCenter inherits from `global`. `VSPHERE_VCENTER_PORT` is a port, not a
//! vCenter. Values can contain `=`.

use std::collections::BTreeMap;

use driver_config::cpi::{CpiConfig, VirtualCenter};

use super::{ConfigurationError, EnvironmentSnafu};

type Environment = BTreeMap<String, String>;

pub(super) fn apply(
    config: &mut CpiConfig,
    environment: &Environment,
) -> Result<(), ConfigurationError> {
    let get = |name: &str| environment.get(name).filter(|value| !value.is_empty());
    let global = &mut config.global;
    text(get("VSPHERE_VCENTER"), &mut global.server);
    text(get("VSPHERE_USER"), &mut global.user);
    if let Some(password) = get("VSPHERE_PASSWORD") {
        global.password = password.as_str().into();
    }
    text(get("VSPHERE_SECRET_NAME"), &mut global.secret_name);
    text(get("VSPHERE_SECRET_NAMESPACE"), &mut global.secret_namespace);
    text(get("VSPHERE_SECRETS_DIRECTORY"), &mut global.secrets_directory);
    text(get("VSPHERE_CAFILE"), &mut global.ca_file);
    text(get("VSPHERE_THUMBPRINT"), &mut global.thumbprint);
    list(get("VSPHERE_DATACENTER"), &mut global.datacenters);
    global.port = number("VSPHERE_VCENTER_PORT", get("VSPHERE_VCENTER_PORT"))?.or(global.port);
    let roundtrips = number("VSPHERE_ROUNDTRIP_COUNT", get("VSPHERE_ROUNDTRIP_COUNT"))?;
    global.soap_roundtrip_count = roundtrips.or(global.soap_roundtrip_count);
    if let Some(insecure) = flag("VSPHERE_INSECURE", get("VSPHERE_INSECURE"))? {
        global.insecure_flag = insecure;
    }
    text(get("VSPHERE_LABEL_REGION"), &mut config.labels.region);
    text(get("VSPHERE_LABEL_ZONE"), &mut config.labels.zone);
    let nodes = &mut config.nodes;
    list(
        get("VSPHERE_NODES_INTERNAL_NETWORK_SUBNET_CIDR"),
        &mut nodes.internal_network_subnet_cidr,
    );
    list(
        get("VSPHERE_NODES_EXTERNAL_NETWORK_SUBNET_CIDR"),
        &mut nodes.external_network_subnet_cidr,
    );
    text(get("VSPHERE_NODES_INTERNAL_VM_NETWORK_NAME"), &mut nodes.internal_vm_network_name);
    text(get("VSPHERE_NODES_EXTERNAL_VM_NETWORK_NAME"), &mut nodes.external_vm_network_name);
    for (name, server) in environment {
        if let Some(id) = name.strip_prefix("VSPHERE_VCENTER_")
            && id != "PORT"
            && !id.is_empty()
            && !server.is_empty()
        {
            let entry = config.vcenters.entry(server.clone()).or_default();
            apply_vcenter(id, server, entry, environment)?;
        }
    }
    Ok(())
}

/// Overrides the vCenter in `VSPHERE_VCENTER_<id>`.
fn apply_vcenter(
    id: &str,
    server: &str,
    entry: &mut VirtualCenter,
    environment: &Environment,
) -> Result<(), ConfigurationError> {
    let key = |suffix: &str| format!("VCENTER_{id}_{suffix}");
    let get = |suffix: &str| environment.get(&key(suffix)).filter(|value| !value.is_empty());
    if entry.server.is_empty() {
        server.clone_into(&mut entry.server);
    }
    text(get("SERVER"), &mut entry.server);
    text(get("USERNAME"), &mut entry.user);
    if let Some(password) = get("PASSWORD") {
        entry.password = password.as_str().into();
    }
    text(get("CAFILE"), &mut entry.ca_file);
    text(get("THUMBPRINT"), &mut entry.thumbprint);
    text(get("SECRET_NAME"), &mut entry.secret_name);
    text(get("SECRET_NAMESPACE"), &mut entry.secret_namespace);
    list(get("DATACENTERS"), &mut entry.datacenters);
    list(get("IP_FAMILY"), &mut entry.ip_family);
    entry.port = number(&key("PORT"), get("PORT"))?.or(entry.port);
    let roundtrips = number(&key("ROUNDTRIP"), get("ROUNDTRIP"))?;
    entry.soap_roundtrip_count = roundtrips.or(entry.soap_roundtrip_count);
    if let Some(insecure) = flag(&key("INSECURE"), get("INSECURE"))? {
        entry.insecure_flag = insecure;
    }
    Ok(())
}

fn text(value: Option<&String>, into: &mut String) {
    if let Some(value) = value {
        into.clone_from(value);
    }
}

fn list(value: Option<&String>, into: &mut Vec<String>) {
    if let Some(value) = value {
        *into = value.split(',').map(|item| item.trim().to_owned()).collect();
    }
}

fn number<N: std::str::FromStr>(
    name: &str,
    value: Option<&String>,
) -> Result<Option<N>, ConfigurationError> {
    let parsed = value.map(|value| value.trim().parse()).transpose();
    parsed.map_err(|_| EnvironmentSnafu { name, expected: "a number" }.build())
}

fn flag(name: &str, value: Option<&String>) -> Result<Option<bool>, ConfigurationError> {
    match value.map(|value| value.trim().to_ascii_lowercase()).as_deref() {
        None => Ok(None),
        Some("true" | "1" | "t") => Ok(Some(true)),
        Some("false" | "0" | "f") => Ok(Some(false)),
        Some(_) => EnvironmentSnafu { name, expected: "true or false" }.fail(),
    }
}
