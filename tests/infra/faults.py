"""Faults to plant in copies of the templates and of what has to agree with them, one at a time.

Each is a text of a file and what takes its place; all of them are mistakes that people make.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

MODULES = "infra/modules"
IDENTITY = f"{MODULES}/identity.bicep"
STORAGE = f"{MODULES}/storage.bicep"
COSMOS = f"{MODULES}/cosmos.bicep"
MAIN = "infra/main.bicep"
SERVICEBUS = f"{MODULES}/servicebus.bicep"
ROLES = f"{MODULES}/roles.bicep"
FUNCTIONS = f"{MODULES}/functions.bicep"
ALERTS = f"{MODULES}/alerts.bicep"
SERVICEBUS_ROLES = f"{MODULES}/servicebus-roles.bicep"
APP = "infra/app.json"
SPARK_ROLES = f"{MODULES}/spark-roles.bicep"


@dataclass(frozen=True, slots=True)
class Fault:
    """What somebody got wrong, and how: the first `old` in the file becomes `new`; then `said` is what is found."""

    what: str
    path: str
    said: str
    old: str = ""
    new: str = ""

    @property
    def name(self) -> str:
        return self.what.replace(" ", "-")

    def edited(self, old: str, new: str) -> Fault:
        """This fault, made by an edit."""
        return replace(self, old=old, new=new)


FAULTS = (
    # What a compiler would say
    Fault("a brace is missing", IDENTITY, "cannot be read").edited("  tags: tags\n}", "  tags: tags\n"),
    Fault("a name is misspelled", STORAGE, "locaton is not declared").edited("location: location", "location: locaton"),
    Fault("a parameter is left over", IDENTITY, "param zone is not used").edited(
        "param tags object", "param tags object\nparam zone int"
    ),
    Fault("a member is there twice", COSMOS, "member disableLocalAuth is there twice").edited(
        "    disableLocalAuth: true\n", "    disableLocalAuth: true\n    disableLocalAuth: true\n"
    ),
    Fault("a module is not there", MAIN, "modules/cosmosdb.bicep is not there").edited(
        "'modules/cosmos.bicep'", "'modules/cosmosdb.bicep'"
    ),
    Fault("a module misses a parameter", MAIN, "parameter autoscaleMaxRu is not given").edited(
        "    autoscaleMaxRu: cosmosAutoscaleMaxRu\n", ""
    ),
    Fault("a module is given an unknown parameter", MAIN, "has no parameter skuName").edited(
        "    sku: serviceBusSku", "    skuName: serviceBusSku"
    ),
    Fault("a parameter is of another type", MAIN, "outboxAgeSeconds takes int, not string").edited(
        "outboxAgeSeconds: outboxAgeAlertSeconds", "outboxAgeSeconds: alertEmail"
    ),
    Fault("an output is not there", MAIN, "module cosmos has no output url").edited(
        "cosmos.outputs.endpoint", "cosmos.outputs.url"
    ),
    Fault("a module has no scope", MAIN, "module alerts: has no scope").edited(
        "  name: 'alerts'\n  scope: group\n", "  name: 'alerts'\n"
    ),
    Fault("two modules have one name", MAIN, "deployed under the name app-roles").edited(
        "name: 'person-roles'", "name: 'app-roles'"
    ),
    Fault("a child has no parent", SERVICEBUS, "names no parent").edited("  parent: bus\n", ""),
    Fault("a parameter of the file is misspelled", "infra/main.parameters.json", "alertMail is no parameter").edited(
        '"alertEmail"', '"alertMail"'
    ),
    Fault("a file to load is not there", ROLES, "file app.json is not there").edited("'../app.json'", "'app.json'"),
    Fault("the app is not told of the container of states", FUNCTIONS, "param statesContainer is not used").edited(
        "        OUTBOX_STATES: statesContainer\n", ""
    ),
    Fault("the container of states has another key", COSMOS, "container states.partitionKey.paths").edited(
        "union(app.container, { id: statesContainer })",
        "union(app.container, { id: statesContainer, partitionKey: { paths: ['/id'], kind: 'Hash' } })",
    ),
    # What the service would say
    Fault(
        "a resource type is misspelled",
        COSMOS,
        "no model of Microsoft.DocumentDB/databaseAccounts/sqlDatabase is known",
    ).edited("sqlDatabases@", "sqlDatabase@"),
    Fault("an API version does not exist", FUNCTIONS, "2025-05-10 is not the one").edited(
        "serverfarms@2025-05-01", "serverfarms@2025-05-10"
    ),
    Fault("one type has two API versions", ROLES, "2025-03-15, but 2026-03-15 in").edited(
        "databaseAccounts@2026-03-15", "databaseAccounts@2025-03-15"
    ),
    Fault("a property is misspelled", STORAGE, "did you mean allowBlobPublicAccess?").edited(
        "allowBlobPublicAccess", "allowPublicBlobAccess"
    ),
    Fault(
        "a property stands a level too high", FUNCTIONS, "properties.minTlsVersion: SiteProperties has no such member"
    ).edited("    siteConfig: { minTlsVersion: '1.2' }", "    minTlsVersion: '1.2'"),
    Fault("a value is misspelled", COSMOS, "does not take 'TLS1_2'").edited("'Tls12'", "'TLS1_2'"),
    Fault("a value of the older models is misspelled", ALERTS, "does not take 'Counts'").edited(
        "aggregation: 'Count'", "aggregation: 'Counts'"
    ),
    Fault("a number is text", SERVICEBUS, "takes int, not '5120'").edited(
        "maxSizeInMegabytes: 5120", "maxSizeInMegabytes: '5120'"
    ),
    Fault("a duration is none", ALERTS, "takes an ISO 8601 duration").edited(
        "windowSize: alert.window", "windowSize: '15M'"
    ),
    Fault("a needed property is missing", COSMOS, "databaseAccountOfferType is missing").edited(
        "    databaseAccountOfferType: 'Standard'\n", ""
    ),
    Fault("what only the service writes is set", IDENTITY, "is written by the service only").edited(
        "  tags: tags\n", "  tags: tags\n  properties: { clientId: name }\n"
    ),
    Fault("a kind of criteria is misspelled", ALERTS, "is none of Microsoft.Azure.Monitor").edited(
        "SingleResourceMultipleMetric", "SingleResourceMultiMetric"
    ),
    Fault("a resource is asked for what it does not tell", COSMOS, "account tells no endpoint").edited(
        "properties.documentEndpoint", "properties.endpoint"
    ),
    Fault("a storage account has a dash in its name", MAIN, "is no name of a storage account").edited(
        "'st${token}'", "'st-${token}'"
    ),
    # What nobody would say before it is too late
    Fault("keys may be used again", SERVICEBUS, "disableLocalAuth is None").edited("    disableLocalAuth: true\n", ""),
    Fault("two regions may write", COSMOS, "enableMultipleWriteLocations is True").edited(
        "enableMultipleWriteLocations: false", "enableMultipleWriteLocations: true"
    ),
    Fault("a right is on the whole namespace", SERVICEBUS_ROLES, "not on bus").edited(
        "scope: sendQueues[index]", "scope: bus"
    ),
    Fault("a role has another id", "infra/roles.json", "Azure Service Bus Data Sender is").edited(
        "69a216fc", "69a216fd"
    ),
    Fault("a right goes to the wrong id of the identity", MAIN, "").edited(
        "principalId: identity.outputs.principalId", "principalId: identity.outputs.clientId"
    ),
    Fault("the app may not send to a queue", MAIN, "queues to which the app may send").edited(
        "sends: queues", "sends: app.reads"
    ),
    Fault("a setting is misspelled", FUNCTIONS, "OUTBOX_COSMOS__endpoint is a setting that nothing reads").edited(
        "OUTBOX_COSMOS__accountEndpoint", "OUTBOX_COSMOS__endpoint"
    ),
    Fault("a trigger has no identity", FUNCTIONS, "OUTBOX_SERVICEBUS__clientId is missing").edited(
        "      OUTBOX_SERVICEBUS__clientId: identityClientId\n", ""
    ),
    Fault("the partition key is another", APP, "container.partitionKey.paths is ['/id']").edited('"/pk"', '"/id"'),
    Fault("records expire by default", APP, "container.defaultTtl is 86400").edited(
        '"defaultTtl": -1', '"defaultTtl": 86400'
    ),
    Fault("bodies are indexed", APP, "container.indexingPolicy.excludedPaths is []").edited(
        '"excludedPaths": [{ "path": "/*" }]', '"excludedPaths": []'
    ),
    Fault("a queue is missing", "local/servicebus.json", "the set of queues is").edited('"refunds"', '"refund"'),
    Fault("a queue has sessions", "local/servicebus.json", "accounts: the ordering is 'per_key'").edited(
        '"RequiresSession": false', '"RequiresSession": true'
    ),
    Fault("deliveries end early", SERVICEBUS, "maxDeliveryCount is 10").edited(
        "maxDeliveryCount = 100", "maxDeliveryCount = 10"
    ),
    Fault("the host gives up after the lock", "host.json", "functionTimeout of 360 s").edited(
        '"00:04:00"', '"00:06:00"'
    ),
    Fault("the alert looks for another line", ALERTS, "a field that the sweeper does not write").edited(
        'extract("oldest_s=', 'extract("age_s='
    ),
    Fault(
        "an alert asks for a metric that nobody publishes",
        ALERTS,
        "pending-oldest asks for 'outbox.pending.age', which the code does not publish",
    ).edited('Name == "outbox.pending.oldest"', 'Name == "outbox.pending.age"'),
    Fault(
        "an alert takes the largest of a counter", ALERTS, "outbox.commits.unknown is a counter, read by Sum and Total"
    ).edited(
        'Name == "outbox.commits.unknown" | project TimeGenerated, value = Sum',
        'Name == "outbox.commits.unknown" | project TimeGenerated, value = Max',
    ),
    Fault(
        "an alert asks for an attribute that no sample has",
        ALERTS,
        "throttled asks for the attribute 'error.kind', which no sample has",
    ).edited('Properties["error.type"]', 'Properties["error.kind"]'),
    Fault(
        "an alert asks for a value that no sample has",
        ALERTS,
        "dead-letters-rising: outbox.outcome is never 'rejected'",
    ).edited('"refused"', '"rejected"'),
    Fault("nobody hears of a full partition", ALERTS, "no alert watches outbox.partition.share").edited(
        'AppMetrics | where Name == "outbox.partition.share"', 'AppTraces | where Name == "outbox.partition.share"'
    ),
    Fault("a breaker that is half open counts as open", ALERTS, "breaker-open: a breaker is open from 3 on").edited(
        "    threshold: 2\n", "    threshold: 1\n"
    ),
    Fault("the service is tagged otherwise", "azure.yaml", "the services is ['api']").edited("  bank:", "  api:"),
    Fault("an emulator listens to everybody", "compose.yaml", "port 5672:5672 is not on loopback").edited(
        '"127.0.0.1:5672:5672"', '"5672:5672"'
    ),
    Fault("a licence is accepted for the user", "compose.yaml", "ACCEPT_EULA must be given").edited(
        '"${ACCEPT_EULA:?set ACCEPT_EULA=Y to accept the licences of the emulators}"', '"Y"'
    ),
    Fault(
        "local settings lead to another port",
        "local/local.settings.official.json",
        "OUTBOX_COSMOS does not lead to cosmos",
    ).edited("localhost:8081", "localhost:8082"),
    Fault("the library is not deployed", ".funcignore", "outbox is left out").edited("outbox/emulator", "outbox"),
    Fault("local secrets are deployed", ".funcignore", "local.settings.json would be deployed").edited(
        "local.settings.json\n", ""
    ),
    Fault("a setting of Spark is misspelled", MAIN, "OUTBOX_SPARK_POOLS is a setting that nothing reads").edited(
        "OUTBOX_SPARK_POOL:", "OUTBOX_SPARK_POOLS:"
    ),
    Fault("a sweep may not send what it finds", MAIN, "queues to which Spark jobs may send").edited(
        "sends: queues // a sweep", "sends: app.sparkReceives // a sweep"
    ),
    Fault("Spark jobs get no documents", MAIN, "sparkRoles: Spark jobs get rights where").edited(
        "    principalId: sparkPrincipalId\n    cosmosName", "    principalId: principalId\n    cosmosName"
    ),
    Fault(
        "Spark jobs may write their own code",
        MAIN,
        "lakeRoles: synapse is no container of the lake for what Spark jobs keep",
    ).edited("    containerName: sparkContainer", "    containerName: 'synapse'"),
    Fault(
        "the container of Spark jobs is not made",
        MAIN,
        "lakeRoles: data is no container of the lake for what Spark jobs keep",
    ).edited("containers: ['synapse', sparkContainer]", "containers: ['synapse']"),
    Fault("whoever runs the app may write the lake", MAIN, "lakeRoles: Spark jobs get rights on a lake").edited(
        "    principalId: sparkPrincipalId\n    lakeName", "    principalId: identity.outputs.principalId\n    lakeName"
    ),
    Fault("a right on documents is only referred to", SPARK_ROLES, "Spark jobs may not write documents").edited(
        "sqlRoleAssignments@2026-03-15' = {", "sqlRoleAssignments@2026-03-15' existing = {"
    ),
    Fault("a scope misses a level", SPARK_ROLES, "resource service is not used").edited(
        "scope: storage::service::bodies", "scope: storage::bodies"
    ),
)
MISSED = frozenset(("a right goes to the wrong id of the identity",))
"""Found by a deployment only: both ids are text, and each is one of the identity's."""
