"""Descriptions of an application's interfaces: OpenAPI of its HTTP entries, AsyncAPI of its queues.

Types are described as they are encoded, so that what the documents say is what is sent.

Source: https://spec.openapis.org/oas/v3.1.0, https://www.asyncapi.com/docs/reference/specification/v3.0.0
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from outbox.app import App
from outbox.http import JSON, PROBLEM, Response
from outbox.registration.routes import READS

OPENAPI, ASYNCAPI = "3.1.0", "3.0.0"
PROBLEM_SCHEMA = {
    "type": "object",
    "required": ["title", "status", "code", "detail"],
    "properties": {
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "code": {"type": "string", "description": "for programs"},
        "detail": {"type": "string", "description": "what to do"},
    },
}
"""A problem of RFC 9457, as every refusal is answered."""

REFUSALS = {
    "400": "The request is not one of this entry.",
    "409": "Refused for good under this key, or the same request is still in progress.",
    "422": "The Idempotency-Key belongs to another request, or is too old.",
    "503": "Nothing took effect, or the outcome is unknown: the same request again, under the same key, is safe.",
}


def openapi(app: App, *, version: str = "1") -> dict[str, Any]:
    """The OpenAPI document of an application's HTTP entries; `version` is the document's own."""
    replies = {id(route): _reply_type(route.handler.binding.returns) for route in app.routes}
    kinds = [kind for route in app.routes for kind in route.handler.binding.messages]
    schemas, refs = _schemas([*kinds, *(kind for kind in replies.values() if kind is not None)])
    schemas["Problem"] = PROBLEM_SCHEMA
    paths: dict[str, dict[str, Any]] = {}
    names: set[str] = set()
    for route in app.routes:
        [message] = route.handler.binding.messages
        operation = _operation(route, refs[message], schemas, refs.get(replies[id(route)]))
        operation["operationId"] = _free(operation["operationId"], names, route.name)
        paths.setdefault(route.template.text, {})[route.method.lower()] = operation
    info = {"title": app.name, "version": version}
    return {"openapi": OPENAPI, "info": info, "paths": paths, "components": {"schemas": schemas}}


def _operation(route: Any, message: dict[str, Any], schemas: dict[str, Any], reply: dict[str, Any] | None) -> Any:
    handler, is_read = route.handler, route.method in READS
    fields = schemas.get(message.get("$ref", "").rpartition("/")[2], message).get("properties", {})
    required = set(schemas.get(message.get("$ref", "").rpartition("/")[2], message).get("required", ()))
    names = set(route.template.names)
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": fields.get(name, {"type": "string"})}
        for name in route.template.names
    ]
    if is_read:
        parameters += [
            {"name": name, "in": "query", "required": name in required, "schema": schema}
            for name, schema in fields.items()
            if name not in names
        ]
    else:
        what = "names this request: the same again under it has no further effect and gets the same response"
        key = {"name": "Idempotency-Key", "in": "header", "required": True, "description": what}
        parameters.append({**key, "schema": {"type": "string", "maxLength": 255}})
    success = {"description": "What the handler returned."}
    responses: dict[str, Any] = {"200": {**success, "content": {JSON: {"schema": reply}}} if reply else success}
    if reply is None and not is_read:
        responses["204"] = {"description": "It took effect; there is nothing to say."}
    if is_read:
        responses["404"] = _refusal("There is nothing under this name.")
    responses |= {code: _refusal(text) for code, text in REFUSALS.items() if not is_read or code in ("400", "503")}
    found: dict[str, Any] = {"operationId": handler.name, "parameters": parameters, "responses": responses}
    if handler.binding.text:
        found["description"] = handler.binding.text
    if not is_read:
        found["requestBody"] = {"required": True, "content": {JSON: {"schema": message}}}
    return found


def _free(name: str, taken: set[str] | dict[str, Any], other: str) -> str:
    """A name, or the other one where it is taken: handlers of several queues may share theirs."""
    found = other if name in taken else name
    if isinstance(taken, set):
        taken.add(found)
    return found


def _refusal(text: str) -> dict[str, Any]:
    return {"description": text, "content": {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}}}


def asyncapi(app: App, *, version: str = "1") -> dict[str, Any]:
    """The AsyncAPI document of an application's queues and topics, and of what its handlers take from them."""
    kinds = [kind for handler in app.handlers for kind in handler.binding.messages]
    schemas, refs = _schemas(kinds)
    names = {kind: app.codec(kind).name for kind in kinds}
    messages = {names[kind]: {"name": names[kind], "payload": refs[kind]} for kind in kinds}
    channels: dict[str, Any] = {name: {"address": name, "messages": {}} for name in (*app.queues, *app.topics)}
    operations: dict[str, Any] = {}
    for handler in app.handlers:
        channel = channels.setdefault(handler.source, {"address": handler.source, "messages": {}})
        own = {names[kind]: {"$ref": f"#/components/messages/{names[kind]}"} for kind in handler.binding.messages}
        channel["messages"] |= own
        place = handler.source.replace("~", "~0").replace("/", "~1")
        operation: dict[str, Any] = {
            "action": "receive",
            "channel": {"$ref": f"#/channels/{place}"},
            "messages": [{"$ref": f"#/channels/{place}/messages/{name}"} for name in own],
        }
        if handler.binding.text:
            operation["description"] = handler.binding.text
        operations[_free(handler.name, operations, f"{handler.source} {handler.name}")] = operation
    info = {"title": app.name, "version": version}
    parts = {"channels": channels, "operations": operations, "components": {"messages": messages, "schemas": schemas}}
    return {"asyncapi": ASYNCAPI, "info": info, **parts}


def _schemas(kinds: Iterable[type[Any]]) -> tuple[dict[str, Any], dict[Any, dict[str, Any]]]:
    """The schemas of some types by name, and what refers to each type."""
    place = "#/components/schemas/{name}"
    wanted = list(dict.fromkeys(kinds))
    models = [kind for kind in wanted if hasattr(kind, "model_json_schema")]
    others = [kind for kind in wanted if kind not in models]
    found, schemas = msgspec.json.schema_components(others, ref_template=place)
    refs: dict[Any, dict[str, Any]] = dict(zip(others, found, strict=True))
    for model in models:
        schema = model.model_json_schema(ref_template=place.replace("{name}", "{model}"))
        schemas |= schema.pop("$defs", {})
        schemas[model.__name__] = schema
        refs[model] = {"$ref": place.format(name=model.__name__)}
    return schemas, refs


def _reply_type(found: Any) -> Any:
    """The annotated result of a handler; None for nothing, a `Response` or a type without a schema."""
    if found in (None, type(None), Any, Response):
        return None
    try:
        if not hasattr(found, "model_json_schema"):
            msgspec.json.schema(found)
    except (TypeError, msgspec.MsgspecError):
        return None
    return found
