"""The errors of Blob Storage as a place sees them: a refusal with its cure, or another attempt."""

from __future__ import annotations

import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

from azure.core.exceptions import ClientAuthenticationError, HttpResponseError

from outbox.errors import Refused
from outbox.runtime.failures.redacting import redacted
from spark_jobs.common.identity import refusal

SKEW_MAX_S = 300.0
"""The difference between clocks that is worth a word; the service refuses requests that are 15 minutes off."""
ERROR_CHARACTERS = 300
ROLE = "Storage Blob Data Contributor"


def check_transient(error: Exception, what: str, url: str, container: str) -> None:
    """Return where another attempt may do.

    Raises:
        Refused: it would meet the same; the text names the cure.
    """
    if not isinstance(error, HttpResponseError):
        return
    status = error.status_code
    if isinstance(error, ClientAuthenticationError) and error.response is None:  # nobody was asked for a blob yet
        raise Refused(refusal(url, error)) from None
    if status is None or status in (408, 429) or status >= 500:
        return
    code = code_of(error)
    if code == "BlobNotFound":
        return  # it was there a moment ago
    told = f"{what}: {status} {code or 'without a code'}"
    if code == "ContainerNotFound":
        raise Refused(
            f"{what}: there is no container {container!r} in {url}; make it (az storage container create --name "
            f"{container} --account-name ...), or mend the address"
        ) from None
    if status in (401, 403):
        raise Refused(f"{told}: {_no_rights(error, code)}") from None
    text = redacted(str(error).partition("\n")[0])[:ERROR_CHARACTERS]
    raise Refused(f"{told}: {text}; another attempt would meet the same") from None


def _no_rights(error: HttpResponseError, code: str) -> str:
    there_s = server_time_s(getattr(error.response, "headers", None) or {})
    behind_s = 0.0 if there_s is None else time.time() - there_s
    if abs(behind_s) > SKEW_MAX_S:
        which = "behind" if behind_s > 0 else "ahead of"
        return f"the account's clock is {abs(behind_s):,.0f} s {which} this machine's, set this machine's clock right"
    if code in ("AuthenticationFailed", "NoAuthenticationInformation", "InvalidAuthenticationInfo"):
        return "the key does not fit or the token is over; look at OUTBOX_LAKE, or run the same again with a new token"
    return (
        f"whoever signs in may not do that; give it the role {ROLE} on the container (a run that only reads: Storage "
        "Blob Data Reader), and look at the account's firewall"
    )


def code_of(error: HttpResponseError) -> str:
    """The service's code of an error, empty where it has none."""
    code = getattr(error, "error_code", None) or ""
    return str(getattr(code, "value", code))


def server_time_s(headers: Mapping[str, str]) -> float | None:
    """The time of an answer, in seconds since 1970."""
    try:
        return parsedate_to_datetime(headers.get("Date") or headers.get("date") or "").timestamp()
    except (TypeError, ValueError):
        return None
