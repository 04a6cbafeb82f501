# the origin
# Azure bills each queue that a rule watches.

terraform {
  required_version = ">= 1.3"
  required_providers {
    azapi = {
      source  = "Azure/azapi"
      version = "~> 2.0"
    }
  }
}

variable "namespace_id" {
  description = "Id of the namespace elsewhere"
  type        = string
}

variable "action_group_id" {
  description = "Id of the action group that wakes a person"
  type        = string
}

resource "azapi_resource" "active" {
  type      = "Microsoft.Insights/metricAlerts@2018-03-01"
  parent_id = split("/providers/", var.namespace_id)[0]
  name      = "contoso-backlog-active"
  location  = "global"
  body = {
    properties = {
      description         = "Messages have waited in the backlog for 15 minutes: elsewhere, for contoso. Try sbpair audit."
      severity            = 1
      enabled             = true
      scopes              = [var.namespace_id]
      evaluationFrequency = "PT5M"
      windowSize          = "PT15M"
      criteria = {
        "odata.type" = "Microsoft.Azure.Monitor.SingleResourceMultipleMetricCriteria"
        allOf = [{
          name            = "active"
          metricName      = "ActiveMessages"
          timeAggregation = "Minimum"
          criterionType   = "StaticThresholdCriterion"
          operator        = "GreaterThan"
          threshold       = 0
          metricNamespace = "Microsoft.ServiceBus/namespaces"
          dimensions = [{
            name     = "EntityName"
            operator = "StartsWith"
            values   = ["contoso/x-servicebus-transfer/"]
          }]
        }]
      }
      actions = [{
        actionGroupId = var.action_group_id
      }]
    }
  }
}

resource "azapi_resource" "dead" {
  type      = "Microsoft.Insights/metricAlerts@2018-03-01"
  parent_id = split("/providers/", var.namespace_id)[0]
  name      = "contoso-backlog-dead"
  location  = "global"
  body = {
    properties = {
      description         = "The backlog has dead letters: elsewhere, for contoso. Try sbpair audit."
      severity            = 2
      enabled             = true
      scopes              = [var.namespace_id]
      evaluationFrequency = "PT5M"
      windowSize          = "PT15M"
      criteria = {
        "odata.type" = "Microsoft.Azure.Monitor.SingleResourceMultipleMetricCriteria"
        allOf = [{
          name            = "dead"
          metricName      = "DeadletteredMessages"
          timeAggregation = "Maximum"
          criterionType   = "StaticThresholdCriterion"
          operator        = "GreaterThan"
          threshold       = 0
          metricNamespace = "Microsoft.ServiceBus/namespaces"
          dimensions = [{
            name     = "EntityName"
            operator = "StartsWith"
            values   = ["contoso/x-servicebus-transfer/"]
          }]
        }]
      }
      actions = [{
        actionGroupId = var.action_group_id
      }]
    }
  }
}
