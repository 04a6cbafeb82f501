// Service Bus namespace {{namespace}}: {{content}}.
// Written by: {{origin}}
{{#external}}
// Needs {{value}}, which exists outside this file.
{{/external}}
// A deployment changes existing entities to this description. sbpair provision never does.

@description('Name of the namespace')
param namespaceName string = {{namespace:literal}}
{{#backlog}}

@description('Name of the primary namespace, which is part of each backlog queue\'s name')
param primaryName string = {{primary:literal}}

@description('Number of backlog queues: every client of the pair uses the same')
param backlogQueues int = {{backlog_queues}}
{{/backlog}}

resource namespace '{{namespace_type}}' existing = {
  name: namespaceName
}
{{#backlog}}

resource backlog '{{type}}' = [for index in range(0, backlogQueues): {
  parent: namespace
  name: '${primaryName}~x-servicebus-transfer~${index}'
  properties: {{properties:literal}}
}]
{{/backlog}}
{{#resources}}

resource {{symbol}} '{{type}}' = {
  parent: {{parent}}{{^parent}}namespace{{/parent}}
  name: {{name:literal}}
  properties: {{properties:literal}}
  {{#depends}}
  dependsOn: [
    {{#needs}}
    {{value}}
    {{/needs}}
  ]
  {{/depends}}
}
{{/resources}}
{{#default_rules}}

// The service gives a new subscription a rule that accepts every message. A template cannot delete it: this
// makes it accept none. sbpair provision deletes it.
resource {{symbol}} '{{type}}' = {
  parent: {{parent}}
  name: {{name:literal}}
  properties: {{properties:literal}}
  {{#depends}}
  dependsOn: [
    {{#needs}}
    {{value}}
    {{/needs}}
  ]
  {{/depends}}
}
{{/default_rules}}
