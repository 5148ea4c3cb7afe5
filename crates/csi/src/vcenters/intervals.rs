//! How often the driver asks a vCenter for what the vCenter does not report by itself.

use std::time::Duration;

use vsphere::Limits;

/// The timing of the calls to a vCenter.
#[derive(Clone, Debug)]
pub struct Intervals {
    /// How often tags are read without a reason. vCenter does not report changes. Shorter than the keep-alive of a REST
    /// session, so that an idle session needs no other call.
    pub tags: Duration,
    /// How long the names of tags and categories are trusted.
    pub tag_names: Duration,
    /// How long storage policies and privileges are trusted for a new volume. Upstream too checks every five minutes.
    pub placement: Duration,
    /// How long they are trusted for the published capacity, which is read again all the time.
    pub estimate: Duration,
    /// The limits of the connection: its longest wait and when it touches idle sessions.
    pub limits: Limits,
}

impl Default for Intervals {
    fn default() -> Self {
        Self {
            tags: Duration::from_secs(230),
            tag_names: Duration::from_hours(1),
            placement: Duration::from_mins(5),
            estimate: Duration::from_mins(30),
            // Proxies end requests that are silent for too long: that of vCenter after five minutes, others after three.
            limits: Limits { wait: Duration::from_secs(170), ..Limits::default() },
        }
    }
}

impl Intervals {
    /// All of them divided, for a test that shows a long time in a short one.
    #[must_use]
    pub fn divided_by(&self, factor: u32) -> Self {
        let Self { tags, tag_names, placement, estimate, limits } = self;
        Self {
            tags: *tags / factor,
            tag_names: *tag_names / factor,
            placement: *placement / factor,
            estimate: *estimate / factor,
            limits: Limits {
                wait: limits.wait / factor,
                keep_alive: limits.keep_alive / factor,
                // A busy computer delays a reading of the tags by more than the divided difference between the two.
                rest_keep_alive: limits.rest_keep_alive / factor + Duration::from_secs(1),
                ..limits.clone()
            },
        }
    }

    /// How long policies and privileges are trusted.
    pub fn fresh_for(&self, purpose: Purpose) -> Duration {
        match purpose {
            Purpose::Placement => self.placement,
            Purpose::Estimate => self.estimate,
        }
    }
}

/// The reason for a question about storage policies and privileges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A volume is about to be created or changed.
    Placement,
    /// The capacity is published.
    Estimate,
}
