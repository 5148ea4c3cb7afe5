//! Memory that is free is given back.
//!
//! Thousands of objects come at the start and after every reconnection, and leave holes between what is
//! kept of them. The allocator of the GNU C library keeps such holes for itself until it is asked.

use std::time::Duration;

/// How often.
const EVERY: Duration = Duration::from_secs(30);

/// Gives back what is free, again and again. Never ends.
pub async fn give_back() {
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        trim();
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "the allocator can be asked in no other way")]
fn trim() {
    // SAFETY: it takes no pointer, may be called at any time by any thread, and touches nothing that is
    // in use.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Other allocators give it back by themselves.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn trim() {}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the process holds, in bytes.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn held() -> usize {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
        let pages = pages.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok());
        pages.unwrap_or_default() * 4096
    }

    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[test]
    fn holes_between_what_is_kept_are_given_back() {
        let mut many: Vec<Vec<u8>> = (0..20_000).map(|_| vec![1; 4000]).collect();
        let before = held();
        // What is kept lies between the holes, and at the very end.
        let mut number = 0;
        many.retain(|_| {
            number += 1;
            number % 10 == 0
        });
        trim();
        let after = held();
        assert!(before > after + 40_000_000, "{before} before, {after} after");
        assert_eq!(many.len(), 2000);
    }
}
