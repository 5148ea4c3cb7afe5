//! Exit codes.

/// Scripts rely on these codes: their meaning never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Success = 0,
    /// The command failed, or the user declined.
    Failure = 1,
    /// The command line is invalid for every cluster.
    Usage = 2,
    /// There is a problem with the drivers or the cluster.
    Degraded = 3,
    Progressing = 4,
    /// VDO is not installed, or not configured.
    Absent = 5,
    /// Ctrl-C.
    Interrupted = 130,
}

/// Part of `--help` and of the reference.
pub(crate) const TABLE: &str = "\
Every flag is also an environment variable: VDOCTL_NAMESPACE for --namespace,
VDOCTL_DEPLOY_TIMEOUT for deploy --timeout.

Exit codes:
  0    success; healthy
  1    the command failed, or you declined
  2    invalid command line: unknown flag, name or code, or --yes is missing without a terminal
  3    status, doctor, fix, test, upgrade, adopt or remove found a problem
  4    still in progress, or a timeout expired
  5    VDO is not installed or not configured
  130  interrupted";

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_documented_and_no_other() {
        let all = [
            Exit::Success,
            Exit::Failure,
            Exit::Usage,
            Exit::Degraded,
            Exit::Progressing,
            Exit::Absent,
            Exit::Interrupted,
        ];
        let codes: Vec<u8> = all.into_iter().map(|exit| exit as u8).collect();
        let (_, table) = TABLE.split_once("Exit codes:\n").unwrap_or_default();
        let documented: Vec<u8> =
            table.lines().filter_map(|line| line.split_whitespace().next()?.parse().ok()).collect();
        assert_eq!(documented, codes);
    }
}
