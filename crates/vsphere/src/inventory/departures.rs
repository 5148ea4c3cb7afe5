//! Objects that are no longer in view.

use std::collections::{BTreeMap, HashMap};

use super::absence::{Absence, Departure};
use crate::moref::MoRef;

/// The maximum number of remembered objects that are proven gone. Dropping the oldest is safe,
/// because an event has reported them.
const MAX_GONE: usize = 10_000;

/// The maximum number of remembered objects that may still exist.
const MAX_OPEN: usize = 50_000;

/// Objects that are no longer in view, in the order they left.
#[derive(Debug, Default)]
pub(super) struct Departures {
    departed: HashMap<MoRef, Departed>,
    /// Objects that are proven gone, oldest first.
    gone: BTreeMap<u64, MoRef>,
    /// Objects that may still exist, oldest first.
    open: BTreeMap<u64, MoRef>,
    counter: u64,
    /// Whether an object that may still exist was dropped for lack of room.
    overflowed: bool,
}

#[derive(Debug)]
struct Departed {
    departure: Departure,
    number: u64,
    /// Whether an event has reported the departure.
    reported: bool,
}

impl Departures {
    pub(super) fn get(&self, reference: &MoRef) -> Option<&Departure> {
        self.departed.get(reference).map(|departed| &departed.departure)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Departure> {
        self.departed.values().map(|departed| &departed.departure)
    }

    /// Distinguishes this departure from other departures of the same object.
    pub(super) fn number(&self, reference: &MoRef) -> Option<u64> {
        self.departed.get(reference).map(|departed| departed.number)
    }

    /// Adds an object whose departure is not reported yet.
    pub(super) fn add(&mut self, departure: Departure) {
        self.store(departure, false);
    }

    /// Records why an object is not in view. Returns the departure if it is new information, and
    /// `None` for an unknown object.
    pub(super) fn settle(&mut self, reference: &MoRef, absence: Absence) -> Option<Departure> {
        let departed = self.departed.get(reference)?;
        let is_new = !departed.reported || departed.departure.absence != absence;
        let departure = Departure { object: departed.departure.object.clone(), absence };
        self.store(departure.clone(), true);
        is_new.then_some(departure)
    }

    /// Removes an object that is in view again.
    pub(super) fn remove(&mut self, reference: &MoRef) {
        if let Some(departed) = self.departed.remove(reference) {
            self.gone.remove(&departed.number);
            self.open.remove(&departed.number);
        }
    }

    /// Departures that no event has reported yet.
    pub(super) fn unreported(&self) -> Vec<MoRef> {
        self.open_where(|departed| !departed.reported)
    }

    /// Departures whose reason is still unknown.
    pub(super) fn unanswered(&self) -> Vec<MoRef> {
        self.open_where(|departed| departed.departure.absence == Absence::Unreachable)
    }

    /// All departed objects that may still exist.
    pub(super) fn possibly_existing(&self) -> Vec<MoRef> {
        self.open_where(|_| true)
    }

    fn open_where(&self, fits: impl Fn(&Departed) -> bool) -> Vec<MoRef> {
        let open = self.open.values();
        open.filter(|reference| self.departed.get(*reference).is_some_and(&fits)).cloned().collect()
    }

    /// Copies the departures of an older view, except for objects that are present again.
    pub(super) fn carry_over(&mut self, mut older: Self, is_present: impl Fn(&MoRef) -> bool) {
        self.overflowed |= older.overflowed;
        let mut sorted: Vec<Departed> =
            older.departed.drain().map(|(_, departed)| departed).collect();
        sorted.sort_unstable_by_key(|departed| departed.number);
        for departed in sorted {
            if !is_present(departed.departure.object.reference()) {
                self.store(departed.departure, departed.reported);
            }
        }
    }

    /// Whether an object that may still exist was dropped since the last call. Mirrors of the view
    /// must then resync.
    pub(super) fn take_overflow(&mut self) -> bool {
        std::mem::take(&mut self.overflowed)
    }

    fn store(&mut self, departure: Departure, reported: bool) {
        let reference = departure.object.reference().clone();
        let number =
            self.departed.get(&reference).map_or(self.counter + 1, |departed| departed.number);
        self.counter = self.counter.max(number);
        let (side, other) = if departure.gone().is_some() {
            (&mut self.gone, &mut self.open)
        } else {
            (&mut self.open, &mut self.gone)
        };
        other.remove(&number);
        side.insert(number, reference.clone());
        self.departed.insert(reference, Departed { departure, number, reported });
        if self.gone.len() > MAX_GONE
            && let Some((_, oldest)) = self.gone.pop_first()
        {
            self.departed.remove(&oldest);
        }
        if self.open.len() > MAX_OPEN
            && let Some((_, oldest)) = self.open.pop_first()
        {
            self.departed.remove(&oldest);
            self.overflowed = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::absence::gone_for_test;
    use super::super::model::Vm;
    use super::*;

    fn vm(n: usize) -> MoRef {
        MoRef::new("VirtualMachine", format!("vm-{n}"))
    }

    fn left(n: usize) -> Departure {
        Departure { object: Vm::new(vm(n)).into(), absence: Absence::Unreachable }
    }

    #[test]
    fn gone_objects_are_dropped_first_and_possibly_existing_ones_are_kept() {
        let mut departures = Departures::default();
        for n in 0..MAX_GONE + 10 {
            departures.add(left(n));
            departures.settle(&vm(n), gone_for_test(&vm(n)));
        }
        departures.add(left(1_000_000));
        assert_eq!(departures.iter().count(), MAX_GONE + 1);
        assert!(departures.get(&vm(0)).is_none(), "the oldest is dropped");
        assert!(departures.get(&vm(1_000_000)).is_some());
        assert!(!departures.take_overflow(), "gone objects were reported: no resync is needed");
    }

    #[test]
    fn an_overflow_of_possibly_existing_objects_is_reported_once() {
        let mut departures = Departures::default();
        for n in 0..MAX_OPEN {
            departures.add(left(n));
        }
        assert!(!departures.take_overflow());
        departures.add(left(MAX_OPEN));
        assert_eq!(departures.possibly_existing().len(), MAX_OPEN);
        assert!(departures.take_overflow());
        assert!(!departures.take_overflow());
    }

    #[test]
    fn the_same_reason_is_reported_once() {
        let mut departures = Departures::default();
        departures.add(left(1));
        assert_eq!(departures.unreported(), [vm(1)]);
        assert!(departures.settle(&vm(1), Absence::Unreachable).is_some(), "it left");
        assert!(departures.settle(&vm(1), Absence::Unreachable).is_none(), "no change");
        assert!(departures.unreported().is_empty());
        assert_eq!(departures.unanswered(), [vm(1)]);
        assert!(departures.settle(&vm(1), Absence::Elsewhere).is_some(), "the reason is known now");
        assert!(departures.settle(&vm(1), Absence::Elsewhere).is_none());
        assert!(departures.unanswered().is_empty());
        let gone = gone_for_test(&vm(1));
        assert!(departures.settle(&vm(1), gone).is_some(), "it was deleted in the meantime");
        assert!(departures.possibly_existing().is_empty());
        assert!(departures.settle(&vm(2), Absence::Elsewhere).is_none(), "unknown object");
    }

    #[test]
    fn returning_objects_are_removed_and_the_rest_is_carried_over() {
        let mut older = Departures::default();
        for n in 0..3 {
            older.add(left(n));
            older.settle(&vm(n), Absence::Unreachable);
        }
        older.remove(&vm(0));
        let mut newer = Departures::default();
        newer.carry_over(older, |reference| *reference == vm(1));
        assert_eq!(newer.possibly_existing(), [vm(2)]);
        assert!(newer.unreported().is_empty(), "reported departures are not reported again");
    }
}
