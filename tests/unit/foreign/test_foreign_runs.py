"""What `make foreign` makes of an archive, of a log of outcomes, and of a test that is not as the table says."""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
from pathlib import Path

import pytest

from tests.foreign import archive, outcomes, pages, run
from tests.foreign.suites import Suite

HTML = '<a href="../f/azure_cosmos-1.0.tar.gz#sha256={digest}" data-x="1">azure_cosmos-1.0.tar.gz</a>'


def packed(names: dict[str, bytes]) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as tar:
        for name, content in names.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return data.getvalue()


def serve(monkeypatch: pytest.MonkeyPatch, data: bytes, page: str, kind: str = "text/html") -> None:
    def fetched(url: str, size_max_bytes: int) -> tuple[bytes, str, str]:
        if url.endswith(".tar.gz"):
            return data, "", url
        return page.replace("{digest}", hashlib.sha256(data).hexdigest()).encode(), kind, url

    monkeypatch.setattr(archive, "_fetched", fetched)


GOOD = {"azure_cosmos-1.0/tests/test_x.py": b"pass"}
LISTING = json.dumps(
    {
        "files": [
            {"url": "https://i/f/azure_cosmos-1.0.tar.gz", "hashes": {"sha256": "{digest}"}},
            {"url": "", "hashes": {}},
        ]
    }
)


@pytest.mark.parametrize(("page", "kind"), [(HTML, "text/html"), (LISTING, "application/vnd.pypi.simple.v1+json")])
def test_an_archive_is_found_fetched_and_unpacked_from_either_form_of_index(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, page: str, kind: str
) -> None:
    serve(monkeypatch, packed(GOOD), page, kind)
    folder = archive.unpacked("azure-cosmos", "1.0", tmp_path, "https://i/simple")
    assert (folder / "tests/test_x.py").read_text() == "pass"


@pytest.mark.parametrize(
    "names",
    [
        {"azure_cosmos-1.0/../../out": b""},
        {"/etc/out": b""},
        {"other/x": b""},
        {"azure_cosmos-1.0/large": bytes(archive.FILE_MAX_BYTES + 1)},
    ],
)
def test_an_archive_that_leaves_its_folder_or_is_too_large_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, names: dict[str, bytes]
) -> None:
    serve(monkeypatch, packed(names), HTML)
    with pytest.raises(archive.ArchiveRefused):
        archive.unpacked("azure-cosmos", "1.0", tmp_path / "in", "https://i/simple")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_an_archive_with_another_digest_is_refused_and_not_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    serve(monkeypatch, packed(GOOD), HTML.replace("{digest}", "0" * 64))
    with pytest.raises(archive.ArchiveRefused, match="SHA-256"):
        archive.unpacked("azure-cosmos", "1.0", tmp_path, "https://i/simple")
    assert list(tmp_path.iterdir()) == []


def test_a_version_without_sources_and_an_index_without_tls_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(archive.ArchiveRefused, match="not https"):
        archive.link_to("azure-cosmos", "1.0", "http://i/simple")
    serve(monkeypatch, b"", HTML)
    with pytest.raises(archive.ArchiveRefused, match="no source distribution"):
        archive.link_to("azure-cosmos", "2.0", "https://i/simple")


LOG = [
    {"collected": ["f::passes", "f::fails", "f::skips", "f::cleans", "f::hangs", "f::waits"]},
    {"started": "f::passes"},
    {"passed": "f::passes"},
    {"failed": "f::fails", "reason": "no"},
    {"skipped": "f::skips", "reason": "not here"},
    {"passed": "f::cleans"},
    {"failed": "f::cleans", "reason": "left over"},
    {"started": "f::hangs"},
]


def suite(refused: dict[str, str]) -> Suite:
    return Suite(
        package="azure-cosmos",
        folder="azure_cosmos",
        ports=(),
        endpoint=re.compile("x"),
        environment=lambda endpoint: {},
        refusals={reason: tuple(t for t in refused if refused[t] == reason) for reason in set(refused.values())},
    )


def outcome() -> outcomes.FileOutcome:
    return outcomes.read("f", map(json.dumps, LOG), 1.0)


def test_a_log_says_what_became_of_each_test() -> None:
    found = {one.test.removeprefix("f::"): one.kind for one in outcome().outcomes}
    assert found == {
        "passes": "passed",
        "fails": "failed",
        "skips": "skipped",
        "cleans": "failed",
        "hangs": "no answer",
        "waits": "no answer",
    }


def test_what_is_not_as_the_table_says_is_a_surprise() -> None:
    known = {"f::fails": "why", "f::cleans": "why", "f::hangs": "why", "f::passes": "why", "f::gone": "why", "g::x": ""}
    lines = outcomes.surprises([outcome()], suite(known))
    assert [line.partition(": ")[0] for line in lines] == ["f::passes", "f::waits", "f::gone"]
    known = {f"f::{name}": "why" for name in ("fails", "cleans", "hangs", "waits")}
    assert outcomes.surprises([outcome()], suite(known)) == []


def test_a_test_passes_if_it_does_in_either_attempt() -> None:
    second = outcomes.read("f", [json.dumps({"collected": ["f::passes", "f::fails"]}), '{"passed": "f::fails"}'], 1.0)
    assert outcomes.better(outcome(), second).count("passed") == 2


def test_the_page_has_the_numbers_and_each_reason() -> None:
    refused = dict.fromkeys(("f::fails", "f::cleans", "f::hangs", "f::waits"), "It is so.")
    text = pages.page([outcome()], suite(refused), "1.0")
    assert "of 5 tests in 1 files **1 passed** and 4 did not" in text and "1 more skip themselves" in text
    assert "**It is so.**" in text and "- `f::hangs`" in text and "| `f::skips` | not here |" in text


def test_files_and_archives_are_asked_for_of_one_suite() -> None:
    assert run.parse(["--suite", "azure-cosmos", "--only", "test_crud.py"]).only == ["test_crud.py"]
    for arguments in (["--only", "test_crud.py"], ["--archive", "x.tar.gz"]):
        with pytest.raises(SystemExit):
            run.parse(arguments)


@pytest.mark.parametrize("package", run.SUITES)
def test_the_stand_ins_of_a_suite_are_where_it_says(package: str) -> None:
    assert (run.INSIDE / run.SUITES[package].folder).is_dir()
