"""All checks of a folder, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from tools.infra_check import agreements, alerts, deployment
from tools.infra_check.agreements import Site
from tools.infra_check.code import Code, read_code
from tools.infra_check.names import check_names, check_parameters
from tools.infra_check.project import MAIN, Project
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
    alerts.check_code_alerts,
    deployment.check_storage_names,
    deployment.check_azure_yaml,
)
"""What holds in every project."""
OF_THE_SAMPLE = (deployment.check_settings, deployment.check_spark, deployment.check_compose, deployment.check_package)
"""Those of settings and emulators, which are about files of the sample."""


def check(root: Path, code: Code | None = None, *, is_sample: bool = True) -> list[Finding]:
    """Everything that is wrong below a folder; what does not parse is not looked at further."""
    project = Project.read(root)
    if MAIN not in project.files:
        return [Finding(MAIN, 1, "is not there")]
    broken = [finding for file in project.files.values() for finding in check_syntax(file)]
    if broken:
        return sorted(set(broken))
    found = [*check_names(project), *check_parameters(project), *check_resources(project)]
    site = Site.of(project, code or read_code())
    for agreement in (*AGREEMENTS, *(OF_THE_SAMPLE if is_sample else ())):
        found += agreement(site)
    return sorted(set(found))
