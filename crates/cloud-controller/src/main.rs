//! The cloud controller.
fn main() {}
