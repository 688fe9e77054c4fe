// A Synapse workspace on a data lake of its own. Its identity may read and write that lake and nothing else.

param name string
param location string
param tags object
param lakeName string
param fileSystem string

var roles = loadJsonContent('../roles.json')

resource lake 'Microsoft.Storage/storageAccounts@2026-09-01' existing = {
  name: lakeName
}

resource workspace 'Microsoft.Synapse/workspaces@2021-06-01' = {
  name: name
  location: location
  tags: tags
  identity: { type: 'SystemAssigned' }
  properties: {
    azureADOnlyAuthentication: true
    defaultDataLakeStorage: {
      accountUrl: lake.properties.primaryEndpoints.dfs
      filesystem: fileSystem
    }
    publicNetworkAccess: 'Enabled'
  }

  // 0.0.0.0 stands for services of Azure: the Functions app, which submits jobs, is one.
  resource fromAzure 'firewallRules' = {
    name: 'AllowAllWindowsAzureIps'
    properties: { startIpAddress: '0.0.0.0', endIpAddress: '0.0.0.0' }
  }
}

resource lakeRights 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(lake.id, name, roles['Storage Blob Data Contributor'])
  scope: lake
  properties: {
    principalId: workspace.identity.principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId(
      'Microsoft.Authorization/roleDefinitions',
      roles['Storage Blob Data Contributor']
    )
  }
}

output name string = workspace.name
