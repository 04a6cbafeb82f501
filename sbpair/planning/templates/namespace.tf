{% macro depends_on(resource) %}
  {% if resource.needs %}
  depends_on = [
    {% for symbol in resource.needs %}
    azapi_resource.{{ symbol }},
    {% endfor %}
  ]
  {% endif %}
{% endmacro %}
{% macro lifecycle(resource) %}
  {% if resource.entity.kind != "rule" %}
  lifecycle {
    prevent_destroy = true
    {% if resource.properties.get("enablePartitioning") %}
    ignore_changes  = [body.properties.maxSizeInMegabytes]
    {% endif %}
  }
  {% endif %}
{% endmacro %}
# Service Bus namespace {{ code.namespace }}: {{ code.content }}.
# Written by: {{ code.origin }}
{% for target in code.external %}
# Needs {{ target }}, which exists outside this file.
{% endfor %}
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
  default     = {{ literal(code.namespace) }}
}
{% if code.backlog_queues %}

variable "primary_name" {
  description = "Name of the primary namespace, which is part of each backlog queue's name"
  type        = string
  default     = {{ literal(code.primary) }}
}

variable "backlog_queues" {
  description = "Number of backlog queues: every client of the pair uses the same"
  type        = number
  default     = {{ code.backlog_queues }}
}
{% endif %}

locals {
  namespace_id = "${var.resource_group_id}/providers/Microsoft.ServiceBus/namespaces/${var.namespace_name}"
}
{% if code.backlog_queues %}

resource "azapi_resource" "backlog" {
  count     = var.backlog_queues
  type      = "{{ code.backlog.type }}"
  parent_id = local.namespace_id
  name      = "${var.primary_name}~x-servicebus-transfer~${count.index}"
  body = {{ literal({"properties": code.backlog.properties}) }}
{{ lifecycle(code.backlog) -}}
}
{% endif %}
{% for resource in code.resources %}

resource "azapi_resource" "{{ resource.symbol }}" {
  type      = "{{ resource.type }}"
  parent_id = {{ "azapi_resource." ~ resource.parent ~ ".id" if resource.parent else "local.namespace_id" }}
  name      = {{ literal(resource.name) }}
  body = {{ literal({"properties": resource.properties}) }}
{{ depends_on(resource) -}}
{{ lifecycle(resource) -}}
}
{% endfor %}
{% for rule in code.default_rules %}

# The service gives a new subscription a rule that accepts every message: deleted once all others exist.
resource "azapi_resource_action" "{{ rule.symbol }}" {
  type             = "{{ rule.type }}"
  resource_id      = "${azapi_resource.{{ rule.parent }}.id}/rules/{{ rule.name }}"
  method           = "DELETE"
  ignore_not_found = true
{{ depends_on(rule) -}}
}
{% endfor %}
