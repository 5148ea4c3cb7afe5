//! The Go controller's cases of uuids: how a provider id is read, and how the two byte orders of one uuid
//! lead to each other.

use cloud_controller::identity::{is_foreign, provider_uuid};
use vsphere::BiosUuid;

const UUID: &str = "423740e7-c66e-05e3-9d0b-9e1205b24d43";

/// The case, the text, and the uuid it means; none if it means none.
const PROVIDER_IDS: [(&str, &str, Option<&str>); 4] = [
    ("no provider id", "", None),
    ("in upper case", "vsphere://423740E7-C66E-05E3-9D0B-9E1205B24D43", Some(UUID)),
    ("as it is written", "vsphere://423740e7-c66e-05e3-9d0b-9e1205b24d43", Some(UUID)),
    ("a uuid alone", UUID, Some(UUID)),
];

/// The case, what a guest shows, and the same in the other byte order.
const ORDERS: [(&str, &str, Option<&str>); 4] = [
    // The Go controller hands a text that is no uuid on as it is, and looks for a machine with that uuid.
    ("nothing", "", None),
    (
        "as a guest shows it",
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

/// How many there are.
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
        assert_eq!(swapped.map(BiosUuid::swapped), uuid, "{case}: twice is as before");
    }
}
