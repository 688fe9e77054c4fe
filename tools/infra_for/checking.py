"""What `make check-infra` looks at, as far as a project of one's own has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from tools.infra_check import agreements, deployment
from tools.infra_check.agreements import Site
from tools.infra_check.code import Code
from tools.infra_check.names import check_names, check_parameters
from tools.infra_check.project import Project
from tools.infra_check.resources import check_resources
from tools.infra_check.syntax import Finding, check_syntax

AGREEMENTS: tuple[Callable[[Site], Iterator[Finding]], ...] = (
    agreements.check_entities,
    agreements.check_queues,
    agreements.check_triggers,
    agreements.check_containers,
    agreements.check_rights,
    agreements.check_keys,
    deployment.check_host,
    deployment.check_alerts,
    deployment.check_storage_names,
    deployment.check_azure_yaml,
)
"""Without those of settings and emulators, which are about files of the sample."""


def findings_of(folder: Path, code: Code) -> list[Finding]:
    """Everything that is wrong in a project; what does not parse is not looked at further."""
    project = Project.read(folder)
    broken = [finding for file in project.files.values() for finding in check_syntax(file)]
    if broken:
        return sorted(set(broken))
    found = [*check_names(project), *check_parameters(project), *check_resources(project)]
    site = Site.of(project, code)
    for agreement in AGREEMENTS:
        found += agreement(site)
    return sorted(set(found))
