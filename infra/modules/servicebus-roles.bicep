// Rights on single queues, none on the namespace: who sends, who receives, who may ask for a queue's length.

param principalId string

@allowed(['Group', 'ServicePrincipal', 'User'])
param principalType string
param namespaceName string
param sends string[]
param receives string[]
param manages string[]

var roles = loadJsonContent('../roles.json')

resource bus 'Microsoft.ServiceBus/namespaces@2026-01-01' existing = {
  name: namespaceName
}

resource sendQueues 'Microsoft.ServiceBus/namespaces/queues@2026-01-01' existing = [for name in sends: {
  parent: bus
  name: name
}]

resource receiveQueues 'Microsoft.ServiceBus/namespaces/queues@2026-01-01' existing = [for name in receives: {
  parent: bus
  name: name
}]

resource manageQueues 'Microsoft.ServiceBus/namespaces/queues@2026-01-01' existing = [for name in manages: {
  parent: bus
  name: name
}]

resource senders 'Microsoft.Authorization/roleAssignments@2022-04-01' = [for (name, index) in sends: {
  name: guid(bus.id, name, principalId, roles['Azure Service Bus Data Sender'])
  scope: sendQueues[index]
  properties: {
    principalId: principalId
    principalType: principalType
    roleDefinitionId: subscriptionResourceId(
      'Microsoft.Authorization/roleDefinitions',
      roles['Azure Service Bus Data Sender']
    )
  }
}]

resource receivers 'Microsoft.Authorization/roleAssignments@2022-04-01' = [for (name, index) in receives: {
  name: guid(bus.id, name, principalId, roles['Azure Service Bus Data Receiver'])
  scope: receiveQueues[index]
  properties: {
    principalId: principalId
    principalType: principalType
    roleDefinitionId: subscriptionResourceId(
      'Microsoft.Authorization/roleDefinitions',
      roles['Azure Service Bus Data Receiver']
    )
  }
}]

resource managers 'Microsoft.Authorization/roleAssignments@2022-04-01' = [for (name, index) in manages: {
  name: guid(bus.id, name, principalId, roles['Azure Service Bus Data Owner'])
  scope: manageQueues[index]
  properties: {
    principalId: principalId
    principalType: principalType
    roleDefinitionId: subscriptionResourceId(
      'Microsoft.Authorization/roleDefinitions',
      roles['Azure Service Bus Data Owner']
    )
  }
}]
