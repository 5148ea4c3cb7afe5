//! Injects faults, shows their findings, and fixes them.

use std::io::IsTerminal as _;

use api::{Severity, VDOConfigStatus, finding::Definition};
use snafu::ResultExt as _;
use testkit::Breakage;
use tokio::sync::oneshot;

use crate::{
    arguments::breakages,
    failure::{Failure, PeerSnafu},
    screen::Screen,
    user::User,
};

/// Longer than any finding takes to appear or clear on a busy computer.
const TIMEOUT: u64 = 120;

pub(crate) fn list(screen: &Screen) {
    for breakage in breakages() {
        let Breakage { name, code, how, .. } = breakage;
        screen.say(&format!("{name:<16}{code}  {how}"));
    }
}

pub(super) async fn run(user: &User<'_>, chosen: &[&Breakage], stays: bool) -> Result<(), Failure> {
    // The drivers can be ready before VDO knows the privileges of its account, and the fixes depend on them.
    let checked = user.checks_now("before", TIMEOUT);
    user.screen.step("VDO has checked everything", checked).await?;
    for (number, breakage) in chosen.iter().enumerate() {
        one(user, breakage, number, chosen.len() == 1, stays).await?;
    }
    let screen = user.screen;
    screen.heading(&format!("{} faults reported, fixed and cleared", chosen.len()));
    Ok(())
}

async fn one(
    user: &User<'_>,
    breakage: &Breakage,
    number: usize,
    alone: bool,
    stays: bool,
) -> Result<(), Failure> {
    let Breakage { name, code, how, asks, .. } = *breakage;
    let screen = user.screen;
    let reported = |status: &VDOConfigStatus| status.findings.iter().any(|f| f.code == code);
    screen.heading(&format!("{name}: {how}"));
    user.environment.site()?.make(breakage).await.context(PeerSnafu)?;
    let title = Definition::find(code).map_or("", |definition| definition.title);
    let appears = async {
        if asks {
            user.checks_now(&format!("broken-{number}"), TIMEOUT).await?;
        }
        user.waits_for(&format!("{code} is reported"), TIMEOUT, reported).await
    };
    screen.step(&format!("{code} is reported: {title}"), appears).await?;
    user.types(&["status"]).await?;
    if alone {
        user.does(&["explain", code]).await?;
        if stays && std::io::stdin().is_terminal() {
            screen.say("\nPress Enter to fix it.");
            entered().await;
        }
    }
    user.environment.site()?.undo(breakage).await.context(PeerSnafu)?;
    let clears = async {
        if asks {
            user.checks_now(&format!("fixed-{number}"), TIMEOUT).await?;
        }
        let healthy = |status: &VDOConfigStatus| {
            !reported(status) && status.findings.iter().all(|f| f.severity == Severity::Info)
        };
        user.waits_for(&format!("{code} is cleared"), TIMEOUT, healthy).await
    };
    screen.step(&format!("fixed: {code} is cleared, nothing else is wrong"), clears).await?;
    user.does(&["status", "--wait", "--timeout", &TIMEOUT.to_string()]).await
}

/// Waits for Enter, in its own thread: the sandbox must be able to end without it.
async fn entered() {
    let (sender, pressed) = oneshot::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        // The end of the input counts as Enter.
        let _ = std::io::stdin().read_line(&mut line);
        let _ = sender.send(());
    });
    let _ = pressed.await;
}
