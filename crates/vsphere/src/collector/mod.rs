//! vCenter's property collector: reading properties of many objects at once, and waiting for them
//! to change.
//!
//! ```text
//!   managed ── which properties a Rust type has, declared once: `managed!`
//!   spec ───── which objects and properties a call is about
//!   update ─── objects and changes, read straight from the reply into those types
//!   calls ──── RetrievePropertiesEx, CreateFilter, WaitForUpdatesEx
//! ```

pub(crate) mod calls;
pub(crate) mod managed;
pub(crate) mod spec;
pub(crate) mod update;

pub(crate) use self::calls::{Collector, retrieve, retrieve_with};
pub(crate) use self::managed::{Managed, managed};
pub(crate) use self::update::{Change, RetrievedObject};
