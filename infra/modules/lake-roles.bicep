// What Spark jobs keep in the lake: inputs, progress, what they set aside, tables. One container, not the account, whose other
// container has the jobs' own code.

param principalId string
param lakeName string
param containerName string

var roles = loadJsonContent('../roles.json')

resource lake 'Microsoft.Storage/storageAccounts@2026-09-01' existing = {
  name: lakeName

  resource service 'blobServices' existing = {
    name: 'default'

    resource data 'containers' existing = {
      name: containerName
    }
  }
}

resource blobs 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(lake.id, containerName, principalId, roles['Storage Blob Data Contributor'])
  scope: lake::service::data
  properties: {
    principalId: principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId(
      'Microsoft.Authorization/roleDefinitions',
      roles['Storage Blob Data Contributor']
    )
  }
}
