//! The privileges that a vCenter account lacks, for the status of its VsphereCloudConfig.

use api::vsphere_cloud_config::{MissingPrivileges, Privileges};
use health::{
    facts::{Grants, Known, Wanted},
    privileges,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// The maximum number of objects in the status. The findings name the others.
const OBJECTS: usize = 64;

/// The missing privileges of each object; none if vCenter did not report the privileges.
pub(crate) fn find(grants: &Known<Grants>, wanted: &Wanted, at: Timestamp) -> Option<Privileges> {
    let missing = grants.get()?.entities.iter().filter_map(|entity| {
        let held = entity.privileges.get()?;
        let needed = privileges::needed_names(entity.kind, wanted).into_iter();
        let missing_privileges: Vec<String> =
            needed.filter(|name| !held.contains(*name)).map(str::to_owned).collect();
        let object = entity.path.clone();
        (!missing_privileges.is_empty())
            .then_some(MissingPrivileges { object, privileges: missing_privileges })
    });
    Some(Privileges { checked_at: Some(Time(at)), missing: missing.take(OBJECTS).collect() })
}

#[cfg(test)]
mod tests {
    use health::facts::{Entity, EntityKind};

    use super::*;

    #[test]
    fn missing_privileges_are_listed_object_by_object() {
        let wanted = Wanted::default();
        let needed = privileges::needed_names(EntityKind::Datacenter, &wanted);
        let entity = |path: &str, held: Known<_>| Entity {
            kind: EntityKind::Datacenter,
            name: path.trim_start_matches('/').to_owned(),
            path: path.to_owned(),
            privileges: held,
        };
        let all = || needed.iter().map(|name| (*name).to_owned());
        let grants = Grants {
            entities: vec![
                entity("/A", Known::Known(all().collect())),
                entity("/B", Known::Known(all().filter(|name| name != "System.Read").collect())),
                entity("/C", Known::unknown("no answer")),
            ],
            ..Grants::default()
        };
        let found = find(&Known::Known(grants), &wanted, Timestamp::UNIX_EPOCH).unwrap();
        let missing_privileges = MissingPrivileges {
            object: "/B".to_owned(),
            privileges: vec!["System.Read".to_owned()],
        };
        assert_eq!(found.missing, [missing_privileges]);
        assert_eq!(find(&Known::unknown("down"), &wanted, Timestamp::UNIX_EPOCH), None);
    }
}
