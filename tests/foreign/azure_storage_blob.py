"""Microsoft's tests of azure-storage-blob against the emulator of Blob Storage, all of them live."""

from __future__ import annotations

import re

from tests.foreign.suites import Suite, tests_of

_AIO_CLASSES = {
    "TestServiceProperties": "TestServicePropertiesTest",
    "TestStorageBlobTags": "TestStorageBlobTags",
    "TestStorageGetBlob": "TestStorageGetBlobTest",
}
"""The classes of asynchronous tests that are not named after the others with `Async` behind it."""


def _both(file: str, of: str, names: str, *, sync: str = "", aio: str = "") -> tuple[str, ...]:
    """Tests of a class and of its asynchronous twin by their names, and those of one of the two."""
    twin = _AIO_CLASSES.get(of, f"{of}Async")
    return (*tests_of(f"{file}.py::{of}", f"{names} {sync}"), *tests_of(f"{file}_async.py::{twin}", f"{names} {aio}"))


def _files(name: str) -> tuple[str, str]:
    """A file of tests and its asynchronous twin."""
    return f"{name}.py", f"{name}_async.py"


_LEFT_OUT: dict[str, tuple[str, ...]] = {
    "The source distribution has not the samples that they read.": ("avro/test_avro.py",),
    "Page blobs and append blobs are refused.": (
        *_files("test_append_blob"),
        *_files("test_page_blob"),
    ),
    "Lists as Apache Arrow are not served, and the SDK asks for them only where nanoarrow is installed.": (
        *_files("test_arrow"),
    ),
    "Copies are refused.": (*_files("test_block_blob_sync_copy"),),
    "Keys of the client's and encryption scopes are refused.": (
        *_files("test_cpk"),
        *_files("test_cpk_n"),
    ),
    "Queries over the content of a blob are refused.": (*_files("test_quick_query"),),
    "They compute CRC64 checksums, by an extension of the SDK that is not installed.": (*_files("test_streams"),),
}

_REFUSALS: dict[str, tuple[str, ...]] = {
    "Service properties and access policies are read only.": (
        *_both(
            "test_blob_access_conditions",
            "TestStorageBlobAccessConditions",
            "test_set_container_acl_with_if_modified test_set_container_acl_with_if_modified_fail "
            "test_set_container_acl_with_if_unmodified test_set_container_acl_with_if_unmodified_fail",
        ),
        *_both(
            "test_blob_service_properties",
            "TestServiceProperties",
            "test_blob_service_properties test_set_default_service_version test_set_delete_retention_policy "
            "test_set_delete_retention_policy_edge_cases test_set_disabled_delete_retention_policy "
            "test_set_static_website_properties test_set_static_website_properties_with_default_index_document_path "
            "test_disabled_static_website_properties test_set_logging test_set_hour_metrics test_set_minute_metrics "
            "test_set_cors",
            sync=(
                "test_set_static_website_properties_missing_field test_set_static_website_props_dont_impact_other_props"
            ),
            aio="test_set_static_web_props_missing_field test_set_static_webprops_no_impact_other_props",
        ),
        *_both("test_common_blob", "TestStorageCommonBlob", "test_sas_signed_identifier"),
        *_both(
            "test_container",
            "TestStorageContainer",
            "test_set_container_acl test_set_container_acl_with_one_signed_identifier "
            "test_set_container_acl_with_lease_id test_set_container_acl_with_empty_signed_identifiers "
            "test_set_container_acl_with_signed_identifiers test_set_container_acl_with_empty_identifiers "
            "test_set_container_acl_with_three_identifiers test_get_and_set_access_policy_oauth",
            sync="test_set_container_acl_with_empty_access_policy",
        ),
    ),
    "Snapshots, versions and soft delete are refused.": (
        *_both(
            "test_blob_access_conditions",
            "TestStorageBlobAccessConditions",
            "test_snapshot_blob_with_if_modified test_snapshot_blob_with_if_modified_fail "
            "test_snapshot_blob_with_if_unmodified test_snapshot_blob_with_if_unmodified_fail "
            "test_snapshot_blob_with_if_match test_snapshot_blob_with_if_match_fail "
            "test_snapshot_blob_with_if_none_match test_snapshot_blob_with_if_none_match_fail "
            "test_put_block_list_returns_vid",
            sync="test_if_blob_exists_vid",
        ),
        *_both("test_blob_tags", "TestStorageBlobTags", "test_get_blob_tags_for_a_snapshot"),
        *_both(
            "test_common_blob",
            "TestStorageCommonBlob",
            "test_blob_snapshot_exists test_blob_snapshot_not_exists test_get_blob_with_snapshot "
            "test_get_blob_with_snapshot_previous test_get_blob_properties_with_snapshot "
            "test_set_blob_metadata_returns_vid test_delete_specific_blob_version "
            "test_delete_blob_version_with_blob_sas test_delete_blob_snapshot test_delete_blob_snapshots "
            "test_create_blob_snapshot_returns_vid test_delete_blob_with_snapshots "
            "test_soft_delete_blob_without_snapshots test_soft_delete_single_blob_snapshot "
            "test_soft_delete_only_snapshots_of_blob test_soft_delete_blob_including_all_snapshots "
            "test_soft_delete_with_leased_blob test_snapshot_blob",
            sync="test_sas_access_blob_snapshot test_set_blob_tier_for_a_version",
        ),
        *_both(
            "test_container",
            "TestStorageContainer",
            "test_list_blobs_with_include_snapshots test_list_blobs_with_include_metadata "
            "test_list_blobs_include_deletedwithversion test_delete_blob_with_properties_versioning "
            "test_delete_blobs_with_version_id test_delete_blobs_snapshot "
            "test_walk_blobs_with_prefix_delimiter_versions test_list_blobs_with_include_multiple "
            "test_download_blob_with_properties_versioning",
        ),
        *_both("test_get_blob", "TestStorageGetBlob", "test_get_blob_to_bytes_snapshot"),
    ),
    "Keys of the client's and encryption scopes are refused.": (
        *_both("test_blob_access_conditions", "TestStorageBlobAccessConditions", "test_if_blob_with_cpk_exists"),
        *_both(
            "test_block_blob",
            "TestStorageBlockBlob",
            "test_upload_blob_from_url_with_cpk test_upload_blob_from_url_overwrite_properties",
        ),
    ),
    "Page blobs and append blobs are refused.": (
        *_both(
            "test_blob_access_conditions",
            "TestStorageBlobAccessConditions",
            "test_update_page_with_if_modified test_update_page_with_if_modified_fail "
            "test_update_page_with_if_unmodified test_update_page_with_if_unmodified_fail "
            "test_update_page_with_if_match test_update_page_with_if_match_fail test_update_page_with_if_none_match "
            "test_update_page_with_if_none_match_fail test_get_page_ranges_iter_with_if_modified "
            "test_get_page_ranges_iter_with_if_modified_fail test_get_page_ranges_iter_with_if_unmodified "
            "test_get_page_ranges_iter_with_if_match test_get_page_ranges_iter_with_if_match_fail "
            "test_get_page_ranges_iter_with_if_none_match test_append_block_with_if_modified "
            "test_append_block_with_if_modified_fail test_append_block_with_if_unmodified "
            "test_append_block_with_if_unmodified_fail test_append_block_with_if_match "
            "test_append_block_with_if_match_fail test_append_block_with_if_none_match "
            "test_append_block_with_if_none_match_fail test_append_blob_from_bytes_with_if_modified "
            "test_append_blob_from_bytes_with_if_unmodified test_append_blob_from_bytes_with_if_match "
            "test_append_blob_from_bytes_with_if_match_fail test_append_blob_from_bytes_with_if_none_match",
            sync=(
                "test_get_page_ranges_iter_with_if_unmodified_fail test_get_page_ranges_iter_with_if_none_match_fail "
                "test_append_blob_from_bytes_with_if_modified_fail test_append_blob_from_bytes_with_if_unmodified_fail "
                "test_append_blob_from_bytes_with_if_none_match_fail"
            ),
            aio=(
                "test_get_page_ranges_iter_with_if_unmod_fail test_get_page_ranges_iter_if_none_match_fail "
                "test_apnd_blob_from_bytes_with_if_mod_fail test_append_blob_from_bytes_with_if_unmod_fail "
                "test_apnd_blob_from_bytes_if_none_match_fail"
            ),
        ),
        *_both("test_blob_api_version", "TestStorageBlobApiVersion", "test_old_api_get_page_ranges_succeeds"),
        *_both("test_blob_encryption", "TestStorageBlobEncryption", "test_create_page_blob_from_star"),
        *_both(
            "test_blob_tags",
            "TestStorageBlobTags",
            "test_create_append_blob_with_tags test_create_page_blob_with_tags",
        ),
        *_both(
            "test_content_validation",
            "TestStorageContentValidation",
            "test_upload_blob[True-PageBlob] test_upload_blob[True-AppendBlob] test_upload_blob[md5-PageBlob] "
            "test_upload_blob[md5-AppendBlob] test_upload_blob_chunks[True-PageBlob] "
            "test_upload_blob_chunks[True-AppendBlob] test_upload_blob_chunks[md5-PageBlob] "
            "test_upload_blob_chunks[md5-AppendBlob] test_append_block[True] test_append_block[auto] "
            "test_append_block[md5] test_append_block[crc64] test_append_block_streaming[True] "
            "test_append_block_streaming[md5] test_append_block_streaming[crc64] "
            "test_append_block_streaming_large[True] test_append_block_streaming_large[md5] "
            "test_append_block_streaming_large[crc64] test_upload_page[True] test_upload_page[auto] "
            "test_upload_page[md5] test_upload_page[crc64]",
        ),
    ),
    "Names that metadata may not have are sorted otherwise for a signature, which is refused before the name.": (
        *_both(
            "test_blob_access_conditions",
            "TestStorageBlobAccessConditions",
            "test_header_metadata_sort_in_upload_blob_fails test_header_metadata_sort_in_upload_blob_translation",
        ),
    ),
    "These want the account in the host's name, or HTTPS; here it is in the path, and the address is plain HTTP.": (
        *_both(
            "test_blob_client",
            "TestStorageClient",
            "test_create_service_with_key test_create_blob_client_with_complete_blob_url "
            "test_create_service_with_connection_string test_create_service_with_sas "
            "test_create_service_with_sas_credential test_create_service_china test_create_service_protocol "
            "test_create_blob_service_anonymous test_create_service_with_socket_timeout",
        ),
    ),
    "Entra ID is not served, nor TLS, without which the SDK sends no token; these get the account's key instead.": (
        *_both(
            "test_blob_client",
            "TestStorageClient",
            "test_create_service_with_token test_create_service_ipv6_custom_domain",
            sync="test_create_service_with_token_and_http",
        ),
        *_both(
            "test_common_blob",
            "TestStorageCommonBlob",
            "test_copy_from_file_to_blob_with_oauth test_start_copy_from_url_with_oauth test_token_credential "
            "test_oauth_error_handling test_blob_dynamic_user_delegation_sas test_blob_cross_tenant_delegation_sas "
            "test_blob_fns_directory test_blob_fns_directory_fail",
            sync="test_get_user_delegation_key test_user_delegation_sas_for_blob test_access_token_refresh_after_retry",
        ),
        *tests_of("test_container.py::TestStorageContainer", "test_user_delegation_sas_for_container"),
        *_both(
            "test_block_blob",
            "TestStorageBlockBlob",
            "test_upload_blob_from_url_with_oauth test_upload_from_file_to_blob_with_oauth "
            "test_stage_from_file_to_blob_with_oauth test_stage_block_from_url_uds test_commit_block_list_uds",
        ),
    ),
    "Shared access signatures and public access are refused; sign with the account's key.": (
        *_both("test_blob_service_properties", "TestServiceProperties", "test_get_service_properties_account_sas"),
        *tests_of(
            "test_blob_tags.py::TestStorageBlobTags",
            "test_filter_blobs_using_account_sas test_set_blob_tags_using_blob_sas",
        ),
        *_both(
            "test_common_blob",
            "TestStorageCommonBlob",
            "test_sas_access_blob test_account_sas test_account_sas_credential test_shared_read_access_blob "
            "test_shared_read_access_blob_with_content_query_params test_shared_write_access_blob "
            "test_shared_delete_access_blob test_get_account_information_sas "
            "test_get_account_information_with_blob_sas test_download_to_file_with_sas "
            "test_upload_to_url_bytes_with_sas",
        ),
        *_both(
            "test_container",
            "TestStorageContainer",
            "test_list_containers_account_sas test_batch_blobs_with_container_sas "
            "test_delete_blobs_and_snapshot_using_sas test_standard_blob_tier_set_tiers_with_sas "
            "test_shared_access_container",
            sync="test_find_blobs_by_tags_container_sas",
        ),
        *_both("test_logging", "TestStorageLogging", "test_sas_signature_is_scrubbed_off"),
    ),
    "There is the access tier Hot, no other.": (
        *_both(
            "test_blob_storage_account",
            "TestBlobStorageAccount",
            "test_standard_blob_tier_set_tier_api test_rehydration_status",
            sync="test_set_standard_blob_tier_with_rehydrate_priority",
            aio="test_set_std_blob_tier_w_rehydrate_priority",
        ),
        *_both(
            "test_common_blob",
            "TestStorageCommonBlob",
            "test_get_blob_properties_returns_rehydrate_priority test_blob_version_id_operations "
            "test_delete_blob_access_tier_conditionals test_download_blob_returns_access_tier",
        ),
        *_both(
            "test_container",
            "TestStorageContainer",
            "test_list_blobs_returns_rehydrate_priority test_list_blobs_cold_tier test_walk_blobs_cold_tier",
        ),
        *_both(
            "test_block_blob",
            "TestStorageBlockBlob",
            "test_upload_blob_from_url_source_and_destination_properties test_put_block_list_with_blob_tier_specified "
            "test_put_block_list_with_blob_tier_specified_cold test_create_blob_from_bytes_with_blob_tier_specified "
            "test_upload_blob_from_path_non_parallel_with_standard_blob_tier "
            "test_create_blob_from_stream_chunked_upload_with_properties_parallel "
            "test_upload_blob_with_tier_specified_cold test_copy_blob_with_cold_tier test_set_blob_tier_cold_tier "
            "test_smart_access_tier",
        ),
    ),
    "Copies are refused.": (
        *_both(
            "test_blob_tags",
            "TestStorageBlobTags",
            "test_start_copy_from_url_with_tags test_start_copy_from_url_with_tags_copy_tags "
            "test_start_copy_from_url_with_tags_replace_tags",
        ),
        *_both(
            "test_common_blob",
            "TestStorageCommonBlob",
            "test_copy_blob_with_existing_blob test_async_copy_blob_with_if_tags test_copy_blob_returns_vid "
            "test_copy_blob_async_private_blob_no_sas test_copy_blob_async_private_blob_with_sas test_abort_copy_blob "
            "test_abort_copy_blob_with_synchronous_copy_fails",
            sync="test_copy_blob_with_blob_tier_specified test_copy_blob_with_rehydrate_priority",
        ),
        *_both("test_container", "TestStorageContainer", "test_list_blobs_with_include_copy"),
        *_both("test_logging", "TestStorageLogging", "test_copy_source_sas_is_scrubbed_off"),
        *_both(
            "test_block_blob",
            "TestStorageBlockBlob",
            "test_upload_blob_with_and_without_overwrite test_upload_blob_from_url_with_existing_blob "
            "test_upload_blob_from_url_with_standard_tier_specified test_upload_blob_from_url_with_metadata "
            "test_upload_blob_from_url_with_cold_tier_specified test_upload_blob_with_destination_lease "
            "test_upload_blob_from_url_if_match_condition test_upload_blob_from_url_with_source_content_md5 "
            "test_upload_blob_copy_source_error_and_status_code",
            aio="test_copy_blob test_put_block_from_url_and_commit",
        ),
    ),
    "CRC64 checksums and structured bodies are refused.": (
        *_both("test_common_blob", "TestStorageCommonBlob", "test_create_blob_and_download_blob_with_vid"),
        *_both(
            "test_content_validation",
            "TestStorageContentValidation",
            "test_upload_blob[auto-BlockBlob] test_upload_blob[auto-PageBlob] test_upload_blob[auto-AppendBlob] "
            "test_upload_blob[crc64-BlockBlob] test_upload_blob[crc64-PageBlob] test_upload_blob[crc64-AppendBlob] "
            "test_upload_blob_chunks[crc64-BlockBlob] test_upload_blob_chunks[crc64-PageBlob] "
            "test_upload_blob_chunks[crc64-AppendBlob] test_upload_blob_substream[crc64] test_stage_block[auto] "
            "test_stage_block[crc64] test_stage_block_streaming[crc64] test_stage_block_streaming_large[crc64] "
            "test_download_blob[auto] test_download_blob[crc64] test_download_blob_chunks[crc64] "
            "test_download_blob_chunks_partial[crc64] test_download_blob_large_chunks test_download_blob_chars[crc64] "
            "test_content_validation_with_retry[crc64] test_streaming_with_retry[crc64] "
            "test_download_decompress_with_crc64[auto] test_download_decompress_with_crc64[crc64]",
        ),
        *_both("test_block_blob", "TestStorageBlockBlob", "test_put_block_with_md5"),
    ),
    "A batch of requests deletes blobs: one of versions, or that sets tiers, is refused.": (
        *_both(
            "test_container",
            "TestStorageContainer",
            "test_delete_blobs_with_properties_versioning test_standard_blob_tier_set_tier_api_batch "
            "test_standard_blob_tier_with_if_tags",
            sync="test_batch_set_standard_blob_tier_for_version",
        ),
    ),
    "These tests ask hosts other than the account's.": (
        *tests_of("test_common_blob_async.py::TestStorageCommonBlobAsync", "test_create_blob_with_requests"),
    ),
    "There are no containers of the service's own, such as $logs.": (
        *_both("test_container", "TestStorageContainer", "test_list_system_containers"),
    ),
    "There is no secondary region.": (*_both("test_retry", "TestStorageRetry", "test_retry_secondary"),),
}


def _environment(endpoint: re.Match[str]) -> dict[str, str]:
    return {"BLOB_ACCOUNT": endpoint["account"], "BLOB_KEY": endpoint["key"], "BLOB_URL": endpoint["url"]}


SUITE = Suite(
    package="azure-storage-blob",
    folder="azure_storage_blob",
    ports=("--amqp-port", "none", "--blob-port", "0"),
    endpoint=re.compile(r"[^;]*;AccountName=(?P<account>[^;]+);AccountKey=(?P<key>[^;]+);BlobEndpoint=(?P<url>[^;]+);"),
    environment=_environment,
    pytest=("-p", "stand_ins", "-o", "asyncio_mode=auto", "-m", "not playback_test_only"),
    left_out=_LEFT_OUT,
    refusals=_REFUSALS,
)
