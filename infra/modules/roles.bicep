// Rights on documents, blobs and logs: one database, one storage account, one Application Insights.

param principalId string

@allowed(['Group', 'ServicePrincipal', 'User'])
param principalType string
param cosmosName string
param storageName string
param applicationInsightsName string

var roles = loadJsonContent('../roles.json')
var app = loadJsonContent('../app.json')

resource account 'Microsoft.DocumentDB/databaseAccounts@2026-03-15' existing = {
  name: cosmosName
}

resource documents 'Microsoft.DocumentDB/databaseAccounts/sqlRoleAssignments@2026-03-15' = {
  parent: account
  name: guid(account.id, principalId, roles['Cosmos DB Built-in Data Contributor'])
  properties: {
    principalId: principalId
    roleDefinitionId: '${account.id}/sqlRoleDefinitions/${roles['Cosmos DB Built-in Data Contributor']}'
    scope: '${account.id}/dbs/${app.database}'
  }
}

resource storage 'Microsoft.Storage/storageAccounts@2026-09-01' existing = {
  name: storageName
}

// Owner and not Contributor, because the Functions host takes leases and makes its own containers.
resource blobs 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(storage.id, principalId, roles['Storage Blob Data Owner'])
  scope: storage
  properties: {
    principalId: principalId
    principalType: principalType
    roleDefinitionId: subscriptionResourceId(
      'Microsoft.Authorization/roleDefinitions',
      roles['Storage Blob Data Owner']
    )
  }
}

resource component 'Microsoft.Insights/components@2020-02-02' existing = {
  name: applicationInsightsName
}

resource telemetry 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(component.id, principalId, roles['Monitoring Metrics Publisher'])
  scope: component
  properties: {
    principalId: principalId
    principalType: principalType
    roleDefinitionId: subscriptionResourceId(
      'Microsoft.Authorization/roleDefinitions',
      roles['Monitoring Metrics Publisher']
    )
  }
}
