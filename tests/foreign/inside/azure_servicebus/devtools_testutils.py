"""Stand-ins for the utilities of Microsoft's tests: there are no recordings, and the emulator's key signs in."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

from azure.servicebus._base_handler import ServiceBusSharedKeyCredential
from azure.servicebus.aio._base_handler_async import ServiceBusSharedKeyCredential as AsyncSharedKeyCredential

HOST, KEY_NAME, KEY = os.environ["BUS_HOST"], os.environ["BUS_KEY_NAME"], os.environ["BUS_KEY"]
CONNECTION = f"Endpoint=sb://{HOST}/;SharedAccessKeyName={KEY_NAME};SharedAccessKey={KEY};UseDevelopmentEmulator=true"

__path__: list[str] = []  # a package to whoever imports a part of it, which is this again
for part in ("aio", "sanitizers"):
    sys.modules[f"{__name__}.{part}"] = sys.modules[__name__]


class AzureMgmtRecordedTestCase:
    """The base of their tests."""

    is_live = True

    @staticmethod
    def await_prepared_test(test: Callable[..., Any]) -> Any:
        """Leave an asynchronous test as it is: pytest awaits it."""
        return test


AzureRecordedTestCase = AzureMgmtRecordedTestCase


def get_credential(*, is_async: bool = False, **options: Any) -> Any:
    """What tests sign in with."""
    return (AsyncSharedKeyCredential if is_async else ServiceBusSharedKeyCredential)(KEY_NAME, KEY)


Given = dict[str, Any]


def filled(test: Callable[..., Any], give: Callable[[Given], Given], undo: Callable[[], object]) -> Any:
    """A test that is given what it takes of arguments which pytest does not see; then something is undone.

    `give` gets what decorators above have given.
    """
    takes = {} if hasattr(test, "__signature__") else inspect.signature(test).parameters
    takes_all = not takes or any(one.kind is one.VAR_KEYWORD for one in takes.values())

    def given(named: Given) -> Given:
        return {name: value for name, value in (named | give(named)).items() if takes_all or name in takes}

    if inspect.iscoroutinefunction(test):

        @functools.wraps(test)
        async def run(*arguments: Any, **named: Any) -> Any:
            try:
                return await test(*arguments, **given(named))
            finally:
                undo()
    else:

        @functools.wraps(test)
        def run(*arguments: Any, **named: Any) -> Any:
            try:
                return test(*arguments, **given(named))
            finally:
                undo()

    return run


def hidden(test: Callable[..., Any], *names: str) -> Any:
    """A test whose arguments of these names pytest does not ask fixtures for."""
    signature = inspect.signature(test)
    kept = [one for one in signature.parameters.values() if one.name not in names and one.kind is not one.VAR_KEYWORD]
    test.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]  # what inspect looks for
    return test


def PowerShellPreparer(folder: str, **names: str) -> Any:  # noqa: N802  # as their tests call it
    """Give a test the emulator's address in place of a recorded one."""
    real = {
        "servicebus_connection_str": CONNECTION,
        "servicebus_fully_qualified_namespace": HOST,
        "servicebus_sas_policy": KEY_NAME,
        "servicebus_sas_key": KEY,
    }
    given = {name: real.get(name, recorded) for name, recorded in names.items()}
    return lambda test: hidden(filled(test, lambda named: given, lambda: None), *given)


def as_it_is(*arguments: Any, **options: Any) -> Any:
    """Leave a test as it is, or a decorator without a test; what it would record is not recorded."""
    return arguments[0] if len(arguments) == 1 and callable(arguments[0]) else lambda test: test


recorded_by_proxy = recorded_by_proxy_async = as_it_is
CachedResourceGroupPreparer = RandomNameResourceGroupPreparer = as_it_is


def nothing(*arguments: Any, **options: Any) -> None:
    """Do nothing: there is no proxy to be told."""


set_custom_default_matcher = add_remove_header_sanitizer = add_general_regex_sanitizer = nothing
add_oauth_response_sanitizer = nothing
