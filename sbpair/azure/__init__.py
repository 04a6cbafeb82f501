"""The narrow waist to Azure's SDKs: nothing else of this package, the paired senders aside, imports azure."""
