"""Which functions can be served here, by their bindings: one trigger, of few types, and an HTTP answer beside it.

Azure's host serves many more.  What cannot be served is found when the functions are indexed, because each invocation
would fail otherwise, and a queue would dead-letter message after message.
"""

from __future__ import annotations

from typing import Any

from tools.local_functions.workers import Function

TRIGGERS = ("serviceBusTrigger", "timerTrigger", "httpTrigger")


def unserved(function: Function) -> str:
    """Why a function cannot be served here, naming the binding and the cure; empty where it can."""
    trigger = function.trigger
    if trigger["type"] not in TRIGGERS:
        return f"its trigger {_shown(trigger)} is none of {', '.join(TRIGGERS)}; run it on Azure or by func start"
    if str(trigger.get("cardinality", "one")).lower() != "one":
        return (
            f'its trigger {_shown(trigger)} has cardinality="many", and messages come one by one here; leave '
            "cardinality out and take one message, or run it on Azure or by func start"
        )
    for binding in function.bindings:
        is_answer = binding["type"] == "http" and trigger["type"] == "httpTrigger"
        if binding is not trigger and not is_answer:
            return (
                f"its binding {_shown(binding)} is not served here; use the client of that service within the "
                "function, or run it on Azure or by func start"
            )
    return ""


def _shown(binding: dict[str, Any]) -> str:
    return f"{binding.get('name')!r} ({binding['type']}, {str(binding.get('direction', 'in')).lower()})"
