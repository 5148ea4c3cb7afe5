//! Returns freed heap memory to the kernel.
//!
//! Thousands of objects arrive at the start and after every reconnection, and leave holes between what is
//! kept of them. The allocator of the GNU C library keeps such holes until it is asked to return them.

use std::time::Duration;

/// How often.
const EVERY: Duration = Duration::from_secs(10);

/// Returns free heap memory, again and again. Never ends.
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

/// Other allocators return it by themselves.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn trim() {}

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
mod tests {
    use super::*;

    /// The anonymous memory of this process, in KiB.
    fn anonymous() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let number = line.unwrap_or_default().trim().trim_end_matches(" kB");
        number.parse().expect("the kernel tells it")
    }

    #[test]
    fn holes_between_kept_objects_are_returned() {
        let mut many: Vec<Vec<u8>> = (0..20_000).map(|_| vec![1; 4000]).collect();
        let before = anonymous();
        // What is kept lies between the holes, and at the very end.
        let mut number = 0;
        many.retain(|_| {
            number += 1;
            number % 10 == 0
        });
        trim();
        let after = anonymous();
        assert!(before > after + 40_000, "{before} before, {after} after");
        assert_eq!(many.len(), 2000);
    }
}
