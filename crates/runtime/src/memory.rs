//! Memory that is not needed is given back.
//!
//! Thousands of objects come at the start and after every reconnection, and leave holes between what is
//! kept of them. The allocator of the GNU C library keeps such holes for itself until it is asked. And of
//! the program itself most is needed only then: its code stays mapped until somebody else needs the
//! memory, unless it is let go. Whatever is needed again comes back as it is touched.

use std::{ops::Range, time::Duration};

/// How often.
const EVERY: Duration = Duration::from_secs(10);

/// Gives back what is free or not in use, again and again. Never ends.
pub async fn give_back() {
    let code = mapped_code();
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        trim();
        for part in &code {
            let_go(part);
        }
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

/// Where the code of this program and of its libraries is. None where that is not told.
fn mapped_code() -> Vec<Range<usize>> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    maps.lines().filter_map(code_in).collect()
}

/// The part of memory a line of `/proc/self/maps` tells of, if it is code of a file that nobody may write
/// to: `7f00-7f80 r-xp 00000000 fe:00 42 /usr/bin/vdo`.
fn code_in(line: &str) -> Option<Range<usize>> {
    let mut words = line.split_whitespace();
    let (from, to) = words.next()?.split_once('-')?;
    let of_a_file = words.next() == Some("r-xp") && words.nth(3)?.starts_with('/');
    let address = |text| usize::from_str_radix(text, 16).ok();
    of_a_file.then_some(address(from)?..address(to)?)
}

#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "the kernel is told of addresses")]
fn let_go(code: &Range<usize>) {
    let from = std::ptr::with_exposed_provenance_mut(code.start);
    // SAFETY: code that is mapped from a file and cannot be written to is the same in the file: a page that
    // is let go is read from there when it is touched, by whatever thread.
    let refused = unsafe { libc::madvise(from, code.len(), libc::MADV_DONTNEED) };
    if refused != 0 {
        let error = std::io::Error::last_os_error();
        tracing::debug!(error = %error, "code cannot be let go");
    }
}

#[cfg(not(target_os = "linux"))]
fn let_go(_: &Range<usize>) {}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the process holds, in KiB.
    #[cfg(target_os = "linux")]
    fn held(what: &str) -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix(what)).unwrap_or_default();
        let number = line.trim_start_matches(':').trim().trim_end_matches(" kB");
        number.parse().unwrap_or_else(|_| panic!("{what} in {status}"))
    }

    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[test]
    fn holes_between_what_is_kept_are_given_back() {
        let mut many: Vec<Vec<u8>> = (0..20_000).map(|_| vec![1; 4000]).collect();
        let before = held("RssAnon");
        // What is kept lies between the holes, and at the very end.
        let mut number = 0;
        many.retain(|_| {
            number += 1;
            number % 10 == 0
        });
        trim();
        let after = held("RssAnon");
        assert!(before > after + 40_000, "{before} before, {after} after");
        assert_eq!(many.len(), 2000);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn code_that_is_not_in_use_is_let_go_and_comes_back() {
        let code = mapped_code();
        let kib: usize = code.iter().map(|part| part.len() / 1024).sum();
        assert!(kib > 1000, "{code:?}");
        let touch = || {
            let pages = code.iter().flat_map(|part| part.clone().step_by(4096));
            let bytes = pages.map(|page| {
                #[expect(unsafe_code, reason = "code is read as bytes")]
                // SAFETY: it is mapped and may be read.
                unsafe {
                    std::ptr::with_exposed_provenance::<u8>(page).read_volatile()
                }
            });
            bytes.map(u64::from).sum::<u64>()
        };
        let (sum, before) = (touch(), held("RssFile"));
        for part in &code {
            let_go(part);
        }
        let after = held("RssFile");
        assert!(before > after + kib / 2, "{before} before, {after} after, {kib} of code");
        assert_eq!(touch(), sum);
    }

    #[test]
    fn only_code_of_files_is_let_go() {
        let code = "55d0a000-55d0b000 r-xp 00003000 fe:00 42                   /usr/bin/vdo";
        assert_eq!(code_in(code), Some(0x55d0_a000..0x55d0_b000));
        for other in [
            "55d0b000-55d0c000 r--p 00003000 fe:00 42                   /usr/bin/vdo",
            "55d0b000-55d0c000 rwxp 00003000 fe:00 42                   /usr/bin/vdo",
            "7ffd1000-7ffd2000 r-xp 00000000 00:00 0                    [vdso]",
            "7ffd1000-7ffd2000 r-xp 00000000 00:00 0",
            "",
        ] {
            assert_eq!(code_in(other), None, "{other}");
        }
    }
}
