// What somebody should hear of: dead letters, work that stays unfinished, throttling, lines that say a key is stopped.

param token string
param location string
param tags object
param email string
param outboxAgeSeconds int
param serviceBusId string
param cosmosId string
param workspaceId string

var receivers = empty(email) ? [] : [{ name: 'mail', emailAddress: email, useCommonAlertSchema: true }]

var metrics = [
  {
    name: 'dead-letters'
    description: 'Messages lie in a dead-letter queue; outbox dead-letters list QUEUE --cosmos ENDPOINT --servicebus HOST shows why'
    severity: 2
    scope: serviceBusId
    namespace: 'Microsoft.ServiceBus/namespaces'
    metric: 'DeadletteredMessages'
    aggregation: 'Maximum'
    threshold: 0
    dimensions: [{ name: 'EntityName', operator: 'Include', values: ['*'] }]
  }
  {
    name: 'bus-throttled'
    description: 'Service Bus has turned requests away; raise the tier, or send fewer'
    severity: 3
    scope: serviceBusId
    namespace: 'Microsoft.ServiceBus/namespaces'
    metric: 'ThrottledRequests'
    aggregation: 'Total'
    threshold: 10
    dimensions: []
  }
  {
    name: 'store-throttled'
    description: 'Cosmos DB has turned requests away; raise cosmosAutoscaleMaxRu, or look for a hot partition'
    severity: 3
    scope: cosmosId
    namespace: 'Microsoft.DocumentDB/databaseAccounts'
    metric: 'TotalRequests'
    aggregation: 'Count'
    threshold: 50
    dimensions: [{ name: 'StatusCode', operator: 'Include', values: ['429'] }]
  }
]

// Lines of the sweeper: swept unfinished=3 finished=2 oldest_s=71.5, and refused messages are kept count=2 queue=orders
var queries = [
  {
    name: 'outbox-age'
    description: 'A commit has been unfinished for long: its outputs cannot be sent, or nobody sweeps'
    severity: 1
    query: 'AppTraces | where Message startswith "swept" | extend value = todouble(extract("oldest_s=([0-9.]+)", 1, Message)) | project TimeGenerated, value'
    window: 'PT15M'
    aggregation: 'Maximum'
    column: 'value'
    operator: 'GreaterThan'
    threshold: outboxAgeSeconds
  }
  {
    name: 'refused'
    description: 'Handlers have refused messages, which lie in the store; outbox dead-letters list QUEUE --cosmos ENDPOINT --servicebus HOST shows why'
    severity: 2
    query: 'AppTraces | where Message startswith "refused messages are kept" | extend value = todouble(extract("count=([0-9]+)", 1, Message)) | project TimeGenerated, value'
    window: 'PT15M'
    aggregation: 'Maximum'
    column: 'value'
    operator: 'GreaterThan'
    threshold: 0
  }
  {
    name: 'not-swept'
    description: 'For hours no timer has swept: what a crash has left is not sent; is the app running?'
    severity: 1
    query: 'AppRequests | where OperationName == "sweep" and Success == true'
    window: 'PT6H'
    aggregation: 'Count'
    column: null
    operator: 'LessThan'
    threshold: 1
  }
  {
    name: 'critical'
    description: 'The runtime has stopped a key, because something it needs is missing'
    severity: 1
    query: 'AppTraces | where SeverityLevel >= 4 | extend value = 1.0 | project TimeGenerated, value'
    window: 'PT15M'
    aggregation: 'Maximum'
    column: 'value'
    operator: 'GreaterThan'
    threshold: 0
  }
]

resource group 'Microsoft.Insights/actionGroups@2023-01-01' = {
  name: 'ag-${token}'
  location: 'global'
  tags: tags
  properties: {
    groupShortName: 'outbox'
    enabled: true
    emailReceivers: receivers
  }
}

resource metricAlerts 'Microsoft.Insights/metricAlerts@2018-03-01' = [for alert in metrics: {
  name: '${alert.name}-${token}'
  location: 'global'
  tags: tags
  properties: {
    description: alert.description
    severity: alert.severity
    enabled: true
    scopes: [alert.scope]
    evaluationFrequency: 'PT5M'
    windowSize: 'PT5M'
    criteria: {
      'odata.type': 'Microsoft.Azure.Monitor.SingleResourceMultipleMetricCriteria'
      allOf: [
        {
          name: alert.name
          criterionType: 'StaticThresholdCriterion'
          metricNamespace: alert.namespace
          metricName: alert.metric
          dimensions: alert.dimensions
          operator: 'GreaterThan'
          threshold: alert.threshold
          timeAggregation: alert.aggregation
        }
      ]
    }
    actions: [{ actionGroupId: group.id }]
  }
}]

resource queryAlerts 'Microsoft.Insights/scheduledQueryRules@2023-12-01' = [for alert in queries: {
  name: '${alert.name}-${token}'
  location: location
  tags: tags
  kind: 'LogAlert'
  properties: {
    displayName: alert.name
    description: alert.description
    severity: alert.severity
    enabled: true
    scopes: [workspaceId]
    evaluationFrequency: 'PT5M'
    windowSize: alert.window
    criteria: {
      allOf: [
        {
          query: alert.query
          timeAggregation: alert.aggregation
          metricMeasureColumn: alert.column
          operator: alert.operator
          threshold: alert.threshold
          failingPeriods: { numberOfEvaluationPeriods: 1, minFailingPeriodsToAlert: 1 }
        }
      ]
    }
    autoMitigate: true
    skipQueryValidation: true // the table appears with the first line of the app
    actions: { actionGroups: [group.id] }
  }
}]
