// The Functions app on Flex Consumption. Its settings are those that function_app/settings.py reads, and the host's own.

param name string
param planName string
param location string
param tags object
param pythonVersion string
param instanceMemoryMB int
param maximumInstanceCount int
param identityId string
param identityClientId string
param applicationInsightsConnectionString string
param blobEndpoint string
param packageContainer string
param serviceBusHost string
param cosmosEndpoint string
param statesContainer string
param dispatchLedger bool

@description('Settings of spark_jobs/submitting/settings.py; empty: no Spark jobs are started')
param sparkSettings object

var app = loadJsonContent('../app.json')

resource plan 'Microsoft.Web/serverfarms@2025-05-01' = {
  name: planName
  location: location
  tags: tags
  kind: 'functionapp'
  sku: { name: 'FC1', tier: 'FlexConsumption' }
  properties: { reserved: true }
}

resource site 'Microsoft.Web/sites@2025-05-01' = {
  name: name
  location: location
  tags: tags
  kind: 'functionapp,linux'
  identity: {
    type: 'UserAssigned'
    userAssignedIdentities: { '${identityId}': {} }
  }
  properties: {
    serverFarmId: plan.id
    httpsOnly: true
    siteConfig: { minTlsVersion: '1.2' }
    functionAppConfig: {
      runtime: { name: 'python', version: pythonVersion }
      scaleAndConcurrency: {
        instanceMemoryMB: instanceMemoryMB
        maximumInstanceCount: maximumInstanceCount
      }
      deployment: {
        storage: {
          type: 'blobContainer'
          value: '${blobEndpoint}${packageContainer}'
          authentication: {
            type: 'UserAssignedIdentity'
            userAssignedIdentityResourceId: identityId
          }
        }
      }
    }
  }

  // Names with __ are read by the host's triggers and by the application alike.
  resource settings 'config' = {
    name: 'appsettings'
    properties: union(
      {
        AzureWebJobsStorage__blobServiceUri: blobEndpoint
        AzureWebJobsStorage__credential: 'managedidentity'
        AzureWebJobsStorage__clientId: identityClientId
        APPLICATIONINSIGHTS_CONNECTION_STRING: applicationInsightsConnectionString
        APPLICATIONINSIGHTS_AUTHENTICATION_STRING: 'Authorization=AAD;ClientId=${identityClientId}'
        AZURE_CLIENT_ID: identityClientId
        OUTBOX_SERVICEBUS__fullyQualifiedNamespace: serviceBusHost
        OUTBOX_SERVICEBUS__credential: 'managedidentity'
        OUTBOX_SERVICEBUS__clientId: identityClientId
        OUTBOX_COSMOS__accountEndpoint: cosmosEndpoint
        OUTBOX_BLOBS__blobServiceUri: blobEndpoint
        OUTBOX_DATABASE: app.database
        OUTBOX_STATES: statesContainer
        OUTBOX_DISPATCH_LEDGER: dispatchLedger ? '1' : ''
      },
      sparkSettings
    )
  }

  resource ftp 'basicPublishingCredentialsPolicies' = {
    name: 'ftp'
    properties: { allow: false }
  }

  resource scm 'basicPublishingCredentialsPolicies' = {
    name: 'scm'
    properties: { allow: false }
  }
}

output name string = site.name
