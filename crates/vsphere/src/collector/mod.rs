//! vCenter's property collector: reads properties of many objects at once and waits for changes.
//!
//! ```text
//!   managed   the properties of a Rust type, declared with `managed!`
//!   spec      the objects and properties of a call
//!   update    objects and changes, decoded straight into those types
//!   calls     RetrievePropertiesEx, CreateFilter, WaitForUpdatesEx
//! ```

pub(crate) mod calls;
pub(crate) mod managed;
pub(crate) mod spec;
pub(crate) mod update;

pub(crate) use self::calls::{Collector, retrieve, retrieve_with};
pub(crate) use self::managed::{Managed, managed};
pub(crate) use self::update::{Change, RetrievedObject};
