//! Groups of hosts in a cluster, which may stand for zones.

use crate::client::Client;
use crate::collector::spec::{FilterSpec, ObjectSpec, PropertySpec};
use crate::collector::{managed, retrieve};
use crate::error::Error;
use crate::moref::MoRef;
use crate::xml::codec::data;

data! {
    /// A group of a cluster: of hosts, or of virtual machines.
    #[derive(Eq)]
    pub struct Group {
        /// Its name.
        name: String = "name",
        /// Its hosts; none if it is a group of virtual machines.
        hosts: Vec<MoRef> = "host",
    }
}

data! {
    /// Of a cluster's configuration, its groups.
    struct ClusterConfig {
        groups: Vec<Group> = "group",
    }
}

managed! {
    /// A cluster.
    struct Configured of ClusterComputeResource {
        /// Its configuration.
        CONFIG {
            /// Its configuration.
            config: ClusterConfig = "configurationEx",
        }
    }
}

impl Client {
    /// The groups of a cluster. Needs `System.Read` on it.
    pub async fn groups(&self, cluster: &MoRef) -> Result<Vec<Group>, Error> {
        let kind = "ClusterComputeResource";
        let spec = FilterSpec {
            properties: vec![PropertySpec::new(kind, Configured::CONFIG.iter().copied())],
            objects: vec![ObjectSpec::just(cluster.clone())],
            missing_is_fine: false,
        };
        let mut groups = Vec::new();
        for found in retrieve::<Configured>(self, &spec, None).await? {
            if let Some(missing) = found.missing.into_iter().next() {
                return Err(self.wire().fault("configurationEx", missing.fault));
            }
            let config = found.value.and_then(|cluster| cluster.config);
            groups.extend(config.into_iter().flat_map(|config| config.groups));
        }
        Ok(groups)
    }
}
