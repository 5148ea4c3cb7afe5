//! Returns freed heap memory to the kernel.
//!
//! Thousands of objects arrive at startup and after every reconnection, and leave holes between the objects that
//! stay. The GNU C library's allocator keeps such holes until the program asks it to return them.

use std::time::Duration;

const EVERY: Duration = Duration::from_secs(10);

/// Returns freed heap memory periodically. Never ends.
pub async fn return_free_memory() {
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
    // SAFETY: the function takes no pointer, any thread can call it at any time, and it does not touch memory
    // in use.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Other allocators return freed memory by themselves.
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
        // The objects that stay lie between the holes, and at the very end.
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
