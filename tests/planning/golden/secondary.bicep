// Service Bus namespace elsewhere: the backlog queues of contoso and 10 other entities.
// Written by: sbpair export
// Needs elsewhere, which exists outside this file.
// A deployment changes existing entities to this description. sbpair provision never does.

@description('Name of the namespace')
param namespaceName string = 'elsewhere'

@description('Name of the primary namespace, which is part of each backlog queue\'s name')
param primaryName string = 'contoso'

@description('Number of backlog queues: every client of the pair uses the same')
param backlogQueues int = 4

resource namespace 'Microsoft.ServiceBus/namespaces@2026-01-01' existing = {
  name: namespaceName
}

resource backlog 'Microsoft.ServiceBus/namespaces/queues@2026-01-01' = [for index in range(0, backlogQueues): {
  parent: namespace
  name: '${primaryName}~x-servicebus-transfer~${index}'
  properties: {
    lockDuration: 'PT1M'
    maxSizeInMegabytes: 5120
    maxDeliveryCount: 2147483647
    defaultMessageTimeToLive: 'P10675199DT2H48M5.4775807S'
    autoDeleteOnIdle: 'P10675199DT2H48M5.4775807S'
    deadLetteringOnMessageExpiration: true
    enableBatchedOperations: true
    requiresSession: false
    requiresDuplicateDetection: false
    status: 'Active'
  }
}]

resource queue_billing_invoices 'Microsoft.ServiceBus/namespaces/queues@2026-01-01' = {
  parent: namespace
  name: 'billing~invoices'
  properties: {
    lockDuration: 'PT30S'
    maxSizeInMegabytes: 1024
    maxDeliveryCount: 10
    defaultMessageTimeToLive: 'P10675199DT2H48M5.4775807S'
    autoDeleteOnIdle: 'P10675199DT2H48M5.4775807S'
    deadLetteringOnMessageExpiration: false
    enableBatchedOperations: true
    requiresSession: false
    requiresDuplicateDetection: true
    forwardDeadLetteredMessagesTo: 'failures'
    status: 'Active'
    duplicateDetectionHistoryTimeWindow: 'PT1H'
    userMetadata: 'it\'s \${ours} %{if} "x" \\ \n'
  }
  dependsOn: [
    queue_failures
  ]
}

resource queue_failures 'Microsoft.ServiceBus/namespaces/queues@2026-01-01' = {
  parent: namespace
  name: 'failures'
  properties: {
    lockDuration: 'PT1M'
    maxSizeInMegabytes: 2048
    maxDeliveryCount: 10
    defaultMessageTimeToLive: 'P10675199DT2H48M5.4775807S'
    autoDeleteOnIdle: 'P10675199DT2H48M5.4775807S'
    deadLetteringOnMessageExpiration: false
    enableBatchedOperations: true
    requiresSession: false
    requiresDuplicateDetection: false
    status: 'SendDisabled'
    duplicateDetectionHistoryTimeWindow: 'PT10M'
    enablePartitioning: true
  }
}

resource queue_sessions 'Microsoft.ServiceBus/namespaces/queues@2026-01-01' = {
  parent: namespace
  name: 'sessions'
  properties: {
    lockDuration: 'PT1M'
    maxSizeInMegabytes: 1024
    maxDeliveryCount: 10
    defaultMessageTimeToLive: 'P14D'
    autoDeleteOnIdle: 'P10675199DT2H48M5.4775807S'
    deadLetteringOnMessageExpiration: false
    enableBatchedOperations: true
    requiresSession: true
    requiresDuplicateDetection: false
    forwardTo: 'elsewhere'
    status: 'Active'
    duplicateDetectionHistoryTimeWindow: 'PT10M'
  }
}

resource topic_events_all 'Microsoft.ServiceBus/namespaces/topics@2026-01-01' = {
  parent: namespace
  name: 'events~all'
  properties: {
    maxSizeInMegabytes: 1024
    defaultMessageTimeToLive: 'P10675199DT2H48M5.4775807S'
    autoDeleteOnIdle: 'P10675199DT2H48M5.4775807S'
    requiresDuplicateDetection: false
    duplicateDetectionHistoryTimeWindow: 'PT10M'
    enableBatchedOperations: true
    supportOrdering: false
    status: 'Active'
  }
}

resource subscription_events_all_audit 'Microsoft.ServiceBus/namespaces/topics/subscriptions@2026-01-01' = {
  parent: topic_events_all
  name: 'audit'
  properties: {
    lockDuration: 'PT1M'
    maxDeliveryCount: 3
    defaultMessageTimeToLive: 'P10675199DT2H48M5.4775807S'
    autoDeleteOnIdle: 'P10675199DT2H48M5.4775807S'
    deadLetteringOnMessageExpiration: false
    deadLetteringOnFilterEvaluationExceptions: true
    enableBatchedOperations: true
    requiresSession: false
    status: 'Active'
  }
}

resource rule_events_all_audit_big 'Microsoft.ServiceBus/namespaces/topics/subscriptions/rules@2026-01-01' = {
  parent: subscription_events_all_audit
  name: 'big'
  properties: {
    action: {
      sqlExpression: 'SET seen = 1'
    }
    filterType: 'SqlFilter'
    sqlFilter: {
      sqlExpression: 'size > 10 AND kind = \'\${x}\''
    }
  }
}

resource rule_events_all_audit_ours 'Microsoft.ServiceBus/namespaces/topics/subscriptions/rules@2026-01-01' = {
  parent: subscription_events_all_audit
  name: 'ours'
  properties: {
    action: {}
    filterType: 'CorrelationFilter'
    correlationFilter: {
      label: 'x'
      properties: {
        'for': 'a'
        tenant: 'c'
        'x y': 'b'
      }
    }
  }
}

resource subscription_events_all_whole 'Microsoft.ServiceBus/namespaces/topics/subscriptions@2026-01-01' = {
  parent: topic_events_all
  name: 'whole'
  properties: {
    lockDuration: 'PT1M'
    maxDeliveryCount: 10
    defaultMessageTimeToLive: 'P10675199DT2H48M5.4775807S'
    autoDeleteOnIdle: 'P10675199DT2H48M5.4775807S'
    deadLetteringOnMessageExpiration: false
    deadLetteringOnFilterEvaluationExceptions: true
    enableBatchedOperations: true
    requiresSession: false
    status: 'Active'
  }
}

resource subscription_events_all_kept 'Microsoft.ServiceBus/namespaces/topics/subscriptions@2026-01-01' = {
  parent: topic_events_all
  name: 'kept'
  properties: {
    lockDuration: 'PT1M'
    maxDeliveryCount: 10
    defaultMessageTimeToLive: 'P10675199DT2H48M5.4775807S'
    autoDeleteOnIdle: 'P10675199DT2H48M5.4775807S'
    deadLetteringOnMessageExpiration: false
    deadLetteringOnFilterEvaluationExceptions: true
    enableBatchedOperations: true
    requiresSession: false
    status: 'Active'
  }
}

resource rule_events_all_kept_more 'Microsoft.ServiceBus/namespaces/topics/subscriptions/rules@2026-01-01' = {
  parent: subscription_events_all_kept
  name: 'more'
  properties: {
    action: {}
    filterType: 'SqlFilter'
    sqlFilter: {
      sqlExpression: '1=0'
    }
  }
}

// The service gives a new subscription a rule that accepts every message. A template cannot delete it: this
// makes it accept none. sbpair provision deletes it.
resource default_rule_events_all_audit 'Microsoft.ServiceBus/namespaces/topics/subscriptions/rules@2026-01-01' = {
  parent: subscription_events_all_audit
  name: '$Default'
  properties: {
    action: {}
    filterType: 'SqlFilter'
    sqlFilter: {
      sqlExpression: '1=0'
    }
  }
  dependsOn: [
    rule_events_all_audit_big
    rule_events_all_audit_ours
  ]
}
