// Service Bus: the queues, topics and subscriptions of ../../local/servicebus.json, which the emulators read too. What the
// official emulator allows less of than the service is set here: deliveries (10 there) and the window of duplicate
// detection (5 minutes).

param name string
param location string
param tags object

@allowed(['Premium', 'Standard'])
param sku string

// any(): the compiler would take the type of the file's content, and an empty list has none for its items.
var entities = any(loadJsonContent('../../local/servicebus.json')).UserConfig.Namespaces[0]
var subscriptions = flatten(map(
  entities.Topics,
  topic => map(topic.Subscriptions, one => { topic: topic.Name, name: one.Name, properties: one.Properties })
))

@description('Far above the runtime\'s own count of failures, which is the one that decides')
var maxDeliveryCount = 100
var duplicateWindow = 'PT10M'

resource bus 'Microsoft.ServiceBus/namespaces@2026-01-01' = {
  name: name
  location: location
  tags: tags
  sku: { name: sku, tier: sku }
  properties: {
    disableLocalAuth: true
    minimumTlsVersion: '1.2'
    publicNetworkAccess: 'Enabled'
  }
}

// Sessions, duplicate detection and partitioning are fixed when a queue is created: to change them is to make another.
resource queues 'Microsoft.ServiceBus/namespaces/queues@2026-01-01' = [for queue in entities.Queues: {
  parent: bus
  name: queue.Name
  properties: {
    requiresSession: queue.Properties.RequiresSession
    requiresDuplicateDetection: queue.Properties.RequiresDuplicateDetection
    duplicateDetectionHistoryTimeWindow: duplicateWindow
    deadLetteringOnMessageExpiration: queue.Properties.DeadLetteringOnMessageExpiration
    lockDuration: queue.Properties.LockDuration
    maxDeliveryCount: maxDeliveryCount
    maxSizeInMegabytes: 5120
    enablePartitioning: false
  }
}]

resource topics 'Microsoft.ServiceBus/namespaces/topics@2026-01-01' = [for topic in entities.Topics: {
  parent: bus
  name: topic.Name
  properties: {
    requiresDuplicateDetection: topic.Properties.RequiresDuplicateDetection
    duplicateDetectionHistoryTimeWindow: duplicateWindow
    maxSizeInMegabytes: 5120
    enablePartitioning: false
  }
}]

resource readers 'Microsoft.ServiceBus/namespaces/topics/subscriptions@2026-01-01' = [for one in subscriptions: {
  name: '${name}/${one.topic}/${one.name}'
  dependsOn: [topics]
  properties: {
    requiresSession: one.properties.RequiresSession
    deadLetteringOnMessageExpiration: one.properties.DeadLetteringOnMessageExpiration
    lockDuration: one.properties.LockDuration
    maxDeliveryCount: maxDeliveryCount
  }
}]

output id string = bus.id
output name string = bus.name
output host string = '${bus.name}.servicebus.windows.net'
