//! Something breaks, is named, is mended, and is named no more.

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

/// Longer than any finding takes to come or go on a busy machine.
const TIMEOUT: u64 = 120;

/// Shows what can be broken.
pub(crate) fn list(screen: &Screen) {
    for breakage in breakages() {
        let Breakage { name, code, how, .. } = breakage;
        screen.say(&format!("{name:<16}{code}  {how}"));
    }
}

/// Breaks one after the other.
pub(super) async fn play(
    user: &User<'_>,
    chosen: &[&Breakage],
    stays: bool,
) -> Result<(), Failure> {
    for (number, breakage) in chosen.iter().enumerate() {
        one(user, breakage, number, chosen.len() == 1, stays).await?;
    }
    let screen = user.screen;
    screen.heading(&format!("{} broken, named, mended and forgotten", chosen.len()));
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
    let named = |status: &VDOConfigStatus| status.findings.iter().any(|f| f.code == code);
    screen.heading(&format!("{name}: {how}"));
    user.stage.site().make(breakage).await.context(PeerSnafu)?;
    let title = Definition::of(code).map_or("", |definition| definition.title);
    let appears = async {
        if asks {
            user.asks(&format!("broken-{number}"), TIMEOUT).await?;
        }
        user.sees(&format!("{code} names it"), TIMEOUT, named).await
    };
    screen.step(&format!("{code} is there: {title}"), appears).await?;
    user.types(&["status"]).await?;
    if alone {
        user.does(&["explain", code]).await?;
        if stays && std::io::stdin().is_terminal() {
            screen.say("\nLook around; Enter mends it.");
            entered().await;
        }
    }
    user.stage.site().undo(breakage).await.context(PeerSnafu)?;
    let clears = async {
        if asks {
            user.asks(&format!("mended-{number}"), TIMEOUT).await?;
        }
        let well = |status: &VDOConfigStatus| {
            !named(status) && status.findings.iter().all(|f| f.severity == Severity::Info)
        };
        user.sees(&format!("{code} is gone"), TIMEOUT, well).await
    };
    screen.step(&format!("mended: {code} is gone, nothing else is wrong"), clears).await?;
    user.does(&["status", "--wait", "--timeout", &TIMEOUT.to_string()]).await
}

/// Waits for Enter. A thread of its own: one that nobody presses must not hold up the end.
async fn entered() {
    let (sender, pressed) = oneshot::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        // The end of the input is as good as Enter.
        let _ = std::io::stdin().read_line(&mut line);
        let _ = sender.send(());
    });
    let _ = pressed.await;
}
