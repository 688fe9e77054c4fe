"""The templates in a project of one's own: with the queues of its code, checked, and nobody's changes overwritten."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from outbox.emulator.bus.entities_file import read_entities
from outbox.engine.entities import QueueSettings, TopicSettings
from outbox.ops.cli.new import new_project
from tools.infra_for.writing import azd_name

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
TOPICS = """

app.topic("rumours")


@app.handler("news", key="article", subscription="shelf")
def shelve(arrival: Arrival, stock: Stock) -> None:
    pass


@app.handler("news", key="article", subscription="press")
def tell(arrival: Arrival, stock: Stock) -> None:
    pass
"""
QUEUE = """

app.queue("returns", ordering="per_key")


@app.handler("returns", key="article")
def back(arrival: Arrival, stock: Stock) -> None:
    pass
"""


def infra_for(project: Path) -> tuple[int, str]:
    """Exit code and output of the tool, on a project's handlers."""
    command = [sys.executable, "-m", "tools.infra_for", str(project), f"{project.name}.handlers:app"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    return done.returncode, done.stdout + done.stderr


def reads(project: Path) -> list[str]:
    found: list[str] = json.loads((project / "infra/app.json").read_text())["reads"]
    return found


@pytest.fixture
def project(tmp_path: Path) -> Path:
    new_project("depot", tmp_path)
    return tmp_path / "depot"


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, str]:
    """A new project, and what the tool said of it; not to be changed."""
    folder = tmp_path_factory.mktemp("new")
    new_project("depot", folder)
    return folder / "depot", *infra_for(folder / "depot")


@pytest.fixture
def made(new: tuple[Path, int, str], tmp_path: Path) -> Path:
    """A copy of the new project with its templates."""
    return Path(shutil.copytree(new[0], tmp_path / "depot"))


def test_a_new_project_gets_templates_that_agree_with_its_code(new: tuple[Path, int, str]) -> None:
    project, code, said = new
    assert code == 0 and "no findings" in said and "pip wheel" in said, said
    assert reads(project) == ["arrivals", "orders", "shipments"]
    queues = {entity.name for entity in read_entities(project / "local/servicebus.json")}
    assert queues == {"arrivals", "orders", "refused", "shipments"}
    assert json.loads((project / "infra/app.json").read_text())["database"] == "depot"
    service = "'azd-service-name': 'depot'"
    assert service in (project / "infra/main.bicep").read_text() and "  depot:" in (project / "azure.yaml").read_text()
    sample = {"bank", "ledger", "transfers"}
    for path in (project / "infra").rglob("*.*"):
        assert not sample & set(re.findall(r"\w+", path.read_text())), path


@pytest.mark.parametrize(
    ("folder", "name"), [("my-app", "my-app"), ("my_app", "my-app"), ("Shop_", "shop"), ("a", "app-a"), ("_", "app")]
)
def test_azd_takes_the_name_of_any_folder(folder: str, name: str) -> None:
    assert azd_name(folder) == name and re.fullmatch("[a-z0-9][-a-z0-9]*[a-z0-9]", name)  # azd's own pattern


def test_the_app_reads_every_setting_that_its_template_makes(new: tuple[Path, int, str]) -> None:
    project = new[0]
    made = set(re.findall(r"\b(OUTBOX_\w+):", (project / "infra/modules/functions.bicep").read_text()))
    triggers = {"OUTBOX_SERVICEBUS__credential", "OUTBOX_SERVICEBUS__clientId"}  # read by the host
    assert made - triggers <= set(re.findall(r"\bOUTBOX_\w+", (project / "depot/settings.py").read_text()))
    assert triggers < made


def test_a_queue_that_the_code_has_got_since_is_added_and_ones_own_changes_stay(made: Path) -> None:
    project = made
    alerts = project / "infra/modules/alerts.bicep"
    alerts.write_text(alerts.read_text() + "// mine\n")
    app = project / "infra/app.json"
    app.write_text(app.read_text().replace('"sparkReceives": []', '"sparkReceives": ["refused"]'))
    handlers = project / "depot/handlers.py"
    handlers.write_text(handlers.read_text() + QUEUE)
    code, said = infra_for(project)
    assert code == 0 and "2 files written" in said and "infra/modules/alerts.bicep is yours" in said, said
    entities = read_entities(project / "local/servicebus.json")
    ordered = {entity.name for entity in entities if isinstance(entity, QueueSettings) and entity.ordering == "per_key"}
    assert "returns" in reads(project) and ordered == {"returns"} and alerts.read_text().endswith("// mine\n")
    assert json.loads(app.read_text())["sparkReceives"] == ["refused"]


def test_what_does_not_agree_any_more_is_found(made: Path) -> None:
    queues = made / "infra/modules/servicebus.bicep"
    queues.write_text(queues.read_text().replace("maxDeliveryCount = 100", "maxDeliveryCount = 10"))
    code, said = infra_for(made)
    assert code == 1 and "orders: maxDeliveryCount is 10, and should be 100" in said


def test_topics_and_subscriptions_are_made_with_rights_on_just_these(project: Path) -> None:
    handlers = project / "depot/handlers.py"
    handlers.write_text(handlers.read_text() + TOPICS)
    code, said = infra_for(project)
    assert code == 0 and "no findings" in said, said
    entities = read_entities(project / "local/servicebus.json")
    topics = {entity.name: entity.subscriptions for entity in entities if isinstance(entity, TopicSettings)}
    assert topics == {"news": ("press", "shelf"), "rumours": ()}
    assert reads(project) == ["arrivals", "orders", "shipments"]


def test_a_folder_that_is_no_functions_app_is_refused(tmp_path: Path) -> None:
    code, said = infra_for(tmp_path)
    assert code == 1 and "has no host.json" in said and list(tmp_path.iterdir()) == []
