// Logs and traces. Nobody writes with a key: the app signs in (Monitoring Metrics Publisher, in roles.bicep).

param token string
param location string
param tags object

resource workspace 'Microsoft.OperationalInsights/workspaces@2025-07-01' = {
  name: 'log-${token}'
  location: location
  tags: tags
  properties: {
    sku: { name: 'PerGB2018' }
    retentionInDays: 30
    features: { disableLocalAuth: true }
    workspaceCapping: { dailyQuotaGb: 1 } // a loop that logs is stopped by this, not by the bill
  }
}

resource component 'Microsoft.Insights/components@2020-02-02' = {
  name: 'appi-${token}'
  location: location
  tags: tags
  kind: 'web'
  properties: {
    Application_Type: 'web'
    WorkspaceResourceId: workspace.id
    IngestionMode: 'LogAnalytics'
    DisableLocalAuth: true
  }
}

output workspaceId string = workspace.id
output applicationInsightsName string = component.name
output applicationInsightsConnectionString string = component.properties.ConnectionString
