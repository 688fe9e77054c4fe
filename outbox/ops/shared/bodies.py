"""Bodies of messages as an operator sees them: JSON, else text, else base64."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import msgspec

from outbox.errors import Refused


def compact_json(id: str, text: bytes) -> bytes:
    """JSON without white space, so that formatting does not make another message.

    Raises:
        Refused: it is not JSON.
    """
    try:
        text.decode()
        return msgspec.json.format(text, indent=-1)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(f"the body of message {id} is not JSON: {error}") from error


def shown(id: str, body: bytes) -> dict[str, Any]:
    """A body as one of the fields `body`, `body_text` and `body_base64`."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return {"body_base64": b64encode(body).decode()}
    try:
        return {"body": msgspec.Raw(compact_json(id, body))}
    except Refused:
        return {"body_text": text}
