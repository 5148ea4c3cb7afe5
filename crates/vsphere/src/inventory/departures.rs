//! The memory of a view: objects that were in it and are not any more.

use std::collections::{BTreeMap, HashMap};

use super::absence::{Absence, Departure};
use crate::moref::MoRef;

/// Objects proven gone that are remembered; the oldest are forgotten first. Nothing is lost with
/// them: their end was told.
const GONE: usize = 10_000;

/// Objects that may still exist and are remembered.
const OPEN: usize = 50_000;

/// Departed objects in the order they departed.
#[derive(Debug, Default)]
pub(super) struct Departures {
    known: HashMap<MoRef, Departed>,
    /// Those proven gone, oldest first.
    gone: BTreeMap<u64, MoRef>,
    /// Those that may still exist, oldest first.
    open: BTreeMap<u64, MoRef>,
    counter: u64,
    /// Whether one that may still exist had to be forgotten.
    overflowed: bool,
}

#[derive(Debug)]
struct Departed {
    departure: Departure,
    number: u64,
    /// Whether it was told that it left, and why.
    told: bool,
}

impl Departures {
    pub(super) fn get(&self, reference: &MoRef) -> Option<&Departure> {
        self.known.get(reference).map(|departed| &departed.departure)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Departure> {
        self.known.values().map(|departed| &departed.departure)
    }

    /// Tells this departure of an object from another one of the same object.
    pub(super) fn number(&self, reference: &MoRef) -> Option<u64> {
        self.known.get(reference).map(|departed| departed.number)
    }

    /// Remembers an object that left, before anybody was told of it.
    pub(super) fn add(&mut self, departure: Departure) {
        self.put(departure, false);
    }

    /// Notes why an object is not in view; returns what to tell, if it is news. `None` for an
    /// object that is not remembered.
    pub(super) fn settle(&mut self, reference: &MoRef, absence: Absence) -> Option<Departure> {
        let known = self.known.get(reference)?;
        let is_news = !known.told || known.departure.absence != absence;
        let departure = Departure { object: known.departure.object.clone(), absence };
        self.put(departure.clone(), true);
        is_news.then_some(departure)
    }

    /// Forgets an object: it is in view again.
    pub(super) fn remove(&mut self, reference: &MoRef) {
        if let Some(departed) = self.known.remove(reference) {
            self.gone.remove(&departed.number);
            self.open.remove(&departed.number);
        }
    }

    /// Those whose fate nobody was told yet.
    pub(super) fn untold(&self) -> Vec<MoRef> {
        self.open_where(|departed| !departed.told)
    }

    /// Those whose fate could not be asked for.
    pub(super) fn unanswered(&self) -> Vec<MoRef> {
        self.open_where(|departed| departed.departure.absence == Absence::Unreachable)
    }

    /// All that may still exist.
    pub(super) fn existing(&self) -> Vec<MoRef> {
        self.open_where(|_| true)
    }

    fn open_where(&self, fits: impl Fn(&Departed) -> bool) -> Vec<MoRef> {
        let open = self.open.values();
        open.filter(|reference| self.known.get(*reference).is_some_and(&fits)).cloned().collect()
    }

    /// Takes over what an older memory holds, except what `is_present` again.
    pub(super) fn succeed(&mut self, mut older: Self, is_present: impl Fn(&MoRef) -> bool) {
        self.overflowed |= older.overflowed;
        let mut numbered: Vec<Departed> =
            older.known.drain().map(|(_, departed)| departed).collect();
        numbered.sort_unstable_by_key(|departed| departed.number);
        for departed in numbered {
            if !is_present(departed.departure.object.reference()) {
                self.put(departed.departure, departed.told);
            }
        }
    }

    /// Whether an object that may still exist was forgotten since this was last asked. Whoever
    /// mirrors the view must be told that it is no longer complete.
    pub(super) fn take_overflow(&mut self) -> bool {
        std::mem::take(&mut self.overflowed)
    }

    fn put(&mut self, departure: Departure, told: bool) {
        let reference = departure.object.reference().clone();
        let number = self.known.get(&reference).map_or(self.counter + 1, |known| known.number);
        self.counter = self.counter.max(number);
        let (side, other) = if departure.gone().is_some() {
            (&mut self.gone, &mut self.open)
        } else {
            (&mut self.open, &mut self.gone)
        };
        other.remove(&number);
        side.insert(number, reference.clone());
        self.known.insert(reference, Departed { departure, number, told });
        if self.gone.len() > GONE
            && let Some((_, oldest)) = self.gone.pop_first()
        {
            self.known.remove(&oldest);
        }
        if self.open.len() > OPEN
            && let Some((_, oldest)) = self.open.pop_first()
        {
            self.known.remove(&oldest);
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
    fn what_is_gone_is_forgotten_first_and_what_may_exist_is_not() {
        let mut departures = Departures::default();
        for n in 0..GONE + 10 {
            departures.add(left(n));
            departures.settle(&vm(n), gone_for_test(&vm(n)));
        }
        departures.add(left(1_000_000));
        assert_eq!(departures.iter().count(), GONE + 1);
        assert!(departures.get(&vm(0)).is_none(), "the oldest is forgotten");
        assert!(departures.get(&vm(1_000_000)).is_some());
        assert!(!departures.take_overflow(), "its end was told: nobody need look again");
    }

    #[test]
    fn more_that_may_exist_than_can_be_remembered_is_said_once() {
        let mut departures = Departures::default();
        for n in 0..OPEN {
            departures.add(left(n));
        }
        assert!(!departures.take_overflow());
        departures.add(left(OPEN));
        assert_eq!(departures.existing().len(), OPEN);
        assert!(departures.take_overflow());
        assert!(!departures.take_overflow());
    }

    #[test]
    fn the_same_answer_is_told_once() {
        let mut departures = Departures::default();
        departures.add(left(1));
        assert_eq!(departures.untold(), [vm(1)]);
        assert!(departures.settle(&vm(1), Absence::Unreachable).is_some(), "it left");
        assert!(departures.settle(&vm(1), Absence::Unreachable).is_none(), "still so");
        assert!(departures.untold().is_empty());
        assert_eq!(departures.unanswered(), [vm(1)]);
        assert!(departures.settle(&vm(1), Absence::Elsewhere).is_some(), "now it is known");
        assert!(departures.settle(&vm(1), Absence::Elsewhere).is_none());
        assert!(departures.unanswered().is_empty());
        let gone = gone_for_test(&vm(1));
        assert!(departures.settle(&vm(1), gone).is_some(), "it ended meanwhile");
        assert!(departures.existing().is_empty());
        assert!(departures.settle(&vm(2), Absence::Elsewhere).is_none(), "never seen");
    }

    #[test]
    fn what_comes_back_is_forgotten_and_a_successor_knows_the_rest() {
        let mut older = Departures::default();
        for n in 0..3 {
            older.add(left(n));
            older.settle(&vm(n), Absence::Unreachable);
        }
        older.remove(&vm(0));
        let mut newer = Departures::default();
        newer.succeed(older, |reference| *reference == vm(1));
        assert_eq!(newer.existing(), [vm(2)]);
        assert!(newer.untold().is_empty(), "what was told is not told again");
    }
}
