// What somebody should hear of: dead letters, work that stays unfinished, throttling, lines that say a key is stopped.

param token string
param location string
param tags object
param email string
param outboxAgeSeconds int
param waitingAgeSeconds int
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
  // On what the code counts (outbox/metrics.py), where the app sends its metrics; without them these find nothing.
  {
    name: 'dead-letters-rising'
    description: 'Messages have been refused in the last quarter of an hour; outbox dead-letters list --group --cosmos ENDPOINT --servicebus HOST shows why'
    severity: 2
    query: 'AppMetrics | where Name == "outbox.messages" and tostring(Properties["outbox.outcome"]) == "refused" | project TimeGenerated, value = Sum, queue = tostring(Properties["messaging.destination.name"])'
    window: 'PT15M'
    aggregation: 'Total'
    column: 'value'
    operator: 'GreaterThan'
    threshold: 0
  }
  {
    name: 'pending-oldest'
    description: 'What was committed has not left for long; outbox pending list --cosmos ENDPOINT --servicebus HOST says why'
    severity: 1
    query: 'AppMetrics | where Name == "outbox.pending.oldest" | project TimeGenerated, value = Max'
    window: 'PT15M'
    aggregation: 'Maximum'
    column: 'value'
    operator: 'GreaterThan'
    threshold: outboxAgeSeconds
  }
  {
    name: 'waiting-oldest'
    description: 'A message has waited for long: too few instances, a key that is blocked, or nobody reads; outbox queue peek QUEUE says why'
    severity: 2
    query: 'AppMetrics | where Name == "outbox.queue.oldest" | project TimeGenerated, value = Max, queue = tostring(Properties["messaging.destination.name"])'
    window: 'PT15M'
    aggregation: 'Maximum'
    column: 'value'
    operator: 'GreaterThan'
    threshold: waitingAgeSeconds
  }
  {
    name: 'unknown-outcomes'
    description: 'Many commits had an outcome that had to be read back: the store answers late or not at all'
    severity: 3
    query: 'AppMetrics | where Name == "outbox.commits.unknown" | project TimeGenerated, value = Sum'
    window: 'PT15M'
    aggregation: 'Total'
    column: 'value'
    operator: 'GreaterThan'
    threshold: 20
  }
  {
    name: 'breaker-open'
    description: 'A breaker spares what its handlers call, and messages wait; its name is that of the dependency'
    severity: 2
    query: 'AppMetrics | where Name == "outbox.guard.state" | project TimeGenerated, value = Max, guard = tostring(Properties["outbox.guard.name"])'
    window: 'PT15M'
    aggregation: 'Maximum'
    column: 'value'
    operator: 'GreaterThan'
    threshold: 2
  }
  {
    name: 'partition-fill'
    description: 'A key is heading for the limit of its partition; the log names it: shorten retention, or spread the key over several'
    severity: 2
    query: 'AppMetrics | where Name == "outbox.partition.share" | project TimeGenerated, value = Max * 100'
    window: 'PT1H'
    aggregation: 'Maximum'
    column: 'value'
    operator: 'GreaterThan'
    threshold: 80
  }
  {
    name: 'throttled'
    description: 'The services have turned away requests of the app; raise the tier or the throughput, or look for a hot partition'
    severity: 3
    query: 'AppMetrics | where Name == "outbox.requests.failed" and tostring(Properties["error.type"]) == "throttled" | project TimeGenerated, value = Sum, operation = tostring(Properties["outbox.operation"])'
    window: 'PT15M'
    aggregation: 'Total'
    column: 'value'
    operator: 'GreaterThan'
    threshold: 50
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
