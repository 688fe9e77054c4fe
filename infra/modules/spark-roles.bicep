// Rights of Spark jobs beside those on queues: leases of runs and a sweep need documents, a sweep the container of bodies
// that no queue takes. The container and not the account, which has the app's own packages too.

param principalId string
param cosmosName string
param storageName string

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

  resource service 'blobServices' existing = {
    name: 'default'

    resource bodies 'containers' existing = {
      name: app.blobContainer
    }
  }
}

resource blobs 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(storage.id, app.blobContainer, principalId, roles['Storage Blob Data Contributor'])
  scope: storage::service::bodies
  properties: {
    principalId: principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId(
      'Microsoft.Authorization/roleDefinitions',
      roles['Storage Blob Data Contributor']
    )
  }
}
