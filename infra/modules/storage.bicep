// A storage account without keys: the host's own blobs, deployed packages, bodies that no queue takes; or a data lake.

@minLength(3)
@maxLength(24)
param name string
param location string
param tags object
param containers string[]
param isDataLake bool = false

resource account 'Microsoft.Storage/storageAccounts@2026-09-01' = {
  name: name
  location: location
  tags: tags
  kind: 'StorageV2'
  sku: { name: 'Standard_LRS' }
  properties: {
    accessTier: 'Hot'
    allowBlobPublicAccess: false
    allowSharedKeyAccess: false
    defaultToOAuthAuthentication: true
    isHnsEnabled: isDataLake
    minimumTlsVersion: 'TLS1_2'
    supportsHttpsTrafficOnly: true
  }

  resource blobs 'blobServices' = {
    name: 'default'

    resource items 'containers' = [for container in containers: {
      name: container
      properties: { publicAccess: 'None' }
    }]
  }
}

output name string = account.name
output blobEndpoint string = account.properties.primaryEndpoints.blob

@description('Where files of the first container are, as Spark names them')
output files string = 'abfss://${containers[0]}@${account.name}.dfs.${environment().suffixes.storage}'
