//! The faults of a controller and its vCenter during a run.

use std::time::Duration;

use rustix::process::Signal;
use testkit::{Fault as CallFault, SeededRandom};
use tokio::time::sleep;

use crate::{Tally, lane::Lane};

/// Faults of a run.
const COUNT: u64 = 4;
/// The pause before each of them is shorter than this many milliseconds.
const PAUSE: u64 = 500;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// SIGKILL; a new controller starts at once.
    Kill,
    /// A new controller starts next to the old one, which then ends gracefully.
    Replace,
    CutVcenter,
    CutApi,
    /// vCenter does the work, and its answer is lost.
    LostAnswer,
    /// The call never reaches vCenter.
    LostCall,
    SlowTask,
    FailedTask,
    RestartVcenter,
    ExpireSessions,
}

impl Fault {
    pub(crate) const ALL: [Self; 10] = [
        Self::Kill,
        Self::Replace,
        Self::CutVcenter,
        Self::CutApi,
        Self::LostAnswer,
        Self::LostCall,
        Self::SlowTask,
        Self::FailedTask,
        Self::RestartVcenter,
        Self::ExpireSessions,
    ];

    fn any(random: &mut SeededRandom) -> Self {
        // The faults that need a record to survive come more often.
        match random.below(16) {
            0..=3 => Self::Kill,
            4..=6 => Self::LostAnswer,
            7..=8 => Self::SlowTask,
            9 => Self::Replace,
            10 => Self::CutVcenter,
            11 => Self::CutApi,
            12 => Self::LostCall,
            13 => Self::FailedTask,
            14 => Self::RestartVcenter,
            _ => Self::ExpireSessions,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Replace => "replace",
            Self::CutVcenter => "cut vCenter",
            Self::CutApi => "cut API server",
            Self::LostAnswer => "lost answer",
            Self::LostCall => "lost call",
            Self::SlowTask => "slow task",
            Self::FailedTask => "failed task",
            Self::RestartVcenter => "restart vCenter",
            Self::ExpireSessions => "expire sessions",
        }
    }
}

/// The calls that change something.
const CALLS: [&str; 7] = [
    "CnsCreateVolume",
    "CnsDeleteVolume",
    "CnsAttachVolume",
    "CnsDetachVolume",
    "CnsExtendVolume",
    "CnsCreateSnapshots",
    "CnsDeleteSnapshots",
];

fn call(random: &mut SeededRandom) -> CallFault {
    // Creation is the call that cannot be repeated blindly.
    let method = match random.below(14) {
        at @ 0..=6 => CALLS[usize::try_from(at).unwrap()],
        7..=10 => "CnsCreateVolume",
        11..=12 => "CnsCreateSnapshots",
        _ => "CnsAttachVolume",
    };
    CallFault::on(method)
}

pub(crate) async fn inject(lane: &Lane, random: &mut SeededRandom, tally: &Tally) {
    for _ in 0..COUNT {
        sleep(Duration::from_millis(random.below(PAUSE))).await;
        let fault = Fault::any(random);
        tally.count(fault.name());
        let time = Duration::from_millis(50 + random.below(700));
        match fault {
            Fault::Kill => {
                if let Some(old) = lane.start_controller() {
                    old.kill();
                }
            }
            Fault::Replace => replace(lane).await,
            Fault::CutVcenter => {
                lane.to_vcenter.reset();
                sleep(time).await;
                lane.to_vcenter.heal();
            }
            Fault::CutApi => {
                lane.to_api.cut();
                sleep(time).await;
                lane.to_api.heal();
            }
            Fault::LostAnswer => lane.vcenter.fault(call(random).truncated().times(1)).await,
            Fault::LostCall => lane.vcenter.fault(call(random).dropped().times(1)).await,
            Fault::SlowTask => {
                let fault = call(random).task_takes(time * 3).times(2);
                lane.vcenter.fault(fault).await;
            }
            Fault::FailedTask => {
                let fault = call(random).task_fails("InvalidState").times(1);
                lane.vcenter.fault(fault).await;
            }
            Fault::RestartVcenter => lane.vcenter.restart(time).await,
            Fault::ExpireSessions => lane.vcenter.expire_sessions("").await,
        }
    }
}

/// Both run for a moment, as in a rolling update.
async fn replace(lane: &Lane) {
    let Some(old) = lane.start_controller() else { return };
    sleep(Duration::from_millis(300)).await;
    old.signal(Signal::TERM);
    // It finishes its calls, but not for longer than the rest of the run.
    let _ = tokio::time::timeout(Duration::from_secs(2), old.wait(10)).await;
}
