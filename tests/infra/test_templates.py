"""The templates are right as far as can be told here, and the checks' own reading of values and models is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.infra_check.checks import check
from tools.infra_check.models import shape
from tools.infra_check.project import Project
from tools.infra_check.resource_types import GROUPS, MODELS, shapes_of, versions_of
from tools.infra_check.resources import Place, check_value
from tools.infra_check.syntax import parse
from tools.infra_check.values import Choice, Unknown, Values

ROOT = Path(__file__).resolve().parents[2]


def test_nothing_is_wrong_with_the_templates() -> None:
    assert [str(finding) for finding in check(ROOT)] == []


def values_of(text: str, folder: Path) -> Values:
    (folder / "infra").mkdir()
    (folder / "infra" / "one.bicep").write_text(text)
    (folder / "infra" / "data.json").write_text('{"queues": [{"name": "a"}, {"name": "b"}]}')
    return Values(parse(folder / "infra" / "one.bicep", folder), folder, {})


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("loadJsonContent('data.json').queues[1].name", "b"),
        ("map(loadJsonContent('data.json').queues, queue => queue.name)", ["a", "b"]),
        ("[for (item, index) in ['x', 'y']: '${item}-${index}']", ["x-0", "y-1"]),
        ("!empty([]) ? 1 : 2", 2),
        ("known ? 'a' : 'b'", Choice(("a", "b"))),
        ("'${name}-x'", Unknown("string")),
        ("union({ a: 1 }, { b: 2 })", {"a": 1, "b": 2}),
        ("{ a: { b: 'it\\'s' } }.a.b", "it's"),
    ],
)
def test_what_a_compiler_knows_is_worked_out(expression: str, value: object, tmp_path: Path) -> None:
    values = values_of(f"param known bool\nparam name string\nvar it = {expression}\n", tmp_path)
    assert values.symbol("it") == value
    assert values.findings == []


def test_a_name_that_needs_itself_comes_to_nothing(tmp_path: Path) -> None:
    assert values_of("var a = b\nvar b = a\n", tmp_path).symbol("a") == Unknown()


def test_both_generations_of_models_report_what_only_the_service_writes() -> None:
    newer = shape("azure.mgmt.servicebus.models", "SBQueue").members["properties"].inner
    older = shape("azure.mgmt.synapse.models", "Workspace").members["properties"].inner
    assert newer is not None and older is not None
    assert newer().members["messageCount"].is_read_only and not newer().members["lockDuration"].is_read_only
    assert (
        older().members["workspaceUID"].is_read_only and not older().members["azureADOnlyAuthentication"].is_read_only
    )


def test_choices_of_the_older_models_are_read_from_their_docstrings() -> None:
    inner = shape("azure.mgmt.authorization.v2022_04_01.models", "RoleAssignmentCreateParameters").members["properties"]
    assert inner.inner is not None
    assert "ServicePrincipal" in inner.inner().members["principalType"].choices
    place = Place("file", 1, "it")
    assert list(check_value("Person", inner.inner().members["principalType"], place)) != []
    assert list(check_value("User", inner.inner().members["principalType"], place)) == []


@pytest.mark.parametrize("kind", [GROUPS, *MODELS])
def test_every_model_is_installed_and_names_its_version(kind: str) -> None:
    shapes = shapes_of(kind)
    assert shapes is not None and shapes[0].members and versions_of(kind)


def test_what_is_deployed_needs_no_registry_and_no_key() -> None:
    for file in Project.read(ROOT).files.values():
        source = (ROOT / file.path).read_text()
        assert "br/public" not in source and "listKeys" not in source and "@secure" not in source
