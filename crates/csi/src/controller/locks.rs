//! One operation at a time for each volume, snapshot and name.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
};

use snafu::Snafu;

#[derive(Debug, Snafu)]
#[snafu(display(
    "another operation on {what} is in progress; this call changed nothing, repeat it later"
))]
pub(super) struct Busy {
    what: String,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Locks {
    held: Arc<Mutex<HashSet<String>>>,
}

/// Released on drop.
#[derive(Debug)]
#[must_use]
pub(super) struct Lock {
    what: String,
    held: Arc<Mutex<HashSet<String>>>,
}

impl Locks {
    /// `what` names the object, as in `the volume 1234`.
    pub(super) fn lock(&self, what: String) -> Result<Lock, Busy> {
        if !self.held.lock().unwrap_or_else(PoisonError::into_inner).insert(what.clone()) {
            return BusySnafu { what }.fail();
        }
        Ok(Lock { what, held: Arc::clone(&self.held) })
    }

    pub(super) fn volume(&self, id: &str) -> Result<Lock, Busy> {
        self.lock(format!("the volume {id}"))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_operation_on_a_volume_is_refused_until_the_first_ends() {
        let locks = Locks::default();
        let first = locks.volume("1").unwrap();
        assert!(locks.volume("1").unwrap_err().to_string().contains("the volume 1"));
        assert!(locks.volume("2").is_ok(), "other volumes are independent");
        drop(first);
        assert!(locks.volume("1").is_ok());
    }
}
