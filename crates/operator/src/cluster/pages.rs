//! The number of objects in a page of a list. A page is in memory as a whole: first its text, then every object in it.
//!
//! The author of an object decides how large it is, up to 1.5 MB, and VDO reads several lists at once.

/// Objects that only admins, nodes and controllers write. A pod with its managed fields takes a hundred kilobytes
/// before VDO slims it, and the process never returns all the memory that thousands of them used.
pub(crate) const PAGE: u32 = 100;
/// Objects that tenants create. No list that can contain them has larger pages: a test reads the audit log.
pub(crate) const TENANT_PAGE: u32 = 25;
/// Events. Anybody who can write in a namespace can write Events of a megabyte.
pub(crate) const EVENT_PAGE: u32 = 20;
/// Workloads, of which VDO also looks at those outside the allowed namespaces.
pub(crate) const WORKLOAD_PAGE: u32 = 10;
/// Objects of which VDO expects few: of VDO's own kinds in other namespaces, or with one name in any namespace.
pub(crate) const SMALL_PAGE: u32 = 3;
