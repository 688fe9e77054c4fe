"""Microsoft's tests of azure-storage-blob against the emulator of Blob Storage, all of them live."""

from __future__ import annotations

import re

from tests.foreign.suites import Suite


def _tests(of: str, names: str) -> tuple[str, ...]:
    """Tests of a class by their names."""
    return tuple(f"{of}::{name}" for name in names.split())


_LEFT_OUT: dict[str, tuple[str, ...]] = {
    "The source distribution has not the samples that they read.": ("avro/test_avro.py",),
    "Page blobs and append blobs are refused.": (
        "test_append_blob.py",
        "test_append_blob_async.py",
        "test_page_blob.py",
        "test_page_blob_async.py",
    ),
    "Lists as Apache Arrow are not served, and the SDK asks for them only where nanoarrow is installed.": (
        "test_arrow.py",
        "test_arrow_async.py",
    ),
    "Copies are refused.": (
        "test_block_blob_sync_copy.py",
        "test_block_blob_sync_copy_async.py",
    ),
    "Keys of the client's and encryption scopes are refused.": (
        "test_cpk.py",
        "test_cpk_async.py",
        "test_cpk_n.py",
        "test_cpk_n_async.py",
    ),
    "Queries over the content of a blob are refused.": (
        "test_quick_query.py",
        "test_quick_query_async.py",
    ),
    "They compute CRC64 checksums, by an extension of the SDK that is not installed.": (
        "test_streams.py",
        "test_streams_async.py",
    ),
}

_REFUSALS: dict[str, tuple[str, ...]] = {
    "Service properties and access policies are read only.": (
        *_tests(
            "test_blob_access_conditions.py::TestStorageBlobAccessConditions",
            "test_set_container_acl_with_if_modified test_set_container_acl_with_if_modified_fail "
            "test_set_container_acl_with_if_unmodified test_set_container_acl_with_if_unmodified_fail",
        ),
        *_tests(
            "test_blob_access_conditions_async.py::TestStorageBlobAccessConditionsAsync",
            "test_set_container_acl_with_if_modified test_set_container_acl_with_if_modified_fail "
            "test_set_container_acl_with_if_unmodified test_set_container_acl_with_if_unmodified_fail",
        ),
        *_tests(
            "test_blob_service_properties.py::TestServiceProperties",
            "test_blob_service_properties test_set_default_service_version test_set_delete_retention_policy "
            "test_set_delete_retention_policy_edge_cases test_set_disabled_delete_retention_policy "
            "test_set_static_website_properties "
            "test_set_static_website_properties_with_default_index_document_path "
            "test_set_static_website_properties_missing_field test_disabled_static_website_properties "
            "test_set_static_website_props_dont_impact_other_props test_set_logging test_set_hour_metrics "
            "test_set_minute_metrics test_set_cors",
        ),
        *_tests(
            "test_blob_service_properties_async.py::TestServicePropertiesTest",
            "test_blob_service_properties test_set_default_service_version test_set_delete_retention_policy "
            "test_set_delete_retention_policy_edge_cases test_set_disabled_delete_retention_policy "
            "test_set_static_website_properties "
            "test_set_static_website_properties_with_default_index_document_path "
            "test_set_static_web_props_missing_field test_disabled_static_website_properties "
            "test_set_static_webprops_no_impact_other_props test_set_logging test_set_hour_metrics "
            "test_set_minute_metrics test_set_cors",
        ),
        *_tests("test_common_blob.py::TestStorageCommonBlob", "test_sas_signed_identifier"),
        *_tests("test_common_blob_async.py::TestStorageCommonBlobAsync", "test_sas_signed_identifier"),
        *_tests(
            "test_container_async.py::TestStorageContainerAsync",
            "test_set_container_acl test_set_container_acl_with_one_signed_identifier "
            "test_set_container_acl_with_lease_id test_set_container_acl_with_empty_signed_identifiers "
            "test_set_container_acl_with_signed_identifiers test_set_container_acl_with_empty_identifiers "
            "test_set_container_acl_with_three_identifiers test_get_and_set_access_policy_oauth",
        ),
        *_tests(
            "test_container.py::TestStorageContainer",
            "test_set_container_acl test_set_container_acl_with_one_signed_identifier "
            "test_set_container_acl_with_lease_id test_set_container_acl_with_empty_signed_identifiers "
            "test_set_container_acl_with_empty_access_policy test_set_container_acl_with_signed_identifiers "
            "test_set_container_acl_with_empty_identifiers test_set_container_acl_with_three_identifiers "
            "test_get_and_set_access_policy_oauth",
        ),
    ),
    "Snapshots, versions and soft delete are refused.": (
        *_tests(
            "test_blob_access_conditions.py::TestStorageBlobAccessConditions",
            "test_if_blob_exists_vid test_snapshot_blob_with_if_modified test_snapshot_blob_with_if_modified_fail "
            "test_snapshot_blob_with_if_unmodified test_snapshot_blob_with_if_unmodified_fail "
            "test_snapshot_blob_with_if_match test_snapshot_blob_with_if_match_fail "
            "test_snapshot_blob_with_if_none_match test_snapshot_blob_with_if_none_match_fail "
            "test_put_block_list_returns_vid",
        ),
        *_tests(
            "test_blob_access_conditions_async.py::TestStorageBlobAccessConditionsAsync",
            "test_snapshot_blob_with_if_modified test_snapshot_blob_with_if_modified_fail "
            "test_snapshot_blob_with_if_unmodified test_snapshot_blob_with_if_unmodified_fail "
            "test_snapshot_blob_with_if_match test_snapshot_blob_with_if_match_fail "
            "test_snapshot_blob_with_if_none_match test_snapshot_blob_with_if_none_match_fail "
            "test_put_block_list_returns_vid",
        ),
        *_tests("test_blob_tags.py::TestStorageBlobTags", "test_get_blob_tags_for_a_snapshot"),
        *_tests("test_blob_tags_async.py::TestStorageBlobTags", "test_get_blob_tags_for_a_snapshot"),
        *_tests(
            "test_common_blob.py::TestStorageCommonBlob",
            "test_blob_snapshot_exists test_blob_snapshot_not_exists test_get_blob_with_snapshot "
            "test_get_blob_with_snapshot_previous test_get_blob_properties_with_snapshot "
            "test_set_blob_metadata_returns_vid test_delete_specific_blob_version "
            "test_delete_blob_version_with_blob_sas test_delete_blob_snapshot test_delete_blob_snapshots "
            "test_create_blob_snapshot_returns_vid test_delete_blob_with_snapshots "
            "test_soft_delete_blob_without_snapshots test_soft_delete_single_blob_snapshot "
            "test_soft_delete_only_snapshots_of_blob test_soft_delete_blob_including_all_snapshots "
            "test_soft_delete_with_leased_blob test_snapshot_blob test_sas_access_blob_snapshot "
            "test_set_blob_tier_for_a_version",
        ),
        *_tests(
            "test_common_blob_async.py::TestStorageCommonBlobAsync",
            "test_blob_snapshot_exists test_blob_snapshot_not_exists test_get_blob_with_snapshot "
            "test_get_blob_with_snapshot_previous test_get_blob_properties_with_snapshot "
            "test_set_blob_metadata_returns_vid test_delete_specific_blob_version "
            "test_delete_blob_version_with_blob_sas test_delete_blob_snapshot test_delete_blob_snapshots "
            "test_create_blob_snapshot_returns_vid test_delete_blob_with_snapshots "
            "test_soft_delete_blob_without_snapshots test_soft_delete_single_blob_snapshot "
            "test_soft_delete_only_snapshots_of_blob test_soft_delete_blob_including_all_snapshots "
            "test_soft_delete_with_leased_blob test_snapshot_blob",
        ),
        *_tests(
            "test_container_async.py::TestStorageContainerAsync",
            "test_list_blobs_with_include_snapshots test_list_blobs_with_include_metadata "
            "test_list_blobs_include_deletedwithversion test_delete_blob_with_properties_versioning "
            "test_delete_blobs_with_version_id test_delete_blobs_snapshot "
            "test_walk_blobs_with_prefix_delimiter_versions test_list_blobs_with_include_multiple "
            "test_download_blob_with_properties_versioning",
        ),
        *_tests(
            "test_container.py::TestStorageContainer",
            "test_list_blobs_with_include_snapshots test_list_blobs_with_include_metadata "
            "test_list_blobs_include_deletedwithversion test_delete_blob_with_properties_versioning "
            "test_delete_blobs_with_version_id test_delete_blobs_snapshot "
            "test_walk_blobs_with_prefix_delimiter_versions test_list_blobs_with_include_multiple "
            "test_download_blob_with_properties_versioning",
        ),
        *_tests("test_get_blob.py::TestStorageGetBlob", "test_get_blob_to_bytes_snapshot"),
        *_tests("test_get_blob_async.py::TestStorageGetBlobTest", "test_get_blob_to_bytes_snapshot"),
    ),
    "Keys of the client's and encryption scopes are refused.": (
        *_tests("test_blob_access_conditions.py::TestStorageBlobAccessConditions", "test_if_blob_with_cpk_exists"),
        *_tests(
            "test_blob_access_conditions_async.py::TestStorageBlobAccessConditionsAsync", "test_if_blob_with_cpk_exists"
        ),
        *_tests(
            "test_block_blob.py::TestStorageBlockBlob",
            "test_upload_blob_from_url_with_cpk test_upload_blob_from_url_overwrite_properties",
        ),
        *_tests(
            "test_block_blob_async.py::TestStorageBlockBlobAsync",
            "test_upload_blob_from_url_with_cpk test_upload_blob_from_url_overwrite_properties",
        ),
    ),
    "Page blobs and append blobs are refused.": (
        *_tests(
            "test_blob_access_conditions.py::TestStorageBlobAccessConditions",
            "test_update_page_with_if_modified test_update_page_with_if_modified_fail "
            "test_update_page_with_if_unmodified test_update_page_with_if_unmodified_fail "
            "test_update_page_with_if_match test_update_page_with_if_match_fail "
            "test_update_page_with_if_none_match test_update_page_with_if_none_match_fail "
            "test_get_page_ranges_iter_with_if_modified test_get_page_ranges_iter_with_if_modified_fail "
            "test_get_page_ranges_iter_with_if_unmodified test_get_page_ranges_iter_with_if_unmodified_fail "
            "test_get_page_ranges_iter_with_if_match test_get_page_ranges_iter_with_if_match_fail "
            "test_get_page_ranges_iter_with_if_none_match test_get_page_ranges_iter_with_if_none_match_fail "
            "test_append_block_with_if_modified test_append_block_with_if_modified_fail "
            "test_append_block_with_if_unmodified test_append_block_with_if_unmodified_fail "
            "test_append_block_with_if_match test_append_block_with_if_match_fail "
            "test_append_block_with_if_none_match test_append_block_with_if_none_match_fail "
            "test_append_blob_from_bytes_with_if_modified test_append_blob_from_bytes_with_if_modified_fail "
            "test_append_blob_from_bytes_with_if_unmodified test_append_blob_from_bytes_with_if_unmodified_fail "
            "test_append_blob_from_bytes_with_if_match test_append_blob_from_bytes_with_if_match_fail "
            "test_append_blob_from_bytes_with_if_none_match test_append_blob_from_bytes_with_if_none_match_fail",
        ),
        *_tests(
            "test_blob_access_conditions_async.py::TestStorageBlobAccessConditionsAsync",
            "test_update_page_with_if_modified test_update_page_with_if_modified_fail "
            "test_update_page_with_if_unmodified test_update_page_with_if_unmodified_fail "
            "test_update_page_with_if_match test_update_page_with_if_match_fail "
            "test_update_page_with_if_none_match test_update_page_with_if_none_match_fail "
            "test_get_page_ranges_iter_with_if_modified test_get_page_ranges_iter_with_if_modified_fail "
            "test_get_page_ranges_iter_with_if_unmodified test_get_page_ranges_iter_with_if_unmod_fail "
            "test_get_page_ranges_iter_with_if_match test_get_page_ranges_iter_with_if_match_fail "
            "test_get_page_ranges_iter_with_if_none_match test_get_page_ranges_iter_if_none_match_fail "
            "test_append_block_with_if_modified test_append_block_with_if_modified_fail "
            "test_append_block_with_if_unmodified test_append_block_with_if_unmodified_fail "
            "test_append_block_with_if_match test_append_block_with_if_match_fail "
            "test_append_block_with_if_none_match test_append_block_with_if_none_match_fail "
            "test_append_blob_from_bytes_with_if_modified test_apnd_blob_from_bytes_with_if_mod_fail "
            "test_append_blob_from_bytes_with_if_unmodified test_append_blob_from_bytes_with_if_unmod_fail "
            "test_append_blob_from_bytes_with_if_match test_append_blob_from_bytes_with_if_match_fail "
            "test_append_blob_from_bytes_with_if_none_match test_apnd_blob_from_bytes_if_none_match_fail",
        ),
        *_tests("test_blob_api_version.py::TestStorageBlobApiVersion", "test_old_api_get_page_ranges_succeeds"),
        *_tests(
            "test_blob_api_version_async.py::TestStorageBlobApiVersionAsync", "test_old_api_get_page_ranges_succeeds"
        ),
        *_tests("test_blob_encryption.py::TestStorageBlobEncryption", "test_create_page_blob_from_star"),
        *_tests("test_blob_encryption_async.py::TestStorageBlobEncryptionAsync", "test_create_page_blob_from_star"),
        *_tests(
            "test_blob_tags.py::TestStorageBlobTags",
            "test_create_append_blob_with_tags test_create_page_blob_with_tags",
        ),
        *_tests(
            "test_blob_tags_async.py::TestStorageBlobTags",
            "test_create_append_blob_with_tags test_create_page_blob_with_tags",
        ),
        *_tests(
            "test_content_validation.py::TestStorageContentValidation",
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
        *_tests(
            "test_content_validation_async.py::TestStorageContentValidationAsync",
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
        *_tests(
            "test_blob_access_conditions.py::TestStorageBlobAccessConditions",
            "test_header_metadata_sort_in_upload_blob_fails test_header_metadata_sort_in_upload_blob_translation",
        ),
        *_tests(
            "test_blob_access_conditions_async.py::TestStorageBlobAccessConditionsAsync",
            "test_header_metadata_sort_in_upload_blob_fails test_header_metadata_sort_in_upload_blob_translation",
        ),
    ),
    "These want the account in the host's name, or HTTPS; here it is in the path, and the address is plain HTTP.": (
        *_tests(
            "test_blob_client.py::TestStorageClient",
            "test_create_service_with_key test_create_blob_client_with_complete_blob_url "
            "test_create_service_with_connection_string test_create_service_with_sas "
            "test_create_service_with_sas_credential test_create_service_china test_create_service_protocol "
            "test_create_blob_service_anonymous test_create_service_with_socket_timeout",
        ),
        *_tests(
            "test_blob_client_async.py::TestStorageClientAsync",
            "test_create_service_with_key test_create_service_with_connection_string test_create_service_with_sas "
            "test_create_service_with_sas_credential test_create_service_china test_create_service_protocol "
            "test_create_blob_service_anonymous test_create_service_with_socket_timeout "
            "test_create_blob_client_with_complete_blob_url",
        ),
    ),
    "Entra ID is not served, nor TLS, without which the SDK sends no token; these get the account's key instead.": (
        *_tests(
            "test_blob_client.py::TestStorageClient",
            "test_create_service_with_token test_create_service_with_token_and_http "
            "test_create_service_ipv6_custom_domain",
        ),
        *_tests(
            "test_blob_client_async.py::TestStorageClientAsync",
            "test_create_service_with_token test_create_service_ipv6_custom_domain",
        ),
        *_tests(
            "test_common_blob.py::TestStorageCommonBlob",
            "test_copy_from_file_to_blob_with_oauth test_start_copy_from_url_with_oauth "
            "test_get_user_delegation_key test_user_delegation_sas_for_blob test_token_credential "
            "test_access_token_refresh_after_retry test_oauth_error_handling "
            "test_blob_dynamic_user_delegation_sas test_blob_cross_tenant_delegation_sas test_blob_fns_directory "
            "test_blob_fns_directory_fail",
        ),
        *_tests(
            "test_common_blob_async.py::TestStorageCommonBlobAsync",
            "test_copy_from_file_to_blob_with_oauth test_start_copy_from_url_with_oauth test_token_credential "
            "test_oauth_error_handling test_blob_dynamic_user_delegation_sas "
            "test_blob_cross_tenant_delegation_sas test_blob_fns_directory test_blob_fns_directory_fail",
        ),
        *_tests("test_container.py::TestStorageContainer", "test_user_delegation_sas_for_container"),
        *_tests(
            "test_block_blob.py::TestStorageBlockBlob",
            "test_upload_blob_from_url_with_oauth test_upload_from_file_to_blob_with_oauth "
            "test_stage_from_file_to_blob_with_oauth test_stage_block_from_url_uds test_commit_block_list_uds",
        ),
        *_tests(
            "test_block_blob_async.py::TestStorageBlockBlobAsync",
            "test_upload_blob_from_url_with_oauth test_upload_from_file_to_blob_with_oauth "
            "test_stage_from_file_to_blob_with_oauth test_stage_block_from_url_uds test_commit_block_list_uds",
        ),
    ),
    "Shared access signatures and public access are refused; sign with the account's key.": (
        *_tests("test_blob_service_properties.py::TestServiceProperties", "test_get_service_properties_account_sas"),
        *_tests(
            "test_blob_service_properties_async.py::TestServicePropertiesTest",
            "test_get_service_properties_account_sas",
        ),
        *_tests(
            "test_blob_tags.py::TestStorageBlobTags",
            "test_filter_blobs_using_account_sas test_set_blob_tags_using_blob_sas",
        ),
        *_tests(
            "test_common_blob.py::TestStorageCommonBlob",
            "test_sas_access_blob test_account_sas test_account_sas_credential test_shared_read_access_blob "
            "test_shared_read_access_blob_with_content_query_params test_shared_write_access_blob "
            "test_shared_delete_access_blob test_get_account_information_sas "
            "test_get_account_information_with_blob_sas test_download_to_file_with_sas "
            "test_upload_to_url_bytes_with_sas",
        ),
        *_tests(
            "test_common_blob_async.py::TestStorageCommonBlobAsync",
            "test_sas_access_blob test_account_sas test_account_sas_credential test_shared_read_access_blob "
            "test_shared_read_access_blob_with_content_query_params test_shared_write_access_blob "
            "test_shared_delete_access_blob test_get_account_information_sas "
            "test_get_account_information_with_blob_sas test_download_to_file_with_sas "
            "test_upload_to_url_bytes_with_sas",
        ),
        *_tests(
            "test_container_async.py::TestStorageContainerAsync",
            "test_list_containers_account_sas test_batch_blobs_with_container_sas "
            "test_delete_blobs_and_snapshot_using_sas test_standard_blob_tier_set_tiers_with_sas "
            "test_shared_access_container",
        ),
        *_tests(
            "test_container.py::TestStorageContainer",
            "test_list_containers_account_sas test_find_blobs_by_tags_container_sas "
            "test_batch_blobs_with_container_sas test_delete_blobs_and_snapshot_using_sas "
            "test_standard_blob_tier_set_tiers_with_sas test_shared_access_container",
        ),
        *_tests("test_logging.py::TestStorageLogging", "test_sas_signature_is_scrubbed_off"),
        *_tests("test_logging_async.py::TestStorageLoggingAsync", "test_sas_signature_is_scrubbed_off"),
    ),
    "There is the access tier Hot, no other.": (
        *_tests(
            "test_blob_storage_account.py::TestBlobStorageAccount",
            "test_standard_blob_tier_set_tier_api test_set_standard_blob_tier_with_rehydrate_priority "
            "test_rehydration_status",
        ),
        *_tests(
            "test_blob_storage_account_async.py::TestBlobStorageAccountAsync",
            "test_standard_blob_tier_set_tier_api test_set_std_blob_tier_w_rehydrate_priority test_rehydration_status",
        ),
        *_tests(
            "test_common_blob.py::TestStorageCommonBlob",
            "test_get_blob_properties_returns_rehydrate_priority test_blob_version_id_operations "
            "test_delete_blob_access_tier_conditionals test_download_blob_returns_access_tier",
        ),
        *_tests(
            "test_common_blob_async.py::TestStorageCommonBlobAsync",
            "test_get_blob_properties_returns_rehydrate_priority test_blob_version_id_operations "
            "test_delete_blob_access_tier_conditionals test_download_blob_returns_access_tier",
        ),
        *_tests(
            "test_container_async.py::TestStorageContainerAsync",
            "test_list_blobs_returns_rehydrate_priority test_list_blobs_cold_tier test_walk_blobs_cold_tier",
        ),
        *_tests(
            "test_container.py::TestStorageContainer",
            "test_list_blobs_returns_rehydrate_priority test_list_blobs_cold_tier test_walk_blobs_cold_tier",
        ),
        *_tests(
            "test_block_blob.py::TestStorageBlockBlob",
            "test_upload_blob_from_url_source_and_destination_properties "
            "test_put_block_list_with_blob_tier_specified test_put_block_list_with_blob_tier_specified_cold "
            "test_create_blob_from_bytes_with_blob_tier_specified "
            "test_upload_blob_from_path_non_parallel_with_standard_blob_tier "
            "test_create_blob_from_stream_chunked_upload_with_properties_parallel "
            "test_upload_blob_with_tier_specified_cold test_copy_blob_with_cold_tier test_set_blob_tier_cold_tier "
            "test_smart_access_tier",
        ),
        *_tests(
            "test_block_blob_async.py::TestStorageBlockBlobAsync",
            "test_upload_blob_from_url_source_and_destination_properties "
            "test_put_block_list_with_blob_tier_specified test_put_block_list_with_blob_tier_specified_cold "
            "test_create_blob_from_bytes_with_blob_tier_specified "
            "test_upload_blob_from_path_non_parallel_with_standard_blob_tier "
            "test_create_blob_from_stream_chunked_upload_with_properties_parallel "
            "test_upload_blob_with_tier_specified_cold test_copy_blob_with_cold_tier test_set_blob_tier_cold_tier "
            "test_smart_access_tier",
        ),
    ),
    "Copies are refused.": (
        *_tests(
            "test_blob_tags.py::TestStorageBlobTags",
            "test_start_copy_from_url_with_tags test_start_copy_from_url_with_tags_copy_tags "
            "test_start_copy_from_url_with_tags_replace_tags",
        ),
        *_tests(
            "test_blob_tags_async.py::TestStorageBlobTags",
            "test_start_copy_from_url_with_tags test_start_copy_from_url_with_tags_copy_tags "
            "test_start_copy_from_url_with_tags_replace_tags",
        ),
        *_tests(
            "test_common_blob.py::TestStorageCommonBlob",
            "test_copy_blob_with_existing_blob test_async_copy_blob_with_if_tags test_copy_blob_returns_vid "
            "test_copy_blob_with_blob_tier_specified test_copy_blob_with_rehydrate_priority "
            "test_copy_blob_async_private_blob_no_sas test_copy_blob_async_private_blob_with_sas "
            "test_abort_copy_blob test_abort_copy_blob_with_synchronous_copy_fails",
        ),
        *_tests(
            "test_common_blob_async.py::TestStorageCommonBlobAsync",
            "test_async_copy_blob_with_if_tags test_copy_blob_returns_vid test_copy_blob_with_existing_blob "
            "test_copy_blob_async_private_blob_no_sas test_copy_blob_async_private_blob_with_sas "
            "test_abort_copy_blob test_abort_copy_blob_with_synchronous_copy_fails",
        ),
        *_tests("test_container_async.py::TestStorageContainerAsync", "test_list_blobs_with_include_copy"),
        *_tests("test_container.py::TestStorageContainer", "test_list_blobs_with_include_copy"),
        *_tests("test_logging.py::TestStorageLogging", "test_copy_source_sas_is_scrubbed_off"),
        *_tests("test_logging_async.py::TestStorageLoggingAsync", "test_copy_source_sas_is_scrubbed_off"),
        *_tests(
            "test_block_blob.py::TestStorageBlockBlob",
            "test_upload_blob_with_and_without_overwrite test_upload_blob_from_url_with_existing_blob "
            "test_upload_blob_from_url_with_standard_tier_specified test_upload_blob_from_url_with_metadata "
            "test_upload_blob_from_url_with_cold_tier_specified test_upload_blob_with_destination_lease "
            "test_upload_blob_from_url_if_match_condition test_upload_blob_from_url_with_source_content_md5 "
            "test_upload_blob_copy_source_error_and_status_code",
        ),
        *_tests(
            "test_block_blob_async.py::TestStorageBlockBlobAsync",
            "test_upload_blob_with_and_without_overwrite test_upload_blob_from_url_with_existing_blob "
            "test_upload_blob_from_url_with_standard_tier_specified test_upload_blob_from_url_with_metadata "
            "test_upload_blob_from_url_with_cold_tier_specified test_upload_blob_with_destination_lease "
            "test_upload_blob_from_url_if_match_condition test_upload_blob_from_url_with_source_content_md5 "
            "test_copy_blob test_put_block_from_url_and_commit test_upload_blob_copy_source_error_and_status_code",
        ),
    ),
    "CRC64 checksums and structured bodies are refused.": (
        *_tests("test_common_blob.py::TestStorageCommonBlob", "test_create_blob_and_download_blob_with_vid"),
        *_tests("test_common_blob_async.py::TestStorageCommonBlobAsync", "test_create_blob_and_download_blob_with_vid"),
        *_tests(
            "test_content_validation.py::TestStorageContentValidation",
            "test_upload_blob[auto-BlockBlob] test_upload_blob[auto-PageBlob] test_upload_blob[auto-AppendBlob] "
            "test_upload_blob[crc64-BlockBlob] test_upload_blob[crc64-PageBlob] "
            "test_upload_blob[crc64-AppendBlob] test_upload_blob_chunks[crc64-BlockBlob] "
            "test_upload_blob_chunks[crc64-PageBlob] test_upload_blob_chunks[crc64-AppendBlob] "
            "test_upload_blob_substream[crc64] test_stage_block[auto] test_stage_block[crc64] "
            "test_stage_block_streaming[crc64] test_stage_block_streaming_large[crc64] test_download_blob[auto] "
            "test_download_blob[crc64] test_download_blob_chunks[crc64] test_download_blob_chunks_partial[crc64] "
            "test_download_blob_large_chunks test_download_blob_chars[crc64] "
            "test_content_validation_with_retry[crc64] test_streaming_with_retry[crc64] "
            "test_download_decompress_with_crc64[auto] test_download_decompress_with_crc64[crc64]",
        ),
        *_tests(
            "test_content_validation_async.py::TestStorageContentValidationAsync",
            "test_upload_blob[auto-BlockBlob] test_upload_blob[auto-PageBlob] test_upload_blob[auto-AppendBlob] "
            "test_upload_blob[crc64-BlockBlob] test_upload_blob[crc64-PageBlob] "
            "test_upload_blob[crc64-AppendBlob] test_upload_blob_chunks[crc64-BlockBlob] "
            "test_upload_blob_chunks[crc64-PageBlob] test_upload_blob_chunks[crc64-AppendBlob] "
            "test_upload_blob_substream[crc64] test_stage_block[auto] test_stage_block[crc64] "
            "test_stage_block_streaming[crc64] test_stage_block_streaming_large[crc64] test_download_blob[auto] "
            "test_download_blob[crc64] test_download_blob_chunks[crc64] test_download_blob_chunks_partial[crc64] "
            "test_download_blob_large_chunks test_download_blob_chars[crc64] "
            "test_content_validation_with_retry[crc64] test_streaming_with_retry[crc64] "
            "test_download_decompress_with_crc64[auto] test_download_decompress_with_crc64[crc64]",
        ),
        *_tests("test_block_blob.py::TestStorageBlockBlob", "test_put_block_with_md5"),
        *_tests("test_block_blob_async.py::TestStorageBlockBlobAsync", "test_put_block_with_md5"),
    ),
    "A batch of requests deletes blobs: one of versions, or that sets tiers, is refused.": (
        *_tests(
            "test_container_async.py::TestStorageContainerAsync",
            "test_delete_blobs_with_properties_versioning test_standard_blob_tier_set_tier_api_batch "
            "test_standard_blob_tier_with_if_tags",
        ),
        *_tests(
            "test_container.py::TestStorageContainer",
            "test_delete_blobs_with_properties_versioning test_standard_blob_tier_set_tier_api_batch "
            "test_batch_set_standard_blob_tier_for_version test_standard_blob_tier_with_if_tags",
        ),
    ),
    "These tests ask hosts other than the account's.": (
        *_tests("test_common_blob_async.py::TestStorageCommonBlobAsync", "test_create_blob_with_requests"),
    ),
    "There are no containers of the service's own, such as $logs.": (
        *_tests("test_container_async.py::TestStorageContainerAsync", "test_list_system_containers"),
        *_tests("test_container.py::TestStorageContainer", "test_list_system_containers"),
    ),
    "There is no secondary region.": (
        *_tests("test_retry.py::TestStorageRetry", "test_retry_secondary"),
        *_tests("test_retry_async.py::TestStorageRetryAsync", "test_retry_secondary"),
    ),
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
