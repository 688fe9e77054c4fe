"""Microsoft's tests of azure-servicebus against the emulator of Service Bus: all, those for a live service too."""

from __future__ import annotations

import re

from tests.foreign.suites import Suite

_REFUSALS: dict[str, tuple[str, ...]] = {
    "Sessions are not listed by the time of their last update.": (
        "async_tests/test_list_sessions_async.py::TestServiceBusListSessionsAsync::test_list_queue_sessions_updated_after_async[pyamqp]",
        "async_tests/test_list_sessions_async.py::TestServiceBusListSessionsAsync::test_list_subscription_sessions_updated_after_async[pyamqp]",
        "test_list_sessions.py::TestServiceBusListSessions::test_list_queue_sessions_updated_after[pyamqp]",
        "test_list_sessions.py::TestServiceBusListSessions::test_list_subscription_sessions_updated_after[pyamqp]",
    ),
    "Without a key of its own the emulator takes every token; with one there is one key, which has every right.": (
        "async_tests/test_sb_client_async.py::TestServiceBusClientAsync::test_azure_named_key_credential_async[pyamqp]",
        "async_tests/test_sb_client_async.py::TestServiceBusClientAsync::test_sb_client_bad_credentials_async[pyamqp]",
        "async_tests/test_sb_client_async.py::TestServiceBusClientAsync::test_sb_client_readonly_credentials[pyamqp]",
        "async_tests/test_sb_client_async.py::TestServiceBusClientAsync::test_sb_client_writeonly_credentials_async[pyamqp]",
        "mgmt_tests/async/test_mgmt_queues_async.py::TestServiceBusAdministrationClientQueueAsync::test_async_mgmt_queue_list_with_negative_credential",
        "mgmt_tests/test_mgmt_queues.py::TestServiceBusAdministrationClientQueue::test_mgmt_queue_list_with_negative_credential",
        "test_sb_client.py::TestServiceBusClient::test_azure_named_key_credential[pyamqp]",
        "test_sb_client.py::TestServiceBusClient::test_sb_client_bad_credentials[pyamqp]",
        "test_sb_client.py::TestServiceBusClient::test_sb_client_readonly_credentials[pyamqp]",
        "test_sb_client.py::TestServiceBusClient::test_sb_client_writeonly_credentials[pyamqp]",
    ),
    "An entity that is not there is refused by its name when the link opens, not already when the token is put.": (
        "async_tests/test_sb_client_async.py::TestServiceBusClientAsync::test_sb_client_bad_entity_async[pyamqp]",
        "test_sb_client.py::TestServiceBusClient::test_sb_client_bad_entity[pyamqp]",
    ),
    "TLS and AMQP over WebSockets are not served.": (
        "async_tests/test_queues_async.py::TestServiceBusQueueAsync::test_async_queue_send_large_message_receive[pyamqp]",
        "async_tests/test_queues_async.py::TestServiceBusQueueAsync::test_async_queue_send_timeout[pyamqp]",
        "async_tests/test_queues_async.py::TestServiceBusQueueAsync::test_async_queue_send_twice[pyamqp]",
        "async_tests/test_queues_async.py::TestServiceBusQueueAsync::test_queue_message_amqp_over_websocket[pyamqp]",
        "async_tests/test_sb_client_async.py::TestServiceBusClientAsync::test_sb_client_with_ssl_context_async[amqp-pyamqp]",
        "async_tests/test_sb_client_async.py::TestServiceBusClientAsync::test_sb_client_with_ssl_context_async[ws-pyamqp]",
        "test_queues.py::TestServiceBusQueue::test_queue_message_amqp_over_websocket[pyamqp]",
        "test_queues.py::TestServiceBusQueue::test_queue_send_large_message_receive[pyamqp]",
        "test_queues.py::TestServiceBusQueue::test_queue_send_timeout[pyamqp]",
        "test_queues.py::TestServiceBusQueue::test_queue_send_twice[pyamqp]",
        "test_sb_client.py::TestServiceBusClient::test_custom_endpoint_connection_verify_exception[pyamqp]",
        "test_sb_client.py::TestServiceBusClient::test_sb_client_with_ssl_context[amqp-pyamqp]",
        "test_sb_client.py::TestServiceBusClient::test_sb_client_with_ssl_context[ws-pyamqp]",
    ),
    "Forwarding, deletion when idle and authorization rules of entities are refused by name, or left out.": (
        "mgmt_tests/async/test_mgmt_queues_async.py::TestServiceBusAdministrationClientQueueAsync::test_async_mgmt_queue_create_with_queue_description",
        "mgmt_tests/async/test_mgmt_queues_async.py::TestServiceBusAdministrationClientQueueAsync::test_async_mgmt_queue_update_success",
        "mgmt_tests/async/test_mgmt_queues_async.py::TestServiceBusAdministrationClientQueueAsync::test_mgmt_queue_async_update_dict_success",
        "mgmt_tests/async/test_mgmt_subscriptions_async.py::TestServiceBusAdministrationClientSubscriptionAsync::test_async_mgmt_sub_create_w_fwd_to",
        "mgmt_tests/async/test_mgmt_subscriptions_async.py::TestServiceBusAdministrationClientSubscriptionAsync::test_async_mgmt_sub_create_w_sub_desc",
        "mgmt_tests/async/test_mgmt_subscriptions_async.py::TestServiceBusAdministrationClientSubscriptionAsync::test_async_mgmt_subscription_update_success",
        "mgmt_tests/async/test_mgmt_subscriptions_async.py::TestServiceBusAdministrationClientSubscriptionAsync::test_mgmt_sub_async_update_dict_success",
        "mgmt_tests/async/test_mgmt_topics_async.py::TestServiceBusAdministrationClientTopicAsync::test_async_mgmt_topic_create_with_topic_description",
        "mgmt_tests/async/test_mgmt_topics_async.py::TestServiceBusAdministrationClientTopicAsync::test_async_mgmt_topic_update_success",
        "mgmt_tests/async/test_mgmt_topics_async.py::TestServiceBusAdministrationClientTopicAsync::test_mgmt_topic_async_update_dict_success",
        "mgmt_tests/test_mgmt_queues.py::TestServiceBusAdministrationClientQueue::test_mgmt_queue_create_with_queue_description",
        "mgmt_tests/test_mgmt_queues.py::TestServiceBusAdministrationClientQueue::test_mgmt_queue_update_dict_success",
        "mgmt_tests/test_mgmt_queues.py::TestServiceBusAdministrationClientQueue::test_mgmt_queue_update_success",
        "mgmt_tests/test_mgmt_subscriptions.py::TestServiceBusAdministrationClientSubscription::test_mgmt_sub_create_w_fwd_to",
        "mgmt_tests/test_mgmt_subscriptions.py::TestServiceBusAdministrationClientSubscription::test_mgmt_sub_create_w_sub_desc",
        "mgmt_tests/test_mgmt_subscriptions.py::TestServiceBusAdministrationClientSubscription::test_mgmt_sub_update_dict_success",
        "mgmt_tests/test_mgmt_subscriptions.py::TestServiceBusAdministrationClientSubscription::test_mgmt_subscription_update_success",
        "mgmt_tests/test_mgmt_topics.py::TestServiceBusAdministrationClientTopicTests::test_mgmt_topic_create_with_topic_description",
        "mgmt_tests/test_mgmt_topics.py::TestServiceBusAdministrationClientTopicTests::test_mgmt_topic_update_dict_success",
        "mgmt_tests/test_mgmt_topics.py::TestServiceBusAdministrationClientTopicTests::test_mgmt_topic_update_success",
    ),
    "MaxMessageSizeInKilobytes is kept without effect, whatever the version of the protocol and the tier.": (
        "mgmt_tests/async/test_mgmt_queues_async.py::TestServiceBusAdministrationClientQueueAsync::test_async_mgmt_queue_basic_v2017_04",
        "mgmt_tests/async/test_mgmt_topics_async.py::TestServiceBusAdministrationClientTopicAsync::test_async_mgmt_topic_basic_v2017_04",
        "mgmt_tests/test_mgmt_queues.py::TestServiceBusAdministrationClientQueue::test_mgmt_queue_basic_v2017_04",
        "mgmt_tests/test_mgmt_topics.py::TestServiceBusAdministrationClientTopicTests::test_mgmt_topic_basic_v2017_04",
    ),
    "Filters in SQL, actions, and times in a filter are refused by name; what filters a topic has is not counted.": (
        "mgmt_tests/async/test_mgmt_rules_async.py::TestServiceBusAdministrationClientRuleAsync::test_async_mgmt_rule_create",
        "mgmt_tests/async/test_mgmt_rules_async.py::TestServiceBusAdministrationClientRuleAsync::test_async_mgmt_rule_create_duplicate",
        "mgmt_tests/async/test_mgmt_rules_async.py::TestServiceBusAdministrationClientRuleAsync::test_async_mgmt_rule_list_and_delete",
        "mgmt_tests/async/test_mgmt_rules_async.py::TestServiceBusAdministrationClientRuleAsync::test_async_mgmt_rule_update_invalid",
        "mgmt_tests/async/test_mgmt_rules_async.py::TestServiceBusAdministrationClientRuleAsync::test_async_mgmt_rule_update_success",
        "mgmt_tests/async/test_mgmt_rules_async.py::TestServiceBusAdministrationClientRuleAsync::test_mgmt_rule_async_update_dict_error",
        "mgmt_tests/async/test_mgmt_rules_async.py::TestServiceBusAdministrationClientRuleAsync::test_mgmt_rule_async_update_dict_success",
        "mgmt_tests/test_mgmt_rules.py::TestServiceBusAdministrationClientRule::test_mgmt_rule_create",
        "mgmt_tests/test_mgmt_rules.py::TestServiceBusAdministrationClientRule::test_mgmt_rule_create_duplicate",
        "mgmt_tests/test_mgmt_rules.py::TestServiceBusAdministrationClientRule::test_mgmt_rule_list_and_delete",
        "mgmt_tests/test_mgmt_rules.py::TestServiceBusAdministrationClientRule::test_mgmt_rule_update_dict_error",
        "mgmt_tests/test_mgmt_rules.py::TestServiceBusAdministrationClientRule::test_mgmt_rule_update_dict_success",
        "mgmt_tests/test_mgmt_rules.py::TestServiceBusAdministrationClientRule::test_mgmt_rule_update_invalid",
        "mgmt_tests/test_mgmt_rules.py::TestServiceBusAdministrationClientRule::test_mgmt_rule_update_success",
        "mgmt_tests/test_topic_filter_counts_live.py::TestServiceBusAdministrationClientTopicFilterCounts::test_topic_filter_counts_live",
    ),
    "A message that is received and deleted has a delivery tag, which AMQP asks for; the service sends none.": (
        "test_message.py::TestServiceBusMessageBackcompat::test_message_backcompat_receive_and_delete_databody[pyamqp]",
    ),
    "The SDK cannot read a decimal as it writes it, and here it comes out as it was sent.": (
        "test_message.py::TestServiceBusMessageBackcompat::test_message_property[pyamqp]",
    ),
    "These want a checkout of Microsoft's repository, or packages that are not installed here.": (
        "test_tracing.py::test_receive_iter_no_http_suppression[PyamqpTransport]",
        "test_tracing.py::test_receive_iter_no_http_suppression_async[PyamqpTransportAsync]",
        "unittests/test_pyamqp_decode.py::test_pyamqp_copies_are_byte_identical[_decode.py]",
        "unittests/test_pyamqp_decode.py::test_pyamqp_copies_are_byte_identical[_encode.py]",
        "unittests/test_pyamqp_decode.py::test_pyamqp_copies_are_byte_identical[performatives.py]",
    ),
    "An empty session id is none; the service takes it for one.": (
        "async_tests/test_sessions_async.py::TestServiceBusAsyncSession::test_async_session_by_session_client_conn_str_receive_handler_peeklock[pyamqp]",
        "test_sessions.py::TestServiceBusSession::test_session_by_session_client_conn_str_receive_handler_peeklock[pyamqp]",
    ),
    "The client's own time limit ends first: it waits for the link to open no longer than for messages.": (
        "async_tests/test_sessions_async.py::TestServiceBusAsyncSession::test_async_next_available_session_timeout_value[pyamqp]",
        "test_sessions.py::TestServiceBusSession::test_next_available_session_timeout_value[pyamqp]",
    ),
    "Sequence numbers count over all queues of the engine; on the service each entity has its own.": (
        "async_tests/test_queues_async.py::TestServiceBusQueueAsync::test_queue_async_by_queue_client_peek_auto_increment[pyamqp]",
        "async_tests/test_queues_async.py::TestServiceBusQueueAsync::test_queue_async_by_queue_client_peek_auto_increment_multiple[pyamqp]",
        "test_queues.py::TestServiceBusQueue::test_queue_by_queue_client_peek_auto_increment[pyamqp]",
        "test_queues.py::TestServiceBusQueue::test_queue_by_queue_client_peek_auto_increment_multiple[pyamqp]",
        "test_sessions.py::TestServiceBusSession::test_session_by_session_client_conn_str_receive_handler_peeklock_abandon[pyamqp]",
    ),
    "A sender's priority, delivery annotations and footer are not kept; a message without a body has an empty one.": (
        "async_tests/test_queues_async.py::TestServiceBusQueueAsync::test_async_send_message_no_body[pyamqp]",
        "async_tests/test_queues_async.py::TestServiceBusQueueAsync::test_queue_async_send_amqp_annotated_message[pyamqp]",
        "test_queues.py::TestServiceBusQueue::test_message_inner_amqp_properties[pyamqp]",
        "test_queues.py::TestServiceBusQueue::test_queue_send_amqp_annotated_message[pyamqp]",
        "test_queues.py::TestServiceBusQueue::test_send_message_no_body[pyamqp]",
    ),
    "These replace parts of the SDK that this version calls otherwise.": (
        "async_tests/test_queues_async.py::TestServiceBusQueueAsync::test_async_queue_operation_negative[pyamqp]",
        "test_queues.py::TestServiceBusQueue::test_queue_operation_negative[pyamqp]",
    ),
}


def _environment(endpoint: re.Match[str]) -> dict[str, str]:
    return {"BUS_HOST": endpoint[1], "BUS_KEY_NAME": endpoint[2], "BUS_KEY": endpoint[3]}


SUITE = Suite(
    package="azure-servicebus",
    folder="azure_servicebus",
    ports=("--amqp-port", "0"),
    endpoint=re.compile(r"Endpoint=sb://([^;]+);SharedAccessKeyName=([^;]+);SharedAccessKey=([^;]+);"),
    environment=_environment,
    pytest=("-p", "plain_bus", "--import-mode=append", "-o", "asyncio_mode=auto"),
    file_s_max=5_400.0,
    test_s_max=900,
    refusals=_REFUSALS,
    races={
        "By chance: these wait for messages for as long as a session's lock lasts, and the two end together.": (
            "async_tests/test_sessions_async.py::TestServiceBusAsyncSession::test_async_session_by_queue_client_conn_str_receive_handler_receiveanddelete",
            "test_sessions.py::TestServiceBusSession::test_session_by_queue_client_conn_str_receive_handler_receiveanddelete",
        )
    },
)
