"""A pytest plugin that stands in for Microsoft's `devtools_testutils`, as far as tests of azure-storage-blob use it.

Theirs plays recordings, or asks accounts on Azure.  Here all accounts are the emulator's one, named by BLOB_ACCOUNT,
BLOB_KEY and BLOB_URL, and every test is live.  Loaded with `-p stand_ins`; one module has all of their names, because
it is entered under each of them.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import io
import logging
import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

import pytest
from azure.core.credentials import AccessToken, AzureNamedKeyCredential

NEVER_S = 4_102_444_800
"""The year 2100, in seconds since 1970."""
STORAGE_ACCOUNT_FAKE_KEY = os.environ["BLOB_KEY"]


@pytest.fixture(scope="session")
def test_proxy() -> None:
    """What would play recordings: nothing."""


def is_live() -> bool:
    """There are no recordings here."""
    return True


def _nothing(*args: Any, **options: Any) -> None:
    """What would take secrets out of recordings."""


add_body_regex_sanitizer = add_general_regex_sanitizer = add_header_regex_sanitizer = _nothing
add_oauth_response_sanitizer = add_uri_regex_sanitizer = set_custom_default_matcher = _nothing


# Accounts


class Secret(str):
    """A text that says itself as `secret` too."""

    @property
    def secret(self) -> str:
        """The text."""
        return str(self)


class EnvironmentVariableOptions:
    """Which variables are secret; here none is."""

    def __init__(self, **options: Any) -> None:
        """Take what theirs takes."""


class EnvironmentVariableLoader:
    """Gives a test the names and keys of accounts as keyword arguments."""

    def __init__(self, service: str, *, options: object = None, **names: str) -> None:
        """Take the names; what they are here does not depend on them."""
        values = {"name": os.environ["BLOB_ACCOUNT"], "key": os.environ["BLOB_KEY"]}
        self._given = {name: Secret(values[name.rpartition("_")[2]]) for name in names}

    def __call__(self, test: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a test, which may take none of them."""
        takes = inspect.signature(test).parameters.values()
        given = self._given if any(one.kind is one.VAR_KEYWORD for one in takes) else {}
        return _wrapped(test, lambda kwargs: {**given, **kwargs})


def recorded_by_proxy(test: Callable[..., Any]) -> Callable[..., Any]:
    """Run a test without a recording; what it returns would be kept with that."""
    return _wrapped(test, lambda kwargs: kwargs)


recorded_by_proxy_async = recorded_by_proxy


class GenericTestProxyParametrize1:
    """Passes parameters on; a test here takes them as it is."""

    def __call__(self, test: Callable[..., Any]) -> Callable[..., Any]:
        """Leave a test alone."""
        return test


GenericTestProxyParametrize2 = GenericTestProxyParametrize1


def _wrapped(test: Callable[..., Any], arguments: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(test):

        @functools.wraps(test)
        async def run(*args: Any, **kwargs: Any) -> None:
            await test(*args, **arguments(kwargs))
    else:

        @functools.wraps(test)
        def run(*args: Any, **kwargs: Any) -> None:
            test(*args, **arguments(kwargs))

    return run


class FakeTokenCredential:
    """Signs in with a token that nobody issued."""

    def __init__(self) -> None:
        self.token = AccessToken("a.b.c", NEVER_S)
        self.get_token_count = 0

    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        """Give the token."""
        self.get_token_count += 1
        return self.token


class AsyncFakeCredential:
    """The same for asynchronous clients."""

    async def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        """Give the token."""
        return AccessToken("a.b.c", NEVER_S)


# What tests are made of


class StorageRecordedTestCase:
    """A class of tests."""

    is_live = True
    logger = logging.getLogger("azure.storage")
    _test = ""

    def setup_method(self, method: Callable[..., Any]) -> None:
        """Note which test runs, as names of resources are its own."""
        self._test = f"{type(self).__qualname__}.{method.__name__}"
        self.enable_logging()

    def is_playback(self) -> bool:
        """There are no recordings."""
        return False

    def account_url(self, account: str, kind: str) -> str:
        """Where the account is."""
        return os.environ["BLOB_URL"]

    def connection_string(self, account: str, key: str) -> str:
        """Where the account is, and its key."""
        url = self.account_url(account, "blob")
        return f"DefaultEndpointsProtocol=http;AccountName={account};AccountKey={key};BlobEndpoint={url}"

    def get_credential(self, *args: Any, **options: Any) -> AzureNamedKeyCredential:
        """What tests sign in with that take no key: the key all the same, because a token needs HTTPS and Entra ID."""
        return AzureNamedKeyCredential(os.environ["BLOB_ACCOUNT"], os.environ["BLOB_KEY"])

    def generate_sas(self, make: Callable[..., str], *args: Any, **options: Any) -> str:
        """A signature made by the SDK."""
        return make(*args, **options)

    def generate_fake_sas_token(self) -> str:
        """A signature that is none."""
        return "sv=2024-11-04&sig=bm90aGluZw%3D%3D"

    def get_settings_value(self, name: str) -> str | None:
        """A variable of the environment."""
        return os.environ.get(name)

    def get_resource_name(self, prefix: str) -> str:
        """A name that is the test's own, the same within it."""
        return prefix + hashlib.sha256(self._test.encode()).hexdigest()[:8]

    def get_random_bytes(self, size: int) -> bytes:
        """Bytes, the same for each test of a name."""
        return random.Random(self._test).randbytes(size)

    def get_random_text_data(self, size: int) -> str:
        """Text of letters that take a byte each."""
        return "".join(random.Random(self._test).choices("abcdef ghij", k=size))

    def get_datetime_variable(self, variables: dict[str, Any], name: str, value: datetime) -> datetime:
        """The time that would be kept with a recording."""
        return value

    def sleep(self, seconds: float) -> None:
        """Wait, as on Azure."""
        time.sleep(seconds)

    def enable_logging(self) -> None:
        """Log what clients do."""
        self.logger.setLevel(logging.DEBUG)

    def configure_logging(self) -> None:
        """The same."""
        self.enable_logging()

    def assertNamedItemInContainer(self, container: Iterable[Any], name: str) -> None:  # noqa: N802  # theirs is named so
        """Fail without an item of this name."""
        found = [one if isinstance(one, str) else one.name for one in container]
        assert name in found

    def assert_upload_progress(
        self, size: int, chunk: int, progress: list[tuple[int, int | None]], unknown_size: bool = False
    ) -> None:
        """Fail if a progress is not of whole chunks up to the size."""
        assert len(progress) == math.ceil(size / chunk)
        for done, total in progress:
            assert done % chunk in (0, size % chunk) and total == (None if unknown_size else size)

    def assert_download_progress(
        self, size: int, chunk: int, first: int, progress: list[tuple[int, int | None]]
    ) -> None:
        """Fail if a progress is not of a first request and the chunks behind it."""
        assert len(progress) == 1 + max(0, math.ceil((size - first) / chunk))


AsyncStorageRecordedTestCase = StorageRecordedTestCase


class LogCaptured:
    """What clients log within a block."""

    def __init__(self, test: StorageRecordedTestCase) -> None:
        """Take the test that logs."""
        self._logger = test.logger

    def __enter__(self) -> io.StringIO:
        """Begin; the text that is logged."""
        self._text = io.StringIO()
        self._handler = logging.StreamHandler(self._text)
        self._logger.addHandler(self._handler)
        return self._text

    def __exit__(self, *error: object) -> None:
        """End."""
        self._logger.removeHandler(self._handler)
        self._text.close()


class RetryCounter:
    """Counts the tries of a client."""

    def __init__(self) -> None:
        self.count = 0

    def simple_count(self, context: object) -> None:
        """Count one."""
        self.count += 1


class ResponseCallback:
    """Gives answers of one status another one, before the client looks at it."""

    def __init__(self, status: int | None = None, new_status: int | None = None) -> None:
        """Take both."""
        self.status = status
        self.new_status = new_status
        self.count = 0
        self._is_first = True

    def override_first_status(self, response: Any) -> None:
        """Change the first answer of that status."""
        if self._is_first and response.http_response.status_code == self.status:
            response.http_response.status_code = self.new_status
            self._is_first = False

    def override_status(self, response: Any) -> None:
        """Change each answer of that status."""
        if response.http_response.status_code == self.status:
            response.http_response.status_code = self.new_status
            self.count += 1


for _name in ("", ".aio", ".fake_credentials", ".fake_credentials_async", ".storage", ".storage.aio"):
    sys.modules["devtools_testutils" + _name] = sys.modules[__name__]
