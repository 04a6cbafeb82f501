# {{ origin }}
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
  description = "Id of the namespace {{ pair.secondary.name }}"
  type        = string
}

variable "action_group_id" {
  description = "Id of the action group that wakes a person"
  type        = string
}
{% for name, properties in rules("var.namespace_id", "var.action_group_id").items() %}

resource "azapi_resource" "{{ name }}" {
  type      = "Microsoft.Insights/metricAlerts@2018-03-01"
  parent_id = split("/providers/", var.namespace_id)[0]
  name      = {{ literal(pair.primary.name ~ "-backlog-" ~ name) }}
  location  = "global"
  body = {{ literal({"properties": properties}) }}
}
{% endfor %}
