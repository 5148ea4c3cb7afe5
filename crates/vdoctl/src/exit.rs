//! What the process ends with, so that scripts need not read.

/// An exit code. They never change their meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done; healthy.
    Success = 0,
    /// It could not be done, or the user said no.
    Failure = 1,
    /// The command makes no sense, whatever the cluster is like.
    Usage = 2,
    /// Something is wrong with the drivers or the cluster.
    Degraded = 3,
    /// Not wrong, but not there yet either.
    Progressing = 4,
    /// VDO is not installed, or not configured.
    Absent = 5,
    /// Ctrl-C.
    Interrupted = 130,
}

/// As `--help` and the reference show them.
pub(crate) const TABLE: &str = "\
Every flag is also a variable of the environment: VDOCTL_NAMESPACE for --namespace,
VDOCTL_DEPLOY_TIMEOUT for the --timeout of deploy.

Exit codes:
  0    done; healthy
  1    it could not be done, or you said no
  2    the command makes no sense: no such flag, name or code, or no yes where one is needed
  3    something is wrong, and was shown: by status, doctor, fix, upgrade, adopt or remove
  4    not wrong, not there yet: still progressing, or waited too long
  5    VDO is not installed or not configured
  130  interrupted, also at a question";

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
        let told: Vec<u8> =
            table.lines().filter_map(|line| line.split_whitespace().next()?.parse().ok()).collect();
        assert_eq!(told, codes);
    }
}
