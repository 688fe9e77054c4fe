"""The reference in docs/reference, made from signatures and docstrings: `python -m tools.reference` writes it.

Nothing of these is imported: griffe reads the sources, so that what needs an SDK is described where none is installed.
The page of the Spark jobs is made from their parsers (`tools.reference_jobs`), which PySpark is needed for.  What is
public is what `PAGES` names: a module's `__all__`, or the names given here.  `tests/docs/test_reference.py` holds the
committed pages equal to what this makes, and the docstrings to what a reader needs.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import griffe

from tools import reference_jobs

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "reference"
WIDTH = 100
MADE = "<!-- made by `python -m tools.reference` from docstrings; change them, not this -->"
_RAISES = re.compile(r"^Raises:\n((?:[ ]{4}.*\n?|\n)+)", re.MULTILINE)
_RAISED = re.compile(r"^[ ]{4}(?=\S)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Page:
    """A page: the modules it describes, and which of their names where a module has no `__all__`."""

    title: str
    about: str
    modules: dict[str, tuple[str, ...]]

    @property
    def heading(self) -> str:
        """What stands above the page: not the name of the project alone, which is the title of its first page."""
        return "outbox: the public names" if self.title == "outbox" else self.title


_EXPORTED: tuple[str, ...] = ()
PAGES = {
    "outbox": Page("outbox", "What applications are written with.", {"outbox": _EXPORTED}),
    "middleware": Page("outbox.middleware", "Code round every attempt of a handler.", {"outbox.middleware": ("Call",)}),
    "guards": Page("outbox.guards", "Sparing what is down.", {"outbox.guards": ("Breaker", "Rate")}),
    "telemetry": Page(
        "outbox.otel, outbox.metrics",
        "Traces and metrics.",
        {"outbox.otel": ("Telemetry", "current_traceparent"), "outbox.metrics": ("prometheus",)},
    ),
    "testing": Page("outbox.testing", "A harness for tests.", {"outbox.testing": ("Harness", "SentRecord")}),
    "streams": Page(
        "outbox.streams",
        "Ordered logs, processors in any number of replicas, and their ends.",
        {"outbox.streams": _EXPORTED},
    ),
    "web": Page(
        "outbox.asgi, outbox.describe",
        "HTTP entries in a web application of one's own; OpenAPI and AsyncAPI.",
        {"outbox.asgi": ("AsgiApp",), "outbox.describe": ("openapi", "asyncapi")},
    ),
    "verify": Page(
        "outbox.verify",
        "Exploration of handlers, planned faults, contract suites for adapters.",
        {
            "outbox.verify": _EXPORTED,
            "outbox.verify.pytest_plugin": ("Explored", "explored"),
            "outbox.verify.contracts": _EXPORTED,
        },
    ),
    "azure": Page(
        "outbox.azure",
        "The backend on Azure, and Azure Functions.",
        {
            "outbox.azure": _EXPORTED,
            "outbox.azure.functions": (
                *("blueprint", "process", "answer", "sweep", "register", "registered", "processor_of", "close"),
                "FunctionsSettings",
            ),
        },
    ),
    "emulator": Page(
        "outbox.emulator",
        "Service Bus, Cosmos DB and Blob Storage on the embedded engine, for development and tests.",
        {
            "outbox.emulator.servicebus": ("ServiceBusServer",),
            "outbox.emulator.cosmos.server": ("CosmosEmulator",),
            "outbox.emulator.blobs.server": ("BlobEmulator",),
        },
    ),
    "ports": Page("outbox.ports", "What an adapter for another store or bus implements.", {"outbox.ports": _EXPORTED}),
    "errors": Page("outbox.errors", "What may be raised, and what a caller may conclude.", {"outbox.errors": ()}),
}
MADE_BY_THE_RUNTIME = frozenset(("outbox.context.Context",))
"""Classes whose fields and constructor are nobody's business."""

SHOWN = {
    "outbox.engine.engine.Engine": (
        "open",
        "in_memory",
        "ports",
        "stopped",
        "compact_in_background",
        "compact",
        "close",
    )
}
"""Of a class that is mostly used from within, what applications use."""

INNER = {
    "outbox.app.App": ("codec", "codecs", "state_codec", "states", "encode", "properties_of", "way", "session_of"),
    "outbox.client.Client": ("with_body", "dead_letter", "decode"),
    "outbox.http_entry.HttpEntry": ("answered",),
    "outbox.azure.usage.Usage": ("note",),
    "outbox.streams.ingest.Ingest": ("over", "rows", "turn", "take", "log"),
    "outbox.streams.log.OrderedLog": ("on", "row", "rows", "reader_of"),
    "outbox.streams.log.LogReader": ("rows",),
    "outbox.streams.processor.Processor": ("over", "replica"),
    "outbox.streams.sinks.TransactionalSink": ("step", "close"),
    "outbox.streams.sinks.StoreSink": ("step", "close"),
    "outbox.verify.promises.view.View": ("judged",),
}
"""Members without an underscore that other modules of this package call, and nobody else should."""


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    made = pages()
    for old in FOLDER.glob("*.md"):
        if old.name not in made:
            old.unlink()
    for name, text in made.items():
        (FOLDER / name).write_text(text)
    print(f"reference: {len(made)} pages in {FOLDER.relative_to(ROOT)}")
    return 0


def pages() -> dict[str, str]:
    """Every page's text, by file name."""
    package = load()
    made = {f"{name}.md": page_of(page, package) for name, page in PAGES.items()}
    made[f"{reference_jobs.NAME}.md"] = reference_jobs.page(MADE)
    index = [f"- [{page.title}]({name}.md): {page.about}" for name, page in PAGES.items()]
    index.append(f"- [{reference_jobs.TITLE}]({reference_jobs.NAME}.md): {reference_jobs.ABOUT}")
    made["README.md"] = "\n".join(["# Reference", "", MADE, "", *index, ""])
    return made


def load() -> griffe.Module:
    """The package as its sources say."""
    package = griffe.load("outbox", search_paths=[ROOT], try_relative_path=False)
    assert isinstance(package, griffe.Module)
    return package


def public(package: griffe.Module, page: Page) -> Iterator[tuple[str, griffe.Object]]:
    """What a page describes: names with the objects that they stand for."""
    for _, name, item in found_in(package, page):
        yield name, item


def found_in(package: griffe.Module, page: Page) -> Iterator[tuple[str, str, griffe.Object]]:
    """What a page describes: the module that a name is imported from, the name and the object."""
    for path, names in page.modules.items():
        module = package if path == package.path else package[path.removeprefix(f"{package.path}.")]
        exported = names or [str(name) for name in module.exports or ()]
        for name in exported or [name for name, found in module.classes.items() if not found.is_alias]:
            yield path, name, resolved(module[name])


def members(found: griffe.Class) -> Iterator[tuple[str, griffe.Object]]:
    """The public methods and properties of a class, those that it inherits from another of ours included."""
    for name in SHOWN.get(found.path, tuple(found.all_members)):
        target = resolved(found.all_members[name])
        owner = target.parent.path if target.parent is not None else ""
        is_inner = name.startswith("_") or name in INNER.get(owner, ())
        if not is_inner and (target.is_function or "property" in target.labels):
            yield name, target


def resolved(found: griffe.Object | griffe.Alias) -> griffe.Object:
    """What a name stands for, wherever it comes from."""
    return found.final_target if isinstance(found, griffe.Alias) else found


# Pages


def page_of(page: Page, package: griffe.Module) -> str:
    """The text of one page."""
    found = list(found_in(package, page))
    lines = [f"# {page.heading}", "", MADE, "", page.about, "", "| | |", "|---|---|"]
    for module, name, item in found:
        label = name if page.title.partition(",")[0] == module else f"{module}.{name}"
        lines.append(f"| [{label}](#{name.lower()}) | {first_line(item)} |")
    for module, name, item in found:
        lines += ["", f"## {name}", "", f"`from {module} import {name}`", "", *described(name, item)]
        if isinstance(item, griffe.Class):
            for own, member in members(item):
                lines += ["", f"### {name}.{own}", "", *described(own, member)]
    return "\n".join(lines) + "\n"


def described(name: str, item: griffe.Object) -> list[str]:
    """Signature and docstring."""
    text = item.docstring.value if item.docstring else ""
    lines = ["```text", signature(name, item), "```", "", *in_markdown(text).splitlines()]
    if isinstance(item, griffe.Class) and item.path not in MADE_BY_THE_RUNTIME:
        lines += list(fields(item))
    return lines


def fields(item: griffe.Class) -> Iterator[str]:
    """The fields of a class that say something of their own."""
    made_with = {parameter.name for parameter in item.parameters}
    told = {
        field.name: " ".join(field.docstring.value.split())
        for field in item.attributes.values()
        if field.docstring and "property" not in field.labels and not field.name.startswith("_")
        if field.name in made_with or "dataclass" not in item.labels
    }
    if told:
        yield ""
    yield from (f"- `{name}`: {text}" for name, text in told.items())


def first_line(item: griffe.Object) -> str:
    """What an object is, in the first sentence of its docstring."""
    text = item.docstring.value if item.docstring else ""
    return " ".join(text.partition("\n\n")[0].split()).replace("|", "\\|")


def in_markdown(text: str) -> str:
    """A docstring with its `Raises:` as a list."""

    def listed(found: re.Match[str]) -> str:
        rows = []
        for entry in filter(None, (" ".join(part.split()) for part in _RAISED.split(found[1]))):
            names, _, why = entry.partition(": ")
            rows.append(f"- {', '.join(f'`{name.strip()}`' for name in names.split(','))}: {why}")
        return "Raises:\n\n" + "\n".join(rows) + "\n"

    return _RAISES.sub(listed, text + "\n").rstrip()


# Signatures


def signature(name: str, item: griffe.Object) -> str:
    """How an object is used, as Python would declare it."""
    if isinstance(item, griffe.Function):
        start = "async def" if "async" in item.labels else "def"
        return call(f"{start} {name}", parameters(item.parameters), returns=item.returns)
    if isinstance(item, griffe.Class):
        bases = [str(base).rpartition(".")[2] for base in item.bases]
        is_made = "Protocol" not in bases and item.path not in MADE_BY_THE_RUNTIME and parameters(item.parameters)
        head = f"class {name}({', '.join(bases)})" if bases and not is_made else f"class {name}"
        return call(f"class {name}", parameters(item.parameters)) if is_made else head
    if isinstance(item, griffe.Attribute) and "property" in item.labels:
        return f"{name}: {item.annotation}"
    return assigned(name, item.value) if isinstance(item, griffe.Attribute) else name


def assigned(name: str, value: object) -> str:
    """An assignment, of a long tuple with a line for each element."""
    line = f"{name} = {value}"
    if len(line) <= WIDTH or not isinstance(value, griffe.ExprTuple):
        return line
    return call(f"{name} = ", [str(element) for element in value.elements])


def parameters(given: griffe.Parameters) -> list[str]:
    """Parameters as they are declared, without `self`."""
    found, is_keyword_only = [], False
    for parameter in given:
        if parameter.name in ("self", "cls"):
            continue
        kind = parameter.kind
        if kind is griffe.ParameterKind.keyword_only and not is_keyword_only:
            found.append("*")
        is_keyword_only |= kind in (griffe.ParameterKind.keyword_only, griffe.ParameterKind.var_positional)
        stars = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}.get(kind, "")
        text = f"{stars}{parameter.name}"
        text += f": {parameter.annotation}" if parameter.annotation else ""
        has_default = parameter.default is not None and not stars
        found.append(text + (f" = {parameter.default}" if has_default else ""))
    return found


def call(head: str, given: list[str], *, returns: object = None) -> str:
    """A declaration, on one line or with a line for each parameter."""
    end = f") -> {returns}" if returns is not None else ")"
    line = f"{head}({', '.join(given)}{end}"
    return line if len(line) <= WIDTH else "\n".join([f"{head}(", *(f"    {text}," for text in given), end])


if __name__ == "__main__":
    sys.exit(main())
