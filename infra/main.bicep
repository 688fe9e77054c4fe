// Everything the sample bank needs on Azure: one resource group, no keys, rights for one identity on what it uses.
// What the application needs by name is read from app.json and ../local/servicebus.json, so that it stands in one place.

targetScope = 'subscription'

@minLength(1)
@maxLength(64)
@description('Name of the environment; a short hash of it is part of every name')
param environmentName string

@minLength(1)
@description('Where everything is created; a region that has Flex Consumption')
@metadata({ azd: { type: 'location' } })
param location string

@description('Object id of someone who may use queues, documents and blobs from their own machine; empty: nobody')
param principalId string = ''

@allowed(['Group', 'ServicePrincipal', 'User'])
param principalType string = 'User'

@allowed(['Premium', 'Standard'])
@description('Standard bills by operation and takes messages of 256 kB, Premium by the hour and up to 100 MB')
param serviceBusSku string = 'Standard'

@minValue(0)
@maxValue(1000000)
@description('Request units a second that the container may grow to, from 1,000; 0: serverless, billed by request')
param cosmosAutoscaleMaxRu int = 0

@maxLength(255)
@description('Container in which only states lie, beside that of app.json; empty: states are in that one too')
param statesContainer string = ''

@description('Workers note in one document what has left, which is cheaper; docs/how-to/cost.md says what it asks for')
param dispatchLedger bool = false

@allowed(['3.11', '3.12', '3.13'])
param pythonVersion string = '3.13'

@allowed([512, 2048, 4096])
param instanceMemoryMB int = 2048

@minValue(1)
@maxValue(1000)
@description('Instances of each function that scales by itself, at most')
param maximumInstanceCount int = 40

@description('Give the app the right to manage the queues it reads, with which the platform can ask for their length')
param scaleByQueueLength bool = false

@description('Where alerts are sent; empty: they are only shown in the portal')
param alertEmail string = ''

@minValue(120)
@description('Alert when something has been unfinished for so long')
param outboxAgeAlertSeconds int = 600

@minValue(60)
@description('Alert when a message has waited for so long')
param waitingAgeAlertSeconds int = 900

@description('Synapse workspace, data lake and Spark pool')
param synapseEnabled bool = false

@description('Object id of the service principal that Spark jobs sign in as; empty: none')
param sparkPrincipalId string = ''

var app = loadJsonContent('app.json')
var token = toLower(uniqueString(subscription().id, environmentName, location))
var tags = { 'azd-env-name': environmentName }
var entities = any(loadJsonContent('../local/servicebus.json')).UserConfig.Namespaces[0]
var queues = map(entities.Queues, queue => queue.Name)
var topics = map(entities.Topics, topic => topic.Name)
var subscriptions = flatten(map(
  entities.Topics,
  topic => map(topic.Subscriptions, one => { topic: topic.Name, name: one.Name })
))
var packageContainer = 'app-package'
var sparkContainer = 'data' // of the lake: what Spark jobs read and keep

resource group 'Microsoft.Resources/resourceGroups@2024-03-01' = {
  name: 'rg-${environmentName}'
  location: location
  tags: tags
}

module identity 'modules/identity.bicep' = {
  name: 'identity'
  scope: group
  params: {
    name: 'id-${token}'
    location: location
    tags: tags
  }
}

module monitoring 'modules/monitoring.bicep' = {
  name: 'monitoring'
  scope: group
  params: {
    token: token
    location: location
    tags: tags
  }
}

module storage 'modules/storage.bicep' = {
  name: 'storage'
  scope: group
  params: {
    name: 'st${token}'
    location: location
    tags: tags
    containers: [packageContainer, app.blobContainer]
  }
}

module cosmos 'modules/cosmos.bicep' = {
  name: 'cosmos'
  scope: group
  params: {
    name: 'cosmos-${token}'
    location: location
    tags: tags
    autoscaleMaxRu: cosmosAutoscaleMaxRu
    statesContainer: statesContainer
  }
}

module serviceBus 'modules/servicebus.bicep' = {
  name: 'servicebus'
  scope: group
  params: {
    name: 'sb-${token}'
    location: location
    tags: tags
    sku: serviceBusSku
  }
}

module appRoles 'modules/roles.bicep' = {
  name: 'app-roles'
  scope: group
  params: {
    principalId: identity.outputs.principalId
    principalType: 'ServicePrincipal'
    cosmosName: cosmos.outputs.name
    storageName: storage.outputs.name
    applicationInsightsName: monitoring.outputs.applicationInsightsName
  }
}

module appQueues 'modules/servicebus-roles.bicep' = {
  name: 'app-queues'
  scope: group
  params: {
    principalId: identity.outputs.principalId
    principalType: 'ServicePrincipal'
    namespaceName: serviceBus.outputs.name
    sends: queues
    receives: app.reads
    manages: scaleByQueueLength ? app.reads : []
    sendsToTopics: topics
    receivesSubscriptions: subscriptions
    managesSubscriptions: scaleByQueueLength ? subscriptions : []
  }
}

module functions 'modules/functions.bicep' = {
  name: 'functions'
  scope: group
  params: {
    name: 'func-${token}'
    planName: 'plan-${token}'
    location: location
    tags: union(tags, { 'azd-service-name': 'bank' })
    pythonVersion: pythonVersion
    instanceMemoryMB: instanceMemoryMB
    maximumInstanceCount: maximumInstanceCount
    identityId: identity.outputs.id
    identityClientId: identity.outputs.clientId
    applicationInsightsConnectionString: monitoring.outputs.applicationInsightsConnectionString
    blobEndpoint: storage.outputs.blobEndpoint
    packageContainer: packageContainer
    serviceBusHost: serviceBus.outputs.host
    cosmosEndpoint: cosmos.outputs.endpoint
    statesContainer: statesContainer
    dispatchLedger: dispatchLedger
    sparkSettings: synapseEnabled
      ? {
          OUTBOX_SPARK: 'synapse'
          OUTBOX_SPARK_WORKSPACE: synapse!.outputs.name
          OUTBOX_SPARK_POOL: pool!.outputs.name
          OUTBOX_SPARK_FILE: '${lake!.outputs.files}/jobs/submitted.py'
          OUTBOX_SPARK_PY_FILES: '${lake!.outputs.files}/jobs/outbox-jobs.zip'
        }
      : {}
  }
  dependsOn: [appRoles, appQueues] // the first start must find its rights
}

module alerts 'modules/alerts.bicep' = {
  name: 'alerts'
  scope: group
  params: {
    token: token
    location: location
    tags: tags
    email: alertEmail
    outboxAgeSeconds: outboxAgeAlertSeconds
    waitingAgeSeconds: waitingAgeAlertSeconds
    serviceBusId: serviceBus.outputs.id
    cosmosId: cosmos.outputs.id
    workspaceId: monitoring.outputs.workspaceId
  }
}

module personRoles 'modules/roles.bicep' = if (!empty(principalId)) {
  name: 'person-roles'
  scope: group
  params: {
    principalId: principalId
    principalType: principalType
    cosmosName: cosmos.outputs.name
    storageName: storage.outputs.name
    applicationInsightsName: monitoring.outputs.applicationInsightsName
  }
}

module personQueues 'modules/servicebus-roles.bicep' = if (!empty(principalId)) {
  name: 'person-queues'
  scope: group
  params: {
    principalId: principalId
    principalType: principalType
    namespaceName: serviceBus.outputs.name
    sends: queues
    receives: queues
    manages: []
    sendsToTopics: topics
    receivesSubscriptions: subscriptions
    managesSubscriptions: []
  }
}

module sparkQueues 'modules/servicebus-roles.bicep' = if (!empty(sparkPrincipalId)) {
  name: 'spark-queues'
  scope: group
  params: {
    principalId: sparkPrincipalId
    principalType: 'ServicePrincipal'
    namespaceName: serviceBus.outputs.name
    sends: queues // a sweep sends what any handler has left
    receives: app.sparkReceives
    manages: []
    sendsToTopics: topics
    receivesSubscriptions: []
    managesSubscriptions: []
  }
}

module sparkRoles 'modules/spark-roles.bicep' = if (!empty(sparkPrincipalId)) {
  name: 'spark-roles'
  scope: group
  params: {
    principalId: sparkPrincipalId
    cosmosName: cosmos.outputs.name
    storageName: storage.outputs.name
  }
}

module lake 'modules/storage.bicep' = if (synapseEnabled) {
  name: 'lake'
  scope: group
  params: {
    name: 'lake${token}'
    location: location
    tags: tags
    containers: ['synapse', sparkContainer]
    isDataLake: true
  }
}

module lakeRoles 'modules/lake-roles.bicep' = if (synapseEnabled && !empty(sparkPrincipalId)) {
  name: 'lake-roles'
  scope: group
  params: {
    principalId: sparkPrincipalId
    lakeName: lake!.outputs.name
    containerName: sparkContainer
  }
}

module synapse 'modules/synapse.bicep' = if (synapseEnabled) {
  name: 'synapse'
  scope: group
  params: {
    name: 'syn-${token}'
    location: location
    tags: tags
    lakeName: lake!.outputs.name
    fileSystem: 'synapse'
  }
}

module pool 'modules/synapse-pool.bicep' = if (synapseEnabled) {
  name: 'pool'
  scope: group
  params: {
    workspaceName: synapse!.outputs.name
    location: location
    tags: tags
    requirements: ''
  }
}

// A pool takes requirements only once it exists, so the same module again in a deployment of its own.
module poolLibraries 'modules/synapse-pool.bicep' = if (synapseEnabled) {
  name: 'pool-libraries'
  scope: group
  params: {
    workspaceName: synapse!.outputs.name
    location: location
    tags: tags
    requirements: loadTextContent('../spark_jobs/requirements.txt')
  }
  dependsOn: [pool]
}

output AZURE_LOCATION string = location
output AZURE_RESOURCE_GROUP string = group.name
output AZURE_FUNCTION_NAME string = functions.outputs.name
output AZURE_CLIENT_ID string = identity.outputs.clientId
output OUTBOX_SERVICEBUS__fullyQualifiedNamespace string = serviceBus.outputs.host
output OUTBOX_COSMOS__accountEndpoint string = cosmos.outputs.endpoint
output OUTBOX_BLOBS__blobServiceUri string = storage.outputs.blobEndpoint
output OUTBOX_DATABASE string = app.database
output SYNAPSE_WORKSPACE_NAME string = synapseEnabled ? synapse!.outputs.name : ''
output SYNAPSE_POOL_NAME string = synapseEnabled ? pool!.outputs.name : ''
output SYNAPSE_LAKE_NAME string = synapseEnabled ? lake!.outputs.name : ''
