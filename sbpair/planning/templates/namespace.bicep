// Service Bus namespace {{ code.namespace }}: {{ code.content }}.
// Written by: {{ code.origin }}
{% for target in code.external %}
// Needs {{ target }}, which exists outside this file.
{% endfor %}
// A deployment changes existing entities to this description. sbpair provision never does.

@description('Name of the namespace')
param namespaceName string = {{ literal(code.namespace) }}
{% if code.backlog_queues %}

@description('Name of the primary namespace, which is part of each backlog queue\'s name')
param primaryName string = {{ literal(code.primary) }}

@description('Number of backlog queues: every client of the pair uses the same')
param backlogQueues int = {{ code.backlog_queues }}
{% endif %}

resource namespace 'Microsoft.ServiceBus/namespaces@{{ api_version }}' existing = {
  name: namespaceName
}
{% if code.backlog_queues %}

resource backlog '{{ code.backlog.type }}' = [for index in range(0, backlogQueues): {
  parent: namespace
  name: '${primaryName}~x-servicebus-transfer~${index}'
  properties: {{ literal(code.backlog.properties) }}
}]
{% endif %}
{% for resource in code.resources + code.default_rules %}

{% if resource in code.default_rules %}
// The service gives a new subscription a rule that accepts every message. A template cannot delete it: this
// makes it accept none. sbpair provision deletes it.
{% endif %}
resource {{ resource.symbol }} '{{ resource.type }}' = {
  parent: {{ resource.parent or "namespace" }}
  name: {{ literal(resource.name) }}
  properties: {{ literal(resource.properties) }}
  {% if resource.needs %}
  dependsOn: [
    {% for symbol in resource.needs %}
    {{ symbol }}
    {% endfor %}
  ]
  {% endif %}
}
{% endfor %}
