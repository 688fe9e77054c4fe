// Rights on single queues, topics and subscriptions, none on the namespace: who sends, who receives, who may ask how long a
// queue or subscription is. A subscription is named by its topic and its name.

param principalId string

@allowed(['Group', 'ServicePrincipal', 'User'])
param principalType string
param namespaceName string
param sends string[]
param receives string[]
param manages string[]
param sendsToTopics string[]
param receivesSubscriptions object[]
param managesSubscriptions object[]

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

resource sendTopics 'Microsoft.ServiceBus/namespaces/topics@2026-01-01' existing = [for name in sendsToTopics: {
  parent: bus
  name: name
}]

resource receiveSubscriptions 'Microsoft.ServiceBus/namespaces/topics/subscriptions@2026-01-01' existing = [for one in receivesSubscriptions: {
  name: '${namespaceName}/${one.topic}/${one.name}'
}]

resource manageSubscriptions 'Microsoft.ServiceBus/namespaces/topics/subscriptions@2026-01-01' existing = [for one in managesSubscriptions: {
  name: '${namespaceName}/${one.topic}/${one.name}'
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

resource topicSenders 'Microsoft.Authorization/roleAssignments@2022-04-01' = [for (name, index) in sendsToTopics: {
  name: guid(bus.id, 'topics', name, principalId, roles['Azure Service Bus Data Sender'])
  scope: sendTopics[index]
  properties: {
    principalId: principalId
    principalType: principalType
    roleDefinitionId: subscriptionResourceId(
      'Microsoft.Authorization/roleDefinitions',
      roles['Azure Service Bus Data Sender']
    )
  }
}]

resource subscriptionReceivers 'Microsoft.Authorization/roleAssignments@2022-04-01' = [for (one, index) in receivesSubscriptions: {
  name: guid(bus.id, one.topic, one.name, principalId, roles['Azure Service Bus Data Receiver'])
  scope: receiveSubscriptions[index]
  properties: {
    principalId: principalId
    principalType: principalType
    roleDefinitionId: subscriptionResourceId(
      'Microsoft.Authorization/roleDefinitions',
      roles['Azure Service Bus Data Receiver']
    )
  }
}]

resource subscriptionManagers 'Microsoft.Authorization/roleAssignments@2022-04-01' = [for (one, index) in managesSubscriptions: {
  name: guid(bus.id, one.topic, one.name, principalId, roles['Azure Service Bus Data Owner'])
  scope: manageSubscriptions[index]
  properties: {
    principalId: principalId
    principalType: principalType
    roleDefinitionId: subscriptionResourceId(
      'Microsoft.Authorization/roleDefinitions',
      roles['Azure Service Bus Data Owner']
    )
  }
}]
