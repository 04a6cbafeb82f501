# Service Bus namespace elsewhere: the backlog queues of contoso and 10 other entities.
# Written by: sbpair export
# Needs elsewhere, which exists outside this file.
# Import existing entities before the first apply, which fails for them.

terraform {
  required_version = ">= 1.3"
  required_providers {
    azapi = {
      source  = "Azure/azapi"
      version = "~> 2.0"
    }
  }
}

variable "resource_group_id" {
  description = "Id of the namespace's resource group, as in /subscriptions/ID/resourceGroups/NAME"
  type        = string
}

variable "namespace_name" {
  description = "Name of the namespace"
  type        = string
  default     = "elsewhere"
}

variable "primary_name" {
  description = "Name of the primary namespace, which is part of each backlog queue's name"
  type        = string
  default     = "contoso"
}

variable "backlog_queues" {
  description = "Number of backlog queues: every client of the pair uses the same"
  type        = number
  default     = 4
}

locals {
  namespace_id = "${var.resource_group_id}/providers/Microsoft.ServiceBus/namespaces/${var.namespace_name}"
}

resource "azapi_resource" "backlog" {
  count     = var.backlog_queues
  type      = "Microsoft.ServiceBus/namespaces/queues@2026-01-01"
  parent_id = local.namespace_id
  name      = "${var.primary_name}~x-servicebus-transfer~${count.index}"
  body = {
    properties = {
      lockDuration                     = "PT1M"
      maxSizeInMegabytes               = 5120
      maxDeliveryCount                 = 2147483647
      defaultMessageTimeToLive         = "P10675199DT2H48M5.4775807S"
      autoDeleteOnIdle                 = "P10675199DT2H48M5.4775807S"
      deadLetteringOnMessageExpiration = true
      enableBatchedOperations          = true
      requiresSession                  = false
      requiresDuplicateDetection       = false
      status                           = "Active"
    }
  }
  lifecycle {
    prevent_destroy = true
  }
}

resource "azapi_resource" "queue_billing_invoices" {
  type      = "Microsoft.ServiceBus/namespaces/queues@2026-01-01"
  parent_id = local.namespace_id
  name      = "billing~invoices"
  body = {
    properties = {
      lockDuration                        = "PT30S"
      maxSizeInMegabytes                  = 1024
      maxDeliveryCount                    = 10
      defaultMessageTimeToLive            = "P10675199DT2H48M5.4775807S"
      autoDeleteOnIdle                    = "P10675199DT2H48M5.4775807S"
      deadLetteringOnMessageExpiration    = false
      enableBatchedOperations             = true
      requiresSession                     = false
      requiresDuplicateDetection          = true
      forwardDeadLetteredMessagesTo       = "failures"
      status                              = "Active"
      duplicateDetectionHistoryTimeWindow = "PT1H"
      userMetadata                        = "it's \u0024{ours} \u0025{if} \"x\" \\ \n"
    }
  }
  depends_on = [
    azapi_resource.queue_failures,
  ]
  lifecycle {
    prevent_destroy = true
  }
}

resource "azapi_resource" "queue_failures" {
  type      = "Microsoft.ServiceBus/namespaces/queues@2026-01-01"
  parent_id = local.namespace_id
  name      = "failures"
  body = {
    properties = {
      lockDuration                        = "PT1M"
      maxSizeInMegabytes                  = 2048
      maxDeliveryCount                    = 10
      defaultMessageTimeToLive            = "P10675199DT2H48M5.4775807S"
      autoDeleteOnIdle                    = "P10675199DT2H48M5.4775807S"
      deadLetteringOnMessageExpiration    = false
      enableBatchedOperations             = true
      requiresSession                     = false
      requiresDuplicateDetection          = false
      status                              = "SendDisabled"
      duplicateDetectionHistoryTimeWindow = "PT10M"
      enablePartitioning                  = true
    }
  }
  lifecycle {
    prevent_destroy = true
    ignore_changes  = [body.properties.maxSizeInMegabytes]
  }
}

resource "azapi_resource" "queue_sessions" {
  type      = "Microsoft.ServiceBus/namespaces/queues@2026-01-01"
  parent_id = local.namespace_id
  name      = "sessions"
  body = {
    properties = {
      lockDuration                        = "PT1M"
      maxSizeInMegabytes                  = 1024
      maxDeliveryCount                    = 10
      defaultMessageTimeToLive            = "P14D"
      autoDeleteOnIdle                    = "P10675199DT2H48M5.4775807S"
      deadLetteringOnMessageExpiration    = false
      enableBatchedOperations             = true
      requiresSession                     = true
      requiresDuplicateDetection          = false
      forwardTo                           = "elsewhere"
      status                              = "Active"
      duplicateDetectionHistoryTimeWindow = "PT10M"
    }
  }
  lifecycle {
    prevent_destroy = true
  }
}

resource "azapi_resource" "topic_events_all" {
  type      = "Microsoft.ServiceBus/namespaces/topics@2026-01-01"
  parent_id = local.namespace_id
  name      = "events~all"
  body = {
    properties = {
      maxSizeInMegabytes                  = 1024
      defaultMessageTimeToLive            = "P10675199DT2H48M5.4775807S"
      autoDeleteOnIdle                    = "P10675199DT2H48M5.4775807S"
      requiresDuplicateDetection          = false
      duplicateDetectionHistoryTimeWindow = "PT10M"
      enableBatchedOperations             = true
      supportOrdering                     = false
      status                              = "Active"
    }
  }
  lifecycle {
    prevent_destroy = true
  }
}

resource "azapi_resource" "subscription_events_all_audit" {
  type      = "Microsoft.ServiceBus/namespaces/topics/subscriptions@2026-01-01"
  parent_id = azapi_resource.topic_events_all.id
  name      = "audit"
  body = {
    properties = {
      lockDuration                              = "PT1M"
      maxDeliveryCount                          = 3
      defaultMessageTimeToLive                  = "P10675199DT2H48M5.4775807S"
      autoDeleteOnIdle                          = "P10675199DT2H48M5.4775807S"
      deadLetteringOnMessageExpiration          = false
      deadLetteringOnFilterEvaluationExceptions = true
      enableBatchedOperations                   = true
      requiresSession                           = false
      status                                    = "Active"
    }
  }
  lifecycle {
    prevent_destroy = true
  }
}

resource "azapi_resource" "rule_events_all_audit_big" {
  type      = "Microsoft.ServiceBus/namespaces/topics/subscriptions/rules@2026-01-01"
  parent_id = azapi_resource.subscription_events_all_audit.id
  name      = "big"
  body = {
    properties = {
      action = {
        sqlExpression = "SET seen = 1"
      }
      filterType = "SqlFilter"
      sqlFilter = {
        sqlExpression = "size > 10 AND kind = '\u0024{x}'"
      }
    }
  }
}

resource "azapi_resource" "rule_events_all_audit_ours" {
  type      = "Microsoft.ServiceBus/namespaces/topics/subscriptions/rules@2026-01-01"
  parent_id = azapi_resource.subscription_events_all_audit.id
  name      = "ours"
  body = {
    properties = {
      action     = {}
      filterType = "CorrelationFilter"
      correlationFilter = {
        label = "x"
        properties = {
          "for"  = "a"
          tenant = "c"
          "x y"  = "b"
        }
      }
    }
  }
}

resource "azapi_resource" "subscription_events_all_whole" {
  type      = "Microsoft.ServiceBus/namespaces/topics/subscriptions@2026-01-01"
  parent_id = azapi_resource.topic_events_all.id
  name      = "whole"
  body = {
    properties = {
      lockDuration                              = "PT1M"
      maxDeliveryCount                          = 10
      defaultMessageTimeToLive                  = "P10675199DT2H48M5.4775807S"
      autoDeleteOnIdle                          = "P10675199DT2H48M5.4775807S"
      deadLetteringOnMessageExpiration          = false
      deadLetteringOnFilterEvaluationExceptions = true
      enableBatchedOperations                   = true
      requiresSession                           = false
      status                                    = "Active"
    }
  }
  lifecycle {
    prevent_destroy = true
  }
}

resource "azapi_resource" "subscription_events_all_kept" {
  type      = "Microsoft.ServiceBus/namespaces/topics/subscriptions@2026-01-01"
  parent_id = azapi_resource.topic_events_all.id
  name      = "kept"
  body = {
    properties = {
      lockDuration                              = "PT1M"
      maxDeliveryCount                          = 10
      defaultMessageTimeToLive                  = "P10675199DT2H48M5.4775807S"
      autoDeleteOnIdle                          = "P10675199DT2H48M5.4775807S"
      deadLetteringOnMessageExpiration          = false
      deadLetteringOnFilterEvaluationExceptions = true
      enableBatchedOperations                   = true
      requiresSession                           = false
      status                                    = "Active"
    }
  }
  lifecycle {
    prevent_destroy = true
  }
}

resource "azapi_resource" "rule_events_all_kept_more" {
  type      = "Microsoft.ServiceBus/namespaces/topics/subscriptions/rules@2026-01-01"
  parent_id = azapi_resource.subscription_events_all_kept.id
  name      = "more"
  body = {
    properties = {
      action     = {}
      filterType = "SqlFilter"
      sqlFilter = {
        sqlExpression = "1=0"
      }
    }
  }
}

# The service gives a new subscription a rule that accepts every message: deleted once all others exist.
resource "azapi_resource_action" "default_rule_events_all_audit" {
  type             = "Microsoft.ServiceBus/namespaces/topics/subscriptions/rules@2026-01-01"
  resource_id      = "${azapi_resource.subscription_events_all_audit.id}/rules/$Default"
  method           = "DELETE"
  ignore_not_found = true
  depends_on = [
    azapi_resource.rule_events_all_audit_big,
    azapi_resource.rule_events_all_audit_ours,
  ]
}
