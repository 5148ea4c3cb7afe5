//! How far a transfer is.

/// Receives the progress of a transfer.
pub trait Progress {
    /// The transfer of an image begins.
    fn image(&mut self, name: &str);
    /// So many bytes of the image are there.
    fn bytes(&mut self, done: u64, of: u64);
    /// The transfer of the image is complete.
    fn done(&mut self, new_bytes: u64);
}

/// Shows nothing.
pub struct Silent;

impl Progress for Silent {
    fn image(&mut self, _: &str) {}
    fn bytes(&mut self, _: u64, _: u64) {}
    fn done(&mut self, _: u64) {}
}
