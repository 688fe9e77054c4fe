"""The answers to a request, and rejections with the status and the code that the SDK knows.

The codes and their statuses are those that Azure documents (Blob service error codes, common REST API error codes).
"""

from __future__ import annotations

from outbox.emulator.dialect import Answer as Answer
from outbox.emulator.dialect import Refusal
from outbox.emulator.xml import leaf

OK, CREATED, ACCEPTED, NO_CONTENT, PARTIAL, NOT_MODIFIED = 200, 201, 202, 204, 206, 304
XML = "application/xml"
HEAD = '<?xml version="1.0" encoding="utf-8"?>'

CODES: dict[str, tuple[int, str]] = {
    # requests
    "InvalidUri": (400, "the path or the query cannot be read"),
    "InvalidHeaderValue": (400, "a header's value is not in the right format"),
    "InvalidQueryParameterValue": (400, "a query parameter's value is not in the right format"),
    "OutOfRangeQueryParameterValue": (400, "a query parameter's value is out of range"),
    "OutOfRangeInput": (400, "a name or a value is out of range"),
    "InvalidInput": (400, "the request is not understood"),
    "InvalidXmlDocument": (400, "the body is not the XML that the operation takes"),
    "InvalidResourceName": (400, "the name has characters that it may not have"),
    "MissingRequiredHeader": (400, "a header is missing"),
    "MissingRequiredQueryParameter": (400, "a query parameter is missing"),
    "UnsupportedHeader": (400, "a header is not supported by this emulator"),
    "UnsupportedQueryParameter": (400, "a query parameter is not supported by this emulator"),
    "UnsatisfiableCondition": (400, "a read has nothing to do with If-None-Match: *"),
    "ConditionHeadersNotSupported": (400, "the operation does not take this condition"),
    "MultipleConditionHeadersNotSupported": (400, "a write takes one condition"),
    "Md5Mismatch": (400, "the body has another MD5 than the header says"),
    "InvalidMd5": (400, "the MD5 is not 16 bytes in base64"),
    "InvalidMetadata": (400, "the name or the value of a metadata entry has characters that it may not have"),
    "MetadataTooLarge": (400, "the metadata is over 8 KiB"),
    "TagsTooLarge": (400, "a blob takes ten tags"),
    "DuplicateTagNames": (400, "a tag is there twice"),
    "EmptyTagName": (400, "a tag has no name"),
    "InvalidTag": (400, "the name or the value of a tag has characters that it may not have, or too many"),
    "InvalidBlockList": (400, "the specified block list is invalid: it names a block that is not there"),
    "InvalidBlockId": (400, "a block id is not base64 of at most 64 bytes"),
    "InvalidBlobOrBlock": (400, "the ids of a blob's blocks have one length"),
    "ExceedsMaxBatchRequestCount": (400, "a batch has 256 parts at most"),
    "BlockListTooLong": (400, "a block list has 50,000 entries at most"),
    # who asks
    "NoAuthenticationInformation": (401, "the request is not signed; sign it with the account's key"),
    "AuthenticationFailed": (403, "the signature does not fit; use the key with which the emulator was started"),
    "AuthorizationFailure": (403, "the request is not allowed"),
    "AccountIsDisabled": (403, "refused on demand"),
    # what is there
    "ResourceNotFound": (404, "there is nothing of this name"),
    "ContainerNotFound": (404, "there is no container of this name"),
    "BlobNotFound": (404, "there is no blob of this name"),
    "UnsupportedHttpVerb": (405, "the resource does not know this method"),
    "ContainerAlreadyExists": (409, "there is a container of this name already"),
    "BlobAlreadyExists": (409, "there is a blob of this name already"),
    "BlockCountExceedsLimit": (409, "a blob has 100,000 uncommitted blocks at most"),
    # leases
    "LeaseAlreadyPresent": (409, "there is a lease already"),
    "LeaseIdMismatchWithLeaseOperation": (409, "the lease has another id"),
    "LeaseNotPresentWithLeaseOperation": (409, "there is no lease"),
    "LeaseIsBrokenAndCannotBeRenewed": (409, "the lease was broken; acquire another"),
    "LeaseIsBreakingAndCannotBeAcquired": (409, "a lease is breaking; wait until it is broken"),
    "LeaseIsBreakingAndCannotBeChanged": (409, "the lease is breaking; wait until it is broken"),
    "LeaseIdMissing": (412, "there is a lease, and the request names none"),
    "LeaseIdMismatchWithBlobOperation": (412, "the blob's lease has another id"),
    "LeaseIdMismatchWithContainerOperation": (412, "the container's lease has another id"),
    "LeaseNotPresentWithBlobOperation": (412, "the blob has no such lease any more"),
    "LeaseNotPresentWithContainerOperation": (412, "the container has no such lease any more"),
    # conditions, sizes, the service itself
    "ConditionNotMet": (412, "a condition does not hold"),
    "RequestBodyTooLarge": (413, "the body is larger than the emulator takes"),
    "InvalidRange": (416, "the range begins behind the end"),
    "InternalError": (500, "the emulator failed on this request and logged why"),
    "OperationTimedOut": (500, "the operation took too long"),
    "ServerBusy": (503, "the account is busy; try again later"),
}
BY_STATUS = {
    400: "InvalidInput", 401: "NoAuthenticationInformation", 403: "AuthorizationFailure", 404: "ResourceNotFound",
    405: "UnsupportedHttpVerb", 409: "BlobAlreadyExists", 412: "ConditionNotMet", 413: "RequestBodyTooLarge",
    416: "InvalidRange", 429: "ServerBusy", 500: "InternalError", 503: "ServerBusy",
}  # fmt: skip
"""The code of a status where nothing says another."""


class Rejection(Refusal):
    """A request that is not granted; nothing was written."""

    def __init__(
        self, code: str, text: str = "", *, status: int = 0, headers: dict[str, str] | None = None, header: str = ""
    ) -> None:
        """Take a code; its status and text are those of `CODES`, unless others are given.

        `headers` are those of the answer; `header` is the one of the request that is wrong.
        """
        known_status, known_text = CODES.get(code, (400, "failed on demand"))
        self.code = code
        self.status = status or known_status
        self.text = text or known_text
        self.headers = headers or {}
        self.header = header
        super().__init__(f"{code}: {self.text}")

    def answer(self) -> Answer:
        """The rejection as the wire has it."""
        headers = {"x-ms-error-code": self.code, **self.headers}
        if self.status == NOT_MODIFIED:
            return Answer(self.status, headers)
        wrong = leaf("HeaderName", self.header) if self.header else ""
        body = f"{HEAD}<Error>{leaf('Code', self.code)}{leaf('Message', self.text)}{wrong}</Error>"
        return Answer(self.status, headers | {"Content-Type": XML}, body.encode())


def xml_answer(inner: str, headers: dict[str, str] | None = None) -> Answer:
    """An answer with a document."""
    return Answer(OK, {"Content-Type": XML, **(headers or {})}, (HEAD + inner).encode())


def bad_header(name: str, cure: str) -> Rejection:
    """A header that cannot be."""
    return Rejection("InvalidHeaderValue", f"{name}: {cure}", header=name)


def bad_parameter(name: str, cure: str) -> Rejection:
    """A query parameter that cannot be."""
    return Rejection("InvalidQueryParameterValue", f"{name}: {cure}")
