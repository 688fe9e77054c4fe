// Service Bus: the queues of ../../local/servicebus.json, which the emulators read too. What the official emulator
// allows less of than the service is set here: deliveries (10 there) and the window of duplicate detection (5 minutes).

param name string
param location string
param tags object

@allowed(['Premium', 'Standard'])
param sku string

var queues = loadJsonContent('../../local/servicebus.json').UserConfig.Namespaces[0].Queues

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
resource entities 'Microsoft.ServiceBus/namespaces/queues@2026-01-01' = [for queue in queues: {
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

output id string = bus.id
output name string = bus.name
output host string = '${bus.name}.servicebus.windows.net'
