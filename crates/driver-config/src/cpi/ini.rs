//! `vsphere.conf` in gcfg.

use super::{CpiConfig, keys};
use crate::gcfg;
use crate::keys::{Read, ReadError, UnknownKey, WriteError, nearest, read_section, write_section};
use crate::secret::SecretText;

const SECTIONS: [&str; 8] = [
    "Global",
    "VirtualCenter",
    "Labels",
    "Nodes",
    "Route",
    "NSXT",
    "LoadBalancer",
    "LoadBalancerClass",
];

pub(super) fn read(text: &str) -> Result<Read<CpiConfig>, ReadError> {
    let sections = gcfg::parse(text).map_err(|source| ReadError::Gcfg { source })?;
    if sections.is_empty() {
        return Err(ReadError::Empty);
    }
    let mut config = CpiConfig::default();
    let mut unknown = Vec::new();
    for section in &sections {
        let unknown_keys = &mut unknown;
        match (section.name.to_ascii_lowercase().as_str(), &section.subsection) {
            ("global", None) => {
                read_section(section, keys::GLOBAL, &mut config.global, unknown_keys)?;
            }
            ("labels", None) => {
                read_section(section, keys::LABELS, &mut config.labels, unknown_keys)?;
            }
            ("nodes", None) => read_section(section, keys::NODES, &mut config.nodes, unknown_keys)?,
            ("route", None) => read_section(section, keys::ROUTE, &mut config.route, unknown_keys)?,
            ("nsxt", None) => read_section(section, keys::NSXT, &mut config.nsxt, unknown_keys)?,
            ("loadbalancer", None) => {
                read_section(
                    section,
                    keys::LOAD_BALANCER,
                    &mut config.load_balancer,
                    unknown_keys,
                )?;
            }
            ("virtualcenter", Some(name)) => {
                let into = config.vcenters.entry(name.clone()).or_default();
                read_section(section, keys::VCENTER, into, unknown_keys)?;
            }
            ("loadbalancerclass", Some(name)) => {
                let into = config.load_balancer_classes.entry(name.clone()).or_default();
                read_section(section, keys::LOAD_BALANCER_CLASS, into, unknown_keys)?;
            }
            ("virtualcenter" | "loadbalancerclass", None) => {
                let path = format!("[{}]", section.name);
                let expected =
                    "followed by a name in quotes, such as [VirtualCenter \"vc.example.com\"]";
                return Err(ReadError::Value { path, expected });
            }
            _ => {
                let nearest = nearest(&section.name, SECTIONS.into_iter());
                unknown_keys.push(UnknownKey { path: format!("[{}]", section.name), nearest });
            }
        }
    }
    Ok(Read { config: config.with_servers(), unknown })
}

pub(super) fn write(config: &CpiConfig) -> Result<SecretText, WriteError> {
    let CpiConfig {
        global,
        vcenters,
        labels,
        nodes,
        route,
        nsxt,
        load_balancer,
        load_balancer_classes,
    } = config.clone().with_servers();
    let mut writer = gcfg::Writer::default();
    let w = &mut writer;
    write_section(w, "Global", None, keys::GLOBAL, &global)?;
    for (name, vcenter) in &vcenters {
        write_section(w, "VirtualCenter", Some(name), keys::VCENTER, vcenter)?;
    }
    write_section(w, "Labels", None, keys::LABELS, &labels)?;
    write_section(w, "Nodes", None, keys::NODES, &nodes)?;
    write_section(w, "Route", None, keys::ROUTE, &route)?;
    write_section(w, "NSXT", None, keys::NSXT, &nsxt)?;
    write_section(w, "LoadBalancer", None, keys::LOAD_BALANCER, &load_balancer)?;
    for (name, class) in &load_balancer_classes {
        write_section(w, "LoadBalancerClass", Some(name), keys::LOAD_BALANCER_CLASS, class)?;
    }
    Ok(writer.finish())
}
