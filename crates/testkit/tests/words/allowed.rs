//! Exceptions from the glossary.

/// Where (the beginning of a path), the words, and the reason.
pub(crate) const ALLOWED: &[(&str, &str, &str)] = &[
    ("", "--patience", "a flag of the operator"),
    ("", "VDO_PATIENCE", "its environment variable"),
    ("crates/operator/src/main.rs", "\"patience\"", "the flag"),
    ("", "NodeTakenBack", "the reason of an event; users filter by it"),
    ("", "RightsMissing", "the reason of a condition and of an event"),
    ("crates/cloud-controller/", "machines_gone", "the name of a metric"),
    ("docs/cloud-controller.md", "machines_gone", "the name of a metric"),
    ("crates/cloud-controller/", "\"machine\"", "a key in an annotation of existing Nodes"),
    ("crates/plan/src/record.rs", "\"wish\"", "a key in the records of existing installations"),
    ("crates/testkit/src/real_node.rs", "machine", "the computer that runs the tests"),
    ("docs/testing.md", "this machine", "the computer that runs the tests"),
    ("peers/vcsim/sim.go", "m.Machine", "a field of govmomi"),
    ("crates/health/src/document.rs", "\"VCenter \"", "a test against this spelling"),
    // Temporary, like the names below.
    ("docs/design.md", "rights", "the module to rename"),
    ("docs/contributing/changing.md", "src/rights.rs", "the module to rename"),
    ("crates/cloud-controller/tests/with_operator.rs", "operator::rights", "the module to rename"),
];

/// Temporary: names in folders that are being restructured, each with one of its files. Rename them, then delete this
/// list. Single words are allowed in those folders only.
pub(crate) const TO_RENAME: &[(&str, &str)] = &[
    ("crates/health/src/causes.rs", "RIGHTS_MISSING"),
    (
        "crates/health/src/checks/nodes/deletion_risk.rs",
        "the_provider_id_of_another_is_taken_for_a_machine_that_is_gone",
    ),
    ("crates/health/src/checks/nodes/host.rs", "a_host_that_may_not_be_read_is_not_called_old"),
    ("crates/health/src/checks/nodes/host.rs", "a_host_that_may_not_be_seen_is_not_called_fine"),
    ("crates/health/src/checks/storage/attachments.rs", "machine"),
    ("crates/health/src/checks/storage/attachments.rs", "said"),
    (
        "crates/health/src/checks/storage/datastores.rs",
        "a_datastore_the_drivers_may_not_use_is_none_of_our_business",
    ),
    ("crates/health/src/checks/storage/volume_counts.rs", "away"),
    (
        "crates/health/src/checks/vcenter/shared_datastore.rs",
        "datastores_that_may_not_be_read_are_not_the_same_one",
    ),
    ("crates/health/src/facts/mod.rs", "is_told_foreign"),
    (
        "crates/health/src/facts/platform.rs",
        "a_platform_is_told_by_a_node_that_knows_and_by_no_other",
    ),
    (
        "crates/health/src/facts/platform.rs",
        "a_platform_is_told_by_its_version_its_system_or_its_labels",
    ),
    ("crates/health/src/facts/platform.rs", "told"),
    ("crates/health/src/index.rs", "a_uuid_in_the_other_byte_order_is_the_same_machine"),
    ("crates/operator/src/act.rs", "is_for_lack_of_held_rights"),
    ("crates/operator/src/act.rs", "is_for_lack_of_rights"),
    ("crates/operator/src/act.rs", "take_over"),
    ("crates/operator/src/act.rs", "takeover"),
    ("crates/operator/src/act/nodes.rs", "NodeWord"),
    (
        "crates/operator/src/act/terminating.rs",
        "what_holds_a_namespace_that_is_being_deleted_is_said",
    ),
    ("crates/operator/src/applied.rs", "TOLD"),
    ("crates/operator/src/applied.rs", "leaving"),
    (
        "crates/operator/src/applied.rs",
        "what_is_never_seen_as_it_was_applied_is_applied_with_growing_pauses_and_told",
    ),
    ("crates/operator/src/audit/inventory.rs", "an_update_is_told_by_the_api"),
    (
        "crates/operator/src/audit/missing_privileges.rs",
        "what_an_account_lacks_is_told_object_by_object",
    ),
    (
        "crates/operator/src/cluster/cache.rs",
        "a_shelf_without_a_view_says_why_and_never_that_it_is_empty",
    ),
    ("crates/operator/src/cluster/crash_logs.rs", "Said"),
    (
        "crates/operator/src/cluster/drivers.rs",
        "the_version_is_that_of_the_driver_and_not_of_what_stands_beside_it",
    ),
    ("crates/operator/src/cluster/nodes.rs", "Beside"),
    ("crates/operator/src/cluster/nodes.rs", "beside"),
    ("crates/operator/src/cluster/site/mod.rs", "Told"),
    ("crates/operator/src/cluster/site/mod.rs", "rights"),
    (
        "crates/operator/src/cluster/site/sources.rs",
        "a_pod_that_waits_for_a_volume_of_another_node_is_told_from_one_that_waits_for_something_else",
    ),
    ("crates/operator/src/cluster/site/watched.rs", "shelves"),
    ("crates/operator/src/engine.rs", "LACK_OF_HELD_RIGHTS"),
    ("crates/operator/src/engine.rs", "LACK_OF_RIGHTS"),
    ("crates/operator/src/engine.rs", "anew"),
    ("crates/operator/src/engine.rs", "asking_anew"),
    ("crates/operator/src/health_facts/live.rs", "change_machines"),
    ("crates/operator/src/health_facts/live.rs", "machines"),
    ("crates/operator/src/health_facts/live.rs", "repaired_machine"),
    ("crates/operator/src/health_facts/live/now.rs", "wished"),
    ("crates/operator/src/install.rs", "the_operator_may_do_nothing_to_the_machine_it_runs_on"),
    (
        "crates/operator/src/install/rbac.rs",
        "nothing_that_holds_volumes_can_be_deleted_with_the_operators_rights",
    ),
    (
        "crates/operator/src/install/rbac.rs",
        "the_right_to_grant_rights_is_limited_to_the_drivers_roles_by_name",
    ),
    (
        "crates/operator/src/observe/drivers.rs",
        "what_keeps_a_pod_from_running_is_said_in_the_words_of_kubernetes",
    ),
    ("crates/operator/src/observe/nodes.rs", "told_foreign"),
    ("crates/operator/src/remediation.rs", "Away"),
    ("crates/operator/src/remediation/remediator.rs", "take_back"),
    ("crates/operator/src/remediation/vm.rs", "AwaySnafu"),
    ("crates/operator/src/rights.rs", "what_is_missing_is_said_in_one_sentence_with_what_to_apply"),
    (
        "crates/operator/src/version.rs",
        "a_newer_minor_is_believed_when_no_older_one_answers_for_long_and_never_taken_back",
    ),
    ("crates/operator/src/webhook_certificates.rs", "what_other_hands_made_is_not_taken_for_ours"),
    ("crates/operator/src/writing.rs", "TAKING_BACK"),
    (
        "crates/plan/src/decide/configuration.rs",
        "a_driver_is_not_rolled_only_to_hear_its_last_words",
    ),
    ("crates/plan/src/decide/driver.rs", "bye"),
    ("crates/plan/src/decide/foreign_driver.rs", "unsaid"),
    ("crates/plan/src/decide/non_vsphere_nodes.rs", "is_taken_back"),
    ("crates/plan/src/decide/non_vsphere_nodes.rs", "untold"),
    (
        "crates/plan/src/decide/tests/adopting.rs",
        "a_driver_whose_names_vdo_may_not_write_is_adopted_once_an_admin_lets_it",
    ),
    ("crates/plan/src/decide/tests/adopting.rs", "cure"),
    (
        "crates/plan/src/decide/tests/adopting.rs",
        "only_what_is_certainly_of_the_go_vdo_is_taken_over_unasked",
    ),
    (
        "crates/plan/src/decide/tests/adopting.rs",
        "the_cloud_controller_is_not_adopted_into_a_configuration_that_hides_a_machine",
    ),
    ("crates/plan/src/decide/tests/adopting.rs", "told_user"),
    (
        "crates/plan/src/decide/tests/adopting.rs",
        "what_adoption_would_change_is_said_before_it_happens_and_no_password_with_it",
    ),
    (
        "crates/plan/src/decide/tests/adopting.rs",
        "what_the_go_vdo_left_is_taken_over_unasked_with_its_cluster_id_and_upgraded",
    ),
    (
        "crates/plan/src/decide/tests/changing.rs",
        "a_node_that_is_told_to_be_none_of_vsphere_holds_up_nothing_and_gets_no_storage",
    ),
    (
        "crates/plan/src/decide/tests/changing.rs",
        "a_release_that_does_not_become_healthy_is_taken_back_and_not_tried_again",
    ),
    (
        "crates/plan/src/decide/tests/changing.rs",
        "what_is_said_about_nsx_reaches_the_cloud_controller",
    ),
    (
        "crates/plan/src/decide/tests/changing.rs",
        "who_keeps_changing_an_object_is_named_and_it_is_put_right_with_growing_pauses",
    ),
    (
        "crates/plan/src/decide/tests/changing.rs",
        "whoever_asks_for_snapshots_gets_a_class_for_them_last_and_it_stays",
    ),
    ("crates/plan/src/decide/tests/credentials.rs", "assert_told"),
    (
        "crates/plan/src/decide/tests/losing.rs",
        "a_driver_whose_record_is_lost_is_written_down_anew_and_not_touched",
    ),
    ("crates/plan/src/decide/tests/losing.rs", "what_cannot_be_told_from_what_runs_is_left_alone"),
    (
        "crates/plan/src/decide/tests/non_vsphere_nodes.rs",
        "the_machine_of_a_node_with_an_embedded_provider_id_has_to_be_seen_by_another_user",
    ),
    (
        "crates/plan/src/decide/tests/non_vsphere_nodes.rs",
        "upstreams_cloud_controller_is_not_installed_beside_one_that_took_the_nodes",
    ),
    (
        "crates/plan/src/decide/tests/non_vsphere_nodes.rs",
        "what_was_said_of_a_node_is_taken_back_only_by_whoever_said_it",
    ),
    (
        "crates/plan/src/decide/tests/refusing.rs",
        "a_cluster_id_that_only_seems_to_be_shared_is_taken_once_somebody_says_so",
    ),
    (
        "crates/plan/src/decide/tests/refusing.rs",
        "a_machine_in_a_vcenter_that_storage_is_not_told_of_holds_no_credentials_up",
    ),
    (
        "crates/plan/src/decide/tests/refusing.rs",
        "another_user_does_not_reach_storage_before_every_machine_is_seen_by_it",
    ),
    (
        "crates/plan/src/decide/tests/refusing.rs",
        "the_cloud_controller_is_not_rolled_while_the_machine_of_a_node_is_missing_or_unknown",
    ),
    (
        "crates/plan/src/decide/tests/refusing.rs",
        "the_cloud_controller_is_repaired_even_while_a_machine_is_missing",
    ),
    ("crates/plan/src/decide/tests/rendering.rs", "taken_over"),
    ("crates/plan/src/decide/tests/safety.rs", "a_driver_by_other_hands_is_untouched_and_reported"),
    (
        "crates/plan/src/decide/tests/safety.rs",
        "a_running_driver_is_kept_when_vcenter_is_away_whatever_else_changes",
    ),
    (
        "crates/plan/src/decide/tests/safety.rs",
        "a_second_driver_beside_ours_is_reported_and_ours_goes_on",
    ),
    (
        "crates/plan/src/decide/tests/safety.rs",
        "a_vcenter_that_is_away_for_a_moment_is_no_trouble_yet",
    ),
    ("crates/plan/src/decide/tests/safety.rs", "half_of_two_vcenters_away_changes_nothing"),
    (
        "crates/plan/src/decide/tests/safety.rs",
        "what_somebody_deleted_is_put_back_though_vcenter_is_away",
    ),
    (
        "crates/plan/src/decide/tests/switching.rs",
        "a_change_of_maker_waits_for_its_window_and_for_every_machine",
    ),
    (
        "crates/plan/src/decide/tests/switching.rs",
        "nsx_needs_the_upstream_cloud_controller_and_the_status_says_so",
    ),
    (
        "crates/plan/src/decide/tests/switching.rs",
        "one_that_does_not_become_healthy_is_taken_back_and_not_tried_again",
    ),
    (
        "crates/plan/src/decide/tests/timeouts.rs",
        "a_class_that_is_refused_takes_back_no_release_and_switches_no_way_back_off",
    ),
    (
        "crates/plan/src/decide/tests/timeouts.rs",
        "a_cloud_controller_that_crashes_is_taken_back_even_while_a_machine_is_missing",
    ),
    (
        "crates/plan/src/decide/tests/timeouts.rs",
        "a_release_that_was_taken_back_is_tried_again_once_it_is_approved_anew",
    ),
    (
        "crates/plan/src/decide/tests/timeouts.rs",
        "a_rollout_under_which_nodes_go_down_stops_there_and_is_taken_back",
    ),
    (
        "crates/plan/src/decide/tests/timeouts.rs",
        "another_wish_in_between_does_not_switch_the_way_back_off",
    ),
    ("crates/plan/src/decide/vms.rs", "is_wished"),
];
