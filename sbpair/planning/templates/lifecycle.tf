lifecycle {
  prevent_destroy = true
  {{#is_partitioned}}
  ignore_changes  = [body.properties.maxSizeInMegabytes]
  {{/is_partitioned}}
}
