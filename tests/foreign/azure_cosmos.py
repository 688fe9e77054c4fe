"""Microsoft's tests of azure-cosmos against the emulator of Cosmos DB: those that it marks for an emulator."""

from __future__ import annotations

import re

from tests.foreign.suites import Suite

_LEFT_OUT = tuple(
    f"test_{name}{ending}.py"
    for name in (
        "circuit_breaker_emulator",
        "cosmos_http_logging_policy",
        "excluded_locations_emulator",
        "fault_injection_transport",
        "retryable_writes",
    )
    for ending in ("", "_async")
)

_REFUSALS: dict[str, tuple[str, ...]] = {
    "Entra ID is not served, nor TLS, without which the SDK sends no token; sign in with the account's key.": (
        "test_aad_inference_service_lazy_init.py::TestAADInferenceServiceLazyInit::test_aad_client_construction_with_inference_endpoint",
        "test_aad_inference_service_lazy_init.py::TestAADInferenceServiceLazyInit::test_aad_client_construction_without_inference_endpoint",
        "test_aad_inference_service_lazy_init_async.py::TestAADInferenceServiceLazyInitAsync::test_aad_client_construction_with_inference_endpoint",
        "test_aad_inference_service_lazy_init_async.py::TestAADInferenceServiceLazyInitAsync::test_aad_client_construction_without_inference_endpoint",
    ),
    "Stored procedures, triggers and user-defined functions are refused: they are programs in JavaScript.": (
        "test_encoding.py::TestEncoding::test_create_stored_procedure_with_line_separator_para_seperator_next_line_unicodes",
        "test_multimaster.py::TestMultiMaster::test_tentative_writes_header_not_present",
        "test_multimaster.py::TestMultiMaster::test_tentative_writes_header_present",
    ),
    "A container has one partition key range, whatever its throughput, and these tests want several.": (
        "test_changefeed_partition_key_variation.py::TestChangeFeedPKVariation::test_multiple_physical_partitions",
        "test_changefeed_partition_key_variation_async.py::TestChangeFeedPKVariationAsync::test_multiple_physical_partitions_async",
        "test_read_items.py::TestReadItems::test_read_items_multiple_physical_partitions_and_hook",
        "test_read_items_async.py::TestReadItemsAsync::test_read_items_multiple_physical_partitions_and_hook_async",
        "test_session.py::TestSession::test_feed_range_query_session_token_matches_partition_lsn",
        "test_session.py::TestSession::test_feed_range_query_session_token_single_partition_across_pages",
        "test_session.py::TestSession::test_session_token_compound_not_sent_for_multi_partition_feed_range_query",
        "test_session.py::TestSession::test_session_token_compound_not_sent_for_single_partition_query",
        "test_session_async.py::TestSessionAsync::test_feed_range_query_session_token_matches_partition_lsn_async",
        "test_session_async.py::TestSessionAsync::test_feed_range_query_session_token_single_partition_across_pages_async",
        "test_session_async.py::TestSessionAsync::test_session_token_compound_not_sent_for_multi_partition_feed_range_query_async",
        "test_session_async.py::TestSessionAsync::test_session_token_compound_not_sent_for_single_partition_query_async",
    ),
    "The change feed of all versions and deletes is refused: overwritten versions are not kept.": (
        "test_change_feed_all_versions.py::TestChangeAllVersionsFeed::test_query_change_feed_all_versions_and_deletes",
        "test_change_feed_all_versions_async.py::TestAllVersionsChangeFeedAsync::test_query_change_feed_all_versions_and_deletes_async",
    ),
    "The account has one region; this test plays a second one, at the fixed address of Microsoft's emulator.": (
        "test_session.py::TestSession::test_session_token_mwr_for_ops",
    ),
}

_RACES = (
    "test_health_check.py::TestHealthCheck::test_health_check_success",
    "test_service_retry_policies.py::TestServiceRetryPolicies::test_service_request_retry_policy",
    "test_service_retry_policies.py::TestServiceRetryPolicies::test_service_response_retry_policy",
    "test_timeout_and_failover_retry_policy.py::TestTimeoutRetryPolicy::test_cross_region_retry",
)


def _environment(endpoint: re.Match[str]) -> dict[str, str]:
    return {"ACCOUNT_HOST": endpoint[1].replace("127.0.0.1", "localhost")}  # as Microsoft's is asked


SUITE = Suite(
    package="azure-cosmos",
    folder="azure_cosmos",
    ports=("--amqp-port", "none", "--cosmos-port", "0"),
    endpoint=re.compile(r"AccountEndpoint=(http://[^;]+)"),
    environment=_environment,
    mark="cosmosEmulator",
    left_out={
        "Files marked for an emulator that inject faults into the client as if the account had several regions, at the "
        "fixed address `https://localhost:8081` of Microsoft's; what is served here is plain HTTP, on any port.": (
            _LEFT_OUT
        )
    },
    refusals=_REFUSALS,
    races={
        "By chance: tests that put several regions into a client while its thread reads the account anew, with one; "
        "they pass or fail as the threads go, more often so on a busy machine.": _RACES
    },
)
