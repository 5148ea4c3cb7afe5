//! Decides by the answer to CreateVolume how the claim goes on.

use tonic::{Code, Status};

use crate::loops::rpc::is_final_for_create;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The driver may still work on it: repeat the same request, even if the claim is deleted meanwhile.
    InProgress,
    /// Nothing was made. Try again after the back-off.
    Final,
    /// The request can never succeed unless the class changes: try rarely.
    Infeasible,
    /// There is no space where the selected node needs it: the scheduler selects again.
    Reschedule,
}

pub fn failure(status: &Status, has_topology: bool, has_selected_node: bool) -> Failure {
    match status.code() {
        Code::ResourceExhausted if has_topology && has_selected_node => Failure::Reschedule,
        Code::InvalidArgument => Failure::Infeasible,
        code if is_final_for_create(code) => Failure::Final,
        _ => Failure::InProgress,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_has_its_consequence() {
        let of = |code, topology, node| failure(&Status::new(code, ""), topology, node);
        assert_eq!(of(Code::ResourceExhausted, true, true), Failure::Reschedule);
        assert_eq!(of(Code::ResourceExhausted, false, true), Failure::Final);
        assert_eq!(of(Code::ResourceExhausted, true, false), Failure::Final);
        assert_eq!(of(Code::InvalidArgument, true, true), Failure::Infeasible);
        for code in [Code::Internal, Code::NotFound, Code::AlreadyExists, Code::Unknown] {
            assert_eq!(of(code, true, true), Failure::Final, "{code:?}");
        }
        for code in [Code::Aborted, Code::Unavailable, Code::DeadlineExceeded, Code::Cancelled] {
            assert_eq!(of(code, true, true), Failure::InProgress, "{code:?}");
        }
    }
}
