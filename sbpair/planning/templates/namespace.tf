# Service Bus namespace {{namespace}}: {{content}}.
# Written by: {{origin}}
{{#external}}
# Needs {{value}}, which exists outside this file.
{{/external}}
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
  default     = {{namespace:literal}}
}
{{#backlog}}

variable "primary_name" {
  description = "Name of the primary namespace, which is part of each backlog queue's name"
  type        = string
  default     = {{primary:literal}}
}

variable "backlog_queues" {
  description = "Number of backlog queues: every client of the pair uses the same"
  type        = number
  default     = {{backlog_queues}}
}
{{/backlog}}

locals {
  namespace_id = "${var.resource_group_id}/providers/Microsoft.ServiceBus/namespaces/${var.namespace_name}"
}
{{#backlog}}

resource "azapi_resource" "backlog" {
  count     = var.backlog_queues
  type      = "{{type}}"
  parent_id = local.namespace_id
  name      = "${var.primary_name}~x-servicebus-transfer~${count.index}"
  body = {{body:literal}}
  {{> lifecycle.tf}}
}
{{/backlog}}
{{#resources}}

resource "azapi_resource" "{{symbol}}" {
  type      = "{{type}}"
  parent_id = {{#parent}}azapi_resource.{{parent}}.id{{/parent}}{{^parent}}local.namespace_id{{/parent}}
  name      = {{name:literal}}
  body = {{body:literal}}
  {{#depends}}
  depends_on = [
    {{#needs}}
    azapi_resource.{{value}},
    {{/needs}}
  ]
  {{/depends}}
  {{#has_messages}}
  {{> lifecycle.tf}}
  {{/has_messages}}
}
{{/resources}}
{{#default_rules}}

# The service gives a new subscription a rule that accepts every message: deleted once all others exist.
resource "azapi_resource_action" "{{symbol}}" {
  type             = "{{type}}"
  resource_id      = "${azapi_resource.{{parent}}.id}/rules/{{name}}"
  method           = "DELETE"
  ignore_not_found = true
  {{#depends}}
  depends_on = [
    {{#needs}}
    azapi_resource.{{value}},
    {{/needs}}
  ]
  {{/depends}}
}
{{/default_rules}}
