"""The Azure Resource Manager frontend: entities as JSON over HTTP."""
