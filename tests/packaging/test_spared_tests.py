"""Which of the emulators' tests a pull request leaves out: only those that none of its files reaches."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.spared_tests import OWN, ROOT, Sources

TEST = "tests/wire/cosmos/test_pages.py"
FRONT = """
if TYPE_CHECKING:
    import outbox.worker
_LAZY = {'Engine': 'outbox.engine', 'Worker': 'outbox.worker'}
"""
TREE = {
    "outbox/__init__.py": FRONT,
    "outbox/engine.py": "",
    "outbox/worker.py": "import outbox.runtime\n",
    "outbox/runtime.py": "",
    "outbox/__main__.py": "import outbox.worker\n",
    "outbox/emulator/__init__.py": "",
    "outbox/emulator/pages.py": "from outbox.emulator.lines import cut\nCONTAINER = 'outbox'\n",
    "outbox/emulator/lines.py": "def f():\n    import_module('outbox.emulator.late')\n",
    "outbox/emulator/late.py": "",
    "outbox/emulator/amqp.py": "",
    "tests/conftest.py": "import tests.drawn\n",
    "tests/drawn.py": "",
    "tests/wire/conftest.py": "from outbox import Engine\n",
    "tests/wire/asking.py": "PAGE = ROOT / 'docs' / 'compatibility.md'\n",
    TEST: "from outbox.emulator import pages\nfrom tests.wire.asking import ask\n",
}


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    for name, text in TREE.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return Sources(tmp_path)


@pytest.mark.parametrize(
    "changed",
    [
        TEST,
        "outbox/emulator/pages.py",
        "outbox/emulator/lines.py",  # at a distance
        "outbox/emulator/late.py",  # by a text
        "outbox/emulator/__init__.py",  # the packages above
        "outbox/engine.py",  # by the front of the package
        "tests/wire/conftest.py",
        "tests/wire/asking.py",
        "docs/compatibility.md",
        "tests/conftest.py",
        "requirements.lock",
        ".ci/run",
        ".github/workflows/ci.yml",
        "tests/wire/cosmos/answers.json",
    ],
)
def test_a_test_runs_where_the_change_reaches_it(sources: Sources, changed: str) -> None:
    assert sources.spared(["docs/other.md", changed]) == []


@pytest.mark.parametrize(
    "changed",
    [
        "outbox/worker.py",
        "outbox/runtime.py",
        "outbox/emulator/amqp.py",
        "outbox/emulator/gone.py",
        "tests/drawn.py",
        "docs/other.md",
        "CHANGELOG.md",
        "spark_jobs/feed.py",
    ],
)
def test_a_test_is_left_out_where_nothing_that_it_imports_changed(sources: Sources, changed: str) -> None:
    assert sources.spared([changed]) == [TEST]


def test_a_program_that_a_test_starts_counts_as_imported(sources: Sources, tmp_path: Path) -> None:
    (tmp_path / TEST).write_text("run([sys.executable, '-m', 'outbox', 'emulator'])\n")
    assert sources.spared(["outbox/runtime.py"]) == []


def test_the_tests_of_this_tree_run_for_their_emulators_and_not_for_spark() -> None:
    ours = Sources(ROOT)
    everything = ours.spared(["spark_jobs/feed.py"])
    for own in OWN:
        assert any(name.startswith(own) for name in everything), own
    for changed in ("outbox/engine/core.py", "outbox/message.py"):
        assert len(ours.spared([changed])) < len(everything) / 2
    cosmos = ours.spared(["outbox/emulator/cosmos/feeds.py"])
    assert "tests/wire/cosmos/test_cosmos_pages.py" not in cosmos and "tests/unit/amqp/test_amqp_types.py" in cosmos
