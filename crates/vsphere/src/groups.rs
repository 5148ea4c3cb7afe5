//! Host groups of a cluster, which can represent zones.

use crate::client::Client;
use crate::collector::spec::{FilterSpec, ObjectSpec, PropertySpec};
use crate::collector::{managed, retrieve};
use crate::error::Error;
use crate::moref::MoRef;
use crate::xml::codec::data;

data! {
    /// A host group or VM group of a cluster.
    #[derive(Eq)]
    pub struct Group {
        name: String = "name",
        /// Empty for a VM group.
        hosts: Vec<MoRef> = "host",
    }
}

data! {
    /// The part of a cluster's configuration that holds its groups.
    struct ClusterConfig {
        groups: Vec<Group> = "group",
    }
}

managed! {
    struct ClusterObject of ClusterComputeResource {
        CONFIG {
            config: ClusterConfig = "configurationEx",
        }
    }
}

impl Client {
    /// Needs `System.Read` on the cluster.
    pub async fn groups(&self, cluster: &MoRef) -> Result<Vec<Group>, Error> {
        let kind = "ClusterComputeResource";
        let spec = FilterSpec {
            properties: vec![PropertySpec::new(kind, ClusterObject::CONFIG.iter().copied())],
            objects: vec![ObjectSpec::just(cluster.clone())],
            skip_missing: false,
        };
        let mut groups = Vec::new();
        for found in retrieve::<ClusterObject>(self, &spec, None).await? {
            if let Some(missing) = found.missing.into_iter().next() {
                return Err(self.wire().fault("configurationEx", missing.fault));
            }
            let config = found.value.and_then(|cluster| cluster.config);
            groups.extend(config.into_iter().flat_map(|config| config.groups));
        }
        Ok(groups)
    }
}
