"""The wheel in an empty environment: what comes with it, the command, an application, what is missing on purpose."""

from __future__ import annotations

import json
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.commands import started
from tests.packaging.conftest import ROOT, Distributions
from tests.packaging.environments import COMMAND_S, clean, empty, install, run
from tests.packaging.locked import LOCK, chosen, constraints

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
SHOP = """
from dataclasses import dataclass
from outbox import App, Context

app = App("shop")
app.queue("parcels")

@dataclass
class Order:
    article: str
    pieces: int

@dataclass
class Stock:
    pieces: int = 100

@app.handler("orders", key="article")
def take(order: Order, stock: Stock, ctx: Context) -> None:
    stock.pieces -= order.pieces
    ctx.send("parcels", order)
"""
WITHOUT_SDKS = "ImportError: outbox.azure needs azure-core, azure-cosmos, azure-identity, azure-servicebus; run: "
CURE = "pip install 'outbox-azure[azure]'"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]  # a minute where pip installs, a quarter of that with uv


@pytest.fixture(scope="module")
def plain(distributions: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as `pip install outbox-azure` gives it, in the locked versions."""
    folder = tmp_path_factory.mktemp("plain")
    (folder / "constraints.txt").write_text(constraints())
    install(empty(folder / "venv"), str(distributions.wheel), "-c", str(folder / "constraints.txt"))
    return folder / "venv"


@pytest.fixture(scope="module")
def deployed(distributions: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a deployment has: the lock with its hashes checked, the library beside it."""
    environment = empty(tmp_path_factory.mktemp("deployed") / "venv")
    install(environment, "--require-hashes", "-r", str(LOCK))
    install(environment, "--no-deps", str(distributions.wheel))
    return environment


def versions(environment: Path, folder: Path) -> dict[str, str]:
    code = "import json, importlib.metadata as m; print(json.dumps({d.name: d.version for d in m.distributions()}))"
    found = run(environment, folder, "python", "-c", code)
    return {name.lower().replace("_", "-"): version for name, version in json.loads(found.stdout).items()}


def test_the_library_brings_three_packages_and_what_those_need_and_no_sdk(plain: Path, tmp_path: Path) -> None:
    found = versions(plain, tmp_path)
    assert {"outbox-azure", "msgspec", "tenacity", "aiohttp"} <= found.keys()
    assert len(found) <= 15 and not [name for name in found if name.startswith(("azure", "pyspark", "py4j", "pandas"))]
    locked = {name: str(version) for name, version in chosen(PYTHON).items()}
    assert {name: version for name, version in found.items() if name != "outbox-azure"}.items() <= locked.items()


def test_the_command_prints_its_version(plain: Path, tmp_path: Path) -> None:
    found = run(plain, tmp_path, "outbox", "--version")
    assert (found.returncode, found.stdout) == (0, f"outbox {versions(plain, tmp_path)['outbox-azure']}\n")


def test_an_application_runs_and_handles_a_message_that_comes_twice_once(plain: Path, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    command = [str(plain / "bin/outbox"), "run", "shop:app", "--data", "d", "--amqp-port", "0"]
    host = started(command, tmp_path, env=clean(tmp_path), stderr=None)
    try:
        assert host.stdout is not None and host.stdout.readline().startswith("Endpoint=sb://127.0.0.1:")
        for _ in range(2):
            order = '{"article": "nails", "pieces": 3}'
            sent = run(plain, tmp_path, "outbox", "send", "orders", order, "--id", "o1", "--data", "d")
            assert (sent.returncode, sent.stderr) == (0, "")
        host.send_signal(signal.SIGTERM)
        assert host.wait(COMMAND_S) == 0
    finally:
        host.kill()
        host.communicate()
    state = run(plain, tmp_path, "outbox", "state", "Stock", "nails", "--data", "d", "--json")
    assert json.loads(state.stdout) == {"pieces": 97}


def test_the_wheel_carries_what_bench_measures(plain: Path, tmp_path: Path) -> None:
    found = run(plain, tmp_path, "outbox", "bench", "--messages", "50", "--repeats", "1")
    assert found.returncode == 0, found.stderr
    assert "sqlite" in found.stdout and list(tmp_path.iterdir()) == []
    azure = ("--azure", "--cosmos", "AccountEndpoint=x;AccountKey=y", "--servicebus", "Endpoint=x;SharedAccessKey=y")
    without = run(plain, tmp_path, "outbox", "bench", *azure)
    assert without.returncode == 1 and CURE in without.stderr and "Traceback" not in without.stderr


def test_the_wheel_carries_what_an_export_of_a_log_writes_with(plain: Path, tmp_path: Path) -> None:
    found = run(plain, tmp_path, "outbox", "stream", "export", "readings", "--output", "out", "--data", "d")
    cure = 'outbox: pyarrow is not installed; pip install "outbox-azure[spark]"\n'
    assert (found.returncode, found.stdout, found.stderr) == (1, "", cure)


def test_a_new_project_is_written_from_the_templates_in_the_wheel(plain: Path, tmp_path: Path) -> None:
    made = run(plain, tmp_path, "outbox", "new", "shop")
    assert made.returncode == 0, made.stderr
    names = {path.name for path in (tmp_path / "shop").iterdir()}
    assert {"pyproject.toml", "host.json", "requirements.txt", ".funcignore", "tests"} <= names


@pytest.mark.parametrize(
    "line", ["from outbox import azure", "from outbox.azure import connect", "from outbox.azure import functions"]
)
def test_without_the_sdks_azure_says_what_to_install(plain: Path, tmp_path: Path, line: str) -> None:
    found = run(plain, tmp_path, "python", "-c", line)
    assert found.returncode == 1 and found.stderr.endswith(f"{WITHOUT_SDKS}{CURE}\n")


def test_the_command_line_says_so_as_well(plain: Path, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("from outbox.azure import connect\n" + SHOP)
    found = run(plain, tmp_path, "outbox", "run", "shop:app", "--data", "d")
    assert found.returncode == 1 and CURE in found.stderr and "shop.py:1" in found.stderr


def test_the_lock_is_all_that_the_functions_app_needs(deployed: Path, tmp_path: Path) -> None:
    for name in ("function_app", "spark_jobs"):
        (tmp_path / name).symlink_to(ROOT / name)
    settings = '{"OUTBOX_SERVICEBUS": "Endpoint=sb://localhost", "OUTBOX_COSMOS": "AccountEndpoint=https://localhost/"}'
    code = f"import os; os.environ.update({settings}); from function_app import app; print(len(app.get_functions()))"
    found = run(deployed, tmp_path, "python", "-c", code)
    assert found.returncode == 0, found.stderr
    assert int(found.stdout) >= 5


def test_importing_the_library_imports_no_sdk_and_no_spark_though_both_are_here(tmp_path: Path) -> None:
    everything = Path(sys.prefix)  # what runs the tests
    assert find_spec("azure.cosmos") and find_spec("pyspark")
    modules = "outbox, outbox.testing, outbox.verify, outbox.azure, outbox.ops.cli.parser, outbox.ops.cli.hosts"
    code = f"import sys, {modules}; print([m for m in sys.modules if m.partition('.')[0] in ('azure', 'pyspark')])"
    found = run(everything, tmp_path, "python", "-c", code)
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip() in ("[]", "['azure']")  # the namespace alone, which looking for the SDKs makes
