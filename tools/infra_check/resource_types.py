"""Which model describes which resource type, and where the API version that it describes is written.

A template must name exactly that version (or the stable one of the same date, where the model is of its preview).
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tools.infra_check.models import Member, Shape, shape

_VERSION = re.compile(r'"(20\d\d-\d\d-\d\d(?:-preview)?)"')


@dataclass(frozen=True, slots=True)
class Model:
    """What a resource is written as and read as, and the module that names its API version."""

    module: str
    written: str
    read: str
    versions: str


def _model(package: str, written: str, read: str = "", *, versions: str = "_configuration", models: str = "") -> Model:
    base = f"azure.mgmt.{package}"
    return Model(f"{base}.{models or 'models'}", written, read or written, f"{base}.{versions}")


_ROLES, _COMPONENTS, _IDENTITIES = "v2022_04_01", "v2020_02_02", "v2024_11_30"
_SQL = ("SqlContainerCreateUpdateParameters", "SqlContainerGetResults")
MODELS: Mapping[str, Model] = {
    "Microsoft.Authorization/roleAssignments": _model(
        "authorization",
        "RoleAssignmentCreateParameters",
        "RoleAssignment",
        models=f"{_ROLES}.models",
        versions=f"{_ROLES}.operations._role_assignments_operations",
    ),
    "Microsoft.DocumentDB/databaseAccounts": _model(
        "cosmosdb", "DatabaseAccountCreateUpdateParameters", "DatabaseAccountGetResults"
    ),
    "Microsoft.DocumentDB/databaseAccounts/sqlDatabases": _model(
        "cosmosdb", "SqlDatabaseCreateUpdateParameters", "SqlDatabaseGetResults"
    ),
    "Microsoft.DocumentDB/databaseAccounts/sqlDatabases/containers": _model("cosmosdb", *_SQL),
    "Microsoft.DocumentDB/databaseAccounts/sqlRoleAssignments": _model(
        "cosmosdb", "SqlRoleAssignmentCreateUpdateParameters", "SqlRoleAssignmentGetResults"
    ),
    "Microsoft.Insights/actionGroups": _model(
        "monitor", "ActionGroupResource", versions="operations._action_groups_operations"
    ),
    "Microsoft.Insights/components": _model(
        "applicationinsights",
        "ApplicationInsightsComponent",
        models=f"{_COMPONENTS}.models",
        versions=f"{_COMPONENTS}.operations._components_operations",
    ),
    "Microsoft.Insights/metricAlerts": _model(
        "monitor", "MetricAlertResource", versions="operations._metric_alerts_operations"
    ),
    "Microsoft.Insights/scheduledQueryRules": _model(
        "monitor", "ScheduledQueryRuleResource", versions="operations._scheduled_query_rules_operations"
    ),
    "Microsoft.ManagedIdentity/userAssignedIdentities": _model(
        "msi",
        "Identity",
        models=f"{_IDENTITIES}.models",
        versions=f"{_IDENTITIES}.operations._user_assigned_identities_operations",
    ),
    "Microsoft.OperationalInsights/workspaces": _model("loganalytics", "Workspace"),
    "Microsoft.ServiceBus/namespaces": _model("servicebus", "SBNamespace"),
    "Microsoft.ServiceBus/namespaces/queues": _model("servicebus", "SBQueue"),
    "Microsoft.ServiceBus/namespaces/topics": _model("servicebus", "SBTopic"),
    "Microsoft.ServiceBus/namespaces/topics/subscriptions": _model("servicebus", "SBSubscription"),
    "Microsoft.Storage/storageAccounts": _model("storage", "StorageAccountCreateParameters", "StorageAccount"),
    "Microsoft.Storage/storageAccounts/blobServices": _model("storage", "BlobServiceProperties"),
    "Microsoft.Storage/storageAccounts/blobServices/containers": _model("storage", "BlobContainer"),
    "Microsoft.Synapse/workspaces": _model("synapse", "Workspace", versions="operations._workspaces_operations"),
    "Microsoft.Synapse/workspaces/bigDataPools": _model(
        "synapse", "BigDataPoolResourceInfo", versions="operations._big_data_pools_operations"
    ),
    "Microsoft.Synapse/workspaces/firewallRules": _model(
        "synapse", "IpFirewallRuleInfo", versions="operations._ip_firewall_rules_operations"
    ),
    "Microsoft.Web/serverfarms": _model("web", "AppServicePlan"),
    "Microsoft.Web/sites": _model("web", "Site"),
    "Microsoft.Web/sites/basicPublishingCredentialsPolicies": _model("web", "CsmPublishingCredentialsPoliciesEntity"),
    "Microsoft.Web/sites/config": _model("web", "StringDictionary"),
}

GROUPS = "Microsoft.Resources/resourceGroups"
GROUP = Shape(
    "ResourceGroup",
    {
        "location": Member("string", is_required=True),
        "tags": Member("map", item=Member("string")),
        "managedBy": Member("string"),
    },
)
"""Written here: the package that has it has nothing else that is needed."""
GROUP_VERSION = "2024-03-01"


def shapes_of(kind: str) -> tuple[Shape, Shape] | None:
    """The shapes in which a resource is written and read; None where no model is known."""
    if kind == GROUPS:
        return GROUP, GROUP
    model = MODELS.get(kind)
    return (shape(model.module, model.written), shape(model.module, model.read)) if model else None


@cache
def versions_of(kind: str) -> frozenset[str]:
    """The API versions that the model of a resource type describes."""
    if kind == GROUPS:
        return frozenset((GROUP_VERSION,))
    spec = importlib.util.find_spec(MODELS[kind].versions)
    if spec is None or spec.origin is None:
        raise LookupError(f"{MODELS[kind].versions} is not installed; run tools/setup.py")
    return frozenset(_VERSION.findall(Path(spec.origin).read_text()))
