//! Reports that the drivers stay after the deletion of the VDOConfig.

use catalog::Driver;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Resource,
    runtime::events::{Event, EventType, Recorder},
};
use plan::{
    facts::Facts,
    record::{Records, record_name},
};

/// A VDOConfig, and the drivers that run because of it.
#[derive(Debug)]
pub struct Followed {
    config: ObjectReference,
    drivers: Vec<Driver>,
}

impl Followed {
    /// The VDOConfig of these facts.
    pub fn from_facts(facts: &Facts) -> Self {
        let drivers = [Driver::Cpi, Driver::Csi].into_iter();
        let drivers = drivers.filter(|driver| !facts.record(*driver).objects.is_empty());
        Self { config: facts.config.object_ref(&()), drivers: drivers.collect() }
    }

    /// The drivers that a previous operator left running. Nothing is known about their VDOConfig except that
    /// it is gone, so the event refers to the record of a driver.
    pub fn left(namespace: &str, records: &Records) -> Self {
        let all = [(Driver::Cpi, &records.cpi), (Driver::Csi, &records.csi)].into_iter();
        let drivers: Vec<Driver> = all
            .filter(|(_, record)| !record.objects.is_empty())
            .map(|(driver, _)| driver)
            .collect();
        let config = ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("ConfigMap".into()),
            namespace: Some(namespace.into()),
            name: drivers.first().map(|driver| record_name(*driver).to_owned()),
            ..ObjectReference::default()
        };
        Self { config, drivers }
    }
}

/// Reports that the drivers stay, and how to remove them. Publishes nothing if no driver is left.
pub async fn deletion_outcome(recorder: &Recorder, gone: &Followed) -> Result<(), kube::Error> {
    if gone.drivers.is_empty() {
        return Ok(());
    }
    let drivers: Vec<String> = gone.drivers.iter().map(ToString::to_string).collect();
    let note = format!(
        "{} keep running without a VDOConfig. To remove them, create one again with \
         spec.deletionPolicy: Remove and delete it, or set mode: Removed in the section of a driver.",
        drivers.join(" and ")
    );
    let event = Event {
        type_: EventType::Normal,
        reason: "DriversRetained".into(),
        note: Some(note),
        action: "Retain".into(),
        secondary: None,
    };
    recorder.publish(&event, &gone.config).await
}
