//! `vsphere.conf` in YAML.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};

use super::{CpiConfig, keys};
use crate::keys::{Key, Read, ReadError, WriteError};
use crate::secret::SecretText;
use crate::yaml::{Context, NamedSeed, SectionSeed, Writer};

const SECTIONS: [&str; 8] =
    ["global", "vcenter", "labels", "nodes", "route", "nsxt", "loadBalancer", "loadBalancerClass"];

pub(super) fn read(text: &str) -> Result<Read<CpiConfig>, ReadError> {
    if text.trim().is_empty() {
        return Err(ReadError::Empty);
    }
    let context = Context::default();
    let config = context.read(text, Root(&context))?;
    Ok(Read { config: config.with_servers(), unknown: context.unknown() })
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
    let mut writer = Writer::default();
    writer.section("global", keys::GLOBAL, &global)?;
    writer.named("vcenter", keys::VCENTER, vcenters.iter())?;
    writer.section("labels", keys::LABELS, &labels)?;
    writer.section("nodes", keys::NODES, &nodes)?;
    writer.section("route", keys::ROUTE, &route)?;
    writer.section("nsxt", keys::NSXT, &nsxt)?;
    writer.section("loadBalancer", keys::LOAD_BALANCER, &load_balancer)?;
    let classes = load_balancer_classes.iter();
    writer.named("loadBalancerClass", keys::LOAD_BALANCER_CLASS, classes)?;
    Ok(writer.finish())
}

/// The top level of the file.
struct Root<'a>(&'a Context);

impl<'de> DeserializeSeed<'de> for Root<'_> {
    type Value = CpiConfig;

    fn deserialize<D: Deserializer<'de>>(self, de: D) -> Result<CpiConfig, D::Error> {
        de.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Root<'_> {
    type Value = CpiConfig;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the sections of vsphere.conf")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<CpiConfig, A::Error> {
        let mut config = CpiConfig::default();
        while let Some(name) = map.next_key::<String>()? {
            match name.as_str() {
                "global" => self.section(&mut map, "global", keys::GLOBAL, &mut config.global)?,
                "labels" => self.section(&mut map, "labels", keys::LABELS, &mut config.labels)?,
                "nodes" => self.section(&mut map, "nodes", keys::NODES, &mut config.nodes)?,
                "route" => self.section(&mut map, "route", keys::ROUTE, &mut config.route)?,
                "nsxt" => self.section(&mut map, "nsxt", keys::NSXT, &mut config.nsxt)?,
                "loadBalancer" => self.section(
                    &mut map,
                    "loadBalancer",
                    keys::LOAD_BALANCER,
                    &mut config.load_balancer,
                )?,
                "vcenter" => map.next_value_seed(NamedSeed {
                    context: self.0,
                    section: "vcenter",
                    keys: keys::VCENTER,
                    into: &mut config.vcenters,
                })?,
                "loadBalancerClass" => map.next_value_seed(NamedSeed {
                    context: self.0,
                    section: "loadBalancerClass",
                    keys: keys::LOAD_BALANCER_CLASS,
                    into: &mut config.load_balancer_classes,
                })?,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    self.0.report(name.clone(), &name, SECTIONS.into_iter());
                }
            }
        }
        Ok(config)
    }
}

impl Root<'_> {
    fn section<'de, T, A: MapAccess<'de>>(
        &self,
        map: &mut A,
        name: &str,
        keys: &'static [Key<T>],
        into: &mut T,
    ) -> Result<(), A::Error> {
        map.next_value_seed(SectionSeed { context: self.0, path: name.to_owned(), keys, into })
    }
}
