//! The Go controller's uuid cases: parsing of provider ids, and the two byte orders of a uuid.

use cloud_controller::identity::{is_foreign, provider_uuid};
use vsphere::BiosUuid;

const UUID: &str = "423740e7-c66e-05e3-9d0b-9e1205b24d43";

/// Case, text and expected uuid.
const PROVIDER_IDS: [(&str, &str, Option<&str>); 4] = [
    ("no provider id", "", None),
    ("in upper case", "vsphere://423740E7-C66E-05E3-9D0B-9E1205B24D43", Some(UUID)),
    ("in lower case", "vsphere://423740e7-c66e-05e3-9d0b-9e1205b24d43", Some(UUID)),
    ("a uuid alone", UUID, Some(UUID)),
];

/// Case, uuid as text, and the same uuid in the other byte order.
const ORDERS: [(&str, &str, Option<&str>); 4] = [
    // The Go controller searches for a VM with this text even if it is not a uuid.
    ("nothing", "", None),
    (
        "as a guest reports it",
        "56492e42-22ad-3911-6d72-59cc8f26bc90",
        Some("422e4956-ad22-1139-6d72-59cc8f26bc90"),
    ),
    (
        "as vCenter knows it, in upper case",
        "422E4956-AD22-1139-6D72-59CC8F26BC90",
        Some("56492e42-22ad-3911-6d72-59cc8f26bc90"),
    ),
    (
        "there and back again",
        "42278c9d-79fb-f2af-b060-d7f167fa261c",
        Some("9d8c2742-fb79-aff2-b060-d7f167fa261c"),
    ),
];

pub(crate) const COUNT: usize = PROVIDER_IDS.len() + ORDERS.len();

#[test]
fn every_case_of_the_go_controllers_uuids_ends_as_it_should() {
    for (case, id, uuid) in PROVIDER_IDS {
        assert_eq!(provider_uuid(id).map(|uuid| uuid.to_string()).as_deref(), uuid, "{case}");
        assert!(!is_foreign(id), "{case}");
    }
    for (case, shown, other) in ORDERS {
        let uuid = shown.parse::<BiosUuid>().ok();
        let swapped = uuid.map(BiosUuid::swapped);
        assert_eq!(swapped.map(|uuid| uuid.to_string()).as_deref(), other, "{case}");
        assert_eq!(swapped.map(BiosUuid::swapped), uuid, "{case}: swapped twice");
    }
}
