// {{ origin }}
// Deploy it into the resource group of {{ pair.secondary.name }}. Azure bills each queue that a rule watches.

@description('Id of the action group that wakes a person')
param actionGroupId string

resource namespace '{{ namespaces }}' existing = {
  name: {{ literal(pair.secondary.name) }}
}
{% for name, properties in rules("namespace.id", "actionGroupId").items() %}

resource {{ name }} 'Microsoft.Insights/metricAlerts@2018-03-01' = {
  name: {{ literal(pair.primary.name ~ "-backlog-" ~ name) }}
  location: 'global'
  properties: {{ literal(properties) }}
}
{% endfor %}
