// Cosmos DB: one container with documents of all kinds, as app.json describes it and outbox.azure expects it.

param name string
param location string
param tags object

@description('0: serverless')
param autoscaleMaxRu int

@description('Empty: no container of their own for states')
param statesContainer string

var app = loadJsonContent('../app.json')
var isServerless = autoscaleMaxRu == 0

resource account 'Microsoft.DocumentDB/databaseAccounts@2026-03-15' = {
  name: name
  location: location
  tags: tags
  kind: 'GlobalDocumentDB'
  properties: {
    databaseAccountOfferType: 'Standard'
    locations: [{ locationName: location, failoverPriority: 0, isZoneRedundant: false }]
    consistencyPolicy: { defaultConsistencyLevel: 'Session' }
    enableMultipleWriteLocations: false // two regions that both write would each win a condition of their own
    capabilities: isServerless ? [{ name: 'EnableServerless' }] : []
    disableLocalAuth: true
    disableKeyBasedMetadataWriteAccess: true
    minimalTlsVersion: 'Tls12'
    backupPolicy: { type: 'Continuous', continuousModeProperties: { tier: 'Continuous7Days' } }
  }
}

resource database 'Microsoft.DocumentDB/databaseAccounts/sqlDatabases@2026-03-15' = {
  parent: account
  name: app.database
  properties: {
    resource: { id: app.database }
  }
}

resource container 'Microsoft.DocumentDB/databaseAccounts/sqlDatabases/containers@2026-03-15' = {
  parent: database
  name: app.container.id
  properties: {
    resource: app.container
    options: isServerless ? {} : { autoscaleSettings: { maxThroughput: autoscaleMaxRu } }
  }
}

// As the other one, and never the same: two containers are not written together, so the app works in item scope then.
resource states 'Microsoft.DocumentDB/databaseAccounts/sqlDatabases/containers@2026-03-15' = if (!empty(statesContainer)) {
  parent: database
  name: statesContainer
  properties: {
    resource: union(app.container, { id: statesContainer })
    options: isServerless ? {} : { autoscaleSettings: { maxThroughput: autoscaleMaxRu } }
  }
}

output id string = account.id
output name string = account.name
output endpoint string = account.properties.documentEndpoint
