// The Spark pool. Deployed once without requirements, to exist, and once with them: a new pool refuses libraries.

param workspaceName string
param location string
param tags object

@description('The text of a requirements file; empty: none')
param requirements string

resource workspace 'Microsoft.Synapse/workspaces@2021-06-01' existing = {
  name: workspaceName
}

resource pool 'Microsoft.Synapse/workspaces/bigDataPools@2021-06-01' = {
  parent: workspace
  name: 'outbox'
  location: location
  tags: tags
  properties: {
    sparkVersion: '3.5'
    nodeSizeFamily: 'MemoryOptimized'
    nodeSize: 'Small'
    autoScale: { enabled: true, minNodeCount: 3, maxNodeCount: 5 }
    autoPause: { enabled: true, delayInMinutes: 15 }
    sessionLevelPackagesEnabled: true
    libraryRequirements: empty(requirements) ? null : { filename: 'requirements.txt', content: requirements }
    // A second copy of a task that sends would send again; receivers would notice, but nobody is served by it.
    // Java's own serializer holds a hundred cached batches of 4 MB before it lets go of them.
    sparkConfigProperties: {
      configurationType: 'File'
      filename: 'outbox.conf'
      content: 'spark.speculation false\nspark.serializer org.apache.spark.serializer.KryoSerializer'
    }
  }
}

output name string = pool.name
