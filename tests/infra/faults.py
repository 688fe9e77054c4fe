"""Faults to plant in copies of the templates and of what has to agree with them, one at a time.

Each is a text of a file and what takes its place; all of them are mistakes that people make.
"""

from __future__ import annotations

from dataclasses import dataclass

MODULES = "infra/modules"


@dataclass(frozen=True, slots=True)
class Fault:
    """What somebody got wrong, and how: the first `old` in the file becomes `new`; then `said` is what is found."""

    what: str
    path: str
    old: str
    new: str
    said: str

    @property
    def name(self) -> str:
        return self.what.replace(" ", "-")


FAULTS = (
    # What a compiler would say
    Fault("a brace is missing", f"{MODULES}/identity.bicep", "  tags: tags\n}", "  tags: tags\n", "cannot be read"),
    Fault(
        "a name is misspelled",
        f"{MODULES}/storage.bicep",
        "location: location",
        "location: locaton",
        "locaton is not declared",
    ),
    Fault(
        "a parameter is left over",
        f"{MODULES}/identity.bicep",
        "param tags object",
        "param tags object\nparam zone int",
        "param zone is not used",
    ),
    Fault(
        "a member is there twice",
        f"{MODULES}/cosmos.bicep",
        "    disableLocalAuth: true\n",
        "    disableLocalAuth: true\n    disableLocalAuth: true\n",
        "member disableLocalAuth is there twice",
    ),
    Fault(
        "a module is not there",
        "infra/main.bicep",
        "'modules/cosmos.bicep'",
        "'modules/cosmosdb.bicep'",
        "modules/cosmosdb.bicep is not there",
    ),
    Fault(
        "a module misses a parameter",
        "infra/main.bicep",
        "    autoscaleMaxRu: cosmosAutoscaleMaxRu\n",
        "",
        "parameter autoscaleMaxRu is not given",
    ),
    Fault(
        "a module is given an unknown parameter",
        "infra/main.bicep",
        "    sku: serviceBusSku",
        "    skuName: serviceBusSku",
        "has no parameter skuName",
    ),
    Fault(
        "a parameter is of another type",
        "infra/main.bicep",
        "outboxAgeSeconds: outboxAgeAlertSeconds",
        "outboxAgeSeconds: alertEmail",
        "outboxAgeSeconds takes int, not string",
    ),
    Fault(
        "an output is not there",
        "infra/main.bicep",
        "cosmos.outputs.endpoint",
        "cosmos.outputs.url",
        "module cosmos has no output url",
    ),
    Fault(
        "a module has no scope",
        "infra/main.bicep",
        "  name: 'alerts'\n  scope: group\n",
        "  name: 'alerts'\n",
        "module alerts: has no scope",
    ),
    Fault(
        "two modules have one name",
        "infra/main.bicep",
        "name: 'person-roles'",
        "name: 'app-roles'",
        "deployed under the name app-roles",
    ),
    Fault("a child has no parent", f"{MODULES}/servicebus.bicep", "  parent: bus\n", "", "names no parent"),
    Fault(
        "a parameter of the file is misspelled",
        "infra/main.parameters.json",
        '"alertEmail"',
        '"alertMail"',
        "alertMail is no parameter",
    ),
    Fault(
        "a file to load is not there",
        f"{MODULES}/roles.bicep",
        "'../app.json'",
        "'app.json'",
        "file app.json is not there",
    ),
    Fault(
        "the app is not told of the container of states",
        f"{MODULES}/functions.bicep",
        "        OUTBOX_STATES: statesContainer\n",
        "",
        "param statesContainer is not used",
    ),
    Fault(
        "the container of states has another key",
        f"{MODULES}/cosmos.bicep",
        "union(app.container, { id: statesContainer })",
        "union(app.container, { id: statesContainer, partitionKey: { paths: ['/id'], kind: 'Hash' } })",
        "container states.partitionKey.paths",
    ),
    # What the service would say
    Fault(
        "a resource type is misspelled",
        f"{MODULES}/cosmos.bicep",
        "sqlDatabases@",
        "sqlDatabase@",
        "no model of Microsoft.DocumentDB/databaseAccounts/sqlDatabase is known",
    ),
    Fault(
        "an API version does not exist",
        f"{MODULES}/functions.bicep",
        "serverfarms@2025-05-01",
        "serverfarms@2025-05-10",
        "2025-05-10 is not the one",
    ),
    Fault(
        "one type has two API versions",
        f"{MODULES}/roles.bicep",
        "databaseAccounts@2026-03-15",
        "databaseAccounts@2025-03-15",
        "2025-03-15, but 2026-03-15 in",
    ),
    Fault(
        "a property is misspelled",
        f"{MODULES}/storage.bicep",
        "allowBlobPublicAccess",
        "allowPublicBlobAccess",
        "did you mean allowBlobPublicAccess?",
    ),
    Fault(
        "a property stands a level too high",
        f"{MODULES}/functions.bicep",
        "    siteConfig: { minTlsVersion: '1.2' }",
        "    minTlsVersion: '1.2'",
        "properties.minTlsVersion: SiteProperties has no such member",
    ),
    Fault("a value is misspelled", f"{MODULES}/cosmos.bicep", "'Tls12'", "'TLS1_2'", "does not take 'TLS1_2'"),
    Fault(
        "a value of the older models is misspelled",
        f"{MODULES}/alerts.bicep",
        "aggregation: 'Count'",
        "aggregation: 'Counts'",
        "does not take 'Counts'",
    ),
    Fault(
        "a number is text",
        f"{MODULES}/servicebus.bicep",
        "maxSizeInMegabytes: 5120",
        "maxSizeInMegabytes: '5120'",
        "takes int, not '5120'",
    ),
    Fault(
        "a duration is none",
        f"{MODULES}/alerts.bicep",
        "windowSize: alert.window",
        "windowSize: '15M'",
        "takes an ISO 8601 duration",
    ),
    Fault(
        "a needed property is missing",
        f"{MODULES}/cosmos.bicep",
        "    databaseAccountOfferType: 'Standard'\n",
        "",
        "databaseAccountOfferType is missing",
    ),
    Fault(
        "what only the service writes is set",
        f"{MODULES}/identity.bicep",
        "  tags: tags\n",
        "  tags: tags\n  properties: { clientId: name }\n",
        "is written by the service only",
    ),
    Fault(
        "a kind of criteria is misspelled",
        f"{MODULES}/alerts.bicep",
        "SingleResourceMultipleMetric",
        "SingleResourceMultiMetric",
        "is none of Microsoft.Azure.Monitor",
    ),
    Fault(
        "a resource is asked for what it does not tell",
        f"{MODULES}/cosmos.bicep",
        "properties.documentEndpoint",
        "properties.endpoint",
        "account tells no endpoint",
    ),
    Fault(
        "a storage account has a dash in its name",
        "infra/main.bicep",
        "'st${token}'",
        "'st-${token}'",
        "is no name of a storage account",
    ),
    # What nobody would say before it is too late
    Fault(
        "keys may be used again",
        f"{MODULES}/servicebus.bicep",
        "    disableLocalAuth: true\n",
        "",
        "disableLocalAuth is None",
    ),
    Fault(
        "two regions may write",
        f"{MODULES}/cosmos.bicep",
        "enableMultipleWriteLocations: false",
        "enableMultipleWriteLocations: true",
        "enableMultipleWriteLocations is True",
    ),
    Fault(
        "a right is on the whole namespace",
        f"{MODULES}/servicebus-roles.bicep",
        "scope: sendQueues[index]",
        "scope: bus",
        "not on bus",
    ),
    Fault("a role has another id", "infra/roles.json", "69a216fc", "69a216fd", "Azure Service Bus Data Sender is"),
    Fault(
        "a right goes to the wrong id of the identity",
        "infra/main.bicep",
        "principalId: identity.outputs.principalId",
        "principalId: identity.outputs.clientId",
        "",
    ),
    Fault(
        "the app may not send to a queue",
        "infra/main.bicep",
        "sends: queues",
        "sends: app.reads",
        "queues to which the app may send",
    ),
    Fault(
        "a setting is misspelled",
        f"{MODULES}/functions.bicep",
        "OUTBOX_COSMOS__accountEndpoint",
        "OUTBOX_COSMOS__endpoint",
        "OUTBOX_COSMOS__endpoint is a setting that nothing reads",
    ),
    Fault(
        "a trigger has no identity",
        f"{MODULES}/functions.bicep",
        "      OUTBOX_SERVICEBUS__clientId: identityClientId\n",
        "",
        "OUTBOX_SERVICEBUS__clientId is missing",
    ),
    Fault(
        "the partition key is another", "infra/app.json", '"/pk"', '"/id"', "container.partitionKey.paths is ['/id']"
    ),
    Fault(
        "records expire by default",
        "infra/app.json",
        '"defaultTtl": -1',
        '"defaultTtl": 86400',
        "container.defaultTtl is 86400",
    ),
    Fault(
        "bodies are indexed",
        "infra/app.json",
        '"excludedPaths": [{ "path": "/*" }]',
        '"excludedPaths": []',
        "container.indexingPolicy.excludedPaths is []",
    ),
    Fault("a queue is missing", "local/servicebus.json", '"refunds"', '"refund"', "the set of queues is"),
    Fault(
        "a queue has sessions",
        "local/servicebus.json",
        '"RequiresSession": false',
        '"RequiresSession": true',
        "accounts: the ordering is 'per_key'",
    ),
    Fault(
        "deliveries end early",
        f"{MODULES}/servicebus.bicep",
        "maxDeliveryCount = 100",
        "maxDeliveryCount = 10",
        "maxDeliveryCount is 10",
    ),
    Fault("the host gives up after the lock", "host.json", '"00:04:00"', '"00:06:00"', "functionTimeout of 360 s"),
    Fault(
        "the alert looks for another line",
        f"{MODULES}/alerts.bicep",
        'extract("oldest_s=',
        'extract("age_s=',
        "a field that the sweeper does not write",
    ),
    Fault(
        "an alert asks for a metric that nobody publishes",
        f"{MODULES}/alerts.bicep",
        'Name == "outbox.pending.oldest"',
        'Name == "outbox.pending.age"',
        "pending-oldest asks for 'outbox.pending.age', which the code does not publish",
    ),
    Fault(
        "an alert takes the largest of a counter",
        f"{MODULES}/alerts.bicep",
        'Name == "outbox.commits.unknown" | project TimeGenerated, value = Sum',
        'Name == "outbox.commits.unknown" | project TimeGenerated, value = Max',
        "outbox.commits.unknown is a counter, read by Sum and Total",
    ),
    Fault(
        "an alert asks for an attribute that no sample has",
        f"{MODULES}/alerts.bicep",
        'Properties["error.type"]',
        'Properties["error.kind"]',
        "throttled asks for the attribute 'error.kind', which no sample has",
    ),
    Fault(
        "an alert asks for a value that no sample has",
        f"{MODULES}/alerts.bicep",
        '"refused"',
        '"rejected"',
        "dead-letters-rising: outbox.outcome is never 'rejected'",
    ),
    Fault(
        "nobody hears of a full partition",
        f"{MODULES}/alerts.bicep",
        'AppMetrics | where Name == "outbox.partition.share"',
        'AppTraces | where Name == "outbox.partition.share"',
        "no alert watches outbox.partition.share",
    ),
    Fault(
        "a breaker that is half open counts as open",
        f"{MODULES}/alerts.bicep",
        "    threshold: 2\n",
        "    threshold: 1\n",
        "breaker-open: a breaker is open from 3 on",
    ),
    Fault("the service is tagged otherwise", "azure.yaml", "  bank:", "  api:", "the services is ['api']"),
    Fault(
        "an emulator listens to everybody",
        "compose.yaml",
        '"127.0.0.1:5672:5672"',
        '"5672:5672"',
        "port 5672:5672 is not on loopback",
    ),
    Fault(
        "a licence is accepted for the user",
        "compose.yaml",
        '"${ACCEPT_EULA:?set ACCEPT_EULA=Y to accept the licences of the emulators}"',
        '"Y"',
        "ACCEPT_EULA must be given",
    ),
    Fault(
        "local settings lead to another port",
        "local/local.settings.official.json",
        "localhost:8081",
        "localhost:8082",
        "OUTBOX_COSMOS does not lead to cosmos",
    ),
    Fault("the library is not deployed", ".funcignore", "outbox/emulator", "outbox", "outbox is left out"),
    Fault(
        "local secrets are deployed",
        ".funcignore",
        "local.settings.json\n",
        "",
        "local.settings.json would be deployed",
    ),
    Fault(
        "a setting of Spark is misspelled",
        "infra/main.bicep",
        "OUTBOX_SPARK_POOL:",
        "OUTBOX_SPARK_POOLS:",
        "OUTBOX_SPARK_POOLS is a setting that nothing reads",
    ),
    Fault(
        "a sweep may not send what it finds",
        "infra/main.bicep",
        "sends: queues // a sweep",
        "sends: app.sparkReceives // a sweep",
        "queues to which Spark jobs may send",
    ),
    Fault(
        "Spark jobs get no documents",
        "infra/main.bicep",
        "    principalId: sparkPrincipalId\n    cosmosName",
        "    principalId: principalId\n    cosmosName",
        "sparkRoles: Spark jobs get rights where",
    ),
    Fault(
        "Spark jobs may write their own code",
        "infra/main.bicep",
        "    containerName: sparkContainer",
        "    containerName: 'synapse'",
        "lakeRoles: synapse is no container of the lake for what Spark jobs keep",
    ),
    Fault(
        "the container of Spark jobs is not made",
        "infra/main.bicep",
        "containers: ['synapse', sparkContainer]",
        "containers: ['synapse']",
        "lakeRoles: data is no container of the lake for what Spark jobs keep",
    ),
    Fault(
        "whoever runs the app may write the lake",
        "infra/main.bicep",
        "    principalId: sparkPrincipalId\n    lakeName",
        "    principalId: identity.outputs.principalId\n    lakeName",
        "lakeRoles: Spark jobs get rights on a lake",
    ),
    Fault(
        "a right on documents is only referred to",
        f"{MODULES}/spark-roles.bicep",
        "sqlRoleAssignments@2026-03-15' = {",
        "sqlRoleAssignments@2026-03-15' existing = {",
        "Spark jobs may not write documents",
    ),
    Fault(
        "a scope misses a level",
        f"{MODULES}/spark-roles.bicep",
        "scope: storage::service::bodies",
        "scope: storage::bodies",
        "resource service is not used",
    ),
)
MISSED = frozenset(("a right goes to the wrong id of the identity",))
"""Found by a deployment only: both ids are text, and each is one of the identity's."""
