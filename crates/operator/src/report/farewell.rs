//! What is said when the VDOConfig goes and the drivers stay.

use kube::{
    Resource,
    runtime::events::{Event, EventType, Recorder},
};

use crate::facts::Facts;

/// A VDOConfig, and the drivers that run because of it.
#[derive(Debug)]
pub struct Followed {
    config: k8s_openapi::api::core::v1::ObjectReference,
    drivers: Vec<catalog::Driver>,
}

impl Followed {
    /// The one these facts are about.
    pub fn of(facts: &Facts) -> Self {
        let drivers = [catalog::Driver::Cpi, catalog::Driver::Csi].into_iter();
        let drivers = drivers.filter(|driver| !facts.record(*driver).objects.is_empty());
        Self { config: facts.config.object_ref(&()), drivers: drivers.collect() }
    }
}

/// Says that the drivers stay, and how they are removed. Silent if none is left.
pub async fn farewell(recorder: &Recorder, gone: &Followed) -> Result<(), kube::Error> {
    if gone.drivers.is_empty() {
        return Ok(());
    }
    let drivers: Vec<String> = gone.drivers.iter().map(ToString::to_string).collect();
    let note = format!(
        "{} keep running without this VDOConfig. To remove them, create it again with \
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
