use super::*;

const GI: i64 = 1 << 30;

/// Sizes in GiB: request, capacity, allocated.
fn claim(request: i64, capacity: i64, allocated: Option<i64>, state: Option<&str>) -> Claim {
    let size = |gi: i64| json!({"storage": format!("{gi}Gi")});
    serde_json::from_value(json!({
        "metadata": {"namespace": "shop", "name": "data", "uid": "u-1"},
        "spec": {"resources": {"requests": size(request)}},
        "status": {
            "phase": "Bound", "capacity": size(capacity),
            "allocatedResources": allocated.map_or(json!({}), size),
            "allocatedResourceStatuses": {"storage": state},
        },
    }))
    .unwrap()
}

fn volume(size: i64) -> Volume {
    serde_json::from_value(json!({
        "metadata": {"name": "pv"},
        "spec": {
            "capacity": {"storage": format!("{size}Gi")},
            "claimRef": {"namespace": "shop", "name": "data", "uid": "u-1"},
        },
    }))
    .unwrap()
}

#[test]
fn the_size_follows_the_state_of_the_resize() {
    let pending = "NodeResizePending";
    // Request, capacity, allocated, state, volume, final error, expected target.
    let cases = [
        (1, 1, None, None, 1, false, None),
        (3, 1, None, None, 1, false, Some(3)),
        (3, 1, Some(2), None, 1, false, Some(3)),
        (3, 1, Some(3), None, 3, false, Some(3)),
        (3, 1, None, None, 3, false, Some(3)),
        // A size that may still be in progress is finished before another one begins.
        (5, 1, Some(3), Some(IN_PROGRESS), 1, false, Some(3)),
        (5, 1, Some(3), Some(IN_PROGRESS), 1, true, Some(5)),
        (2, 1, Some(9), Some(INFEASIBLE), 1, false, Some(2)),
        (3, 1, Some(3), Some(IN_PROGRESS), 3, false, Some(3)),
        // The kubelet works on it.
        (3, 1, Some(3), Some(pending), 3, false, None),
        (5, 1, Some(3), Some(pending), 3, false, None),
        (5, 1, Some(5), Some(pending), 3, false, Some(5)),
        (3, 1, Some(3), Some("NodeResizeInProgress"), 3, false, None),
        (3, 1, Some(3), Some("NodeResizeInfeasible"), 3, false, Some(3)),
        (3, 1, Some(3), Some("StateOfTheFuture"), 1, false, None),
    ];
    for case in cases {
        let (request, capacity, allocated, state, size, had_final_error, expected) = case;
        let claim = claim(request, capacity, allocated, state);
        let decided = target(&claim, &volume(size), had_final_error);
        assert_eq!(decided, expected.map(|gi| Bytes(gi * GI)), "{case:?}");
    }
}

#[test]
fn only_the_volume_of_the_claim_grows() {
    let mut other = volume(1);
    other.spec.claim_ref.as_mut().unwrap().uid = Some("another".into());
    assert_eq!(target(&claim(3, 1, None, None), &other, false), None);
    let mut waiting = claim(3, 1, None, None);
    let now = jiff::Timestamp::UNIX_EPOCH;
    waiting.status.conditions = vec![condition(FILE_SYSTEM_RESIZE_PENDING, "", "", now)];
    assert_eq!(target(&waiting, &volume(3), false), None, "the kubelet works on it");
    assert_eq!(target(&waiting, &volume(1), false), Some(Bytes(3 * GI)), "more is requested");
}

#[test]
fn a_repeated_attempt_writes_nothing() {
    let now = jiff::Timestamp::UNIX_EPOCH;
    let mut claim = claim(3, 1, None, None);
    let patch = started(&claim, Bytes(3 * GI), now).unwrap();
    assert_eq!(patch["status"]["allocatedResources"]["storage"], "3Gi");
    assert_eq!(patch["status"]["conditions"][0]["type"], "Resizing");
    claim.status = serde_json::from_value(patch["status"].clone()).unwrap();
    assert_eq!(started(&claim, Bytes(3 * GI), now), None);
    assert!(started(&claim, Bytes(4 * GI), now).is_some());
}

#[test]
fn a_file_system_is_left_to_the_kubelet_and_a_raw_device_is_done() {
    let now = jiff::Timestamp::UNIX_EPOCH;
    let claim = claim(3, 1, Some(3), Some(IN_PROGRESS));
    let answer = |node_expansion_required| ControllerExpandVolumeResponse {
        capacity_bytes: 3 * GI,
        node_expansion_required,
    };
    let file_system = grown(&claim, &answer(true), now);
    assert_eq!(file_system["status"]["allocatedResourceStatuses"]["storage"], NODE_PENDING);
    assert_eq!(file_system["status"]["capacity"], json!(null));
    let device = grown(&claim, &answer(false), now);
    assert_eq!(device["status"]["allocatedResourceStatuses"]["storage"], json!(null));
    assert_eq!(device["status"]["capacity"]["storage"], "3Gi");
    assert_eq!(device["metadata"]["annotations"][NODE_EXPANSION_NOT_REQUIRED], "true");
}

#[test]
fn a_size_that_cannot_be_made_is_marked_infeasible() {
    let now = jiff::Timestamp::UNIX_EPOCH;
    let claim = claim(3, 1, Some(3), Some(IN_PROGRESS));
    for (code, state) in [
        (Code::OutOfRange, INFEASIBLE),
        (Code::InvalidArgument, INFEASIBLE),
        (Code::NotFound, INFEASIBLE),
        (Code::Internal, IN_PROGRESS),
        (Code::FailedPrecondition, IN_PROGRESS),
    ] {
        let patch = failed(&claim, &Status::new(code, "too large"), now).unwrap();
        assert_eq!(patch["status"]["allocatedResourceStatuses"]["storage"], state, "{code:?}");
        assert_eq!(patch["status"]["conditions"][0]["message"], "too large");
    }
}
