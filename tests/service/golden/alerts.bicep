// the origin
// Deploy it into the resource group of elsewhere. Azure bills each queue that a rule watches.

@description('Id of the action group that wakes a person')
param actionGroupId string

resource namespace 'Microsoft.ServiceBus/namespaces@2026-01-01' existing = {
  name: 'elsewhere'
}

resource active 'Microsoft.Insights/metricAlerts@2018-03-01' = {
  name: 'contoso-backlog-active'
  location: 'global'
  properties: {
    description: 'Messages have waited in the backlog for 15 minutes: elsewhere, for contoso. Try sbpair audit.'
    severity: 1
    enabled: true
    scopes: [namespace.id]
    evaluationFrequency: 'PT5M'
    windowSize: 'PT15M'
    criteria: {
      'odata.type': 'Microsoft.Azure.Monitor.SingleResourceMultipleMetricCriteria'
      allOf: [{
        name: 'active'
        metricName: 'ActiveMessages'
        timeAggregation: 'Minimum'
        criterionType: 'StaticThresholdCriterion'
        operator: 'GreaterThan'
        threshold: 0
        metricNamespace: 'Microsoft.ServiceBus/namespaces'
        dimensions: [{
          name: 'EntityName'
          operator: 'StartsWith'
          values: ['contoso/x-servicebus-transfer/']
        }]
      }]
    }
    actions: [{
      actionGroupId: actionGroupId
    }]
  }
}

resource dead 'Microsoft.Insights/metricAlerts@2018-03-01' = {
  name: 'contoso-backlog-dead'
  location: 'global'
  properties: {
    description: 'The backlog has dead letters: elsewhere, for contoso. Try sbpair audit.'
    severity: 2
    enabled: true
    scopes: [namespace.id]
    evaluationFrequency: 'PT5M'
    windowSize: 'PT15M'
    criteria: {
      'odata.type': 'Microsoft.Azure.Monitor.SingleResourceMultipleMetricCriteria'
      allOf: [{
        name: 'dead'
        metricName: 'DeadletteredMessages'
        timeAggregation: 'Maximum'
        criterionType: 'StaticThresholdCriterion'
        operator: 'GreaterThan'
        threshold: 0
        metricNamespace: 'Microsoft.ServiceBus/namespaces'
        dimensions: [{
          name: 'EntityName'
          operator: 'StartsWith'
          values: ['contoso/x-servicebus-transfer/']
        }]
      }]
    }
    actions: [{
      actionGroupId: actionGroupId
    }]
  }
}
