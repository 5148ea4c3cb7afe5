//! Storage policies.

use crate::about::PolicyService;
use crate::client::Client;
use crate::error::Error;
use crate::moref::{Kind, MoRef};
use crate::soap::{Fault, Value};
use crate::wire::{Method, Service};
use crate::xml::codec::{Encode, data};

data! {
    struct ResourceType {
        name: String = "resourceType",
    }
}

data! {
    struct ProfileId {
        id: String = "uniqueId",
    }
}

data! {
    struct Profile {
        id: ProfileId = "profileId",
        name: String = "name",
        description: Option<String> = "description",
        is_default: Option<bool> = "isDefault",
    }
}

data! {
    struct Hub {
        kind: String = "hubType",
        id: String = "hubId",
    }
}

data! {
    struct Requirement xsi "PbmPlacementCapabilityProfileRequirement" {
        profile: ProfileId = "profileId",
    }
}

data! {
    struct Placement {
        hub: Hub = "hub",
        warnings: Vec<Fault> = "warning",
        errors: Vec<Fault> = "error",
    }
}

data! {
    struct CapabilityId {
        namespace: String = "namespace",
        id: String = "id",
    }
}

data! {
    struct TagValues xsi "PbmCapabilityDiscreteSet" {
        values: Vec<Value> = "values",
    }
}

data! {
    struct PropertyInstance {
        id: String = "id",
        value: TagValues = "value",
    }
}

data! {
    struct Constraint {
        properties: Vec<PropertyInstance> = "propertyInstance",
    }
}

data! {
    struct Capability {
        id: CapabilityId = "id",
        constraint: Vec<Constraint> = "constraint",
    }
}

data! {
    struct SubProfile {
        name: String = "name",
        capability: Vec<Capability> = "capability",
    }
}

data! {
    struct SubProfiles xsi "PbmCapabilitySubProfileConstraints" {
        all: Vec<SubProfile> = "subProfiles",
    }
}

data! {
    struct NewProfile {
        name: String = "name",
        description: Option<String> = "description",
        category: Option<String> = "category",
        resource: ResourceType = "resourceType",
        constraints: SubProfiles = "constraints",
    }
}

/// The capability schema of tags.
const TAG_SCHEMA: &str = "http://www.vmware.com/storage/tag";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoragePolicy {
    pub id: String,
    pub name: String,
    /// Free text of the author.
    pub description: Option<String>,
    /// Whether the policy is the default of a datastore type.
    pub is_default: bool,
}

/// Whether a datastore satisfies a policy.
#[derive(Debug, Clone, PartialEq)]
pub struct Compatibility {
    /// A datastore or datastore cluster.
    pub datastore: MoRef,
    /// Why the datastore does not satisfy the policy. Empty if it does.
    pub errors: Vec<Fault>,
    /// Restrictions that do not rule out the datastore.
    pub warnings: Vec<Fault>,
}

impl Compatibility {
    /// Whether the datastore satisfies the policy.
    pub fn is_compatible(&self) -> bool {
        self.errors.is_empty()
    }
}

impl Client {
    async fn policy_service(&self) -> Result<PolicyService, Error> {
        let ask = async || {
            let this = MoRef::new("PbmServiceInstance", "ServiceInstance");
            self.call(Method::read("PbmRetrieveServiceContent").on(Service::Pbm), &this, &[]).await
        };
        // After a restart of vCenter, the client discovers it again and also asks this again.
        self.wire().service_info()?.policy.get_or_try_init(ask).await.cloned()
    }

    /// Lists all storage policies. The list is empty if the user lacks `StorageProfile.View`;
    /// vCenter does not distinguish the cases.
    pub async fn storage_policies(&self) -> Result<Vec<StoragePolicy>, Error> {
        let manager = self.policy_service().await?.profile_manager;
        let storage = ResourceType { name: "STORAGE".to_owned() };
        let args: &[(&str, &dyn Encode)] =
            &[("resourceType", &storage), ("profileCategory", &"REQUIREMENT")];
        let method = Method::read("PbmQueryProfile").on(Service::Pbm);
        let ids: Vec<ProfileId> = self.call(method, &manager, args).await?;
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let method = Method::read("PbmRetrieveContent").on(Service::Pbm);
        let profiles: Vec<Profile> = self.call(method, &manager, &[("profileIds", &ids)]).await?;
        let policy = |profile: Profile| StoragePolicy {
            id: profile.id.id,
            name: profile.name,
            description: profile.description,
            is_default: profile.is_default.unwrap_or_default(),
        };
        Ok(profiles.into_iter().map(policy).collect())
    }

    /// Creates a policy for the datastores with a tag. Needs `StorageProfile.Update`.
    pub async fn create_tag_policy(
        &self,
        name: &str,
        category: &str,
        tag: &str,
    ) -> Result<(), Error> {
        let manager = self.policy_service().await?.profile_manager;
        let property = PropertyInstance {
            id: format!("com.vmware.storage.tag.{category}.property"),
            value: TagValues { values: vec![Value::from(tag)] },
        };
        let capability = Capability {
            id: CapabilityId { id: category.to_owned(), namespace: TAG_SCHEMA.to_owned() },
            constraint: vec![Constraint { properties: vec![property] }],
        };
        let profile = NewProfile {
            name: name.to_owned(),
            description: Some(format!("Datastores with the tag {tag} of category {category}")),
            category: Some("REQUIREMENT".to_owned()),
            resource: ResourceType { name: "STORAGE".to_owned() },
            constraints: SubProfiles {
                all: vec![SubProfile {
                    name: "Tag based placement".to_owned(),
                    capability: vec![capability],
                }],
            },
        };
        let method = Method::change("PbmCreate").on(Service::Pbm);
        let _: ProfileId = self.call(method, &manager, &[("createSpec", &profile)]).await?;
        Ok(())
    }

    /// Checks which of `datastores` satisfy a policy. An empty slice means all datastores.
    pub async fn compatible_datastores(
        &self,
        policy: &str,
        datastores: &[MoRef],
    ) -> Result<Vec<Compatibility>, Error> {
        let solver = self.policy_service().await?.placement_solver;
        let hub = |datastore: &MoRef| Hub {
            kind: datastore.kind.as_str().to_owned(),
            id: datastore.id.to_string(),
        };
        let hubs: Vec<Hub> = datastores.iter().map(hub).collect();
        let requirement = Requirement { profile: ProfileId { id: policy.to_owned() } };
        let args: &[(&str, &dyn Encode)] =
            &[("hubsToSearch", &hubs), ("placementSubjectRequirement", &requirement)];
        let method = Method::read("PbmCheckRequirements").on(Service::Pbm);
        let placements: Vec<Placement> = self.call(method, &solver, args).await?;
        let compatibility = |placement: Placement| Compatibility {
            datastore: MoRef {
                kind: Kind::from(placement.hub.kind.as_str()),
                id: placement.hub.id.into(),
            },
            errors: placement.errors,
            warnings: placement.warnings,
        };
        Ok(placements.into_iter().map(compatibility).collect())
    }
}
